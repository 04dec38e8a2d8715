"""What ELBO and GECO share: the terms of a loss, and the forward pass that computes reconstruction and KL.

With several processes, terms have the value of the whole batch, so all processes notice a loss that is not finite.
Their gradient is the process's own share times the number of processes: the mean over processes is the whole batch's.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hpunet.errors import ConfigError
from hpunet.models.base import TrainingOutput
from hpunet.models.gaussian import Gaussian, kl_divergence
from hpunet.models.gradients import global_mean, scale_gradient
from hpunet.objectives.cross_entropy import Reconstruction
from hpunet.utils.distributed import world_size


@dataclass(frozen=True)
class Terms:
    """The parts of a training loss; all but `loss` are detached, for logging."""

    loss: Float[Tensor, ""]
    rec: Float[Tensor, ""]  # cross-entropy summed over the kept pixels, divided by the batch size
    kl: Float[Tensor, " scales"]
    num_kept: Int[Tensor, ""]  # pixels of the batch that rec counts
    batch_size: int
    constraint: Float[Tensor, ""] | None = None  # GECO: moving average of rec minus what κ allows
    lambda_: Float[Tensor, ""] | None = None
    energy: Float[Tensor, ""] | None = None  # without its weight

    @property
    def rec_per_pixel(self) -> Float[Tensor, ""]:
        """Mean cross-entropy of the kept pixels of this batch: the number to compare with κ."""
        return self.rec * self.batch_size / self.num_kept.clamp(min=1)


def divergence(output: TrainingOutput, *, prior_gradient_scale: float) -> Float[Tensor, " scales"]:
    """KL of each scale; its gradient with respect to the prior is multiplied by a factor."""
    scale = prior_gradient_scale
    if scale == 1:
        return output.kl
    priors = [Gaussian(scale_gradient(p.mean, scale), scale_gradient(p.log_sigma, scale)) for p in output.prior]
    pairs = zip(output.posterior, priors, strict=True)
    return torch.stack([kl_divergence(posterior=q, prior=p).mean() for q, p in pairs])


class Objective(nn.Module, ABC):
    """Reconstruction and KL; subclasses combine them into a loss."""

    def __init__(self, *, prior_gradient_scale: float, top_k: float | None, stochastic: bool) -> None:
        super().__init__()
        if not prior_gradient_scale > 0:
            raise ConfigError(f"expected prior_gradient_scale > 0, got {prior_gradient_scale}")
        self.prior_gradient_scale = prior_gradient_scale
        self.reconstruction = Reconstruction(top_k=top_k, stochastic=stochastic)

    def forward(
        self,
        output: TrainingOutput,
        *,
        labels: Int[Tensor, " b *s"],
        valid: Bool[Tensor, " b *s"] | None = None,
        uniform: Float[Tensor, " b *s"] | None = None,
    ) -> Terms:
        """The loss of a batch and its parts."""
        rec, num_kept = self.reconstruction(logits=output.logits, labels=labels, valid=valid, uniform=uniform)
        kl = global_mean(divergence(output, prior_gradient_scale=self.prior_gradient_scale))
        batch_size = labels.shape[0] * world_size()
        combined = self.combine(rec=rec, kl=kl, num_kept=num_kept, batch_size=batch_size)
        return Terms(rec=rec.detach(), kl=kl.detach(), num_kept=num_kept, batch_size=batch_size, **combined)

    @abstractmethod
    def combine(
        self, *, rec: Float[Tensor, ""], kl: Float[Tensor, " scales"], num_kept: Int[Tensor, ""], batch_size: int
    ) -> dict[str, Tensor]:
        """`loss`, and further `Terms` to log."""
