"""Random warps: drawn from settings, and the positions in the source that they map a crop to (App. C).

A warp maps each pixel q of the crop to a position p in the source, both (y, x) with pixel centres at whole numbers:

    p(q) = corner + centre + shift + 1/scale · R(angle) · Shear · Mirror · (q − centre) + elastic(q)

with `corner` the position of the unwarped crop in the source and `centre` the middle of the crop. Of volumes it does
so in the plane of the slices; along depth it mirrors and divides by a scale of its own. Then the linear part is
tilted out of the plane, as a rotation in mm, and `elastic` moves along all three axes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float, Float32, Float64, Int, Int64
from torch import Tensor

from hpunet.config.settings import AugmentationSettings
from hpunet.utils.keyed_random import Stream, keyed_normal, keyed_uniform

CONTROL_POINTS = 5  # of elastic deformation, per axis; the outermost at the crop's outermost pixel centres
Size = tuple[int, ...]
Sides = Sequence[Any]  # per axis, a whole number or a tensor (b)
Step = int | Int[Tensor, ""]

_OFF: dict[str, Any] = {"elastic": 0.0, "rotation": 0.0, "shear": 0.0, "scale": (1.0, 1.0), "random_crop": False}
_OFF |= dict.fromkeys(("mirror_up_down", "mirror_left_right", "mirror_front_back"), False)
NO_AUGMENTATION = AugmentationSettings(**_OFF)
"""The centre crop alone, as in evaluation."""


@dataclass(frozen=True)
class Warp:
    """One warp per image of a batch, along n axes: (y, x) or (z, y, x).

    `affine` maps the crop's position and a 1 to the source's. Elastic deformation adds `displacement`, in source
    pixels at the control points, with natural cubic splines in between. `gamma` is the exponent of the image; the
    other factors act around the mean of a pixel's channels, around 1/2, and on each channel, and keep within 0 to 1.
    """

    affine: Float64[Tensor, "b n _"]
    displacement: Float64[Tensor, "b n *p"] | None = None
    gamma: Float32[Tensor, " b"] | None = None
    saturation: Float32[Tensor, " b"] | None = None
    contrast: Float32[Tensor, " b"] | None = None
    gain: Float32[Tensor, "b c"] | None = None
    depth_share: float = 1.0
    """The part of the control points' extent along depth that the crop covers, in the middle."""
    keeps_slices: bool = False
    """Every slice of the crop shows one slice of the source: depth is not interpolated."""


def draw_warp(
    settings: AugmentationSettings,
    *,
    seed: int,
    step: Step,
    index: Int[Tensor, " b"],
    source_size: Sides,
    crop_size: Size,
    channels: int = 1,
    spacing: Sequence[float] | None = None,
) -> Warp:
    """The warps of the images `index` at training step `step`, from sources to crops of (depth,) height and width.

    Each depends only on its (seed, step, index). `channels` are the image's, for `gain`. A source smaller than the
    crop lands at any position inside it. The `spacing` of volumes is 1 along all axes if it is not known.
    """
    is_volume = len(crop_size) == 3
    count = 16 if is_volume else 10
    uniform = keyed_uniform(seed=seed, step=step, index=index, stream=Stream.WARP, count=count).double()
    angle, scale, shear, flip_y, flip_x, corner_y, corner_x, shift_y, shift_x, gamma, *depth = uniform.unbind(1)

    strength: float | Tensor = 1.0  # of the operations that fade, down to 0
    if settings.fade is not None:
        first, last = settings.fade
        strength = ((last - torch.as_tensor(step)).double() / (last - first)).clamp(0, 1)
    angle = math.radians(settings.rotation) * (2 * angle - 1)
    shrink = 1 / _log_uniform(settings.scale, scale, strength=strength)
    cos, sin = shrink * angle.cos(), shrink * angle.sin()
    shear = strength * settings.shear * (2 * shear - 1)
    mirror_y, mirror_x = _mirror(flip_y, settings.mirror_up_down), _mirror(flip_x, settings.mirror_left_right)
    # Rotation times shear, whose matrix in (y, x) is [[1, 0], [shear, 1]], times mirroring.
    linear = [
        [(cos + sin * shear) * mirror_y, sin * mirror_x],
        [(cos * shear - sin) * mirror_y, cos * mirror_x],
    ]
    places = [(corner_y, shift_y), (corner_x, shift_x)]
    if is_volume:
        flip_z, corner_z, shift_z, scale_z, tilt, direction = depth
        magnified, zero = _log_uniform(settings.scale_depth, scale_z, strength=strength), torch.zeros_like(scale_z)
        row_z = _mirror(flip_z, settings.mirror_front_back) / magnified
        linear = [[row_z, zero, zero], *([zero, *row] for row in linear)]
        if settings.tilt:
            tilt = strength * math.radians(settings.tilt) * (2 * tilt - 1)
            turn = _tilt(tilt, 2 * math.pi * direction, spacing=spacing or (1.0, 1.0, 1.0))
            tilted = _as_matrix(turn) @ _as_matrix(linear)
            linear = [list(row.unbind(1)) for row in tilted.unbind(1)]
        places = [(corner_z, shift_z), *places]

    rows = []
    for row, (corner, shift), source, crop in zip(linear, places, source_size, crop_size, strict=True):
        margin = abs(source - crop)
        lowest = (source - crop - margin) // 2  # 0, or how far the crop may lie before a smaller source
        start = lowest + ((margin + 1) * corner).floor() if settings.random_crop else lowest + margin // 2
        offset = start + (crop - 1) / 2 + strength * settings.translate * crop * (2 * shift - 1)
        for coefficient, side in zip(row, crop_size, strict=True):
            offset = offset - coefficient * ((side - 1) / 2)
        rows.append(torch.stack([*row, offset], dim=1))
    displacement = exponent = None
    if settings.elastic:
        sigma, shape = strength * settings.elastic, (len(crop_size), *[CONTROL_POINTS] * len(crop_size))
        key: dict[str, Any] = {"seed": seed, "step": step, "index": index, "stream": Stream.ELASTIC}
        normal = keyed_normal(**key, count=math.prod(shape)).double().unflatten(1, shape)
        parts = zip(crop_size, normal.unbind(1), strict=True)
        displacement = torch.stack([sigma * side * part for side, part in parts], dim=1)
    if settings.gamma != (1, 1):
        exponent = _log_uniform(settings.gamma, gamma, strength=strength).float()
    factors: dict[str, Tensor] = {}
    bounds = {"saturation": settings.saturation, "contrast": settings.contrast, "gain": settings.gain}
    if any(pair != (1, 1) for pair in bounds.values()):
        colour = keyed_uniform(seed=seed, step=step, index=index, stream=Stream.COLOUR, count=2 + channels).double()
        numbers = colour[:, 0], colour[:, 1], colour[:, 2:]
        for (name, pair), uniform in zip(bounds.items(), numbers, strict=True):
            if pair != (1, 1):
                factors[name] = _log_uniform(pair, uniform, strength=strength).float()
    moves_depth = settings.elastic or settings.tilt or settings.translate or settings.scale_depth != (1, 1)
    return Warp(
        affine=torch.stack(rows, dim=1),
        displacement=displacement,
        gamma=exponent,
        **factors,
        depth_share=_depth_share(crop_size, spacing) if is_volume else 1.0,
        keeps_slices=is_volume and not moves_depth,
    )


def source_positions(warp: Warp, *, crop_size: Size, rows: slice) -> list[Float32[Tensor, " b *s"]]:
    """The source position along each axis of some rows' pixels.

    Affine map and splines are one multilinear form, coefficients contracted with each axis' basis: several times
    faster than upsampling the control grid. float64 keeps whole-pixel maps exact; autocast and TF32 leave it alone.
    """
    bases = _bases(warp, crop_size=crop_size)
    bases[0], coefficients = bases[0][rows], _coefficients(warp)
    if len(bases) == 3:
        coefficients = torch.einsum("zk,nbkij->nbzij", bases[0], coefficients)
    return list((bases[-2] @ coefficients @ bases[-1].T).float().unbind(0))


@torch.no_grad()
def needed(warp: Warp, *, crop_size: Size) -> tuple[Int64[Tensor, "b n"], Int64[Tensor, "b n"]]:
    """The first and the last source pixel along each axis that the warp may look at, also outside of the source.

    Exact along all axes but the last, along which elastic deformation is bounded by the splines' largest sum.
    """
    *lead, last = _bases(warp, crop_size=crop_size)
    rows = _coefficients(warp)
    for basis in lead:  # each contraction moves an axis to the end
        rows = torch.tensordot(rows, basis, dims=([2], [1]))
    rows = rows.movedim(2, -1).flatten(2, -2)  # axis, image, rows of the crop, last axis' coefficients
    controls, slope, offset = rows[..., :-2], rows[..., -2] * (crop_size[-1] - 1), rows[..., -1]
    lowest, highest = controls.amin(-1), controls.amax(-1)
    # The splines add up to 1, so they keep within this range but for what their absolute values exceed 1 by.
    beyond = (last[:, :-2].abs().sum(1).max() - 1) / 2 * (highest - lowest)
    low = (offset + slope.clamp(max=0) + lowest - beyond).amin(2)
    high = (offset + slope.clamp(min=0) + highest + beyond).amax(2)
    # One more on either side: another device may round a position differently.
    return (low.floor() - 1).long().T.contiguous(), (high.floor() + 2).long().T.contiguous()


def _as_matrix(rows: Sequence[Sequence[Tensor]]) -> Float64[Tensor, "b n n"]:
    return torch.stack([torch.stack(list(row), dim=1) for row in rows], dim=1)


def _mirror(uniform: Float64[Tensor, " b"], switched_on: bool) -> Float[Tensor, " b"]:
    """1, or with probability 1/2 −1 if it is switched on."""
    return torch.where(uniform < 0.5, -1.0, 1.0) if switched_on else torch.ones_like(uniform)


def _tilt(
    angle: Float64[Tensor, " b"], direction: Float64[Tensor, " b"], *, spacing: Sequence[float]
) -> list[list[Tensor]]:
    """A rotation of (z, y, x) in mm around the axis of this direction in the slices' plane, as a map of voxels."""
    cos, sin, y, x = angle.cos(), angle.sin(), direction.cos(), direction.sin()
    rows = [
        [cos, -sin * x, sin * y],
        [sin * x, cos + (1 - cos) * y * y, (1 - cos) * y * x],
        [-sin * y, (1 - cos) * y * x, cos + (1 - cos) * x * x],
    ]
    return [
        [value * (to / own) for value, to in zip(row, spacing, strict=True)]
        for row, own in zip(rows, spacing, strict=True)
    ]


def _depth_share(crop_size: Size, spacing: Sequence[float] | None) -> float:
    """The control points are as far apart along depth as in the plane, in mm: a few slices move nearly together."""
    depth, *plane = (side * step for side, step in zip(crop_size, spacing or (1.0, 1.0, 1.0), strict=True))
    return min(1.0, depth / max(plane))


def _log_uniform(
    bounds: tuple[float, float], uniform: Float64[Tensor, " *shape"], *, strength: float | Tensor
) -> Float64[Tensor, " *shape"]:
    """Log-uniform in `bounds`, contracted towards 1 by `strength`."""
    low, high = map(math.log, bounds)
    return (strength * low + strength * (high - low) * uniform).exp()


@lru_cache(maxsize=32)
def _axis_basis(side: int, device: torch.device, share: float = 1.0) -> Float64[Tensor, "side 7"]:
    """Along one axis, at every pixel: the control points' splines, then the pixel's position, then 1.

    The pixels cover this share of the control points' extent.
    """
    from scipy.interpolate import CubicSpline  # imported late: it takes a second, and sampling does not need it

    position, last = torch.arange(side, dtype=torch.float64), CONTROL_POINTS - 1
    spline = CubicSpline(range(CONTROL_POINTS), torch.eye(CONTROL_POINTS).numpy(), bc_type="natural")
    place = (1 - share) * last / 2 + position.numpy() * (share * (last / max(side - 1, 1)))
    weights = torch.from_numpy(spline(place))
    return torch.cat([weights, position.unsqueeze(1), torch.ones(side, 1, dtype=torch.float64)], dim=1).to(device)


def _bases(warp: Warp, *, crop_size: Size) -> list[Float64[Tensor, "_ 7"]]:
    """The basis of each axis; only depth may have fewer control points."""
    device, shares = warp.affine.device, [1.0] * len(crop_size)
    shares[0] = warp.depth_share
    return [_axis_basis(side, device, share) for side, share in zip(crop_size, shares, strict=True)]


def _coefficients(warp: Warp) -> Float64[Tensor, "n b *k"]:
    """The warp in products of the axes' bases; the source's axis first, so that positions along it are contiguous."""
    affine, n = warp.affine.transpose(0, 1), CONTROL_POINTS
    ndim = affine.shape[0]
    coefficients = affine.new_zeros(*affine.shape[:2], *[n + 2] * ndim)
    for axis in range(ndim + 1):  # products of one position and ones; only ones
        place: list[Any] = [n if other == axis else n + 1 for other in range(ndim)]
        coefficients[:, :, *place] = affine[:, :, axis]
    if warp.displacement is not None:
        place = [slice(n)] * ndim
        coefficients[:, :, *place] = warp.displacement.transpose(0, 1)
    return coefficients
