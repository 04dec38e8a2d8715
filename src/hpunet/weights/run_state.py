"""The state of an optimiser as tensors and JSON, exact in both directions; and versions and hardware of a run."""

import platform
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from hpunet import __version__
from hpunet.errors import CheckpointError
from hpunet.utils.distributed import world_size
from hpunet.utils.source import source_commit

_IMPLEMENTATION = ("capturable", "differentiable", "foreach", "fused")
"""Options of how an optimiser computes, not what; they are not restored."""


def optimiser_tensors(optimiser: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Moments, step counters and hyperparameters by group, as tensors (no copies) and JSON.

    For optimisers such as Adam, where the state of a parameter has its shape or is a scalar.
    """
    tensors: dict[str, Tensor] = {}
    saved = optimiser.state_dict()
    state = {
        "kind": type(optimiser).__name__,
        "parameters": _describe_parameters(optimiser),
        "groups": [
            {key: _pack(value, f"group.{g}.{key}", tensors) for key, value in group.items() if key != "params"}
            for g, group in enumerate(saved["param_groups"])
        ],
        "values": {
            str(index): {key: _pack(value, f"state.{index}.{key}", tensors) for key, value in values.items()}
            for index, values in saved["state"].items()
        },
    }
    return tensors, state


def restore_optimiser(optimiser: Optimizer, *, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Restore what `optimiser_tensors` returned, on the optimiser's own devices and in its own memory layout.

    Its implementation (capturable, fused, foreach) and the type of its learning rates (tensor or number) stay.
    Moments are new tensors: restore before a CUDA graph is captured.
    """
    _check_same_parameters(optimiser, state)
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    live_groups = optimiser.state_dict()["param_groups"]
    live_rates = [group["lr"] for group in optimiser.param_groups]
    unused = dict(tensors)
    try:
        groups = [{key: _unpack(value, unused) for key, value in group.items()} for group in state["groups"]]
        values = {
            int(index): {key: _like(parameters[int(index)], _unpack(value, unused)) for key, value in named.items()}
            for index, named in state["values"].items()
        }
        rates = [float(group["lr"]) for group in groups]
        for live, group in zip(live_groups, groups, strict=True):
            kept = {key for key in live if key in ("params", *_IMPLEMENTATION) or key not in group}
            group.update({key: live[key] for key in kept})
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"optimiser: unreadable state, or of another version of hpunet ({error!r})") from error
    if unused:
        raise CheckpointError(f"optimiser: {len(unused)} unknown tensors, such as {next(iter(unused))}")
    optimiser.load_state_dict({"state": values, "param_groups": groups})
    for group, live_rate, rate in zip(optimiser.param_groups, live_rates, rates, strict=True):
        group["lr"] = live_rate.fill_(rate) if isinstance(live_rate, Tensor) else rate


def _describe_parameters(optimiser: Optimizer) -> list[list[str]]:
    """Type and shape of every parameter, group by group."""
    return [
        [f"{str(parameter.dtype).removeprefix('torch.')} {tuple(parameter.shape)}" for parameter in group["params"]]
        for group in optimiser.param_groups
    ]


def _check_same_parameters(optimiser: Optimizer, state: Mapping[str, Any]) -> None:
    kind, live, saved = type(optimiser).__name__, _describe_parameters(optimiser), state.get("parameters")
    if state.get("kind") != kind:
        raise CheckpointError(f"optimiser: the checkpoint holds the state of {state.get('kind')}, expected {kind}")
    if not isinstance(saved, list) or [len(group) for group in saved] != [len(group) for group in live]:
        counts = [len(group) for group in saved] if isinstance(saved, list) else "no"
        here = [len(group) for group in live]
        raise CheckpointError(f"optimiser: the checkpoint has {counts} parameters by group, expected {here}")
    for g, (live_group, saved_group) in enumerate(zip(live, saved, strict=True)):
        for p, (expected, found) in enumerate(zip(live_group, saved_group, strict=True)):
            if expected != found:
                which = f"parameter {p} of group {g}"
                raise CheckpointError(f"optimiser: {which} is {found} in the checkpoint, expected {expected}")


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """`value` as JSON; a tensor goes to `tensors` and leaves its name."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, tuple | list):
        items = [_pack(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(f"optimiser: {name} is a {type(value).__name__}, which cannot be saved")


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Undo `_pack`; tensors are removed from `tensors`, and copied, as optimisers work in place."""
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    if isinstance(value, dict):
        return tensors.pop(value["tensor"]).clone() if "tensor" in value else tuple(_unpack(value["tuple"], tensors))
    return value


def _like(parameter: Tensor, value: Any) -> Any:
    """`value` in the memory layout of its parameter, which fused and multi-tensor steps require."""
    if not isinstance(value, Tensor) or value.ndim == 0:
        return value
    if value.shape != parameter.shape:
        raise ValueError(f"state of shape {tuple(value.shape)} for a parameter of shape {tuple(parameter.shape)}")
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def seed_generators(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def describe_run() -> dict[str, Any]:
    """Versions, source commit, device and threads, as JSON without paths."""
    on_gpu = torch.cuda.is_available()
    return {
        "hpunet": __version__,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if on_gpu else platform.processor() or platform.machine(),
        "num_devices": torch.cuda.device_count() if on_gpu else 0,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "num_threads": torch.get_num_threads(),
        **source_commit(),
    }


def rounding(device: torch.device) -> dict[str, Any]:
    """What decides how sums round, as JSON; of GPUs, which sum in an order of their own, only that it is one."""
    if device.type != "cpu":
        return {"device": device.type}
    return {
        "device": "cpu",
        "num_threads": torch.get_num_threads(),
        "processes": world_size(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": str(torch.__version__),
    }
