"""Two processes with half of the batch each, beside one with all of it: both follow the same losses.

    python tests/two_processes.py            the curves side by side, in float64 and in float32

Started with RANK and WORLD_SIZE, it is one of the two (`test_distributed.py` does that).
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from recorded_graphs import recorded_graphs
from tiny_run import PUNET, WITHOUT_GECO, open_tiny, tiny_batch, tiny_settings, tiny_step, write_tiny_pack

from hpunet.data.batch import FIELDS, Batch
from hpunet.data.loader import TrainingSteps
from hpunet.objectives.base import Terms
from hpunet.training.capture import Captured
from hpunet.training.step import TrainingStep
from hpunet.utils.distributed import destroy_process_group, init_process_group, rank, world_size

CASES = {
    "geco": (),
    "geco, strict top-k": ("objective.stochastic=false", "optimiser.ema_decay=0.9", "optimiser.grad_clip=5.0"),
    "punet": PUNET,
    "elbo in pieces": (*WITHOUT_GECO, "optimiser.accumulation_steps=2"),
    "energy in pieces": (*WITHOUT_GECO, "objective.energy=5.0", "optimiser.accumulation_steps=2"),
    "poisoned": (),
    "captured": ("optimiser.ema_decay=0.9", "optimiser.grad_clip=5.0"),
}
EXCHANGES = 5  # of the captured case: scores, rec, kept pixels, KL, gradients
NUM_STEPS = 20
POISONED_STEPS = (5, 6)
Curve = list[list[float]]


def follow(pack_path: Path, case: str, *, double: bool) -> Curve:
    """Loss, rec, KL, gradient norm, number skipped, and the sum of the weights after every step.

    In the poisoned case the batch's last image, which one of two processes has, is NaN at some steps. In the captured
    case two processes replay graphs, one does not.
    """
    pack = open_tiny(pack_path)
    settings = tiny_settings(*CASES[case])
    train_step = tiny_step(settings, pack, double=double)
    take = CapturedStep(train_step) if case == "captured" and world_size() > 1 else train_step
    size = settings.optimiser.batch_size
    steps = TrainingSteps(pack, batch_size=size, seed=settings.seed, rank=rank(), world_size=world_size())
    positions = torch.arange(size)[steps.positions]
    curve = []
    for number in range(NUM_STEPS):
        batch = tiny_batch(pack, steps.images(number).tolist())
        if case == "poisoned" and number in POISONED_STEPS and rank() == world_size() - 1:
            image = batch.image.clone()
            image[-1] = torch.nan
            batch = replace(batch, image=image)
        terms, norm = take(batch, step=number, positions=positions)
        weights = torch.stack([p.detach().double().sum() for p in train_step.parameters]).sum()
        skipped = train_step.skipped
        curve.append([float(v) for v in (terms.loss, terms.rec_per_pixel, *terms.kl, norm, skipped, weights)])
    return curve


class CapturedStep:
    """A training step that is captured when it is first called, as `Training` does on a GPU."""

    def __init__(self, train_step: TrainingStep) -> None:
        self.train_step = train_step
        self.captured: Captured[tuple[Terms, torch.Tensor]] | None = None

    def __call__(self, batch: Batch, *, step: int, positions: torch.Tensor) -> tuple[Terms, torch.Tensor]:
        if self.captured is None:
            self.batch, self.step = batch, torch.tensor(step)
            state = [*self.train_step.parameters, *self.train_step.loss.buffers(), *self.train_step.averaged]
            state += [t for of in self.train_step.optimiser.state.values() for t in of.values()]
            state += [self.train_step.skipped, self.train_step.skipped_in_a_row]
            with recorded_graphs():
                run = partial(self.train_step, self.batch, step=self.step, positions=positions)
                self.captured = Captured(run, state=[t.detach() for t in state])
            assert self.captured.num_graphs == EXCHANGES + 1
        self.step.fill_(step)
        for name in FIELDS:
            getattr(self.batch, name).copy_(getattr(batch, name))
        self.captured.replay()
        return self.captured.result


def everything(pack_path: Path) -> dict[str, Curve]:
    curves = {case: follow(pack_path, case, double=True) for case in CASES}
    return {**curves, "geco in float32": follow(pack_path, "geco", double=False)}


def start_two(command: list[str], **environment: str) -> list[subprocess.Popen[bytes]]:
    """Two processes of a command that find each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(command, env={**os.environ, **common, **environment, "RANK": str(r), "LOCAL_RANK": str(r)})
        for r in range(2)
    ]


def by_two(pack_path: Path, out: Path) -> list[dict[str, Curve]]:
    processes = start_two([sys.executable, __file__, str(pack_path), str(out)])
    assert [process.wait(200) for process in processes] == [0, 0]
    return [json.loads((out / f"{r}.json").read_text()) for r in range(2)]


def main() -> None:
    torch.set_num_threads(1)
    if len(sys.argv) == 3:
        init_process_group(torch.device("cpu"))
        curves = everything(Path(sys.argv[1]))
        (Path(sys.argv[2]) / f"{rank()}.json").write_text(json.dumps(curves))
        destroy_process_group()
        return
    with tempfile.TemporaryDirectory() as folder:
        pack_path = write_tiny_pack(Path(folder) / "pack")
        one, two = everything(pack_path), by_two(pack_path, Path(folder))[0]
    for case in one:
        print(f"\n{case}: loss after each step\n  step  one process     two processes   difference")
        for number, (a, b) in enumerate(zip(one[case], two[case], strict=True)):
            print(f"  {number:4}  {a[0]:<14.9g}  {b[0]:<14.9g}  {abs(a[0] - b[0]):.1e}")


if __name__ == "__main__":
    main()
