"""The training loop: data, step, log, validate, save, stop.

A run is a folder: `settings.json` and `run.json` say what it is, `log.jsonl` and `tensorboard/` hold its numbers,
`pictures/` its samples, `checkpoints/` its state, `verdict.txt` a verdict. With `resume` training continues from the
newest intact checkpoint, bit for bit as if it had never stopped (on a CPU; GPUs sum in an order of their own).
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hpunet.config.settings import Settings
from hpunet.data.fingerprint import FILES_FILE, FileHashes, changed_files
from hpunet.data.folder.patients import patient_warning
from hpunet.data.open import (
    check_data_options,
    data_fingerprints,
    options_of_model,
    pack_data,
    with_pack_options,
)
from hpunet.data.packs import is_pack, open_pack, pack_made_of
from hpunet.errors import CheckpointError, ConfigError, DataError
from hpunet.models.build import check_network
from hpunet.objectives.base import Terms
from hpunet.training.constant_map import constant_map_loss, kappa_warning
from hpunet.training.loggers import LOG_FILE, Logger, open_loggers, read_log
from hpunet.training.resume import load_start, restore, save, start_from
from hpunet.training.state import Training
from hpunet.training.threads import ThreadWatch
from hpunet.training.validation import Validation
from hpunet.training.verdict import VERDICT_FILE, verdict
from hpunet.utils.distributed import barrier, rank, shared_lock, world_size
from hpunet.utils.files import REPLACED, atomic_write, dump_json, parse_json, real_path
from hpunet.utils.signals import Interrupted, Stop, stop_on_signals
from hpunet.weights.load import TrainedModel
from hpunet.weights.run_state import describe_run

SETTINGS_FILE, RUN_FILE = "settings.json", "run.json"
_PACK = "data-"  # how the names of packs begin that runs make for themselves
SHOW_EVERY_SECONDS = 10  # numbers are shown at least this often; they are logged every `logging.log_every` steps
Callback = Callable[[int, dict[str, float]], None]
"""Receives the step and the newest numbers, for a progress line; none before the first step."""


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
    """Train to the last iteration; returns the numbers of the last validation.

    SIGTERM and Ctrl-C save a checkpoint and raise `Interrupted`.

    Args:
        settings: all settings of the run.
        data: a pack, or what a pack can be made of.
        run: the run's folder.
        resume: continue from the newest checkpoint; without it, a folder with checkpoints is refused.
        start: a run's folder or the name of published weights to start from.
        device: by default this process's GPU, or the CPU.
        say: receives messages.
        watch: receives the step and the newest numbers.
        progress: shows the progress of packing.
        loggers: loggers in addition to the log file and TensorBoard.
    """
    device = device or pick_device()
    check_network(settings)
    trained = None if start is None else load_start(start, settings, device=device)
    shown: dict[str, Any] = {"say": say, "watch": watch or (lambda _step, _numbers: None), "progress": progress}
    with shared_lock(run):
        if _has_checkpoints(run) and not resume:
            raise ConfigError(f"{run}: already holds a run; continue it with --resume or choose another --out")
        return _train(settings, data, run, resume=resume, trained=trained, device=device, loggers=loggers, **shown)


def _with_options(settings: Settings, options: dict[str, Any]) -> Settings:
    """The same with other options of the data."""
    return settings.model_copy(update={"data": settings.data.model_copy(update={"options": options})})


def _train(
    settings: Settings,
    data: str,
    run: Path,
    *,
    resume: bool,
    trained: TrainedModel | None,
    device: torch.device,
    say: Callable[[str], None],
    watch: Callback,
    progress: Any,
    loggers: Sequence[Logger],
) -> dict[str, float]:
    settings = _with_options(settings, options_of_model(data, settings.data.options, ndim=settings.model.ndim))
    pack_path = prepare_data(data, options=settings.data.options, run=run, progress=progress, say=say)
    settings = _with_options(settings, options := with_pack_options(data, settings.data.options))
    training = Training(settings, pack_path=pack_path, run=run, device=device)
    restored = resume and restore(training, say)
    if resume and not restored:
        say(f"{run}: no checkpoint yet, starting from the beginning")
    if trained is not None and not restored:
        different = start_from(training, trained)
        why = f"; re-initialised, because image channels or classes differ: {', '.join(different)}"
        say(f"starting from the weights of {trained.name}, iteration {trained.step}{why if different else ''}")
    constant = None
    if settings.objective.kind == "geco":
        constant = constant_map_loss(training.pack, training.train_step.example_builder, settings.objective)
        if warning := kappa_warning(settings.objective.kappa, constant):
            say(warning)
    kernels = "kernels: fused" if training.why_not_fused is None else f"kernels: torch ({training.why_not_fused})"
    say(f"warning: {kernels}" if training.fell_back else kernels)
    if training.step >= settings.optimiser.iterations:
        say(f"{run}: all {settings.optimiser.iterations} iterations are done")
    if device.type == "cuda" and settings.optimiser.cuda_graph and not training.can_be_captured():
        say("optimiser.cuda_graph: not used; it needs images (or volumes) of one size that fit the GPU's memory")
    held_out = open_pack(pack_path, split="val")
    if words := patient_warning([training.pack, held_out], options=options):
        say(f"warning: {words}")
    how: dict[str, Any] = {"device": device, "kernels": "torch" if training.why_not_fused else "auto"}
    validation = Validation(training.model, pack=held_out, settings=settings, run=run, **how)
    if validation.note:
        say(validation.note)
    open_logs: list[Logger] = []
    if rank() == 0:
        kernels = "torch" if training.why_not_fused else "fused"
        about = {"data": training.pack.fingerprint, "processes": world_size(), "kernels": kernels}
        about |= {} if constant is None else {"constant_map_rec": constant}
        about |= {} if training.started_from is None else {"started_from": training.started_from}
        # The settings last: they make the folder a run.
        atomic_write(run / RUN_FILE, dump_json({**describe_run(), **about}, name=RUN_FILE))
        atomic_write(run / SETTINGS_FILE, dump_json(settings.model_dump(mode="json"), name=SETTINGS_FILE))
        open_logs = open_loggers(run, last_step=training.step, say=say, more=loggers)
    try:
        # Closed, so that processes that read ahead end with the loop.
        with stop_on_signals(say) as stop, closing(training.run_steps()) as steps:
            newest = _loop(steps, training, validation, open_logs, stop=stop, say=say, watch=watch)
    finally:
        for logger in open_logs:
            logger.close()
    if rank() == 0 and (log := read_log(run / LOG_FILE)):
        about = parse_json((run / RUN_FILE).read_bytes(), name=RUN_FILE)
        atomic_write(run / VERDICT_FILE, "".join(f"{line}\n" for line in verdict(log, settings, about)).encode())
    return newest


def _loop(
    steps: Iterable[tuple[Terms, Tensor]],
    training: Training,
    validation: Validation,
    loggers: list[Logger],
    *,
    stop: Stop,
    say: Callable[[str], None],
    watch: Callback,
) -> dict[str, float]:
    logging, end = training.settings.logging, training.settings.optimiser.iterations
    newest: dict[str, float] = {}
    watch(training.step, {})
    last_time = last_shown = time.perf_counter()
    last_step = training.step
    threads = ThreadWatch(torch.get_num_threads() if training.device.type == "cpu" else 1)
    for terms, norm in steps:
        training.step += 1
        step, now = training.step, time.perf_counter()
        log_now = step % logging.log_every == 0 or step == end
        show_now = log_now or now - last_shown > SHOW_EVERY_SECONDS
        if show_now or training.device.type == "cpu":
            numbers = training.numbers(terms, norm)
        if show_now:
            now = last_shown = time.perf_counter()  # only now has a GPU finished the step
            watch(step, {**numbers, "its": (step - last_step) / (now - last_time)})
        if slow := threads.warning():
            say(slow)
        if log_now:
            last_time, last_step = now, step
            for logger in loggers:
                logger.numbers(step, numbers)
        if step % logging.validate_every == 0 or step == end:
            newest = validation.run_at(step, loggers, averaged=training.train_step.averaged)
            watch(step, newest)
            if words := validation.raw_is_better(newest):
                say(f"iteration {step}: {words}")
            if validation.is_better(newest, than=training.best):
                training.best = newest[logging.best]
                save(training, name="best")
            last_time = last_shown = time.perf_counter()  # the rate excludes validation
            last_step = step
        asked = stop.asked() if world_size() == 1 or log_now else None
        if asked is not None or step % logging.checkpoint_every == 0 or step == end:
            save(training)
        if asked is not None and step < end:
            barrier()  # wait for the process that saves: torchrun ends all when the first exits
            raise Interrupted(asked, step)
    return newest


def prepare_data(
    where: str,
    *,
    options: dict[str, Any],
    run: Path,
    progress: Any = None,
    say: Callable[[str], None] = print,
) -> Path:
    """The pack at `where`, or one made of the data there, in the run's folder and named by a hash of its origin.

    It is made again if the data have changed since; not if the run has checkpoints, which belong to what it was.
    """
    check_data_options(where, options)
    synthetic = where.startswith("synthetic:")
    if not synthetic and is_pack(Path(where)):
        packed = Path(where)
    else:
        origin = where if synthetic else str(real_path(where))
        key = json.dumps([origin, options], sort_keys=True).encode()
        packed = run / f"{_PACK}{hashlib.sha256(key).hexdigest()[:8]}"
        if rank() == 0:
            _pack_what_is_there(where, packed, options=options, run=run, progress=progress, say=say)
        barrier()
    if rank() == 0:
        for left in run.glob(f"{REPLACED}{_PACK}*"):  # replaced by a process that was killed before it deleted it
            shutil.rmtree(left, ignore_errors=True)
        others = [path for path in sorted(run.glob(f"{_PACK}*")) if is_pack(path) and not path.samefile(packed)]
        for path in others:
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            say(f"{path}: a pack that this run does not use; delete it to free {size / 1e6:,.1f} MB")
    return packed


def _pack_what_is_there(
    where: str, packed: Path, *, options: dict[str, Any], run: Path, progress: Any, say: Callable[[str], None]
) -> None:
    hashes = FileHashes(run / FILES_FILE)
    exists, made_of = is_pack(packed), None
    if exists:
        try:
            made_of = pack_made_of(packed)
        except DataError as error:
            say(str(error))
    if made_of is not None:
        if made_of == data_fingerprints(where, options=options, hashes=hashes):
            hashes.save()
            return
        what = changed_files(hashes.remembered, hashes.asked) or "other images or options"
        changed = f"{where} has changed since {packed} was made of it ({what})"
        if _has_checkpoints(run):
            cure = f"restore the data, choose another --out, or go on with the data as they were: --data {packed}"
            raise CheckpointError(f"{changed}, and {run} was trained on that; {cure}")
        say(f"{changed}; packing it again")
    pack_data(where, packed, options=options, progress=progress, hashes=hashes, replace=exists)
    hashes.save()


def _has_checkpoints(run: Path) -> bool:
    folder = run / "checkpoints"
    return folder.is_dir() and any(folder.iterdir())


def pick_device() -> torch.device:
    """This process's GPU if there is one (processes may share it), else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return torch.device("cpu")
