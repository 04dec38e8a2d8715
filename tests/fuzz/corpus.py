"""Small valid data sets of every kind, as names and bytes, and how each is read."""

import functools
import gzip
import io
import json
import lzma
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import nibabel
import numpy as np
import tifffile
from PIL import Image
from pydicom.encaps import encapsulate
from pydicom.uid import JPEG2000Lossless, RLELossless

from hpunet.data.cityscapes.scenes import open_cityscapes
from hpunet.data.folder.source import open_folder
from hpunet.data.io.inputs import read_stored, to_input
from hpunet.data.lidc.crops import open_lidc_crops
from hpunet.data.snemi3d import open_snemi3d
from hpunet.data.types import Identity, Sample, SetInfo, Source, make_sample
from hpunet.errors import DataError

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
from lidc_study import Series, Session, square, write_xml

Files = dict[str, bytes]
PATIENTS = ("P1", "P2", "P3")


@dataclass(frozen=True)
class Corpus:
    """A valid set. `open` is None for the importer, which is judged by what it writes."""

    files: Files
    open: Callable[[Path], list[Source]] | None
    belongs: Callable[[str, str], bool] = lambda key, name: True
    """Whether a sample (by its key) is made from a file (by its name)."""
    volumes: bool = False
    """Whether the importer writes volumes."""


def write_files(files: Files, root: Path) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def png(pixels: np.ndarray, **options: object) -> bytes:
    return _picture(pixels, "PNG", **options)


def _picture(pixels: np.ndarray, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=kind, **options)
    return buffer.getvalue()


def tiff(pixels: np.ndarray, **options: object) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, pixels, **options)
    return buffer.getvalue()


def tar(files: Files) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _noise(number: int, shape: tuple[int, ...], high: int = 256, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(number).integers(0, high, shape).astype(dtype)


def _blob(number: int, shape: tuple[int, int], value: int = 1, dtype: type = np.uint8) -> np.ndarray:
    labels = np.zeros(shape, dtype=dtype)
    labels[2 + number : 6 + number, 3:9] = value
    return labels


def _last_part(key: str, name: str) -> bool:
    return key.rsplit("/", 1)[-1] in name


@functools.cache
def lidc() -> Corpus:
    files = {}
    for number, patient in enumerate(PATIENTS):
        files[f"val/images/{patient}/z-{number}_c0.png"] = png(_noise(number, (16, 16)))
        for grader in range(4):
            files[f"val/gt/{patient}/z-{number}_c0_l{grader}.png"] = png(_blob(grader, (16, 16), 255))
    return Corpus(files, lambda root: [open_lidc_crops(root, split="val")], _last_part)


@functools.cache
def lidc_tar() -> Corpus:
    return Corpus({"val.tar.gz": gzip.compress(tar(lidc().files), mtime=0)}, lidc().open)


def _scene(number: int) -> str:
    return f"val/lindau/lindau_00000{number}_000019"


@functools.cache
def cityscapes() -> Corpus:
    files = {}
    for number in range(3):
        ids = np.full((16, 32), 7, dtype=np.int32)
        ids[2:6, 4:9], ids[8:12, 4:9] = 26000, 26001 + number
        files[f"leftImg8bit/{_scene(number)}_leftImg8bit.png"] = png(_noise(number, (16, 32, 3)))
        files[f"gtFine/{_scene(number)}_gtFine_instanceIds.png"] = png(ids.astype(np.uint16))
    return Corpus(files, lambda root: [open_cityscapes(root, split="test", size=(8, 16))], _last_part)


@functools.cache
def polygons() -> Corpus:
    files = {name: content for name, content in cityscapes().files.items() if "leftImg8bit" in name}
    for number in range(3):
        objects = [
            {"label": "road", "polygon": [[-1, -1], [40, -1], [40, 20], [-1, 20]]},
            {"label": "car", "polygon": [[2, 2], [9, 2], [9, 6 + number]]},
            {"label": "cargroup", "polygon": [[12, 2], [19, 2], [19.5, 6]], "deleted": 0},
        ]
        text = json.dumps({"imgHeight": 16, "imgWidth": 32, "objects": objects})
        files[f"gtFine/{_scene(number)}_gtFine_polygons.json"] = text.encode()
    return Corpus(files, cityscapes().open, _last_part)


def _open_folder(root: Path) -> list[Source]:
    return [open_folder(root, split=split, val_every=4) for split in ("train", "val")]


def _folder(images: list[bytes], masks: dict[str, list[bytes]], ending: str, mask_ending: str) -> Corpus:
    files = {f"images/case{number}.{ending}": content for number, content in enumerate(images)}
    for folder, contents in masks.items():
        files |= {f"{folder}/case{number}.{mask_ending}": content for number, content in enumerate(contents)}
    return Corpus(files, _open_folder, lambda key, name: key.split("/")[0] in name)


def _two_graders(save: Callable[..., bytes], **options: object) -> dict[str, list[bytes]]:
    return {
        f"graders/g{grader}": [save(_blob(number + grader, (16, 20)), **options) for number in range(4)]
        for grader in range(2)
    }


@functools.cache
def folder_png() -> Corpus:
    return _folder([png(_noise(n, (16, 20, 3))) for n in range(4)], _two_graders(png), "png", "png")


@functools.cache
def folder_png16() -> Corpus:
    images = [png(_noise(n, (16, 20), 65536, np.uint16)) for n in range(4)]
    ids = [png(_blob(n, (16, 20), 300 + n, np.uint16)) for n in range(4)]
    return _folder(images, {"instances": ids}, "png", "png")


@functools.cache
def folder_jpeg() -> Corpus:
    return _folder([_picture(_noise(n, (16, 20)), "JPEG") for n in range(4)], _two_graders(png), "jpg", "png")


@functools.cache
def folder_gif() -> Corpus:
    def in_colour(values: np.ndarray) -> bytes:
        buffer, image = io.BytesIO(), Image.new("P", values.shape[::-1])
        image.putpalette([0, 0, 0, 200, 30, 10, 10, 200, 20])
        image.putdata(values.ravel().tolist())
        image.save(buffer, format="GIF")
        return buffer.getvalue()

    images = [_picture(_noise(n, (16, 20)), "GIF") for n in range(4)]
    return _folder(images, _two_graders(in_colour), "gif", "gif")


@functools.cache
def folder_tiff() -> Corpus:
    images = [tiff(_noise(n, (16, 20), 65536, np.uint16), compression="lzw", rowsperstrip=5) for n in range(4)]
    return _folder(images, _two_graders(tiff), "tif", "tif")


@functools.cache
def folder_tiff_tiles() -> Corpus:
    options = {"compression": "zlib", "predictor": True, "photometric": "rgb", "tile": (16, 16)}
    images = [tiff(_noise(n, (16, 20, 3)), **options) for n in range(4)]
    return _folder(images, _two_graders(tiff, compression="packbits"), "tif", "tif")


@functools.cache
def folder_nifti() -> Corpus:
    def volume(values: np.ndarray) -> bytes:
        return nibabel.Nifti1Image(values, np.diag([0.7, 0.7, 2.0, 1.0])).to_bytes()

    images = [volume(_noise(n, (12, 10, 3), 2000, np.int16)) for n in range(4)]
    masks = [volume(np.repeat(_blob(n, (12, 10))[..., None], 3, axis=2)) for n in range(4)]
    packed = [gzip.compress(content, mtime=0) for content in masks]
    return _folder(images, {"masks": packed}, "nii", "nii.gz")


@functools.cache
def folder_raters() -> Corpus:
    """Masks of four dimensions, the last of which is the rater."""
    images = [nibabel.Nifti1Image(_noise(n, (12, 10, 3), 2000, np.int16), np.eye(4)).to_bytes() for n in range(4)]
    stacks = [np.stack([np.repeat(_blob(n, (12, 10))[..., None], 3, axis=2)] * 2, axis=-1) for n in range(4)]
    masks = [gzip.compress(nibabel.Nifti1Image(stack, np.eye(4)).to_bytes(), mtime=0) for stack in stacks]
    return _folder(images, {"masks": masks}, "nii", "nii.gz")


@functools.cache
def folder_table() -> Corpus:
    rows = "".join(f"case{n}.png,p{n // 2},{'train' if n > 1 else 'val'}\n" for n in range(4))
    files = folder_png().files | {"data.csv": f"file,patient,split\n{rows}".encode()}
    return Corpus(files, lambda root: [open_folder(root, split=split) for split in ("train", "val")])


@functools.cache
def folder_tar() -> Corpus:
    return Corpus({"set.tar": tar(folder_png().files)}, lambda root: _open_folder(root / "set.tar"))


@functools.cache
def folder_tar_xz() -> Corpus:
    content = {"set.tar.xz": lzma.compress(tar(folder_png().files))}
    return Corpus(content, lambda root: _open_folder(root / "set.tar.xz"))


def _stack() -> tuple[np.ndarray, np.ndarray]:
    labels = np.stack([_blob(z, (16, 16), 700 + z, np.uint16) for z in range(5)])
    return _noise(0, (5, 16, 16)), labels


def _open_stack(root: Path) -> list[Source]:
    return [open_snemi3d(root, split=split, patch=8) for split in ("train", "val")]


@functools.cache
def stack_packed() -> Corpus:
    image, labels = _stack()
    options = {"compression": "zlib", "photometric": "minisblack", "rowsperstrip": 7}
    files = {"train-input.tif": tiff(image, **options), "train-labels.tif": tiff(labels, **options)}
    return Corpus(files, _open_stack)


@functools.cache
def stack_plain() -> Corpus:
    image, labels = _stack()
    plain = {"photometric": "minisblack"}
    return Corpus(
        {"train-input.tif": tiff(image, **plain), "train-labels.tif": tiff(labels, metadata=None, **plain)},
        _open_stack,
    )


def hdf5(values: np.ndarray, **options: object) -> bytes:
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.create_dataset("volumes/data", data=values, **options)
    return buffer.getvalue()


@functools.cache
def stack_hdf5() -> Corpus:
    image, labels = _stack()
    files = {"train-input.h5": hdf5(image, compression="gzip", chunks=(2, 8, 8)), "train-labels.h5": hdf5(labels)}
    return Corpus(files, _open_stack)


def series_of(patient: str) -> Series:
    number = PATIENTS.index(patient)
    return Series(patient, f"1.2.{number}", num_slices=4, shape=(24, 24), spacing=(0.5 + 0.1 * number,) * 2)


@functools.cache
def study() -> Corpus:
    """Three patients of one scan each; two readers, each with a nodule in the two middle slices."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for patient in PATIENTS:
            series = series_of(patient)
            series.write(root)
            nodules = [[series.roi(z, square(8, 9, 4 + reader)) for z in (1, 2)] for reader in range(2)]
            write_xml(root / patient / f"{patient}.xml", series.uid, [Session(nodules=[found]) for found in nodules])
        names = sorted(path for path in root.rglob("*") if path.is_file())
        return Corpus({path.relative_to(root).as_posix(): path.read_bytes() for path in names}, None)


class _Scans:
    """DICOM inputs as a source: every file of a folder by itself, or every folder as one series."""

    info = SetInfo(kind="scans", in_channels=1, num_graders=1, fixed_classes=("background", "lesion"), image_bits=32)
    split = "val"

    def __init__(self, inputs: list[Path]) -> None:
        self.inputs = inputs
        self.identities = [Identity(path.name, path.name) for path in inputs]

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Sample:
        path = self.inputs[index]
        files = [path] if path.is_file() or not path.exists() else sorted(path.iterdir())
        names = " ".join(file.name for file in files)
        try:
            found = to_input(read_stored(path), name="scan", where=str(path), info=self.info, window="auto")
        except DataError as error:
            raise DataError(f"{error} {names}") from None  # of a series some errors can only name the folder
        image = found.images[0]
        if image.shape != (1, 24, 24):
            raise DataError(f"{names}: {image.shape} where the set has another size")
        labels = np.zeros((1, *image.shape[1:]), dtype=np.uint8)
        return make_sample(
            image=image, labels=labels, identity=self.identities[index], info=self.info, where=str(path)
        )

    def files(self, index: int) -> dict[str, Path | bytes]:
        return {}


@functools.cache
def scan_files() -> Corpus:
    """Single slices: plain, RLE, JPEG 2000."""
    files = {}
    for number, patient in enumerate(PATIENTS):
        data, buffer = series_of(patient).dataset(0), io.BytesIO()
        if number == 1:
            data.compress(RLELossless)
        if number == 2:
            data.PixelRepresentation = 0
            Image.fromarray(data.pixel_array.astype(np.uint16)).save(buffer, format="JPEG2000", no_jp2=True)
            data.PixelData, data.file_meta.TransferSyntaxUID = encapsulate([buffer.getvalue()]), JPEG2000Lossless
            data["PixelData"].VR, buffer = "OB", io.BytesIO()
        data.save_as(buffer, enforce_file_format=True)
        files[f"{number}-001.dcm"] = buffer.getvalue()
    names = sorted(files)
    return Corpus(files, lambda root: [_Scans([root / name for name in names])], lambda key, name: key in name)


@functools.cache
def scan_series() -> Corpus:
    """Three folders with a series each."""
    files = {}
    for number, patient in enumerate(PATIENTS):
        for z in range(4):
            buffer = io.BytesIO()
            series_of(patient).dataset(z).save_as(buffer, enforce_file_format=True)
            files[f"{patient}/{number}-00{3 - z}.dcm"] = buffer.getvalue()
    return Corpus(files, lambda root: [_Scans([root / name for name in PATIENTS])], lambda key, name: key in name)
