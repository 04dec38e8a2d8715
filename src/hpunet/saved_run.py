"""What a training run left in its folder, read back and checked. Needs neither torch nor the data."""

import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpunet.config import Settings, check_settings
from hpunet.data.files import read_bytes
from hpunet.errors import DataError
from hpunet.logs import LOG_FILE

MAX_PICTURE_BYTES = 2**31
"""Bound on what a picture file may unpack to."""
_LABEL_MAPS = ("labels", "reconstructions", "samples_full", "samples_global", "samples_local")
_STD_MAPS = ("std_full", "std_global", "std_local")
_PER_IMAGE_MAPS = ("prior_mean", "valid", *_STD_MAPS)


@dataclass(frozen=True)
class SavedRun:
    """A run: its settings, where it ran, its log, and the pictures of its newest validation."""

    name: str
    folder: Path
    settings: Settings
    description: dict[str, Any]
    log: list[dict[str, Any]]
    pictures: dict[str, np.ndarray] | None
    """The arrays that validation saved (see `validation.py`); None before the first validation."""
    pictures_step: int

    def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values of a logged number; steps where it was not finite are left out."""
        points = [(line["step"], line[name]) for line in self.log if line.get(name) is not None]
        steps, values = zip(*points, strict=True) if points else ((), ())
        return np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)


def read_run(folder: Path, *, name: str | None = None) -> SavedRun:
    """Read a run's folder, or raise an error that names the file and what is wrong with it."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected one that `hpunet train` wrote")
    settings = check_settings(_read_object(folder / "settings.json"), where=str(folder / "settings.json"))
    log = _read_log(folder / LOG_FILE)
    validated = [line["step"] for line in log if "val_ged2" in line]
    step = validated[-1] if validated else 0
    return SavedRun(
        name=name or folder.resolve().name,
        folder=folder,
        settings=settings,
        description=_read_object(folder / "run.json"),
        log=log,
        pictures=_read_pictures(folder / "pictures" / f"step-{step:08d}.npz") if validated else None,
        pictures_step=step,
    )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}); expected what `hpunet train` wrote") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def _read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log. A last line without its end was cut off by a crash and is left out."""
    try:
        text = read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not text ({error})") from None
    lines = []
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), start=1):
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: line {number} is not JSON ({error})") from None
        if not isinstance(values, dict) or not all(_is_number(v) for v in values.values()) or "step" not in values:
            raise DataError(f"{path}: line {number} is not an object of numbers with a step")
        lines.append(values)
    if not lines:
        raise DataError(f"{path}: has no lines yet; let the run log a step first (watch.log_every)")
    return lines


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _read_pictures(path: Path) -> dict[str, np.ndarray]:
    content = read_bytes(path)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MAX_PICTURE_BYTES:
            raise DataError(f"{path}: unpacks to {size} bytes, more than the {MAX_PICTURE_BYTES} this reader takes")
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: np.asarray(archive[name]) for name in archive.files}
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise errors of many kinds
        raise DataError(f"{path}: not a readable .npz file ({error})") from None
    _check_pictures(arrays, path)
    return arrays


def _check_pictures(arrays: dict[str, np.ndarray], path: Path) -> None:
    """Refuse arrays that are not there or do not fit each other."""
    expected = ("image", "graders", "keys", *_LABEL_MAPS, *_PER_IMAGE_MAPS)
    missing = [name for name in expected if name not in arrays]
    if missing:
        raise DataError(f"{path}: lacks {', '.join(missing)}")
    image = arrays["image"]
    if image.ndim != 4 or image.dtype.kind != "f" or 0 in image.shape:
        raise DataError(f"{path}: image: expected floats (b, c, h, w), got {image.dtype} of shape {image.shape}")
    b, _, h, w = image.shape
    for name in (*_LABEL_MAPS, *_PER_IMAGE_MAPS):
        array = arrays[name]
        ends = (h, w) if name in _PER_IMAGE_MAPS else (array.shape[1] if array.ndim > 1 else 0, h, w)
        if array.shape != (b, *ends) or array.dtype.kind != ("f" if name in _STD_MAPS else array.dtype.kind):
            raise DataError(f"{path}: {name}: expected maps of {b} images of {h}x{w}, got shape {array.shape}")
    if arrays["graders"].shape != arrays["labels"].shape[:2] or arrays["keys"].shape != (b,):
        raise DataError(f"{path}: graders and keys do not fit the {b} images and their labels")
