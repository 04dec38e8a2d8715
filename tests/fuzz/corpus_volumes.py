"""Volumes of every kind as sources: NIfTI, DICOM series with masks, stacks; and the importer that writes them."""

import functools
import gzip
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from corpus import PATIENTS, Corpus, Files, _blob, _noise, series_of, stack_hdf5, stack_packed, study, tiff

from hpunet.data.folder.source import open_folder
from hpunet.data.snemi3d import open_snemi3d
from hpunet.data.types import Sample, Source
from hpunet.errors import DataError

AFFINE = np.diag([0.7, 0.8, 2.0, 1.0])
DEPTH, CASES = 3, [f"case{number}" for number in range(4)]


def _open(root: Path) -> list[Source]:
    return [open_folder(root, split=split, val_every=4, volumes=True) for split in ("train", "val")]


def nifti(values: np.ndarray, affine: np.ndarray = AFFINE, *, packed: bool = False) -> bytes:
    content = nibabel.Nifti1Image(values, affine).to_bytes()
    return gzip.compress(content, mtime=0) if packed else content


def _masks(number: int) -> np.ndarray:
    return np.repeat(_blob(number, (12, 10))[..., None], DEPTH, axis=2)


def _image(number: int) -> np.ndarray:
    return _noise(number, (12, 10, DEPTH), 2000, np.int16)


def _of_case(key: str, name: str) -> bool:
    return key in name


@functools.cache
def volumes_nifti() -> Corpus:
    files = {}
    for number, case in enumerate(CASES):
        files[f"images/{case}.nii"] = nifti(_image(number))
        for grader in range(2):
            files[f"graders/g{grader}/{case}.nii.gz"] = nifti(_masks(number + grader), packed=True)
    return Corpus(files, _open, _of_case)


@functools.cache
def volumes_cases() -> Corpus:
    """The names of all files of a case hold its name."""
    files = {}
    for number, case in enumerate(CASES):
        files[f"{case}/image.nii"] = nifti(_image(number))
        for grader in (1, 2):
            files[f"{case}/annotation_{grader}.nii.gz"] = nifti(_masks(number + grader), packed=True)
    return Corpus(files, _open, _of_case)


@functools.cache
def volumes_raters() -> Corpus:
    """Masks of four dimensions, the last of which is the rater."""
    files = {}
    for number, case in enumerate(CASES):
        files[f"images/{case}.nii"] = nifti(_image(number))
        files[f"masks/{case}.nii.gz"] = nifti(np.stack([_masks(number)] * 2, axis=-1), packed=True)
    return Corpus(files, _open, _of_case)


class _Named:
    """A source of series: some of its errors can only name the folder, here with the files in it."""

    def __init__(self, source: Source, root: Path) -> None:
        self.info, self.split, self.identities, self.files = (
            source.info,
            source.split,
            source.identities,
            source.files,
        )
        self._source, self._root = source, root

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Sample:
        return _naming(lambda: self._source[index], self._root)


def _naming(read: Callable[[], Any], root: Path) -> Any:
    try:
        return read()
    except DataError as error:
        found = [
            folder
            for folder in sorted((root / "images").iterdir())
            if folder.relative_to(root).as_posix() in str(error)
        ]
        names = [file.name for folder in found for file in (folder.iterdir() if folder.is_dir() else [folder])]
        raise DataError(f"{error} {' '.join(names)}") from None


def _open_series(root: Path) -> list[Source]:
    return [_Named(source, root) for source in _naming(lambda: _open(root), root)]


@functools.cache
def volumes_series() -> Corpus:
    """Three folders with a series of six slices each, and a mask."""
    files: Files = {}
    for number, patient in enumerate(PATIENTS):
        series = replace(series_of(patient), num_slices=6)
        for z in range(6):
            buffer = io.BytesIO()
            series.dataset(z).save_as(buffer, enforce_file_format=True)
            files[f"images/{patient}/{number}-00{5 - z}.dcm"] = buffer.getvalue()
        side = series.spacing[0]
        lps = np.array([[0, side, 0, -100], [side, 0, 0, -90], [0, 0, 2.5, series.first_z], [0, 0, 0, 1]])
        labels = np.repeat(_blob(number, (24, 24))[..., None], 6, axis=2)
        files[f"masks/{patient}.nii.gz"] = nifti(labels, np.diag([-1.0, -1, 1, 1]) @ lps, packed=True)
    number_of = {patient: str(number) for number, patient in enumerate(PATIENTS)}
    return Corpus(
        files, _open_series, lambda key, name: key in name or name.rsplit("/", 1)[-1].startswith(f"{number_of[key]}-")
    )


@functools.cache
def volumes_study() -> Corpus:
    return Corpus(study().files, None, volumes=True)


@functools.cache
def volumes_tiff() -> Corpus:
    files = {}
    for number, case in enumerate(CASES):
        stack = np.moveaxis(_noise(number, (12, 10, DEPTH)), 2, 0)
        files[f"images/{case}.tif"] = tiff(stack, photometric="minisblack")
        labels = np.ascontiguousarray(np.moveaxis(_masks(number), 2, 0))
        files[f"masks/{case}.tif"] = tiff(labels, compression="zlib", photometric="minisblack")
    return Corpus(files, _open, _of_case)


def _open_stack(root: Path) -> list[Source]:
    slices = {"train": (0, 3), "val": (3, 5)}
    return [open_snemi3d(root, split=split, slices=slices, volumes=True) for split in slices]


@functools.cache
def volumes_stack() -> Corpus:
    return Corpus(stack_packed().files, _open_stack)


@functools.cache
def volumes_hdf5() -> Corpus:
    return Corpus(stack_hdf5().files, _open_stack)
