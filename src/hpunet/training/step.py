"""One optimisation step, from stored pixels to new weights, all of it on the device.

Random numbers are keyed by (seed, step, position in the batch): a step is the same after a resume and with several
processes. Nothing is read back from the device, so on a GPU the whole step can be one CUDA graph.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hpunet.data.batch import Batch
from hpunet.objectives.base import Terms
from hpunet.objectives.loss import Loss
from hpunet.training.examples import Example, ExampleBuilder
from hpunet.utils.distributed import average
from hpunet.utils.keyed_random import Draw, Stream, drawing_by, keyed_normal, keyed_uniform


class TrainingStep:
    """Forward, backward, guard, Adam, averaging; its counters live on the device.

    A step whose loss or gradient is not finite is skipped and counted: weights, moments, averaged weights and the
    loss's state stay as they are (Adam's by its `found_inf`). All processes see the same loss and gradients, so they
    skip the same steps.

    Gradients are summed over `num_pieces` pieces of the batch; `grad_clip` bounds their norm. `ema_decay` is that
    of the averaged weights (see `share_in_average`); without it there are none. `network` computes the forward pass
    in `autocast`: the model (default), compiled or on fused kernels. `draw` is a kernel for random numbers.

    Processes exchange the model's gradients once per step, as one tensor.
    """

    def __init__(
        self,
        *,
        model: Any,
        loss: Loss,
        optimiser: torch.optim.Optimizer,
        example_builder: ExampleBuilder,
        num_pieces: int = 1,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
        grad_clip: float | None = None,
        ema_decay: float | None = None,
        network: Any = None,
        draw: Draw | None = None,
    ) -> None:
        self.model, self.loss, self.optimiser, self.example_builder = model, loss, optimiser, example_builder
        self.network, self.draw = model if network is None else network, draw  # compiled ones have no truth value
        self.num_pieces, self.autocast = num_pieces, autocast
        self.grad_clip, self.ema_decay = grad_clip, ema_decay
        self.parameters = [p for group in optimiser.param_groups for p in group["params"]]
        device = self.parameters[0].device
        # The Adam of the fused kernels: a thousand small tensors in few large ones need a tenth of the launches.
        self._flat: Any = optimiser if hasattr(optimiser, "flat_gradients") else None
        self.averaged, self._flat_average = self._start_average() if ema_decay else ([], None)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        self.skipped_in_a_row = torch.zeros((), dtype=torch.int64, device=device)

    def __call__(
        self, batch: Batch, *, step: int | Int[Tensor, ""], positions: Int[Tensor, " b"]
    ) -> tuple[Terms, Float[Tensor, ""]]:
        """Train on a batch; returns its terms and the norm of the gradient before clipping."""
        return self.train_on(self.examples(batch, step=step, positions=positions), step=step, positions=positions)

    def examples(self, batch: Batch, *, step: int | Int[Tensor, ""], positions: Int[Tensor, " b"]) -> Example:
        """What the step trains on."""
        all_gradings = self.loss.num_prior_samples > 0
        with drawing_by(self.draw):
            return self.example_builder(batch, step=step, positions=positions, all_gradings=all_gradings)

    def train_on(
        self, example: Example, *, step: int | Int[Tensor, ""], positions: Int[Tensor, " b"]
    ) -> tuple[Terms, Float[Tensor, ""]]:
        """The same as a call with the batch, from its examples on."""
        with drawing_by(self.draw):
            return self._train(example, step=step, positions=positions)

    def _train(
        self, example: Example, *, step: int | Int[Tensor, ""], positions: Int[Tensor, " b"]
    ) -> tuple[Terms, Float[Tensor, ""]]:
        self.optimiser.zero_grad(set_to_none=True)
        loss_state = [buffer.clone() for buffer in self.loss.buffers()]
        ends = [i * len(positions) // self.num_pieces for i in range(self.num_pieces + 1)]
        pieces = [slice(start, end) for start, end in pairwise(ends)]
        terms = combine_pieces([self._backward(example[p], step=step, positions=positions[p]) for p in pieces])
        gradients, own = self._gradients()
        average(gradients)
        gradients += own
        # In float64, squares of gradients that overflow float32 are finite: such a step is clipped, not skipped.
        norms = torch._foreach_norm(gradients, dtype=torch.float64 if self.grad_clip else None)
        norm = torch.stack(norms).norm()
        if self.grad_clip:
            torch._foreach_mul_(gradients, (self.grad_clip / (norm + 1e-6)).clamp(max=1).float())
        finite = terms.loss.isfinite() & norm.isfinite()
        self.optimiser.found_inf = (~finite).to(torch.float32)  # type: ignore[attr-defined]
        self.optimiser.step()
        self.skipped += ~finite
        self.skipped_in_a_row.copy_(torch.where(finite, 0, self.skipped_in_a_row + 1))
        for buffer, before in zip(self.loss.buffers(), loss_state, strict=True):
            buffer.copy_(torch.where(finite, buffer, before))
        if self.ema_decay is not None:
            share = finite.double() * share_in_average(step, self.ema_decay)
            for value, average_value in zip(*self._values_and_average(), strict=True):
                average_value.lerp_(value, share.to(value.dtype))
        return terms, norm

    def _start_average(self) -> tuple[list[Tensor], Tensor | None]:
        """A copy of the model's parameters; in flat buffers also as one tensor, which they are views of."""
        parameters = list(self.model.parameters())
        if self._flat is None:
            return [p.detach().clone() for p in parameters], None
        flat, views = self._flat.flat_copy()
        view_of = dict(zip(map(id, self._flat.weights.parameters), views, strict=True))
        return [view_of[id(p)] for p in parameters], flat

    def _gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """The model's gradients, as one tensor if they lie in one buffer, and the loss's, which processes share."""
        flat = self._flat.flat_gradients() if self._flat else None
        groups = [[p.grad for p in g["params"] if p.grad is not None] for g in self.optimiser.param_groups]
        return (groups[0] if flat is None else [flat]), [gradient for group in groups[1:] for gradient in group]

    def _values_and_average(self) -> tuple[list[Tensor], list[Tensor]]:
        """The model's parameters and their averages, as one tensor each if they lie in one buffer."""
        flat = self._flat.flat_values() if self._flat else None
        if flat is None or self._flat_average is None:
            return [p.detach() for p in self.model.parameters()], self.averaged
        return [flat], [self._flat_average]

    def create_moments(self) -> None:
        """Let Adam create its moments (zeros) by a skipped step, so that there is a state to save."""
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimiser.found_inf = torch.ones((), device=self.skipped.device)  # type: ignore[attr-defined]
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def _backward(self, example: Example, *, step: int | Int[Tensor, ""], positions: Int[Tensor, " b"]) -> Terms:
        """Add the gradients of a piece of the batch."""
        labels, num_samples = example.labels.long(), self.loss.num_prior_samples
        key: dict[str, Any] = {"seed": self.example_builder.seed, "step": step, "index": positions}
        size = labels.shape[1:]
        uniform = keyed_uniform(**key, stream=Stream.GUMBEL, count=prod(size)).view(-1, *size)
        with self.autocast():
            output = self.network(
                image=example.image,
                labels=labels,
                cond=example.cond,
                noise=[scale.squeeze(1) for scale in self._noise(key, size, stream=Stream.POSTERIOR)],
                prior_noise=self._noise(key, size, stream=Stream.PRIOR, draws=num_samples) if num_samples else None,
            )
        graded = {"gradings": example.gradings, "graders": example.graders}
        terms: Terms = self.loss(output, labels=labels, valid=example.valid, uniform=uniform, **graded)
        (terms.loss / self.num_pieces).backward()
        return terms

    def _noise(self, key: dict[str, Any], size: Sequence[int], *, stream: Stream, draws: int = 1) -> list[Tensor]:
        """Normal noise (b, draws, z, h_i, w_i), of volumes (b, draws, z, d_i, h_i, w_i), for each scale."""
        shapes = self.model.latent_shapes(*size)
        sizes = [prod(shape) for shape in shapes]
        flat = keyed_normal(**key, stream=stream, count=draws * sum(sizes)).unflatten(1, (draws, sum(sizes)))
        return [part.unflatten(2, shape) for part, shape in zip(flat.split(sizes, dim=2), shapes, strict=True)]


def share_in_average(step: int | Int[Tensor, ""], ema_decay: float) -> float | Float[Tensor, ""]:
    """The share of a step's new weights in the averaged ones: 1 - decay, but early enough to forget the start.

    The average reaches back over 1 / share steps, at most a tenth of those taken so far: random initial weights are
    gone after the first step, and runs of more than 10 / (1 - decay) steps end with the decay itself.
    """
    if isinstance(step, Tensor):  # of a CUDA graph; float64, as on the host
        return (10 / (step + 1).double()).clamp(1 - ema_decay, 1)
    return min(max(10 / (step + 1), 1 - ema_decay), 1.0)


def combine_pieces(pieces: Sequence[Terms]) -> Terms:
    """The terms of a batch from those of its equal pieces; GECO's constraint and λ are those of the last one."""
    if len(pieces) == 1:
        return replace(pieces[0], loss=pieces[0].loss.detach())
    energies = [terms.energy for terms in pieces if terms.energy is not None]
    return replace(
        pieces[-1],
        loss=torch.stack([terms.loss.detach() for terms in pieces]).mean(),
        rec=torch.stack([terms.rec for terms in pieces]).mean(),
        kl=torch.stack([terms.kl for terms in pieces]).mean(dim=0),
        num_kept=torch.stack([terms.num_kept for terms in pieces]).sum(),
        energy=None if not energies else torch.stack(energies).mean(),
        batch_size=sum(terms.batch_size for terms in pieces),
    )
