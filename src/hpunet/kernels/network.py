"""The training pass of both models on fused kernels, with the plain models' interface."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hpunet.kernels.adam import Adam
from hpunet.kernels.launch import compiling_ahead
from hpunet.kernels.plan import Plan
from hpunet.kernels.punet_plan import ProbUNetPlan
from hpunet.kernels.triton_kl import kl_per_scale
from hpunet.kernels.triton_maps import pack_inputs
from hpunet.kernels.triton_random import draw
from hpunet.models.base import PerScale, TrainingOutput, check_inputs
from hpunet.models.gaussian import LOG_SIGMA_RANGE, Gaussian
from hpunet.models.gradients import straight_through
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet


class _Pass(torch.autograd.Function):
    """The whole network as one autograd node, so everything around it works as with the plain model."""

    @staticmethod
    def forward(
        ctx: Any, plan: Any, x: Tensor, noise: Tensor, prior_noise: Tensor | None, *_parameters: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        plan.weights.prepare()
        out, raw, latents, drawn, ctx.trace = plan.forward(x, noise, prior_noise)
        ctx.plan, ctx.number, ctx.versions = plan, plan.weights.num_prepared, plan.weights.versions()
        ctx.mark_non_differentiable(latents)
        return out, raw, latents, drawn

    @staticmethod
    def backward(
        ctx: Any, logits_grad: Tensor, raw_grad: Tensor, _latents: Tensor, drawn_grad: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        plan: Any = ctx.plan
        if ctx.number != plan.weights.num_prepared:
            raise RuntimeError(
                "fused kernels: another forward pass ran before this backward pass, which would get wrong gradients; "
                "call backward after each forward pass (gradients add up) or train with optimiser.kernels=torch"
            )
        if ctx.versions != plan.weights.versions():
            raise RuntimeError(
                "fused kernels: weights were changed between this backward pass and its forward pass: gradients "
                "would be wrong; call backward before the optimiser's step, and load weights before the forward pass"
            )
        plan.weights.num_prepared += 1  # neither is there a second backward pass
        drawn_grad = None if drawn_grad is None else drawn_grad.contiguous()
        plan.backward(ctx.trace, logits_grad.contiguous(), raw_grad.contiguous(), drawn_grad)
        ctx.trace = None
        return None, None, None, None, *plan.weights.parameter_gradients()


class FusedNetwork(nn.Module):
    """A model's training pass on fused kernels, computed in `dtype`; call it like the model.

    The model's parameters move to one flat buffer: at once if `size` is given, else at the first pass. Each pass
    needs its backward pass before the next forward pass of that size, and before weights change: later, it raises an
    error.
    """

    def __init__(self, model: HPUNet | ProbUNet, *, dtype: torch.dtype, size: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype
        self._size, self._plans = size, dict[tuple[int, int], Plan | ProbUNetPlan]()
        self._parameters_at = places(model)
        self._compiled: set[object] = set()
        if size is not None:
            self._plan(*size).weights.load_parameters()

    def adam(self, groups: Any, **options: Any) -> Adam:
        """An optimiser for images of `size`; the first group must hold the model's parameters."""
        assert self._size is not None
        return Adam(groups, weights=self._plan(*self._size).weights, **options)

    def try_pass(self, images: int, *, prior_samples: int = 0) -> None:
        """Compile and launch a pass of zeros forward and backward, for images of `size`; nothing changes."""
        model, device = self.model, next(self.model.parameters()).device
        assert self._size is not None
        shapes = model.latent_shapes(*self._size)
        drawn = [torch.zeros(images, prior_samples, *shape, device=device) for shape in shapes]
        cond = torch.zeros(images, model.cond_channels, *self._size, device=device)
        output = self(
            image=torch.zeros(images, model.in_channels, *self._size, device=device),
            labels=torch.zeros(images, *self._size, dtype=torch.int64, device=device),
            cond=cond if model.cond_channels else None,
            noise=[torch.zeros(images, *shape, device=device) for shape in shapes],
            prior_noise=drawn if prior_samples else None,
        )
        maps = [output.logits, output.kl, *([] if output.sample_logits is None else [output.sample_logits])]
        torch.autograd.grad(maps, list(model.parameters()), grad_outputs=[torch.zeros_like(t) for t in maps])
        draw(start=0, step=torch.tensor(0, device=device), index=torch.arange(1, device=device), count=1, normal=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # errors of launches come late
            torch.cuda.empty_cache()

    def _plan(self, height: int, width: int) -> Plan | ProbUNetPlan:
        if (height, width) not in self._plans:
            model, shared = self.model, {"height": height, "width": width, "dtype": self.dtype}
            self._plans[height, width] = (
                Plan(model, **shared) if isinstance(model, HPUNet) else ProbUNetPlan(model, **shared)  # type: ignore[arg-type]
            )
        return self._plans[height, width]

    def forward(
        self,
        *,
        image: Float[Tensor, "b c h w"],
        labels: Int[Tensor, "b h w"],
        cond: Float[Tensor, "b e h w"] | None = None,
        noise: PerScale | None = None,
        prior_noise: Sequence[Tensor] | None = None,
    ) -> TrainingOutput:
        """As `HPUNet.forward`."""
        model, (b, _, h, w) = self.model, image.shape
        check_inputs(model, image=image, labels=labels)
        if not are_there(self._parameters_at):
            raise RuntimeError(
                "fused kernels: the model has other parameters than before; change their values in place, "
                "for instance by load_state_dict without assign=True"
            )
        prior_input = model.prior_input(image=image, cond=cond)
        plan = self._plan(h, w)
        drawn_by = None if prior_noise is None else torch.cat([n.flatten(2) for n in prior_noise], dim=2).float()
        plan.check_batch(b if drawn_by is None else b * drawn_by.shape[1])
        x = pack_inputs(
            prior_input, copies=plan.num_prior_inputs, pair=(image, labels), num_classes=model.num_classes,
            width=plan.in_width, dtype=self.dtype,
        )  # fmt: skip
        if noise is None or any(n is None for n in noise):
            flat_noise = torch.randn(b, sum(prod(shape) for shape in plan.latent_shapes), device=image.device)
        else:
            flat_noise = torch.cat([n.flatten(1) for n in noise if n is not None], dim=1).float()
        with torch.autocast(image.device.type, enabled=False):
            tensors = x, flat_noise, drawn_by
            self._compile(plan, *tensors)
            out, raw, latents, drawn = _Pass.apply(plan, *tensors, *plan.weights.parameters)  # type: ignore[no-untyped-call]
            output = _training_output(out, raw, latents, plan.latent_shapes)
            return output if drawn is None else replace(output, sample_logits=drawn.unflatten(0, (b, -1)))

    @torch.no_grad()
    def _compile(self, plan: Any, x: Tensor, noise: Tensor, prior_noise: Tensor | None) -> None:
        """Compile all kernels of a pass in parallel, the first time a size is seen."""
        key = (x.shape, None if prior_noise is None else prior_noise.shape)
        if x.device.type != "cuda" or key in self._compiled:
            return
        self._compiled.add(key)
        with compiling_ahead():
            plan.weights.prepare()
            out, raw, _, drawn, trace = plan.forward(x, noise, prior_noise)
            drawn_grad = None if drawn is None else torch.zeros_like(drawn)
            plan.backward(trace, torch.zeros_like(out), torch.zeros_like(raw), drawn_grad)
            plan.weights.parameter_gradients()


Place = tuple[dict[str, nn.Parameter | None], str, nn.Parameter]


def places(*modules: nn.Module) -> list[Place]:
    """Where modules keep each of their parameters."""
    parts = (part for module in modules for part in module.modules())
    every = ((part._parameters, name) for part in parts for name in part._parameters)
    return [(there, name, p) for there, name in every if (p := there[name]) is not None]


def are_there(places: list[Place]) -> bool:
    """Whether these are still the model's parameters: they can be replaced, by `load_state_dict` with `assign`."""
    return all(there.get(name) is p for there, name, p in places)


def split_scales(flat: Float[Tensor, "b n"], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """The parts of each scale, (b, z, h_i, w_i)."""
    parts = flat.split([prod(shape) for shape in shapes], dim=1)
    return [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]


def _training_output(
    out: Tensor, raw: Float[Tensor, "2 2 b n"], latents: Float[Tensor, "b n"], shapes: Sequence[tuple[int, ...]]
) -> TrainingOutput:
    # The pass itself gates gradients of log σ out of its range: only there all of them are summed up.
    log_sigmas = straight_through(raw[:, 1], raw[:, 1].clamp(*LOG_SIGMA_RANGE))
    prior, posterior = (gaussians(*net, shapes) for net in zip(raw[:, 0], log_sigmas, strict=True))
    return TrainingOutput(
        logits=out,
        latents=split_scales(latents, shapes),
        prior=prior,
        posterior=posterior,
        kl=kl_per_scale(raw, shapes),
    )


def gaussians(
    mean: Float[Tensor, "b n"], log_sigma: Float[Tensor, "b n"], shapes: Sequence[tuple[int, ...]]
) -> list[Gaussian]:
    """The Gaussians of each scale."""
    pairs = zip(split_scales(mean, shapes), split_scales(log_sigma, shapes), strict=True)
    return [Gaussian(mean=m, log_sigma=s) for m, s in pairs]
