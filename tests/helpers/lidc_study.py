"""A made-up LIDC study: DICOM series and XML readings of the original form, as small as they can be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pydicom
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian

AXIAL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
CT_STORAGE = "1.2.840.10008.5.1.4.1.1.2"


def square(x: int, y: int, side: int) -> list[tuple[int, int]]:
    """An outline in single steps whose inside is the `side`×`side` pixels from (x, y) on."""
    top = [(i, y - 1) for i in range(x - 1, x + side)]
    right = [(x + side, j) for j in range(y - 1, y + side)]
    bottom = [(i, y + side) for i in range(x + side, x - 1, -1)]
    left = [(x - 1, j) for j in range(y + side, y - 1, -1)]
    return top + right + bottom + left


@dataclass
class Roi:
    z: float
    vertices: Sequence[tuple[int, int]]
    inclusion: str = "TRUE"
    sop_uid: str = ""

    def xml(self) -> str:
        edges = "".join(f"<edgeMap><xCoord>{x}</xCoord><yCoord>{y}</yCoord></edgeMap>" for x, y in self.vertices)
        return (
            f"<roi><imageZposition>{self.z}</imageZposition><imageSOP_UID>{self.sop_uid}</imageSOP_UID>"
            f"<inclusion>{self.inclusion}</inclusion>{edges}</roi>"
        )


@dataclass
class Session:
    """One reader: nodules are lists of rois."""

    nodules: list[list[Roi]] = field(default_factory=list)
    num_non_nodules: int = 0
    blinded: list[list[Roi]] = field(default_factory=list)

    def xml(self) -> str:
        non_nodule = (
            "<nonNodule><nonNoduleID>n</nonNoduleID><imageZposition>0</imageZposition><imageSOP_UID>1</imageSOP_UID>"
            "<locus><xCoord>3</xCoord><yCoord>3</yCoord></locus></nonNodule>"
        )
        kinds = (("unblindedReadNodule", self.nodules), ("blindedReadNodule", self.blinded))
        nodules = "".join(
            f"<{kind}><noduleID>Nodule {number}</noduleID>{''.join(roi.xml() for roi in rois)}</{kind}>"
            for kind, found in kinds
            for number, rois in enumerate(found)
        )
        return (
            "<readingSession><annotationVersion>3.12</annotationVersion>"
            "<servicingRadiologistID>anonymous</servicingRadiologistID>"
            f"{nodules}{non_nodule * self.num_non_nodules}</readingSession>"
        )


def write_xml(path: Path, series_uid: str, sessions: Sequence[Session]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '<?xml version="1.0" encoding="UTF-8"?>\n<LidcReadMessage uid="1.3.6" xmlns="http://www.nih.gov" '
        'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><ResponseHeader><Version>1.8.1</Version>'
        f"<SeriesInstanceUid>{series_uid}</SeriesInstanceUid></ResponseHeader>"
        + "".join(session.xml() for session in sessions)
        + "</LidcReadMessage>"
    )
    return path


@dataclass
class Series:
    """A CT series; `hounsfield(number)` gives the values of a slice, counted from the lowest z."""

    patient: str
    uid: str
    num_slices: int = 4
    shape: tuple[int, int] = (64, 64)
    spacing: tuple[float, float] = (0.5, 0.5)
    thickness: float = 2.5
    first_z: float = -10.0
    orientation: tuple[float, ...] = AXIAL
    reverse: bool = False
    signed: bool = True
    photometric: str = "MONOCHROME2"
    slope: float = 1.0
    intercept: float = -1024.0
    modality: str = "CT"
    hounsfield: Callable[[int], np.ndarray] | None = None

    def z(self, number: int) -> float:
        return self.first_z + number * self.thickness

    def sop_uid(self, number: int) -> str:
        return f"{self.uid}.{number}"

    def values(self, number: int) -> np.ndarray:
        if self.hounsfield is not None:
            return self.hounsfield(number)
        rows, columns = np.indices(self.shape)
        return -1000 + 10 * rows + 5 * columns + number

    def roi(self, number: int, vertices: Sequence[tuple[int, int]], inclusion: str = "TRUE") -> Roi:
        return Roi(self.z(number), vertices, inclusion, self.sop_uid(number))

    def dataset(self, number: int) -> FileDataset:
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID = CT_STORAGE
        meta.MediaStorageSOPInstanceUID = self.sop_uid(number)
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        data = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
        data.SOPClassUID, data.SOPInstanceUID = CT_STORAGE, self.sop_uid(number)
        data.SeriesInstanceUID, data.PatientID, data.Modality = self.uid, self.patient, self.modality
        data.Rows, data.Columns = self.shape
        data.PixelSpacing = [f"{value:.6f}" for value in self.spacing]
        data.ImageOrientationPatient = [f"{value:.6f}" for value in self.orientation]
        data.ImagePositionPatient = ["-100", "-90", f"{self.z(number):.6f}"]
        data.SliceLocation = f"{self.z(number):.3f}"
        data.SamplesPerPixel, data.PhotometricInterpretation = 1, self.photometric
        data.BitsAllocated, data.BitsStored, data.HighBit = 16, 16, 15
        data.PixelRepresentation = int(self.signed)
        data.RescaleSlope, data.RescaleIntercept = f"{self.slope}", f"{self.intercept}"
        stored = np.rint((self.values(number) - self.intercept) / self.slope)
        data.PixelData = stored.astype("<i2" if self.signed else "<u2").tobytes()
        return data

    def write(self, folder: Path, change: Callable[[int, FileDataset], None] = lambda number, data: None) -> Path:
        """Write all slices; `change` may alter each before it is written."""
        folder = folder / self.patient / self.uid
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(self.num_slices):
            data = self.dataset(number)
            change(number, data)
            place = self.num_slices - 1 - number if self.reverse else number
            pydicom.dcmwrite(folder / f"1-{place:03d}.dcm", data, enforce_file_format=True)
        return folder
