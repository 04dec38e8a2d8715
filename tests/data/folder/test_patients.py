"""The warning that images of one patient count as several."""

from pathlib import Path

import numpy as np
import pytest

from hpunet.data.folder.patients import patient_warning, patients_by_pattern
from hpunet.data.types import Identity, Sample, SetInfo
from hpunet.errors import DataError


class _Named:
    """A source of which only the names count."""

    def __init__(self, names: list[str], *, kind: str = "folder", patient: str | None = None) -> None:
        self.info = SetInfo(kind, in_channels=1, num_graders=1, fixed_classes=("background", "lesion"))
        self.split = "train"
        self.identities = [Identity(patient or name, name) for name in names]

    def __len__(self) -> int:
        return len(self.identities)

    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError

    def files(self, index: int) -> dict[str, Path | bytes]:
        return {}


EYES = [f"Image_{i:02d}{eye}" for i in range(1, 15) for eye in "LR"]


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (EYES, r"Image_(\d+)"),
        ([f"{i}_{eye}" for i in range(5) for eye in ("left", "right")], r"(\d+)"),
        ([f"p{i}_slice{z}" for i in range(3) for z in range(9)], r"p(\d+)"),
        ([f"{who}-{z:03d}" for who in ("anna", "bob") for z in range(4)], r"([^_. -]+)"),
    ],
)
def test_names_that_differ_by_side_or_number_are_warned_of(names: list[str], pattern: str) -> None:
    words = patient_warning([_Named(names)], options={})
    assert words is not None
    assert f"--patient '{pattern}'" in words
    assert " and ".join(names[:2]) in words
    assert len(set(patients_by_pattern(names, pattern=pattern, where="x").values())) < len(names)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "names",
    [
        [f"case{i:02d}" for i in range(30)],
        [f"img_{i}" for i in range(30)],
        ["cells", "tissue"],
        [f"{np.random.default_rng(i).bytes(8).hex()}" for i in range(50)],
    ],
)
def test_numbered_images_are_no_reason_to_warn(names: list[str]) -> None:
    assert patient_warning([_Named(names)], options={}) is None


def test_given_patients_are_believed() -> None:
    assert patient_warning([_Named(EYES)], options={"patient": r"Image_(\d+)"}) is None
    assert patient_warning([_Named(EYES, patient="someone")], options={}) is None
    assert patient_warning([_Named(EYES, kind="lidc")], options={}) is None


def test_names_that_do_not_fit_are_counted() -> None:
    with pytest.raises(DataError, match=r"1 names, such as b"):
        patients_by_pattern(["a1", "b"], pattern=r"a(\d)", where="x")
