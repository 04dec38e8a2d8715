"""Nodules of LIDC crops as volumes: which slices belong together, graders, distances, refusals."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from places import SHARED

from hpunet.data.lidc.crops import open_lidc_crops
from hpunet.data.open import open_splits
from hpunet.data.types import Source
from hpunet.errors import DataError

LIDC = SHARED / "data" / "lidc_crops"


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def write_folder(root: Path, files: dict[str, bytes], split: str = "val") -> Path:
    for name, content in files.items():
        path = root / split / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def write_archive(root: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(root / "val.tar.gz", "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"val/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return root


def crops(*names: str, missing: tuple[str, ...] = (), side: int = 8) -> dict[str, bytes]:
    """Crops such as 'P1/z-3_c0' in this order, whose grey value is their number; grader r marks pixel (r, number)."""
    files = {}
    for number, name in enumerate(names):
        files[f"images/{name}.png"] = png(np.full((side, side), number, np.uint8))
        for grader in range(4):
            if f"{name}_l{grader}" not in missing:
                mask = np.zeros((side, side), np.uint8)
                mask[grader, min(number, side - 1)] = 255
                files[f"gt/{name}_l{grader}.png"] = png(mask)
    return files


def stacks(tmp_path: Path, *names: str, **options) -> dict[str, list[int]]:
    """The grey values of the slices of each volume."""
    source = open_lidc_crops(write_folder(tmp_path, crops(*names)), split="val", volumes=True, **options)
    assert all(patient == key.split("/")[0] for patient, key in source.identities)
    return {source.identities[i].key: source[i].pixels[0, :, 0, 0].tolist() for i in range(len(source))}


def test_slices_of_a_nodule_are_stacked_by_z(tmp_path: Path) -> None:
    found = stacks(tmp_path, "P1/z-10_c0", "P1/z-9_c0", "P1/z-8_c0", "P1/z-9_c1", "P2/z-0_c0")
    assert found == {"P1/c0_z-8": [2, 1, 0], "P1/c1_z-9": [3], "P2/c0_z-0": [4]}


def test_a_gap_ends_a_stack(tmp_path: Path) -> None:
    names = [f"P1/z-{z:03d}_c7" for z in (0, 3, 4, 5, 7)]
    assert stacks(tmp_path, *names) == {"P1/c7_z-000": [0], "P1/c7_z-003": [1, 2, 3], "P1/c7_z-007": [4]}


def test_z_with_a_point_is_mm(tmp_path: Path) -> None:
    """The distance is that of the nodule, or of its patient if it is small; the set's is the median of all."""
    names = ["P1/z--5.0_c0", "P1/z--2.5_c0", "P1/z-0.0_c0", "P1/z-7.5_c0", "P1/z-10.0_c1", "P1/z-15.0_c1"]
    found = stacks(tmp_path, *names, "P2/z-1.25_c0", "P2/z-2.5_c0", "P2/z-3.75_c0", "P2/z-6.25_c0")
    assert found == {
        "P1/c0_z--5.0": [0, 1, 2], "P1/c0_z-7.5": [3], "P1/c1_z-10.0": [4], "P1/c1_z-15.0": [5],
        "P2/c0_z-1.25": [6, 7, 8], "P2/c0_z-6.25": [9],
    }  # fmt: skip
    write_folder(tmp_path, crops("P3/z-0.0_c0", "P3/z-1.0_c0", "P3/z-2.0_c0", "P3/z-3.0_c0"), split="train")
    for source in open_splits(str(tmp_path), options={"volumes": True}).values():
        # 2.5 2.5 7.5 5 1.25 1.25 2.5 1 1 1: the median is (1.25 + 2.5) / 2
        assert source.info.spacing == (1.875, 0.5, 0.5)


@pytest.mark.parametrize("write", [write_folder, write_archive])
def test_graders_and_sizes(tmp_path: Path, write) -> None:
    names = ("P1/z-1_c0", "P1/z-2_c0")
    source = open_lidc_crops(write(tmp_path, crops(*names)), split="val", volumes=True, size=6)
    assert isinstance(source, Source)
    assert (source.info.ndim, source.info.spacing, source.info.num_graders) == (3, None, 4)
    sample = source[0]
    assert sample.image.shape == (1, 2, 6, 6)
    assert np.argwhere(sample.labels[2]).tolist() == [[1, 1, 0]]  # of (2, 0) and (2, 1), what is left in the middle
    assert len(source.files(0)) == 10


def test_a_grader_without_a_slice_is_missing(tmp_path: Path) -> None:
    files = crops("P1/z-1_c0", "P1/z-2_c0", missing=("P1/z-2_c0_l3",))
    sample = open_lidc_crops(write_folder(tmp_path, files), split="val", volumes=True)[0]
    assert sample.graders.tolist() == [True, True, True, False]
    assert not sample.labels[3].any()


def test_odd_stacks_are_named(tmp_path: Path) -> None:
    files = crops("P1/z-1_c0", "P1/z-01_c0")
    with pytest.raises(DataError, match="P1/z-01_c0 and P1/z-1_c0 are the same slice"):
        open_lidc_crops(write_folder(tmp_path / "a", files), split="val", volumes=True)
    files = crops("P1/z-1_c0") | crops("P1/z-2_c0", side=9)
    source = open_lidc_crops(write_folder(tmp_path / "b", files), split="val", volumes=True)
    with pytest.raises(DataError, match=r"P1/z-2_c0\.png: \(9, 9\) pixels, .*z-1_c0\.png"):
        source[0]
    files = crops("P1/z-9999999_c0")
    with pytest.raises(DataError, match="z of P1/z-9999999_c0"):
        open_lidc_crops(write_folder(tmp_path / "c", files), split="val", volumes=True)


@pytest.mark.skipif(not LIDC.is_dir(), reason=f"needs the crops in {LIDC}")
def test_the_shared_crops_are_nodules() -> None:
    source = open_lidc_crops(LIDC, split="val", volumes=True)
    flat = open_lidc_crops(LIDC, split="val")
    assert {identity.patient for identity in source.identities} == {identity.patient for identity in flat.identities}
    assert len(source) == 418  # 416 nodules; two gaps in one of them
    depths = [len(stack) for stack in source._stacks]
    assert (sum(depths), max(depths)) == (len(flat), 31)
