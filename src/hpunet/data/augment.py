"""Random warps of whole batches: image, labels and validity in one pass, on the batch's device (App. C).

A warp maps each pixel q of the crop to a position p in the source, both (y, x) with pixel centres at whole numbers:

    p(q) = corner + centre + shift + 1/scale · R(angle) · Shear · Mirror · (q − centre) + elastic(q)

with `corner` the position of the unwarped crop in the source and `centre` the middle of the crop.

* Labels and validity come from the nearest source pixel, floor(p + 1/2). Where it does not exist or is invalid, the
  crop pixel is invalid and its labels are 0.
* The image is interpolated bilinearly, with positions up to half a pixel beyond the outermost pixel centres clamped
  to them; further out it is 0. Invalid source pixels keep their content. Then its colours change, pixel by pixel:
  gamma, saturation, contrast, gain.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float, Float32, Float64, Int, Int64, Shaped
from torch import Tensor

from hpunet.config.settings import AugmentationSettings
from hpunet.data.batch import Batch
from hpunet.errors import DataError
from hpunet.utils.keyed_random import Stream, keyed_normal, keyed_uniform

CONTROL_POINTS = 5  # of elastic deformation, per axis; the outermost at the crop's outermost pixel centres
Size = tuple[int, ...]
Step = int | Int[Tensor, ""]

_OFF: dict[str, Any] = {"elastic": 0.0, "rotation": 0.0, "shear": 0.0, "scale": (1.0, 1.0), "random_crop": False}
NO_AUGMENTATION = AugmentationSettings(**_OFF, mirror_up_down=False, mirror_left_right=False)
"""The centre crop alone, as in evaluation."""


@dataclass(frozen=True)
class Warp:
    """One warp per image of a batch.

    `affine` maps (y, x, 1) of the crop to (y, x) of the source. Elastic deformation adds `displacement`, in source
    pixels at the control points, with natural cubic splines in between. `gamma` is the exponent of the image; the
    other factors act around the mean of a pixel's channels, around 1/2, and on each channel, and keep within 0 to 1.
    """

    affine: Float64[Tensor, "b 2 3"]
    displacement: Float64[Tensor, "b 2 5 5"] | None = None
    gamma: Float32[Tensor, " b"] | None = None
    saturation: Float32[Tensor, " b"] | None = None
    contrast: Float32[Tensor, " b"] | None = None
    gain: Float32[Tensor, "b c"] | None = None


def draw_warp(
    settings: AugmentationSettings,
    *,
    seed: int,
    step: Step,
    index: Int[Tensor, " b"],
    source_size: Size,
    crop_size: Size,
    channels: int = 1,
) -> Warp:
    """The warps of the images `index` at training step `step`, from sources to crops of (height, width).

    Each depends only on its (seed, step, index). `channels` are the image's, for `gain`. A source smaller than the
    crop lands at any position inside it.
    """
    uniform = keyed_uniform(seed=seed, step=step, index=index, stream=Stream.WARP, count=10).double()
    angle, scale, shear, flip_y, flip_x, corner_y, corner_x, shift_y, shift_x, gamma = uniform.unbind(1)

    strength: float | Tensor = 1.0  # of the operations that fade, down to 0
    if settings.fade is not None:
        first, last = settings.fade
        strength = ((last - torch.as_tensor(step)).double() / (last - first)).clamp(0, 1)
    angle = math.radians(settings.rotation) * (2 * angle - 1)
    shrink = 1 / _log_uniform(settings.scale, scale, strength=strength)
    cos, sin = shrink * angle.cos(), shrink * angle.sin()
    shear = strength * settings.shear * (2 * shear - 1)
    mirror_y = torch.where(flip_y < 0.5, -1.0, 1.0) if settings.mirror_up_down else torch.ones_like(flip_y)
    mirror_x = torch.where(flip_x < 0.5, -1.0, 1.0) if settings.mirror_left_right else torch.ones_like(flip_x)
    # Rotation times shear, whose matrix in (y, x) is [[1, 0], [shear, 1]], times mirroring.
    row_y = ((cos + sin * shear) * mirror_y, sin * mirror_x)
    row_x = ((cos * shear - sin) * mirror_y, cos * mirror_x)

    centre_y, centre_x = ((side - 1) / 2 for side in crop_size)
    rows = []
    for axis, (row, corner, shift) in enumerate(((row_y, corner_y, shift_y), (row_x, corner_x, shift_x))):
        source, crop = source_size[axis], crop_size[axis]
        margin, lowest = abs(source - crop), min(0, source - crop)
        start = lowest + ((margin + 1) * corner).floor() if settings.random_crop else lowest + margin // 2
        middle = start + (crop - 1) / 2 + strength * settings.translate * crop * (2 * shift - 1)
        rows.append(torch.stack([*row, middle - row[0] * centre_y - row[1] * centre_x], dim=1))
    displacement = exponent = None
    if settings.elastic:
        sigma, n = strength * settings.elastic, CONTROL_POINTS
        normal = keyed_normal(seed=seed, step=step, index=index, stream=Stream.ELASTIC, count=2 * n**2).double()
        parts = zip(crop_size, normal.view(-1, 2, n, n).unbind(1), strict=True)
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
    return Warp(affine=torch.stack(rows, dim=1), displacement=displacement, gamma=exponent, **factors)


@torch.no_grad()
def apply_warp(batch: Batch, warp: Warp, *, crop_size: Size) -> Batch:
    """Warp a batch into crops of (height, width). The identity leaves every bit unchanged."""
    b, _, source_h, source_w = batch.image.shape
    if warp.affine.shape[0] != b:
        raise DataError(f"warp: made for {warp.affine.shape[0]} images, the batch has {b}")
    for name, planes in (("labels", batch.labels), ("valid", batch.valid)):
        if planes.shape[0] != b or planes.shape[-2:] != batch.image.shape[-2:]:
            shapes = f"{tuple(planes.shape)} do not fit the image of {tuple(batch.image.shape)}"
            raise DataError(f"batch: {name} of shape {shapes}")
    y, x = _source_positions(warp, crop_size=crop_size)
    image = _bilinear(batch.image, y=y, x=x)
    nearest_y, nearest_x = y.add_(0.5).floor_().int(), x.add_(0.5).floor_().int()
    inside_y, inside_x = nearest_y.clamp(0, source_h - 1), nearest_x.clamp(0, source_w - 1)
    exists = (nearest_y == inside_y).logical_and_(nearest_x == inside_x)
    pixel = inside_y.mul_(source_w).add_(inside_x).long()
    valid = _gather(batch.valid.unsqueeze(1), pixel).squeeze(1).logical_and_(exists)
    labels = _gather(batch.labels, pixel).mul_(valid.unsqueeze(1))
    image = _recolour(image, warp).mul_(exists.unsqueeze(1))
    return Batch(image=image.to(batch.image.dtype), labels=labels, valid=valid, graders=batch.graders)


def augment(
    batch: Batch, *, settings: AugmentationSettings, crop_size: Size, seed: int, step: Step, index: Int[Tensor, " b"]
) -> Batch:
    """A random warp of each image of the batch; `index` are the numbers of the images in their set (`draw_warp`)."""
    (h, w), index = batch.image.shape[2:], index.to(batch.image.device)
    how: dict[str, Any] = {"source_size": (h, w), "crop_size": crop_size, "channels": batch.image.shape[1]}
    return apply_warp(batch, draw_warp(settings, seed=seed, step=step, index=index, **how), crop_size=crop_size)


def _recolour(image: Float[Tensor, "b c y x"], warp: Warp) -> Float[Tensor, "b c y x"]:
    """The image with its colours changed; factors of 1 change no bit."""
    gamma, saturation, contrast, gain = (
        None if factor is None else factor.view(len(image), -1, 1, 1).to(image.dtype)
        for factor in (warp.gamma, warp.saturation, warp.contrast, warp.gain)
    )
    if gamma is not None:
        image = torch.where(gamma == 1, image, image.pow(gamma))
    if saturation is not None:
        image = image.mean(dim=1, keepdim=True).lerp(image, saturation)
    if contrast is not None:
        image = image.new_full((), 0.5).lerp(image, contrast)
    if gain is not None:
        image = image * gain
    return image if saturation is contrast is gain is None else image.clamp(0, 1)


def _log_uniform(
    bounds: tuple[float, float], uniform: Float64[Tensor, " *shape"], *, strength: float | Tensor
) -> Float64[Tensor, " *shape"]:
    """Log-uniform in `bounds`, contracted towards 1 by `strength`."""
    low, high = map(math.log, bounds)
    return (strength * low + strength * (high - low) * uniform).exp()


@lru_cache(maxsize=32)
def _axis_basis(side: int, device: torch.device) -> Float64[Tensor, "side 7"]:
    """Along one axis, at every pixel: the control points' splines, then the pixel's position, then 1."""
    from scipy.interpolate import CubicSpline  # imported late: it takes a second, and sampling does not need it

    position = torch.arange(side, dtype=torch.float64)
    spline = CubicSpline(range(CONTROL_POINTS), torch.eye(CONTROL_POINTS).numpy(), bc_type="natural")
    weights = torch.from_numpy(spline(position.numpy() * ((CONTROL_POINTS - 1) / max(side - 1, 1))))
    return torch.cat([weights, position.unsqueeze(1), torch.ones(side, 1, dtype=torch.float64)], dim=1).to(device)


def _source_positions(warp: Warp, *, crop_size: Size) -> tuple[Float32[Tensor, "b h w"], Float32[Tensor, "b h w"]]:
    """The source position (y, x) of each crop pixel.

    Affine map and splines are one bilinear form, rows-basis · coefficients · columns-basis, several times faster than
    upsampling the control grid. float64 keeps whole-pixel maps exact, and autocast and TF32 leave it alone.
    """
    affine, n = warp.affine.transpose(0, 1), CONTROL_POINTS  # axis first, so that y and x are contiguous
    coefficients = affine.new_zeros(*affine.shape[:2], n + 2, n + 2)
    coefficients[:, :, n, n + 1] = affine[:, :, 0]
    coefficients[:, :, n + 1, n] = affine[:, :, 1]
    coefficients[:, :, n + 1, n + 1] = affine[:, :, 2]
    if warp.displacement is not None:
        coefficients[:, :, :n, :n] = warp.displacement.transpose(0, 1)
    rows, columns = (_axis_basis(side, affine.device) for side in crop_size)
    y, x = (rows @ coefficients @ columns.T).float()
    return y, x


def _gather(
    planes: Shaped[Tensor, "b n h w"], pixel: Int64[Tensor, "b y x"], *, offset: int = 0
) -> Shaped[Tensor, "b n y x"]:
    """The pixels with these flat indices, plus `offset`, of each plane."""
    flat = planes.flatten(2)[:, :, offset:]
    numbers = pixel.flatten(1).unsqueeze(1).expand(-1, flat.shape[1], -1)
    if flat.is_cuda:
        out = flat.gather(2, numbers)
    else:
        # Image by image from a copy, which stays in the cache: twice as fast as gathering from memory.
        out = flat.new_empty(numbers.shape)
        for source, picked, target in zip(flat, numbers, out, strict=True):
            torch.gather(source.clone(), 1, picked, out=target)
    return out.view(*flat.shape[:2], *pixel.shape[1:])


def _bilinear(
    image: Float[Tensor, "b c h w"], *, y: Float32[Tensor, "b y x"], x: Float32[Tensor, "b y x"]
) -> Float[Tensor, "b c y x"]:
    """The image at positions (y, x), clamped to its outermost pixel centres; at least float32."""
    # grid_sample is faster, but its normalised coordinates miss whole pixels: the identity would change the image.
    h, w = image.shape[2:]
    y, x = y.clamp(0, h - 1), x.clamp(0, w - 1)
    # The upper left of the four taps; on the last row (column) the one before, at weight 1, where lerp is exact.
    top, left = y.floor().clamp_(max=max(h - 2, 0)), x.floor().clamp_(max=max(w - 2, 0))
    work = torch.promote_types(image.dtype, torch.float32)
    down, right = y.sub_(top).unsqueeze(1).to(work), x.sub_(left).unsqueeze(1).to(work)
    pixel = top.int().mul_(w).add_(left.int()).long()
    below, beside = w if h > 1 else 0, 1 if w > 1 else 0

    def taps(offset: int) -> Tensor:
        return _gather(image, pixel, offset=offset).to(work)

    upper, lower = taps(0).lerp_(taps(beside), right), taps(below).lerp_(taps(below + beside), right)
    return upper.lerp_(lower, down)
