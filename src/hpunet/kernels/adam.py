"""Adam for parameters in one flat buffer: one kernel instead of one for every few parameters."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hpunet.kernels.flat_parameters import Weights


class Adam(torch.optim.Adam):
    """`torch.optim.Adam` that updates its first group at once if the gradients lie in one flat buffer too.

    Checkpoints are the same: each parameter's moments are views of two flat buffers.
    """

    def __init__(self, groups: Any, *, weights: Weights, **how: Any) -> None:
        super().__init__(groups, **how)
        if {id(p) for p in self.param_groups[0]["params"]} != {id(p) for p in weights.parameters}:
            raise ValueError("the first group must hold exactly the parameters of the flat buffer")
        self.weights = weights
        self.moments = torch.zeros(2, weights.num_elements, device=weights.device)
        self.num_steps = torch.zeros(len(weights.parameters), device=weights.device)

    def flat_values(self) -> Tensor | None:
        """The first group's parameters as one tensor, once they are views of the flat buffer."""
        return self._as_one(self.weights.parameters, self.weights.flat)

    def flat_gradients(self) -> Tensor | None:
        """The gradients of the first group as one tensor, if that is where they lie."""
        return self._as_one([p.grad for p in self.weights.parameters], self.weights.flat_gradient)

    @torch.no_grad()
    def flat_copy(self) -> tuple[Tensor, list[Tensor]]:
        """A copy of the first group's parameters: as one tensor, and each of them as a view of it."""
        parameters, offsets = self.weights.parameters, self.weights.offsets
        flat = torch.zeros(self.weights.num_elements, device=self.weights.device)
        views = [flat.as_strided(p.shape, p.stride(), start) for p, start in zip(parameters, offsets, strict=True)]
        return flat, [view.copy_(p) for view, p in zip(views, parameters, strict=True)]

    def _as_one(self, tensors: Sequence[Tensor | None], flat: Tensor) -> Tensor | None:
        places = zip(tensors, self.weights.offsets, strict=True)
        if all(tensor is not None and _is_view_at(tensor, flat, start) for tensor, start in places):
            return flat[: self.weights.num_elements]
        return None

    @torch.no_grad()
    def flatten_moments(self) -> None:
        """Move the moments to their flat buffers. Call it before a CUDA graph, or anything else, keeps references."""
        offsets = list(zip(self.weights.parameters, self.weights.offsets, strict=True))
        if all(_is_view_at(self.state[p]["exp_avg"], self.moments[0], start) for p, start in offsets):
            return
        for (p, start), count in zip(offsets, self.num_steps, strict=True):
            state = self.state[p]
            views = {
                name: flat.as_strided(p.shape, p.stride(), flat.storage_offset() + start)
                for flat, name in zip(self.moments, ("exp_avg", "exp_avg_sq"), strict=True)
            }
            for name, view in (*views.items(), ("step", count)):
                state[name] = view.copy_(state[name])

    def step(self, closure: Any = None) -> Any:
        """As in torch, also with `found_inf`."""
        loss = self._step(closure)
        torch.autograd.graph.increment_version(self.weights.parameters)  # torch's fused step does not
        return loss

    @torch.no_grad()
    def _step(self, closure: Any) -> Any:
        weights, group = self.weights, self.param_groups[0]
        flat_values, flat_gradient = weights.flat[: weights.num_elements], self.flat_gradients()
        if closure is not None or flat_gradient is None or not all(p in self.state for p in weights.parameters):
            return super().step(closure)
        self.flatten_moments()
        found_inf, (beta1, beta2) = getattr(self, "found_inf", None), group["betas"]
        self.num_steps += 1
        torch._fused_adam_(
            [flat_values], [flat_gradient], [self.moments[0]], [self.moments[1]], [], [self.num_steps[0]],
            lr=group["lr"], beta1=beta1, beta2=beta2, weight_decay=group["weight_decay"], eps=group["eps"],
            amsgrad=False, maximize=False, grad_scale=None, found_inf=found_inf,
        )  # fmt: skip
        if found_inf is not None:
            self.num_steps -= found_inf
        gradients = [p.grad for p in weights.parameters]
        for p in weights.parameters:  # these are updated; torch does the other groups
            p.grad = None
        super().step()
        for p, gradient in zip(weights.parameters, gradients, strict=True):
            p.grad = gradient
        return None


def _is_view_at(tensor: Tensor, flat: Tensor, start: int) -> bool:
    return tensor.data_ptr() == flat.data_ptr() + start * flat.element_size()
