"""The pass of one network of an HPU-Net, prior or posterior, without gradients, on fused kernels for one image size.

What the encoder gives is the same for all hypotheses of an image, and so is its share of the decoder: the first
convolutions of a scale take [features from below, features of the encoder, latents], and a convolution is a sum over
its inputs. The encoder's share is computed once per image, the share of the others for each hypothesis from the small
maps, before they are upsampled; both are kept in float32, and one kernel adds them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hpunet.kernels.layers import (
    ResidualLayer,
    channel_order,
    padded,
)
from hpunet.kernels.plan import BasePlan, Stage, run_block
from hpunet.kernels.sampling_layers import BelowLayer, JoinLayer, run_first_block
from hpunet.kernels.sampling_tiles import SamplingWeights
from hpunet.kernels.side_stream import SideStream
from hpunet.kernels.triton_maps import downsample
from hpunet.kernels.triton_sampling import Labels, append_latents, draw_latents, label
from hpunet.models.base import PerScale
from hpunet.models.blocks import Convolution
from hpunet.models.hpunet import LatentUNet

PIXELS_AT_ONCE = 2**20
"""Pixels of hypotheses that a decoder scale computes at once: of more hypotheses where maps are small."""


class Decoded(NamedTuple):
    """Latents of hypotheses, mean and log σ (not clamped) of their Gaussians, and labels if there are logits."""

    latents: Float[Tensor, "n m"]
    raw: Float[Tensor, "2 n m"]
    labels: Labels | None


class SamplingPlan(BasePlan):
    """Layers and weights of one network for images of one size."""

    def __init__(
        self, net: LatentUNet, *, in_channels: int, channels: Sequence[int], num_classes: int,
        latent_shapes: Sequence[tuple[int, ...]], size: tuple[int, int], logits: Convolution | None,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self.size, self.latent_shapes, self.in_width = size, latent_shapes, padded(in_channels)
        self.num_classes = num_classes
        scales, dims = len(channels), [*(shape[0] for shape in latent_shapes), *[0] * len(channels)]
        self.encoder: list[Stage] = []
        for depth, modules in enumerate(net.encoder):
            inputs = self.encoder_inputs(depth, [in_channels], channels)
            self.encoder.append(self.stage(ResidualLayer, [modules], depth, inputs))  # type: ignore[list-item]
        self.decoder: list[tuple[BelowLayer, JoinLayer, Stage]] = []
        for i in range(len(net.decoder)):
            stage: Any = net.decoder[i]
            blocks, depth, width = list(stage), scales - 2 - i, channels[-1 - i]
            (h, w), here = (size[0] >> depth, size[1] >> depth), channels[depth]
            below = BelowLayer(blocks[0], h // 2, w // 2, z=dims[i], below=width)
            join = JoinLayer(blocks[0], h, w, below=dims[i] + width, features=here)
            rest = self.stage(ResidualLayer, [blocks[1:]], depth, [channel_order((0, here))])
            self.decoder.append((below, join, rest))
        layers: list[Any] = [layer for stage in self.encoder for layer in stage]
        layers += [layer for below, join, rest in self.decoder for layer in (below, join, *rest)]
        self.max_images = self.limit_images(layers, groups=1, num_classes=num_classes)
        self.head_scales = [i for i in range(len(latent_shapes)) if dims[i]]
        modules_of: Any = [*([] if logits is None else [logits]), *(net.heads[i].conv for i in self.head_scales)]
        others = [[parameter] for module in modules_of for parameter in (module.weight, module.bias)]
        self.has_logits = logits is not None
        first = {id(layer) for stage in self.encoder for layer in stage}
        self.weights = SamplingWeights(layers, others=others, dtype=dtype, once_per_image=first)

    def _projection(self, which: int) -> tuple[Tensor, Tensor]:
        """Weight (out, in) and bias of a 1×1 convolution: of the logits if there are any, then of the heads."""
        weight, bias = self.weights.other_values[2 * which : 2 * which + 2]
        return weight[0].flatten(1), bias[0]

    def _scale(self, flat: Float[Tensor, "... m"], i: int) -> Float[Tensor, "... m2"]:
        sizes = [prod(shape) for shape in self.latent_shapes]
        return flat[..., sum(sizes[:i]) : sum(sizes[: i + 1])]

    def encode(self, x: Float[Tensor, "1 b h w c"]) -> list[Float[Tensor, "b _ _ _"]]:
        """The coarsest features, then for each decoder scale its `JoinLayer.shared`, coarsest first; all NHWC."""
        side, shared = SideStream(x.device), list[list[Tensor]]()
        features = []  # kept until the side stream has read them
        for depth, stage in enumerate(self.encoder):
            x = downsample(x) if depth else x
            for layer in stage:
                x = run_block(layer, x)[0]
            features.append(x)
            if 0 <= (i := len(self.encoder) - 2 - depth) < len(self.decoder):
                with side.fork():  # nothing in the encoder waits for it
                    shared.append(self.decoder[i][1].shared(x))
        if shared:  # a stream without work must not be joined while a graph is captured
            side.join()
        return [x[0], *(part[0] for parts in reversed(shared) for part in parts)]

    def decode(
        self, features: Sequence[Tensor], *, entries: Int[Tensor, " n"], noise: PerScale, given: PerScale,
        orientation_ids: Int[Tensor, " n"] | None = None, keep_logits: bool = False,
    ) -> Decoded:  # fmt: skip
        """n hypotheses; number i belongs to entry `entries[i]` of the features. `noise`, `given`: `HPUNet.decode`."""
        n, m, device = len(entries), sum(prod(shape) for shape in self.latent_shapes), entries.device
        latents, raw = torch.empty(n, m, device=device), torch.empty(2, n, m, device=device)
        labels = None
        if self.has_logits:
            how: dict[str, Any] = {"num_classes": self.num_classes, "keep_logits": keep_logits}
            labels = Labels.empty(n, *self.size, **how, device=device)
        run = _Run(features, entries, noise, given, orientation_ids, Decoded(latents, raw, labels))
        self._decode_from(0, features[0].index_select(0, entries).unsqueeze(0), slice(0, n), run)
        return run.out

    def _decode_from(self, i: int, x: Float[Tensor, "1 r h w c"], rows: slice, run: "_Run") -> None:
        """Scale i and finer ones of some hypotheses, a part at a time where that would be many pixels."""
        out, z = run.out, None
        if i in self.head_scales:
            weight, bias = self._projection(self.has_logits + self.head_scales.index(i))
            noise, given = (None if v is None else v[rows].flatten(1) for v in (run.noise[i], run.given[i]))
            flat, raw = self._scale(out.latents[rows], i), self._scale(out.raw[:, rows], i)
            draw_latents(x[0], weight=weight, bias=bias, noise=noise, given=given, raw=raw, latents=flat)
            z = flat.unflatten(1, self.latent_shapes[i])
        if i == len(self.decoder):
            if out.labels is not None:
                weight, bias = self._projection(0)
                ids = None if run.orientation_ids is None else run.orientation_ids[rows]
                label(x[0], weight=weight, bias=bias, orientation_ids=ids, out=out.labels.of(rows))
            return
        below, join, stage = self.decoder[i]
        x = x if z is None else append_latents(x, z, width=below.widths[0])
        shared, count = run.features[1 + 2 * i : 3 + 2 * i], rows.stop - rows.start
        size = max(1, PIXELS_AT_ONCE // (join.height * join.width))
        size -= size % 16 if size > 16 else 0  # kernels are compiled for multiples of 16
        for start in range(0, count, size):
            own = slice(rows.start + start, min(rows.start + start + size, rows.stop))
            part = x[:, start : start + size]
            y = run_first_block(below, join, part, shared=shared, entries=run.entries[own])
            for layer in stage:
                y = run_block(layer, y)[0]
            self._decode_from(i + 1, y, own, run)


@dataclass(frozen=True)
class _Run:
    """What `SamplingPlan.decode` gets, and what it fills."""

    features: Sequence[Tensor]
    entries: Int[Tensor, " n"]
    noise: PerScale
    given: PerScale
    orientation_ids: Int[Tensor, " n"] | None
    out: Decoded
