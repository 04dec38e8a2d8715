"""The training loop, all of it in sight: data, step, log, validate, save, stop.

A run is a folder: `settings.json` and `run.json` say what it is, `log.jsonl` and `tensorboard/` how it went,
`pictures/` what it showed, `checkpoints/` where it stands. With `resume` it goes on from the newest whole checkpoint,
bit for bit as if it had never stopped (on a CPU; GPUs add in an order of their own).
"""

import hashlib
import json
import math
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hpunet.config.settings import Settings, check_settings
from hpunet.data.batch import Batch
from hpunet.data.loader import TrainingSteps
from hpunet.data.open import check_options_of_settings, pack_data, settled_options
from hpunet.data.packs import Pack, is_pack, open_pack
from hpunet.errors import CheckpointError, ConfigError, DivergenceError
from hpunet.kernels.dispatch import fused_draw, fused_network, reason_against_fused
from hpunet.models.build import build_model, check_network
from hpunet.objectives.base import Terms
from hpunet.training.build import (
    autocast_for,
    build_example_builder,
    build_loss,
    build_optimiser,
    learning_rate_at,
    learning_rate_boundaries,
)
from hpunet.training.loggers import Logger, open_loggers
from hpunet.training.step import TrainingStep
from hpunet.training.validation import Validation
from hpunet.utils.distributed import all_gather, barrier, rank, world_size
from hpunet.utils.files import atomic_write, dump_json
from hpunet.utils.signals import Interrupted, Stop, stop_on_signals
from hpunet.weights.checkpoints import latest_checkpoint, prune, save_checkpoint
from hpunet.weights.load import TrainedModel, check_posterior, load
from hpunet.weights.run_state import (
    describe_run,
    optimiser_tensors,
    restore_optimiser,
    seed_generators,
)
from hpunet.weights.safetensors_io import check_fits

SETTINGS_FILE, RUN_FILE = "settings.json", "run.json"
STATE_KEYS = {"settings", "data", "info", "optimiser", "best", "started_from", "skipped", "skipped_in_a_row"}
Callback = Callable[[int, dict[str, float]], None]
"""Told the step and the newest numbers: the progress line. At first there are none."""
SHOWN_EVERY_SECONDS = 10
"""Numbers are shown at least so often, also where steps are slow; they are logged every `logging.log_every` steps."""


def prepare_data(where: str, *, options: dict[str, Any], run: Path, progress: Any = None) -> Path:
    """The data as a pack: the pack at `where` itself, or one made of it in the run's folder.

    That one's name holds a sum of where it came from, so that a run is never resumed with a pack of other data.
    """
    check_options_of_settings(where, options)
    if where.startswith("synthetic:"):
        origin = where
    elif is_pack(Path(where)):
        return Path(where)
    else:
        origin = str(Path(where).resolve())
    key = json.dumps([origin, options], sort_keys=True).encode()
    packed = run / f"data-{hashlib.sha256(key).hexdigest()[:8]}"
    if rank() == 0 and not is_pack(packed):
        pack_data(where, packed, options=options, progress=progress)
    barrier()
    return packed


class Training:
    """A run in memory; `train` drives it."""

    def __init__(self, settings: Settings, *, pack_path: Path, run: Path, device: torch.device) -> None:
        self.settings, self.run, self.device = settings, run, device
        seed_generators(settings.seed)  # initial weights; everything later is keyed by step
        self.pack = _on_device(open_pack(pack_path, split="train"), device)
        info = self.pack.info
        model = build_model(
            settings.model,
            in_channels=info.in_channels,
            num_classes=info.num_classes,
            extrapolate=settings.data.extrapolate,
        )
        self.model = model.to(device)
        self.model.check_values = False  # the data were checked when they were packed
        num_pieces = settings.optimiser.accumulation_steps
        self.loss = build_loss(settings.objective, info=info, num_pieces=num_pieces).to(device)
        network: nn.Module = self.model
        self.why_not_fused = _why_not_fused(settings, model=model, device=device)
        if self.why_not_fused is None:
            network = fused_network(network, size=settings.data.crop)
        self.optimiser = build_optimiser(
            settings.optimiser, model=self.model, loss=self.loss, device=device, network=network
        )
        if settings.optimiser.compile:
            network = torch.compile(network)  # type: ignore[assignment]
        if world_size() > 1:
            network = DistributedDataParallel(network)
        self.autocast = autocast_for(settings.optimiser.precision, device)
        self.train_step = TrainingStep(
            model=self.model,
            loss=self.loss,
            optimiser=self.optimiser,
            example_builder=build_example_builder(settings, info=info),
            num_pieces=num_pieces,
            autocast=self.autocast,
            grad_clip=settings.optimiser.grad_clip,
            ema_decay=settings.optimiser.ema_decay,
            network=network,
            draw=fused_draw() if self.why_not_fused is None else None,
        )
        share = settings.optimiser.batch_size // world_size()
        if share % settings.optimiser.accumulation_steps:
            raise ConfigError(
                f"optimiser.accumulation_steps: {settings.optimiser.accumulation_steps} pieces do not divide the "
                f"{share} images of each of {world_size()} processes"
            )
        self.steps = TrainingSteps(
            self.pack,
            batch_size=settings.optimiser.batch_size,
            seed=settings.seed,
            rank=rank(),
            world_size=world_size(),
        )
        self.positions = torch.arange(rank() * share, (rank() + 1) * share, device=device)
        self.train_step.create_moments()
        self.step = 0
        self.best: float | None = None
        self.started_from: dict[str, Any] | None = None
        """Name and iteration of the trained model whose weights it began with."""

    def state_tensors(self) -> dict[str, dict[str, Tensor]]:
        """Everything that makes a resume exact, besides `state`."""
        averaged = zip((name for name, _ in self.model.named_parameters()), self.train_step.averaged, strict=False)
        return {
            "model": dict(self.model.state_dict()),
            "loss": dict(self.loss.state_dict()),
            "optimiser": optimiser_tensors(self.optimiser)[0],
            "averaged": dict(averaged),
        }

    def save(self, *, name: str | None = None) -> Path | None:
        """Write a checkpoint (one process does) and forget old ones."""
        if rank() != 0:
            return None
        folder = self.run / "checkpoints"
        state = {
            "optimiser": optimiser_tensors(self.optimiser)[1],
            "settings": self.settings.model_dump(mode="json"),
            "data": self.pack.fingerprint,
            "info": self.pack.info.as_json(),
            "best": self.best,
            "started_from": self.started_from,
            "skipped": int(self.train_step.skipped),
            "skipped_in_a_row": int(self.train_step.skipped_in_a_row),
        }
        saved = save_checkpoint(folder, step=self.step, tensors=self.state_tensors(), state=state, name=name)
        if name is None:
            prune(folder, keep=self.settings.logging.keep_checkpoints)
        return saved

    def restore(self, say: Callable[[str], None]) -> bool:
        """Go on from the newest whole checkpoint; False if there is none."""
        found = latest_checkpoint(self.run / "checkpoints")
        self._check_all_found_the_same(0 if found is None else found.step)
        if found is None:
            return False
        for reason in found.skipped:
            say(f"fell back to an older checkpoint: {reason}")
        where = str(found.path)
        if missing := STATE_KEYS - found.state.keys():
            raise CheckpointError(f"{where}: not a training run's checkpoint ({', '.join(sorted(missing))} missing)")
        _check_same_run(found.state, self.settings, self.pack, step=found.step, where=where)
        live = self.state_tensors()
        for group in ("model", "loss", "averaged"):
            saved = found.tensors.get(group, {})
            check_fits(live=live[group], saved=saved, name=where)
            for name, tensor in live[group].items():
                tensor.copy_(saved[name])
        optimiser = found.tensors.get("optimiser", {})
        restore_optimiser(self.optimiser, tensors=optimiser, state=found.state["optimiser"])
        self.train_step.skipped.fill_(found.state["skipped"])
        self.train_step.skipped_in_a_row.fill_(found.state["skipped_in_a_row"])
        self.step, self.best = found.step, found.state["best"]
        self.started_from = found.state["started_from"]
        say(f"going on from {found.path} at iteration {self.step}")
        return True

    def start_from(self, trained: TrainedModel) -> list[str]:
        """Begin with the weights of a trained model of the same shape instead of random ones.

        Returns the names of those that begin anew all the same, because image channels or classes differ.
        """
        self.started_from = {"name": trained.name, "iteration": trained.step}
        weights, live = trained.model.state_dict(), self.state_tensors()
        anew = [name for name, tensor in live["model"].items() if tensor.shape != weights[name].shape]
        for group in ("model", "averaged"):
            for name, tensor in live[group].items():
                if name not in anew:
                    tensor.copy_(weights[name])
        return anew

    def _check_all_found_the_same(self, step: int) -> None:
        steps = all_gather(torch.tensor([step], dtype=torch.float64))
        if (steps != step).any():
            raise CheckpointError(
                f"{self.run}: the processes see checkpoints of different steps, {sorted(set(steps.int().tolist()))}; "
                "they must share the folder"
            )

    def run_steps(self) -> Iterator[tuple[Terms, Tensor]]:
        """Train from the current step to the last: terms and gradient norm of each step."""
        objective, end = self.settings.objective, self.settings.optimiser.iterations
        for last in (min(objective.energy_from, end), end):  # without the energy distance, then with it
            self.loss.use_energy = objective.energy > 0 and last > objective.energy_from
            if self.step < last:
                yield from self._steps_to(last)

    def _steps_to(self, end: int) -> Iterator[tuple[Terms, Tensor]]:
        if self.settings.optimiser.cuda_graph and self.can_be_captured():
            yield from self._graph_steps(end)
            return
        for batch in self.steps.iterate(self.step, end, num_workers=self.settings.data.num_workers):
            on_device = Batch(**{name: value.to(self.device) for name, value in vars(batch).items()})
            self._set_learning_rate()
            yield self.train_step(on_device, step=self.step, positions=self.positions)

    def can_be_captured(self) -> bool:
        """Whether a step needs nothing from the host: data on the GPU, of one size, and no other processes."""
        return self.pack.device.type == "cuda" and len(set(self.pack.sizes)) == 1 and world_size() == 1

    def _graph_steps(self, end: int) -> Iterator[tuple[Terms, Tensor]]:
        """The same with one CUDA graph a step: only the images' numbers, the step and the learning rate change."""
        step = torch.tensor(self.step, device=self.device)
        indices = self.steps.images(self.step).to(self.device)

        def run() -> tuple[Terms, Tensor]:
            return self.train_step(self.pack.batch(indices), step=step, positions=self.positions)

        if hasattr(self.optimiser, "line_up"):
            self.optimiser.line_up()
        # Warm-up steps must not count: the state is put back after the capture, in place.
        live = [t for group in self.state_tensors().values() for t in group.values()]
        live += [self.train_step.skipped, self.train_step.skipped_in_a_row]
        kept = [t.clone() for t in live]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            terms, norm = run()
        for t, saved in zip(live, kept, strict=True):
            t.copy_(saved)
        while self.step < end:
            step.fill_(self.step)
            # Pinned, so that the host need not wait for the step before: the GPU never runs dry.
            indices.copy_(self.steps.images(self.step).pin_memory(), non_blocking=True)
            self._set_learning_rate()
            graph.replay()
            yield terms, norm

    def _set_learning_rate(self) -> None:
        rate = learning_rate_at(self.settings.optimiser, self.step)
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def numbers(self, terms: Terms, norm: Tensor) -> dict[str, float]:
        """What to log of the step that was the last; reads from the device."""
        values = {
            "loss": float(terms.loss),
            "rec": float(terms.rec_per_pixel),
            "kl": float(terms.kl.sum()),
            **{f"kl_{i}": float(value) for i, value in enumerate(terms.kl)},
            "lr": learning_rate_at(self.settings.optimiser, self.step - 1),
            "gradient_norm": float(norm),
            "skipped": float(self.train_step.skipped),
        }
        if terms.energy is not None:
            values["energy"] = float(terms.energy)
        if terms.multiplier is not None and terms.constraint is not None:
            values |= {"lambda": float(terms.multiplier), "constraint": float(terms.constraint)}
        if int(self.train_step.skipped_in_a_row) >= self.settings.optimiser.max_skipped:
            what = [name for name, value in values.items() if not math.isfinite(value)]
            what += [f"gradient of {n}" for n, p in self.model.named_parameters() if not _is_finite(p.grad)][:1]
            raise DivergenceError(
                f"{int(self.train_step.skipped_in_a_row)} steps in a row were not finite, the last at iteration "
                f"{self.step} ({', '.join(what)}); the weights are as before them. Try optimiser.grad_clip, "
                "a bit above the gradient_norm that log.jsonl has of before, or a lower learning rate"
            )
        return values


def train(
    settings: Settings,
    *,
    data: str,
    run: Path,
    resume: bool = False,
    start: str | Path | None = None,
    device: torch.device | None = None,
    say: Callable[[str], None] = print,
    watch: Callback | None = None,
    progress: Any = None,
    loggers: Sequence[Logger] = (),
) -> dict[str, float]:
    """Train to the last iteration; returns the last validation's numbers.

    SIGTERM and Ctrl-C save and raise `Interrupted`; a run that has checkpoints goes on only with `resume`. With
    `start`, a run's folder or the name of published weights, training begins with those weights.
    """
    device = device or pick_device()
    has_checkpoints = (run / "checkpoints").is_dir() and any((run / "checkpoints").iterdir())
    if has_checkpoints and not resume:
        raise ConfigError(f"{run}: holds a run already; go on with --resume, or choose another --out")
    check_network(settings)
    trained = None if start is None else _load_start(start, settings, device=device)
    pack_path = prepare_data(data, options=settings.data.options, run=run, progress=progress)
    settings = _with_options(settings, settled_options(data, settings.data.options))
    training = Training(settings, pack_path=pack_path, run=run, device=device)
    restored = resume and training.restore(say)
    if resume and not restored:
        say(f"{run}: no checkpoint yet, starting from the beginning")
    if trained is not None and not restored:
        anew = training.start_from(trained)
        why = f"; anew, since image channels or classes are others: {', '.join(anew)}" if anew else ""
        say(f"starting with the weights of {trained.name}, iteration {trained.step}{why}")
    say("kernels: fused" if training.why_not_fused is None else f"kernels: torch ({training.why_not_fused})")
    if training.step >= settings.optimiser.iterations:
        say(f"{run}: all {settings.optimiser.iterations} iterations are done already")
    if device.type == "cuda" and settings.optimiser.cuda_graph and not training.can_be_captured():
        say("optimiser.cuda_graph: not used; it needs one process, and images of one size that fit the GPU's memory")
    validation = Validation(
        training.model, pack=open_pack(pack_path, split="val"), settings=settings, device=device, run=run
    )
    open_logs: list[Logger] = []
    if rank() == 0:
        kernels = "fused" if training.why_not_fused is None else "torch"
        about = {"data": training.pack.fingerprint, "processes": world_size(), "kernels": kernels}
        about |= {} if training.started_from is None else {"started_from": training.started_from}
        atomic_write(run / SETTINGS_FILE, dump_json(settings.model_dump(mode="json"), name=SETTINGS_FILE))
        atomic_write(run / RUN_FILE, dump_json({**describe_run(), **about}, name=RUN_FILE))
        open_logs = open_loggers(run, last_step=training.step, more=loggers)
    try:
        with stop_on_signals(say) as stop:
            return _loop(training, validation, open_logs, stop=stop, watch=watch or (lambda _step, _numbers: None))
    finally:
        for logger in open_logs:
            logger.close()


def _loop(
    training: Training, validation: Validation, loggers: list[Logger], *, stop: Stop, watch: Callback
) -> dict[str, float]:
    logging, end = training.settings.logging, training.settings.optimiser.iterations
    newest: dict[str, float] = {}
    watch(training.step, {})
    last_time, last_step = time.perf_counter(), training.step
    last_shown = last_time
    for terms, norm in training.run_steps():
        training.step += 1
        step, now = training.step, time.perf_counter()
        log_now = step % logging.log_every == 0 or step == end
        show_now = log_now or now - last_shown > SHOWN_EVERY_SECONDS
        if show_now or training.device.type == "cpu":
            numbers = training.numbers(terms, norm)
        if show_now:
            now = last_shown = time.perf_counter()  # a GPU has done the step only now
            watch(step, {**numbers, "its": (step - last_step) / (now - last_time)})
        if log_now:
            last_time, last_step = now, step
            for logger in loggers:
                logger.numbers(step, numbers)
        if step % logging.validate_every == 0 or step == end:
            newest = validation.run_at(step, loggers, averaged=training.train_step.averaged)
            watch(step, newest)
            if validation.is_better(newest, than=training.best):
                training.best = newest[logging.best]
                training.save(name="best")
            last_time, last_step = time.perf_counter(), step  # the rate is that of training alone
            last_shown = last_time
        asked = stop.asked() if world_size() == 1 or log_now else None
        if asked is not None or step % logging.checkpoint_every == 0 or step == end:
            training.save()
        if asked is not None and step < end:
            barrier()  # for the one that saves: torchrun ends all when the first has gone
            raise Interrupted(asked, step)
    return newest


def pick_device() -> torch.device:
    """This process's GPU where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def _on_device(pack: Pack, device: torch.device) -> Pack:
    """On the GPU whole if it takes at most half of the memory that is free there."""
    if device.type == "cuda" and pack.nbytes < torch.cuda.mem_get_info(device)[0] // 2:
        return pack.to(device)
    return pack


def _why_not_fused(settings: Settings, *, model: nn.Module, device: torch.device) -> str | None:
    """Why steps run on plain torch; None where they run on fused kernels."""
    wish = settings.optimiser.kernels
    if wish == "torch":
        return "as asked"
    reason = reason_against_fused(
        model,
        device=device,
        precision=settings.optimiser.precision,
        activation_checkpointing=settings.model.activation_checkpointing,
        compiled=settings.optimiser.compile,
        prior_draws=settings.objective.energy > 0,
    )
    if wish == "fused" and reason is not None:
        raise ConfigError(f"optimiser.kernels: {reason}; use auto or torch")
    return reason


def _load_start(start: str | Path, settings: Settings, *, device: torch.device) -> TrainedModel:
    """The trained model to begin with, if it has the network that the settings ask for."""
    trained = load(start, device=device)
    check_posterior(trained, where=Path(start))
    shapes = {"kind", "channels", "latent_dims", "blocks_per_scale"}
    given, own = (each.model.model_dump(include=shapes) for each in (trained.settings, settings))
    if changes := [f"model.{key}={json.dumps(given[key])}" for key in own if given[key] != own[key]]:
        raise ConfigError(
            f"{trained.name}: has another network; its weights can be used with "
            + " ".join(f"--set {shlex.quote(change)}" for change in changes)
        )
    return trained


def _with_options(settings: Settings, options: dict[str, Any]) -> Settings:
    return settings.model_copy(update={"data": settings.data.model_copy(update={"options": options})})


def _check_same_run(state: dict[str, Any], settings: Settings, pack: Pack, *, step: int, where: str) -> None:
    """A resume goes on with the same run: what decided its weights so far must not have changed."""
    now, then = (_deciding(each, step=step) for each in (settings, check_settings(state["settings"], where=where)))
    changed = [key for key in sorted(now.keys() | then.keys()) if now.get(key) != then.get(key)]
    other_data = state["data"] != pack.fingerprint
    if changed and not (other_data and changed == ["data.options"]):
        raise CheckpointError(f"{where}: has other settings ({', '.join(changed)}); use them, or another --out")
    if other_data:
        raise CheckpointError(f"{where}: was made with other data than {pack.path}; use them, or another --out")


def _deciding(settings: Settings, *, step: int) -> dict[str, Any]:
    """The settings that decide the weights after `step` iterations: "optimiser.batch_size" and so on.

    Learning rates, fading and energy distance that come later do not, nor does how many iterations follow. Kernels
    only round differently; orientations are for sampling.
    """
    flat: dict[str, Any] = {"seed": settings.seed}
    for group, section in settings.model_dump(mode="json").items():
        if isinstance(section, dict) and group != "logging":
            flat |= {f"{group}.{key}": value for key, value in section.items()}
    del flat["optimiser.kernels"], flat["optimiser.iterations"], flat["model.orientations"]
    past = [boundary for boundary in learning_rate_boundaries(settings.optimiser) if boundary < step]
    flat["optimiser.boundaries"] = past
    flat["optimiser.learning_rates"] = settings.optimiser.learning_rates[: len(past) + 1]
    fade = settings.augmentation.fade
    if fade is not None and fade[0] + 1 >= step:  # at its first step nothing has faded yet
        flat["augmentation.fade"] = None
    if settings.objective.energy == 0 or settings.objective.energy_from >= step:
        flat |= {key: None for key in flat if key.startswith("objective.energy")}
    return flat


def _is_finite(gradient: Tensor | None) -> bool:
    return gradient is None or bool(gradient.isfinite().all())
