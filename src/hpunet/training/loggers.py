"""Where a run writes what it measures: a JSON line file always, TensorBoard where installed, others by protocol."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from hpunet.utils.files import atomic_write

LOG_FILE = "log.jsonl"


@runtime_checkable
class Logger(Protocol):
    """Anything that takes named numbers and pictures of a step; wandb or mlflow fit in a few lines."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers measured at a step."""

    def picture(self, step: int, name: str, pixels: np.ndarray) -> None:
        """A picture (h, w, 3) of 8 bits made at a step."""

    def close(self) -> None:
        """Nothing more comes."""


class JsonLines:
    """One line a call: {"step": 50, "rec": 0.3, …}; numbers that are not finite become null."""

    def __init__(self, path: Path, *, last_step: int) -> None:
        """Go on with the file at `path`; lines of steps after `last_step`, left by an interruption, are dropped."""
        kept = [line for line in read_log(path) if line["step"] <= last_step]
        atomic_write(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
        self._file = path.open("a", encoding="utf-8")

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Append a line."""
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._file.write(json.dumps({"step": step, **finite}) + "\n")
        self._file.flush()

    def picture(self, step: int, name: str, pixels: np.ndarray) -> None:
        """Pictures are files of their own."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Scalars and pictures for TensorBoard, in the run's folder."""

    def __init__(self, folder: Path, *, last_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # purge_step hides what an interrupted run had written beyond its last checkpoint.
        self._writer = SummaryWriter(str(folder), purge_step=last_step + 1)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """One scalar a number."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def picture(self, step: int, name: str, pixels: np.ndarray) -> None:
        """One picture."""
        self._writer.add_image(name, pixels, step, dataformats="HWC")

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


def open_loggers(run: Path, *, last_step: int, more: Sequence[Logger] = ()) -> list[Logger]:
    """The loggers of a run that goes on after `last_step`; TensorBoard only where it is installed."""
    loggers: list[Logger] = [JsonLines(run / LOG_FILE, last_step=last_step), *more]
    with suppress(ImportError):
        loggers.append(TensorBoard(run / "tensorboard", last_step=last_step))
    return loggers


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; one that a crash cut off is left out."""
    lines = []
    if path.is_file():
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and isinstance(line.get("step"), int):
                lines.append(line)
    return lines
