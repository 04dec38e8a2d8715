"""Edits of a `Prediction`: hypotheses redrawn in part, put together from others, or moved along a latent.

What is not edited keeps its latents bit for bit. Decoding is as in drawing, so finer scales, which keep their values,
are seen in the light of the coarser ones that changed.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from hpunet.errors import ConfigError, DataError
from hpunet.models.gaussian import Gaussian
from hpunet.predict.crop import Number
from hpunet.predict.draw import encode_image, parse_scales, sample_image
from hpunet.sampling.edit import cells_under, prior_of, turned
from hpunet.sampling.orientations import undo_orientation
from hpunet.sampling.sample import LatentSource
from hpunet.sampling.tiling import Padding

if TYPE_CHECKING:
    from hpunet.predict.prediction import Prediction

Where = np.ndarray | Sequence[Number]
"""A part of an image: a map of what is in it, a point (x, y), or a box (x0, y0, x1, y1) without its last pixels.

In volumes these are of all slices; a point (x, y, z) and a box (x0, y0, z0, x1, y1, z1) are not.
"""

MAX_NUDGE = 100.0
"""In prior σ; 1 to 3 are useful."""


def pick(prediction: "Prediction", samples: Sequence[int]) -> "Prediction":
    """Only these samples, in this order; a number may be there several times."""
    count = len(prediction.samples)
    if not samples or any(not 0 <= number < count for number in samples):
        raise ConfigError(f"samples: expected numbers from 0 to {count - 1}, got {list(samples)}")
    latents = [scale[:, list(samples)] for scale in prediction.latents]
    ids = prediction.orientation_ids
    options = replace(prediction.options, num_samples=len(samples))
    return _each_part(
        replace(prediction, options=options),
        lambda part, z: _drawn(
            part, [s[z : z + 1] for s in latents], None if ids is None else ids[z : z + 1, samples]
        ),
    )


def redraw(
    prediction: "Prediction", *, scales: str | Sequence[int] | None, region: Where | None, seed: int | None,
    temperature: float | Sequence[float] | None,
) -> "Prediction":  # fmt: skip
    """See `Prediction.redraw`."""
    _check_latents(prediction)
    options = replace(prediction.options, seed=prediction.options.seed + 1 if seed is None else seed)
    if temperature is not None:
        options = replace(options, temperature=temperature)
    mask = None if region is None else _mask(region, prediction)
    chosen = _chosen_scales(prediction, scales, mask)
    if not chosen:
        return _each_part(prediction, lambda part, _: _drawn(part, part.latents, part.orientation_ids))
    numbers = ", ".join(map(str, chosen))
    where = "" if mask is None else f", under {_counted(mask)},"
    note = f"Scales {numbers}{where} are redrawn with seed {options.seed}; the others are kept."

    def change(part: "Prediction", z: int) -> "Prediction":
        latents: list[LatentSource] = list(part.latents)
        cells = None if mask is None else _cells(part, _of_part(mask, part, z))
        for i in chosen:
            if cells is None:
                latents[i] = "sample"
            else:
                latents[i] = part.latents[i].masked_fill(cells[i], torch.nan)
        return replace(
            _drawn(replace(part, options=options), latents, part.orientation_ids), notes=(*part.notes, note)
        )

    return _each_part(prediction, change)


def combine(
    prediction: "Prediction", other: "Prediction", *, region: Where, scales: str | Sequence[int] | None
) -> "Prediction":
    """See `Prediction.combine`."""
    _check_latents(prediction)
    _check_latents(other)
    count = len(prediction.samples)
    one, two = ((each.origin.run, each.origin.iteration) for each in (prediction, other))
    inputs = ((each.image, each.image if each.cond is None else each.cond) for each in (prediction, other))
    if one != two or not all(map(np.array_equal, *inputs)):
        raise DataError("combine: expected hypotheses of the same image by the same model")
    if len(other.samples) == 1:
        other = pick(other, [0] * count)
    if len(other.samples) != count:
        raise DataError(f"combine: expected 1 or {count} hypotheses, got {len(other.samples)}; choose with pick")
    mask = _mask(region, prediction)
    chosen = _chosen_scales(prediction, scales, mask)
    note = f"Under {_counted(mask)}, scales {', '.join(map(str, chosen))} are those of another hypothesis."
    parts = other.parts

    def change(part: "Prediction", z: int) -> "Prediction":
        cells, latents = _cells(part, _of_part(mask, part, z)), list(part.latents)
        theirs = turned([scale[0] for scale in parts[z].latents], _ids(parts[z]), _ids(part))
        for i in chosen:
            latents[i] = torch.where(cells[i], theirs[i], latents[i])
        return replace(_drawn(part, latents, part.orientation_ids), notes=(*part.notes, note))

    return _each_part(prediction, change)


def nudge(
    prediction: "Prediction", *, scale: int, at: Sequence[Number], by: Number, channel: int, slice: int
) -> "Prediction":
    """See `Prediction.nudge`."""
    _check_latents(prediction)
    if not 0 <= scale < len(prediction.latents) or not 0 <= channel < prediction.latents[scale].shape[2]:
        counts = ", ".join(f"{each.shape[2]} at scale {i}" for i, each in enumerate(prediction.latents))
        raise ConfigError(f"scale, channel: expected one of the model's latents ({counts}), got {scale}, {channel}")
    if not abs(by) <= MAX_NUDGE:
        raise ConfigError(f"by: expected -{MAX_NUDGE:g} to {MAX_NUDGE:g} prior σ, got {by}")
    if len(at) != 2:
        raise ConfigError(f"at: expected a point (x, y), got {at!r}")
    depth = len(prediction.mean) if prediction.axes == "zyx" else 1
    if not 0 <= slice < depth:
        raise ConfigError(f"slice: expected 0 to {depth - 1}, got {slice}")
    place = (*at, slice) if prediction.info.ndim == 3 else tuple(at)
    mask = _mask(place, prediction)
    note = f"Scale {scale}, channel {channel} at {', '.join(f'{each:g}' for each in place)} is moved by {by:g} σ."

    def change(part: "Prediction", z: int) -> "Prediction":
        if part.axes == "yx" and z != slice:
            return part
        part = with_features(part)
        sigma = part.prior[scale].sigma
        latents, cell = list(part.latents), _cells(part, _of_part(mask, part, z))[scale]
        moved = latents[scale].clone()
        moved[0, :, channel] += (by * sigma * cell)[:, channel]
        latents[scale] = moved
        return replace(_drawn(part, latents, part.orientation_ids), notes=(*part.notes, note))

    return _each_part(prediction, change)


def with_features(part: "Prediction") -> "Prediction":
    """A slice that remembers what the encoder gives."""
    how: dict[str, Any] = {"image": part.image, "cond": part.cond, "tile": part.options.tile, "name": part.name}
    return part if part.features is not None else replace(part, features=encode_image(part.trained, **how))


def prior(part: "Prediction") -> list[Gaussian]:
    """See `Prediction.prior`."""
    features = with_features(part).features
    assert features is not None
    return prior_of(features, [each[0] for each in part.latents], _ids(part))


def prior_maps(part: "Prediction") -> list[np.ndarray]:
    """σ of the prior of a slice's first sample at each scale: for every pixel that of its cell, over channels."""
    padding = Padding.of(*part.mean.shape, multiples=part.trained.model.size_multiples)
    size, orientation = padding.size, int(_ids(part)[0])
    found = []
    for gaussian in with_features(part).prior:
        upright = undo_orientation(gaussian.sigma[:1].mean(dim=1, keepdim=True), orientation)
        values = F.interpolate(upright, size=size)[0, 0][padding.inside].numpy()
        found.append(np.nan_to_num(values))  # NaN where a scale has no latents
    return found


def _each_part(prediction: "Prediction", change: Callable[["Prediction", int], "Prediction"]) -> "Prediction":
    from hpunet.predict.prediction import stack_slices

    parts = [change(part, z) for z, part in enumerate(prediction.parts)]
    return stack_slices(parts, name=prediction.name) if prediction.is_stack else parts[0]


def _drawn(part: "Prediction", latents: Sequence[LatentSource], orientation_ids: Tensor | None) -> "Prediction":
    """The slice as its latents decode."""
    how: dict[str, Any] = {"image": part.image, "options": part.options, "name": part.name, "features": part.features}
    found = sample_image(part.trained, latents=latents, orientation_ids=orientation_ids, cond=part.cond, **how)
    return replace(part, **found.maps(), calibrated=None)


def _ids(part: "Prediction") -> Tensor:
    ids = part.orientation_ids
    return torch.zeros(len(part.samples), dtype=torch.long) if ids is None else ids[0]


def _cells(part: "Prediction", mask: Bool[np.ndarray, "*s"]) -> list[Tensor]:
    padding = Padding.of(*mask.shape, multiples=part.trained.model.size_multiples)
    padded = torch.zeros(padding.size, dtype=torch.bool)
    padded[padding.inside] = torch.from_numpy(mask)
    return cells_under(padded, _ids(part), latents=[scale[0] for scale in part.latents])


def _counted(mask: np.ndarray) -> str:
    return f"{int(mask.sum()):,} {'pixels' if mask.ndim == 2 else 'voxels'}"


def _of_part(mask: np.ndarray, part: "Prediction", z: int) -> np.ndarray:
    """The mask of the z-th part: of a slice, or of the volume."""
    if part.axes == "zyx":
        return np.array(np.broadcast_to(mask, part.mean.shape))
    return mask[z] if mask.ndim == 3 else mask


def _mask(region: Where, prediction: "Prediction") -> Bool[np.ndarray, "*z h w"]:
    """The region as a map of the slices, or as one map for all of them."""
    shape = prediction.mean.shape
    if isinstance(region, np.ndarray) and region.ndim > 1:
        if region.shape not in (shape, shape[-2:]):
            raise DataError(f"region: expected a map of {'×'.join(map(str, shape))}, got shape {region.shape}")
        mask = region.astype(bool)
    else:
        mask = _box(region, shape=shape)
    if not mask.any():
        raise DataError("region: is empty; mark at least one pixel")
    return mask


def _box(region: Where, *, shape: tuple[int, ...]) -> Bool[np.ndarray, "*z h w"]:
    """The map of a point or box."""
    numbers = [float(each) for each in region]
    num_axes = {2: 2, 4: 2, 3: 3, 6: 3}.get(len(numbers), 0)
    if not 2 <= num_axes <= len(shape):
        more = ", a point (x, y, z) or a box (x0, y0, z0, x1, y1, z1)" if len(shape) == 3 else ""
        words = f"expected a map, a point (x, y) or a box (x0, y0, x1, y1){more}"
        raise ConfigError(f"region: {words}, got {region!r}")
    low = numbers[:num_axes] if len(numbers) > num_axes else [float(np.floor(each)) for each in numbers]
    high = numbers[num_axes:] or [each + 1 for each in low]
    size = shape[-num_axes:]
    if not all(0 <= start < end <= side for start, end, side in zip(low, high, size[::-1], strict=True)):
        its = "×".join(map(str, size[::-1]))
        raise DataError(f"region: expected pixels of the {its} image, got {', '.join(f'{n:g}' for n in numbers)}")
    mask = np.zeros(size, dtype=bool)
    mask[tuple(slice(int(a), int(np.ceil(b))) for a, b in zip(low[::-1], high[::-1], strict=True))] = True
    return mask


def _chosen_scales(
    prediction: "Prediction", scales: str | Sequence[int] | None, mask: Bool[np.ndarray, "*z h w"] | None
) -> list[int]:
    dims = prediction.trained.model.latent_dims
    if scales is not None:
        return [i for i, each in enumerate(parse_scales(scales, latent_dims=dims)) if each == "sample" and dims[i]]
    own = [i for i, count in enumerate(dims) if count]
    return own if mask is None else [i for i in own if i == own[-1] or _fits(prediction, i, mask)]


def _fits(prediction: "Prediction", scale: int, mask: Bool[np.ndarray, "*z h w"]) -> bool:
    """Whether the cells of a scale are at most twice as large as the region."""
    longer = max(int(np.ptp(places)) + 1 for places in np.nonzero(mask)[-2:])
    cell = max(mask.shape[-2:]) / max(prediction.latents[scale].shape[-2:])
    return bool(cell <= 2 * longer)


def _check_latents(prediction: "Prediction") -> None:
    expected, got = len(prediction.trained.model.latent_dims), len(prediction.latents)
    if got != expected:
        raise DataError(f"latents: expected one tensor per scale, {expected}, got {got}")
