"""What the default memory format is worth: the LIDC model's training step and sampling, against plain NCHW.

    python benchmarks/train_step.py [--repeats 7] [--batch 4]

Both run in turn on the CPU, in float32, on fresh random data; the table gives medians and their ratio.
"""

import argparse
import platform

import torch
from rich.console import Console
from rich.table import Table

from hpunet import GECO, HPUNet, sample
from hpunet.objectives import parameter_groups
from timing import medians


def lidc_model(*, channels_last: bool) -> HPUNet:
    """The paper's LIDC network."""
    torch.manual_seed(0)
    return HPUNet(in_channels=1, num_classes=2, channels_last=channels_last)


class Trainer:
    """One training step with Adam and GECO, as in the paper."""

    def __init__(self, *, batch: int, channels_last: bool) -> None:
        self.model = lidc_model(channels_last=channels_last)
        self.objective = GECO(kappa=0.05)
        self.optimiser = torch.optim.Adam(parameter_groups(self.model, self.objective), lr=1e-4, fused=True)
        self.batch = batch

    def __call__(self) -> None:
        """A step on a random batch."""
        image, labels = torch.rand(self.batch, 1, 128, 128), torch.randint(2, (self.batch, 128, 128))
        terms = self.objective(self.model(image=image, labels=labels), labels=labels)
        self.optimiser.zero_grad()
        terms.loss.backward()
        self.optimiser.step()


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch", type=int, default=4)
    args = parser.parse_args()
    layouts = {"default (channels last)": True, "plain NCHW": False}
    steps = {name: Trainer(batch=args.batch, channels_last=cl) for name, cl in layouts.items()}
    models = {name: lidc_model(channels_last=cl) for name, cl in layouts.items()}
    samplers = {
        name: lambda model=model: sample(model, image=torch.rand(1, 1, 128, 128), num_samples=16)
        for name, model in models.items()
    }
    table = Table(
        title=f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}"
    )
    for column in ("LIDC model, 128×128", *layouts, "ratio"):
        table.add_column(column, justify="left" if column.startswith("LIDC") else "right")
    for question, contestants in (
        (f"training step, batch {args.batch}", steps),
        ("16 hypotheses of one image", samplers),
    ):
        ours, plain = medians(contestants, repeats=args.repeats).values()
        table.add_row(question, f"{ours * 1e3:.0f} ms", f"{plain * 1e3:.0f} ms", f"{plain / ours:.2f}×")
    Console().print(table)


if __name__ == "__main__":
    main()
