import copy
import math
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from hpunet.data.batch import Batch
from hpunet.kernels.adam import Adam
from hpunet.kernels.network import FusedNetwork
from hpunet.models.hpunet import HPUNet
from hpunet.objectives.base import Terms
from hpunet.objectives.geco import GECO
from hpunet.objectives.loss import Loss, parameter_groups
from hpunet.training.examples import Example, ExampleBuilder
from hpunet.training.step import TrainingStep
from hpunet.weights.run_state import optimiser_tensors, restore_optimiser

HOW: dict[str, Any] = {"lr": 1e-2, "fused": True}


def networks() -> tuple[HPUNet, GECO, torch.optim.Adam, HPUNet, GECO, Adam]:
    """The same model, objective and optimiser twice, the second with flat parameters."""
    model = HPUNet(in_channels=1, num_classes=2, channels=(12, 16), latent_dims=(1,), blocks_per_scale=1)
    objective = GECO(kappa=0.1)
    model2, objective2 = copy.deepcopy(model), copy.deepcopy(objective)
    fused = FusedNetwork(model2, dtype=torch.bfloat16, size=(8, 8))
    adam = torch.optim.Adam(parameter_groups(model, objective, weight_decay=0.1), **HOW)
    adam2 = fused.adam(parameter_groups(model2, objective2, weight_decay=0.1), **HOW)
    return model, objective, adam, model2, objective2, adam2


def set_gradients(pairs: list[tuple[Any, Any]], adam: Adam, *, flat: bool = True) -> None:
    """The same random gradients; those of the second network in the flat buffer, as a pass leaves them."""
    starts = {id(p): start for p, start in zip(adam.weights.parameters, adam.weights.offsets, strict=True)}
    for one, other in pairs:
        one.grad = torch.randn_like(one)
        other.grad = torch.empty_like(other)
        if flat and id(other) in starts:
            other.grad = adam.weights.flat_gradient.as_strided(other.shape, other.stride(), starts[id(other)])
        other.grad.copy_(one.grad)


def test_flat_adam_equals_adam() -> None:
    torch.manual_seed(0)
    model, objective, plain, model2, objective2, flat_adam = networks()
    pairs = list(zip([*model.parameters(), objective.w], [*model2.parameters(), objective2.w], strict=True))
    for step in range(7):
        # The first creates moments; a later one has gradients elsewhere, one is skipped, one follows a restore.
        set_gradients(pairs, flat_adam, flat=step not in (0, 3))
        skip = torch.tensor(float(step == 2))
        plain.found_inf = flat_adam.found_inf = skip  # type: ignore[attr-defined]
        if step == 5:
            tensors, state = optimiser_tensors(plain)
            restore_optimiser(flat_adam, tensors=tensors, state=state)
        before = flat_adam.weights.flat.clone()
        plain.step()
        flat_adam.step()
        for one, other in pairs:
            torch.testing.assert_close(other, one)
            for name, value in plain.state[one].items():
                torch.testing.assert_close(flat_adam.state[other][name], value)
            assert other.grad is not None
        assert torch.equal(before, flat_adam.weights.flat) == (step == 2)
    moment = flat_adam.state[flat_adam.weights.parameters[0]]["exp_avg"]
    assert moment.untyped_storage().data_ptr() == flat_adam.moments.untyped_storage().data_ptr()


def test_the_first_group_must_be_the_flat_buffer() -> None:
    *_, flat_adam = networks()
    with pytest.raises(ValueError, match="flat buffer"):
        Adam([{"params": flat_adam.weights.parameters[1:]}], weights=flat_adam.weights, **HOW)


class _Step(TrainingStep):
    """A training step whose backward pass is a function."""

    def __init__(self, model: HPUNet, adam: torch.optim.Adam) -> None:
        loss = Mock(spec=Loss, num_prior_samples=0, buffers=list)
        builder = Mock(spec=ExampleBuilder, return_value=MagicMock(spec=Example))
        super().__init__(
            model=model, loss=loss, optimiser=adam, example_builder=builder, grad_clip=2.0, ema_decay=0.5
        )

    def take(self, step: int, *, loss: float, backward: Callable[[], None]) -> Tensor:
        """The norm of the gradient before clipping."""
        self.loss_of_step, self.backward = torch.tensor(loss), backward
        return self(Mock(spec=Batch), step=step, positions=torch.arange(1))[1]

    def _backward(self, *_: Any, **__: Any) -> Terms:
        self.backward()
        zero = torch.zeros(())
        return Terms(loss=self.loss_of_step, rec=zero, kl=zero[None], num_kept=zero.long(), batch_size=1)


def test_training_step_on_flat_buffers_equals_one_on_many_tensors() -> None:
    model, objective, plain, model2, objective2, flat_adam = networks()
    pairs = list(zip([*model.parameters(), objective.w], [*model2.parameters(), objective2.w], strict=True))
    one, other = _Step(model, plain), _Step(model2, flat_adam)
    for step in range(5):  # the first creates moments; one has gradients elsewhere, one is skipped
        is_flat, loss = step not in (0, 3), math.nan if step == 2 else 1.0

        def backward(step: int = step, is_flat: bool = is_flat) -> None:
            torch.manual_seed(step)
            set_gradients(pairs, flat_adam, flat=is_flat)

        norms = [taken.take(step, loss=loss, backward=backward) for taken in (one, other)]
        torch.testing.assert_close(norms[1], norms[0])
        for value, flat_value in (*pairs, *zip(one.averaged, other.averaged, strict=True)):
            torch.testing.assert_close(flat_value, value)
        assert (flat_adam.flat_gradients() is not None) == is_flat
        assert flat_adam.flat_values() is not None
