"""The HPU-Net's training pass and its gradients, written out on fused kernels for one image size.

The same function of the same parameters as `models/hpunet.py`. Prior and posterior run side by side as two groups of
one launch, until the posterior ends at its last latent. A residual block is three convolutions
(`triton_convolution.py`), plus one if it has a skip; everything between blocks is one kernel in each direction
(`triton_maps.py`, `triton_heads.py`). Weight gradients run on a second stream.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hpunet.errors import ConfigError
from hpunet.kernels.flat_parameters import Weights
from hpunet.kernels.layers import ConvLayer, FusedLayer, ResidualLayer, channel_order, padded
from hpunet.kernels.side_stream import SideStream
from hpunet.kernels.triton_heads import heads, heads_gradient, logits, logits_gradient
from hpunet.kernels.triton_maps import (
    add_pixel_sums,
    downsample,
    feature_gradient,
    upsample_concat,
    upsample_gradient,
)
from hpunet.models.hpunet import HPUNet

LayerT = TypeVar("LayerT", ResidualLayer, ConvLayer)
Stage = list[ResidualLayer]
MAX_INDEX = 2**31 - 2**16  # the last program of a launch may count a few thousand further


def run_block(layer: ResidualLayer, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The layer's output, and the two inner maps that its gradient needs."""
    h1 = layer.convolve("first", x, relu_input=True, relu_output=True)
    h2 = layer.convolve("second", h1, relu_output=True)
    return layer.convolve("third", h2, residual=layer.convolve("skip", x) if layer.has_skip else x), h1, h2


BlockTrace = tuple[ResidualLayer, Tensor, Tensor, Tensor]  # A layer, its input and its two inner maps


def stage_gradient(
    blocks: list[BlockTrace], g: Tensor, *, side: SideStream, input_gradient: bool = True
) -> Tensor | None:
    """The gradient of the input of consecutive layers; accumulates weight gradients, and empties the list."""
    with side.fork():
        add_pixel_sums(g, out=blocks[-1][0].bias_gradients["third"])
    back: Tensor | None = g
    while blocks:
        assert back is not None
        block = blocks.pop()
        sums = blocks[-1][0].bias_gradients["third"] if blocks else None
        needed = bool(blocks) or input_gradient
        back = _block_gradient(*block, back, side=side, input_gradient=needed, sums=sums)
    return back


def _block_gradient(
    layer: ResidualLayer, x: Tensor, h1: Tensor, h2: Tensor, g: Tensor, *,
    side: SideStream, input_gradient: bool, sums: Tensor | None,
) -> Tensor | None:  # fmt: skip
    """As `stage_gradient`, without the third bias; adds the sum of the result over pixels to `sums`."""
    biases = layer.bias_gradients
    with side.fork():
        layer.add_weight_gradient("third", h2, g)
        if layer.has_skip:
            layer.add_weight_gradient("skip", x, g)
    g2 = layer.input_gradient("third", g, gate=h2, sums=biases["second"])
    with side.fork():
        layer.add_weight_gradient("second", h1, g2)
    g1 = layer.input_gradient("second", g2, gate=h1, sums=biases["first"])
    with side.fork():
        layer.add_weight_gradient("first", x, g1, relu=True)
    side.keep_alive(x, h1, h2, g, g1, g2)
    if not input_gradient:
        return None
    residual = layer.input_gradient("skip", g) if layer.has_skip else g
    return layer.input_gradient("first", g1, gate=x, residual=residual, sums=sums)


@dataclass
class _DecoderTrace:
    """What the gradient of a decoder pass needs."""

    blocks: list[BlockTrace]
    features: list[Tensor]  # inputs of the heads
    last: Tensor
    noise: Float[Tensor, "b n"]
    raw: Float[Tensor, "g 2 b n"]


@dataclass
class _Trace:
    """What the backward pass needs from the forward pass."""

    blocks: list[BlockTrace]  # of the encoders
    decoder: _DecoderTrace
    samples: _DecoderTrace | None = None  # of the hypotheses drawn from the prior


class BasePlan:
    """What the plans of all models share."""

    weights: Weights
    latent_shapes: Sequence[tuple[int, ...]]
    in_width: int  # channels of the input maps
    num_prior_inputs = 1  # number of networks with the prior's input
    size: tuple[int, int]
    max_images: int  # kernels index with 32 bits

    def stage(
        self, kind: type[LayerT], stages: Iterable[Iterable[Any]], depth: int, inputs: list[Int[Tensor, " c"]]
    ) -> list[LayerT]:
        """The layers of one scale, from the modules of each group; `inputs` is the first layer's."""
        layers: list[LayerT] = []
        for modules in zip(*stages, strict=True):
            layers.append(kind(modules, self.size[0] >> depth, self.size[1] >> depth, inputs))
            inputs = [channel_order((0, layers[-1].out_channels))] * len(modules)
        return layers

    def encoder_inputs(self, depth: int, in_channels: Sequence[int], channels: Sequence[int]) -> list[Tensor]:
        """The input channels of an encoder scale, per group."""
        if depth:
            return [channel_order((0, channels[depth - 1]))] * len(in_channels)
        return [channel_order((0, c), width=self.in_width) for c in in_channels]

    def limit_images(self, layers: Iterable[FusedLayer], *, groups: int, num_classes: int) -> int:
        """The most images whose maps all have 32-bit indices: of the layers, of the groups' heads, and logits."""
        pixels, latents = self.size[0] * self.size[1], sum(prod(shape) for shape in self.latent_shapes)
        maps = [layer.num_groups * layer.height * layer.width * max(layer.widths) for layer in layers]
        return MAX_INDEX // max(*maps, groups * 2 * latents, num_classes * pixels)

    def check_batch(self, images: int) -> None:
        """Raise a `ConfigError` if there are too many images for 32-bit indices."""
        if images > self.max_images:
            size, training = f"{self.size[0]}x{self.size[1]}", self.weights.training
            if self.max_images == 0:
                advice = "a smaller data.crop or optimiser.kernels=torch" if training else "kernels torch, with tiles"
                raise ConfigError(f"fused kernels cannot index the maps of one image of {size}; use {advice}")
            advice = "a larger optimiser.accumulation_steps" if training else "fewer images, a smaller chunk_size"
            raise ConfigError(
                f"fused kernels take at most {self.max_images} images of {size} at once, got {images}; use {advice} "
                "or kernels torch"
            )


class Plan(BasePlan):
    """Layers and weights of an HPU-Net for images of one size."""

    def __init__(self, model: HPUNet, *, height: int, width: int, dtype: torch.dtype) -> None:
        self.size = height, width
        self.latent_shapes = model.latent_shapes(height, width)
        nets = [model.prior, model.posterior]
        scales, n = len(model.channels), len(model.latent_dims)
        in_channels = [model.in_channels + model.cond_channels, model.num_classes + model.in_channels]
        self.in_width = padded(max(in_channels))
        self.encoder: list[Stage] = []
        for depth in range(scales):
            inputs = self.encoder_inputs(depth, in_channels, model.channels)
            stages: Any = [net.encoder[depth] for net in nets]
            self.encoder.append(self.stage(ResidualLayer, stages, depth, inputs))
        self.decoder: list[Stage] = []
        self.latent_offset: list[int] = []  # first channel of the latents in a decoder's input
        for i in range(scales - 1):
            z = model.latent_dims[i] if i < n else 0
            below, here = model.channels[-1 - i], model.channels[-2 - i]
            stages = [net.decoder[i] for net in nets if i < len(net.decoder)]
            parts = [(z, below), (z + below, here), *([(0, z)] if z else [])]
            inputs = [channel_order(*parts)] * len(stages)
            self.latent_offset.append(padded(below) + padded(here))
            self.decoder.append(self.stage(ResidualLayer, stages, scales - 2 - i, inputs))
        layers = [layer for stage in (*self.encoder, *self.decoder) for layer in stage]
        self.max_images = self.limit_images(layers, groups=len(nets), num_classes=model.num_classes)
        self.head_scales = [i for i in range(n) if model.latent_dims[i]]
        convs: Any = [[net.heads[i].conv for net in nets] for i in self.head_scales]
        others: Any = [[model.logits.weight], [model.logits.bias]]
        for pair in convs:
            others += [[conv.weight for conv in pair], [conv.bias for conv in pair]]
        self.weights = Weights(layers, others=others, dtype=dtype, training=True)

    def projection(self, which: int, *, gradient: bool = False) -> tuple[Tensor, Tensor]:
        """Weight (groups, out, in) and bias of the logits (0) or of the heads of a scale (1 + scale)."""
        at = 0 if which == 0 else 1 + self.head_scales.index(which - 1)
        tensors = self.weights.other_gradients if gradient else self.weights.other_values
        return tensors[2 * at].flatten(2), tensors[2 * at + 1]

    def scale(self, flat: Float[Tensor, "... n"], i: int) -> Float[Tensor, "... m"]:
        """The slice of one scale."""
        sizes = [prod(shape) for shape in self.latent_shapes]
        return flat[..., sum(sizes[:i]) : sum(sizes[: i + 1])]

    def forward(
        self, x: Float[Tensor, "2 b h w c"], noise: Float[Tensor, "b n"], prior_noise: Float[Tensor, "b s n"] | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, _Trace]:
        """Logits; mean and log σ (not clamped) of all heads (net, mean or log σ, b, n); the posterior's latents.

        With `prior_noise` also the logits (b·s, k, h, w) of hypotheses drawn from the prior.
        """
        blocks: list[BlockTrace] = []
        features: list[Tensor] = []
        for depth, stage in enumerate(self.encoder):
            x = _run_stage(stage, downsample(x) if depth else x, blocks)
            features.append(x)
        out, latents, decoder = self._decode(features[::-1], noise)
        trace = _Trace(blocks, decoder)
        drawn = None
        if prior_noise is not None:
            repeated = [f[:1].repeat_interleave(prior_noise.shape[1], dim=1) for f in reversed(features)]
            drawn, _, trace.samples = self._decode(repeated, prior_noise.flatten(0, 1))
        return out, decoder.raw, latents, drawn, trace

    def _decode(
        self, features: Sequence[Float[Tensor, "g b _ _ _"]], noise: Float[Tensor, "b n"]
    ) -> tuple[Float[Tensor, "b k h w"], Float[Tensor, "b n"], _DecoderTrace]:
        """Logits and latents, for both networks or for the prior alone; the last group draws the latents."""
        x, latents, head_inputs = features[0], torch.empty_like(noise), []
        raw = torch.empty(x.shape[0], 2, *noise.shape, device=x.device)
        blocks: list[BlockTrace] = []
        for i, stage in enumerate(self.decoder):
            z = None
            if i < len(self.latent_shapes):
                head_inputs.append(x)
            if i in self.head_scales:
                weight, bias = (t[: len(x)] for t in self.projection(1 + i))
                noise_part, raw_part, latents_part = (self.scale(t, i) for t in (noise, raw, latents))
                heads(x, weight=weight, bias=bias, noise=noise_part, raw=raw_part, latents=latents_part)
                z = latents_part.unflatten(1, self.latent_shapes[i])
            groups, width = min(len(x), len(stage[0].blocks)), stage[0].widths[0]
            joined = upsample_concat(x[:groups], features[i + 1][:groups], latents=z, width=width)
            x = _run_stage(stage, joined, blocks)
        weight, bias = self.projection(0)
        out = logits(x[0], weight=weight[0], bias=bias[0])
        return out, latents, _DecoderTrace(blocks=blocks, features=head_inputs, last=x, noise=noise, raw=raw)

    def backward(self, trace: _Trace, logits_grad: Tensor, raw_grad: Tensor, samples_grad: Tensor | None) -> None:
        """Accumulate all gradients in those of the weights."""
        side = SideStream(logits_grad.device)
        sample_gradients: list[Tensor] = []
        if trace.samples is not None and samples_grad is not None:
            sample_gradients = self._sample_feature_gradients(trace, samples_grad, side=side)
        g, joined = self._decoder_gradient(trace.decoder, logits_grad, raw_grad, side=side)
        for depth, stage in reversed(list(enumerate(self.encoder))):
            if sample_gradients:
                g[:1] += sample_gradients.pop()
            g = _pop_stage_gradient(stage, trace.blocks, g, side=side, input_gradient=depth > 0)
            if depth:
                whole, offset = joined.pop()
                g = feature_gradient(g, whole, offset=offset)
        side.join()

    def _sample_feature_gradients(self, trace: _Trace, samples_grad: Tensor, *, side: SideStream) -> list[Tensor]:
        """Gradients of the prior's encoder features from its drawn hypotheses, finest first."""
        samples, b = trace.samples, trace.decoder.noise.shape[0]
        assert samples is not None
        g, joined = self._decoder_gradient(samples, samples_grad, torch.zeros_like(samples.raw), side=side)
        pairs = zip(joined, self.encoder[:-1], strict=True)  # finest first
        finer = [whole[..., offset : offset + padded(stage[-1].out_channels)] for (whole, offset), stage in pairs]
        return [part.unflatten(1, (b, -1)).sum(dim=2, dtype=torch.float32).to(g.dtype) for part in (*finer, g)]

    def _decoder_gradient(
        self, decoder: _DecoderTrace, logits_grad: Tensor, raw_grad: Tensor, *, side: SideStream
    ) -> tuple[Tensor, list[tuple[Tensor, int]]]:
        """Gradients of the coarsest features, and of decoder inputs (finest first, with the encoder's offset)."""
        weight, _ = self.projection(0)
        weight_grad, bias_grad = self.projection(0, gradient=True)
        g = logits_gradient(
            decoder.last[0], logits_grad, weight=weight[0], weight_gradient=weight_grad[0], bias_gradient=bias_grad[0]
        ).unsqueeze(0)
        joined: list[tuple[Tensor, int]] = []
        for i, stage in reversed(list(enumerate(self.decoder))):
            whole = _pop_stage_gradient(stage, decoder.blocks, g, side=side)
            width = padded((self.decoder[i - 1] if i else self.encoder[-1])[-1].out_channels)
            joined.append((whole, width))
            g = upsample_gradient(whole, width=width)
            if i >= len(self.latent_shapes):
                continue
            x = decoder.features[i]
            if i in self.head_scales:
                weight, _ = self.projection(1 + i)
                weight_grad, bias_grad = self.projection(1 + i, gradient=True)
                noise, raw, raw_part = (self.scale(t, i) for t in (decoder.noise, decoder.raw, raw_grad))
                g = heads_gradient(
                    x, weight=weight[: len(x)], noise=noise, raw=raw, raw_gradient=raw_part, joined=whole, below=g,
                    offset=self.latent_offset[i],
                    weight_gradient=weight_grad[: len(x)], bias_gradient=bias_grad[: len(x)],
                )  # fmt: skip
            elif len(g) < len(x):  # the posterior ended: its gradient is 0
                g = torch.cat([g, torch.zeros_like(x[len(g) :])])
        return g, joined


def _run_stage(stage: Stage, x: Tensor, blocks: list[BlockTrace] | None = None) -> Tensor:
    """A stage's output; appends to `blocks` what its gradient needs."""
    for layer in stage:
        out, h1, h2 = run_block(layer, x)
        if blocks is not None:
            blocks.append((layer, x, h1, h2))
        x = out
    return x


def _pop_stage_gradient(
    stage: Stage, blocks: list[BlockTrace], g: Tensor, *, side: SideStream, input_gradient: bool = True
) -> Any:
    """`stage_gradient` of the stage's blocks, taken from the end of `blocks`."""
    own = blocks[-len(stage) :]
    del blocks[-len(stage) :]
    return stage_gradient(own, g, side=side, input_gradient=input_gradient)
