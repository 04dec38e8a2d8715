"""Series of registered images of one place, and the moments that a model of the future is to predict.

A series is a folder of images whose names hold a date each (2026-03-01), or one file of several images, whose dates
are then given: NIfTI (x, y, t) or (x, y, 1, t), a TIFF or HDF5 stack, or in Python an array (t, h, w). Labels of
the past come in the same form.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Int32, Shaped

from hpunet.data.extrapolation import conceal_future
from hpunet.data.io.geometry import Geometry
from hpunet.data.io.images import read_image
from hpunet.data.io.inputs import Stored, input_name, read_stored
from hpunet.data.io.label_maps import as_integers, class_map
from hpunet.data.io.volumes import NIFTI_ENDINGS, NIFTI_HEAD_BYTES, decode_nifti, nifti_raters
from hpunet.data.io.windows import Window
from hpunet.data.types import SetInfo
from hpunet.errors import ConfigError, DataError
from hpunet.predict.open_image import OpenedImage, open_stored
from hpunet.utils.files import read_file

MAX_MOMENTS = 256
_DATE = re.compile(r"(?<!\d)\d{4}-\d{2}-\d{2}(?!\d)")
_YEAR = 365.25  # days
Day = str | date
SeriesLike = str | Path | np.ndarray | torch.Tensor


@dataclass(frozen=True)
class Series:
    """When the images of a series were taken, and for which days it is continued."""

    days: tuple[date, ...]
    num_past: int
    """Those of the images; the others are predicted."""
    labels: Int32[np.ndarray, "p h w"]
    """Of the past."""

    @property
    def years(self) -> Float32[np.ndarray, " d"]:
        """From the first image on."""
        return np.array([(day - self.days[0]).days / _YEAR for day in self.days], dtype=np.float32)


def open_series(
    series: SeriesLike,
    *,
    labels: SeriesLike,
    futures: Sequence[Day],
    dates: Sequence[Day] | None,
    info: SetInfo,
    crop: Sequence[int],
    name: str | None = None,
    window: Window | None = None,
) -> OpenedImage:
    """The images of a series and the days of its future, of which the model sees nothing but these days."""
    days, stored = _read(series, dates=dates, name="series")
    label_days, label_maps = _read(labels, dates=days if dates is None else dates, name="labels", are_labels=True)
    if label_days != days:
        raise DataError(f"labels: of {_listed(label_days)}, the images are of {_listed(days)}")
    to_predict = parse_days(futures, what="futures")
    if not to_predict or any(b <= a for a, b in pairwise((days[-1], *to_predict))):
        raise ConfigError(
            f"futures: expected rising days after the last image, {days[-1]}, got {_listed(to_predict)}"
        )
    if len(days) + len(to_predict) > MAX_MOMENTS:
        raise ConfigError(
            f"futures: {len(days)} images and {len(to_predict)} futures, at most {MAX_MOMENTS} together"
        )
    where = str(series) if isinstance(series, (str, Path)) else "series"
    name = name or (input_name(Path(series)) if isinstance(series, (str, Path)) else "series")
    opened = open_stored(stored, name=name, where=where, info=info, crop=crop, window=window)
    past, _, h, w = opened.images.shape
    if label_maps.values.shape != (past, h, w):
        sizes = " and ".join("×".join(map(str, each)) for each in (label_maps.values.shape, (past, h, w)))
        raise DataError(f"labels: labels and images have {sizes} pixels")
    values = as_integers(label_maps.values, name="labels")
    known = class_map(values, num_classes=info.num_classes, name="labels")
    found = Series((*days, *to_predict), past, known)
    hidden = conceal_future(
        image=_longer(torch.from_numpy(opened.images.swapaxes(0, 1)), len(found.days))[None],
        labels=_longer(torch.from_numpy(known)[None], len(found.days)),
        visible=torch.arange(len(found.days))[None] < past,
        times=torch.from_numpy(found.years)[None],
        num_classes=info.num_classes,
    )
    place = replace(opened.place, shape=(len(found.days), h, w), header=None)
    cond = hidden.cond[0].swapaxes(0, 1).numpy()
    return OpenedImage(name, hidden.image[0].swapaxes(0, 1).numpy(), place, opened.notes, cond, series=found)


def parse_days(days: Sequence[Day], *, what: str) -> tuple[date, ...]:
    """Days from ISO dates such as 2027-01-01."""
    try:
        return tuple(day if isinstance(day, date) else date.fromisoformat(day.strip()) for day in days)
    except ValueError as error:
        raise ConfigError(f"{what}: expected days such as 2027-01-01 ({error})") from None


def _longer(planes: torch.Tensor, moments: int) -> torch.Tensor:
    """Planes (c, p, h, w) continued by zeros."""
    return torch.cat([planes, planes.new_zeros(planes.shape[0], moments - planes.shape[1], *planes.shape[2:])], dim=1)


def _read(
    given: SeriesLike, *, dates: Sequence[Day] | None, name: str, are_labels: bool = False
) -> tuple[tuple[date, ...], Stored]:
    """The days of a series, and its values (t, h, w) or (t, h, w, c)."""
    if isinstance(given, (str, Path)) and Path(given).is_dir():
        return _read_folder(Path(given), are_labels=are_labels)
    if dates is None:
        raise ConfigError(
            f"{name}: say when its images were taken, dates= (--dates), or give a folder of dated files"
        )
    days = parse_days(dates, what="dates")
    if not days or any(b <= a for a, b in pairwise(days)):
        raise ConfigError(f"dates: expected rising days, got {_listed(days)}")
    stored = _read_file(Path(given)) if isinstance(given, (str, Path)) else Stored(_array(given, name=name))
    if len(stored.values) != len(days):
        raise DataError(f"{name}: {len(stored.values)} images, but {len(days)} dates")
    return days, replace(stored, geometry=Geometry("zyx"))


def _read_folder(folder: Path, *, are_labels: bool) -> tuple[tuple[date, ...], Stored]:
    """Files by the day in their names."""
    files: dict[date, Path] = {}
    for file in sorted(folder.iterdir()):
        if file.name.startswith(".") or not file.is_file():
            continue
        if len(found := _DATE.findall(file.name)) != 1:
            raise DataError(f"{file}: expected a name with one date, such as scan_2026-03-01.png")
        (day,) = parse_days(found, what=str(file))
        if (other := files.setdefault(day, file)) != file:
            raise DataError(f"{file}: {other.name} is of the same day")
        if len(files) > MAX_MOMENTS:
            raise DataError(f"{folder}: more than {MAX_MOMENTS} images")
    if not files:
        raise DataError(f"{folder}: holds no images with dates in their names, such as scan_2026-03-01.png")
    days = sorted(files)
    parts: list[Stored] = []
    for day in days:
        part = _read_labels(files[day]) if are_labels else read_stored(files[day])
        if len(part.values) != 1:
            raise DataError(f"{files[day]}: expected one image, got {len(part.values)} slices")
        if parts and (part.values.shape, part.values.dtype) != (parts[0].values.shape, parts[0].values.dtype):
            first, its = (f"{'×'.join(map(str, p.values.shape[1:]))} {p.values.dtype}" for p in (parts[0], part))
            raise DataError(f"{files[day]}: {its}, {files[days[0]].name} is {first}; register the images first")
        parts.append(part)
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    values = np.concatenate([part.values for part in parts])
    return tuple(days), replace(
        parts[0], values=values, geometry=Geometry("zyx"), header=None, notes=notes, frames=()
    )


def _read_labels(file: Path) -> Stored:
    if file.name.lower().endswith((*NIFTI_ENDINGS, ".npy")):
        return read_stored(file)
    return Stored(read_image(file, labels=True)[None])


def _read_file(path: Path) -> Stored:
    """One file of several images."""
    if not path.name.lower().endswith(NIFTI_ENDINGS):
        return read_stored(path, volumes=True)
    content = read_file(path, error=DataError)
    moments = nifti_raters(content[:NIFTI_HEAD_BYTES], packed=len(content), name=str(path))
    if moments > MAX_MOMENTS:
        raise DataError(f"{path}: {moments} images, at most {MAX_MOMENTS}")
    values = decode_nifti(content, name=str(path), num_raters=moments).slices
    if moments > 1 and len(values) > 1:
        raise DataError(f"{path}: volumes over time; series of images are predicted, (x, y, t) or (x, y, 1, t)")
    return Stored(np.moveaxis(values[0], -1, 0) if moments > 1 else values)


def _array(given: np.ndarray | torch.Tensor, *, name: str) -> Shaped[np.ndarray, "t h w *c"]:
    array = given.detach().cpu().numpy() if isinstance(given, torch.Tensor) else given
    is_series = isinstance(array, np.ndarray) and array.ndim in (3, 4) and 0 not in array.shape
    if not is_series or array.dtype.kind not in "biuf":
        raise DataError(f"{name}: expected a path, or an array (t, h, w) or (t, h, w, c) of numbers")
    return array


def _listed(days: Sequence[date]) -> str:
    return ", ".join(map(str, days)) or "none"
