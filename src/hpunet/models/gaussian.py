"""The Gaussians of a latent scale: the head that predicts them, the latents drawn from them, and the KL.

Everything here is computed in float32 (or float64 in a float64 network), also inside a half-precision network, where
`exp(log σ)` would overflow and make the KL NaN.
"""

from dataclasses import dataclass
from math import log

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from hpunet.models.blocks import convolution
from hpunet.models.gradients import clamp_with_inward_gradient

LOG_SIGMA_RANGE = (-10.0, 10.0)
"""Range to which log σ is clamped: the KL and its gradients stay finite. Trained networks are far inside."""


def at_least_float32(x: Tensor) -> Tensor:
    """Half precision becomes float32; other precisions stay."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@dataclass(frozen=True)
class Gaussian:
    """Independent Gaussians at each position of a latent scale (Eq. 1 and 3); z = 0 means no latent."""

    mean: Float[Tensor, "b z *s"]
    log_sigma: Float[Tensor, "b z *s"]

    @property
    def sigma(self) -> Float[Tensor, "b z *s"]:
        """The standard deviation."""
        return self.log_sigma.exp()

    def latent(
        self, *, noise: Float[Tensor, "b z *s"] | None, given: Float[Tensor, "b z *s"] | None
    ) -> Float[Tensor, "b z *s"]:
        """The given value; else mean + σ · noise (reparameterised, with gradients to both); else the mean.

        With both, a value is drawn where the given one is NaN.
        """
        given = None if given is None else given.to(self.mean.dtype)
        if noise is None:
            return self.mean if given is None else given
        drawn = self.mean + self.sigma * noise.to(self.mean.dtype)
        return drawn if given is None else torch.where(given.isnan(), drawn, given)


class GaussianHead(nn.Module):
    """1×1 convolution from decoder features to mean and log σ of a latent scale."""

    def __init__(self, in_channels: int, latent_dim: int, *, ndim: int = 2) -> None:
        super().__init__()
        self.latent_dim = latent_dim
        self.conv = convolution(in_channels, 2 * latent_dim, (1,) * ndim) if latent_dim else None

    def forward(self, features: Float[Tensor, "b f *s"]) -> Gaussian:
        """The Gaussians at every position of `features`."""
        with torch.autocast(features.device.type, enabled=False):
            features = at_least_float32(features)
            if self.conv is None:
                empty = features[:, :0]
                return Gaussian(mean=empty, log_sigma=empty)
            weight, bias = (t.to(features.dtype) for t in (self.conv.weight, self.conv.bias))  # type: ignore[union-attr]
            conv = F.conv2d if features.ndim == 4 else F.conv3d
            mean, log_sigma = conv(features, weight, bias).chunk(2, dim=1)
            low, high = LOG_SIGMA_RANGE
            return Gaussian(mean=mean, log_sigma=clamp_with_inward_gradient(log_sigma, low=low, high=high))

    @torch.no_grad()
    def scale_sigma(self, factor: float) -> None:
        """Multiply σ by `factor` in place."""
        if self.conv is not None:
            assert self.conv.bias is not None
            self.conv.bias[self.latent_dim :] += log(factor)


def elementwise_kl(
    *,
    mean: Float[Tensor, "*shape"],
    log_sigma: Float[Tensor, "*shape"],
    prior_mean: Float[Tensor, "*shape"],
    prior_log_sigma: Float[Tensor, "*shape"],
) -> Float[Tensor, "*shape"]:
    """KL(posterior ‖ prior) of each Gaussian, in closed form (App. A)."""
    log_ratio = log_sigma - prior_log_sigma
    shift = (mean - prior_mean) * (-prior_log_sigma).exp()
    return 0.5 * ((2 * log_ratio).exp() + shift.square() - 1) - log_ratio


def kl_divergence(*, posterior: Gaussian, prior: Gaussian) -> Float[Tensor, " b"]:
    """KL(posterior ‖ prior), summed over positions and channels: one value per image."""
    kl = elementwise_kl(
        mean=posterior.mean, log_sigma=posterior.log_sigma, prior_mean=prior.mean, prior_log_sigma=prior.log_sigma
    )
    return kl.flatten(start_dim=1).sum(dim=1)
