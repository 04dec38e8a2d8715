"""The weights of all convolutions of a model, as the kernels want them.

All parameters lie in one line (`Weights.line`); the model's own become views of it. A block's third 3×3 convolution
and its 1×1 projection have nothing between them, so their product is one convolution; products are taken for all
blocks of a size together and follow at the line's end. A step begins by rounding the line to the kernels' precision.

Wide layers read their weights there as they are, and add the gradients of their weights to a line of gradients.
Narrow layers, whose channels are padded or whose kernels are repeated for the pixels of a patch, have a copy of their
own, filled through an index, and give their gradients back through another one.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from hpunet.kernels.layers import NOWHERE, Convolutions, Layer, Places
from hpunet.kernels.tile_sizes import convolution_tiling
from hpunet.kernels.triton_convolution import GradientView, KernelView, Tiling, move
from hpunet.models.blocks import ResidualBlock

ALIGNED = 16
"""Parameters begin at multiples of this in the line, so that kernels read 16 bytes at once."""


@dataclass(frozen=True)
class _Fold:
    """Blocks of one size, and where in the line what is multiplied lies, block after block."""

    blocks: list[ResidualBlock]
    third: slice
    project: slice
    third_bias: slice
    project_bias: slice
    product: slice
    product_bias: slice

    @property
    def sizes(self) -> tuple[int, int, int]:
        project = self.blocks[0].project
        return len(self.blocks), project.in_channels, project.out_channels


class _Copy:
    """A flat buffer that is being laid out: which number of the line each of its numbers is, and its views.

    Views are made when all is laid out: each is a function of the numbers from its beginning on.
    """

    def __init__(self) -> None:
        self.places: list[Tensor] = []
        self.length = 0
        self.views: list[tuple[int, Callable[[Tensor], None]]] = []

    def add(self, places: Sequence[Int[Tensor, "..."]], view: Callable[[Tensor], None]) -> None:
        """One tensor a group."""
        flat = torch.stack(list(places)).reshape(-1)
        self.places.append(F.pad(flat, (0, -len(flat) % ALIGNED), value=NOWHERE))
        self.views.append((self.length, view))
        self.length += len(self.places[-1])

    def build(self, device: torch.device, dtype: torch.dtype) -> tuple[Int[Tensor, " n"], Tensor]:
        """The index, and the buffer."""
        index = torch.cat(self.places) if self.places else torch.zeros(0, dtype=torch.int64, device=device)
        buffer = torch.zeros(self.length, device=device, dtype=dtype)
        for start, view in self.views:
            view(buffer[start:])
        return index, buffer


class Weights:
    """From parameters to the kernels' weights (`prepare`), from their gradients to the parameters' (`collect`).

    `others` are groups of further parameters, of one shape within a group, that are used as they are: `other_values`
    and `other_gradients` have them stacked. Without `training` nothing for gradients is kept and the parameters stay
    where they are.
    """

    def __init__(
        self,
        layers: Sequence[Convolutions],
        *,
        others: Sequence[Sequence[nn.Parameter]],
        dtype: torch.dtype,
        training: bool,
    ) -> None:
        self.layers, self.dtype, self.training = layers, dtype, training
        self.gradient_dtype = torch.float64 if dtype == torch.float32 else torch.float32
        self.device = others[0][0].device
        self.parameters: list[nn.Parameter] = []
        self.starts: list[int] = []
        self.folds = self._line_up(others)
        self._lay_out()

    def _line_up(self, others: Sequence[Sequence[nn.Parameter]]) -> list[_Fold]:
        """Choose the order of the line: what is multiplied lies side by side for all blocks of a size."""
        groups: dict[tuple[int, int], list[ResidualBlock]] = defaultdict(list)
        for layer in self.layers:
            if isinstance(layer, Layer):
                groups[layer.half, layer.out_channels] += layer.blocks
        end = 0

        def append(*parameters: nn.Parameter) -> slice:
            nonlocal end
            place = space(sum(p.numel() for p in parameters))
            start = place.start
            for p in parameters:
                self.parameters.append(p)
                self.starts.append(start)
                start += p.numel()
            return place

        def space(count: int) -> slice:
            nonlocal end
            start = -(-end // ALIGNED) * ALIGNED
            end = start + count
            return slice(start, end)

        pieces = []
        for blocks in groups.values():
            thirds, projects = [block.convs[2] for block in blocks], [block.project for block in blocks]
            pieces.append(
                (
                    append(*(third.weight for third in thirds)),  # type: ignore[arg-type]
                    append(*(project.weight for project in projects)),  # type: ignore[arg-type]
                    append(*(third.bias for third in thirds)),  # type: ignore[arg-type]
                    append(*(project.bias for project in projects)),  # type: ignore[arg-type]
                )
            )
        for layer in self.layers:
            for parameter in layer.own_parameters():
                append(parameter)
        spaces = [append(*group) for group in others]
        self.num_numbers = end
        folds = []
        for blocks, places in zip(groups.values(), pieces, strict=True):
            n, half, out = len(blocks), blocks[0].project.in_channels, blocks[0].project.out_channels
            folds.append(_Fold(blocks, *places, space(n * out * half * 9), space(n * out)))
        self.line = torch.zeros(end + ALIGNED, device=self.device)  # the last one stays zero
        self.line_gradient = torch.zeros(
            len(self.line) if self.training else 0, device=self.device, dtype=self.gradient_dtype
        )
        shapes = [(len(group), *group[0].shape) for group in others]
        self.other_values, self.other_gradients = (
            [line[place].view(shape) for place, shape in zip(spaces, shapes, strict=True)] if len(line) else []
            for line in (self.line, self.line_gradient)
        )
        return folds

    def _lay_out(self) -> None:
        places = self._places()
        self.rounded = torch.zeros(len(self.line), device=self.device, dtype=self.dtype)
        weights, biases, gradients = _Copy(), _Copy(), _Copy()
        for layer in self.layers:
            self._lay_out_layer(layer, places, weights=weights, biases=biases, gradients=gradients)
        zero = len(self.line) - 1
        weight_index, self.weight_copy = weights.build(self.device, self.dtype)
        bias_index, self.bias_copy = biases.build(self.device, torch.float32)
        self.weight_index, self.bias_index = (torch.where(i < 0, zero, i).int() for i in (weight_index, bias_index))
        back, self.gradient_copy = gradients.build(self.device, self.gradient_dtype)
        real = back >= 0
        self.gradient_from, self.gradient_to = real.nonzero()[:, 0].int(), back[real].int()

    def _lay_out_layer(
        self, layer: Convolutions, places: Places, *, weights: _Copy, biases: _Copy, gradients: _Copy
    ) -> None:
        for name, kernels, bias, gradients_of in layer.convolutions(places):
            width = len(kernels[0])
            bias = [F.pad(b, (0, width - len(b)), value=NOWHERE) for b in bias]
            biases.add(bias, partial(_view, layer.biases, name, (len(bias), width)))
            self._lay_out_weight(layer, name, kernels, weights)
            if not self.training:
                continue
            gradients.add(bias, partial(_view, layer.bias_gradients, name, (len(bias), width)))
            self._lay_out_weight(layer, f"{name}_back", [k.flip(2, 3).transpose(0, 1) for k in kernels], weights)
            by_tap = [k.permute(2, 3, 1, 0).flatten(0, 1) for k in gradients_of or kernels]  # tap, in, out
            if layer.mirrored[name]:
                by_tap = [taps.flip(0).transpose(1, 2) for taps in by_tap]
            if (strides := _strides(by_tap)) is not None:
                layer.weight_gradients[name] = GradientView(self.line_gradient[strides[0] :], *strides[1:])
            else:
                gradients.add(by_tap, partial(_gradient_view, layer, name, by_tap[0].shape))

    def _lay_out_weight(self, layer: Convolutions, name: str, kernels: list[Tensor], weights: _Copy) -> None:
        """Kernels (out, in, taps, taps): where they are in the line if they can be used there, else in a copy."""
        outputs, inputs, taps, _ = kernels[0].shape
        tiling = convolution_tiling(layer.height, layer.width, inputs, outputs, taps=taps, dtype=self.dtype)
        layer.tilings[name] = tiling
        strides = _strides([kernel.permute(2, 3, 1, 0) for kernel in kernels])
        if strides is None or tiling.py * tiling.px > 1 or taps * inputs % tiling.chunk:
            patches = [_patch_weights(kernel, tiling) for kernel in kernels]
            weights.add(patches, partial(_weight_view, layer, name, patches[0].shape, inputs))
            return
        start, group, row, tap, channel, to_next = strides
        if taps == 1:
            tap = inputs * channel  # so that inputs are one run
        layer.weights[name] = KernelView(self.rounded[start:], group, row, tap, channel, to_next, width=outputs)

    def _places(self) -> Places:
        places: Places = {}
        for p, start in zip(self.parameters, self.starts, strict=True):
            numbers = torch.arange(start, start + p.numel(), device=self.device)
            places[p] = numbers.as_strided(p.shape, p.stride())  # the line has the order of memory
        for fold in self.folds:
            n, half, out = fold.sizes
            products = torch.arange(fold.product.start, fold.product.stop, device=self.device).view(n, -1)
            biases = torch.arange(fold.product_bias.start, fold.product_bias.stop, device=self.device).view(n, -1)
            for block, product, bias in zip(fold.blocks, products, biases, strict=True):
                third = block.convs[2].weight.stride()[1:]  # type: ignore[operator]
                shape, start = (out, half, 3, 3), product.storage_offset()
                places[block, "product"] = product.as_strided(shape, (half * 9, *third), start)
                # Its gradient lies the other way round, as it is added up.
                places[block, "product_gradient"] = product.as_strided(shape, (1, *(out * s for s in third)), start)
                places[block, "product_bias"] = bias
        return places

    @torch.no_grad()
    def prepare(self) -> None:
        """The parameters' values, folded, rounded and laid out; gradients start from zero."""
        self.take_in_parameters()
        if self.training:
            self._let_go_of_gradients()
        for fold in self.folds:
            n, half, out = fold.sizes
            project = self.line[fold.project].view(n, out, half)
            third, bias = self.line[fold.third].view(n, half, -1), self.line[fold.third_bias].view(n, half, 1)
            torch.bmm(project, third, out=self.line[fold.product].view(n, out, -1))
            product_bias = self.line[fold.product_bias].view(n, out, 1)
            torch.baddbmm(self.line[fold.project_bias].view(n, out, 1), project, bias, out=product_bias)
        self.rounded.copy_(self.line)
        move(self.line, self.weight_index, out=self.weight_copy)
        move(self.line, self.bias_index, out=self.bias_copy)
        if self.training:
            self.line_gradient.zero_()
            self.gradient_copy.zero_()

    @torch.no_grad()
    def take_in_parameters(self) -> None:
        """Have the parameters' values in the line; in training they become views of it."""
        for p, start in zip(self.parameters, self.starts, strict=True):
            if p.data_ptr() != self.line.data_ptr() + start * self.line.element_size():
                place = self.line.as_strided(p.shape, p.stride(), start)
                place.copy_(p)
                if self.training:
                    p.data = place

    def _let_go_of_gradients(self) -> None:
        """Gradients of an earlier pass that are still wanted (a batch in pieces) must not be written over."""
        kept = [p for p in self.parameters if p.grad is not None and _shares_memory(p.grad, self.line_gradient)]
        for p in kept:
            p.grad = p.grad.clone()  # type: ignore[union-attr]

    @torch.no_grad()
    def collect(self) -> list[Tensor]:
        """The gradient of every parameter, from what was added to the gradients' views."""
        for layer in self.layers:
            if layer.has_skip:  # it is added where the third convolution's is
                layer.bias_gradients["skip"].copy_(layer.bias_gradients["third"])
        line, gradient = self.line.to(self.gradient_dtype), self.line_gradient
        move(self.gradient_copy, self.gradient_from, out=gradient, to_index=self.gradient_to)
        for fold in self.folds:
            n, half, out = fold.sizes
            project = line[fold.project].view(n, out, half)
            third, bias = line[fold.third].view(n, half, -1), line[fold.third_bias].view(n, half, 1)
            product = gradient[fold.product].view(n, -1, out).transpose(1, 2)
            product_bias = gradient[fold.product_bias].view(n, out, 1)
            torch.bmm(project.transpose(1, 2), product, out=gradient[fold.third].view(n, half, -1))
            torch.bmm(project.transpose(1, 2), product_bias, out=gradient[fold.third_bias].view(n, half, 1))
            torch.bmm(product, third.transpose(1, 2), out=gradient[fold.project].view(n, out, half))
            gradient[fold.project].view(n, out, half).baddbmm_(product_bias, bias.transpose(1, 2))
            gradient[fold.project_bias] = gradient[fold.product_bias]
        gradient = gradient.float()
        return [
            gradient.as_strided(p.shape, p.stride(), start)
            for p, start in zip(self.parameters, self.starts, strict=True)
        ]


def _view(owner: dict[str, Tensor], name: str, shape: tuple[int, int], data: Tensor) -> None:
    owner[name] = data[: prod(shape)].view(shape)


def _weight_view(layer: Convolutions, name: str, shape: torch.Size, inputs: int, data: Tensor) -> None:
    rows, run, columns = shape
    size = rows * run * columns
    layer.weights[name] = KernelView(data, size, run * columns, inputs * columns, columns, 1, width=columns)


def _gradient_view(layer: Convolutions, name: str, shape: torch.Size, data: Tensor) -> None:
    taps, rows, columns = shape
    layer.weight_gradients[name] = GradientView(data, taps * rows * columns, rows * columns, columns, 1)


def _shares_memory(tensor: Tensor, line: Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() == line.untyped_storage().data_ptr()


def _strides(places: Sequence[Int[Tensor, "..."]]) -> tuple[int, ...] | None:
    """(start, stride of groups, strides of the dimensions) if the places are that regular and none is padding."""
    first = places[0]
    start = int(first[(0,) * first.ndim])
    strides = [
        int(first.select(d, 1)[(0,) * (first.ndim - 1)]) - start if n > 1 else 0 for d, n in enumerate(first.shape)
    ]
    expected = torch.full_like(first, start)
    for dim, stride in enumerate(strides):
        shape = [1] * first.ndim
        shape[dim] = -1
        expected = expected + (torch.arange(first.shape[dim], device=first.device) * stride).view(shape)
    group = int(places[1][(0,) * first.ndim]) - start if len(places) > 1 else 0
    regular = all(torch.equal(p, expected + i * group) for i, p in enumerate(places))
    is_padded = start < 0 or any(int(p.min()) < 0 for p in places)
    aligned = (start % 8, group % ALIGNED) == (0, 0)
    return (start, group, *strides) if regular and not is_padded and aligned else None


def _patch_weights(kernel: Int[Tensor, "o i t t"], tiling: Tiling) -> Int[Tensor, "rows run columns"]:
    """As `convolve` wants weights of its own: the kernel once for each pixel of a patch, shifted."""
    out, channels, taps, _ = kernel.shape
    by_tap = kernel.permute(2, 3, 1, 0)  # dy, dx, in, out
    rows, columns = tiling.py + taps - 1, tiling.px + taps - 1
    patch = by_tap.new_full((rows, columns, channels, tiling.py, tiling.px, out), NOWHERE)
    for y in range(tiling.py):
        for x in range(tiling.px):
            patch[y : y + taps, x : x + taps, :, y, x] = by_tap
    flat = patch.flatten(3).flatten(1, 2)
    return F.pad(flat, (0, 0, 0, tiling.run(channels, taps=taps) - flat.shape[1]), value=NOWHERE)
