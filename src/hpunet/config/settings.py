"""The typed settings of a run, presets, and `a.b=value` assignments from the command line.

Unknown keys, wrong types and impossible combinations are errors that name the key. docs/reference/settings.md
describes every setting. Modules do not see this tree: they get plain arguments (`training/build.py`).
"""

import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hpunet.errors import ConfigError
from hpunet.utils.files import read_file
from hpunet.utils.limits import MAX_SETTINGS_BYTES

MAX_SCALES, MAX_CHANNELS, MAX_BLOCKS, MAX_LATENT_DIM = 12, 4096, 32, 1024
MAX_CROP = 8192  # of each side, in pixels: their product is the largest image that is read
MAX_LINE = 1000  # characters: dotted keys take time with the square of their length
_MOST_SAID = 20  # of many things that are wrong
MAX_SAMPLES = 1024  # per image, where pairs of samples are compared
MAX_EROSION = 101  # pixels, of instances
MAX_SEEDS, MAX_SEED = 1000, 2**63 - 1  # of an evaluation, and of any samples
Positive = Annotated[int, Field(ge=1, le=10**9)]
_Side = Annotated[int, Field(ge=1, le=MAX_CROP)]
Extrapolate = bool | Literal["future"]
Fraction = Annotated[float, Field(gt=0, le=1)]
_PRESETS = resources.files("hpunet.config") / "presets"
_FROM_LIST = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)  # TOML has lists only


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ModelSettings(_Section):
    """Which network; image channels and classes come from the data."""

    kind: Literal["hpu", "punet"] = "hpu"
    ndim: Literal[2, 3] = 2  # of images, or of volumes
    channels: Annotated[list[Annotated[int, Field(ge=1, le=MAX_CHANNELS)]], Field(max_length=MAX_SCALES)]
    latent_dims: Annotated[list[Annotated[int, Field(ge=0, le=MAX_LATENT_DIM)]], Field(max_length=MAX_SCALES)]
    """Per latent scale, coarsest first."""
    blocks_per_scale: Annotated[int, Field(ge=1, le=MAX_BLOCKS)] = 3  # residual blocks (hpu)
    strides: list[Annotated[tuple[Literal[1, 2], ...], _FROM_LIST]] | None = None
    """Per halving, finest first: by how much each axis shrinks; by default all by 2. Only for volumes."""
    activation_checkpointing: bool = False
    orientations: Literal[1, 2, 4, 8] = 1  # sampled from: mirrored (2), also upside down (4), also rotated by 90° (8)

    @model_validator(mode="after")
    def _check(self) -> "ModelSettings":
        if self.kind == "punet" and len(self.latent_dims) != 1:
            raise ValueError("latent_dims: the Probabilistic U-Net has exactly one latent scale")
        if self.strides is None:
            return self
        if self.ndim == 2:
            raise ValueError("strides: only with ndim=3; images are halved along both axes")
        fitting = [len(each) == self.ndim and max(each, default=1) == 2 for each in self.strides]
        if len(fitting) != len(self.channels) - 1 or not all(fitting):
            wanted = f"{len(self.channels) - 1} times {self.ndim} numbers, each 1 or 2, not all of them 1"
            raise ValueError(f"strides: expected {wanted}")
        return self


class DataSettings(_Section):
    """How training reads its data; `--data` says where they are."""

    crop: Annotated[tuple[_Side, ...], _FROM_LIST]  # (depth,) height and width that the network sees
    options: dict[str, Any] = {}  # of the kind of data, as for `hpunet data`
    extrapolate: Extrapolate = False  # hide a part of every image, or the future; the prior sees the rest, its labels
    evaluate: Literal["whole", "crop"] = "whole"  # what is scored: whole images, or the centre, as large as the crop
    num_workers: Annotated[int, Field(ge=0, le=256)] = 0  # processes that read ahead if data do not fit on the GPU


class AugmentationSettings(_Section):
    """Ranges of the random warps. The paper names the operations, the ranges are ours; 0, False or (1, 1): off."""

    elastic: Annotated[float, Field(ge=0, le=1)] = 0.04
    """Standard deviation of the control points' displacement, as a fraction of the crop's side along each axis."""
    rotation: Annotated[float, Field(ge=0, le=180)] = 180.0  # uniform in ± this many degrees
    mirror_up_down: bool = True  # with probability 1/2
    mirror_left_right: bool = True
    mirror_front_back: bool = True  # of volumes
    tilt: Annotated[float, Field(ge=0, le=180)] = 0.0  # of volumes: out of the slices' plane, uniform in ± degrees
    shear: Annotated[float, Field(ge=0, le=1)] = 0.1  # x moves by up to ± this many pixels per pixel of y
    scale: Annotated[tuple[float, float], _FROM_LIST] = (0.8, 1.25)  # magnification, log-uniform
    scale_depth: Annotated[tuple[float, float], _FROM_LIST] = (1.0, 1.0)  # of volumes, along depth, log-uniform
    random_crop: bool = True  # at any whole-pixel position that fits; else at the centre
    translate: Annotated[float, Field(ge=0, le=1)] = 0.0
    """A further shift, uniform in ± this fraction of the crop, for images without margin."""
    gamma: Annotated[tuple[float, float], _FROM_LIST] = (1.0, 1.0)  # exponent of the image, log-uniform
    saturation: Annotated[tuple[float, float], _FROM_LIST] = (1.0, 1.0)
    """Factor on the difference of channels from their mean; with this, contrast or gain, values stay in 0 to 1."""
    contrast: Annotated[tuple[float, float], _FROM_LIST] = (1.0, 1.0)  # factor around middle grey, log-uniform
    gain: Annotated[tuple[float, float], _FROM_LIST] = (1.0, 1.0)  # factor of each channel, log-uniform
    fade: Annotated[tuple[int, int] | None, _FROM_LIST] = None
    """Iterations (or shares of all) between which elastic, tilt, shear, scale, scale_depth, translate, gamma,
    saturation, contrast and gain shrink to nothing: training ends on undistorted images. Rotation, mirroring and the
    random crop stay."""

    @model_validator(mode="after")
    def _check(self) -> "AugmentationSettings":
        for name in ("scale", "scale_depth", "gamma", "saturation", "contrast", "gain"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ValueError(f"{name}: expected two numbers, 0 < low <= high, got {low}, {high}")
        if self.fade is not None and not 0 <= self.fade[0] < self.fade[1]:
            raise ValueError(f"fade: expected two rising steps, got {self.fade[0]}, {self.fade[1]}")
        return self


class ObjectiveSettings(_Section):
    """The loss; see `GECO`, `ELBO` and `objectives/energy.py` for what each setting does."""

    kind: Literal["geco", "elbo"] = "geco"
    kappa: Annotated[float, Field(gt=0)] = 0.05
    constraint_ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.99
    lambda_gradient_scale: Annotated[float, Field(gt=0)] = 0.01
    lambda_speed: Annotated[float, Field(gt=0)] = 1.0
    lambda_max: Annotated[float, Field(gt=0)] | None = None
    beta: Annotated[float, Field(ge=0)] = 1.0
    prior_gradient_scale: Annotated[float, Field(gt=0)] = 1.0
    kl_warm_up: list[Annotated[int, Field(ge=0)]] = []  # iterations or shares of all; GECO
    energy: Annotated[float, Field(ge=0)] = 0.0  # weight of the energy distance; not in the paper
    energy_samples: Annotated[int, Field(ge=2, le=MAX_SAMPLES)] = 4
    energy_weighting: Literal["pixels", "instances"] = "pixels"
    energy_background: Annotated[float, Field(ge=0)] = 0.0
    energy_start: Annotated[int, Field(ge=0)] = 0  # iteration or share of all; samples are costly
    top_k: Fraction | Literal["all"] = 0.02
    stochastic: bool = True


class OptimiserSettings(_Section):
    """Adam, its schedule, and how a step is computed."""

    iterations: Positive
    batch_size: Annotated[int, Field(ge=1, le=2**16)]
    learning_rates: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]
    boundaries: list[Positive] | None = None
    """Iterations (or shares of all) at which the next learning rate starts; by default all have an equal share."""
    weight_decay: Annotated[float, Field(ge=0)] = 1e-5  # weight of Σ w² in the loss
    grad_clip: Annotated[float, Field(gt=0)] | None = None
    accumulation_steps: Positive = 1  # pieces of a batch, for small memories; top-k is then taken in each piece
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"  # on a GPU; latents and loss are always fp32
    compile: bool = False
    cuda_graph: bool = False
    kernels: Literal["auto", "fused", "torch"] = "auto"  # fused GPU kernels in bf16: where possible, always, never
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None  # of the averaged weights, which evaluation uses
    max_consecutive_skips: Positive = 20  # non-finite steps are skipped; after this many in a row training stops

    @model_validator(mode="after")
    def _check(self) -> "OptimiserSettings":
        if self.boundaries is not None:
            ordered = sorted(set(self.boundaries))
            if ordered != self.boundaries or len(ordered) != len(self.learning_rates) - 1:
                raise ValueError("boundaries: expected rising numbers, one fewer than learning_rates")
        if self.batch_size % self.accumulation_steps:
            raise ValueError(f"accumulation_steps: {self.accumulation_steps} do not divide {self.batch_size} images")
        return self


class LoggingSettings(_Section):
    """What a run logs, validates and saves; intervals are in iterations."""

    log_every: Positive = 50
    validate_every: Positive = 2000
    validate_images: Positive = 100  # a fixed subset, spread over the validation images
    validate_samples: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] = 16
    best: Literal["ged2", "hm_iou", "iou_rec"] = "ged2"  # metric that selects the best checkpoint
    checkpoint_every: Positive = 1000
    keep_checkpoints: Positive = 2  # the newest ones; the best one is kept too


class Settings(_Section):
    """All settings of a run."""

    format: Literal[1] = 1
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    model: ModelSettings
    data: DataSettings
    augmentation: AugmentationSettings = AugmentationSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    optimiser: OptimiserSettings
    logging: LoggingSettings = LoggingSettings()

    @model_validator(mode="after")
    def _check(self) -> "Settings":
        if len(crop := self.data.crop) != self.model.ndim:
            wanted = "two whole numbers, for instance data.crop=[128,128]"
            if self.model.ndim == 3:
                wanted = "three whole numbers with model.ndim=3, for instance data.crop=[32,128,128]"
            raise ValueError(f"data.crop: expected {wanted} (got {list(crop)})")
        if self.model.ndim == 2 and (self.augmentation.tilt or self.augmentation.scale_depth != (1, 1)):
            raise ValueError("augmentation.tilt: it and scale_depth are for volumes, with model.ndim=3")
        if len(self.objective.kl_warm_up) > len(self.model.latent_dims):
            raise ValueError("objective.kl_warm_up: has more entries than model.latent_dims")
        if self.objective.kl_warm_up and self.objective.kind == "elbo":
            raise ValueError("objective.kl_warm_up: only with objective.kind=geco")
        return self


def preset_names() -> list[str]:
    """The presets that come with the package."""
    return sorted(entry.name.removesuffix(".toml") for entry in _PRESETS.iterdir() if entry.name.endswith(".toml"))


def read_preset(name_or_path: str) -> dict[str, Any]:
    """A preset by name, or a TOML file by path, as plain data."""
    if name_or_path in preset_names():
        text = (_PRESETS / f"{name_or_path}.toml").read_text(encoding="utf-8")
    elif name_or_path.endswith(".toml"):
        try:
            if not os.path.lexists(name_or_path):
                hint = f"`hpunet init` writes one, and presets are {', '.join(preset_names())}"
                raise ConfigError(f"{name_or_path}: no such file; {hint}")
            text = read_file(Path(name_or_path), max_bytes=MAX_SETTINGS_BYTES, error=ConfigError).decode()
        except UnicodeDecodeError:
            raise ConfigError(f"{name_or_path}: cannot be read (not text in UTF-8)") from None
        if max(map(len, text.splitlines()), default=0) > MAX_LINE:
            raise ConfigError(f"{name_or_path}: has a line of more than {MAX_LINE} characters; break it")
    else:
        allowed = f"a .toml file or one of {', '.join(preset_names())}"
        raise ConfigError(f"preset {name_or_path!r} is unknown; expected {allowed}")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of very many digits, and very deep lists
        raise ConfigError(f"{name_or_path}: not TOML ({error})") from None


def load_settings(name_or_path: str, assignments: Iterable[str] = ()) -> Settings:
    """A preset or TOML file with the `a.b=value` assignments on top."""
    return check_settings(merged(read_preset(name_or_path), parse_assignments(assignments)), where=name_or_path)


def check_settings(values: Mapping[str, Any], *, where: str) -> Settings:
    """Plain data as settings, or a `ConfigError` that names the key, what was found and what is allowed."""
    try:
        return Settings.model_validate(_without_shares(values))
    except ValidationError as error:
        said = _in_words(error.errors()[:_MOST_SAID])
        more = f"; {number - _MOST_SAID} more" if (number := error.error_count()) > _MOST_SAID else ""
        raise ConfigError(f"{where}: {'; '.join(each[:300] for each in said)}{more}") from None


def _without_shares(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace shares of the iterations (numbers between 0 and 1) by iterations: 0.6 of 30,000 becomes 18,000."""
    optimiser = values.get("optimiser")
    iterations = optimiser.get("iterations") if isinstance(optimiser, Mapping) else None
    if not isinstance(iterations, int):
        return dict(values)
    whole: dict[str, Any] = {}
    keys = ("optimiser.boundaries", "augmentation.fade", "objective.kl_warm_up", "objective.energy_start")
    for group, key in (name.split(".") for name in keys):
        section = values.get(group)
        given = section.get(key) if isinstance(section, Mapping) else None
        if given is not None:
            found = _whole(given if isinstance(given, list) else [given], iterations, rising=key != "kl_warm_up")
            whole = merged(whole, {group: {key: found if isinstance(given, list) else found[0]}})
    return merged(values, whole)


def _whole(given: list[Any], iterations: int, *, rising: bool) -> list[Any]:
    """Shares as iterations; rising shares stay distinct even if there are few iterations."""
    whole: list[Any] = []
    share_before, step_before = 0.0, 0
    for n in given:
        if not (isinstance(n, float) and 0 < n < 1):
            whole.append(n)
            continue
        step = round(n * iterations)
        if rising and n > share_before:
            step = max(step, step_before + 1)
        share_before, step_before = n, step
        whole.append(step)
    return whole


EXAMPLES = {
    "data.crop": "two whole numbers, for instance data.crop=[128,128]",
    "augmentation.scale": "two numbers, for instance augmentation.scale=[0.8,1.25]",
    "augmentation.scale_depth": "two numbers, for instance augmentation.scale_depth=[0.9,1.1]",
    "augmentation.fade": "two iterations or shares of all, for instance augmentation.fade=[0.5,0.75]",
    "augmentation.gamma": "two numbers, for instance augmentation.gamma=[0.7,1.5]",
    "augmentation.saturation": "two numbers, for instance augmentation.saturation=[0.7,1.4]",
    "augmentation.contrast": "two numbers, for instance augmentation.contrast=[0.7,1.4]",
    "augmentation.gain": "two numbers, for instance augmentation.gain=[0.8,1.25]",
    "objective.kl_warm_up": "a list of iterations or shares of all, for instance objective.kl_warm_up=[0.1,0]",
    "model.channels": "a list of whole numbers, for instance model.channels=[24,48,96]",
    "model.latent_dims": "a list of whole numbers, for instance model.latent_dims=[1,1]",
    "optimiser.learning_rates": "a list of numbers, for instance optimiser.learning_rates=[1e-4,1e-5]",
    "optimiser.boundaries": "a list of iterations or shares of all, for instance optimiser.boundaries=[0.6,0.9]",
    "data.options": "options by name, for instance data.options.size=128",
}
_WORDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "literal_error": "{expected}",
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "less_than_equal": "{le} at most",
    "less_than": "less than {lt}",
    "too_long": "{max_length} entries at most",
}


def _in_words(problems: Iterable[Mapping[str, Any]]) -> list[str]:
    """One sentence per wrong setting; a value that may be of several kinds gets all of them."""
    said: list[str] = []
    wanted: dict[str, list[str]] = {}
    got: dict[str, Any] = {}
    for problem in problems:
        kind = problem["type"]
        place = _place(problem["loc"]) if kind != "extra_forbidden" else problem["loc"]
        key = ".".join(map(str, place))
        if kind == "extra_forbidden":
            said.append(f"{key}: unknown setting, expected one of {', '.join(_known_keys(place[:-1]))}")
        elif kind == "missing" and isinstance(place[-1], str):
            said.append(f"{key}: is missing")
        elif kind == "model_type":
            known = ", ".join(_known_keys(place))
            said.append(f"{key}: is a group of settings ({known}), got {_shown(problem['input'])}")
        elif kind == "value_error":  # ours, and it begins with a key of this group
            said.append(f"{key}.{problem['ctx']['error']}".lstrip("."))
        elif kind in _WORDS and problem.get("ctx", {}).get("field_type") != "Tuple":  # those have a fixed length
            wanted.setdefault(key, []).append(_WORDS[kind].format(**problem.get("ctx", {})))
            got[key] = problem["input"]
        else:
            whole = ".".join(part for part in place if isinstance(part, str))
            wanted[whole] = [EXAMPLES.get(whole, problem["msg"])]
            got[whole] = problem["input"]
    return said + [f"{key}: expected {' or '.join(words)} (got {_shown(got[key])})" for key, words in wanted.items()]


def _place(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The setting's place in the tree, without the names that pydantic adds for members of a union."""
    section: Any = Settings
    place: list[int | str] = []
    for part in loc:
        if isinstance(part, str):
            if not (isinstance(section, type) and issubclass(section, BaseModel)):
                continue
            section = section.model_fields[part].annotation if part in section.model_fields else None
        place.append(part)
    return tuple(place)


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else json.dumps(value, default=repr)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` put over it, group by group."""
    result = dict(base)
    for key, value in changes.items():
        below = result.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """['size=128', 'slices.train=[0, 16]'] as {'size': 128, 'slices': {'train': [0, 16]}}; bare words are strings."""
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            raise ConfigError(f"{assignment!r}: expected name=value, for instance size=128 or slices.train=[0,16]")
        place = settings
        for part in parts[:-1]:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{key}: {part} already has a value of its own")
        place[parts[-1]] = _value(text.strip())
    return settings


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not only TOMLDecodeError: numbers of thousands of digits
        return text


def _known_keys(place: tuple[int | str, ...]) -> list[str]:
    """Names of the settings at a place of the tree."""
    section: type[BaseModel] = Settings
    for part in place:
        found = section.model_fields[str(part)].annotation
        assert isinstance(found, type)
        assert issubclass(found, BaseModel)
        section = found
    return list(section.model_fields)
