"""LIDC crops as one pickle, the form in which PyTorch versions of the Probabilistic U-Net and many papers share them.

A dict by the name of the crop, `data_lidc.pickle`:

    {name: {"image": (h, w) floats in [0, 1] or bytes, "masks": four maps (h, w) of 0 and 1, "series_uid": text}}

Other entries are left alone. The file is read as `io/pickles.py` does, in which nothing can run; that takes as much
memory as the file has bytes, and about half of it is kept. A scan, which has one series, counts as a patient.
"""

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped, UInt8

from hpunet.data.folder.table import Entry, assign_splits
from hpunet.data.io.inputs import without_uids
from hpunet.data.io.label_maps import class_map
from hpunet.data.io.limits import check_unpacked
from hpunet.data.io.pickles import PickledArray, read_pickle
from hpunet.data.io.windows import UNIT_WINDOW
from hpunet.data.types import Identity, NoSuchSplitError, Sample, SetInfo, check_split, make_sample
from hpunet.errors import DataError
from hpunet.utils.files import explain_os_errors
from hpunet.utils.limits import MAX_KEY_BYTES, MAX_PIXELS

ENDINGS = (".pickle", ".pkl")
_MAX_GRADERS = 64
_CLASSES = ("background", "lesion")


class _Crop(NamedTuple):
    image: Shaped[np.ndarray, "h w"]  # uint8 or float32
    masks: UInt8[np.ndarray, "r bytes"]  # packed bits
    patient: str


def is_pickle(path: Path) -> bool:
    """Whether the name is that of a pickle."""
    return path.name.lower().endswith(ENDINGS) and path.is_file()


class PickledCrops:
    """A split of the crops of a pickle; see `open_lidc_pickle`."""

    def __init__(self, path: Path, *, split: str, lists: Mapping[str, str] | None, val_every: int | None, seed: int):
        self.split, self._path = split, path
        self._how: dict[str, Any] = {"split": split, "lists": lists, "val_every": val_every, "seed": seed}
        crops = _read(path)
        entries = {key: Entry(patient=crop.patient, split=None) for key, crop in crops.items()}
        splits = assign_splits(entries, lists=lists, val_every=val_every, seed=seed, name=str(path))
        chosen = {key: crop for key, crop in crops.items() if splits.get(key) == split}
        if not chosen:
            raise NoSuchSplitError(f"{path}: none of {len(crops)} images is in the split {split!r}")
        self._crops = list(chosen.values())
        self.identities = [Identity(patient=crop.patient, key=key) for key, crop in chosen.items()]
        self.info = SetInfo(
            "pickle",
            in_channels=1,
            num_graders=max(len(crop.masks) for crop in crops.values()),
            fixed_classes=_CLASSES,
            stochastic_classes=(1,),
            image_bits=8 * self._crops[0].image.itemsize,
            intensity_window=UNIT_WINDOW if self._crops[0].image.dtype.kind == "f" else None,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its path, so that worker processes read the file themselves."""
        return partial(PickledCrops, self._path, **self._how), ()

    def __len__(self) -> int:
        return len(self._crops)

    def __getitem__(self, index: int) -> Sample:
        image, masks, _ = self._crops[index]
        labels = np.zeros((self.info.num_graders, *image.shape), dtype=np.uint8)
        bits = np.unpackbits(masks, axis=1, count=image.size)
        labels[: len(masks)] = bits.reshape(-1, *image.shape)
        return make_sample(
            image=image[None],
            labels=labels,
            graders=np.arange(self.info.num_graders) < len(masks),
            identity=self.identities[index],
            info=self.info,
            where=f"{self._path}, {self.identities[index].key}",
        )

    def files(self, index: int) -> dict[str, Path | bytes]:
        """The one file of all crops."""
        return {self._path.name: self._path}


def open_lidc_pickle(
    path: Path,
    *,
    split: str,
    lists: Mapping[str, str] | None = None,
    val_every: int | None = None,
    seed: int = 0,
) -> PickledCrops:
    """The `split` of the crops in a pickle, which has none itself: scans are split as folders of images are.

    `lists` names text files with one `series_uid` or crop per line, by split; other crops are for training. Without
    them every `val_every`-th scan is for validation, or a shuffle by `seed` splits scans 0.8 / 0.1 / 0.1.
    """
    check_split(split)
    return PickledCrops(Path(path), split=split, lists=lists, val_every=val_every, seed=seed)


def _read(path: Path) -> dict[str, _Crop]:
    with explain_os_errors(path, action="read", error=DataError):
        status = path.stat()
    return _read_once(path, (status.st_size, status.st_mtime_ns, status.st_ino))


@lru_cache(maxsize=1)  # all splits of a file are opened one after another
def _read_once(path: Path, _stamp: tuple[int, ...]) -> dict[str, _Crop]:
    found = read_pickle(path)
    if type(found) is not dict or not found:
        raise DataError(f"{path}: expected a dict of crops by name, got {type(found).__name__}")
    crops: dict[str, _Crop] = {}
    total = 0
    for name in list(found):
        where = f"{path}, {without_uids(name[:MAX_KEY_BYTES])!r}"
        crop = _crop(found.pop(name), where=where)  # frees the arrays
        total += crop.image.nbytes + 8 * crop.masks.nbytes
        check_unpacked(total, packed=path.stat().st_size, name=str(path))
        if (key := without_uids(name)) in crops or not key or len(key) > MAX_KEY_BYTES:
            raise DataError(f"{where}: a name that is empty, too long, or there twice")
        crops[key] = crop
    bits = {crop.image.itemsize for crop in crops.values()}
    if len(bits) > 1:
        raise DataError(f"{path}: holds images of several types, expected one")
    return crops


def _crop(record: Any, *, where: str) -> _Crop:
    values = record if type(record) is dict else {}
    image, masks, series = (values.get(name) for name in ("image", "masks", "series_uid"))
    if type(image) is not PickledArray or masks is None or type(series) is not str or not series:
        raise DataError(f"{where}: expected image, masks and series_uid, found {', '.join(map(str, values))[:200]}")
    pixels = _array(image, where=f"{where}: image")
    if pixels.ndim != 2 or 0 in pixels.shape or pixels.size > MAX_PIXELS:
        raise DataError(f"{where}: expected an image (h, w), got shape {pixels.shape}")
    if pixels.dtype.kind == "f":
        if not (np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 1):
            raise DataError(f"{where}: pixels must be finite and within [0, 1]")
        pixels = pixels.astype(np.float32)
    elif pixels.dtype == np.uint8:
        pixels = pixels.copy()
    else:
        raise DataError(f"{where}: expected floats or bytes as pixels, got {pixels.dtype}")
    stacked = list(_array(masks, where=f"{where}: masks")) if type(masks) is PickledArray else masks
    if type(stacked) not in (list, tuple) or not 1 <= len(stacked) <= _MAX_GRADERS:
        raise DataError(f"{where}: expected a list of 1 to {_MAX_GRADERS} masks")
    maps = []
    for number, mask in enumerate(stacked, start=1):
        name = f"{where}: mask {number}"
        labels = mask if isinstance(mask, np.ndarray) else _array(mask, where=name)
        if labels.shape != pixels.shape:
            raise DataError(f"{name}: shape {labels.shape}, its image has {pixels.shape}")
        maps.append(class_map(labels, num_classes=2, name=name).astype(bool).ravel())
    return _Crop(pixels, np.packbits(maps, axis=1), without_uids(series))


def _array(value: Any, *, where: str) -> np.ndarray:
    if type(value) is not PickledArray or value.value is None:
        raise DataError(f"{where}: expected an array of numbers, got {type(value).__name__}")
    return value.value
