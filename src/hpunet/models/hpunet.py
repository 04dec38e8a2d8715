"""The Hierarchical Probabilistic U-Net (Kohl et al. 2019), top to bottom.

What to know before reading:

* Two U-Nets of the same shape. The *prior* sees the image and, with its logits on top, is all that sampling
  needs. The *posterior* sees image and segmentation and exists for training and reconstruction.
* On the way up, a latent scale does one thing more than a plain U-Net: a 1×1 convolution on the features so far
  gives a Gaussian at every position; a latent map z is taken from it and joins the features before up-sampling.
  So the latents of a scale depend on the image and on all coarser latents (Eq. 1 and 2).
* In training the posterior's latents are fed to the prior's decoder: the same z gives the logits and, scale by
  scale, both Gaussians that the KL compares (Fig. 1b).
* Residual blocks without normalisation, average pooling, nearest up-sampling, zero padding; no stem, so feed
  images scaled to [0, 1].
* Scale 0 is the coarsest. A latent dimension of 0 leaves a scale without a latent: (0, 0, 0, 1) is the paper's
  "local" ablation, (85,) its "global" one.
* The posterior ends at its last latent; the authors' code computes one more level that feeds nothing.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hpunet.errors import ConfigError, DataError
from hpunet.models.base import PerScale, TrainingOutput, posterior_input, training_pass
from hpunet.models.blocks import halve, initialise, join, match_memory_format, residual_stage, run_doubled
from hpunet.models.gaussian import Gaussian, GaussianHead
from hpunet.utils.tensors import check_image


class LatentUNet(nn.Module):
    """A U-Net whose decoder takes latents at its coarsest scales; prior and posterior are both one of these.

    `num_up` is how many decoder scales there are above the bottom: all of them for the prior, and for the
    posterior just enough to reach its last latent.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        channels: Sequence[int],
        latent_dims: Sequence[int],
        num_blocks: int,
        num_up: int,
    ) -> None:
        super().__init__()
        self.activation_checkpointing = False
        inputs = [in_channels, *channels[:-1]]
        # Down: fine to coarse, in the order of computation.
        self.encoder = nn.ModuleList(residual_stage(i, o, num_blocks) for i, o in zip(inputs, channels, strict=True))
        # Up: coarse to fine; the input of a scale is [z, features] from below and the encoder's features.
        widths = list(reversed(channels))
        self.heads = nn.ModuleList(GaussianHead(widths[i], dim) for i, dim in enumerate(latent_dims))
        dims = [*latent_dims, *[0] * len(widths)]
        self.decoder = nn.ModuleList(
            residual_stage(dims[i] + widths[i] + widths[i + 1], widths[i + 1], num_blocks) for i in range(num_up)
        )

    def _run(self, stage: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        if self.activation_checkpointing and torch.is_grad_enabled():
            return checkpoint(stage, *inputs, use_reentrant=False)  # type: ignore[no-any-return]
        return stage(*inputs)

    def encode(self, x: Float[Tensor, "b c h w"]) -> list[Tensor]:
        """Features of every scale, coarsest first."""
        features = []
        for depth, stage in enumerate(self.encoder):
            x = self._run(stage, halve(x) if depth else x)
            features.append(x)
        return features[::-1]

    def decode(
        self, features: Sequence[Tensor], *, noise: PerScale, given: PerScale
    ) -> tuple[Tensor, list[Tensor], list[Gaussian]]:
        """Final features, the latents taken and the Gaussians they were taken from (Eq. 1)."""
        latents, gaussians = [], []
        x = features[0]
        for i in range(len(self.decoder) + 1):
            if i < len(self.heads):
                gaussian = self.heads[i](x)
                z = gaussian.take(noise=noise[i], given=given[i])
                gaussians.append(gaussian)
                latents.append(z)
                x = join(z, x)
            if i < len(self.decoder):
                x = self._run(partial(run_doubled, self.decoder[i]), x, features[i + 1])
        return x, latents, gaussians


class HPUNet(nn.Module):
    """The Hierarchical Probabilistic U-Net.

    Args:
        in_channels: channels of the image.
        num_classes: classes of the segmentation, background included.
        channels: feature channels of each scale, from the full resolution down; even numbers.
        latent_dims: latent channels of each latent scale, coarsest first; 0 for a scale without latents.
        blocks_per_scale: residual blocks at each scale of encoder and decoder.
        cond_channels: extra channels that only the prior sees beside the image (`cond`).
        activation_checkpointing: recompute activations in the backward pass to save memory.
        channels_last: keep weights and activations channels-last, 1.4 times as fast a step as NCHW on a CPU.

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
        channels_last: bool = True,
    ) -> None:
        super().__init__()
        if min(in_channels, num_classes, blocks_per_scale) < 1 or cond_channels < 0:
            raise ConfigError(
                "in_channels, num_classes and blocks_per_scale must be at least 1 and cond_channels at least 0, got "
                f"{in_channels=}, {num_classes=}, {blocks_per_scale=}, {cond_channels=}"
            )
        if len(channels) < 2 or any(c < 2 or c % 2 for c in channels):
            raise ConfigError(
                f"channels: expected at least two scales of even, positive width, got {tuple(channels)}"
            )
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
        self.size_multiple = 2 ** (len(channels) - 1)
        self.check_values = True
        """Whether `forward` looks at the values of its tensors (on a GPU that waits for the device)."""
        self.orientations = 1
        """Of an image, that hypotheses are drawn from: 1, 2, 4 or 8 (`sampling.orient`)."""

        self.prior = LatentUNet(
            in_channels=in_channels + cond_channels,
            channels=channels,
            latent_dims=latent_dims,
            num_blocks=blocks_per_scale,
            num_up=len(channels) - 1,
        )
        self.logits = nn.Conv2d(channels[0], num_classes, kernel_size=1)
        self.posterior = LatentUNet(
            in_channels=num_classes + in_channels,
            channels=channels,
            latent_dims=latent_dims,
            num_blocks=blocks_per_scale,
            num_up=len(latent_dims) - 1,
        )
        self.prior.activation_checkpointing = self.posterior.activation_checkpointing = activation_checkpointing
        initialise(self)
        self.channels_last = channels_last
        if channels_last:
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def latent_shapes(self, height: int, width: int) -> list[tuple[int, int, int]]:
        """Shape (z, h_i, w_i) of each latent scale for images of this size, coarsest first."""
        strides = [self.size_multiple >> i for i in range(len(self.latent_dims))]
        return [(dim, height // s, width // s) for dim, s in zip(self.latent_dims, strides, strict=True)]

    def sampling_modules(self) -> list[nn.Module]:
        """The parts that sampling needs; the rest is for training and reconstruction."""
        return [self.prior, self.logits]

    def prior_heads(self) -> list[GaussianHead]:
        """What predicts the prior's Gaussians, coarsest scale first."""
        return [head for head in self.prior.heads if isinstance(head, GaussianHead)]

    def encode(
        self, *, image: Float[Tensor, "b c h w"], cond: Float[Tensor, "b e h w"] | None = None
    ) -> list[Tensor]:
        """What all hypotheses of an image share: the prior's encoder features, coarsest first."""
        x = self.prior_input(image=image, cond=cond)
        return self.prior.encode(match_memory_format(x, channels_last=self.channels_last))

    def prior_input(
        self, *, image: Float[Tensor, "b c h w"], cond: Float[Tensor, "b e h w"] | None = None
    ) -> Float[Tensor, "b ce h w"]:
        """Both tensors checked, and joined as the prior sees them: [image, cond]."""
        check_image(image, channels=self.in_channels, multiple=self.size_multiple, values=self.check_values)
        if self.cond_channels or cond is not None:
            return torch.cat([image, _checked_cond(cond, image=image, channels=self.cond_channels)], dim=1)
        return image

    def decode(
        self, features: Sequence[Tensor], *, noise: PerScale | None = None, given: PerScale | None = None
    ) -> tuple[Float[Tensor, "b k h w"], list[Tensor], list[Gaussian]]:
        """One hypothesis for each entry of `features`: logits, the latents taken, the prior's Gaussians.

        A scale with `given` latents uses them; else one with `noise` draws mean + σ · noise; else it takes its
        mean.
        """
        nothing: PerScale = [None] * len(self.latent_dims)
        x, latents, gaussians = self.prior.decode(features, noise=noise or nothing, given=given or nothing)
        return self.logits(x), latents, gaussians

    def infer(
        self,
        *,
        image: Float[Tensor, "b c h w"],
        labels: Int[Tensor, "b h w"],
        noise: PerScale | None = None,
    ) -> tuple[list[Tensor], list[Gaussian]]:
        """The posterior (Eq. 3): its latents for a segmentation (means without `noise`) and its Gaussians."""
        x = posterior_input(self, image=image, labels=labels)
        features = self.posterior.encode(match_memory_format(x, channels_last=self.channels_last))
        nothing: PerScale = [None] * len(self.latent_dims)
        _, latents, gaussians = self.posterior.decode(features, noise=noise or nothing, given=nothing)
        return latents, gaussians

    def forward(
        self,
        *,
        image: Float[Tensor, "b c h w"],
        labels: Int[Tensor, "b h w"],
        cond: Float[Tensor, "b e h w"] | None = None,
        noise: PerScale | None = None,
        prior_noise: Sequence[Tensor] | None = None,
    ) -> TrainingOutput:
        """The training pass: one posterior draw (from `noise`, or fresh), one prior pass with those latents."""
        return training_pass(self, image=image, labels=labels, cond=cond, noise=noise, prior_noise=prior_noise)


def _checked_cond(cond: Tensor | None, *, image: Tensor, channels: int) -> Tensor:
    expected = (image.shape[0], channels, *image.shape[-2:])
    if cond is None or tuple(cond.shape) != expected:
        got = "none" if cond is None else f"shape {tuple(cond.shape)}"
        raise DataError(f"cond: this model's prior expects a tensor of shape {expected}, got {got}")
    return cond
