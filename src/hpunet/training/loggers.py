"""Loggers of a run: a file of JSON lines, TensorBoard if installed, and others by protocol."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from hpunet.errors import CheckpointError, DataError
from hpunet.utils.files import atomic_write, parse_json, read_file

LOG_FILE = "log.jsonl"


@runtime_checkable
class Logger(Protocol):
    """Takes the numbers and pictures of a step; an adapter to wandb or mlflow needs a few lines."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers measured at a step."""

    def picture(self, step: int, name: str, pixels: np.ndarray) -> None:
        """Log an 8-bit picture (h, w, 3)."""

    def close(self) -> None:
        """End the log."""


class JsonLines:
    """One line per call: {"step": 50, "rec": 0.3, …}; numbers that are not finite become null."""

    def __init__(self, path: Path, *, last_step: int) -> None:
        """Append to the file at `path`, without the lines after `last_step` that an interrupted run left."""
        kept = [line for line in read_log(path) if line["step"] <= last_step]
        atomic_write(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
        self._file = path.open("a", encoding="utf-8")

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Append a line."""
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._file.write(json.dumps({"step": step, **finite}) + "\n")
        self._file.flush()

    def picture(self, step: int, name: str, pixels: np.ndarray) -> None:
        """Pictures are saved as files."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Scalars and pictures for TensorBoard."""

    def __init__(self, folder: Path, *, last_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # purge_step hides steps after the last checkpoint of an interrupted run.
        self._writer = SummaryWriter(str(folder), purge_step=last_step + 1)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Write one scalar per number."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def picture(self, step: int, name: str, pixels: np.ndarray) -> None:
        """Write a picture."""
        self._writer.add_image(name, pixels, step, dataformats="HWC")

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


def open_loggers(
    run: Path, *, last_step: int, say: Callable[[str], None], more: Sequence[Logger] = ()
) -> list[Logger]:
    """Open the loggers of a run that continues after `last_step`; `say` receives messages."""
    loggers: list[Logger] = [JsonLines(run / LOG_FILE, last_step=last_step), *more]
    try:
        loggers.append(TensorBoard(run / "tensorboard", last_step=last_step))
    except ImportError:
        pass
    except UnicodeEncodeError:
        say(f"{run}: TensorBoard needs folders named in UTF-8, so the numbers are in {LOG_FILE} only")
    return loggers


def read_log(path: Path, *, strict: bool = False) -> list[dict[str, Any]]:
    """The lines of a log, without an incomplete last one; other damage, or no file, is an error if `strict`."""
    if not strict and not path.is_file():
        return []
    content = read_file(path, error=DataError, growing=True)  # a run may be writing it
    lines = []
    for number, text in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            line = parse_json(text, name=str(path))
            numbers = isinstance(line, dict) and all(type(n) in (int, float, type(None)) for n in line.values())
            if not numbers or type(line.get("step")) is not int:
                raise ValueError("not an object of numbers with a step")
            lines.append(line)
        except (ValueError, CheckpointError) as error:
            if strict:
                raise DataError(f"{path}: line {number} is damaged ({error}); remove it") from None
    return lines
