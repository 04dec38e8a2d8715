"""The tensors of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Images or volumes, the label maps of every grader, validity, and which graders exist per image.

    A missing grader is not an empty map. Pixels with `valid` false are padding or ignored; their labels are 0.
    """

    image: Float[Tensor, "b c *s"]
    labels: Int[Tensor, "b r *s"]
    valid: Bool[Tensor, " b *s"]
    graders: Bool[Tensor, "b r"]

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device."""
        return Batch(**{name: value.to(device) for name, value in vars(self).items()})

    @classmethod
    def cat(cls, batches: Sequence["Batch"]) -> "Batch":
        """Several batches of one image size as one."""
        return cls(**{name: torch.cat([getattr(b, name) for b in batches]) for name in cls.__dataclass_fields__})
