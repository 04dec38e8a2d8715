"""Open any data: a pack, a data set in its published layout, your own folder, or a synthetic set."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hpunet.data.cityscapes.scenes import open_cityscapes
from hpunet.data.fingerprint import FileHashes, fingerprints
from hpunet.data.folder.layouts import is_folder_of_images
from hpunet.data.folder.source import open_folder
from hpunet.data.lidc.crops import open_lidc_crops
from hpunet.data.lidc.pickled import is_pickle, open_lidc_pickle
from hpunet.data.options import describe_option, set_arguments, to_toml
from hpunet.data.packs import is_pack, open_pack, pack_ndim, pack_origin, write_pack
from hpunet.data.snemi3d import open_snemi3d
from hpunet.data.synthetic.source import INFO as SYNTHETIC
from hpunet.data.synthetic.source import open_synthetic
from hpunet.data.types import SPLITS, NoSuchSplitError, Source, refuse_shared_patients
from hpunet.errors import ConfigError, DataError

_OPENERS: dict[str, Callable[..., Source]] = {
    "pack": open_pack,
    "lidc": open_lidc_crops,
    "pickle": open_lidc_pickle,
    "snemi3d": open_snemi3d,
    "cityscapes": open_cityscapes,
    "folder": open_folder,
    "synthetic": open_synthetic,
}
SYNTHETIC_PREFIX = "synthetic:"
_MAX_ENTRIES = 1000  # of a folder of unknown layout, searched for a hint


def detect_kind(where: str) -> str:
    """The kind of data at `where`, by layout; 'synthetic:<name>' is a generated set."""
    if where.startswith(SYNTHETIC_PREFIX):
        return "synthetic"
    path = Path(where)
    if not path.exists():
        names = ", ".join(SYNTHETIC_PREFIX + name for name in SYNTHETIC)
        raise DataError(f"{where}: no such file or folder (generated sets: {names})")
    if (found := _layout(path)) is not None:
        return found
    inside = [entry for entry in sorted(path.iterdir())[:_MAX_ENTRIES] if _layout(entry)] if path.is_dir() else []
    raise DataError(
        f"{where}: unknown layout"
        + (f" (did you mean {' or '.join(map(str, inside[:3]))}?)" if inside else "")
        + "; expected a pack, lidc_crops (<split>/images or <split>.tar.gz), a .pickle of LIDC crops, "
        "SNEMI3D (train-input.*), Cityscapes "
        "(leftImg8bit/) or your own folder (images/ with masks/, graders/ or instances/, or images with --graders)"
    )


def _layout(path: Path) -> str | None:
    if is_pack(path):
        return "pack"
    if is_pickle(path):
        return "pickle"
    if (path / "leftImg8bit").is_dir():
        return "cityscapes"
    if any(path.glob("train-input.*")):
        return "snemi3d"
    if any((path / split / "images").is_dir() or (path / f"{split}.tar.gz").is_file() for split in SPLITS):
        return "lidc"
    return "folder" if is_folder_of_images(path) else None


def open_data(where: str, *, split: str, options: Mapping[str, Any] | None = None) -> Source:
    """One split of the data at `where`; `options` are the keyword arguments of that kind's opener.

    A pack also accepts the options that it was made with.
    """
    kind = detect_kind(where)
    arguments = _as_arguments(options or {})
    _check_options(where, arguments)
    if kind == "pack":
        _check_same_as_packed(where, arguments)
        arguments = {name: value for name, value in arguments.items() if name in _options("pack")}
    first = where.removeprefix(SYNTHETIC_PREFIX) if kind == "synthetic" else Path(where)
    return _OPENERS[kind](first, split=split, **arguments)


def pack_data(where: str, out: Path, *, options: Mapping[str, Any], **how: Any) -> dict[str, Source]:
    """Write all splits of the data at `where` as a pack that records their options; returns the splits.

    Further arguments are those of `write_pack`.
    """
    sources = open_splits(where, options=options)
    write_pack(sources, out, options=_made_with(where, options), **how)
    return sources


def data_fingerprints(where: str, *, options: Mapping[str, Any], hashes: FileHashes) -> dict[str, str]:
    """The fingerprints by split that `pack_data` would record."""
    return fingerprints(open_splits(where, options=options), options=_made_with(where, options), hashes=hashes)


def _made_with(where: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """The options that a pack records."""
    kind = detect_kind(where)
    return pack_origin(Path(where))[1] if kind == "pack" else {**_defaults(kind), **_as_arguments(options)}


def open_split(where: str, *, split: str, options: Mapping[str, Any] | None = None) -> Source:
    """The split chosen with --split; the error for a missing one names those that exist."""
    if split in SPLITS:
        with suppress(NoSuchSplitError):
            return open_data(where, split=split, options=options)
    existing = ", ".join(open_splits(where, options=options))
    raise NoSuchSplitError(f"{where}: has no split {split!r}, only {existing}; choose one with --split")


def open_splits(where: str, *, options: Mapping[str, Any] | None = None) -> dict[str, Source]:
    """All splits of the data; at least one."""
    found: dict[str, Source] = {}
    for split in SPLITS:
        with suppress(NoSuchSplitError):
            found[split] = open_data(where, split=split, options=options)
    if not found:
        raise DataError(f"{where}: has none of the splits {', '.join(SPLITS)}")
    refuse_shared_patients(list(found.values()))
    return found


def known_options(where: str) -> dict[str, Any]:
    """The options of this kind of data and their types; a pack also has those of the packed data."""
    kind, made_with = _origin(where)
    kinds = [kind] if made_with is None else [kind, "pack"]
    return {name: option.annotation for kind in kinds for name, option in _options(kind).items()}


def adapt_options(
    where: str,
    *,
    kind: str,
    options: Mapping[str, Any],
    changes: Mapping[str, Any] | None = None,
    ndim: int | None = None,
) -> dict[str, Any]:
    """The `options` of a trained model that apply to the data at `where`, updated by `changes`.

    A pack of the same `kind` must have been made with these options: with another split, training images would be
    scored. With the model's `ndim`, whole volumes or their slices are chosen by it.
    """
    found = _adapted(where, kind=kind, options=options, changes=changes or {})
    return found if ndim is None else options_of_model(where, found, ndim=ndim)


def _adapted(where: str, *, kind: str, options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    known = known_options(where)
    chosen = {name: value for name, value in options.items() if name in known and name not in changes}
    packed_kind, made_with = _origin(where)
    if detect_kind(where) == "pack" and pack_origin(Path(where))[0] != kind:
        return dict(changes)
    if made_with is not None:
        usual = {name: value for name, value in _defaults(packed_kind).items() if name not in changes}
        _check_same_as_packed(where, {**usual, **_as_arguments(chosen)}, by_run=True)
    return {**chosen, **changes}


def options_of_model(where: str, options: Mapping[str, Any], *, ndim: int) -> dict[str, Any]:
    """`options` with `volumes` as a model of this `ndim` needs it; refuses data that cannot be read so.

    It is left out where the data are read so without it.
    """
    kind, wanted = detect_kind(where), ndim == 3
    if kind == "pack":
        usual = pack_ndim(Path(where)) == 3
    else:
        named = SYNTHETIC.get(where.removeprefix(SYNTHETIC_PREFIX)) if kind == "synthetic" else None
        usual = named is not None and named.ndim == 3
    has_both = usual if kind == "synthetic" else kind != "pack" and "volumes" in _options(kind)
    asked = options.get("volumes") if has_both else None
    found = usual if asked is None else bool(asked)
    if found == wanted:
        return dict(options)
    if has_both and asked is None:
        return {**options, "volumes": wanted}
    words = {True: "volumes", False: "images"}
    raise ConfigError(
        f"model.ndim: {ndim}, the model computes {words[wanted]}, but {where} is read as {words[found]}; "
        + (f"set volumes={to_toml(wanted)}" if has_both else f"choose other data, or a preset for {words[found]}")
    )


def with_pack_options(where: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """`options`, and for a pack also those it was made with."""
    kind, made_with = _origin(where)
    if made_with is None:
        return dict(options)
    defaults = _defaults(kind)
    unusual = {k: v for k, v in made_with.items() if k not in defaults or _as_arguments({k: v})[k] != defaults[k]}
    return {**unusual, **options}


def check_data_options(where: str, options: Mapping[str, Any]) -> None:
    """Refuse `data.options` that do not fit the data at `where`: of another kind, or packed with other options."""
    kind, _ = _origin(where)
    if kind == "pack":
        return
    known = known_options(where)
    for name in (name for name in options if name not in known):
        kinds = [other for other in _OPENERS if name in _options(other)]
        made_for = f", an option of {' and '.join(kinds)} data" if kinds else ""
        raise ConfigError(
            f"data.options.{name}: set by the preset or settings{made_for}, but {where} is of kind {kind} and "
            f"has no such option; write settings for these data: hpunet init --data {where}"
        )
    arguments = _as_arguments(options)
    _check_options(where, arguments)
    _check_same_as_packed(where, arguments, prefix="data.options.")


def _check_options(where: str, arguments: Mapping[str, Any]) -> None:
    kind, known = detect_kind(where), known_options(where)
    for name, value in arguments.items():
        if name not in known:
            raise ConfigError(f"{name}: unknown option of {kind} data, expected one of {', '.join(known)}")
        try:
            TypeAdapter(known[name]).validate_python(value, strict=True)
        except ValidationError:
            wanted, got = describe_option(name, known[name]), value if isinstance(value, str) else to_toml(value)
            raise ConfigError(f"{name}: option of {kind} data, expected {wanted}; got {got}") from None


def _check_same_as_packed(where: str, arguments: dict[str, Any], *, prefix: str = "", by_run: bool = False) -> None:
    """Refuse options that differ from those of the pack: its splits and ids would be different ones."""
    kind, made_with = _origin(where)
    if made_with is None:
        return
    usual = _defaults(kind)
    there = {**usual, **_as_arguments(made_with)}
    different = {name: value for name, value in arguments.items() if name in there and there[name] != value}
    if not different:
        return
    words = "the run was trained with {}" if by_run else "{} is requested"
    said = {name: f"{prefix}{name}: {words.format(to_toml(value))}" for name, value in different.items()}
    what = [f"{text}, but the pack {where} was made with {to_toml(there[name])}" for name, text in said.items()]
    wanted = {**there, **different}
    to_pack = [set_arguments(name, wanted[name]) for name in usual if wanted[name] != usual[name]]
    to_take = [set_arguments(prefix + name, there[name]) for name in different]
    unseen = "if the run has not seen these images, " if by_run else ""
    raise ConfigError(
        f"{'; '.join(what)}; pack again ({' '.join(['hpunet data pack WHERE OUT', *to_pack])}), or {unseen}use the "
        f"options of the pack ({' '.join(to_take)})"
    )


def _origin(where: str) -> tuple[str, dict[str, Any] | None]:
    """The kind of the data; for a pack the kind of the packed data and their options, if it records them."""
    kind = detect_kind(where)
    if kind == "pack":
        name, made_with = pack_origin(Path(where))
        packed_kind = name.partition("-")[0]  # synthetic-lesions is of kind synthetic
        if made_with is not None and packed_kind in _OPENERS:
            return packed_kind, made_with
    return kind, None


def _options(kind: str) -> dict[str, inspect.Parameter]:
    _, *parameters = inspect.signature(_OPENERS[kind]).parameters.values()
    return {parameter.name: parameter for parameter in parameters if parameter.name != "split"}


def _defaults(kind: str) -> dict[str, Any]:
    return {name: option.default for name, option in _options(kind).items()}


def _as_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """TOML values as arguments: lists become tuples, "none" becomes None."""

    def tuples(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(tuples(v) for v in value)
        return {k: tuples(v) for k, v in value.items()} if isinstance(value, dict) else value

    return {name: None if value == "none" else tuples(value) for name, value in options.items()}
