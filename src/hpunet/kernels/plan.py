"""The HPU-Net's passes and their gradients, written out on fused kernels, for images of one size.

The same function of the same parameters as `models/hpunet.py`. What is different:

* Prior and posterior have the same shape, so they run side by side as two groups of one launch, until the posterior
  ends at its last latent.
* A residual block is three convolutions (`convolution.py`), one more where it has a skip. Weights are laid out for
  all blocks at once (`weights.py`).
* Everything between blocks is one kernel each way (`maps.py`).
* Gradients of weights are not waited for: on a GPU they run beside the chain of gradients of maps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hpunet.errors import ConfigError
from hpunet.kernels.flat_parameters import Weights
from hpunet.kernels.layers import Layer, channel_order, padded
from hpunet.kernels.running import Beside, add_weight_gradient, run, run_back
from hpunet.kernels.triton_maps import (
    add_up_pixels,
    below_gradient,
    feature_gradient,
    halve,
    heads,
    heads_gradient,
    join,
    logits,
    logits_gradient,
)
from hpunet.models.base import PerScale
from hpunet.models.hpunet import HPUNet

Stage = list[Layer]


def run_block(layer: Layer, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A layer's output, and the two maps inside that its gradient needs."""
    h1 = run(layer, "first", x, relu_input=True, relu_output=True)
    h2 = run(layer, "second", h1, relu_output=True)
    return run(layer, "third", h2, residual=run(layer, "skip", x) if layer.has_skip else x), h1, h2


Ran = tuple[Layer, Tensor, Tensor, Tensor]
"""A layer, its input and the two maps inside."""


def stage_gradient(blocks: list[Ran], g: Tensor, *, beside: Beside, input_gradient: bool = True) -> Tensor | None:
    """The gradient of the input of layers that follow each other; those of their weights are added to what is there.

    The list is emptied on the way, so that maps are let go of.
    """
    with beside.start():
        add_up_pixels(g, out=blocks[-1][0].bias_gradients["third"])
    back: Tensor | None = g
    while blocks:
        assert back is not None
        ran = blocks.pop()
        sums = blocks[-1][0].bias_gradients["third"] if blocks else None
        wanted = bool(blocks) or input_gradient
        back = _block_gradient(*ran, back, beside=beside, input_gradient=wanted, sums=sums)
    return back


def _block_gradient(
    layer: Layer, x: Tensor, h1: Tensor, h2: Tensor, g: Tensor, *,
    beside: Beside, input_gradient: bool, sums: Tensor | None,
) -> Tensor | None:  # fmt: skip
    """As `stage_gradient`, but for the gradient of the third bias, the sum of g; `sums` gets that of the result."""
    biases = layer.bias_gradients
    with beside.start():
        add_weight_gradient(layer, "third", h2, g)
        if layer.has_skip:
            add_weight_gradient(layer, "skip", x, g)
    g2 = run_back(layer, "third", g, gate=h2, sums=biases["second"])
    with beside.start():
        add_weight_gradient(layer, "second", h1, g2)
    g1 = run_back(layer, "second", g2, gate=h1, sums=biases["first"])
    with beside.start():
        add_weight_gradient(layer, "first", x, g1, relu=True)
    beside.keep(x, h1, h2, g, g1, g2)
    if not input_gradient:
        return None
    residual = run_back(layer, "skip", g) if layer.has_skip else g
    return run_back(layer, "first", g1, gate=x, residual=residual, sums=sums)


@dataclass
class _Decoded:
    """What the gradients of a decoder's pass need of it."""

    blocks: list[Ran]
    features: list[Tensor]
    """What the heads saw."""
    last: Tensor
    noise: Float[Tensor, "b n"]
    raw: Float[Tensor, "g 2 b n"]


@dataclass
class _Trace:
    """What the backward pass needs of the forward pass."""

    blocks: list[Ran]
    """Of the encoders."""
    decoded: _Decoded
    samples: _Decoded | None = None
    """Of the prior's own draws."""


class BasePlan:
    """What passes of all models have."""

    weights: Weights
    latent_shapes: Sequence[tuple[int, int, int]]
    in_width: int
    """Channels of the first maps."""
    num_prior_inputs = 1
    """Networks that see what the prior does."""
    size: tuple[int, int]
    most_images: int
    """Kernels count in 32 bits."""

    @staticmethod
    def images_that_can_be_counted(numbers: Iterable[int]) -> int:
        """From the numbers in maps of one image, of each layer."""
        return (2**31 - 1) // max(numbers)

    def check_batch(self, images: int) -> None:
        """Raise a `ConfigError` if so many images are too many at once."""
        if images > self.most_images:
            raise ConfigError(
                f"fused kernels take at most {self.most_images} images of {self.size[0]}x{self.size[1]} at once, got "
                f"{images}; work in pieces (optimiser.accumulation_steps, chunk_size) or with kernels torch"
            )


class Plan(BasePlan):
    """Layers and weights of an HPU-Net for images of one size."""

    def __init__(self, model: HPUNet, *, height: int, width: int, dtype: torch.dtype, training: bool) -> None:
        self.latent_shapes = model.latent_shapes(height, width)
        nets = [model.prior, model.posterior] if training else [model.prior]
        scales, n = len(model.channels), len(model.latent_dims)
        sizes = [(height >> depth, width >> depth) for depth in range(scales)]
        seen = [model.in_channels + model.cond_channels, model.num_classes + model.in_channels][: len(nets)]
        self.in_width = padded(max(seen))

        def stage(stages: list[nn.Sequential], depth: int, inputs: list[Tensor]) -> Stage:
            """The layers of a scale; the first has the given inputs."""
            layers = []
            for blocks in zip(*stages, strict=True):
                layers.append(Layer(list(blocks), *sizes[depth], inputs))
                inputs = [channel_order((0, layers[-1].out_channels))] * len(blocks)
            return layers

        self.encoder: list[Stage] = []
        for depth in range(scales):
            if depth:
                inputs = [channel_order((0, model.channels[depth - 1]))] * len(nets)
            else:
                inputs = [padded_to(channel_order((0, c)), self.in_width) for c in seen]
            self.encoder.append(stage([net.encoder[depth] for net in nets], depth, inputs))  # type: ignore[misc]
        self.decoder: list[Stage] = []
        self.latent_offset: list[int] = []
        """Where in a decoder's input the latents begin."""
        for i in range(scales - 1):
            z = model.latent_dims[i] if i < n else 0
            below, here = model.channels[-1 - i], model.channels[-2 - i]
            groups = [net for net in nets if i < len(net.decoder)]
            parts = [(z, below), (z + below, here), *([(0, z)] if z else [])]
            inputs = [channel_order(*parts)] * len(groups)
            self.latent_offset.append(padded(below) + padded(here))
            self.decoder.append(stage([net.decoder[i] for net in groups], scales - 2 - i, inputs))  # type: ignore[misc]
        layers = [layer for stage in (*self.encoder, *self.decoder) for layer in stage]
        self.size = height, width
        self.most_images = self.images_that_can_be_counted(
            len(layer.blocks) * layer.height * layer.width * max(layer.widths) for layer in layers
        )
        self.head_scales = [i for i in range(n) if model.latent_dims[i]]
        convs = [[net.heads[i].conv for net in nets] for i in self.head_scales]
        others = [[model.logits.weight], [model.logits.bias]]
        for pair in convs:
            others += [[conv.weight for conv in pair], [conv.bias for conv in pair]]  # type: ignore[union-attr]
        self.weights = Weights(layers, others=others, dtype=dtype, training=training)  # type: ignore[arg-type]

    def projection(self, which: int, *, gradient: bool = False) -> tuple[Tensor, Tensor]:
        """Weight (groups, out, in) and bias of the logits (0) or of the heads of a scale (1 + scale)."""
        at = 0 if which == 0 else 1 + self.head_scales.index(which - 1)
        where = self.weights.other_gradients if gradient else self.weights.other_values
        return where[2 * at].flatten(2), where[2 * at + 1]

    def scale(self, flat: Float[Tensor, "... n"], i: int) -> Float[Tensor, "... m"]:
        """This scale's part of what all scales have."""
        sizes = [prod(shape) for shape in self.latent_shapes]
        return flat[..., sum(sizes[:i]) : sum(sizes[: i + 1])]

    def forward(
        self,
        x: Float[Tensor, "2 b h w c"],
        noise: Float[Tensor, "b n"],
        prior_noise: Float[Tensor, "b s n"] | None,
    ) -> tuple[
        Float[Tensor, "b k h w"],
        Float[Tensor, "2 2 b n"],
        Float[Tensor, "b n"],
        Float[Tensor, "t k h w"] | None,
        _Trace,
    ]:
        """Logits, means and log σ (not clamped) of all heads as (net, mean or log σ, image, position), latents.

        The posterior draws the latents with `noise`; both decoders get them. With `prior_noise` the prior draws
        hypotheses by itself: their logits, those of an image one after the other.
        """
        blocks: list[Ran] = []
        features: list[Tensor] = []
        for depth, stage in enumerate(self.encoder):
            x = _run_stage(stage, halve(x) if depth else x, blocks)
            features.append(x)
        out, latents, decoded = self._decode(features[::-1], noise)
        trace = _Trace(blocks, decoded)
        drawn = None
        if prior_noise is not None:
            own = [f[:1].repeat_interleave(prior_noise.shape[1], dim=1) for f in reversed(features)]
            drawn, _, trace.samples = self._decode(own, prior_noise.flatten(0, 1))
        return out, decoded.raw, latents, drawn, trace

    def _decode(
        self, features: Sequence[Float[Tensor, "g b _ _ _"]], noise: Float[Tensor, "b n"]
    ) -> tuple[Float[Tensor, "b k h w"], Float[Tensor, "b n"], _Decoded]:
        """Logits and latents: of both networks, or of the prior alone. The last of them draws."""
        x = features[0]
        raw = torch.empty(x.shape[0], 2, *noise.shape, device=x.device)
        latents = torch.empty_like(noise)
        blocks: list[Ran] = []
        seen = []
        for i, stage in enumerate(self.decoder):
            z = None
            if i < len(self.latent_shapes):
                seen.append(x)
            if i in self.head_scales:
                weight, bias = self.projection(1 + i)
                flat = [self.scale(t, i) for t in (noise, raw, latents)]
                of_these = {"weight": weight[: len(x)], "bias": bias[: len(x)]}
                heads(x, **of_these, noise=flat[0], raw=flat[1], latents=flat[2])
                z = flat[2].unflatten(1, self.latent_shapes[i])
            groups, width = min(len(x), len(stage[0].blocks)), stage[0].widths[0]
            x = _run_stage(stage, join(x[:groups], features[i + 1][:groups], latents=z, width=width), blocks)
        weight, bias = self.projection(0)
        out = logits(x[0], weight=weight[0], bias=bias[0])
        return out, latents, _Decoded(blocks=blocks, features=seen, last=x, noise=noise, raw=raw)

    def encode(self, x: Float[Tensor, "1 b h w c"]) -> list[Tensor]:
        """The prior's encoder features, coarsest first."""
        features = []
        for depth, stage in enumerate(self.encoder):
            x = halve(x) if depth else x
            for layer in stage:
                x = run_block(layer, x)[0]
            features.append(x)
        return features[::-1]

    def decode(
        self, features: Sequence[Tensor], *, noise: PerScale, given: PerScale
    ) -> tuple[Float[Tensor, "b k h w"], Float[Tensor, "b n"], Float[Tensor, "1 2 b n"]]:
        """Logits, latents and the prior's Gaussians (raw) of all scales; noise and given as in `HPUNet.decode`."""
        b, device = features[0].shape[1], features[0].device
        n = sum(prod(shape) for shape in self.latent_shapes)
        raw, latents = torch.empty(1, 2, b, n, device=device), torch.empty(b, n, device=device)
        x = features[0]
        for i, stage in enumerate(self.decoder):
            z = None
            if i in self.head_scales:
                weight, bias = self.projection(1 + i)
                flat = self.scale(latents, i)
                z = flat.unflatten(1, self.latent_shapes[i])
                if (values := given[i]) is not None:
                    z.copy_(values)
                drawn = noise[i].flatten(1).float() if noise[i] is not None else torch.zeros_like(flat)  # type: ignore[union-attr]
                heads(
                    x, weight=weight, bias=bias, noise=None if given[i] is not None else drawn,
                    raw=self.scale(raw, i), latents=flat,
                )  # fmt: skip
            x = join(x, features[i + 1], latents=z, width=stage[0].widths[0])
            for layer in stage:
                x = run_block(layer, x)[0]
        weight, bias = self.projection(0)
        return logits(x[0], weight=weight[0], bias=bias[0]), latents, raw

    def backward(self, trace: _Trace, logits_grad: Tensor, raw_grad: Tensor, samples_grad: Tensor | None) -> None:
        """Add all gradients to those of the weights."""
        beside = Beside(logits_grad.device)
        of_samples: list[Tensor] = []
        if trace.samples is not None and samples_grad is not None:
            of_samples = self._features_of_samples(trace, samples_grad, beside=beside)
        g, joined = self._decoder_gradient(trace.decoded, logits_grad, raw_grad, beside=beside)
        for depth, stage in reversed(list(enumerate(self.encoder))):
            if of_samples:
                g[:1] += of_samples.pop()
            g = _stage_back(stage, trace.blocks, g, beside=beside, input_gradient=depth > 0)
            if depth:
                whole, offset = joined.pop()
                g = feature_gradient(g, whole, offset=offset)
        beside.finish()

    def _features_of_samples(self, trace: _Trace, samples_grad: Tensor, *, beside: Beside) -> list[Tensor]:
        """What the prior's own draws add to the gradients of its encoder's features, finest first."""
        samples = trace.samples
        assert samples is not None
        nothing = torch.zeros_like(samples.raw)
        g, joined = self._decoder_gradient(samples, samples_grad, nothing, beside=beside)
        b = trace.decoded.noise.shape[0]
        finer = [
            whole[..., offset : offset + padded(self._channels_here(i))]
            for (whole, offset), i in zip(joined, reversed(range(len(self.decoder))), strict=True)
        ]
        return [part.unflatten(1, (b, -1)).sum(dim=2, dtype=torch.float32).to(g.dtype) for part in (*finer, g)]

    def _decoder_gradient(
        self, decoded: _Decoded, logits_grad: Tensor, raw_grad: Tensor, *, beside: Beside
    ) -> tuple[Tensor, list[tuple[Tensor, int]]]:
        """The gradient of the coarsest features; those of the decoder's inputs, finest first, with where the
        encoder's part begins in them."""
        weight, _ = self.projection(0)
        weight_grad, bias_grad = self.projection(0, gradient=True)
        g = logits_gradient(
            decoded.last[0], logits_grad, weight=weight[0], weight_gradient=weight_grad[0], bias_gradient=bias_grad[0]
        ).unsqueeze(0)
        joined: list[tuple[Tensor, int]] = []
        for i, stage in reversed(list(enumerate(self.decoder))):
            whole = _stage_back(stage, decoded.blocks, g, beside=beside)
            width = padded(self._channels_below(i))
            joined.append((whole, width))
            g = below_gradient(whole, width=width)
            if i < len(self.latent_shapes):
                x = decoded.features[i]
                if i in self.head_scales:
                    weight, _ = self.projection(1 + i)
                    weight_grad, bias_grad = self.projection(1 + i, gradient=True)
                    noise, raw, raw_part = (self.scale(t, i) for t in (decoded.noise, decoded.raw, raw_grad))
                    g = heads_gradient(
                        x, weight=weight[: len(x)], noise=noise, raw=raw, raw_gradient=raw_part, joined=whole,
                        offset=self.latent_offset[i], below=g,
                        weight_gradient=weight_grad[: len(x)], bias_gradient=bias_grad[: len(x)],
                    )  # fmt: skip
                elif g.shape[0] < x.shape[0]:  # nothing comes from the posterior here
                    g = torch.cat([g, torch.zeros_like(x[g.shape[0] :])])
        return g, joined

    def _channels_here(self, i: int) -> int:
        """Of the encoder's part of a decoder's input."""
        return self.encoder[len(self.encoder) - 2 - i][-1].out_channels

    def _channels_below(self, i: int) -> int:
        stage = self.decoder[i - 1] if i else self.encoder[-1]
        return stage[-1].out_channels


def _run_stage(stage: Stage, x: Tensor, blocks: list[Ran]) -> Tensor:
    """A stage's output; what its gradient needs is put at the end of `blocks`."""
    for layer in stage:
        out, h1, h2 = run_block(layer, x)
        blocks.append((layer, x, h1, h2))
        x = out
    return x


def _stage_back(stage: Stage, blocks: list[Ran], g: Tensor, *, beside: Beside, input_gradient: bool = True) -> Any:
    """The gradient of a stage's input, if it is wanted; what it needs is taken from the end of `blocks`."""
    own = blocks[-len(stage) :]
    del blocks[-len(stage) :]
    return stage_gradient(own, g, beside=beside, input_gradient=input_gradient)


def padded_to(order: Int[Tensor, " c"], width: int) -> Int[Tensor, " d"]:
    """With places for padding up to a width."""
    return torch.cat([order, order.new_full((width - len(order),), -1)])
