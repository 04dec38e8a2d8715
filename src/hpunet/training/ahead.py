"""The examples of the next step, made on the GPU while the present step trains."""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from hpunet.data.loader import TrainingSteps
from hpunet.training.capture import Captured
from hpunet.training.examples import Example
from hpunet.training.step import TrainingStep


class ExamplesAhead:
    """Makes examples in a CUDA graph of their own, on a stream of its own.

    `take` puts those of a step into `example`, whose tensors stay the same, and starts to make those of the next.
    They depend on nothing but the step, so that what was made for another one is made again.
    """

    def __init__(
        self, train_step: TrainingStep, steps: TrainingSteps, *, positions: Int[Tensor, " b"], first: int
    ) -> None:
        self._steps, self._made_for = steps, first
        self._step = torch.tensor(first, device=positions.device)
        self._indices = steps.images(first).to(positions.device)

        def make() -> Example:
            return train_step.examples(steps.pack.batch(self._indices), step=self._step, positions=positions)

        self._stream = torch.cuda.Stream(positions.device)
        self._graph = Captured(make, state=[])
        self._make(first)
        torch.cuda.current_stream().wait_stream(self._stream)
        parts: dict[str, Any] = {name: None if value is None else value.clone() for name, value in self._made()}
        self.example = Example(**parts)

    def take(self, step: int) -> None:
        """Wait for the examples of a step."""
        if self._made_for != step:
            self._make(step)
        torch.cuda.current_stream().wait_stream(self._stream)
        for name, value in self._made():
            if value is not None:
                getattr(self.example, name).copy_(value)
        self._make(step + 1)

    def _made(self) -> Iterable[tuple[str, Any]]:
        return vars(self._graph.result).items()

    def _make(self, step: int) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())  # until earlier ones have been taken
        with torch.cuda.stream(self._stream):
            self._step.fill_(step)
            # Pinned memory: the host does not wait for the device.
            self._indices.copy_(self._steps.images(step).pin_memory(), non_blocking=True)
            self._graph.replay()
        self._made_for = step
