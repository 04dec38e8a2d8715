"""The building blocks of the networks: residual blocks, stages, resampling, initialisation (App. D).

Each works on images (b, f, h, w) and on volumes (b, f, d, h, w). Kernels and strides have a number per axis.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Convolution = nn.Conv2d | nn.Conv3d
CONVOLUTIONS = (nn.Conv2d, nn.Conv3d)
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The memory format, by a tensor's number of axes."""
Kernel = tuple[int, ...]


def convolution(in_channels: int, out_channels: int, kernel: Kernel) -> Convolution:
    """A convolution that keeps the size, along as many axes as the kernel has entries."""
    layer: Any = CONVOLUTIONS[len(kernel) - 2]
    return layer(in_channels, out_channels, kernel, padding=tuple(width // 2 for width in kernel))  # type: ignore[no-any-return]


class ResidualBlock(nn.Module):
    """Pre-activation residual block without normalisation (App. D).

    Three times ReLU → 3×3 convolution at half the output channels, then a 1×1 projection. The skip is the identity,
    or a 1×1 convolution if the number of channels changes.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: Kernel = (3, 3)) -> None:
        super().__init__()
        half, pointwise = out_channels // 2, (1,) * len(kernel)
        self.convs = nn.ModuleList(convolution(c, half, kernel) for c in (in_channels, half, half))
        self.project = convolution(half, out_channels, pointwise)
        self.skip = convolution(in_channels, out_channels, pointwise) if in_channels != out_channels else None

    def forward(self, x: Float[Tensor, "b in *s"]) -> Float[Tensor, "b out *s"]:
        """Residual plus skip."""
        return self.after_first_conv(self.convs[0](F.relu(x))) + (x if self.skip is None else self.skip(x))

    def after_first_conv(self, residual: Float[Tensor, "b half *s"]) -> Float[Tensor, "b out *s"]:
        """The rest of the residual branch; overwrites its input."""
        for conv in self.convs[1:]:
            residual = conv(F.relu(residual, inplace=True))
        return self.project(residual)  # type: ignore[no-any-return]


def residual_stage(in_channels: int, out_channels: int, num_blocks: int, kernel: Kernel = (3, 3)) -> nn.Sequential:
    """The residual blocks of one scale. The first changes the number of channels."""
    inputs = [in_channels] + [out_channels] * (num_blocks - 1)
    return nn.Sequential(*(ResidualBlock(channels, out_channels, kernel) for channels in inputs))


def conv_stage(in_channels: int, out_channels: int, *, num_convs: int = 3, kernel: Kernel = (3, 3)) -> nn.Sequential:
    """One scale of the Probabilistic U-Net: convolutions, each followed by a ReLU."""
    layers: list[nn.Module] = []
    for i in range(num_convs):
        channels = in_channels if i == 0 else out_channels
        layers += [convolution(channels, out_channels, kernel), nn.ReLU()]
    return nn.Sequential(*layers)


def downsample(x: Float[Tensor, "b f *s"], stride: int | tuple[int, ...] = 2) -> Float[Tensor, "b f *t"]:
    """Average pooling: 2×2, or one number per axis."""
    if x.ndim == 4:
        return F.avg_pool2d(x, kernel_size=stride)
    pooled = F.avg_pool3d(x, kernel_size=stride)
    return pooled.contiguous(memory_format=CHANNELS_LAST[5]) if is_channels_last(x) else pooled  # torch gives NCDHW


def upsample_nearest(x: Float[Tensor, "b f *s"], stride: int | tuple[int, ...] = 2) -> Float[Tensor, "b f *t"]:
    """Twice the size, or one factor per axis: each value fills a square, or a box."""
    return F.interpolate(x, scale_factor=stride, mode="nearest")


def upsample_linear(x: Float[Tensor, "b f *s"], stride: int | tuple[int, ...] = 2) -> Float[Tensor, "b f *t"]:
    """Twice the size, or one factor per axis; bilinear or trilinear, with aligned corners."""
    mode = "bilinear" if x.ndim == 4 else "trilinear"
    return F.interpolate(x, scale_factor=stride, mode=mode, align_corners=True)


def concat_latent(latent: Float[Tensor, "b z *s"], features: Float[Tensor, "b f *s"]) -> Float[Tensor, "b zf *s"]:
    """[latent, features] over channels, in the features' precision and memory format."""
    latent = match_memory_format(latent.to(features.dtype), channels_last=is_channels_last(features))
    return torch.cat([latent, features], dim=1)


def initialise(model: nn.Module) -> None:
    """Initialise in place as in the paper: orthogonal weights, biases truncated normal with σ = 0.001."""
    for module in model.modules():
        if isinstance(module, CONVOLUTIONS):
            nn.init.orthogonal_(module.weight)
            if module.bias is not None:
                nn.init.trunc_normal_(module.bias, std=0.001, a=-0.002, b=0.002)


def is_channels_last(x: Tensor) -> bool:
    """Whether the channels of each position lie side by side in memory."""
    return x.ndim in CHANNELS_LAST and x.is_contiguous(memory_format=CHANNELS_LAST[x.ndim])


def match_memory_format(x: Tensor, *, channels_last: bool) -> Tensor:
    """A copy in this memory format, so that no convolution has to convert.

    `contiguous` is not enough: the strides of a one-channel map fit both formats, and torch would take it as NCHW.
    """
    return x.clone(memory_format=CHANNELS_LAST[x.ndim] if channels_last else torch.contiguous_format)
