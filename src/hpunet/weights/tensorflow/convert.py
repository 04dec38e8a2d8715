"""`hpunet convert-tf`: convert a TensorFlow checkpoint of the authors' code to a run folder."""

import math
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpunet.config.settings import Settings
from hpunet.data.lidc.crops import INFO as LIDC
from hpunet.data.types import SetInfo
from hpunet.errors import CheckpointError, ConfigError
from hpunet.models.build import build_model
from hpunet.models.hpunet import HPUNet
from hpunet.utils.files import atomic_folder, dump_json, explain_os_errors, write_synced
from hpunet.utils.limits import allowed
from hpunet.weights.checkpoints import save_checkpoint
from hpunet.weights.tensorflow.bundle import NPZ_HINT, read_bundle
from hpunet.weights.tensorflow.variables import is_weight, load_tf_variables

_MAX_UNPACKED_BYTES = 2**33
_STEP_NAMES = ("global_step", "step")
_FILE_OF_PREFIX = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_NUMBERED = re.compile(r"-(\d{1,18})$")


@dataclass(frozen=True)
class Converted:
    """What was converted."""

    step: int
    num_parameters: int
    num_variables: int
    unused: Sequence[str]
    """Names of variables that are no weights of our model: optimiser slots, λ, the step, unused convolutions."""
    info: SetInfo


def convert_checkpoint(
    path: Path, *, out: Path, settings: Settings, class_names: Sequence[str] | None = None
) -> Converted:
    """Read a checkpoint (prefix, folder or .npz) and write the folder `out` atomically.

    The variables determine the numbers of image channels and classes, `settings` the rest of the shape.
    """
    if settings.model.kind != "hpu" or settings.model.ndim != 2 or settings.data.extrapolate:
        words = "the authors' code has the plain HPU-Net of images only"
        raise ConfigError(f"model.kind, model.ndim, data.extrapolate: {words}")
    if os.path.lexists(out):
        raise ConfigError(f"{out}: exists already; choose another folder")
    where, variables, others = read_variables(path)
    info = _info(variables, class_names=class_names)
    model = build_model(settings.model, in_channels=info.in_channels, num_classes=info.num_classes)
    assert isinstance(model, HPUNet)
    weights = {name: array for name, array in variables.items() if is_weight(name)}
    _check_values(weights, where=where)
    try:
        dead = load_tf_variables(model, weights)
    except CheckpointError as error:
        shape = f"model.channels={list(model.channels)}, model.latent_dims={list(model.latent_dims)}"
        shape += f", model.blocks_per_scale={model.blocks_per_scale}"
        raise CheckpointError(f"{where}: {error}. It was read for {shape}; change the shape with --set") from None
    step = _step(variables, where=where)
    unused = [*others, *(name for name in variables if name not in weights), *dead]
    state = {"settings": settings.model_dump(mode="json"), "info": info.as_json()}
    state["converted"] = {"from": Path(where).name, "unused": len(unused)}
    with atomic_folder(out) as folder:
        save_checkpoint(folder / "checkpoints", step=step, tensors={"model": model.state_dict()}, state=state)
        write_synced(folder / "settings.json", dump_json(state["settings"], name="settings.json"))
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    return Converted(step, num_parameters, num_variables=len(weights) - len(dead), unused=unused, info=info)


def read_variables(path: Path) -> tuple[str, dict[str, np.ndarray], list[str]]:
    """Where variables were found; weights and the step by name; the names of all others."""
    if path.suffix == ".npz":
        return str(path), *_read_npz(path, wanted=_is_wanted)
    prefix = _find_prefix(path)
    return str(prefix), *read_bundle(prefix, wanted=_is_wanted)


def _is_wanted(name: str) -> bool:
    return is_weight(name) or name.split("/")[-1] in _STEP_NAMES


def _find_prefix(path: Path) -> Path:
    """The prefix, given it, the checkpoint's folder or one of its files."""
    if path.is_dir():
        found = sorted(entry.name.removesuffix(".index") for entry in path.glob("*.index"))
        if not found:
            raise CheckpointError(f"{path}: holds no TensorFlow checkpoint (no .index file)")
        if len(found) > 1:
            raise CheckpointError(f"{path}: holds several checkpoints; name one: {', '.join(found)}")
        return path / found[0]
    prefix = path.with_name(_FILE_OF_PREFIX.sub("", path.name)) if path.name else path
    if prefix.name and prefix.with_name(prefix.name + ".index").exists():
        return prefix
    if path.exists():
        raise CheckpointError(f"{path}: not a readable TensorFlow checkpoint (no .index file). {NPZ_HINT}")
    expected = "a prefix such as model.ckpt-12345, its folder, or an .npz of variables"
    raise CheckpointError(f"{path}: no such checkpoint; expected {expected}")


def _read_npz(path: Path, *, wanted: Callable[[str], bool]) -> tuple[dict[str, np.ndarray], list[str]]:
    with explain_os_errors(path, action="read"):
        if not path.is_file():
            raise CheckpointError(f"{path}: {'not a plain file' if path.exists() else 'no such file'}")
        limit = min(_MAX_UNPACKED_BYTES, allowed(path.stat().st_size).unpacked)
        try:
            with zipfile.ZipFile(path) as archive:
                size = sum(entry.file_size for entry in archive.infolist())
            if size > limit:
                raise CheckpointError(f"{path}: unpacks to {size} bytes, expected at most {limit}")
            with np.load(path, allow_pickle=False) as arrays:
                variables = {name: np.asarray(arrays[name]) for name in arrays.files if wanted(name)}
                return variables, [name for name in arrays.files if name not in variables]
        except (CheckpointError, OSError):
            raise
        except Exception as error:  # zipfile, zlib and numpy raise errors of many kinds
            raise CheckpointError(f"{path}: not a readable .npz file ({error})") from None


def _info(variables: Mapping[str, np.ndarray], *, class_names: Sequence[str] | None) -> SetInfo:
    """Channels and classes according to the variables; LIDC's if these fit."""
    in_channels = _size(variables, "prior/conv_2d/w", axis=2) or LIDC.in_channels
    num_classes = _size(variables, "f_comb/logits/w", axis=3) or LIDC.num_classes
    if class_names is not None and len(class_names) != num_classes:
        raise ConfigError(f"--classes: {len(class_names)} names, but the checkpoint has {num_classes} classes")
    if class_names is None and (in_channels, num_classes) == (LIDC.in_channels, LIDC.num_classes):
        return LIDC
    names = class_names or ("background", *(f"class {i}" for i in range(1, num_classes)))
    classes: dict[str, Any] = {"fixed_classes": tuple(names), "stochastic_classes": tuple(range(1, num_classes))}
    return SetInfo(kind="tensorflow", in_channels=in_channels, num_graders=1, **classes)


def _size(variables: Mapping[str, np.ndarray], ending: str, *, axis: int) -> int | None:
    """A size of the one variable of this name, if it is a convolution (others are refused later)."""
    found = [array for name, array in variables.items() if f"/{name}".endswith(f"/{ending}")]
    return found[0].shape[axis] if len(found) == 1 and found[0].ndim == 4 and found[0].size else None


def _check_values(weights: Mapping[str, np.ndarray], *, where: str) -> None:
    for name, array in weights.items():
        if array.dtype.kind != "f":
            raise CheckpointError(f"{where}: {name} holds {array.dtype}, expected floats")
        if not np.isfinite(array).all():
            raise CheckpointError(f"{where}: {name} holds values that are not finite")


def _step(variables: Mapping[str, np.ndarray], *, where: str) -> int:
    """The iteration, from its variable, else from the number at the end of the name, else 0."""
    counted = [array for name, array in variables.items() if name.split("/")[-1] in _STEP_NAMES]
    for array in counted:
        if array.ndim == 0 and array.dtype.kind in "iuf" and 0 <= array < 10**18 and math.floor(array) == array:
            return int(array)
    named = _NUMBERED.search(Path(where).name.removesuffix(".npz"))
    return int(named[1]) if named else 0
