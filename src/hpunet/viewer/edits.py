"""Edits of one hypothesis in latent space, as the page asks for them."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from jaxtyping import UInt8
from pydantic import BaseModel, ConfigDict, Field

from hpunet.errors import DataError
from hpunet.viewer.events import MAX_RUNS, MapState

if TYPE_CHECKING:  # torch is imported by the model's thread
    from hpunet.predict.prediction import Prediction

MAX_SAMPLES = 64
SPREAD_SAMPLES = 16
_Index = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
_Seed = Annotated[int, Field(strict=True, ge=0, lt=2**32)]
_Scale = Annotated[int, Field(strict=True, ge=0, lt=64)]
_Scales = Annotated[list[_Scale], Field(max_length=64)]
_Coordinate = Annotated[float, Field(allow_inf_nan=False)]
_Point = tuple[_Coordinate, _Coordinate]
Runs = Annotated[list[tuple[_Index, _Index]], Field(max_length=MAX_RUNS)]
"""Pixels of the whole slice: start and length."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Sample(_Strict):
    """One of the samples that a request for samples gives."""

    num_samples: Annotated[int, Field(strict=True, ge=1, le=MAX_SAMPLES)] = 16
    seed: _Seed = 0
    sample: Annotated[int, Field(strict=True, ge=0, lt=MAX_SAMPLES)] = 0


class Hypothesis(_Strict):
    """A hypothesis: one of samples, or the state of an edited one."""

    drawn: Sample | None = None
    state: MapState | None = None


class Keep(_Strict):
    """Leaves the hypothesis as it is."""

    kind: Literal["keep"] = "keep"


class Redraw(_Strict):
    """Redraws scales, under a region if there is one; temperature 0 is the mean."""

    kind: Literal["redraw"]
    seed: _Seed
    scales: _Scales | None = None
    region: Runs | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0


class Nudge(_Strict):
    """Moves a latent by so many prior σ."""

    kind: Literal["nudge"]
    scale: _Scale
    at: _Point
    by: Annotated[float, Field(ge=-100, le=100)]
    channel: _Index = 0


class Combine(_Strict):
    """Takes the latents under a region from another hypothesis."""

    kind: Literal["combine"]
    other: Hypothesis
    region: Runs
    scales: _Scales | None = None


Action = Annotated[Keep | Redraw | Nudge | Combine, Field(discriminator="kind")]


class EditWanted(_Strict):
    """What to do with which hypothesis of a slice, or of the crop around a point."""

    slice: _Index = 0
    at: _Point | None = None
    start: Hypothesis = Hypothesis()
    action: Action = Keep()


class ScaleMapWanted(_Strict):
    """A map of what a scale is about: the prior's σ, the spread of its draws alone, or the effect of one latent."""

    slice: _Index = 0
    at: _Point | None = None
    start: Hypothesis = Hypothesis()
    scale: _Scale = 0
    kind: Literal["sigma", "spread", "effect"] = "spread"
    point: _Point = (0.0, 0.0)
    """Of the latent, for its effect."""
    channel: _Index = 0


def edited(base: "Prediction", action: Any, *, other: "Prediction | None") -> "Prediction":
    """The hypothesis after the action, whose points and regions are those of the whole slice."""
    match action:
        case Redraw():
            region = None if action.region is None else _inside(base, action.region)
            how: dict[str, Any] = {"scales": action.scales, "seed": action.seed, "temperature": action.temperature}
            return base.redraw(region=region, **how)
        case Nudge():
            at = _point_inside(base, action.at)
            return base.nudge(scale=action.scale, at=at, by=action.by, channel=action.channel)
        case Combine():
            assert other is not None
            return base.combine(other, region=_inside(base, action.region), scales=action.scales)
    return base


def scale_map(base: "Prediction", wanted: ScaleMapWanted) -> tuple[UInt8[np.ndarray, "h w"], float]:
    """A map, and the number that 255 stands for."""
    from hpunet.predict.edit import prior_maps

    if wanted.kind == "spread":
        values = base.pick(*[0] * SPREAD_SAMPLES).redraw(scales=[wanted.scale], seed=0).std
    elif wanted.kind == "effect":
        how: dict[str, Any] = {"scale": wanted.scale, "at": _point_inside(base, wanted.point)}
        up, down = (base.nudge(by=by, channel=wanted.channel, **how).mean for by in (1.0, -1.0))
        values = np.abs(up - down)
    else:
        maps = prior_maps(base)
        if wanted.scale >= len(maps):
            raise DataError(f"scale: expected below {len(maps)}, got {wanted.scale}")
        values = maps[wanted.scale]
    most = float(values.max())
    return np.rint(values * (255 / most if most > 0 else 0)).astype(np.uint8), most


def _inside(base: "Prediction", runs: list[tuple[int, int]]) -> np.ndarray:
    """The region as a map of what was sampled."""
    _, height, width = base.place.shape
    whole = np.zeros(height * width, dtype=bool)
    for start, length in runs:
        if start + length > len(whole):
            raise DataError("region: has pixels outside of the image")
        whole[start : start + length] = True
    _, y, x = base.place.offset
    h, w = base.mean.shape
    return whole.reshape(height, width)[y : y + h, x : x + w]


def _point_inside(base: "Prediction", point: tuple[float, float]) -> tuple[float, float]:
    """The point as seen from the corner of what was sampled."""
    _, y, x = base.place.offset
    h, w = base.mean.shape
    found = point[0] - x, point[1] - y
    if not (0 <= found[0] < w and 0 <= found[1] < h):
        raise DataError("at: is outside of the part of the image that was sampled")
    return found
