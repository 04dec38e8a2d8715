"""The tensors of a batch, as packs yield them and augmentation warps them."""

from dataclasses import dataclass

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
