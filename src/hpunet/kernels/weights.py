"""The weights of all residual blocks of a model, as the kernels want them.

A step begins with one line of all parameters (`Weights.line`). A block's third 3×3 convolution and its 1×1 projection
have nothing between them, so their product is one convolution; products are taken for all blocks of a size together
and follow at the line's end, then a zero. From there index maps fill two buffers in one go each: weights in the
kernels' layout and precision, and biases in float32. Gradients come back the same way.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from hpunet.kernels.convolution import gather, row_length
from hpunet.models.blocks import ResidualBlock

NOWHERE = -1
"""In index maps: a number that is padding."""


def padded(channels: int) -> int:
    """Channels as the kernels have them: a multiple of 8."""
    return -(-channels // 8) * 8


@dataclass(eq=False)
class BlockWeights:
    """A block, and its weights and gradients as views of the buffers.

    For the convolutions `first`, `second` and `third` (the folded one): `values` has their weights, with "_back"
    those of the gradient of their input, and with "_bias" their biases; `gradients` has the same names without
    "_back". Likewise `skip` where the block has one.
    """

    block: ResidualBlock
    values: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        convs, project = self.block.convs, self.block.project
        self.in_channels: int = convs[0].in_channels  # type: ignore[assignment]
        self.half: int = project.in_channels
        self.out_channels: int = project.out_channels
        self.widths = padded(self.in_channels), padded(self.half), padded(self.out_channels)
        self.mirrored = self.widths[1] <= self.widths[0]
        """Whether the gradient of `first` is taken with input and output exchanged: fewer channels in its rows."""


@dataclass(frozen=True)
class _Fold:
    """Blocks of one size, and where in the line what is multiplied lies, block after block."""

    members: list[BlockWeights]
    third: slice
    project: slice
    third_bias: slice
    project_bias: slice
    product: slice
    product_bias: slice

    @property
    def sizes(self) -> tuple[int, int, int]:
        return len(self.members), self.members[0].half, self.members[0].out_channels


class _Buffer:
    """A flat buffer that is being laid out: which number of the line each of its numbers is, and its views."""

    def __init__(self) -> None:
        self.places: list[Tensor] = []
        self.views: list[tuple[dict[str, Tensor], str, torch.Size]] = []

    def add(self, owner: dict[str, Tensor], name: str, places: Int[Tensor, "..."]) -> None:
        self.places.append(places.reshape(-1))
        self.views.append((owner, name, places.shape))

    def build(self, dtype: torch.dtype) -> tuple[Int[Tensor, " n"], Tensor]:
        index = torch.cat(self.places)
        buffer = torch.zeros(len(index), device=index.device, dtype=dtype)
        parts = buffer.split([len(places) for places in self.places])
        for (owner, name, shape), part in zip(self.views, parts, strict=True):
            owner[name] = part.view(shape)
        return index, buffer


class Weights:
    """From parameters to the kernels' weights (`prepare`), from their gradients to the parameters' (`collect`)."""

    def __init__(self, model: nn.Module, *, dtype: torch.dtype) -> None:
        self.blocks = [BlockWeights(module) for module in model.modules() if isinstance(module, ResidualBlock)]
        self.dtype = dtype
        self.device = self.blocks[0].block.project.weight.device
        self.parameters: list[nn.Parameter] = []
        self.folds = self._line_up()
        self._lay_out()

    def _line_up(self) -> list[_Fold]:
        """Choose the order of the line: what is multiplied lies side by side for all blocks of a size."""
        groups: dict[tuple[int, int], list[BlockWeights]] = defaultdict(list)
        for member in self.blocks:
            groups[member.half, member.out_channels].append(member)
        end = 0

        def append(*parameters: nn.Parameter) -> slice:
            nonlocal end
            self.parameters += parameters
            return space(sum(p.numel() for p in parameters))

        def space(count: int) -> slice:
            nonlocal end
            end += count
            return slice(end - count, end)

        pieces = []
        for members in groups.values():
            thirds, projects = [m.block.convs[2] for m in members], [m.block.project for m in members]
            pieces.append(
                (
                    append(*(third.weight for third in thirds)),  # type: ignore[arg-type]
                    append(*(project.weight for project in projects)),  # type: ignore[arg-type]
                    append(*(third.bias for third in thirds)),  # type: ignore[arg-type]
                    append(*(project.bias for project in projects)),  # type: ignore[arg-type]
                )
            )
        for member in self.blocks:
            for layer in (*member.block.convs[:2], member.block.skip):
                if layer is not None:
                    append(layer.weight, layer.bias)
        self.num_parameters = end
        folds = []
        for members, places in zip(groups.values(), pieces, strict=True):
            n, half, out = len(members), members[0].half, members[0].out_channels
            folds.append(_Fold(members, *places, space(n * out * half * 9), space(n * out)))
        self.line = torch.zeros(end + 1, device=self.device)  # the last stays zero
        return folds

    def _lay_out(self) -> None:
        places = self._places()
        weights, biases, gradients = _Buffer(), _Buffer(), _Buffer()
        for member in self.blocks:
            block, (first, half, out) = member.block, member.widths
            layers = {
                "first": (_widened(places[block.convs[0].weight], half, first), places[block.convs[0].bias]),
                "second": (_widened(places[block.convs[1].weight], half, half), places[block.convs[1].bias]),
                "third": (_widened(places[member, "product"], out, half), places[member, "product_bias"]),
            }
            for name, (weight, bias) in layers.items():
                weights.add(member.values, name, _rows(weight))
                weights.add(member.values, f"{name}_back", _rows(weight.flip(2, 3).transpose(0, 1)))
                bias = F.pad(bias, (0, weight.shape[0] - len(bias)), value=NOWHERE)
                biases.add(member.values, f"{name}_bias", bias)
                gradients.add(member.gradients, f"{name}_bias", bias)
                if name == "first" and member.mirrored:
                    taps = weight.flip(2, 3).permute(2, 3, 0, 1)  # dy, dx, out, in
                else:
                    taps = weight.permute(2, 3, 1, 0)
                gradients.add(member.gradients, name, taps.flatten(1, 2))
            if block.skip is not None:
                skip = _widened(places[block.skip.weight], out, first)[:, :, 0, 0]
                bias = F.pad(places[block.skip.bias], (0, out - member.out_channels), value=NOWHERE)
                weights.add(member.values, "skip", skip.t())
                weights.add(member.values, "skip_back", skip)
                biases.add(member.values, "skip_bias", bias)
                gradients.add(member.gradients, "skip", skip.t())
                gradients.add(member.gradients, "skip_bias", bias)
        zero = len(self.line) - 1
        (weight_index, self.weight_buffer), (bias_index, self.bias_buffer) = (
            buffer.build(dtype) for buffer, dtype in ((weights, self.dtype), (biases, torch.float32))
        )
        self.weight_index, self.bias_index = (
            torch.where(index < 0, zero, index).int() for index in (weight_index, bias_index)
        )
        gradient_index, self.gradient_buffer = gradients.build(torch.float32)
        self.back_index = torch.zeros(zero, dtype=torch.int32, device=self.device)
        real = gradient_index >= 0
        numbers = torch.arange(len(gradient_index), dtype=torch.int32, device=self.device)
        self.back_index[gradient_index[real]] = numbers[real]
        self.line_gradient = torch.zeros(zero, device=self.device)

    def _places(self) -> dict[object, Tensor]:
        """For every parameter and product, in its own shape, where in the line its numbers are."""
        places: dict[object, Tensor] = {}
        start = 0
        for p in self.parameters:
            numbers = torch.arange(start, start + p.numel(), device=self.device)
            places[p] = numbers.as_strided(p.shape, p.stride())  # the line has the order of memory
            start += p.numel()
        for fold in self.folds:
            n, half, out = fold.sizes
            products = torch.arange(fold.product.start, fold.product.stop, device=self.device).view(n, -1)
            biases = torch.arange(fold.product_bias.start, fold.product_bias.stop, device=self.device).view(n, -1)
            for member, product, bias in zip(fold.members, products, biases, strict=True):
                strides = (half * 9, *member.block.convs[2].weight.stride()[1:])  # type: ignore[operator]
                places[member, "product"] = product.as_strided((out, half, 3, 3), strides, product.storage_offset())
                places[member, "product_bias"] = bias
        return places

    @torch.no_grad()
    def prepare(self) -> None:
        """The parameters' values, folded, rounded and laid out; gradients start from zero."""
        torch.cat(
            [p.detach().as_strided((p.numel(),), (1,)) for p in self.parameters], out=self.line[: self.num_parameters]
        )
        for fold in self.folds:
            n, half, out = fold.sizes
            project = self.line[fold.project].view(n, out, half)
            third, bias = self.line[fold.third].view(n, half, -1), self.line[fold.third_bias].view(n, half, 1)
            torch.bmm(project, third, out=self.line[fold.product].view(n, out, -1))
            torch.bmm(project, bias, out=self.line[fold.product_bias].view(n, out, 1))
            self.line[fold.product_bias] += self.line[fold.project_bias]
        gather(self.line, self.weight_index, out=self.weight_buffer)
        gather(self.line, self.bias_index, out=self.bias_buffer)
        self.gradient_buffer.zero_()

    @torch.no_grad()
    def collect(self) -> list[Tensor]:
        """The gradient of every parameter, from what the blocks have added to their `gradients`."""
        for member in self.blocks:
            if "skip_bias" in member.gradients:  # it is added where the third convolution's is
                member.gradients["skip_bias"].copy_(member.gradients["third_bias"])
        gradient = self.line_gradient
        gather(self.gradient_buffer, self.back_index, out=gradient)
        for fold in self.folds:
            n, half, out = fold.sizes
            project = self.line[fold.project].view(n, out, half)
            third, bias = self.line[fold.third].view(n, half, -1), self.line[fold.third_bias].view(n, half, 1)
            product, product_bias = (
                gradient[fold.product].view(n, out, -1),
                gradient[fold.product_bias].view(n, out, 1),
            )
            torch.bmm(project.transpose(1, 2), product, out=gradient[fold.third].view(n, half, -1))
            torch.bmm(project.transpose(1, 2), product_bias, out=gradient[fold.third_bias].view(n, half, 1))
            torch.bmm(product, third.transpose(1, 2), out=gradient[fold.project].view(n, out, half))
            gradient[fold.project].view(n, out, half).baddbmm_(product_bias, bias.transpose(1, 2))
            gradient[fold.project_bias] = gradient[fold.product_bias]
        starts = torch.tensor([0, *(p.numel() for p in self.parameters)]).cumsum(0).tolist()
        return [
            gradient.as_strided(p.shape, p.stride(), start) for p, start in zip(self.parameters, starts, strict=False)
        ]


def _widened(places: Int[Tensor, "o i y x"], out: int, in_: int) -> Int[Tensor, "o2 i2 y x"]:
    """With room for so many channels."""
    return F.pad(places, (0, 0, 0, 0, 0, in_ - places.shape[1], 0, out - places.shape[0]), value=NOWHERE)


def _rows(places: Int[Tensor, "o i 3 3"]) -> Int[Tensor, "3 r o"]:
    """As `convolve` wants its weights."""
    rows = places.permute(2, 3, 1, 0).flatten(1, 2)
    return F.pad(rows, (0, 0, 0, row_length(places.shape[1]) - rows.shape[1]), value=NOWHERE)
