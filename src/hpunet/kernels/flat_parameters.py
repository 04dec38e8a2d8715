"""The parameters of a model in one flat buffer, and the weights of all convolutions as the kernels read them.

A block's third 3×3 convolution and its 1×1 projection have nothing between them, so they are folded into one; the
products follow at the end of the buffer. Wide layers read the buffer, cast to the kernels' precision, and add to a
flat gradient buffer. Narrow layers pad channels or repeat kernels: they have packed copies, reached by an index.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from hpunet.kernels.cuda_convolution import HaloWeights, halo_weights
from hpunet.kernels.cuda_kernels import can_use_cuda_kernels
from hpunet.kernels.layers import PADDING, FusedLayer, IndexMaps, ResidualLayer
from hpunet.kernels.tile_sizes import convolution_tiling
from hpunet.kernels.triton_convolution import ConvTiling, GradientView, WeightView
from hpunet.kernels.triton_maps import gather_scatter
from hpunet.models.blocks import ResidualBlock

ALIGNED = 16  # parameters start at multiples of this in the flat buffer, so that kernels read 16 bytes at once


@dataclass(frozen=True)
class _Fold:
    """Blocks of one size, and the slices of the flat buffer that hold their factors and products, block by block."""

    blocks: list[ResidualBlock]
    half: int
    out: int
    slices: list[slice]

    def views(self, flat: Tensor) -> list[Tensor]:
        """Third weight, projection, third bias, projection bias, product and its bias, one matrix per block."""
        half, out = self.half, self.out
        shapes = ((half, half * 9), (out, half), (half, 1), (out, 1), (out, half * 9), (out, 1))
        return [flat[s].view(len(self.blocks), *shape) for s, shape in zip(self.slices, shapes, strict=True)]


class _PackedBuffer:
    """Collects index maps and functions that make the views, from the elements of the buffer that start there."""

    def __init__(self) -> None:
        self.indices: list[Tensor] = []
        self.length = 0
        self.views: list[tuple[int, Callable[[Tensor], None]]] = []

    def add(self, indices: Sequence[Int[Tensor, "..."]], view: Callable[[Tensor], None]) -> None:
        """Append one tensor per group."""
        flat = torch.stack(list(indices)).reshape(-1)
        self.indices.append(F.pad(flat, (0, -len(flat) % ALIGNED), value=PADDING))
        self.views.append((self.length, view))
        self.length += len(self.indices[-1])

    def build(self, device: torch.device, dtype: torch.dtype) -> tuple[Int[Tensor, " n"], Tensor]:
        index = torch.cat(self.indices) if self.indices else torch.zeros(0, dtype=torch.int64, device=device)
        buffer = torch.zeros(self.length, device=device, dtype=dtype)
        for start, view in self.views:
            view(buffer[start:])
        return index, buffer


class Weights:
    """Turns parameters into the kernels' weights (`prepare`) and weight gradients into `parameter_gradients`.

    `others`, groups of parameters of one shape, are used as they are, stacked in `other_values` and
    `other_gradients`. Without `training` there are no gradients, and parameters are copied.
    """

    def __init__(
        self, layers: Sequence[FusedLayer], *, others: list[list[nn.Parameter]], dtype: torch.dtype, training: bool
    ) -> None:
        self.layers, self.dtype, self.training = layers, dtype, training
        self.gradient_dtype = torch.float64 if dtype == torch.float32 else torch.float32
        self.device = others[0][0].device
        self.halo = can_use_cuda_kernels(self.device, dtype)
        self.num_prepared = 0  # tells a backward pass whether the buffers are still those of its forward pass
        self.parameters: list[nn.Parameter] = []
        self.offsets: list[int] = []
        self.strides: list[tuple[int, ...]] = []
        self._copied: list[int] | None = None  # the version of each parameter
        self.folds = self._assign_offsets(others)
        self._build_buffers()

    def _assign_offsets(self, others: list[list[nn.Parameter]]) -> list[_Fold]:
        """Order the flat buffer: factors of folded products lie side by side for all blocks of a size."""
        groups: dict[tuple[int, int], list[ResidualBlock]] = defaultdict(list)
        for layer in self.layers:
            if isinstance(layer, ResidualLayer):
                groups[layer.half, layer.out_channels] += layer.blocks
        end = 0

        def append(*parameters: nn.Parameter) -> slice:
            region = reserve(sum(p.numel() for p in parameters))
            start = region.start
            for p in parameters:
                self.parameters.append(p)
                self.offsets.append(start)
                self.strides.append(p.stride())
                start += p.numel()
            return region

        def reserve(count: int) -> slice:
            nonlocal end
            start = -(-end // ALIGNED) * ALIGNED
            end = start + count
            return slice(start, end)

        pieces = []
        for blocks in groups.values():
            factors: Any = [block.convs[2] for block in blocks], [block.project for block in blocks]
            weights = [append(*(conv.weight for conv in convs)) for convs in factors]
            pieces.append(weights + [append(*(conv.bias for conv in convs)) for convs in factors])
        for layer in self.layers:
            for parameter in layer.unfolded_parameters():
                append(parameter)
        regions = [append(*group) for group in others]
        self.num_elements = end
        folds = []
        for blocks, slices in zip(groups.values(), pieces, strict=True):
            n, half, out = len(blocks), blocks[0].project.in_channels, blocks[0].project.out_channels
            folds.append(_Fold(blocks, half, out, [*slices, reserve(n * out * half * 9), reserve(n * out)]))
        self.flat = torch.zeros(end + ALIGNED, device=self.device)  # the last element stays zero: padding reads it
        length = len(self.flat) if self.training else 0
        self.flat_gradient = torch.zeros(length, device=self.device, dtype=self.gradient_dtype)
        shapes = [(len(group), *group[0].shape) for group in others]
        self.other_values, self.other_gradients = (
            [flat[region].view(shape) for region, shape in zip(regions, shapes, strict=True)] if len(flat) else []
            for flat in (self.flat, self.flat_gradient)
        )
        return folds

    def _build_buffers(self) -> None:
        maps = self._index_maps()
        self.flat_cast = torch.zeros(len(self.flat), device=self.device, dtype=self.dtype)
        weights, biases, gradients = _PackedBuffer(), _PackedBuffer(), _PackedBuffer()
        for layer in self.layers:
            self._pack_layer(layer, maps, (weights, biases, gradients))
        zero = len(self.flat) - 1
        weight_index, self.weight_copy = weights.build(self.device, self.dtype)
        bias_index, self.bias_copy = biases.build(self.device, torch.float32)
        self.weight_index, self.bias_index = (torch.where(i < 0, zero, i).int() for i in (weight_index, bias_index))
        back, self.gradient_copy = gradients.build(self.device, self.gradient_dtype)
        real = back >= 0
        self.gradient_from, self.gradient_to = real.nonzero()[:, 0].int(), back[real].int()

    def _pack_layer(self, layer: FusedLayer, maps: IndexMaps, buffers: Sequence[_PackedBuffer]) -> None:
        weights, biases, gradients = buffers
        for name, kernels, bias, gradients_of in layer.convolutions(maps):
            width = len(kernels[0])
            bias = [F.pad(b, (0, width - len(b)), value=PADDING) for b in bias]
            biases.add(bias, partial(_view, layer.biases, name, (len(bias), width)))
            self._pack_weight(layer, name, kernels, weights)
            if not self.training:
                continue
            gradients.add(bias, partial(_view, layer.bias_gradients, name, (len(bias), width)))
            self._pack_weight(layer, f"{name}_back", [k.flip(2, 3).transpose(0, 1) for k in kernels], weights)
            by_tap = [k.permute(2, 3, 1, 0).flatten(0, 1) for k in gradients_of or kernels]  # tap, in, out
            if layer.mirrored[name]:
                by_tap = [taps.flip(0).transpose(1, 2) for taps in by_tap]
            if (strides := _strides(by_tap)) is not None:
                layer.weight_gradients[name] = GradientView(self.flat_gradient[strides[0] :], *strides[1:])
            else:
                gradients.add(by_tap, partial(_gradient_view, layer, name, by_tap[0].shape))

    def images(self, layer: FusedLayer) -> int:
        """How many images per group tile sizes of the CUDA convolution are chosen for; 0 where Triton's is used."""
        return 32

    def choose_tiling(self, layer: FusedLayer, inputs: int, outputs: int, *, taps: int) -> ConvTiling:
        """Tile sizes of one of the layer's convolutions in Triton."""
        how: Any = {"taps": taps, "dtype": self.dtype, "device": self.device}
        return convolution_tiling(layer.height, layer.width, inputs, outputs, **how)

    def _pack_weight(self, layer: FusedLayer, name: str, kernels: list[Tensor], weights: _PackedBuffer) -> None:
        """View kernels (out, in, taps, taps) in the flat buffer if their layout allows it, else pack them."""
        outputs, inputs, taps, _ = kernels[0].shape
        images = self.images(layer) if self.halo else 0
        if images and (fitting := layer.halo_tilings(name, inputs, outputs, taps=taps, images=images)):
            packed = [halo_weights(kernel, fitting[0], padding=PADDING) for kernel in kernels]
            weights.add(packed, partial(_halo_view, layer, name, packed[0].numel(), outputs, taps))
            layer.tilings[name] = fitting[0]
            return
        tiling = layer.tilings[name] = self.choose_tiling(layer, inputs, outputs, taps=taps)
        strides = _strides([kernel.permute(2, 3, 1, 0) for kernel in kernels])
        if strides is None or tiling.py * tiling.px > 1 or taps * inputs % tiling.chunk:
            patches = [_patch_weights(kernel, tiling) for kernel in kernels]
            weights.add(patches, partial(_weight_view, layer, name, patches[0].shape, inputs))
            return
        start, group, row, tap, channel, to_next = strides
        if taps == 1:
            tap = inputs * channel  # inputs are one run
        layer.weights[name] = WeightView(self.flat_cast[start:], group, row, tap, channel, to_next, width=outputs)

    def _index_maps(self) -> IndexMaps:
        maps: IndexMaps = {}
        for p, start in zip(self.parameters, self.offsets, strict=True):
            elements = torch.arange(start, start + p.numel(), device=self.device)
            maps[p] = elements.as_strided(p.shape, p.stride())  # in memory order
        for fold in self.folds:
            n, half, out = len(fold.blocks), fold.half, fold.out
            products, biases = (
                torch.arange(s.start, s.stop, device=self.device).view(n, -1) for s in fold.slices[4:]
            )
            for block, product, bias in zip(fold.blocks, products, biases, strict=True):
                third = block.convs[2].weight.stride()[1:]  # type: ignore[operator]
                shape, start = (out, half, 3, 3), product.storage_offset()
                maps[block, "product"] = product.as_strided(shape, (half * 9, *third), start)
                # Its gradient is stored transposed, as the kernels accumulate it.
                maps[block, "product_gradient"] = product.as_strided(shape, (1, *(out * s for s in third)), start)
                maps[block, "product_bias"] = bias
        return maps

    @torch.no_grad()
    def prepare(self) -> None:
        """Fold, cast and pack the parameters' current values; set gradients to zero."""
        self.num_prepared += 1
        self.load_parameters()
        if self.training:
            self._copy_kept_gradients()
        for fold in self.folds:
            third, project, third_bias, project_bias, product, product_bias = fold.views(self.flat)
            torch.bmm(project, third, out=product)
            torch.baddbmm(project_bias, project, third_bias, out=product_bias)
        self.flat_cast.copy_(self.flat)
        gather_scatter(self.flat, self.weight_index, out=self.weight_copy)
        gather_scatter(self.flat, self.bias_index, out=self.bias_copy)
        if self.training:
            self.flat_gradient.zero_()
            self.gradient_copy.zero_()

    def prepare_if_changed(self) -> None:
        """`prepare`, unless no parameter was written to since; for sampling."""
        now = [p._version for p in self.parameters]
        if now != self._copied:
            self.prepare()
            self._copied = now

    def versions(self) -> list[int]:
        """Change whenever a parameter is written to, by itself or through the flat buffer."""
        return [self.flat._version, *(p._version for p in self.parameters)]

    @torch.no_grad()
    def load_parameters(self) -> None:
        """Copy the parameters to the flat buffer; in training they become views of it."""
        for p, start, stride in zip(self.parameters, self.offsets, self.strides, strict=True):
            if p.data_ptr() != self.flat.data_ptr() + start * self.flat.element_size():
                if p.stride() != stride:
                    raise RuntimeError(
                        "fused kernels: parameters have another memory format than when they were built"
                    )
                view = self.flat.as_strided(p.shape, p.stride(), start)
                view.copy_(p)
                if self.training:
                    p.data = view

    def _copy_kept_gradients(self) -> None:
        """Copy gradients of an earlier pass that are still in use (accumulation), before they are overwritten."""
        storage = self.flat_gradient.untyped_storage().data_ptr()
        for p in self.parameters:
            if p.grad is not None and p.grad.untyped_storage().data_ptr() == storage:
                p.grad = p.grad.clone()

    @torch.no_grad()
    def parameter_gradients(self) -> list[Tensor]:
        """The gradient of each parameter, from the accumulated weight gradients."""
        for layer in self.layers:
            if layer.has_skip:  # both biases add to the block's output
                layer.bias_gradients["skip"].copy_(layer.bias_gradients["third"])
        flat, gradient = self.flat.to(self.gradient_dtype), self.flat_gradient
        gather_scatter(self.gradient_copy, self.gradient_from, out=gradient, to_index=self.gradient_to)
        for fold in self.folds:
            third, project, third_bias, *_ = fold.views(flat)
            third_grad, project_grad, third_bias_grad, project_bias_grad, product, bias_grad = fold.views(gradient)
            product = product.view(len(product), -1, fold.out).mT  # it is stored transposed
            torch.bmm(project.mT, product, out=third_grad)
            torch.bmm(project.mT, bias_grad, out=third_bias_grad)
            torch.bmm(product, third.mT, out=project_grad)
            project_grad.baddbmm_(bias_grad, third_bias.mT)
            project_bias_grad.copy_(bias_grad)
        gradient, pairs = gradient.float(), zip(self.parameters, self.offsets, strict=True)
        return [gradient.as_strided(p.shape, p.stride(), start) for p, start in pairs]


def _view(owner: dict[str, Tensor], name: str, shape: tuple[int, int], data: Tensor) -> None:
    owner[name] = data[: prod(shape)].view(shape)


def _weight_view(layer: FusedLayer, name: str, shape: torch.Size, inputs: int, data: Tensor) -> None:
    rows, run, columns = shape
    size = rows * run * columns
    layer.weights[name] = WeightView(data, size, run * columns, inputs * columns, columns, 1, width=columns)


def _halo_view(layer: FusedLayer, name: str, size: int, outputs: int, taps: int, data: Tensor) -> None:
    layer.weights[name] = HaloWeights(data[: size * layer.num_groups], outputs, taps)


def _gradient_view(layer: FusedLayer, name: str, shape: torch.Size, data: Tensor) -> None:
    taps, rows, columns = shape
    layer.weight_gradients[name] = GradientView(data, taps * rows * columns, rows * columns, columns, 1)


def _strides(maps: Sequence[Int[Tensor, "..."]]) -> tuple[int, ...] | None:
    """(start, stride of groups, strides of the dimensions) if the index maps are regular and have no padding."""
    first = maps[0]
    start = int(first.flatten()[0])
    strides = [int(first.select(d, 1).flatten()[0]) - start if n > 1 else 0 for d, n in enumerate(first.shape)]
    expected = torch.full_like(first, start)
    for dim, stride in enumerate(strides):
        shape = [1] * first.ndim
        shape[dim] = -1
        expected = expected + (torch.arange(first.shape[dim], device=first.device) * stride).view(shape)
    group = int(maps[1].flatten()[0]) - start if len(maps) > 1 else 0
    regular = all(torch.equal(p, expected + i * group) for i, p in enumerate(maps))
    is_padded = start < 0 or any(int(p.min()) < 0 for p in maps)
    aligned = (start % 8, group % ALIGNED) == (0, 0)
    return (start, group, *strides) if regular and not is_padded and aligned else None


def _patch_weights(kernel: Int[Tensor, "o i t t"], tiling: ConvTiling) -> Int[Tensor, "rows run columns"]:
    """The layout of packed weights for `convolve`: the kernel once per pixel of a patch, shifted."""
    out, channels, taps, _ = kernel.shape
    by_tap = kernel.permute(2, 3, 1, 0)  # dy, dx, in, out
    rows, columns = tiling.py + taps - 1, tiling.px + taps - 1
    patch = by_tap.new_full((rows, columns, channels, tiling.py, tiling.px, out), PADDING)
    for y in range(tiling.py):
        for x in range(tiling.px):
            patch[y : y + taps, x : x + taps, :, y, x] = by_tap
    flat = patch.flatten(3).flatten(1, 2)
    return F.pad(flat, (0, 0, 0, tiling.run(channels, taps=taps) - flat.shape[1]), value=PADDING)
