import copy
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from hpunet.kernels.adam import Adam
from hpunet.kernels.network import FusedNetwork
from hpunet.models.hpunet import HPUNet
from hpunet.objectives.geco import GECO
from hpunet.objectives.loss import parameter_groups
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
