"""The Probabilistic U-Net's training pass and its gradients, written out on fused kernels for one image size.

The same function of the same parameters as `models/punet.py`. The encoders of U-Net, prior and posterior are three
groups of each launch. A convolution, its bias and its ReLU are one kernel, and so are their gradients.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hpunet.kernels.flat_parameters import Weights
from hpunet.kernels.layers import ConvLayer, channel_order, padded
from hpunet.kernels.plan import BasePlan
from hpunet.kernels.side_stream import SideStream
from hpunet.kernels.triton_bilinear import upsample_bilinear_concat, upsample_bilinear_gradient
from hpunet.kernels.triton_heads import logits, logits_gradient
from hpunet.kernels.triton_maps import add_pixel_sums, downsample, feature_gradient
from hpunet.models.gaussian import LOG_SIGMA_RANGE
from hpunet.models.gradients import inward_gradient
from hpunet.models.punet import ProbUNet

Stage = list[ConvLayer]
Chain = list[tuple[ConvLayer, Tensor]]  # layers and their inputs


def _convs(stage: nn.Module) -> list[nn.Conv2d]:
    return [module for module in stage.children() if isinstance(module, nn.Conv2d)]


def _run_stage(stage: Stage, x: Tensor, chain: Chain) -> Tensor:
    for layer in stage:
        chain.append((layer, x))
        x = layer.convolve("conv", x, relu_output=True)
    return x


def _chain_gradient(chain: Chain, g: Tensor, *, side: SideStream, input_gradient: bool = True) -> Tensor | None:
    """As `plan.stage_gradient`, from the gradient before the last ReLU."""
    with side.fork():
        add_pixel_sums(g, out=chain[-1][0].bias_gradients["conv"])
    while chain:
        layer, x = chain.pop()
        with side.fork():
            layer.add_weight_gradient("conv", x, g)
        side.keep_alive(x, g)
        if chain:
            g = layer.input_gradient("conv", g, gate=x, sums=chain[-1][0].bias_gradients["conv"])
        elif input_gradient:
            return layer.input_gradient("conv", g)
    return None


@dataclass
class _Trace:
    """What the backward pass needs from the forward pass."""

    encoder: list[Chain]
    decoder: list[Chain]
    combine: Chain
    features: list[Tensor]  # of the encoder's scales, finest first
    outputs: list[Tensor]  # of the decoder's scales, coarsest first, after the coarsest features
    last: Tensor
    pooled: Float[Tensor, "2 b f"]
    noise: Float[Tensor, "b n"]
    raw: Float[Tensor, "2 2 b n"]


class ProbUNetPlan(BasePlan):
    """Layers and weights of a model for training on images of one size."""

    num_prior_inputs = 2  # the U-Net and the prior

    def __init__(self, model: ProbUNet, *, height: int, width: int, dtype: torch.dtype) -> None:
        self.size = height, width
        self.latent_shapes = model.latent_shapes(height, width)
        self.latent_dim = model.latent_dims[0]
        scales = len(model.channels)
        in_channels = [model.in_channels, model.in_channels, model.num_classes + model.in_channels]
        self.in_width = padded(max(in_channels))
        encoders = [model.encoder, model.prior.encoder, model.posterior.encoder]
        self.encoder: list[Stage] = []
        for depth in range(scales):
            inputs = self.encoder_inputs(depth, in_channels, model.channels)
            convs = [_convs(encoder.stages[depth]) for encoder in encoders]
            self.encoder.append(self.stage(ConvLayer, convs, depth, inputs))
        self.decoder: list[Stage] = []
        for i, module in enumerate(model.decoder):
            below, here = model.channels[-1 - i], model.channels[-2 - i]
            inputs = [channel_order((0, here), (here, below))]
            self.decoder.append(self.stage(ConvLayer, [_convs(module)], scales - 2 - i, inputs))
        finest = model.channels[0]
        inputs = [channel_order((0, finest), (finest, self.latent_dim))]
        self.combine = self.stage(ConvLayer, [_convs(model.combine)], 0, inputs)
        layers = [layer for part in (*self.encoder, *self.decoder, self.combine) for layer in part]
        self.max_images = self.limit_images(layers, groups=2, num_classes=model.num_classes)
        heads = [model.prior.head.conv, model.posterior.head.conv]
        assert all(head is not None for head in heads)
        others = [[model.logits.weight], [model.logits.bias]]
        others += [[head.weight for head in heads], [head.bias for head in heads]]  # type: ignore[union-attr]
        self.weights = Weights(layers, others=others, dtype=dtype, training=True)  # type: ignore[arg-type]

    def forward(
        self, x: Float[Tensor, "3 b h w c"], noise: Float[Tensor, "b n"], _prior_noise: None
    ) -> tuple[Float[Tensor, "b k h w"], Float[Tensor, "2 2 b n"], Float[Tensor, "b n"], None, _Trace]:
        """As `Plan.forward`, without hypotheses from the prior."""
        encoder: list[Chain] = [[] for _ in self.encoder]
        decoder: list[Chain] = [[] for _ in self.decoder]
        combine: Chain = []
        features: list[Tensor] = []
        for depth, stage in enumerate(self.encoder):
            x = _run_stage(stage, downsample(x) if depth else x, encoder[depth])
            features.append(x)
        width = self.encoder[-1][-1].out_channels
        pooled = x[1:, ..., :width].float().mean(dim=(2, 3))
        _, _, weight, bias = self.weights.other_values
        both = torch.baddbmm(bias.unsqueeze(1), pooled, weight.flatten(2).transpose(1, 2))
        raw = both.unflatten(2, (2, self.latent_dim)).transpose(1, 2).contiguous()
        mean, log_sigma = raw[1]
        latents = mean + log_sigma.clamp(*LOG_SIGMA_RANGE).exp() * noise
        outputs = [x[:1]]
        for i, stage in enumerate(self.decoder):
            outputs.append(_run_stage(stage, upsample_bilinear_concat(features[-2 - i][:1], outputs[-1]), decoder[i]))
        finest = outputs[-1]
        joined = finest.new_zeros(*finest.shape[:4], self.combine[0].widths[0])
        joined[..., : finest.shape[4]] = finest
        joined[..., finest.shape[4] :][..., : self.latent_dim] = latents[:, None, None]
        last = _run_stage(self.combine, joined, combine)
        weight, bias = self.weights.other_values[:2]
        out = logits(last[0], weight=weight[0].flatten(1), bias=bias[0])
        trace = _Trace(encoder, decoder, combine, features, outputs, last, pooled, noise, raw)
        return out, raw, latents, None, trace

    def backward(self, trace: _Trace, logits_grad: Tensor, raw_grad: Tensor, _drawn_grad: None) -> None:
        """Accumulate all gradients in those of the weights."""
        side = SideStream(logits_grad.device)
        weight, (weight_grad, bias_grad) = self.weights.other_values[0], self.weights.other_gradients[:2]
        g = logits_gradient(
            trace.last[0], logits_grad, weight=weight[0].flatten(1), gate=True,
            weight_gradient=weight_grad[0].flatten(1), bias_gradient=bias_grad[0],
        ).unsqueeze(0)  # fmt: skip
        whole = _chain_gradient(trace.combine, g, side=side)
        assert whole is not None
        finest = trace.outputs.pop()
        drawn = whole[0, ..., finest.shape[4] :][..., : self.latent_dim].float().sum(dim=(1, 2))
        g = torch.where(finest > 0, whole[..., : finest.shape[4]], 0)
        # Gradients of the decoder's inputs, which start with the encoder's part.
        joined: list[Tensor] = []
        for chain in reversed(trace.decoder):
            whole = _chain_gradient(chain, g, side=side)
            assert whole is not None
            joined.append(whole)
            g = upsample_bilinear_gradient(whole, gate=trace.outputs.pop())
        g = torch.cat([g, self._global_gradient(trace, drawn, raw_grad)])
        for depth, chain in reversed(list(enumerate(trace.encoder))):
            back = _chain_gradient(chain, g, side=side, input_gradient=depth > 0)
            trace.features.pop()
            if back is not None:
                g = feature_gradient(back, joined.pop(), offset=0, gate=trace.features[-1])
        side.join()

    def _global_gradient(
        self, trace: _Trace, drawn: Float[Tensor, "b n"], raw_grad: Float[Tensor, "2 2 b n"]
    ) -> Float[Tensor, "2 b h w c"]:
        """The gradient of the coarsest maps of prior and posterior; `drawn` is that of the latents."""
        weight, (weight_grad, bias_grad) = self.weights.other_values[2], self.weights.other_gradients[2:]
        (prior, posterior), log_sigma, (low, high) = raw_grad, trace.raw[:, 1], LOG_SIGMA_RANGE
        by_sigma = drawn * log_sigma[1].clamp(low, high).exp() * trace.noise
        mean = torch.stack([prior[0], posterior[0] + drawn])
        sigma = inward_gradient(torch.stack([prior[1], posterior[1] + by_sigma]), log_sigma, low=low, high=high)
        both = torch.stack([mean, sigma], dim=1).transpose(1, 2).flatten(2)  # net, image, mean and log σ
        weight_grad += torch.bmm(both.transpose(1, 2), trace.pooled).view_as(weight_grad)
        bias_grad += both.sum(dim=1)
        coarsest = trace.features[-1][1:]
        _, _, h, w, width = coarsest.shape
        back = torch.bmm(both, weight.flatten(2)) / (h * w)
        back = nn.functional.pad(back, (0, width - back.shape[2]))[:, :, None, None]
        return torch.where(coarsest > 0, back, 0).to(coarsest.dtype)
