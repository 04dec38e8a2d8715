"""What the defaults are worth on a CPU: the LIDC model's training step and sampling, against plain NCHW.

    python benchmarks/train_step.py [--repeats 7] [--batch 4]

Plain is the network as it is usually written: NCHW, the decoder's inputs doubled and joined. Each contestant has a
process of its own, because the `hpunet` command also has the C library keep freed memory, which goes for a whole
process. They take turns, in float32, on fresh random data; the table gives medians, and how many times as fast as
plain they are.
"""

import argparse
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
from hpunet.utils.allocation import keep_freed_memory
from timing import medians

CONTESTANTS = {
    "hpunet command": {"channels_last": True, "keep_memory": True},
    "as a library": {"channels_last": True, "keep_memory": False},
    "plain NCHW": {"channels_last": False, "keep_memory": False},
}


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


def contestant(calls: Connection, *, batch: int, channels_last: bool, keep_memory: bool) -> None:
    """Do what is called for, again and again."""
    if keep_memory:
        keep_freed_memory()
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
    for name, settings in CONTESTANTS.items():
        lines[name], theirs = processes.Pipe()
        processes.Process(
            target=contestant, args=(theirs,), kwargs={"batch": args.batch, **settings}, daemon=True
        ).start()

    def have(line: Connection, task: str) -> None:
        line.send(task)
        line.recv()

    table = Table(
        title=f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}"
    )
    for column in ("LIDC, 128×128", *CONTESTANTS):
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
