"""A tenth of `make fuzz`, and that the harness notices what it is there to notice."""

import subprocess
import sys
import warnings
from pathlib import Path

import harness
import pytest
from corpus import Corpus, folder_nifti, folder_png, lidc, study, write_files
from judge import FaultError, judge, read_valid
from mutate import Change
from mutate_samples import CANARY
from plan import FORMATS, NUM_CASES, SEED, case, numbers


@pytest.mark.timeout(300)
def test_readers_survive_a_tenth_of_all_cases() -> None:
    results = harness.run_items(range(0, NUM_CASES, 10), processes=1)
    assert len(results) == NUM_CASES // 10
    assert not any(result.is_fault for result in results), harness.table(results)
    outcomes = {result.outcome for result in results}
    assert outcomes == {"read", "refused", "counted"}
    assert not CANARY.exists()


def test_cases_are_the_same_every_time() -> None:
    for number in range(0, NUM_CASES, 211):
        assert case(number).change() == case(number).change()


def judged(tmp_path: Path, corpus: Corpus, change: Change) -> str:
    write_files(change.files, tmp_path / "in")
    return judge(corpus, read_valid(corpus), change, tmp_path)


def test_judge_wants_the_culprit_named(tmp_path: Path) -> None:
    first, second = (f"images/case{number}.png" for number in (1, 2))
    files = folder_png().files | {first: b"nonsense"}
    with pytest.raises(FaultError, match="does not name"):
        judged(tmp_path, folder_png(), Change(files, (second,)))
    assert judged(tmp_path, folder_png(), Change(files, (first,), refused=True)) == "refused"


def test_judge_notices_lost_and_changed_samples(tmp_path: Path) -> None:
    gone = {name: content for name, content in lidc().files.items() if "/P2/" not in name}
    with pytest.raises(FaultError, match="instead of"):
        judged(tmp_path / "gone", lidc(), Change(gone, ("P2",)))
    other = lidc().files | {"val/images/P1/z-0_c0.png": lidc().files["val/images/P2/z-1_c0.png"]}
    with pytest.raises(FaultError, match="changed"):
        judged(tmp_path / "other", lidc(), Change(other, ("z-2_c0.png",)))
    with pytest.raises(FaultError, match="must be refused"):
        judged(tmp_path / "same", lidc(), Change(lidc().files, ("z-2_c0.png",), refused=True))


def test_judge_takes_a_spacing_that_differs_as_little_as_affines_may(tmp_path: Path) -> None:
    name = "images/case0.nii"
    for place, outcome in ((280, "read"), (283, "refused")):  # the last and the first byte of a float
        content = bytearray(folder_nifti().files[name])
        content[place] ^= 64
        files = folder_nifti().files | {name: bytes(content)}
        assert judged(tmp_path / outcome, folder_nifti(), Change(files, (name,))) == outcome


def test_judge_notices_other_patients_of_an_import(tmp_path: Path) -> None:
    gone = {name: content for name, content in study().files.items() if not name.startswith("P2")}
    with pytest.raises(FaultError, match="of another patient is missing"):
        judged(tmp_path, study(), Change(gone, ("P1/P1.xml",)))


def test_harness_notices_time_and_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "MAX_SECONDS", 0.1)
    with pytest.raises(FaultError, match=r"more than 0\.1 s"):
        harness.within_bounds(lambda: str(sum(number % 3 for number in range(10**9))))
    with pytest.raises(FaultError, match="showed a warning: careful"):
        harness.within_bounds(lambda: str(warnings.warn("careful", stacklevel=1)))
    assert harness.within_bounds(lambda: "read") == "read"


def test_harness_notices_memory() -> None:
    """In a process of its own: here, memory that earlier tests have freed would be used again, unseen."""
    code = "import harness; harness.MAX_BYTES = 2**25; harness.within_bounds(lambda: (b'x' * {size})[:4].decode())"
    for size, fault in ((2**26, "FaultError: took 6"), (2**24, "")):
        ran = subprocess.run(
            [sys.executable, "-c", code.format(size=size)],
            cwd=Path(harness.__file__).parent, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (ran.returncode == 1) == bool(fault), ran.stderr
        assert fault in ran.stderr


def test_harness_goes_on_after_an_error() -> None:
    worker = harness._Worker()
    try:
        outcome, is_fault, trace = worker.run("no such bomb")
        assert (outcome.split(" ")[0], is_fault) == ("KeyError", True)
        assert "run_item" in trace
        assert worker.run(0)[1] is False
    finally:
        worker.end()


def test_other_seeds_are_other_cases_of_every_format() -> None:
    assert numbers([SEED]) == list(range(NUM_CASES))
    chosen = numbers(range(SEED + 1, SEED + 21), num_cases=2 * NUM_CASES)
    assert len(set(chosen)) == 2 * NUM_CASES
    assert {case(number).format for number in chosen} == {entry.name for entry in FORMATS}
    assert str(case(7)) == str(case(7 + NUM_CASES))
    assert case(7).change() != case(7 + NUM_CASES).change()
