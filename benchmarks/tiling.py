"""How much memory tiles save on large images, and whether they change anything: the LIDC models, whole and tiled.

    python benchmarks/tiling.py [--side 2048] [--tile 256 512]

Each case runs in a process of its own, one hypothesis on CPU, and reports its peak beyond what was there before.
Weights are the initial ones, disturbed, since borders hardly matter to biases near 0.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import hpunet
from hpunet.sampling.sample import stream
from hpunet.sampling.tiling import Tiled


def measure(model_name: str, tile: str, side: int, out: Path) -> None:
    """One case: prints seconds and MiB, saves the logits."""
    torch.manual_seed(0)
    model = {"HPUNet": hpunet.HPUNet, "ProbUNet": hpunet.ProbUNet}[model_name](in_channels=1, num_classes=2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    image = torch.rand(1, 1, side, side)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    network = model if tile == "whole" else Tiled(model, tile=int(tile))
    ((_, drawn),) = stream(network, image=image, num_samples=1, generator=torch.Generator().manual_seed(0))
    seconds = time.perf_counter() - start
    print(seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
    torch.save(drawn.logits, out)


def main() -> None:
    """All cases, one line each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", type=int, default=2048)
    parser.add_argument("--tile", nargs="+", default=["256", "512"])
    parser.add_argument("--case", nargs=3, metavar=("MODEL", "TILE", "FILE"))
    options = parser.parse_args()
    if options.case:
        measure(options.case[0], options.case[1], options.side, Path(options.case[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        for model in ("HPUNet", "ProbUNet"):
            for tile in ("whole", *options.tile):
                file = Path(folder, f"{model}-{tile}.pt")
                case = [sys.executable, __file__, "--side", str(options.side), "--case", model, tile, str(file)]
                output = subprocess.run(case, capture_output=True, text=True, check=True).stdout
                seconds, mebibytes = map(float, output.split())
                logits, whole = torch.load(file), torch.load(Path(folder, f"{model}-whole.pt"))
                difference = float((logits - whole).abs().max())
                print(
                    f"{model} {options.side}×{options.side}, {tile:>5}: {mebibytes:6.0f} MiB, {seconds:5.1f} s, "
                    f"largest difference of logits {difference:.1e} (their std {float(whole.std()):.2f})"
                )


if __name__ == "__main__":
    main()
