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
    times: Float[Tensor, "b d"] | None = None  # of series, years from the first image to each; also in a window

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device."""
        tensors: dict[str, Any] = {name: getattr(self, name).to(device) for name in FIELDS}
        window = None if self.window is None else Window(*(value.to(device) for value in self.window))
        times = None if self.times is None else self.times.to(device)
        return Batch(**tensors, window=window, times=times)

    @classmethod
    def cat(cls, batches: Sequence["Batch"]) -> "Batch":
        """Several batches of whole images of one size as one."""
        tensors: dict[str, Any] = {name: torch.cat([getattr(b, name) for b in batches]) for name in FIELDS}
        times = [batch.times for batch in batches if batch.times is not None]
        return cls(**tensors, times=torch.cat(times) if times else None)
