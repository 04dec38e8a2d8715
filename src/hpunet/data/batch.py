"""The tensors of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

FIELDS = ("image", "labels", "valid", "graders")


class Window(NamedTuple):
    """Where a batch lies in its images if only a part of each was read; beyond an image it is padded."""

    corner: Int[Tensor, "b n"]
    """Positions in the images of the batch's first pixels, per axis."""
    size: Int[Tensor, "b n"]
    """Sizes of the whole images."""


@dataclass(frozen=True)
class Batch:
    """Images or volumes, the label maps of every grader, validity, and which graders exist per image.

    A missing grader is not an empty map. Pixels with `valid` false are padding or ignored; their labels are 0.
    """

    image: Float[Tensor, "b c *s"]
    labels: Int[Tensor, "b r *s"]
    valid: Bool[Tensor, " b *s"]
    graders: Bool[Tensor, "b r"]
    window: Window | None = None  # whole images

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device."""
        tensors: dict[str, Any] = {name: getattr(self, name).to(device) for name in FIELDS}
        window = None if self.window is None else Window(*(value.to(device) for value in self.window))
        return Batch(**tensors, window=window)

    @classmethod
    def cat(cls, batches: Sequence["Batch"]) -> "Batch":
        """Several batches of whole images of one size as one."""
        tensors: dict[str, Any] = {name: torch.cat([getattr(b, name) for b in batches]) for name in FIELDS}
        return cls(**tensors)
