"""Sets of volumes of less than a megabyte that would take gigabytes."""

import gzip
import io
from pathlib import Path

import numpy as np
from bombs import BOMBS as BOMBS
from bombs import folder_bomb
from corpus import series_of
from corpus_volumes import nifti
from PIL import Image
from pydicom.encaps import encapsulate
from pydicom.uid import JPEG2000Lossless


def _put(root: Path, name: str, content: bytes) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content)


@folder_bomb
def volumes_of_many_raters(root: Path) -> None:
    """Seven megabytes of zeros, forty times: each file is small, all maps together are not."""
    zeros = nifti(np.zeros((160, 160, 300), np.uint8), packed=True)
    _put(root, "images/images.nii.gz", zeros)  # its name is in every error of the folder
    for rater in range(40):
        _put(root, f"graders/g{rater:02}/images.nii.gz", zeros)


@folder_bomb
def volumes_of_zeros(root: Path) -> None:
    """A quarter of a gigabyte of zeros that are all there, packed."""
    head = nifti(np.zeros((2, 2, 2), np.uint8))[:352]
    head = head[:42] + np.array([1024, 1024, 256], "<i2").tobytes() + head[48:]
    content = gzip.compress(head, mtime=0) + gzip.compress(bytes(2**24), mtime=0) * 16
    for folder in ("images", "masks"):
        _put(root, f"{folder}/a.nii.gz", content)


@folder_bomb
def volumes_series_of_zeros(root: Path) -> None:
    """Slices that are within the limits of a file, a hundred of which are not."""
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((2048, 2048), np.uint8)).save(buffer, format="JPEG2000", no_jp2=True)
    series = series_of("P1")
    for number in range(100):
        data = series.dataset(number % 4)
        data.ImagePositionPatient = ["0", "0", f"{number}"]
        data.Rows = data.Columns = 2048
        data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 8, 8, 7, 0
        data.PixelData, data.file_meta.TransferSyntaxUID = encapsulate([buffer.getvalue()]), JPEG2000Lossless
        data["PixelData"].VR = "OB"
        (root / "images/series").mkdir(parents=True, exist_ok=True)
        data.save_as(root / f"images/series/{number}.dcm", enforce_file_format=True)
    _put(root, "masks/series.nii.gz", nifti(np.zeros((2, 2, 2), np.uint8), packed=True))
