"""The building blocks that both models share: residual blocks, stages of them, resampling, initialisation."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

MIN_PIXELS_OF_DOUBLED = 64 * 64
"""Smaller maps are joined and convolved as they are: preparing the weights would take as long."""


class ResidualBlock(nn.Module):
    """Pre-activated residual block without normalisation (App. D).

    Residual branch: three times ReLU → 3×3 convolution, the first to half the channels; then a 1×1 projection
    without activation. The skip is the identity, or a 1×1 convolution where the number of channels changes.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        half = out_channels // 2
        self.convs = nn.ModuleList(
            nn.Conv2d(channels, half, kernel_size=3, padding=1) for channels in (in_channels, half, half)
        )
        self.project = nn.Conv2d(half, out_channels, kernel_size=1)
        self.skip = nn.Conv2d(in_channels, out_channels, kernel_size=1) if in_channels != out_channels else None

    def forward(self, x: Float[Tensor, "b in h w"]) -> Float[Tensor, "b out h w"]:
        """Skip plus residual."""
        return self._rest(self.convs[0](F.relu(x))) + (x if self.skip is None else self.skip(x))

    def of_doubled(
        self, x: Float[Tensor, "b low h w"], *, features: Float[Tensor, "b high h2 w2"]
    ) -> Float[Tensor, "b out h2 w2"]:
        """`forward` of [doubled x, features], computed at x's own size where the features have no part in it."""
        first, n = self.convs[0], x.shape[1]
        assert isinstance(first, nn.Conv2d)
        assert self.skip is not None
        residual = F.conv2d(F.relu(features), first.weight[:, n:], first.bias, padding=1)
        residual = self._rest(residual.add_(conv_of_doubled(F.relu(x), first.weight[:, :n])))
        residual.add_(F.conv2d(features, self.skip.weight[:, n:], self.skip.bias))
        return residual.add_(double_nearest(F.conv2d(x, self.skip.weight[:, :n])))

    def _rest(self, residual: Tensor) -> Tensor:
        """The residual branch from its first convolution on."""
        for conv in self.convs[1:]:
            residual = conv(F.relu(residual, inplace=True))  # nothing else looks at it
        return self.project(residual)  # type: ignore[no-any-return]


def residual_stage(in_channels: int, out_channels: int, num_blocks: int) -> nn.Sequential:
    """The residual blocks of one scale; the first one changes the number of channels."""
    inputs = [in_channels] + [out_channels] * (num_blocks - 1)
    return nn.Sequential(*(ResidualBlock(channels, out_channels) for channels in inputs))


def run_doubled(
    stage: nn.Module, x: Float[Tensor, "b low h w"], features: Float[Tensor, "b high h2 w2"]
) -> Float[Tensor, "b out h2 w2"]:
    """A residual stage on [doubled x, features], without making the doubled map where that was found to be faster."""
    on_cpu = features.device.type == "cpu" and features.is_contiguous(memory_format=torch.channels_last)
    small = features.shape[-2] * features.shape[-1] < MIN_PIXELS_OF_DOUBLED
    if not on_cpu or small or torch.compiler.is_compiling():  # `_Interleave` cannot be compiled
        return stage(torch.cat([double_nearest(x), features], dim=1))  # type: ignore[no-any-return]
    first, *others = stage.children()
    assert isinstance(first, ResidualBlock)
    x = first.of_doubled(x, features=features)
    for block in others:
        x = block(x)
    return x


def conv_stage(in_channels: int, out_channels: int, *, num_convs: int = 3, kernel_size: int = 3) -> nn.Sequential:
    """Convolutions, each followed by a ReLU: one scale of the standard Probabilistic U-Net."""
    layers: list[nn.Module] = []
    for i in range(num_convs):
        channels = in_channels if i == 0 else out_channels
        layers += [nn.Conv2d(channels, out_channels, kernel_size, padding=kernel_size // 2), nn.ReLU()]
    return nn.Sequential(*layers)


def halve(x: Float[Tensor, "b f h w"]) -> Float[Tensor, "b f h2 w2"]:
    """2×2 average pooling."""
    return F.avg_pool2d(x, kernel_size=2)


def double_nearest(x: Float[Tensor, "b f h w"]) -> Float[Tensor, "b f h2 w2"]:
    """Every value repeated in a 2×2 square."""
    return F.interpolate(x, scale_factor=2, mode="nearest")


def conv_of_doubled(x: Float[Tensor, "b f h w"], weight: Float[Tensor, "o f 3 3"]) -> Float[Tensor, "b o h2 w2"]:
    """3×3 convolution of the nearest-doubled map in 4 instead of 9 products, without making that map.

    A row of the doubled map and its two neighbours lie in two rows of `x`: the row above and its own if it is an
    even one, its own and the row below if odd. So each of the four kinds of pixels has a 2×2 convolution of `x`.
    """
    o, f = weight.shape[:2]
    shares = torch.tensor([[[1, 0, 0], [0, 1, 1]], [[1, 1, 0], [0, 0, 1]]], dtype=weight.dtype)
    kinds = torch.stack([torch.kron(row, column) for row in shares for column in shares])
    small = kinds.unsqueeze(1) @ weight.permute(0, 2, 3, 1).reshape(o, 9, f)  # (4, o, 2×2, f)
    small = small.view(4 * o, 2, 2, f).permute(0, 3, 1, 2)
    return _Interleave.apply(F.conv2d(x, small, padding=1)).permute(0, 3, 1, 2)  # type: ignore[no-any-return,no-untyped-call]


class _Interleave(torch.autograd.Function):
    """The map (b, 2h, 2w, o) from its four kinds of pixels (b, 4o, h + 1, w + 1), see `conv_of_doubled`."""

    @staticmethod
    def forward(ctx: Any, kinds: Tensor) -> Tensor:
        ctx.shape = kinds.permute(0, 2, 3, 1).shape
        return _pixels(kinds).flatten(3, 4).flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        kinds = gradient.new_zeros(ctx.shape).permute(0, 3, 1, 2)
        _pixels(kinds).copy_(gradient.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)))
        return kinds


def _pixels(kinds: Tensor) -> Tensor:
    """A view (b, h, 2, w, 2, o) of `_Interleave`'s input: odd rows are of the kinds 2 and 3 and begin one further."""
    b, channels, h, w = kinds.shape
    image, channel, row, column = kinds.stride()
    kind = channels // 4 * channel
    return kinds.as_strided(
        (b, h - 1, 2, w - 1, 2, channels // 4), (image, row, row + 2 * kind, column, column + kind, channel)
    )


def double_bilinear(x: Float[Tensor, "b f h w"]) -> Float[Tensor, "b f h2 w2"]:
    """Bilinear to twice the size, corners on corners."""
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)


def join(latent: Float[Tensor, "b z h w"], features: Float[Tensor, "b f h w"]) -> Float[Tensor, "b zf h w"]:
    """[latent, features] over channels, in the features' precision and memory format.

    The strides of a one-channel map fit both memory formats; `torch.cat` would then fall back to NCHW, and the
    next convolution would have to convert.
    """
    channels_last = features.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.cat([latent.to(features.dtype).clone(memory_format=layout), features], dim=1)


def initialise(model: nn.Module) -> None:
    """The paper's initialisation of all weights: orthogonal with gain 1; biases truncated normal, σ = 0.001."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.orthogonal_(module.weight)
            if module.bias is not None:
                nn.init.trunc_normal_(module.bias, std=0.001, a=-0.002, b=0.002)


def match_memory_format(x: Tensor, *, channels_last: bool) -> Tensor:
    """The input in the memory format of the weights, so that no convolution has to convert.

    A copy, because the strides of a one-channel image fit both formats, and `contiguous` would leave them as they
    are for a 1×1 convolution to take as NCHW.
    """
    return x.clone(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
