"""The typed tree of settings of a run, its presets, and `a.b=value` assignments from the command line.

A preset is a TOML file in `presets/`; `--set a.b=c` changes single settings. Unknown keys, wrong types and impossible
combinations are errors that name the key. Modules never see this tree: they are given plain arguments.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hpunet.errors import ConfigError

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]
_FROM_LIST = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)  # TOML has lists only


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ModelSettings(_Section):
    """Which network. The image's channels and the classes come from the data."""

    kind: Literal["hpu", "punet"] = "hpu"
    channels: list[Positive]
    latent_dims: list[Annotated[int, Field(ge=0)]]
    """Latent channels a scale, coarsest first; the Probabilistic U-Net has one entry."""
    blocks_per_scale: Positive = 3
    """Residual blocks (hpu)."""
    activation_checkpointing: bool = False
    orientations: Literal[1, 2, 4, 8] = 1
    """Number of image orientations to sample from: mirrored (2), also upside down (4), also rotated by 90° (8)."""

    @model_validator(mode="after")
    def _check(self) -> "ModelSettings":
        if self.kind == "punet" and len(self.latent_dims) != 1:
            raise ValueError("latent_dims: the Probabilistic U-Net has exactly one latent scale")
        return self


class DataSettings(_Section):
    """What is trained on. Where it lies is said by --data."""

    crop: Annotated[tuple[Positive, Positive], _FROM_LIST]
    """Height and width that the network sees."""
    options: dict[str, Any] = {}
    """Options of the data's kind, as for `hpunet data`."""
    extrapolate: bool = False
    """Hide a part of every image; the prior sees the rest and its labels."""
    num_workers: Annotated[int, Field(ge=0)] = 0
    """Processes that read ahead when the data do not fit on the GPU."""


class AugmentationSettings(_Section):
    """Ranges of the random warps. The paper names the operations, the ranges are ours; 0, False or (1, 1): off."""

    elastic: Annotated[float, Field(ge=0, le=1)] = 0.04
    """Standard deviation of the control points' displacement, as a fraction of the crop's height (y), width (x)."""
    rotation: Annotated[float, Field(ge=0, le=180)] = 180.0
    """Angles are uniform in ± this many degrees; 10 for street scenes."""
    mirror_up_down: bool = True
    """With probability 1/2; not for street scenes."""
    mirror_left_right: bool = True
    shear: Annotated[float, Field(ge=0, le=1)] = 0.1
    """x moves by up to ± this many pixels per pixel of y."""
    scale: Annotated[tuple[float, float], _FROM_LIST] = (0.8, 1.25)
    """Range of the magnification, log-uniform; above 1 enlarges."""
    random_crop: bool = True
    """Crop at any whole-pixel position that fits; else at the centre."""
    translate: Annotated[float, Field(ge=0, le=1)] = 0.0
    """A further shift, uniform in ± this fraction of the crop, for images without margin."""
    gamma: Annotated[tuple[float, float], _FROM_LIST] = (1.0, 1.0)
    """Range of the exponent applied to the image, log-uniform; (0.7, 1.5) for street scenes."""
    fade: Annotated[tuple[int, int] | None, _FROM_LIST] = None
    """Iterations (or shares of all) between which elastic, shear, scale, translate and gamma shrink to nothing, so
    that training ends on undistorted images; rotation, mirroring and the random crop stay."""

    @model_validator(mode="after")
    def _check(self) -> "AugmentationSettings":
        for name, (low, high) in {"scale": self.scale, "gamma": self.gamma}.items():
            if not 0 < low <= high:
                raise ValueError(f"{name}: expected two numbers, 0 < low <= high, got {low}, {high}")
        if self.fade is not None and not 0 <= self.fade[0] < self.fade[1]:
            raise ValueError(f"fade: expected two rising steps, got {self.fade[0]}, {self.fade[1]}")
        return self


class ObjectiveSettings(_Section):
    """What is minimised."""

    kind: Literal["geco", "elbo"] = "geco"
    kappa: Annotated[float, Field(gt=0)] = 0.05
    """GECO: cross-entropy that a kept pixel may have."""
    constraint_ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.99
    lambda_gradient_scale: Annotated[float, Field(gt=0)] = 0.01
    lambda_speed: Annotated[float, Field(gt=0)] = 1.0
    """GECO: how many times as fast as in the authors' code λ moves."""
    lambda_max: Annotated[float, Field(gt=0)] | None = None
    """GECO: what λ may rise to; by default, as in the authors' code, there is no bound."""
    beta: Annotated[float, Field(ge=0)] = 1.0
    """ELBO: weight of the KL."""
    prior_gradient_scale: Annotated[float, Field(gt=0)] = 1.0
    """How many times as strongly as in the plain KL the prior is moved towards the posterior."""
    kl_warm_up: list[Annotated[int, Field(ge=0)]] = []
    """GECO: iterations (or shares of all) over which a scale's KL comes to count in full, coarsest scale first."""
    energy: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the energy distance between samples and all graders' maps in the loss; not in the paper."""
    energy_samples: Annotated[int, Field(ge=2)] = 4
    """Samples an image that it is taken of."""
    energy_weighting: Literal["pixels", "instances"] = "pixels"
    """Of instances: what counts alike, each pixel as in the Rand error, or each instance, however large, as in AP."""
    energy_background: Annotated[float, Field(ge=0)] = 0.0
    """Of instances: what all background pixels together weigh for each unit that all pixels of instances do."""
    energy_start: Annotated[int, Field(ge=0)] = 0
    """Iteration (or share of all) at which it begins: samples are costly."""
    top_k: Fraction | Literal["all"] = 0.02
    """Share of the pixels that count, the hardest ones; "all" for every valid pixel."""
    stochastic: bool = True
    """Draw the hardest pixels (Gumbel) rather than take them strictly."""


class OptimiserSettings(_Section):
    """Adam, and how long."""

    iterations: Positive
    batch_size: Positive
    learning_rates: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]
    """One after the other, each for an equal share of the iterations, or from `boundaries` on."""
    boundaries: list[Positive] | None = None
    """Iterations (or shares of all) at which the next learning rate starts, one fewer than learning rates."""
    weight_decay: Annotated[float, Field(ge=0)] = 1e-5
    """Weight of Σ w² in the loss."""
    grad_clip: Annotated[float, Field(gt=0)] | None = None
    """Gradients are scaled down to this norm; by default they are not."""
    accumulation_steps: Positive = 1
    """Pieces that a batch is worked off in, for small memories; top-k is then taken in each piece."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """On a GPU; latents and objective are fp32 always."""
    compile: bool = False
    cuda_graph: bool = False
    kernels: Literal["auto", "fused", "torch"] = "auto"
    """Fused GPU kernels, in bf16: wherever they can be used, always (or an error), never."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay of the averaged weights that evaluation then uses."""
    max_consecutive_skips: Positive = 20
    """Steps with non-finite loss or gradients are skipped; after so many in a row training stops."""

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
    """What a run says and keeps while it goes on; all numbers are iterations unless said otherwise."""

    log_every: Positive = 50
    validate_every: Positive = 2000
    validate_images: Positive = 100
    """A fixed subset of the validation images, spread over it."""
    validate_samples: Positive = 16
    best: Literal["ged2", "hm_iou", "iou_rec"] = "ged2"
    """The metric that decides which checkpoint is kept as the best."""
    checkpoint_every: Positive = 1000
    keep_checkpoints: Positive = 2
    """Checkpoints kept, the newest ones; the best one is kept besides."""


class Settings(_Section):
    """All of a run."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    model: ModelSettings
    data: DataSettings
    augmentation: AugmentationSettings = AugmentationSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    optimiser: OptimiserSettings
    logging: LoggingSettings = LoggingSettings()

    @model_validator(mode="after")
    def _check(self) -> "Settings":
        if len(self.objective.kl_warm_up) > len(self.model.latent_dims):
            raise ValueError("objective.kl_warm_up: has more entries than model.latent_dims")
        if self.objective.kl_warm_up and self.objective.kind == "elbo":
            raise ValueError("objective.kl_warm_up: only with objective.kind=geco")
        return self


def preset_names() -> list[str]:
    """The presets that come with the package."""
    names = (entry.name for entry in (resources.files("hpunet.config") / "presets").iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def read_preset(name_or_path: str) -> dict[str, Any]:
    """A preset by name, or a TOML file by path, as plain data."""
    if name_or_path in preset_names():
        text = (resources.files("hpunet.config") / "presets" / f"{name_or_path}.toml").read_text(encoding="utf-8")
    elif name_or_path.endswith(".toml"):
        try:
            text = Path(name_or_path).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(
                f"{name_or_path}: no such file; `hpunet init` writes one, and presets are {', '.join(preset_names())}"
            ) from None
        except OSError as error:
            raise ConfigError(f"{name_or_path}: cannot be read ({error.strerror or error})") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{name_or_path}: cannot be read (not text in UTF-8)") from None
    else:
        raise ConfigError(
            f"preset {name_or_path!r} is unknown; expected a .toml file or one of {', '.join(preset_names())}"
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name_or_path}: not TOML ({error})") from None


def load_settings(name_or_path: str, assignments: Iterable[str] = ()) -> Settings:
    """A preset or TOML file with the `a.b=value` assignments on top."""
    return check_settings(merged(read_preset(name_or_path), parse_assignments(assignments)), where=name_or_path)


def check_settings(values: Mapping[str, Any], *, where: str) -> Settings:
    """Plain data as settings, or a `ConfigError` that names the key, what was found and what is allowed."""
    try:
        return Settings.model_validate(_without_shares(values))
    except ValidationError as error:
        problems = _in_words(error.errors())
        raise ConfigError(f"{where}: " + "; ".join(problem[:300] for problem in problems)) from None


_ITERATIONS = (
    ("optimiser", "boundaries"),
    ("augmentation", "fade"),
    ("objective", "kl_warm_up"),
    ("objective", "energy_start"),
)


def _without_shares(values: Mapping[str, Any]) -> dict[str, Any]:
    """Where iterations are named, numbers between 0 and 1 are shares of all: 0.6 of 30,000 becomes 18,000."""
    optimiser = values.get("optimiser")
    iterations = optimiser.get("iterations") if isinstance(optimiser, Mapping) else None
    if not isinstance(iterations, int):
        return dict(values)
    whole: dict[str, Any] = {}
    for group, key in _ITERATIONS:
        section = values.get(group)
        given = section.get(key) if isinstance(section, Mapping) else None
        if isinstance(given, list):
            found: Any = _whole(given, iterations, rising=key != "kl_warm_up")
        else:
            found = _whole([given], iterations, rising=False)[0]
        if given is not None:
            whole = merged(whole, {group: {key: found}})
    return merged(values, whole)


def _whole(given: list[Any], iterations: int, *, rising: bool) -> list[Any]:
    """Shares of all iterations as iterations; ones that rise still do where iterations are few."""
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
    "augmentation.fade": "two iterations or shares of all, for instance augmentation.fade=[0.5,0.75]",
    "augmentation.gamma": "two numbers, for instance augmentation.gamma=[0.7,1.5]",
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
}


def _in_words(problems: Iterable[Mapping[str, Any]]) -> list[str]:
    """What is wrong with settings, a setting each; of a value that could be one of several things, all of them."""
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
            said.append(f"{key}.{problem['ctx']['error']}")
        elif kind in _WORDS:
            wanted.setdefault(key, []).append(_WORDS[kind].format(**problem.get("ctx", {})))
            got[key] = problem["input"]
        else:
            whole = ".".join(part for part in place if isinstance(part, str))
            wanted[whole] = [EXAMPLES.get(whole, problem["msg"])]
            got[whole] = problem["input"]
    return said + [f"{key}: expected {' or '.join(words)} (got {_shown(got[key])})" for key, words in wanted.items()]


def _place(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Where a problem lies, without the names that pydantic gives to the kinds that a value could have been."""
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
    except tomllib.TOMLDecodeError:
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
