"""Samples of a method in files, and the pickle of LIDC crops, as sources."""

import functools
import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from corpus import Corpus, Files, png

from hpunet.data.lidc.pickled import open_lidc_pickle
from hpunet.data.types import Identity, NoSuchSplitError, Sample, SetInfo, Source, make_sample
from hpunet.errors import DataError
from hpunet.evaluation.sample_files import SampleFiles

KEYS = ("a", "p/b", "p/c")
SIZE, NUM_SAMPLES = (12, 10), 5
VOLUME = (3, *SIZE)


class _Given:
    """The samples of three images, or volumes, in place of their graders' labels."""

    split = "val"

    def __init__(self, root: Path, *, pattern: str | None, size: tuple[int, ...]) -> None:
        classes = ("background", "lesion")
        self.info = SetInfo("samples", 1, num_graders=NUM_SAMPLES, fixed_classes=classes, ndim=len(size))
        self.size = size
        self.files_ = SampleFiles(root, keys=KEYS, pattern=pattern)
        self.identities = [Identity(key, key) for key in KEYS]

    def __len__(self) -> int:
        return len(KEYS)

    def __getitem__(self, index: int) -> Sample:
        identity, where = self.identities[index], self.files_.expected(KEYS[index])
        if self.files_.missing([identity.key]):
            raise DataError(f"{where}: is missing")
        maps = self.files_.read(identity.key, sizes=[self.size], count=NUM_SAMPLES, num_classes=2)
        image = np.zeros((1, *self.size), np.uint8)
        return make_sample(image=image, labels=maps, identity=identity, info=self.info, where=where)

    def files(self, index: int) -> dict[str, Path | bytes]:
        return {}


def _maps(number: int, *, size: tuple[int, ...] = SIZE) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 2, (NUM_SAMPLES + 1, *size)).astype(np.uint8)


def _corpus(files: Files, pattern: str | None, *, size: tuple[int, ...] = SIZE) -> Corpus:
    how: dict[str, Any] = {"pattern": pattern, "size": size}
    return Corpus(files, lambda root: [_Given(root, **how)], lambda key, name: name.startswith(key))


@functools.cache
def samples_npz() -> Corpus:
    files = {}
    for number, key in enumerate(KEYS):
        buffer = io.BytesIO()
        (np.savez if number == 1 else np.savez_compressed)(buffer, samples=_maps(number))
        files[f"{key}.npz"] = buffer.getvalue()
    return _corpus(files, None)


@functools.cache
def samples_npy() -> Corpus:
    files = {}
    for number, key in enumerate(KEYS):
        buffer = io.BytesIO()
        np.save(buffer, _maps(number).astype((np.uint8, np.int64, np.float32)[number]))
        files[f"{key}.npy"] = buffer.getvalue()
    return _corpus(files, "{name}.npy")


@functools.cache
def samples_nifti() -> Corpus:
    files = {}
    for number, key in enumerate(KEYS):
        stacked = np.moveaxis(_maps(number), 0, -1)[:, :, None]
        files[f"{key}.nii.gz"] = nibabel.Nifti1Image(stacked, np.eye(4)).to_bytes()
    return _corpus(files, "{name}.nii.gz")


@functools.cache
def volumes_npz() -> Corpus:
    files = {}
    for number, key in enumerate(KEYS):
        np.savez_compressed(buffer := io.BytesIO(), samples=_maps(number, size=VOLUME))
        files[f"{key}.npz"] = buffer.getvalue()
    return _corpus(files, None, size=VOLUME)


@functools.cache
def volumes_nifti() -> Corpus:
    files = {}
    for number, key in enumerate(KEYS):
        for n, labels in enumerate(_maps(number, size=VOLUME)):
            files[f"{key}_{n}.nii.gz"] = nibabel.Nifti1Image(np.moveaxis(labels, 0, -1), np.eye(4)).to_bytes()
    return _corpus(files, "{name}_{number}.nii.gz", size=VOLUME)


@functools.cache
def samples_png() -> Corpus:
    files = {}
    for number, key in enumerate(KEYS):
        for n, labels in enumerate(_maps(number)[:NUM_SAMPLES]):
            files[f"{key}_s{n}.png"] = png(255 * labels)
    return _corpus(files, "{name}_s{number}.png")


class _Numbered:
    """All crops of a pickle by their number: no checksum tells a damaged name from another one."""

    split = "val"

    def __init__(self, parts: Sequence[Source]) -> None:
        self.info = parts[0].info
        self._crops = [(part, index) for part in parts for index in range(len(part))]
        self._crops.sort(key=lambda crop: crop[0].identities[crop[1]].key)
        self.identities = [Identity(str(number), str(number)) for number in range(len(self._crops))]

    def __len__(self) -> int:
        return len(self._crops)

    def __getitem__(self, index: int) -> Sample:
        part, place = self._crops[index]
        return part[place]

    def files(self, index: int) -> dict[str, Path | bytes]:
        return {}


def _open_pickle(root: Path) -> list[Source]:
    parts: list[Source] = []
    for split in ("train", "val"):
        try:
            parts.append(open_lidc_pickle(root / "data_lidc.pickle", split=split, val_every=2))
        except NoSuchSplitError:
            continue
    return [_Numbered(parts)]


def _pickled(protocol: int) -> Corpus:
    rng = np.random.default_rng(0)
    crops = {
        f"crop{number}": {
            "image": rng.random((12, 10)).astype(np.float32),
            "masks": [(rng.random((12, 10)) > 0.5).astype(np.uint8) for _ in range(4)],
            "series_uid": f"1.3.6.1.4.1.{number}",
        }
        for number in range(3)
    }
    return Corpus({"data_lidc.pickle": pickle.dumps(crops, protocol)}, _open_pickle)


@functools.cache
def pickled() -> Corpus:
    return _pickled(4)


@functools.cache
def pickled_2() -> Corpus:
    return _pickled(2)


@functools.cache
def pickled_5() -> Corpus:
    return _pickled(5)
