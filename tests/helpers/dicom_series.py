"""CT series of a made-up patient whose name, ID and UIDs must not get anywhere but into DICOM outputs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from lidc_study import AXIAL, Series
from pydicom.dataset import Dataset, FileDataset
from pydicom.sequence import Sequence
from scipy.spatial.transform import Rotation

NAME, IDENTITY, ROOT = "PLANTED^NAME", "PLANTED-ID-77", "1.2.826.0.1.3680043.10.4711"
PLANTED = (NAME, "PLANTED", IDENTITY, ROOT)
TILT = Rotation.from_euler("xyz", [20, -10, 15], degrees=True).as_matrix()
KINDS = ("axial", "reversed", "tilted", "gantry", "one-file")
ENHANCED_CT = "1.2.840.10008.5.1.4.1.1.2.1"
SPACING = (0.9, 0.6)  # rows, columns: no squares


def write_series(
    folder: Path,
    kind: str,
    *,
    shape: tuple[int, int] = (28, 20),
    num_slices: int = 4,
    spacing: tuple[float, float] = SPACING,
) -> Path:
    """A series of a kind; its files are named by UIDs, as many archives do it."""
    given: dict[str, Any] = {"shape": shape, "num_slices": num_slices, "spacing": spacing, "reverse": kind != "axial"}
    rows, columns = np.indices(shape)
    given["hounsfield"] = lambda z: 60 * np.cos(rows / 3 + z) * np.sin(columns / (2 + z)) + 40
    normal = np.array([0.0, 0.0, 1.0])
    if kind == "tilted":
        given["orientation"] = tuple((TILT @ np.reshape(AXIAL, (2, 3)).T).T.ravel().tolist())
        normal = TILT @ normal
    elif kind == "gantry":  # slices are not stacked along their normal
        angle = np.radians(20)
        given["orientation"] = (1, 0, 0, 0, np.cos(angle), -np.sin(angle))
    series = Series(IDENTITY, f"{ROOT}.2", **given)

    def change(number: int, data: FileDataset) -> None:
        position = np.array([-20, 30, -5]) + normal * 2.5 * number
        data.ImagePositionPatient = [f"{value:.6f}" for value in position]
        data.InstanceNumber = number + 1
        _add_patient(data)

    if kind == "one-file":
        folder = folder / f"{ROOT}.2"
        folder.mkdir(parents=True)
        _enhanced(series, change).save_as(folder / "frames.dcm", enforce_file_format=True)
        return folder
    written = series.write(folder, change)
    for number, path in enumerate(sorted(written.iterdir())):
        path.rename(written / f"{ROOT}.2.{number}.dcm")
    return written


def _add_patient(data: FileDataset) -> None:
    data.PatientName, data.PatientBirthDate, data.PatientSex = NAME, "19700101", "O"
    data.StudyInstanceUID, data.FrameOfReferenceUID = f"{ROOT}.1", f"{ROOT}.3"
    data.StudyDate, data.StudyTime, data.StudyID, data.AccessionNumber = "20200101", "120000", "1", "A1"
    data.ReferringPhysicianName, data.SeriesNumber, data.PositionReferenceIndicator = "", 3, ""
    data.Manufacturer, data.SliceThickness = "Scanner", "2.5"


def _enhanced(series: Series, change: Callable[[int, FileDataset], None]) -> FileDataset:
    """The series as one file of several frames, in reversed order."""
    frames = [series.dataset(number) for number in reversed(range(series.num_slices))]
    for number, frame in enumerate(reversed(frames)):
        change(number, frame)
    data = frames[-1]
    first = data.copy()
    data.SOPClassUID = data.file_meta.MediaStorageSOPClassUID = ENHANCED_CT
    data.SharedFunctionalGroupsSequence = Sequence([Dataset()])
    shared = data.SharedFunctionalGroupsSequence[0]
    shared.PixelMeasuresSequence = _item(PixelSpacing=first.PixelSpacing, SliceThickness="2.5")
    shared.PlaneOrientationSequence = _item(ImageOrientationPatient=first.ImageOrientationPatient)
    shared.PixelValueTransformationSequence = _item(
        RescaleSlope=first.RescaleSlope, RescaleIntercept=first.RescaleIntercept, RescaleType="HU"
    )
    data.PerFrameFunctionalGroupsSequence = Sequence()
    for frame in frames:
        groups = Dataset()
        groups.PlanePositionSequence = _item(ImagePositionPatient=frame.ImagePositionPatient)
        data.PerFrameFunctionalGroupsSequence.append(groups)
    pixels = b"".join(frame.PixelData for frame in frames)
    for name in ("PixelSpacing", "ImageOrientationPatient", "ImagePositionPatient", "RescaleSlope"):
        delattr(data, name)
    del data.RescaleIntercept, data.SliceLocation, data.SliceThickness
    data.NumberOfFrames, data.PixelData = len(frames), pixels
    return data


def _item(**values: Any) -> Sequence:
    item = Dataset()
    for name, value in values.items():
        setattr(item, name, value)
    return Sequence([item])
