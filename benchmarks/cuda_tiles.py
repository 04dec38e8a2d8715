"""Tile sizes of the CUDA convolution: measures candidates for every layer of a preset, beside the Triton kernel.

    python benchmarks/cuda_tiles.py [--preset lidc-hpu] [--json FILE] [--most 40]

Prints the best tiling per shape, and for the whole training pass the sum of both over its launches. Needs a GPU.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from hpunet.config.settings import load_settings
from hpunet.kernels import flat_parameters
from hpunet.kernels.cuda_convolution import HaloWeights, convolve_halo, halo_weights
from hpunet.kernels.cuda_tiling import candidates
from hpunet.kernels.launch import compiling_ahead
from hpunet.kernels.layers import FUSED_WITH
from hpunet.kernels.plan import Plan
from hpunet.kernels.triton_convolution import convolve
from hpunet.models.hpunet import HPUNet


@dataclass(frozen=True)
class Shape:
    """A convolution of a layer."""

    name: str
    groups: int
    side: tuple[int, int]
    channels: int
    out: int
    taps: int


def milliseconds(run: Callable[[], Any], *, launches: int = 10) -> float:
    """Of one launch, in a CUDA graph."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            run()
    times = []
    for _ in range(4):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / launches)
    return median(times[1:])


def shapes(plan: Plan) -> dict[Shape, tuple[int, Any]]:
    """All convolutions of 8×8 pixels and more, how often each, and a layer that has it."""
    counts: Counter[Shape] = Counter()
    layers: dict[Shape, Any] = {}
    for layer in (layer for stage in (*plan.encoder, *plan.decoder) for layer in stage):
        first, half, out = layer.widths
        ends = {"first": (first, half), "second": (half, half), "third": (half, out), "skip": (first, out)}
        for name in layer.weights:
            base, back = name.removesuffix("_back"), name.endswith("_back")
            channels, width = ends[base][::-1] if back else ends[base]
            taps = 1 if base == "skip" else layer.taps
            shape = Shape(name, len(layer.blocks), (layer.height, layer.width), channels, width, taps)
            if taps == 3:
                counts[shape] += 1
                layers[shape] = layer
    return {shape: (count, layers[shape]) for shape, count in counts.items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="lidc-hpu")
    parser.add_argument("--json")
    parser.add_argument("--most", type=int, default=16, help="candidates per shape")
    parser.add_argument("--images", type=int)
    args = parser.parse_args()
    settings = load_settings(args.preset)
    images = args.images or settings.optimiser.batch_size // settings.optimiser.accumulation_steps
    how = {"channels": settings.model.channels, "latent_dims": settings.model.latent_dims}
    model = HPUNet(in_channels=1, num_classes=2, blocks_per_scale=settings.model.blocks_per_scale, **how).cuda()
    height, width = settings.data.crop
    flat_parameters.can_use_cuda_kernels = lambda *_: False  # the Triton kernel's weights
    plan = Plan(model, height=height, width=width, dtype=torch.bfloat16)
    totals, rows = {"triton": 0.0, "best": 0.0}, []
    for shape, (count, layer) in sorted(shapes(plan).items(), key=lambda item: (-item[0].side[0], item[0].name)):
        row = measure(shape, layer, images=images, most=args.most)
        rows.append({**asdict(shape), "count": count, **row})
        best = row["tilings"][0] if row["tilings"] else {"ms": row["triton"], "tiling": None}
        totals["triton"] += count * row["triton"]
        totals["best"] += count * min(row["triton"], best["ms"])
        print(
            f"{shape.side[0]:4} {shape.name:12} {shape.groups} {shape.channels:4}→{shape.out:<4} ×{count:<3}"
            f"{row['triton'] * 1e3:7.1f} µs → {best['ms'] * 1e3:6.1f}  {best['tiling']}  error {row['error']:.1e}",
            flush=True,
        )
    print({name: f"{total:.2f} ms" for name, total in totals.items()})
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file)


def measure(shape: Shape, layer: Any, *, images: int, most: int) -> dict[str, Any]:
    """Milliseconds of the Triton kernel and of all candidates, and their largest difference (relative L2)."""
    size = (shape.groups, images, *shape.side)
    x, gate, residual = (
        torch.randn(*size, c, device="cuda").bfloat16() for c in (shape.channels, shape.out, shape.out)
    )
    given: dict[str, Any] = {
        "bias": torch.randn(shape.groups, shape.out, device="cuda"), "gate": gate, "residual": residual,
        "sums": torch.zeros(shape.groups, shape.out, device="cuda"), "relu_input": True, "relu_output": True,
    }  # fmt: skip
    names = {"RELU_IN": "relu_input", "RELU_OUT": "relu_output"}
    given = {name: given[name] for name in (names.get(used, used.lower()) for used in FUSED_WITH[shape.name])}
    view, tiling = layer.weights[shape.name], layer.tilings[shape.name]
    kernel = torch.randn(shape.groups, shape.out, shape.channels, shape.taps, shape.taps, device="cuda") / 30
    found: list[dict[str, Any]] = []
    triton_ms = milliseconds(lambda: convolve(x, weight=view, tiling=tiling, taps=shape.taps, **given))
    expected = reference(x, kernel, given)
    options = candidates(
        *shape.side, shape.channels, shape.out, groups=shape.groups, images=images, fused=FUSED_WITH[shape.name]
    )[:most]
    weights = {}
    index = torch.arange(kernel[0].numel(), device="cuda").view(kernel[0].shape)
    for option in options:
        order = halo_weights(index, option, padding=-1)
        data = torch.stack([torch.where(order < 0, 0, k.flatten()[order]) for k in kernel]).bfloat16().contiguous()
        weights[option] = HaloWeights(data, shape.out, shape.taps)
    with compiling_ahead():
        for option in options:
            convolve_halo(x, weight=weights[option], tiling=option, **given)
    error = 0.0
    for option in options:
        try:
            got = convolve_halo(x, weight=weights[option], tiling=option, **given)
            off = float((got.float() - expected).norm() / expected.norm())
            error = max(error, off)
            ms = milliseconds(lambda: convolve_halo(x, weight=weights[option], tiling=option, **given))  # noqa: B023
            found.append({"ms": ms, "tiling": list(asdict(option).values()), "error": off})
        except RuntimeError as failure:
            print("failed:", shape, option, failure, flush=True)
    found.sort(key=lambda row: row["ms"])
    return {"triton": triton_ms, "tilings": found, "error": error}


def reference(x: Tensor, kernel: Tensor, given: dict[str, Any]) -> Tensor:
    """In float32, of operands as rounded as the kernel's."""
    torch.backends.cudnn.allow_tf32 = False
    maps = x.float().relu() if "relu_input" in given else x.float()
    parts = zip(maps, kernel.bfloat16().float(), strict=True)
    convs = [torch.nn.functional.conv2d(g.permute(0, 3, 1, 2), w, padding=w.shape[-1] // 2) for g, w in parts]
    out = torch.stack(convs).permute(0, 1, 3, 4, 2)
    if "bias" in given:
        out = out + given["bias"][:, None, None, None]
    if "gate" in given:
        out = torch.where(given["gate"] > 0, out, 0.0)
    if "residual" in given:
        out = out + given["residual"].float()
    return out.relu() if "relu_output" in given else out


if __name__ == "__main__":
    main()
