"""GECO: the KL is minimised under a constraint on the reconstruction."""

from collections.abc import Callable, Sequence
from math import inf

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from hpunet.errors import ConfigError
from hpunet.models.gradients import clamp_with_inward_gradient, scale_gradient, straight_through
from hpunet.objectives.base import Objective

Kernel = Callable[..., tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, ""]]]
"""Signature as `penalty` of `kernels/triton_geco.py`."""


class GECO(Objective):
    """λ · (EMA(rec) − κ · kept pixels per image) + Σ KL (Eq. 6).

    λ = softplus(w)²; the network's optimiser also trains w, by gradient ascent: λ rises while the reconstruction is
    worse than κ and falls when it is better. The constraint's value is a moving average; its gradient is that of the
    current batch. Train `w` without weight decay (see `parameter_groups`). `kernel` computes the first term in
    float32, if it is set.

    Args:
        kappa: target cross-entropy of a kept pixel.
        constraint_ema_decay: decay of the moving average, which starts at the first value.
        lambda_gradient_scale: factor on the gradient of w. Under Adam it has almost no effect.
        lambda_speed: factor on the trained parameter, so on λ's speed under Adam; 1 in the authors' code.
        lambda_max: upper bound of λ, which harms samples while κ is out of reach; the authors have none.
        prior_gradient_scale: factor on the KL's gradient with respect to the prior; 1 in the paper.
        kl_warm_up: per scale, coarsest first, the updates over which the weight of its KL rises from 0 to 1, so that
            the posterior uses a coarse scale before finer ones learn its part; by default 1 throughout (paper).
        top_k: fraction of pixels that the reconstruction term keeps, or None for all valid ones.
        stochastic: whether the top-k is drawn (Gumbel) or strict.
    """

    ema: Tensor
    num_updates: Tensor

    def __init__(
        self,
        *,
        kappa: float,
        constraint_ema_decay: float = 0.99,
        lambda_gradient_scale: float = 0.01,
        lambda_speed: float = 1.0,
        lambda_max: float = inf,
        prior_gradient_scale: float = 1.0,
        kl_warm_up: Sequence[int] = (),
        top_k: float | None = 0.02,
        stochastic: bool = True,
    ) -> None:
        super().__init__(prior_gradient_scale=prior_gradient_scale, top_k=top_k, stochastic=stochastic)
        self.kappa, self.constraint_ema_decay = kappa, constraint_ema_decay
        self.lambda_gradient_scale, self.lambda_speed = lambda_gradient_scale, lambda_speed
        self.lambda_max, self.kl_warm_up = lambda_max, list(kl_warm_up)
        positive = ("kappa", "lambda_gradient_scale", "lambda_speed", "lambda_max")
        if wrong := [f"{name}={getattr(self, name)}" for name in positive if not getattr(self, name) > 0]:
            raise ConfigError(f"expected positive numbers, got {', '.join(wrong)}")
        if not 0 <= constraint_ema_decay < 1:
            raise ConfigError(f"expected 0 <= constraint_ema_decay < 1, got {constraint_ema_decay}")
        self.w = nn.Parameter(torch.tensor(1.0).expm1().log() / lambda_speed)  # softplus⁻¹(1): λ starts at 1
        self.register_buffer("ema", torch.tensor(0.0))
        self.register_buffer("num_updates", torch.tensor(0))
        self.kernel: Kernel | None = None

    @property
    def lambda_(self) -> Float[Tensor, ""]:
        """λ; its gradient is negated and scaled: descent on the loss is ascent on w."""
        lambda_ = F.softplus(self.lambda_speed * self.w).square()
        bounded = clamp_with_inward_gradient(lambda_, low=0.0, high=self.lambda_max)
        return scale_gradient(bounded, -self.lambda_gradient_scale)

    def moving_average(self, rec: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """The average with this batch; its gradient with respect to `rec` is 1. Updated in training mode only."""
        with torch.no_grad():
            value, decay = rec.detach().to(self.ema.dtype), self.constraint_ema_decay
            updated = torch.where(self.num_updates == 0, value, decay * self.ema + (1 - decay) * value)
            if self.training:
                finite = value.isfinite()  # a value that is not finite must not stay in the average
                self.ema.copy_(torch.where(finite, updated, self.ema))
                self.num_updates.add_(finite)
        return straight_through(rec, updated.to(rec.dtype))

    def weighted(self, kl: Float[Tensor, " scales"]) -> Float[Tensor, ""]:
        """Σ KL, with smaller weights for scales that are still warming up."""
        total = kl.sum()
        for scale, end in enumerate(self.kl_warm_up):
            if end:
                total = total - kl[scale] * (1 - self.num_updates / end).clamp(min=0)
        return total

    def combine(
        self, *, rec: Float[Tensor, ""], kl: Float[Tensor, " scales"], num_kept: Int[Tensor, ""], batch_size: int
    ) -> dict[str, Tensor]:
        """`loss`, `constraint` and `lambda_`; in training mode the moving average is updated."""
        if self.kernel is None or rec.dtype != torch.float32:
            constraint = self.moving_average(rec) - self.kappa * num_kept.to(rec.dtype) / batch_size
            lambda_ = self.lambda_
            penalty = lambda_ * constraint
        else:
            penalty, constraint, lambda_ = self.kernel(
                rec,
                w=self.w,
                num_kept=num_kept,
                ema=self.ema,
                num_updates=self.num_updates,
                batch_size=batch_size,
                kappa=self.kappa,
                decay=self.constraint_ema_decay,
                speed=self.lambda_speed,
                lambda_max=self.lambda_max,
                gradient_scale=self.lambda_gradient_scale,
                training=self.training,
            )
        loss = penalty + self.weighted(kl)  # after the update that they count
        return {"loss": loss, "constraint": constraint.detach(), "lambda_": lambda_.detach()}
