"""An HPU-Net's sampling and its posterior on fused kernels, with the plain model's interface."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hpunet.kernels.failures import failures_named
from hpunet.kernels.launch import compiling_ahead
from hpunet.kernels.network import are_there, gaussians, places, split_scales
from hpunet.kernels.sampling_plan import SamplingPlan
from hpunet.kernels.triton_maps import pack_inputs
from hpunet.kernels.triton_sampling import pack_orientations
from hpunet.models.base import Hypotheses, PerScale, SamplingProxy, check_inputs
from hpunet.models.gaussian import LOG_SIGMA_RANGE, Gaussian
from hpunet.models.hpunet import HPUNet, LatentUNet


class FusedSampler(SamplingProxy[HPUNet]):
    """An HPU-Net's sampling on fused kernels, computed in `dtype`; pass it to `sample` instead of the model.

    It copies the weights, again if they have changed when an image is encoded. On a GPU the passes are CUDA graphs,
    one per input shape.
    """

    MAX_GRAPHS = 8
    MAX_PLANS = 8  # of prior or posterior for a size, each with a copy of the weights

    def __init__(self, model: HPUNet, *, dtype: torch.dtype) -> None:
        super().__init__(model)
        self.dtype, self.infer = dtype, self._infer
        self._plans: dict[tuple[str, int, int], SamplingPlan] = {}
        self._graphs: dict[object, _CudaGraph] = {}
        self._parameters_at = self._places()

    def _places(self) -> Any:
        return places(*self.model.sampling_modules(), self.model.posterior)

    def _plan(self, net: str, height: int, width: int) -> SamplingPlan:
        if (key := (net, height, width)) not in self._plans:
            if len(self._plans) >= self.MAX_PLANS:
                self._plans, self._graphs = {}, {}
            m, is_prior = self.model, net == "prior"
            how: dict[str, Any] = {"size": (height, width), "dtype": self.dtype, "channels": m.channels}
            how |= {"latent_shapes": m.latent_shapes(height, width), "num_classes": m.num_classes}
            how["in_channels"] = m.in_channels + (m.cond_channels if is_prior else m.num_classes)
            self._plans[key] = SamplingPlan(getattr(m, net), **how, logits=m.logits if is_prior else None)
            self._plans[key].weights.prepare_if_changed()
        return self._plans[key]

    def _current_plan(self, net: str, height: int, width: int) -> SamplingPlan:
        """A plan with the model's present weights."""
        if not are_there(self._parameters_at):
            self._plans, self._graphs, self._parameters_at = {}, {}, self._places()
        plan = self._plan(net, height, width)
        plan.weights.prepare_if_changed()
        return plan

    @torch.no_grad()
    def encode(self, *, image: Tensor, cond: Tensor | None = None) -> list[Tensor]:
        """What all hypotheses of an image share (`SamplingPlan.encode`)."""
        x = self.model.prior_input(image=image, cond=cond)
        plan = self._current_plan("prior", *image.shape[-2:])
        plan.check_batch(1)

        def run(x: Tensor) -> list[Tensor]:
            # The kernel that `draw` runs: a capture cannot load another one.
            return plan.encode(pack_orientations(x, count=1, width=plan.in_width, dtype=self.dtype))

        parts = [self._run(("encode", part.shape, part.dtype), run, [part]) for part in x.split(plan.max_images)]
        return parts[0] if len(parts) == 1 else [torch.cat(each) for each in zip(*parts, strict=True)]

    @torch.no_grad()
    def decode(
        self, features: Sequence[Tensor], *, noise: PerScale | None = None, given: PerScale | None = None
    ) -> tuple[Float[Tensor, "b k h w"], list[Tensor], list[Gaussian]]:
        """As `HPUNet.decode`."""
        none: PerScale = [None] * len(self.latent_dims)
        entries = torch.arange(len(features[0]), device=features[0].device)
        how: dict[str, Any] = {"noise": noise or none, "given": given or none, "orientation_ids": None}
        _, _, latents, raw, out = self._decode(features, entries=entries, **how, keep_logits=True)
        shapes = self.latent_shapes(*out.shape[-2:])
        return out, split_scales(latents, shapes), _gaussians(raw, shapes)

    @torch.no_grad()
    def decode_hypotheses(
        self, features: Sequence[Tensor], *, entries: Int[Tensor, " n"], noise: PerScale, given: PerScale,
        orientation_ids: Int[Tensor, " n"] | None, keep_logits: bool,
    ) -> Hypotheses:  # fmt: skip
        """As `HypothesisDecoder.decode_hypotheses`."""
        how: dict[str, Any] = {"noise": noise, "given": given, "orientation_ids": orientation_ids}
        return self._hypotheses(self._decode(features, entries=entries, **how, keep_logits=keep_logits))

    @torch.no_grad()
    def draw(
        self, *, image: Tensor, cond: Tensor | None, count: int, entries: Int[Tensor, " n"], noise: PerScale,
        given: PerScale, orientation_ids: Int[Tensor, " n"] | None, keep_logits: bool,
    ) -> Hypotheses:  # fmt: skip
        """As `HypothesisDecoder.draw`: one CUDA graph."""
        x = self.model.prior_input(image=image, cond=cond)
        plan = self._current_plan("prior", *image.shape[-2:])
        plan.check_batch(max(count * len(x), len(entries)))
        optional = [orientation_ids, *noise, *given]
        decode, there = _decoding(plan, optional, keep_logits=keep_logits)

        def run(x: Tensor, *inputs: Tensor) -> list[Tensor]:
            packed = pack_orientations(x, count=count, width=plan.in_width, dtype=self.dtype)
            return decode(plan.encode(packed), *inputs)

        inputs = [x, entries, *there]
        key = ("draw", count, *(t.shape for t in inputs), *(t is None for t in optional), keep_logits)
        return self._hypotheses(self._run(key, run, inputs))

    def _hypotheses(self, found: Sequence[Tensor]) -> Hypotheses:
        labels, sums, latents, _, *out = found
        shapes = self.latent_shapes(*labels.shape[-2:])
        return Hypotheses(labels, out[0] if out else None, split_scales(latents, shapes), sums)

    def _decode(
        self, features: Sequence[Tensor], *, entries: Tensor, noise: PerScale, given: PerScale,
        orientation_ids: Tensor | None, keep_logits: bool,
    ) -> list[Tensor]:  # fmt: skip
        """Labels, sums of the logits, latents, mean and log σ, and the logits if they are kept."""
        plan = self._plan("prior", *features[-1].shape[1:3])
        plan.check_batch(len(entries))
        optional = [orientation_ids, *noise, *given]
        decode, there = _decoding(plan, optional, keep_logits=keep_logits)

        def run(*inputs: Tensor) -> list[Tensor]:
            return decode(inputs[: len(features)], *inputs[len(features) :])

        inputs = [*features, entries, *there]
        key = ("decode", *(t.shape for t in inputs), *(t is None for t in optional), keep_logits)
        return self._run(key, run, inputs)

    @torch.no_grad()
    def _infer(
        self, *, image: Float[Tensor, "b c h w"], labels: Int[Tensor, "b h w"], noise: PerScale | None = None
    ) -> tuple[list[Tensor], list[Gaussian]]:
        """As `HPUNet.infer`."""
        model, none = self.model, [None] * len(self.latent_dims)
        if not isinstance(model.posterior, LatentUNet):  # weights for sampling only: the model's error says so
            return model.infer(image=image, labels=labels, noise=noise)
        check_inputs(model, image=image, labels=labels)
        plan = self._current_plan("posterior", *image.shape[-2:])
        plan.check_batch(len(image))

        def run(image: Tensor, labels: Tensor, *noise: Tensor) -> list[Tensor]:
            how: dict[str, Any] = {"num_classes": model.num_classes, "width": plan.in_width, "dtype": self.dtype}
            features = plan.encode(pack_inputs(image, copies=0, pair=(image, labels), **how))
            entries = torch.arange(len(image), device=image.device)
            found = plan.decode(features, entries=entries, noise=noise or none, given=none)
            return [found.latents, found.raw]

        drawn = [] if noise is None or any(n is None for n in noise) else [n for n in noise if n is not None]
        inputs = [image, labels, *drawn]
        latents, raw = self._run(("infer", *((t.shape, t.dtype) for t in inputs)), run, inputs)
        return split_scales(latents, plan.latent_shapes), _gaussians(raw, plan.latent_shapes)

    def _run(self, key: object, run: Callable[..., Sequence[Tensor]], inputs: list[Tensor]) -> list[Tensor]:
        if inputs[0].device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return list(run(*inputs))
        if key not in self._graphs:
            if len(self._graphs) >= self.MAX_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            with failures_named():
                self._graphs[key] = _CudaGraph(run, inputs)
        return self._graphs[key](inputs)


def _decoding(
    plan: SamplingPlan, optional: Sequence[Tensor | None], *, keep_logits: bool
) -> tuple[Callable[..., list[Tensor]], list[Tensor]]:
    """A function of features, entries, and those that are there of [orientation ids, *noise, *given]; and these."""
    are_there = [t is not None for t in optional]

    def decode(features: Sequence[Tensor], entries: Tensor, *others: Tensor) -> list[Tensor]:
        """Labels, sums of the logits, latents, mean and log σ, and the logits if they are kept."""
        rest = iter(others)
        ids, *values = (next(rest) if is_there else None for is_there in are_there)
        half = len(values) // 2
        how: dict[str, Any] = {"noise": values[:half], "given": values[half:], "orientation_ids": ids}
        latents, raw, labels = plan.decode(features, entries=entries, **how, keep_logits=keep_logits)
        assert labels is not None
        return [labels.classes, labels.sums, latents, raw, *([] if labels.logits is None else [labels.logits])]

    return decode, [t for t in optional if t is not None]


class _CudaGraph:
    """A function of tensors captured as a CUDA graph."""

    def __init__(self, run: Callable[..., Sequence[Tensor]], inputs: list[Tensor]) -> None:
        self.inputs = [torch.empty_like(t).copy_(t) for t in inputs]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), compiling_ahead():
            run(*self.inputs)
        with torch.cuda.stream(side):
            run(*self.inputs)  # loads the compiled kernels, which a capture cannot
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = list(run(*self.inputs))

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        _copy(inputs, to=self.inputs)
        self.graph.replay()
        outputs = [torch.empty_like(t) for t in self.outputs]
        _copy(self.outputs, to=outputs)
        return outputs


def _copy(tensors: Sequence[Tensor], *, to: Sequence[Tensor]) -> None:
    """With one launch for all tensors of a type."""
    for dtype in {t.dtype for t in to}:
        pairs = [(target, t) for target, t in zip(to, tensors, strict=True) if target.dtype == dtype]
        torch._foreach_copy_([target for target, _ in pairs], [t for _, t in pairs])


def _gaussians(raw: Float[Tensor, "2 b n"], shapes: Sequence[tuple[int, ...]]) -> list[Gaussian]:
    return gaussians(raw[0], raw[1].clamp(*LOG_SIGMA_RANGE), shapes)
