"""Whether a tiled volume equals the whole one, and how much memory tiles save: one hypothesis, in float32.

    python benchmarks/tiled_volume.py [--device cuda] [--size 64 256 256] [--tile 64 96] [--models HPUNet ProbUNet]

Each case runs in a process of its own and reports its peak: on a GPU what torch allocated, the weights included, on a
CPU what the process took beyond what was there before. Weights are the initial ones, disturbed, since borders hardly
matter to biases near 0. TF32 is off: its rounding alone is above the differences in question.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import hpunet
from hpunet.sampling.sample import sample
from hpunet.sampling.tiling import DEFAULT_TILE, Tiled

NETWORK: dict[str, Any] = {
    "in_channels": 1,
    "num_classes": 2,
    "channels": (24, 48, 96, 192, 192),
    "ndim": 3,
    "strides": ((1, 2, 2), (2, 2, 2), (2, 2, 2), (1, 2, 2)),
}
KINDS = {"HPUNet": (hpunet.HPUNet, {"latent_dims": (1, 1, 1)}), "ProbUNet": (hpunet.ProbUNet, {"latent_dim": 6})}
SIZES = {"cpu": [16, 128, 128], "cuda": [64, 256, 256]}
LIMIT = 1e-4
"""Of differences, everywhere."""


def measure(name: str, tile: str, size: list[int], device: torch.device, out: Path) -> None:
    """One case: prints seconds and MiB, saves logits and latents."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    kind, more = KINDS[name]
    model = kind(**NETWORK, **more).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    model, volume = model.to(device), torch.rand(1, 1, *size).to(device)
    network = model if tile == "whole" else Tiled(model, tile=int(tile))
    how: dict[str, Any] = {"num_samples": 1, "generator": torch.Generator().manual_seed(0)}
    if device.type == "cuda":
        torch.cuda.synchronize()
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    drawn = sample(network, image=volume, **how)
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    print(seconds, torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else taken)
    torch.save([each.cpu() for each in (drawn.logits, *drawn.latents) if each is not None], out)


def main() -> int:
    """All cases, one line each; the exit status says whether all differences are below the limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", nargs=3, type=int, metavar=("DEPTH", "HEIGHT", "WIDTH"))
    parser.add_argument("--tile", nargs="+", default=[str(DEFAULT_TILE[3])])
    parser.add_argument("--models", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--case", nargs=3, metavar=("MODEL", "TILE", "FILE"))
    options = parser.parse_args()
    device = torch.device(options.device)
    size = options.size or SIZES[device.type]
    if options.case:
        measure(options.case[0], options.case[1], size, device, Path(options.case[2]))
        return 0
    where = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} thread(s)"
    )
    print(f"torch {torch.__version__}, {where}")
    largest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            for tile in ("whole", *options.tile):
                file = Path(folder, f"{model}-{tile}.pt")
                case = [sys.executable, __file__, "--device", options.device, "--size", *map(str, size)]
                found = subprocess.run([*case, "--case", model, tile, str(file)], stdout=subprocess.PIPE, check=True)
                seconds, mebibytes = map(float, found.stdout.split())
                maps, whole = torch.load(file), torch.load(Path(folder, f"{model}-whole.pt"))
                logits, *latents = [float((a - b).abs().max()) for a, b in zip(maps, whole, strict=True)]
                largest = max(largest, logits, *latents)
                print(
                    f"{model} {'×'.join(map(str, size))}, {tile:>5}: {mebibytes:6.0f} MiB, {seconds:5.1f} s, "
                    f"largest difference of logits {logits:.1e} (their std {float(whole[0].std()):.2f}), "
                    f"of latents {max(latents):.1e}"
                )
    print(f"largest difference {largest:.1e}, {'below' if largest < LIMIT else 'NOT below'} {LIMIT:g}")
    return 0 if largest < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
