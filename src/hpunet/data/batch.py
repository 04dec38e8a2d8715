"""The tensors of a batch, as packs yield them and augmentation warps them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """What data yields and augmentation warps.

    `labels` holds every grader's map; `graders` says which of them exist for an image (a missing grader is not
    an empty map). Pixels where `valid` is false are padding or ignored: their labels are 0 and never count.
    """

    image: Float[Tensor, "b c h w"]
    labels: Int[Tensor, "b r h w"]
    valid: Bool[Tensor, "b h w"]
    graders: Bool[Tensor, "b r"]

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device."""
        return Batch(**{name: value.to(device) for name, value in vars(self).items()})

    @classmethod
    def cat(cls, batches: Sequence["Batch"]) -> "Batch":
        """Several batches of one image size as one."""
        return cls(**{name: torch.cat([getattr(b, name) for b in batches]) for name in cls.__dataclass_fields__})
