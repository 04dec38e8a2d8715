"""The standard Probabilistic U-Net (Kohl et al. 2018), the paper's baseline, with the interface of `HPUNet`.

A plain U-Net computes features. Two more encoders, prior and posterior, each predict one Gaussian for the image. A
latent drawn from it is repeated at every pixel and joined with the features; 1×1 convolutions make the logits.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hpunet.errors import ConfigError
from hpunet.models.base import ConditionalVAE, PerScale, check_model_image, posterior_input
from hpunet.models.blocks import (
    CHANNELS_LAST,
    conv_stage,
    convolution,
    downsample,
    initialise,
    match_memory_format,
    upsample_linear,
)
from hpunet.models.gaussian import Gaussian, GaussianHead
from hpunet.models.scales import Stride, checked_strides, kernel_sizes, shrink_factors


class ConvEncoder(nn.Module):
    """The contracting path of a U-Net: three 3×3 convolutions with ReLU per scale, average pooling between."""

    def __init__(self, in_channels: int, channels: Sequence[int], strides: Sequence[Stride]) -> None:
        super().__init__()
        self.strides = strides
        inputs, kernels = [in_channels, *channels[:-1]], kernel_sizes(strides)
        sizes = zip(inputs, channels, kernels, strict=True)
        self.stages = nn.ModuleList(conv_stage(i, o, kernel=kernel) for i, o, kernel in sizes)

    def forward(self, x: Float[Tensor, "b c *s"]) -> list[Tensor]:
        """Features of every scale, coarsest first."""
        features = []
        for depth, stage in enumerate(self.stages):
            x = stage(downsample(x, self.strides[depth - 1]) if depth else x)
            features.append(x)
        return features[::-1]


class GlobalGaussian(nn.Module):
    """The prior or posterior net: an encoder, global average pooling, and a Gaussian."""

    def __init__(self, in_channels: int, channels: Sequence[int], latent_dim: int, strides: Sequence[Stride]) -> None:
        super().__init__()
        self.encoder = ConvEncoder(in_channels, channels, strides)
        self.head = GaussianHead(channels[-1], latent_dim, ndim=len(strides[0]))

    def forward(self, x: Float[Tensor, "b c *s"]) -> Gaussian:
        """One Gaussian (b, z, 1, 1), or (b, z, 1, 1, 1), per image."""
        return self.head(mean_over_positions(self.encoder(x)[0]))  # type: ignore[no-any-return]


def mean_over_positions(x: Float[Tensor, "b f *s"]) -> Float[Tensor, "b f *ones"]:
    """Global average pooling."""
    return x.mean(dim=tuple(range(2, x.ndim)), keepdim=True)


class ProbUNet(ConditionalVAE):
    """The standard Probabilistic U-Net: as `HPUNet`, but with one global latent vector."""

    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        channels: Sequence[int] = (32, 64, 128, 192, 192),
        latent_dim: int = 6,
        ndim: int = 2,
        strides: Sequence[Sequence[int]] | None = None,
        channels_last: bool = True,
    ) -> None:
        super().__init__()
        if min(in_channels, num_classes, latent_dim) < 1 or len(channels) < 2 or min(channels) < 1:
            raise ConfigError(
                "in_channels, num_classes and latent_dim must be at least 1 and channels hold at least two positive "
                f"numbers, got {in_channels=}, {num_classes=}, {latent_dim=}, channels={tuple(channels)}"
            )
        self.in_channels, self.num_classes, self.channels = in_channels, num_classes, tuple(channels)
        self.latent_dims: tuple[int, ...] = (latent_dim,)
        self.cond_channels, self.ndim = 0, ndim
        self.strides = checked_strides(strides, ndim=ndim, num_scales=len(channels))
        self.size_multiples = shrink_factors(self.strides)[-1]
        self.check_values, self.orientations = True, 1

        self.encoder = ConvEncoder(in_channels, channels, self.strides)
        widths, kernels, pointwise = channels[::-1], kernel_sizes(self.strides)[-2::-1], (1,) * ndim
        self.decoder = nn.ModuleList(
            conv_stage(i + o, o, kernel=kernel) for (i, o), kernel in zip(pairwise(widths), kernels, strict=True)
        )
        self.prior = GlobalGaussian(in_channels, channels, latent_dim, self.strides)
        self.posterior = GlobalGaussian(num_classes + in_channels, channels, latent_dim, self.strides)
        self.combine = conv_stage(channels[0] + latent_dim, channels[0], kernel=pointwise)
        self.logits = convolution(channels[0], num_classes, pointwise)
        initialise(self)
        self.channels_last = channels_last
        if channels_last:
            self.to(memory_format=CHANNELS_LAST[2 + ndim])  # type: ignore[call-overload]

    def latent_shapes(self, *size: int) -> list[tuple[int, ...]]:
        """The one latent scale has a single position for any image size."""
        return [(self.latent_dims[0], *[1] * len(size))]

    def sampling_modules(self) -> list[nn.Module]:
        """All modules but the posterior."""
        return [self.encoder, self.decoder, self.prior, self.combine, self.logits]

    def prior_heads(self) -> list[GaussianHead]:
        """The head that predicts the prior's Gaussian."""
        return [self.prior.head]

    def prior_input(
        self, *, image: Float[Tensor, "b c *s"], cond: Float[Tensor, "b e *s"] | None = None
    ) -> Float[Tensor, "b c *s"]:
        """What U-Net and prior see, checked: the image."""
        if cond is not None:
            raise ConfigError("cond: the standard Probabilistic U-Net takes no extra conditioning channels")
        check_model_image(self, image)
        return image

    def encode(self, *, image: Float[Tensor, "b c *s"], cond: Float[Tensor, "b e *s"] | None = None) -> list[Tensor]:
        """What all hypotheses of an image share: U-Net features at full resolution, prior mean and log σ."""
        image = match_memory_format(self.prior_input(image=image, cond=cond), channels_last=self.channels_last)
        x, *skips = self.encoder(image)
        for stage, skip, stride in zip(self.decoder, skips, reversed(self.strides), strict=True):
            x = stage(torch.cat([skip, upsample_linear(x, stride)], dim=1))
        prior = self.prior(image)
        return [x, prior.mean, prior.log_sigma]

    def decode(
        self, features: Sequence[Tensor], *, noise: PerScale | None = None, given: PerScale | None = None
    ) -> tuple[Float[Tensor, "b k *s"], list[Tensor], list[Gaussian]]:
        """As `HPUNet.decode`."""
        x, mean, log_sigma = features
        prior = Gaussian(mean=mean, log_sigma=log_sigma)
        z = prior.latent(noise=noise[0] if noise else None, given=given[0] if given else None)
        planes = z.to(x.dtype).expand(-1, -1, *x.shape[2:])
        return self.logits(self.combine(torch.cat([x, planes], dim=1))), [z], [prior]

    def infer(
        self, *, image: Float[Tensor, "b c *s"], labels: Int[Tensor, " b *s"], noise: PerScale | None = None
    ) -> tuple[list[Tensor], list[Gaussian]]:
        """As `HPUNet.infer`."""
        x = posterior_input(self, image=image, labels=labels)
        posterior = self.posterior(match_memory_format(x, channels_last=self.channels_last))
        return [posterior.latent(noise=noise[0] if noise else None, given=None)], [posterior]
