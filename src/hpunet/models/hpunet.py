"""The Hierarchical Probabilistic U-Net (Kohl et al. 2019), top to bottom.

What to know before reading:

* The model has two U-Nets of the same shape. The *prior* sees the image; with the logits on top it is all that
  sampling needs. The *posterior* sees the image and its segmentation, for training and reconstruction only.
* A decoder scale with latents does one thing that a plain U-Net does not: a 1×1 convolution of the features
  predicts a Gaussian at every position, a latent map z is drawn from it, and [z, features] is upsampled to the next
  scale. So the latents of a scale depend on the image and on all coarser latents (Eq. 1 and 2).
* A training step draws z from the posterior and feeds it to the prior's decoder. The same z gives the logits and,
  scale by scale, the two Gaussians that the KL compares (Fig. 1b; `ConditionalVAE.forward`).
* It computes images with positions (h, w) or volumes with positions (d, h, w), written *s. A volume may have
  anisotropic voxels: `strides` say which axes are halved from scale to scale (`scales.py`).
* Residual blocks without normalisation, average pooling, nearest upsampling, zero padding. There is no stem: images
  must be scaled to [0, 1].
* Scale 0 is the coarsest. A latent dimension of 0 means no latent at that scale: (0, 0, 0, 1) is the paper's "local"
  ablation, (85,) its "global" one.
* The posterior ends at its last latent. The authors' code computes one more scale there, whose output nothing uses.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hpunet.errors import ConfigError, DataError
from hpunet.models.base import ConditionalVAE, PerScale, check_model_image, posterior_input
from hpunet.models.blocks import (
    CHANNELS_LAST,
    concat_latent,
    convolution,
    downsample,
    initialise,
    match_memory_format,
    residual_stage,
)
from hpunet.models.gaussian import Gaussian, GaussianHead
from hpunet.models.scales import Stride, checked_strides, kernel_sizes, shrink_factors
from hpunet.models.upsampled_conv import run_upsampled


class LatentUNet(nn.Module):
    """A U-Net with latents at the coarsest scales of its decoder: the prior, or the posterior.

    `num_decoder_scales` counts the scales above the bottom: all in the prior; up to the last latent in the posterior.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        channels: Sequence[int],
        latent_dims: Sequence[int],
        num_blocks: int,
        num_decoder_scales: int,
        strides: Sequence[Stride],
        activation_checkpointing: bool,
    ) -> None:
        super().__init__()
        self.strides, self.activation_checkpointing = strides, activation_checkpointing
        inputs, kernels, ndim = [in_channels, *channels[:-1]], kernel_sizes(strides), len(strides[0])
        # Fine to coarse, in the order of computation.
        self.encoder = nn.ModuleList(
            residual_stage(i, o, num_blocks, kernel) for i, o, kernel in zip(inputs, channels, kernels, strict=True)
        )
        # Coarse to fine. The input of a scale is [z, features] of the scale below and the encoder's features.
        widths, kernels = channels[::-1], kernels[::-1]
        self.heads = nn.ModuleList(GaussianHead(widths[i], dim, ndim=ndim) for i, dim in enumerate(latent_dims))
        dims = [*latent_dims, *[0] * len(widths)]
        self.decoder = nn.ModuleList(
            residual_stage(dims[i] + widths[i] + widths[i + 1], widths[i + 1], num_blocks, kernels[i + 1])
            for i in range(num_decoder_scales)
        )

    def _run(self, stage: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        if self.activation_checkpointing and torch.is_grad_enabled():
            return checkpoint(stage, *inputs, use_reentrant=False)  # type: ignore[no-any-return]
        return stage(*inputs)

    def encode(self, x: Float[Tensor, "b c *s"]) -> list[Tensor]:
        """Features of every scale, coarsest first."""
        features = []
        for depth, stage in enumerate(self.encoder):
            x = self._run(stage, downsample(x, self.strides[depth - 1]) if depth else x)
            features.append(x)
        return features[::-1]

    def decode(
        self,
        features: Sequence[Tensor],
        *,
        noise: PerScale,
        given: PerScale,
        up: Callable[[int, Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, list[Tensor], list[Gaussian]]:
        """The last features, and per latent scale the latent used and its Gaussian (Eq. 1).

        `up(i, x)` runs the decoder's i-th stage on x in place of the network.
        """
        latents, gaussians = [], []
        x = features[0]
        for i in range(len(self.decoder) + 1):
            if i < len(self.heads):
                gaussian = self.heads[i](x)
                z = gaussian.latent(noise=noise[i], given=given[i])
                gaussians.append(gaussian)
                latents.append(z)
                x = concat_latent(z, x)
            if i < len(self.decoder):
                stage = partial(run_upsampled, self.decoder[i], stride=self.strides[-1 - i])
                x = up(i, x) if up else self._run(stage, x, features[i + 1])
        return x, latents, gaussians


class HPUNet(ConditionalVAE):
    """The Hierarchical Probabilistic U-Net.

    Args:
        in_channels: channels of the image.
        num_classes: classes of the segmentation, background included.
        channels: feature channels per scale, finest (full resolution) first; even numbers.
        latent_dims: latent channels per latent scale, coarsest first; 0 for a scale without latents.
        blocks_per_scale: residual blocks per scale of encoder and decoder.
        cond_channels: channels of `cond`, an extra input of the prior.
        activation_checkpointing: recompute activations in the backward pass to save memory.
        ndim: 2 for images, 3 for volumes.
        strides: of volumes, per halving, finest first: by how much depth, height and width shrink, 1 or 2; by default
            2 along all axes. See `scales.py`.
        channels_last: keep weights and activations channels-last; on CPUs a training step is 1.4 times as fast.

    Example:
        >>> model = HPUNet(in_channels=1, num_classes=2, channels=(8, 16, 16), latent_dims=(1, 1))
        >>> output = model(image=torch.rand(2, 1, 32, 32), labels=torch.randint(2, (2, 32, 32)))
        >>> output.logits.shape, output.kl.shape
        (torch.Size([2, 2, 32, 32]), torch.Size([2]))
    """

    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        channels: Sequence[int] = (24, 48, 96, 192, 192, 192, 192, 192),
        latent_dims: Sequence[int] = (1, 1, 1, 1),
        blocks_per_scale: int = 3,
        cond_channels: int = 0,
        activation_checkpointing: bool = False,
        ndim: int = 2,
        strides: Sequence[Sequence[int]] | None = None,
        channels_last: bool = True,
    ) -> None:
        super().__init__()
        if min(in_channels, num_classes, blocks_per_scale) < 1 or cond_channels < 0:
            raise ConfigError(
                "in_channels, num_classes and blocks_per_scale must be at least 1 and cond_channels at least 0, got "
                f"{in_channels=}, {num_classes=}, {blocks_per_scale=}, {cond_channels=}"
            )
        if len(channels) < 2 or any(c < 2 or c % 2 for c in channels):
            raise ConfigError(f"channels: expected at least two even, positive numbers, got {tuple(channels)}")
        if not 1 <= len(latent_dims) < len(channels) or min(latent_dims) < 0 or not any(latent_dims):
            raise ConfigError(
                f"latent_dims: expected 1 to {len(channels) - 1} numbers (fewer than the {len(channels)} scales), "
                f"none negative and not all 0, got {tuple(latent_dims)}"
            )
        self.in_channels = in_channels
        self.num_classes = num_classes
        self.channels = tuple(channels)
        self.latent_dims = tuple(latent_dims)
        self.blocks_per_scale = blocks_per_scale
        self.cond_channels = cond_channels
        self.ndim, self.strides = ndim, checked_strides(strides, ndim=ndim, num_scales=len(channels))
        self.size_multiples = shrink_factors(self.strides)[-1]
        self.check_values = True  # whether to check the values of inputs; on a GPU this waits for the device
        self.orientations = 1  # number of image orientations to sample from, see `sampling.orientations`

        shared: dict[str, Any] = {"channels": channels, "latent_dims": latent_dims, "num_blocks": blocks_per_scale}
        unet = partial(LatentUNet, **shared, strides=self.strides, activation_checkpointing=activation_checkpointing)
        self.prior = unet(in_channels=in_channels + cond_channels, num_decoder_scales=len(channels) - 1)
        self.logits = convolution(channels[0], num_classes, (1,) * ndim)
        self.posterior = unet(in_channels=num_classes + in_channels, num_decoder_scales=len(latent_dims) - 1)
        initialise(self)
        self.channels_last = channels_last
        if channels_last:
            self.to(memory_format=CHANNELS_LAST[2 + ndim])  # type: ignore[call-overload]

    def latent_shapes(self, *size: int) -> list[tuple[int, ...]]:
        """Shape (z, *s_i) of each latent scale for images or volumes of this size, coarsest first."""
        factors = shrink_factors(self.strides)[::-1]
        return [
            (dim, *(side // factor for side, factor in zip(size, factors[i], strict=True)))
            for i, dim in enumerate(self.latent_dims)
        ]

    def sampling_modules(self) -> list[nn.Module]:
        """The modules that sampling needs. The posterior serves training and reconstruction."""
        return [self.prior, self.logits]

    def prior_heads(self) -> list[GaussianHead]:
        """The heads that predict the prior's Gaussians, coarsest first."""
        return [head for head in self.prior.heads if isinstance(head, GaussianHead)]

    def encode(self, *, image: Float[Tensor, "b c *s"], cond: Float[Tensor, "b e *s"] | None = None) -> list[Tensor]:
        """What all hypotheses of an image share: the prior's encoder features, coarsest first."""
        x = self.prior_input(image=image, cond=cond)
        return self.prior.encode(match_memory_format(x, channels_last=self.channels_last))

    def prior_input(
        self, *, image: Float[Tensor, "b c *s"], cond: Float[Tensor, "b e *s"] | None = None
    ) -> Float[Tensor, "b ce *s"]:
        """What the prior sees, checked: [image, cond]."""
        check_model_image(self, image)
        if self.cond_channels or cond is not None:
            expected = (image.shape[0], self.cond_channels, *image.shape[2:])
            if cond is None or tuple(cond.shape) != expected:
                got = "none" if cond is None else f"shape {tuple(cond.shape)}"
                raise DataError(f"cond: this model's prior expects a tensor of shape {expected}, got {got}")
            return torch.cat([image, cond], dim=1)
        return image

    def decode(
        self, features: Sequence[Tensor], *, noise: PerScale | None = None, given: PerScale | None = None
    ) -> tuple[Float[Tensor, "b k *s"], list[Tensor], list[Gaussian]]:
        """One hypothesis per entry of `features`: logits, the latents used, the prior's Gaussians.

        The latent of a scale is its `given` value; else, with `noise`, mean + σ · noise; else the mean. With both, it
        is drawn where the given value is NaN.
        """
        none: PerScale = [None] * len(self.latent_dims)
        x, latents, gaussians = self.prior.decode(features, noise=noise or none, given=given or none)
        return self.logits(x), latents, gaussians

    def infer(
        self, *, image: Float[Tensor, "b c *s"], labels: Int[Tensor, " b *s"], noise: PerScale | None = None
    ) -> tuple[list[Tensor], list[Gaussian]]:
        """The posterior's latents for a segmentation (its means without `noise`) and its Gaussians (Eq. 3)."""
        x = posterior_input(self, image=image, labels=labels)
        features = self.posterior.encode(match_memory_format(x, channels_last=self.channels_last))
        none: PerScale = [None] * len(self.latent_dims)
        _, latents, gaussians = self.posterior.decode(features, noise=noise or none, given=none)
        return latents, gaussians
