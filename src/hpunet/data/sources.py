"""One way to open any data: a pack, a data set in its published layout, your own folder, or a synthetic set."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hpunet.data.base import SPLITS, NoSuchSplitError, Source, refuse_shared_patients
from hpunet.data.cityscapes import open_cityscapes
from hpunet.data.file_tree import is_archive
from hpunet.data.folder import open_folder
from hpunet.data.lidc import open_lidc_crops
from hpunet.data.packs import is_pack, open_pack
from hpunet.data.snemi3d import open_snemi3d
from hpunet.data.synthetic import INFO as SYNTHETIC
from hpunet.data.synthetic import open_synthetic
from hpunet.errors import ConfigError, DataError

_OPENERS: dict[str, Callable[..., Source]] = {
    "pack": open_pack,
    "lidc": open_lidc_crops,
    "snemi3d": open_snemi3d,
    "cityscapes": open_cityscapes,
    "folder": open_folder,
    "synthetic": open_synthetic,
}
SYNTHETIC_PREFIX = "synthetic:"


def detect_kind(where: str) -> str:
    """What kind of data lies at `where`, by its layout; 'synthetic:lesions' and the like name generated sets."""
    if where.startswith(SYNTHETIC_PREFIX):
        return "synthetic"
    path = Path(where)
    if not path.exists():
        names = ", ".join(SYNTHETIC_PREFIX + name for name in SYNTHETIC)
        raise DataError(f"{where}: no such file or folder (generated sets are called {names})")
    if is_pack(path):
        return "pack"
    if (path / "leftImg8bit").is_dir():
        return "cityscapes"
    if any(path.glob("train-input.*")):
        return "snemi3d"
    if any((path / split / "images").is_dir() or (path / f"{split}.tar.gz").is_file() for split in SPLITS):
        return "lidc"
    if is_archive(path) or (path / "images").is_dir():
        return "folder"
    raise DataError(
        f"{where}: not a layout we know; expected a pack, lidc_crops (<split>/images or <split>.tar.gz), SNEMI3D "
        "(train-input.*), Cityscapes (leftImg8bit/) or your own folder (images/ with masks/, graders/ or instances/)"
    )


def open_data(where: str, *, split: str, options: Mapping[str, Any] | None = None) -> Source:
    """One split of the data at `where`; `options` are the keyword arguments of that kind's opener."""
    kind = detect_kind(where)
    opener = _OPENERS[kind]
    arguments = _as_arguments(options or {})
    known = known_options(where)
    for name, value in arguments.items():
        if name not in known:
            raise ConfigError(f"{name}: {kind} data take no such option, only {', '.join(known)}")
        try:
            TypeAdapter(known[name]).validate_python(value, strict=True)
        except ValidationError:
            wanted = inspect.formatannotation(known[name])
            raise ConfigError(f"{name}: option of {kind} data, expected {wanted}, got {value!r}") from None
    first = where.removeprefix(SYNTHETIC_PREFIX) if kind == "synthetic" else Path(where)
    return opener(first, split=split, **arguments)


def open_split(where: str, *, split: str, options: Mapping[str, Any] | None = None) -> Source:
    """The split that a user chose with --split; the error for one that is not there names those that are."""
    if split in SPLITS:
        with suppress(NoSuchSplitError):
            return open_data(where, split=split, options=options)
    there = ", ".join(open_splits(where, options=options))
    raise NoSuchSplitError(f"{where}: has no split {split!r}, only {there}; choose one with --split")


def known_options(where: str) -> dict[str, Any]:
    """The options that data of this kind take, with their types."""
    _, *parameters = inspect.signature(_OPENERS[detect_kind(where)]).parameters.values()
    return {parameter.name: parameter.annotation for parameter in parameters if parameter.name != "split"}


def check_options_of_settings(where: str, options: Mapping[str, Any]) -> None:
    """Refuse settings whose data.options were made for data of another kind than those at `where`."""
    known = known_options(where)
    for name in options:
        if name not in known:
            kinds = [kind for kind, opener in _OPENERS.items() if name in inspect.signature(opener).parameters]
            made_for = f", an option of {' and '.join(kinds)} data" if kinds else ""
            raise ConfigError(
                f"data.options.{name}: set by the preset or settings{made_for}; {where} is of the kind "
                f"{detect_kind(where)} and takes none such; make settings that fit: hpunet init --data {where}"
            )


def open_splits(where: str, *, options: Mapping[str, Any] | None = None) -> dict[str, Source]:
    """All splits that the data have; at least one."""
    found: dict[str, Source] = {}
    for split in SPLITS:
        with suppress(NoSuchSplitError):
            found[split] = open_data(where, split=split, options=options)
    if not found:
        raise DataError(f"{where}: has none of the splits {', '.join(SPLITS)}")
    refuse_shared_patients(list(found.values()))
    return found


def _as_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """TOML knows lists, our arguments are tuples."""

    def tuples(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(tuples(v) for v in value)
        return {k: tuples(v) for k, v in value.items()} if isinstance(value, dict) else value

    return {name: tuples(value) for name, value in options.items()}
