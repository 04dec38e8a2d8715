"""Adam where all parameters of a network lie in one line: one kernel instead of one for every few parameters."""

from typing import Any

import torch
from torch import Tensor

from hpunet.kernels.flat_parameters import Weights


class Adam(torch.optim.Adam):
    """torch's, with the step of its first group over the whole line if the gradients lie in one too.

    Moments are still the optimiser's, by parameter, so checkpoints are the same; they become views of two lines.
    """

    def __init__(self, groups: Any, *, weights: Weights, **how: Any) -> None:
        super().__init__(groups, **how)
        if {id(p) for p in self.param_groups[0]["params"]} != {id(p) for p in weights.parameters}:
            raise ValueError("the first group must have the parameters of the line, and no others")
        self.weights = weights
        self.moments = torch.zeros(2, weights.num_numbers, device=weights.device)
        self.num_steps = torch.zeros(len(weights.parameters), device=weights.device)

    @torch.no_grad()
    def line_up(self) -> None:
        """Have the moments in their lines; to be called before a CUDA graph, or anything else, holds on to them."""
        places = list(zip(self.weights.parameters, self.weights.starts, strict=True))
        if all(_lies_at(self.state[p]["exp_avg"], self.moments[0], start) for p, start in places):
            return
        for (p, start), count in zip(places, self.num_steps, strict=True):
            state = self.state[p]
            views = {
                name: line.as_strided(p.shape, p.stride(), line.storage_offset() + start)
                for line, name in zip(self.moments, ("exp_avg", "exp_avg_sq"), strict=True)
            }
            for name, view in (*views.items(), ("step", count)):
                state[name] = view.copy_(state[name])

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step; with `found_inf`, as torch's."""
        weights, group = self.weights, self.param_groups[0]
        places = zip(weights.parameters, weights.starts, strict=True)
        in_line = all(p.grad is not None and _lies_at(p.grad, weights.line_gradient, start) for p, start in places)
        if closure is not None or not in_line or not all(p in self.state for p in weights.parameters):
            return super().step(closure)
        self.line_up()
        found_inf, (beta1, beta2) = getattr(self, "found_inf", None), group["betas"]
        self.num_steps += 1
        torch._fused_adam_(
            [weights.line[: weights.num_numbers]],
            [weights.line_gradient[: weights.num_numbers]],
            [self.moments[0]],
            [self.moments[1]],
            [],
            [self.num_steps[0]],
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=found_inf,
        )
        if found_inf is not None:
            self.num_steps -= found_inf
        gradients = [p.grad for p in weights.parameters]
        for p in weights.parameters:  # done; the rest is torch's
            p.grad = None
        super().step()
        for p, gradient in zip(weights.parameters, gradients, strict=True):
            p.grad = gradient
        return None


def _lies_at(tensor: Tensor, line: Tensor, start: int) -> bool:
    return tensor.data_ptr() == line.data_ptr() + start * line.element_size()
