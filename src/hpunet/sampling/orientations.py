"""The eight orientations of an image (flips and the transpose), which models can sample hypotheses from."""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from hpunet.errors import ConfigError
from hpunet.models.base import SegmentationModel, check_model_image


def orient(maps: Shaped[Tensor, "*n h w"], orientation: int) -> Shaped[Tensor, "*n y x"]:
    """Bit 0 of `orientation` flips left and right, bit 1 flips up and down, then bit 2 transposes."""
    axes = [axis for axis, bit in ((-1, 1), (-2, 2)) if orientation & bit]
    maps = maps.flip(axes) if axes else maps
    return maps.transpose(-2, -1) if orientation & 4 else maps


def undo_orientation(maps: Shaped[Tensor, "*n y x"], orientation: int) -> Shaped[Tensor, "*n h w"]:
    """The inverse of `orient`."""
    return orient(maps.transpose(-2, -1) if orientation & 4 else maps, orientation & 3)


def undo_orientations(
    maps: Float[Tensor, "n k h w"], orientation_ids: Int[Tensor, " n"], *, count: int
) -> Float[Tensor, "n k h w"]:
    """`undo_orientation` for each map, with ids below `count`."""
    out = torch.empty_like(maps)
    for orientation in range(count):
        these = (orientation_ids == orientation).nonzero().squeeze(1)
        out[these] = undo_orientation(maps[these], orientation)
    return out


def num_orientations(model: SegmentationModel, *, height: int, width: int) -> int:
    """`model.orientations`, or at most 4 if the image is not square (no transpose)."""
    if model.orientations not in (1, 2, 4, 8):
        raise ConfigError(f"orientations: expected 1, 2, 4 or 8, got {model.orientations}")
    return model.orientations if height == width else min(model.orientations, 4)


def encode_orientations(
    model: SegmentationModel, *, image: Float[Tensor, "b c h w"], cond: Float[Tensor, "b e h w"] | None = None
) -> list[Tensor]:
    """The model's features for `sample`: image by image, one entry per orientation."""
    if model.orientations == 1:
        return model.encode(image=image, cond=cond)
    check_model_image(model, image)  # before it is flipped: an error has the caller's shape, and counts pixels once
    ids = range(num_orientations(model, height=image.shape[2], width=image.shape[3]))

    def oriented(maps: Tensor) -> Tensor:
        return torch.stack([orient(maps, i) for i in ids], dim=1).flatten(0, 1)

    return model.encode(image=oriented(image), cond=None if cond is None else oriented(cond))
