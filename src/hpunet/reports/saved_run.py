"""What a training run left in its folder, read back and checked. Needs neither torch nor the data."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpunet.config.settings import Settings, check_settings
from hpunet.errors import DataError
from hpunet.reports.examples import Examples, read_examples
from hpunet.training.loggers import LOG_FILE, read_log
from hpunet.utils.files import read_file


@dataclass(frozen=True)
class SavedEvaluation:
    """What an evaluation of a run saved: its numbers, and examples unless every image failed."""

    num_images: int
    scores: Mapping[str, tuple[float, float]]
    """Mean and standard deviation of every metric that is defined."""
    examples: Examples | None


@dataclass(frozen=True)
class SavedRun:
    """A run: its settings, where it ran, its log, the examples that validation saved, and its evaluations."""

    name: str
    folder: Path
    settings: Settings
    description: dict[str, Any]
    log: list[dict[str, Any]]
    examples: Examples | None
    """What the newest validation saved; None before the first one."""
    step: int
    """The iteration of that validation."""
    evaluations: Mapping[str, SavedEvaluation]
    """By the names of their folders: "test-16"."""

    def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values of a logged number; steps where it was not finite are left out."""
        points = [(line["step"], line[name]) for line in self.log if line.get(name) is not None]
        steps, values = zip(*points, strict=True) if points else ((), ())
        return np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)


def read_run(folder: Path, *, name: str | None = None) -> SavedRun:
    """Read a run's folder, or raise an error that names the file and what is wrong with it."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected one that `hpunet train` wrote")
    if not (folder / "settings.json").exists():
        raise DataError(f"{folder}: not a run's folder (no settings.json); expected one that `hpunet train` wrote")
    settings = check_settings(_read_object(folder / "settings.json"), where=str(folder / "settings.json"))
    log = read_log(folder / LOG_FILE, strict=True)
    if not log:
        raise DataError(f"{folder / LOG_FILE}: has no lines yet; let the run log a step first (logging.log_every)")
    validated = [line["step"] for line in log if "val_ged2" in line]
    step = validated[-1] if validated else 0
    examples = read_examples(folder / "pictures" / f"step-{step:08d}.npz") if validated else None
    evaluated = sorted(path.parent for path in folder.glob("evaluation/*/summary.json"))
    return SavedRun(
        name=name or folder.resolve().name,
        folder=folder,
        settings=settings,
        description=_read_object(folder / "run.json"),
        log=log,
        examples=examples,
        step=step,
        evaluations={path.name: _read_evaluation(path, same_classes=examples) for path in evaluated},
    )


def _read_evaluation(folder: Path, *, same_classes: Examples | None) -> SavedEvaluation:
    path = folder / "summary.json"
    summary = _read_object(path)
    scores = {name: value for name, value in summary.items() if isinstance(value, dict) and "std" in value}
    numbers = [summary.get("num_images"), *(value.get(key) for value in scores.values() for key in ("mean", "std"))]
    if not all(type(number) in (int, float) for number in numbers):
        raise DataError(f"{path}: not the summary of an evaluation; evaluate again")
    pictures = folder / "examples.npz"
    return SavedEvaluation(
        num_images=summary["num_images"],
        scores={name: (value["mean"], value["std"]) for name, value in scores.items()},
        examples=read_examples(pictures, same_classes=same_classes) if pictures.exists() else None,
    )


def _read_object(path: Path) -> dict[str, Any]:
    content = read_file(path, error=DataError)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}); expected what hpunet wrote") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value
