"""Patients from the names of images, and a warning when several images may be of one patient."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpunet.data.folder.names import stem_of
from hpunet.data.types import Source
from hpunet.errors import ConfigError, DataError

# What tells images of one patient apart: the side, or a number after another part of the name.
_SIDE = re.compile(r"(?<![A-Za-z])(?:L|R|l|r|left|right|Left|Right|LEFT|RIGHT|OD|OS)(?![A-Za-z])")
_LAST_NUMBER = re.compile(r"[_\-. ]+[A-Za-z]*\d+$")


def patients_by_pattern(stems: Iterable[str], *, pattern: str, where: str) -> dict[str, str]:
    """The patient of each image: what the one group of a regular expression finds in its name."""
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--patient '{pattern}': not a regular expression ({error})") from None
    if regex.groups != 1:
        raise ConfigError(f"--patient '{pattern}': expected one group in parentheses, as in 'Image_(\\d+)'")
    found = {stem: regex.search(stem) for stem in stems}
    missing = [stem for stem, match in found.items() if not (match and match[1])]
    if missing:
        raise DataError(f"{where}: --patient '{pattern}' does not fit {len(missing)} names, such as {missing[0]}")
    return {stem: match[1] for stem, match in found.items() if match}


def patient_warning(sources: Sequence[Source], *, options: Mapping[str, Any]) -> str | None:
    """A warning if images whose names differ by side or by number count as different patients."""
    if sources[0].info.kind != "folder" or options.get("patient") not in (None, "none"):
        return None
    identities = [identity for source in sources for identity in source.identities]
    names = sorted({stem_of(identity.patient) for identity in identities})
    if any(stem_of(identity.patient) != identity.key.split("/")[0] for identity in identities):
        return None  # data.csv names patients
    for groups in (_groups(names, _without_side), _groups(names, _without_number)):
        several = [members for members in groups.values() if len(members) > 1]
        if len(groups) > 1 and 2 * sum(map(len, several)) >= len(names):
            first, second, *_ = several[0]
            words = f"{first} and {second} may be one patient, but each counts as a patient of its own"
            return f"{words}; give --patient {shlex.quote(_proposal(groups))}, or data.csv with a column patient"
    return None


def _groups(names: Sequence[str], common: Any) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(common(name), []).append(name)
    return groups


def _without_side(name: str) -> str:
    return _SIDE.sub("", name, count=1)


def _without_number(name: str) -> str:
    return _LAST_NUMBER.sub("", name)


def _proposal(groups: Mapping[str, Sequence[str]]) -> str:
    """A pattern that makes these groups: a prefix and a number, or all up to the part that differs."""
    first, last = min(groups), max(groups)
    same = next((i for i, letters in enumerate(zip(first, last, strict=False)) if len(set(letters)) > 1), len(first))
    start = re.escape(first[:same].rstrip("0123456789"))
    for pattern in (f"{start}(\\d+)", f"{start}([^_. -]+)", r"(.*\d)[LRlr]", r"(.+)[_\-. ]"):
        matches = {group: [re.search(pattern, name) for name in names] for group, names in groups.items()}
        patients = [{match[1] if match else None for match in found} for found in matches.values()]
        counts = Counter(patient for found in patients for patient in found)
        if None not in counts and all(len(found) == 1 for found in patients) and max(counts.values()) == 1:
            return pattern
    return "(...)"
