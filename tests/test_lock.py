"""The lock files hold all that the environment needs, in the versions of constraints.txt, each with hashes."""

import re
import tomllib
from collections.abc import Iterable
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
GROUPS = PROJECT["dependency-groups"]
APART = re.compile(r"torch|triton|(nvidia|cuda)-.*")
"""Every kind of machine has its own build of these."""


def pins() -> dict[str, str]:
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    split = [line.split("==") for line in lines if line]
    found = {canonicalize_name(name): version for name, version in split}
    assert len(found) == len(split)
    return found


def locked(file: str) -> dict[str, str]:
    """Version by name; every package has hashes, or pip would refuse the whole file."""
    found = {}
    text = re.sub(r"^#.*\n?", "", (ROOT / file).read_text(), flags=re.MULTILINE)
    for block in re.split(r"\n(?=\S)", text.strip()):
        name, version, hashes = re.fullmatch(
            r"(\S+)==(\S+)[^\n]*?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)", block
        ).groups()
        assert hashes.count("--hash") > 0
        found[canonicalize_name(name)] = version
    return found


def needed(wanted: Iterable[str]) -> set[str]:
    """What these requirements bring on this machine, by what is installed."""
    left, found, seen = [Requirement(each) for each in wanted], set(), set()
    while left:
        each = left.pop()
        if str(each) in seen or (each.marker and not each.marker.evaluate({"extra": ""})):
            continue
        seen.add(str(each))
        found.add(canonicalize_name(each.name))
        for line in metadata.requires(each.name) or ():
            more = Requirement(line)
            if any(more.marker is None or more.marker.evaluate({"extra": extra}) for extra in ("", *each.extras)):
                more.marker = None
                left.append(more)
    return found


def group(name: str) -> list[str]:
    lines = GROUPS[name]
    own = [line for line in lines if isinstance(line, str)]
    return own + [each for line in lines if isinstance(line, dict) for each in group(line["include-group"])]


@pytest.mark.parametrize(("file", "groups"), [("requirements.lock", ()), ("requirements-dev.lock", ("dev",))])
def test_lock_holds_what_is_needed_in_the_pinned_versions(file: str, groups: tuple[str, ...]) -> None:
    found, pinned = locked(file), pins()
    assert {name: version for name, version in found.items() if pinned.get(name) != version} == {}
    wanted = PROJECT["project"]["dependencies"] + [each for extra in EXTRAS.values() for each in extra]
    names = needed(wanted + [each for name in groups for each in group(name)])
    assert {name for name in names - found.keys() if not APART.fullmatch(name)} == set(), "run make lock"
    assert not [name for name in found if APART.fullmatch(name)]


def test_what_only_torch_needs_is_locked_by_name() -> None:
    own = {Requirement(line) for line in metadata.requires("torch") or ()}
    names = {
        canonicalize_name(each.name) for each in own if each.marker is None or each.marker.evaluate({"extra": ""})
    }
    listed = {canonicalize_name(Requirement(line).name) for line in GROUPS["torch-needs"]}
    assert {name for name in names if not APART.fullmatch(name)} == listed
