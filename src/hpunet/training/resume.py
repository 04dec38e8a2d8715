"""Where a run starts: from its newest checkpoint, from the weights of another model, or from random weights."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hpunet.config.settings import Settings, check_settings
from hpunet.data.packs import Pack
from hpunet.errors import CheckpointError, ConfigError
from hpunet.training.build import learning_rate_boundaries
from hpunet.training.state import Training
from hpunet.utils.distributed import all_gather, rank
from hpunet.weights.checkpoints import latest_checkpoint, prune, save_checkpoint
from hpunet.weights.load import TrainedModel, load_trained, require_posterior
from hpunet.weights.run_state import optimiser_tensors, restore_optimiser, rounding
from hpunet.weights.safetensors_io import check_finite, check_same_tensors

_RATES = ("optimiser.boundaries", "optimiser.learning_rates")
STATE_KEYS = {"settings", "data", "info", "optimiser", "best", "started_from", "skipped", "skipped_in_a_row"}


def save(training: Training, *, name: str | None = None) -> None:
    """Write a checkpoint (one process does) and delete old ones."""
    if rank() != 0:
        return
    folder = training.run / "checkpoints"
    state = {
        "optimiser": optimiser_tensors(training.optimiser)[1],
        "settings": training.settings.model_dump(mode="json"),
        "data": training.pack.fingerprint,
        "info": training.trained_on.as_json(),
        "best": training.best,
        "started_from": training.started_from,
        "skipped": int(training.train_step.skipped),
        "skipped_in_a_row": int(training.train_step.skipped_in_a_row),
        "rounding": rounding(training.device),
    }
    save_checkpoint(folder, step=training.step, tensors=training.state_tensors(), state=state, name=name)
    if name is None:
        prune(folder, keep=training.settings.logging.keep_checkpoints)


def restore(training: Training, say: Callable[[str], None]) -> bool:
    """Load the newest intact checkpoint; False if there is none."""
    found = latest_checkpoint(training.run / "checkpoints")
    step = 0 if found is None else found.step
    steps = all_gather(torch.tensor([step], dtype=torch.float64))
    if (steps != step).any():
        seen = f"the processes see checkpoints of different steps, {sorted(set(steps.int().tolist()))}"
        raise CheckpointError(f"{training.run}: {seen}; they must share the folder")
    if found is None:
        return False
    for reason in found.skipped:
        say(f"fell back to an older checkpoint: {reason}")
    where, state = str(found.path), found.state
    if missing := STATE_KEYS - state.keys():
        raise CheckpointError(f"{where}: not the checkpoint of a training run ({', '.join(sorted(missing))} missing)")
    _check_same_run(state, training.settings, training.pack, step=step, where=where)
    live = training.state_tensors()
    for group in ("model", "loss", "averaged"):
        saved = found.tensors.get(group, {})
        check_same_tensors(live=live[group], saved=saved, name=where)
        check_finite(saved, name=where)
        for name, tensor in live[group].items():
            tensor.copy_(saved[name])
    restore_optimiser(training.optimiser, tensors=found.tensors.get("optimiser", {}), state=state["optimiser"])
    training.train_step.skipped.fill_(state["skipped"])
    training.train_step.skipped_in_a_row.fill_(state["skipped_in_a_row"])
    training.step, training.best, training.started_from = step, state["best"], state["started_from"]
    say(f"resuming from {found.path} at iteration {step}")
    if words := _rounding_warning(state.get("rounding", {}), rounding(training.device)):
        say(f"warning: {words}")
    return True


def _rounding_warning(then: dict[str, Any], now: dict[str, Any]) -> str:
    """What to say where the run goes on with other threads or the like; nothing if bits stay the same."""
    changed = [name for name in then if name in now and then[name] != now[name]]
    if not changed:
        return ""
    what = ", ".join(f"{name} was {then[name]}, is {now[name]}" for name in changed)
    cure = f"; to repeat it, set OMP_NUM_THREADS={then['num_threads']}" if "num_threads" in changed else ""
    return f"{what}: sums round differently, and the run will not end bit for bit as it would have{cure}"


def load_start(start: str | Path, settings: Settings, *, device: torch.device) -> TrainedModel:
    """The trained model to start from, if its network is the one in the settings."""
    trained = load_trained(start, device=device)
    require_posterior(trained, where=Path(start))
    shapes = {"kind", "channels", "latent_dims", "blocks_per_scale"}
    given, own = (each.model.model_dump(include=shapes) for each in (trained.settings, settings))
    if changes := [f"model.{key}={json.dumps(given[key])}" for key in own if given[key] != own[key]]:
        raise ConfigError(
            f"{trained.name}: has a different network; to use its weights, add "
            + " ".join(f"--set {shlex.quote(change)}" for change in changes)
        )
    return trained


def start_from(training: Training, trained: TrainedModel) -> list[str]:
    """Copy a trained model's weights; returns the names of those that stay random, since their shapes differ."""
    training.started_from = {"name": trained.name, "iteration": trained.step}
    weights, live = trained.model.state_dict(), training.state_tensors()
    different = [name for name, tensor in live["model"].items() if tensor.shape != weights[name].shape]
    for group in ("model", "averaged"):
        for name, tensor in live[group].items():
            if name not in different:
                tensor.copy_(weights[name])
    return different


def _check_same_run(state: dict[str, Any], settings: Settings, pack: Pack, *, step: int, where: str) -> None:
    """Refuse to resume if data or settings that shaped the weights so far have changed."""
    before = check_settings(state["settings"], where=where)
    now, then = (_deciding(each, step=step) for each in (settings, before))
    changed = [key for key in sorted(now.keys() | then.keys()) if now.get(key) != then.get(key)]
    other_data = state["data"] != pack.fingerprint
    if changed and not (other_data and changed == ["data.options"]):
        what = f"different settings ({', '.join(changed)})"
        if settings.optimiser.iterations != before.optimiser.iterations and set(changed) <= set(_RATES):
            steps = ",".join(map(str, learning_rate_boundaries(before.optimiser)))
            cure = f"which move with optimiser.iterations; keep them by --set 'optimiser.boundaries=[{steps}]'"
            raise CheckpointError(f"{where}: was trained with {what}, {cure}")
        raise CheckpointError(f"{where}: was trained with {what}; restore them or choose another --out")
    if other_data:
        raise CheckpointError(f"{where}: was trained on different data than {pack.path}; choose another --out")


def _deciding(settings: Settings, *, step: int) -> dict[str, Any]:
    """The settings that decide the weights after `step` iterations, by name ("optimiser.batch_size").

    Not what starts later (learning rates, fading, energy distance), the number of iterations, kernels (which only
    round differently), processes that read ahead, orientations (which are for sampling) and what evaluation scores.
    """
    flat: dict[str, Any] = {"seed": settings.seed}
    for group, section in settings.model_dump(mode="json").items():
        if isinstance(section, dict) and group != "logging":
            flat |= {f"{group}.{key}": value for key, value in section.items()}
    later = ("optimiser.iterations", "model.orientations", "data.evaluate")
    for key in ("optimiser.kernels", "data.num_workers", *later):
        del flat[key]
    past = [boundary for boundary in learning_rate_boundaries(settings.optimiser) if boundary < step]
    flat["optimiser.boundaries"] = past
    flat["optimiser.learning_rates"] = settings.optimiser.learning_rates[: len(past) + 1]
    fade = settings.augmentation.fade
    if fade is not None and fade[0] + 1 >= step:  # in its first step nothing has faded yet
        flat["augmentation.fade"] = None
    if settings.objective.energy == 0 or settings.objective.energy_start >= step:
        flat |= {key: None for key in flat if key.startswith("objective.energy")}
    return flat
