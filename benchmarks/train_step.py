"""What the defaults are worth on a CPU: the LIDC model's training step and sampling, against plain NCHW.

    python benchmarks/train_step.py [--repeats 7] [--batch 4]

Plain is the network as it is usually written: NCHW, the decoder's inputs doubled and joined. Each variant has a
process of its own, because one of them has glibc keep freed memory instead of returning it to the system (environment
variables, read when a process starts). They take turns, in float32, on fresh random data. The table gives medians,
and the speed-up over plain.
"""

import argparse
import os
import platform
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection

import torch
from rich.console import Console
from rich.table import Table

from hpunet import GECO, HPUNet, sample
from hpunet.objectives.loss import parameter_groups
from timing import medians

KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
VARIANTS: dict[str, tuple[bool, dict[str, str]]] = {
    "hpunet, freed memory kept": (True, KEEP_FREED_MEMORY),
    "hpunet": (True, {}),
    "plain NCHW": (False, {}),
}
"""By name: channels last or not, and environment variables."""


def training_step(model: HPUNet, *, batch: int) -> Callable[[], object]:
    """One step with Adam and GECO, as in the paper."""
    objective = GECO(kappa=0.05)
    optimiser = torch.optim.Adam(parameter_groups(model, objective), lr=1e-4, fused=True)

    def step() -> None:
        image, labels = torch.rand(batch, 1, 128, 128), torch.randint(2, (batch, 128, 128))
        terms = objective(model(image=image, labels=labels), labels=labels)
        optimiser.zero_grad()
        terms.loss.backward()
        optimiser.step()

    return step


def serve(calls: Connection, *, batch: int, channels_last: bool) -> None:
    """Run the task that is asked for, again and again."""
    torch.manual_seed(0)
    model = HPUNet(in_channels=1, num_classes=2, channels_last=channels_last)
    tasks = {
        "train": training_step(model, batch=batch),
        "sample": lambda: sample(model, image=torch.rand(1, 1, 128, 128), num_samples=16),
    }
    for task in iter(calls.recv, "stop"):
        tasks[task]()
        calls.send("done")


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch", type=int, default=4)
    args = parser.parse_args()
    processes = get_context("spawn")
    lines: dict[str, Connection] = {}
    for name, (channels_last, environment) in VARIANTS.items():
        lines[name], theirs = processes.Pipe()
        kwargs = {"batch": args.batch, "channels_last": channels_last}
        os.environ |= environment
        processes.Process(target=serve, args=(theirs,), kwargs=kwargs, daemon=True).start()
        for key in environment:
            del os.environ[key]

    def have(line: Connection, task: str) -> None:
        line.send(task)
        line.recv()

    table = Table(
        title=f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}"
    )
    for column in ("LIDC, 128×128", *VARIANTS):
        table.add_column(column, justify="left" if column.startswith("LIDC") else "right")
    for question, task in ((f"training step, batch {args.batch}", "train"), ("16 hypotheses", "sample")):
        found = medians({name: partial(have, line, task) for name, line in lines.items()}, repeats=args.repeats)
        plain = found["plain NCHW"]
        table.add_row(question, *(f"{t * 1e3:.0f} ms ({plain / t:.2f}×)" for t in found.values()))
    for line in lines.values():
        line.send("stop")
    Console().print(table)


if __name__ == "__main__":
    main()
