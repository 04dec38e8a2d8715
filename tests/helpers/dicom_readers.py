"""What other programs read out of DICOM SEG and RTSTRUCT, against the thresholds that the masks were made by.

    make test-dicom

Needs dcmqi and rt-utils (the dependency group `dicom`), and of Debian dciodvfy and plastimatch. One line per program
and series: pixels that differ, and those of them farther than a pixel from the edge.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import SimpleITK
from dicom_series import KINDS, write_series
from exported import inside, levels, stored_slices, thresholded
from scipy import ndimage
from untrained import make_predictor

CROP = {"at": (8, 15), "slices": (1, 3)}
SIZES = (((36, 36), (0.7, 0.7)), ((40, 32), (0.9, 0.6)))
"""Rows and columns, and their distances. rt-utils 1.2.7 exchanges them, so it reads squares only."""
NUM_SLICES = 5
CANNOT = {
    "dcmqi": {"gantry"},  # their volumes have no slant
    "rt-utils": {"gantry", "one-file"},
    "plastimatch": {"gantry", "one-file"},  # reads no positions of frames
}
MAY_DIFFER = ("rt-utils",)  # it draws the edge itself, half a pixel wide
Truth = dict[int, np.ndarray]
Reader = Callable[[Path, Path, Path], Iterator[tuple[int, np.ndarray]]]


def truth_of(source: Path, place: tuple[slice, slice], sampled: range) -> Truth:
    """By number of the hypothesis: its mask (z, h, w) in the order of positions."""
    uids = sorted(stored_slices(source), key=lambda key: (len(key[0]), key[0], -key[1]))
    values = [stored_slices(source)[uid] for uid in uids]
    blank = np.zeros(values[0].shape, dtype=np.bool_)
    return {
        number: np.stack([inside(v, place, level) if z in sampled else blank for z, v in enumerate(values)])
        for number, level in enumerate(levels(), start=1)
    }


def positions(source: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[float, float]]:
    """Of all slices in order, the directions of rows and columns, and the spacing."""
    found, directions, spacing = [], None, None
    for path in source.iterdir():
        data = pydicom.dcmread(path, stop_before_pixels=True)
        shared = data.SharedFunctionalGroupsSequence[0] if "NumberOfFrames" in data else None
        groups = data.get("PerFrameFunctionalGroupsSequence", [])
        found += [g.PlanePositionSequence[0].ImagePositionPatient for g in groups] or [data.ImagePositionPatient]
        directions = (shared.PlaneOrientationSequence[0] if shared else data).ImageOrientationPatient
        spacing = (shared.PixelMeasuresSequence[0] if shared else data).PixelSpacing
    across, down = np.reshape(directions, (2, 3)).astype(float)
    order = np.array(found, dtype=float)
    return order[np.argsort(order @ np.cross(across, down))], across, down, (float(spacing[0]), float(spacing[1]))


def voxels_of(image: Any, source: Path) -> np.ndarray:
    """The mask of an image with a geometry of its own, by the place of every voxel in the patient."""
    origins, across, down, (row, column) = positions(source)
    normal, slices = np.cross(across, down), list(stored_slices(source).values())
    mask = np.zeros((len(slices), *slices[0].shape), dtype=np.bool_)
    for z, y, x in np.argwhere(SimpleITK.GetArrayFromImage(image) > 0):
        point = np.array(image.TransformIndexToPhysicalPoint((int(x), int(y), int(z))))
        slice_number = int(np.abs((origins - point) @ normal).argmin())
        moved = point - origins[slice_number]
        assert abs(moved @ normal) < 0.1, "a voxel between slices"
        mask[slice_number, round(moved @ down / row), round(moved @ across / column)] = True
    return mask


def dcmqi(source: Path, out: Path, scratch: Path) -> Iterator[tuple[int, np.ndarray]]:
    command = shutil.which("segimage2itkimage", path=str(Path(sys.executable).parent)) or "segimage2itkimage"
    run(command, "--inputDICOM", out / "segments.dcm", "--outputDirectory", scratch, "-t", "nrrd", "-p", "s")
    for number in range(1, 5):
        (path,) = scratch.glob(f"s-{number}.nrrd")
        yield number, voxels_of(SimpleITK.ReadImage(str(path)), source)


def rt_utils(source: Path, out: Path, _scratch: Path) -> Iterator[tuple[int, np.ndarray]]:
    from rt_utils import RTStructBuilder

    found = RTStructBuilder.create_from(dicom_series_path=str(source), rt_struct_path=str(out / "contours.dcm"))
    for number, name in enumerate("ABCD", start=1):
        yield number, np.moveaxis(found.get_roi_mask_by_name(f"{name}: lesion"), 2, 0)


def plastimatch(source: Path, out: Path, scratch: Path) -> Iterator[tuple[int, np.ndarray]]:
    words = ("--input", out / "contours.dcm", "--referenced-ct", source, "--output-prefix", scratch / "masks")
    run("plastimatch", "convert", *words, "--prefix-format", "nrrd")
    for number, name in enumerate("ABCD", start=1):
        (path,) = [path for path in (scratch / "masks").glob("*.nrrd") if path.name.startswith(name)]
        yield number, voxels_of(SimpleITK.ReadImage(str(path)), source)


def run(*words: Any) -> str:
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError((result.stderr or result.stdout).strip().splitlines()[-1])
    return result.stdout + result.stderr


def far_from_edges(found: np.ndarray, mask: np.ndarray) -> int:
    """Pixels that differ though all of their neighbours in the slice are like them."""
    around = np.ones((1, 3, 3), dtype=np.bool_)
    sure = ndimage.binary_erosion(mask, around, border_value=1) | ~ndimage.binary_dilation(mask, around)
    return int((sure & (found != mask)).sum())


def main() -> None:
    predictor, failed = make_predictor(), 0
    readers: dict[str, Reader] = {"dcmqi": dcmqi, "rt-utils": rt_utils, "plastimatch": plastimatch}
    cases = [(kind, crop, size) for kind in KINDS for crop in ({}, CROP) for size in SIZES]
    for kind, crop, (shape, spacing) in cases:
        with tempfile.TemporaryDirectory() as folder:
            source = write_series(Path(folder), kind, shape=shape, num_slices=NUM_SLICES, spacing=spacing)
            prediction = thresholded(predictor, source, **crop)
            out = Path(folder) / "out"
            prediction.save(out, formats="dicom-seg,rtstruct")
            (z, y, x), (d, h, w) = prediction.place.offset, prediction.mean.shape
            truth = truth_of(source, np.s_[y : y + h, x : x + w], range(z, z + d))
            what = f"{kind}{' crop' if crop else ''}, pixels {spacing[0]} x {spacing[1]} mm"
            said = [line for file in sorted(out.glob("*.dcm")) for line in check(file)]
            failed += bool(said)
            print(f"dciodvfy     {what}: {len(said)} errors", *said, sep="\n    ")
            for name, read in readers.items():
                if kind in CANNOT[name] or (name == "rt-utils" and shape[0] != shape[1]):
                    continue
                scratch = Path(folder) / name
                scratch.mkdir()
                masks = dict(read(source, out, scratch))
                assert len(masks) == 4
                differ = sum(int((masks[number] != truth[number]).sum()) for number in masks)
                far = sum(far_from_edges(masks[number], truth[number]) for number in masks)
                total = sum(int(truth[number].sum()) for number in masks)
                failed += bool(far if name in MAY_DIFFER else differ)
                print(f"{name:12} {what}: {differ} of {total} marked pixels differ, {far} beyond a pixel of the edge")
    sys.exit(failed > 0)


def check(path: Path) -> list[str]:
    """What dciodvfy calls an error."""
    result = subprocess.run(["dciodvfy", str(path)], capture_output=True, text=True, check=False)
    return [line for line in (result.stdout + result.stderr).splitlines() if "Error" in line]


if __name__ == "__main__":
    main()
