"""The reconstruction term: masked cross-entropy and its hardest pixels.

Nothing is read back from the device and shapes depend only on the input's: a training step can be a CUDA graph.
"""

from collections.abc import Callable
from math import floor

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hpunet.errors import ConfigError, DataError
from hpunet.models.gaussian import at_least_float32
from hpunet.models.gradients import global_mean
from hpunet.utils.distributed import all_gather, all_reduce, rank, world_size


def masked_cross_entropy(
    *, logits: Float[Tensor, "b k *s"], labels: Int[Tensor, " b *s"], valid: Bool[Tensor, " b *s"] | None = None
) -> Float[Tensor, " b *s"]:
    """Cross-entropy of every pixel in float32 or wider; exactly 0 (and without gradient) where `valid` is false."""
    with torch.autocast(logits.device.type, enabled=False):
        ce = F.cross_entropy(at_least_float32(logits), labels.long(), reduction="none")
        return ce if valid is None else torch.where(valid, ce, 0.0)


def gumbel_from_uniform(uniform: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Standard Gumbel noise from multiples of 2^-24 in [0, 1), shifted by half a step so that it is finite."""
    exponential = -(uniform + 2.0**-25).log()
    return -exponential.clamp(min=2.0**-25).log()  # the largest uniform number would be rounded up to 1


def gumbel_noise(like: Float[Tensor, "*shape"], generator: torch.Generator | None = None) -> Float[Tensor, "*shape"]:
    """Standard Gumbel noise of a tensor's shape; finite by construction."""
    return gumbel_from_uniform(torch.empty_like(like).uniform_(generator=generator))


def num_top_k(fraction: float, num_pixels: int) -> int:
    """⌊fraction · pixels⌋."""
    # The small addition corrects products like 0.29 · 100 that fall just short of the whole number.
    return min(floor(fraction * num_pixels + 1e-6), num_pixels)


def top_k_pixels(
    ce: Float[Tensor, " b *s"],
    *,
    fraction: float,
    valid: Bool[Tensor, " b *s"] | None = None,
    noise: Float[Tensor, " b *s"] | None = None,
) -> Bool[Tensor, " b *s"]:
    """Mask of the k hardest valid pixels of the whole batch, k = ⌊fraction · all pixels, also invalid ones⌋.

    With Gumbel `noise` pixels are drawn without replacement, with probabilities proportional to their cross-entropy.
    """
    # log of the smallest positive number instead of −∞: a valid pixel with ce = 0 stays ahead of invalid ones.
    scores = ce.detach().clamp(min=torch.finfo(ce.dtype).tiny).log()
    if noise is not None:
        scores = scores + noise
    if valid is not None:
        scores = scores.masked_fill(~valid, -torch.inf)
    scores = all_gather(scores.flatten())
    chosen = scores.topk(num_top_k(fraction, scores.numel()), sorted=False).indices
    kept = torch.zeros(scores.numel(), dtype=torch.bool, device=ce.device).index_fill_(0, chosen, True)
    kept = kept.view(-1, *ce.shape)[rank()]
    return kept if valid is None else kept & valid


Kernel = Callable[..., tuple[Float[Tensor, ""], Int[Tensor, ""]]]
"""Signature as `reconstruction` of `kernels/triton_loss.py`."""


class Reconstruction(nn.Module):
    """Cross-entropy summed over the kept pixels, divided by the batch size.

    `top_k` is the fraction to keep (Sec. 2), None for all valid ones; with `stochastic` they are drawn (Gumbel).
    `kernel` computes float32 logits of a single process, if it is set.
    """

    def __init__(self, *, top_k: float | None = 0.02, stochastic: bool = True) -> None:
        super().__init__()
        if top_k is not None and not 0 < top_k <= 1:
            raise ConfigError(f"top_k: expected a fraction of the pixels in (0, 1] or None, got {top_k}")
        self.top_k, self.stochastic = top_k, stochastic
        self.kernel: Kernel | None = None

    def forward(
        self,
        *,
        logits: Float[Tensor, "b k *s"],
        labels: Int[Tensor, " b *s"],
        valid: Bool[Tensor, " b *s"] | None = None,
        uniform: Float[Tensor, " b *s"] | None = None,
    ) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        """The term (see `global_mean`) and the number of pixels it counts; Gumbel noise is made of `uniform`."""
        b, _, *size = logits.shape
        for name, tensor in (("labels", labels), ("valid", valid)):
            if tensor is not None and tuple(tensor.shape) != (b, *size):
                raise DataError(f"{name}: expected shape {(b, *size)} to match the logits, got {tuple(tensor.shape)}")
        drawn = self.top_k is not None and self.stochastic
        if self.kernel is not None and logits.dtype == torch.float32 and world_size() == 1:
            if drawn and uniform is None:
                uniform = torch.rand(b, *size, device=logits.device)
            k = None if self.top_k is None else num_top_k(self.top_k, labels.numel())
            return self.kernel(logits, labels=labels, valid=valid, uniform=uniform if drawn else None, k=k)
        ce = masked_cross_entropy(logits=logits, labels=labels, valid=valid)
        if self.top_k is None:
            kept = torch.ones_like(ce, dtype=torch.bool) if valid is None else valid
        else:
            noise = None
            if drawn:
                noise = gumbel_noise(ce) if uniform is None else gumbel_from_uniform(uniform)
            kept = top_k_pixels(ce, fraction=self.top_k, valid=valid, noise=noise)
        own = torch.where(kept, ce, 0.0).sum() / b
        return global_mean(own), all_reduce(kept.sum())
