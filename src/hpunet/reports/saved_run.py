"""Read back and check the folder of a training run. Needs neither torch nor the data."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpunet.config.settings import Settings, check_settings
from hpunet.errors import DataError
from hpunet.reports.examples import Examples, read_examples
from hpunet.training.loggers import LOG_FILE, read_log
from hpunet.utils.files import entries, parse_json, read_file, read_live, real_path

VOLUME_NOTE = (
    "Metrics slice_… are means over the slices of the same samples, as if each slice were an image; the others "
    "compare whole volumes. Samples that flicker from slice to slice can be right in every slice and wrong as volumes"
)
"""What the two kinds of metrics of volumes mean."""


@dataclass(frozen=True)
class SavedEvaluation:
    """An evaluation of a run: scores by metric, and examples unless every image failed."""

    num_images: int
    scores: Mapping[str, tuple[float, float, float | None]]
    """Mean, and its standard deviation over bootstraps of images and, if known, of patients."""
    examples: Examples | None
    volume_unit: str = ""
    """The unit of volumes; empty for images."""


@dataclass(frozen=True)
class SavedRun:
    """A run: its settings, log, the examples of its newest validation at `step`, and evaluations by folder name."""

    name: str
    settings: Settings
    description: dict[str, Any]
    log: list[dict[str, Any]]
    examples: Examples | None  # none before the first validation
    step: int
    evaluations: Mapping[str, SavedEvaluation]

    def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values of a logged number, where it was finite."""
        points = [(line["step"], line[name]) for line in self.log if line.get(name) is not None]
        steps, values = zip(*points, strict=True) if points else ((), ())
        return np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)


def read_run(folder: Path, *, name: str | None = None) -> SavedRun:
    """Read a run's folder, or raise an error that names the file and what is wrong with it; it may be in use."""
    parts = [folder, folder / "pictures", *folder.glob("evaluation/*")]
    return read_live(lambda: _read_run(folder, name=name), seen=lambda: entries(*parts))


def _read_run(folder: Path, *, name: str | None) -> SavedRun:
    if not (folder / "settings.json").exists():
        why = "not a run's folder (no settings.json)" if folder.is_dir() else "no such folder"
        raise DataError(f"{folder}: {why}; expected one that `hpunet train` wrote")
    settings = check_settings(_read_object(folder / "settings.json"), where=str(folder / "settings.json"))
    log = read_log(folder / LOG_FILE, strict=True)
    if not log:
        raise DataError(f"{folder / LOG_FILE}: has no lines yet; let the run log a step first (logging.log_every)")
    validated = [line["step"] for line in log if "val_ged2" in line]
    step = validated[-1] if validated else 0
    examples = read_examples(folder / "pictures" / f"step-{step:08d}.npz") if validated else None
    evaluated = sorted(path.parent for path in folder.glob("evaluation/*/summary.json"))
    return SavedRun(
        name=name or real_path(folder).name,
        settings=settings,
        description=_read_object(folder / "run.json"),
        log=log,
        examples=examples,
        step=step,
        evaluations={path.name: read_evaluation(path, same_classes=examples) for path in evaluated},
    )


def read_evaluation(folder: Path, *, same_classes: Examples | None = None) -> SavedEvaluation:
    """Read the folder of an evaluation, or raise an error that names the file."""
    path = folder / "summary.json"
    summary = _read_object(path)
    scores = {name: value for name, value in summary.items() if isinstance(value, dict) and "std" in value}
    numbers = [summary.get("num_images"), *(value.get(key) for value in scores.values() for key in ("mean", "std"))]
    numbers += [value["patient_std"] for value in scores.values() if value.get("patient_std") is not None]
    if not all(type(number) in (int, float) for number in numbers):
        raise DataError(f"{path}: not the summary of an evaluation; evaluate again")
    pictures = folder / "examples.npz"
    return SavedEvaluation(
        num_images=summary["num_images"],
        scores={name: (value["mean"], value["std"], value.get("patient_std")) for name, value in scores.items()},
        examples=read_examples(pictures, same_classes=same_classes) if pictures.exists() else None,
        volume_unit=volume_unit(summary),
    )


def volume_unit(found: Mapping[str, Any]) -> str:
    """The unit of the volumes of a summary or comparison; empty for images."""
    if found.get("ndim") != 3:
        return ""
    return "voxels" if found.get("spacing") is None else "ml"


def _read_object(path: Path) -> dict[str, Any]:
    value = parse_json(read_file(path, error=DataError), name=str(path))
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value
