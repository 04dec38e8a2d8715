"""Checkpoints: what went in comes out; no damage is believed; nothing whole is ever lost. Kills: test_kills.py."""

import hashlib
import json
import os
import pickle
import random
import resource
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hpunet.errors import CheckpointError, ConfigError
from hpunet.utils import files as storage
from hpunet.utils.files import dump_hashed_json
from hpunet.weights import checkpoints as checkpoint
from hpunet.weights.checkpoints import latest_checkpoint, load_checkpoint, prune, save_checkpoint


def contents(seed: int) -> dict[str, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model": {
            "conv.weight": torch.randn(2, 3, generator=generator),
            "conv.bias": torch.randn(2, generator=generator),
        },
        "optimiser": {"0.step": torch.tensor(float(seed)), "0.exp_avg": torch.randn(2, 3, generator=generator)},
        "objective": {},
    }


def save(folder: Path, step: int, *, name: str | None = None) -> Path:
    state = {"seed": step, "best": 0.1 + 0.2, "log": ["κ", None, True, {"deep": [1, [2]]}]}
    return save_checkpoint(folder, step=step, tensors=contents(step), state=state, name=name)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    path = save(tmp_path / "new" / "run", 1000)
    assert path == tmp_path / "new" / "run" / "step-00001000"
    assert names(path) == [
        "manifest.json",
        "model.safetensors",
        "objective.safetensors",
        "optimiser.safetensors",
        "state.json",
    ]
    found = load_checkpoint(path)
    assert (found.step, found.path, found.skipped) == (1000, path, [])
    assert found.state == {"seed": 1000, "best": 0.1 + 0.2, "log": ["κ", None, True, {"deep": [1, [2]]}]}
    for group, tensors in contents(1000).items():
        assert found.tensors[group].keys() == tensors.keys()
        assert all(torch.equal(found.tensors[group][name], tensors[name]) for name in tensors)


def test_hundred_intact_checkpoints_are_accepted(tmp_path: Path) -> None:
    for step in range(100):
        assert load_checkpoint(save(tmp_path, step)).step == step
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert (found.step, found.skipped) == (99, [])
    assert len(prune(tmp_path, keep=100)) == 0


def test_latest_checkpoint_of_nothing_is_none(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "absent") is None
    save(tmp_path, 5, name="best")
    (tmp_path / "step-5").mkdir()  # not a name of ours
    (tmp_path / "log.txt").write_text("a log")
    assert latest_checkpoint(tmp_path) is None


def test_latest_checkpoint_takes_the_highest_step_even_past_eight_digits(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000, 7):
        save(tmp_path, step)
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 100_000_000


def test_latest_checkpoint_without_a_whole_one_is_an_error(tmp_path: Path) -> None:
    for step in (1, 2):
        (save(tmp_path, step) / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"no intact checkpoint: .*2/state\.json: missing; .*1/state\.json"):
        latest_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be listed"):
        latest_checkpoint(tmp_path / "step-00000001" / "manifest.json")


def test_named_checkpoint_is_replaced_and_load_recovers_its_predecessor(tmp_path: Path) -> None:
    save(tmp_path, 1, name="best")
    path = save(tmp_path, 2, name="best")
    assert load_checkpoint(path).step == 2
    assert names(tmp_path) == ["best"]
    old = tmp_path / ".old-hpunet-best"
    path.rename(old)  # as a kill between the two renames leaves it
    found = load_checkpoint(path)
    assert (found.step, found.path) == (2, old)
    assert "best: no such checkpoint" in found.skipped[0]
    save(tmp_path, 3)  # any save puts it back
    assert names(tmp_path) == ["best", "step-00000003"]
    shutil.copytree(path, old)
    (path / "state.json").write_bytes(b"")
    assert load_checkpoint(path).path == old
    (old / "state.json").write_bytes(b"")
    with pytest.raises(CheckpointError, match="its predecessor is no better"):
        load_checkpoint(path)
    save(tmp_path, 4, name="best")
    assert load_checkpoint(path).step == 4
    save(tmp_path, 4)
    assert names(tmp_path) == ["best", "step-00000003", "step-00000004"]


def test_readers_follow_a_run_that_replaces_what_they_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves between the files that are read, with `keep_checkpoints=1`."""
    read, steps, reads = checkpoint._read, count(1), count()
    save(tmp_path, 0)
    save(tmp_path, 0, name="best")

    def read_slowly(*arguments: Any) -> bytes:
        if next(reads) % 7 == 0:  # a checkpoint has four files
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(checkpoint, "_read", read)
                step = next(steps)
                save(tmp_path, step)
                save(tmp_path, step, name="best")
                prune(tmp_path, keep=1)
        return read(*arguments)

    monkeypatch.setattr(checkpoint, "_read", read_slowly)
    for _ in range(5):
        latest, best = latest_checkpoint(tmp_path), load_checkpoint(tmp_path / "best")
        assert latest is not None
        for found in (latest, best):
            assert found.skipped == []
            assert torch.equal(found.tensors["model"]["conv.bias"], contents(found.step)["model"]["conv.bias"])


def test_reader_gives_up_on_what_never_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def vanish(path: Path) -> None:
        tries.append(path)
        shutil.rmtree(path, ignore_errors=True)
        save(tmp_path, len(tries))
        raise CheckpointError("gone")

    save(tmp_path, 0)
    monkeypatch.setattr(storage, "MAX_READS", 5)
    monkeypatch.setattr(checkpoint, "_load", vanish)
    with pytest.raises(CheckpointError, match="gone"):
        latest_checkpoint(tmp_path)
    assert 5 <= len(tries) <= 25


def test_save_cleans_up_only_what_it_could_have_left(tmp_path: Path) -> None:
    for name in (".tmp-hpunet-step-00000009", ".tmp-hpunet-gone-0011", ".tmp-mine", "tmp-hpunet-x", ".old-mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("text")
    save(tmp_path, 1)
    assert names(tmp_path) == [".old-mine", ".tmp-mine", "step-00000001", "tmp-hpunet-x"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": -1}, "step: expected 0"),
        ({"step": 10**18}, "step: expected 0"),
        ({"name": "../best"}, "names of checkpoints"),
        ({"name": "step-00000002"}, "names of checkpoints"),
        ({"name": ""}, "names of checkpoints"),
        ({"tensors": {"a/b": {}}}, "names of checkpoints and groups"),
        (
            {"tensors": {"model": {"w": torch.ones(1, dtype=torch.complex64)}}},
            "model: w: a tensor of torch.complex64",
        ),
        ({"state": {"best": float("inf")}}, r"state\.best: .* inf"),
        ({"state": {"log": [{"loss": float("nan")}]}}, r"state\.log\[0\]\.loss: .* nan"),
        ({"state": {"sizes": (1, 2)}}, r"state\.sizes: .* tuple"),
        ({"state": {"by": {1: 2}}}, r"state\.by: .* not a string"),
        ({"state": {"w": torch.ones(1)}}, r"state\.w: .* Tensor"),
    ],
)
def test_save_refuses_what_would_not_come_back(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(CheckpointError, match=message):
        save_checkpoint(tmp_path, **{"step": 2, "tensors": {}, "state": {}, **arguments})
    assert names(tmp_path) == ["step-00000001"]


def test_prune_keeps_the_newest_whole_ones(tmp_path: Path) -> None:
    paths = {step: save(tmp_path, step) for step in range(1, 8)}
    save(tmp_path, 0, name="best")
    (paths[7] / "model.safetensors").write_bytes(b"cut")
    (paths[3] / "manifest.json").unlink()
    assert prune(tmp_path, keep=2, protect=[paths[2]]) == [paths[4], paths[3], paths[1]]
    assert names(tmp_path) == ["best", "step-00000002", "step-00000005", "step-00000006", "step-00000007"]
    (paths[6] / "state.json").unlink()
    assert prune(tmp_path, keep=3) == []  # two whole ones are left, none too many
    assert prune(tmp_path / "absent", keep=1) == []
    with pytest.raises(ConfigError, match="keep"):
        prune(tmp_path, keep=0)


def flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def zero(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start = rng.randrange(len(content) - 8)
    content[start : start + 16] = bytes(len(content[start : start + 16]))
    path.write_bytes(content)


def truncate(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def swap(path: Path, rng: random.Random) -> None:
    """With another file of the checkpoint, or the file of the same name of the checkpoint before."""
    others = [other for other in sorted(path.parent.iterdir()) if other != path]
    others.append(path.parent.parent / "step-00000001" / path.name)
    other = rng.choice(others)
    first, second = path.read_bytes(), other.read_bytes()
    path.write_bytes(second)
    if other.parent == path.parent:
        other.write_bytes(first)


def delete(path: Path, rng: random.Random) -> None:
    del rng
    path.unlink()


def add(path: Path, rng: random.Random) -> None:
    shutil.copy(path, path.with_name(f"more{rng.randrange(9)}.safetensors"))


@pytest.mark.parametrize("damage", [flip, zero, truncate, swap, delete, add], ids=lambda damage: damage.__name__)
def test_damaged_checkpoints_are_refused_and_rolled_back(
    damage: Callable[[Path, random.Random], None], tmp_path: Path
) -> None:
    """36 a kind, 216 in all, over every file of the checkpoint."""
    rng = random.Random(damage.__name__)
    good, path = save(tmp_path, 1), save(tmp_path, 2)
    spare = shutil.copytree(path, tmp_path / "spare")
    files = names(path)
    for round_number in range(36):
        file = files[round_number % len(files)]
        while (path / file).exists() and hash_all(path) == hash_all(spare):  # some zeros were zeros before
            damage(path / file, rng)
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(path)
        assert "step-00000002/" in str(caught.value)
        assert str(caught.value).split(": ")[0].endswith((".json", ".safetensors", ".json (header)"))
        found = latest_checkpoint(tmp_path)
        assert found is not None
        assert (found.step, found.path, found.skipped) == (1, good, [str(caught.value)])
        assert prune(tmp_path, keep=1) == []
        shutil.rmtree(path)
        shutil.copytree(spare, path)


def hash_all(path: Path) -> dict[str, str]:
    return {file: hashlib.sha256((path / file).read_bytes()).hexdigest() for file in names(path)}


def reseal(path: Path, **changes: Any) -> None:
    """Write a manifest whose sums are right for whatever the folder holds now."""
    (path / "manifest.json").unlink(missing_ok=True)
    files = {
        file: {"sha256": digest, "size": (path / file).stat().st_size} for file, digest in hash_all(path).items()
    }
    manifest = {"format": checkpoint.FORMAT, "version": checkpoint.VERSION, "step": 1, "files": files, **changes}
    (path / "manifest.json").write_bytes(dump_hashed_json(manifest, name="manifest.json"))


class Trap:
    """A pickle of this makes a folder when it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("resealed", [False, True])
def test_no_pickle_is_ever_opened(resealed: bool, tmp_path: Path) -> None:
    mark = tmp_path / "sprung"
    torch.save(Trap(mark), tmp_path / "trap.pt")
    traps = [(tmp_path / "trap.pt").read_bytes(), *(pickle.dumps(Trap(mark), protocol=p) for p in (0, 2, 5))]
    for file in ["manifest.json", "model.safetensors", "state.json", "model.pt", "data.pkl", "more.safetensors"]:
        for trap in traps:
            path = save(tmp_path / "run", 1)
            (path / file).write_bytes(trap)
            if resealed and file != "manifest.json":
                reseal(path)
            with pytest.raises(CheckpointError):
                load_checkpoint(path)
            with pytest.raises(CheckpointError):
                latest_checkpoint(tmp_path / "run")
    assert not mark.exists()
    pickle.loads(traps[-1])
    assert mark.exists()  # the trap does work


def test_reseal_makes_what_load_accepts(tmp_path: Path) -> None:
    """So that the tests around this one fail for the reason they mean."""
    path = save(tmp_path, 1)
    reseal(path)
    assert load_checkpoint(path).step == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "zip"}, "not the manifest of an hpunet-checkpoint"),
        ({"version": 2}, "version 2, this hpunet reads 1"),
        ({"step": 2}, "says step 2, unlike the folder's name"),
        ({"step": True}, "expected a step"),
        ({"files": None}, "expected a step"),
        ({"files": {}}, "expected a step"),
        ({"files": {"state.json": {"sha256": "", "size": "3"}}}, "expected a step"),
        (
            {"files": {"state.json": {"sha256": "", "size": 3}, "../x.safetensors": {"sha256": "", "size": 3}}},
            "SHA-256",
        ),
        ({"files": {"state.json": {"sha256": "", "size": 3}}}, "not part of the checkpoint"),
        ({"more": 1}, "damaged or changed"),
    ],
)
def test_load_refuses_manifests_that_say_something_else(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = save(tmp_path, 1)
    reseal(path, **changes)
    with pytest.raises(CheckpointError, match=f"step-00000001.*{message}"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    "text", ["[1]", "{", '{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', '{"a": 1, "a": 2}', "[" * 9999, "\xff"]
)
def test_load_refuses_state_that_is_no_json_object(text: str, tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    (path / "state.json").write_bytes(text.encode("latin-1"))
    reseal(path)
    with pytest.raises(CheckpointError, match=r"state\.json: (not valid JSON|expected a JSON object)"):
        load_checkpoint(path)
    (path / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"manifest\.json: not"):
        load_checkpoint(path)


def test_load_refuses_what_is_no_folder_or_no_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        load_checkpoint(tmp_path / "best")
    path = save(tmp_path, 1)
    (path / "state.json").unlink()
    os.mkfifo(path / "state.json")  # reading it would wait for ever
    with pytest.raises(CheckpointError, match=r"state\.json: not a plain file"):
        load_checkpoint(path)
    os.truncate(path / "manifest.json", 2**40)  # takes no room on the disk, and is not read
    with pytest.raises(CheckpointError, match=r"manifest\.json: 1099511627776 bytes, expected at most"):
        load_checkpoint(path)


def test_checkpoint_may_be_moved_and_renamed(tmp_path: Path) -> None:
    moved = save(tmp_path / "run", 7).rename(tmp_path / "My favourite")
    assert load_checkpoint(moved).step == 7
    moved = moved.rename(tmp_path / "step-00000008")
    with pytest.raises(CheckpointError, match="says step 7"):
        load_checkpoint(moved)


def test_save_syncs_every_file_then_renames_then_syncs_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut could take back must be on the disk before the name that promises it."""
    save(tmp_path, 1)
    events: list[str] = []
    real_sync, real_rename = os.fsync, os.rename

    def sync(descriptor: int) -> None:
        events.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        real_sync(descriptor)

    def rename(old: Path, new: Path) -> None:
        events.append(f"rename {old.name} {'gone' if 'gone' in new.name else new.name}")
        real_rename(old, new)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", rename)
    save(tmp_path, 1)
    name = "step-00000001"
    assert events == [
        *(f"sync {group}.safetensors" for group in contents(1)),
        "sync state.json",
        "sync manifest.json",
        f"sync .tmp-hpunet-{name}",
        f"rename {name} .old-hpunet-{name}",
        f"rename .tmp-hpunet-{name} {name}",
        f"sync {tmp_path.name}",
        f"rename .old-hpunet-{name} gone",
    ]


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (28, "the disk is full; free some space"),
        (30, "read-only; choose another folder"),
        (13, "permission denied; change"),
    ],
)
def test_save_into_a_folder_that_takes_nothing_says_what_to_do(
    number: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "mkdir", refuse)  # as root, permission bits stop nobody
    with pytest.raises(CheckpointError, match=f"step-00000002: cannot be written: .*{advice}"):
        save(tmp_path, 2)
    with pytest.raises(CheckpointError, match=f"new/step-00000002: cannot be written: .*{advice}"):
        save(tmp_path / "new", 2)
    assert names(tmp_path) == ["step-00000001"]


def test_save_beyond_what_the_system_lets_it_write_leaves_nothing(tmp_path: Path) -> None:
    """A real failure in the middle of a real write."""
    save(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
    try:
        with pytest.raises(CheckpointError, match="step-00000002: cannot be written: the file is larger"):
            save_checkpoint(tmp_path, step=2, tensors={"model": {"w": torch.zeros(9999)}}, state={})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["step-00000001"]
    assert json.loads((tmp_path / "step-00000001" / "manifest.json").read_text())["step"] == 1
