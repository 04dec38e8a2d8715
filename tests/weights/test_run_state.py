"""A restored optimiser continues bit for bit; what does not fit is named."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from places import ROOT
from torch import Tensor, nn

from hpunet.errors import CheckpointError
from hpunet.weights.checkpoints import load_checkpoint, save_checkpoint
from hpunet.weights.run_state import describe_run, optimiser_tensors, restore_optimiser


class Toy(nn.Module):
    """A convolution in channels-last layout, a scalar as GECO has one, and a parameter that is never used."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3).to(memory_format=torch.channels_last)
        self.scalar = nn.Parameter(torch.tensor(0.3))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, image: Tensor) -> Tensor:
        return (self.conv(image) * self.scalar).square().mean()


def toy_optimiser(model: Toy, **options: Any) -> torch.optim.Adam:
    groups = [
        {"params": list(model.conv.parameters()), "weight_decay": 1e-5, "betas": (0.8, 0.97)},
        {"params": [model.scalar, model.unused], "lr": 0.01},
    ]
    return torch.optim.Adam(groups, **{"lr": 1e-3, **options})


def train(model: Toy, optimiser: torch.optim.Optimizer, *, steps: int) -> None:
    for _ in range(steps):
        optimiser.zero_grad()
        model(torch.randn(2, 3, 6, 6)).backward()
        optimiser.step()
        optimiser.param_groups[0]["lr"] *= 0.9


def same_bits(model: Toy, other: Toy) -> bool:
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs)


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "amsgrad": {"amsgrad": True},
    "one by one": {"foreach": False},
    "multi-tensor": {"foreach": True},
    "fused": {"fused": True},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_resumed_run_takes_bit_identical_steps(options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Toy()
    optimiser = toy_optimiser(model, **options)
    train(model, optimiser, steps=3)
    tensors, state = optimiser_tensors(optimiser)
    saved = {"model": model.state_dict(), "optimiser": tensors}
    path = save_checkpoint(tmp_path, step=3, tensors=saved, state={"optimiser": state})
    generator = torch.get_rng_state()
    train(model, optimiser, steps=3)

    torch.manual_seed(1)
    resumed = Toy()
    other = toy_optimiser(resumed, **{**options, "lr": 0.5})
    train(resumed, other, steps=1)
    found = load_checkpoint(path)
    resumed.load_state_dict(found.tensors["model"])
    restore_optimiser(other, tensors=found.tensors["optimiser"], state=found.state["optimiser"])
    torch.set_rng_state(generator)
    kept = {name: tensor.clone() for name, tensor in found.tensors["optimiser"].items()}
    assert not same_bits(model, resumed)
    train(resumed, other, steps=3)

    assert same_bits(model, resumed)
    assert other.param_groups[0]["lr"] == optimiser.param_groups[0]["lr"]
    assert other.param_groups[0]["betas"] == (0.8, 0.97)
    assert other.param_groups[1]["lr"] == 0.01
    assert all(torch.equal(found.tensors["optimiser"][name], kept[name]) for name in kept)  # steps work on copies
    moment = other.state[resumed.conv.weight]["exp_avg"]
    assert moment.stride() == resumed.conv.weight.stride()


def test_restore_optimiser_keeps_how_the_live_one_computes() -> None:
    saved_model, live_model = Toy(), Toy()
    saved = toy_optimiser(saved_model, foreach=True)
    train(saved_model, saved, steps=2)
    rate = torch.tensor(0.5)
    live = toy_optimiser(live_model, foreach=False, lr=rate, capturable=True)
    live.param_groups[0]["lr"] = rate
    tensors, state = optimiser_tensors(saved)
    restore_optimiser(live, tensors=tensors, state=json.loads(json.dumps(state)))
    group = live.param_groups[0]
    assert (group["foreach"], group["capturable"], group["weight_decay"]) == (False, True, 1e-5)
    assert group["lr"] is rate  # the tensor a captured graph would read
    assert rate.item() == pytest.approx(1e-3 * 0.9**2)

    tensors, state = optimiser_tensors(live)
    assert torch.equal(tensors["group.0.lr"], rate)
    restore_optimiser(saved, tensors=tensors, state=state)
    assert saved.param_groups[0]["lr"] == rate.item()
    assert isinstance(saved.param_groups[0]["lr"], float)


def test_optimiser_tensors_of_a_fresh_optimiser_come_back() -> None:
    live_model = Toy()
    live = toy_optimiser(live_model)
    train(live_model, live, steps=1)
    tensors, state = optimiser_tensors(toy_optimiser(Toy()))
    assert tensors == {}
    restore_optimiser(live, tensors=tensors, state=state)
    assert not live.state


def damaged(state: dict[str, Any], *keys: Any, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(state)
    inner = changed
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return changed


def test_restore_optimiser_names_what_differs_and_changes_nothing() -> None:
    model = Toy()
    optimiser = toy_optimiser(model)
    train(model, optimiser, steps=1)
    tensors, state = optimiser_tensors(optimiser)
    wide = Toy(width=5)
    double = Toy().double()
    cases = [
        (toy_optimiser(wide), tensors, state, r"parameter 0 of group 0 .* \(4, 3, 3, 3\) .* \(5, 3, 3, 3\)"),
        (toy_optimiser(double), tensors, state, "expected float64"),
        (torch.optim.Adam(model.parameters()), tensors, state, r"\[2, 2\] parameters by group, expected \[4\]"),
        (torch.optim.SGD(model.parameters(), lr=1), tensors, state, "the state of Adam, expected SGD"),
        (optimiser, {}, state, "unreadable state"),
        (optimiser, {**tensors, "more": torch.ones(1)}, state, "unknown tensors, such as more"),
        (optimiser, {**tensors, "state.0.exp_avg": torch.ones(2)}, state, r"state of shape \(2,\)"),
        (optimiser, tensors, {}, "the state of None"),
        (optimiser, tensors, damaged(state, "parameters", value=None), "no parameters"),
        (optimiser, tensors, damaged(state, "groups", 0, "lr", value="fast"), "unreadable state"),
        (optimiser, tensors, damaged(state, "values", "9", value={"step": 1}), "unreadable state"),
    ]
    before = copy.deepcopy(optimiser.state_dict())
    for live, some_tensors, some_state, message in cases:
        with pytest.raises(CheckpointError, match=message):
            restore_optimiser(live, tensors=some_tensors, state=some_state)
    after = optimiser.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert all(torch.equal(after["state"][0][key], before["state"][0][key]) for key in before["state"][0])


def test_optimiser_tensors_refuses_what_it_cannot_store() -> None:
    optimiser = toy_optimiser(Toy())
    optimiser.param_groups[0]["schedule"] = lambda step: step
    with pytest.raises(CheckpointError, match=r"group\.0\.schedule is a function"):
        optimiser_tensors(optimiser)


def test_describe_run_is_json_without_paths() -> None:
    found = describe_run()
    text = json.dumps(found)
    assert json.loads(text) == found
    assert found["torch"] == torch.__version__
    assert found["num_threads"] == torch.get_num_threads()
    assert str(Path.home()) not in text
    assert str(ROOT) not in text
