"""The building blocks of the networks: residual blocks, stages, resampling, initialisation (App. D).

Each works on images (b, f, h, w) and on volumes (b, f, d, h, w). Kernels and strides have a number per axis.
"""

from collections.abc import Callable, Sequence
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


def downsample(x: Float[Tensor, "b f *s"], stride: Sequence[int] = (2, 2)) -> Float[Tensor, "b f *t"]:
    """Average pooling."""
    return _resample(x, stride, by=lambda maps, factors: F.avg_pool2d(maps, kernel_size=factors))


def upsample_nearest(x: Float[Tensor, "b f *s"], stride: Sequence[int] = (2, 2)) -> Float[Tensor, "b f *t"]:
    """Each value fills a square, or a box, of this many pixels per axis."""
    return _resample(x, stride, by=lambda maps, factors: F.interpolate(maps, scale_factor=factors, mode="nearest"))


def upsample_linear(x: Float[Tensor, "b f *s"], stride: Sequence[int] = (2, 2)) -> Float[Tensor, "b f *t"]:
    """This many times the size per axis, bilinear or trilinear, with aligned corners."""
    how: dict[str, Any] = {"mode": "bilinear", "align_corners": True}
    return _resample(x, stride, by=lambda maps, factors: F.interpolate(maps, scale_factor=factors, **how))


def _resample(x: Tensor, stride: Sequence[int], *, by: Callable[[Tensor, tuple[int, ...]], Tensor]) -> Tensor:
    """Resample images by a function of images; volumes by the same: in their slices, then along their depth.

    That of images keeps channels last and knows all types; those of volumes in torch do not. Channels last, all
    reshaping is free.
    """
    if x.ndim == 4:
        return by(x, tuple(stride))
    depth, *plane = stride
    slices = by(x.transpose(1, 2).flatten(0, 1), tuple(plane))
    x = slices.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)
    return x if depth == 1 else by(x.flatten(3), (depth, 1)).unflatten(3, x.shape[3:])


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
