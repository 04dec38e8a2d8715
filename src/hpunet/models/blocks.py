"""The building blocks of the networks: residual blocks, stages, resampling, initialisation (App. D)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Pre-activation residual block without normalisation (App. D).

    Three times ReLU → 3×3 convolution at half the output channels, then a 1×1 projection. The skip is the identity,
    or a 1×1 convolution if the number of channels changes.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        half = out_channels // 2
        self.convs = nn.ModuleList(nn.Conv2d(c, half, kernel_size=3, padding=1) for c in (in_channels, half, half))
        self.project = nn.Conv2d(half, out_channels, kernel_size=1)
        self.skip = nn.Conv2d(in_channels, out_channels, kernel_size=1) if in_channels != out_channels else None

    def forward(self, x: Float[Tensor, "b in h w"]) -> Float[Tensor, "b out h w"]:
        """Residual plus skip."""
        return self.after_first_conv(self.convs[0](F.relu(x))) + (x if self.skip is None else self.skip(x))

    def after_first_conv(self, residual: Float[Tensor, "b half h w"]) -> Float[Tensor, "b out h w"]:
        """The rest of the residual branch; overwrites its input."""
        for conv in self.convs[1:]:
            residual = conv(F.relu(residual, inplace=True))
        return self.project(residual)  # type: ignore[no-any-return]


def residual_stage(in_channels: int, out_channels: int, num_blocks: int) -> nn.Sequential:
    """The residual blocks of one scale. The first changes the number of channels."""
    inputs = [in_channels] + [out_channels] * (num_blocks - 1)
    return nn.Sequential(*(ResidualBlock(channels, out_channels) for channels in inputs))


def conv_stage(in_channels: int, out_channels: int, *, num_convs: int = 3, kernel_size: int = 3) -> nn.Sequential:
    """One scale of the Probabilistic U-Net: convolutions, each followed by a ReLU."""
    layers: list[nn.Module] = []
    for i in range(num_convs):
        channels = in_channels if i == 0 else out_channels
        layers += [nn.Conv2d(channels, out_channels, kernel_size, padding=kernel_size // 2), nn.ReLU()]
    return nn.Sequential(*layers)


def downsample(x: Float[Tensor, "b f h w"]) -> Float[Tensor, "b f h2 w2"]:
    """2×2 average pooling."""
    return F.avg_pool2d(x, kernel_size=2)


def upsample_nearest(x: Float[Tensor, "b f h w"]) -> Float[Tensor, "b f h2 w2"]:
    """Twice the size: each value fills a 2×2 square."""
    return F.interpolate(x, scale_factor=2, mode="nearest")


def upsample_bilinear(x: Float[Tensor, "b f h w"]) -> Float[Tensor, "b f h2 w2"]:
    """Twice the size, bilinear, with aligned corners."""
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)


def concat_latent(latent: Float[Tensor, "b z h w"], features: Float[Tensor, "b f h w"]) -> Float[Tensor, "b zf h w"]:
    """[latent, features] over channels, in the features' precision and memory format."""
    channels_last = features.is_contiguous(memory_format=torch.channels_last)
    latent = match_memory_format(latent.to(features.dtype), channels_last=channels_last)
    return torch.cat([latent, features], dim=1)


def initialise(model: nn.Module) -> None:
    """Initialise in place as in the paper: orthogonal weights, biases truncated normal with σ = 0.001."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.orthogonal_(module.weight)
            if module.bias is not None:
                nn.init.trunc_normal_(module.bias, std=0.001, a=-0.002, b=0.002)


def match_memory_format(x: Tensor, *, channels_last: bool) -> Tensor:
    """A copy in this memory format, so that no convolution has to convert.

    `contiguous` is not enough: the strides of a one-channel map fit both formats, and torch would take it as NCHW.
    """
    return x.clone(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
