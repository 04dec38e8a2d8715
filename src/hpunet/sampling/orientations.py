"""The eight orientations of an image (flips and the transpose), which models can sample hypotheses from.

Volumes have the same, in the plane of their slices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from hpunet.errors import ConfigError
from hpunet.models.base import SegmentationModel, check_model_image
from hpunet.models.blocks import is_channels_last
from hpunet.models.cpu_sampler import on_cpu


def orient(maps: Shaped[Tensor, "*n h w"], orientation: int) -> Shaped[Tensor, "*n y x"]:
    """Bit 0 of `orientation` flips left and right, bit 1 flips up and down, then bit 2 transposes."""
    axes = [axis for axis, bit in ((-1, 1), (-2, 2)) if orientation & bit]
    maps = maps.flip(axes) if axes else maps
    return maps.transpose(-2, -1) if orientation & 4 else maps


def undo_orientation(maps: Shaped[Tensor, "*n y x"], orientation: int) -> Shaped[Tensor, "*n h w"]:
    """The inverse of `orient`."""
    return orient(maps.transpose(-2, -1) if orientation & 4 else maps, orientation & 3)


def undo_orientations(
    maps: Float[Tensor, "n k *s"], orientation_ids: Int[Tensor, " n"], *, count: int
) -> Float[Tensor, "n k *s"]:
    """`undo_orientation` for each map, with ids below `count`."""
    out = torch.empty_like(maps)
    for orientation in range(count):
        these = (orientation_ids == orientation).nonzero().squeeze(1)
        out[these] = undo_orientation(maps[these], orientation)
    return out


def num_orientations(model: SegmentationModel, *, size: Sequence[int]) -> int:
    """`model.orientations`, or at most 4 if the image or a latent scale is not square (no transpose)."""
    if model.orientations not in (1, 2, 4, 8):
        raise ConfigError(f"orientations: expected 1, 2, 4 or 8, got {model.orientations}")
    is_square = all(shape[-2] == shape[-1] for shape in (size, *model.latent_shapes(*size)))
    return model.orientations if is_square else min(model.orientations, 4)


PIXELS_ENCODED_AT_ONCE = 2**23
"""Pixels of all images and orientations that are encoded at once; of larger ones, orientation by orientation."""
PIXELS_ENCODED_AT_ONCE_CPU = 2**21


def encoded_together(model: SegmentationModel, image: Float[Tensor, "b c *s"]) -> bool:
    """Whether all orientations are, or the images are so large that each is encoded when it is needed."""
    b, _, *size = image.shape
    limit = PIXELS_ENCODED_AT_ONCE_CPU if image.device.type == "cpu" else PIXELS_ENCODED_AT_ONCE
    return model.orientations == 1 or b * num_orientations(model, size=size) * prod(size) <= limit


@dataclass
class Features:
    """What all hypotheses of a batch of images share, for each of `count` orientations."""

    model: SegmentationModel
    image: Float[Tensor, "b c *s"]
    cond: Float[Tensor, "b e *s"] | None
    count: int
    together: list[Tensor] | None = None
    """Image by image, one entry per orientation; None for large images, of which one orientation is kept."""
    names: Sequence[str] = ()
    """Of the images, for errors."""
    _latest: tuple[int, list[Tensor]] | None = field(default=None, repr=False)

    @torch.no_grad()
    def of(self, orientation: int) -> list[Tensor]:
        """One entry per image."""
        if self.together is not None:
            entries = torch.arange(orientation, len(self.together[0]), self.count, device=self.image.device)
            return [select(f, entries) for f in self.together]
        if self._latest is None or self._latest[0] != orientation:
            self._latest = None  # frees the memory for the next one
            cond = None if self.cond is None else orient(self.cond, orientation)
            self._latest = orientation, self.model.encode(image=orient(self.image, orientation), cond=cond)
        return self._latest[1]


@torch.no_grad()
def encode_orientations(
    model: SegmentationModel,
    *,
    image: Float[Tensor, "b c *s"],
    cond: Float[Tensor, "b e *s"] | None = None,
    names: Sequence[str] = (),
) -> Features:
    """The model's features for `sample` and `reconstruct`; those of large images are computed when needed.

    `names` name the images in errors.
    """
    model = on_cpu(model)
    if model.orientations == 1:
        return Features(model, image, cond, 1, model.encode(image=image, cond=cond), names)
    check_model_image(model, image)  # before it is flipped: an error has the caller's shape, and counts pixels once
    count = num_orientations(model, size=image.shape[2:])
    if not encoded_together(model, image):
        return Features(model, image, cond, count, names=names)

    def oriented(maps: Tensor) -> Tensor:
        return torch.stack([orient(maps, i) for i in range(count)], dim=1).flatten(0, 1)

    together = model.encode(image=oriented(image), cond=None if cond is None else oriented(cond))
    return Features(model, image, cond, count, together, names)


def select(features: Tensor, entries: Tensor) -> Tensor:
    """These entries, in the features' memory format (`index_select` alone returns NCHW)."""
    if not is_channels_last(features):
        return features.index_select(0, entries)
    return features.movedim(1, -1).index_select(0, entries).movedim(-1, 1)
