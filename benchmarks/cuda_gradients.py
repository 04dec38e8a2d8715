"""Weight gradients in CUDA C++: checks and times tile sizes for every layer of presets, beside the Triton kernel.

    python benchmarks/cuda_gradients.py [--preset lidc-hpu snemi3d-hpu] [--json FILE] [--most 4] [--seconds 80]

Prints a line per shape (µs of a launch in a CUDA graph: Triton's, the tiling in use, the best one; the largest error
of all of them against float64, relative L2) and sums over the launches of a pass. Shapes that no time is left
for are measured with the tiling in use only. Needs a GPU.
"""

import argparse
import json
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from cuda_tiles import milliseconds
from hpunet.config.settings import load_settings
from hpunet.kernels import cuda_kernels, cuda_weight_gradient
from hpunet.kernels import plan as plans
from hpunet.kernels.cuda_gradient_tiling import GradientTiling, estimate, gradient_candidates
from hpunet.kernels.cuda_weight_gradient import correlate_halo
from hpunet.kernels.launch import compiling_ahead
from hpunet.kernels.tile_sizes import correlation_tiling
from hpunet.kernels.triton_convolution import GradientView, correlate
from hpunet.models.hpunet import HPUNet

START, GUARD = 0.125, -7.0  # what results are added to, and what lies around them


@dataclass(frozen=True)
class Shape:
    """A weight gradient: sizes of its maps, and which of them passes through a ReLU."""

    height: int
    width: int
    groups: int
    images: int
    rows: int
    columns: int
    relu_rows: bool
    relu_columns: bool
    mirrored: bool

    def candidates(self, most: int) -> tuple[GradientTiling, ...]:
        """Tilings, the one in use first."""
        size = self.height, self.width, self.rows, self.columns
        return gradient_candidates(*size, groups=self.groups, images=self.images)[:most]

    def estimate(self, tiling: GradientTiling) -> float:
        """Milliseconds."""
        size = self.height, self.width, self.rows, self.columns
        return estimate(tiling, *size, groups=self.groups, images=self.images) / 1e3


def shapes(preset: str, batch: int | None) -> Counter[Shape]:
    """All 3×3 weight gradients of a preset, and how often each."""
    settings = load_settings(preset)
    images = batch or settings.optimiser.batch_size // settings.optimiser.accumulation_steps
    with torch.device("meta"):
        how: Any = {"channels": settings.model.channels, "latent_dims": settings.model.latent_dims}
        model = HPUNet(in_channels=1, num_classes=2, blocks_per_scale=settings.model.blocks_per_scale, **how)
    plans.Weights = lambda *_args, **_how: None  # type: ignore[assignment, misc]
    height, width = settings.data.crop
    plan = plans.Plan(model, height=height, width=width, dtype=torch.bfloat16)
    found: Counter[Shape] = Counter()
    for layer in (layer for stage in (*plan.encoder, *plan.decoder) for layer in stage):
        first, half, out = layer.widths
        for name, ends in {"first": (first, half), "second": (half, half), "third": (half, out)}.items():
            mirrored, relu = layer.mirrored[name], name == "first"
            rows, columns = reversed(ends) if mirrored else ends
            size = layer.height, layer.width, layer.num_groups, images
            if layer.taps == 3:
                found[Shape(*size, rows, columns, relu and not mirrored, relu and mirrored, mirrored)] += 1
    return found


class Case:
    """Maps and the place of the result of a shape."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        size = shape.groups, shape.images, shape.height, shape.width
        self.rows, self.columns = (
            torch.randn(*size, c, device="cuda", dtype=torch.bfloat16) for c in (shape.rows, shape.columns)
        )
        r, c = shape.rows, shape.columns
        tap, row = (c, 9 * c) if shape.mirrored else (r * c, c)  # as the parameters lie
        self.around = torch.empty(shape.groups * 9 * r * c + 128, device="cuda")
        self.strides = (9 * r * c, tap, row, 1)
        self.view = GradientView(self.around[64:], *self.strides)
        self.relus = {"relu_rows": shape.relu_rows, "relu_columns": shape.relu_columns}

    def run(self, tiling: GradientTiling | None) -> None:
        """The CUDA kernel, or without tiling Triton's."""
        s = self.shape
        if tiling is not None:
            correlate_halo(self.rows, self.columns, out=self.view, tiling=tiling, **self.relus)
            return
        how: dict[str, Any] = {"taps": 3, "relu": s.relu_rows or s.relu_columns, "dtype": torch.bfloat16}
        usual = correlation_tiling(s.height, s.width, s.rows, s.columns, device=self.rows.device, **how)
        correlate(self.rows, self.columns, out=self.view, tiling=usual, **self.relus)

    def error(self, tiling: GradientTiling | None, expected: Tensor) -> float:
        """Relative L2 error; infinite if it wrote elsewhere."""
        s = self.shape
        self.around.fill_(GUARD)
        got = self.around.as_strided((s.groups, 9, s.rows, s.columns), self.strides, 64).fill_(START)
        self.run(tiling)
        if not torch.cat([self.around[:64], self.around[-64:]]).eq(GUARD).all():
            return float("inf")
        return float((got.double() - START - expected).norm() / expected.norm())

    def expected(self) -> Tensor:
        """(groups, tap, rows, columns) in float64, from the same maps."""
        x, g = (
            (t.relu() if relu else t).double()
            for t, relu in zip((self.rows, self.columns), self.relus.values(), strict=True)
        )
        s = self.shape
        wide = torch.nn.functional.pad(x, (0, 0, 1, 1, 1, 1))
        by_row = s.height * s.width > 4096
        taps = []
        for dy, dx in ((dy, dx) for dy in range(3) for dx in range(3)):
            tap = wide[:, :, dy : dy + s.height, dx : dx + s.width]
            a, b = (t.reshape(s.groups, -1, s.width if by_row else s.height * s.width, t.shape[4]) for t in (tap, g))
            parts = [torch.bmm(one.transpose(1, 2), other).sum(dim=0) for one, other in zip(a, b, strict=True)]
            taps.append(torch.stack(parts))
        return torch.stack(taps, dim=1)


def measure(shape: Shape, options: tuple[GradientTiling, ...]) -> dict[str, Any]:
    """Milliseconds and errors of Triton's kernel and of all tilings."""
    case = Case(shape)
    expected = case.expected()
    row: dict[str, Any] = {"tilings": [], "triton_error": case.error(None, expected)}
    row["triton"] = milliseconds(lambda: case.run(None))
    for option in options:
        found: dict[str, Any] = {"tiling": asdict(option), "estimate": shape.estimate(option)}
        try:
            found["error"] = case.error(option, expected)
            found["ms"] = milliseconds(lambda: case.run(option))  # noqa: B023
            row["tilings"].append(found)
        except RuntimeError as failure:
            print("failed:", shape, option, failure, flush=True)
    return row


def compile_all(found: dict[Shape, tuple[GradientTiling, ...]]) -> None:
    """Compile the kernels of all shapes in parallel."""
    with compiling_ahead():
        for shape, options in found.items():
            case = Case(shape)
            for option in (None, *options):
                try:
                    case.run(option)
                except RuntimeError as failure:
                    print("failed:", shape, option, failure, flush=True)


def probe() -> None:
    """Check a small case; if it is wrong, try the two distances of a matrix exchanged."""
    shape = Shape(16, 16, 1, 2, 16, 24, relu_rows=False, relu_columns=False, mirrored=True)
    case, option = Case(shape), shape.candidates(1)[0]
    expected = case.expected()
    found = case.error(option, expected)
    print(f"probe: error {found:.1e}", flush=True)
    if found < 1e-3:
        return
    usual = cuda_weight_gradient.GradientVariant.source
    places = "(u64)(across >> 4) << 16 | (u64)(along >> 4) << 32"
    other = "(u64)(along >> 4) << 16 | (u64)(across >> 4) << 32"
    cuda_weight_gradient.GradientVariant.source = lambda self: usual(self).replace(places, other)  # type: ignore[method-assign]
    cuda_kernels._load.cache_clear()
    cuda_kernels._codes.clear()
    print(f"probe with distances EXCHANGED: error {case.error(option, expected):.1e}", flush=True)


def compact(tiling: dict[str, Any]) -> str:
    """A tiling in a few letters."""
    t = tiling
    kind = "columns" if t["swapped"] else "rows"
    tile = f"{t['tile_y']}×{t['tile_x']}" + (f"×{t['images']}" if t["images"] > 1 else "")
    return f"{kind} {t['a']}×{t['b']} r{t['rows']} {tile} w{t['warpgroups']} s{t['stages']}"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", nargs="+", default=["lidc-hpu", "snemi3d-hpu"])
    parser.add_argument("--json")
    parser.add_argument("--most", type=int, default=4, help="tilings per shape")
    parser.add_argument("--seconds", type=float, default=80, help="after this, tilings in use only")
    parser.add_argument("--images", type=int)
    args = parser.parse_args()
    began, rows = perf_counter(), []
    probe()
    for preset in args.preset:
        counts = shapes(preset, args.images)
        order = sorted(counts, key=lambda s: (-s.height, -s.groups, s.rows, s.columns))
        late = perf_counter() - began > args.seconds / 2
        options = {shape: shape.candidates(2 if late else args.most) for shape in order}
        compile_all(options)
        print(f"{preset}: compiled after {perf_counter() - began:.0f} s", flush=True)
        totals: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for shape in order:
            over = perf_counter() - began > args.seconds
            try:
                row = measure(shape, options[shape][: 1 if over else None])
            except RuntimeError as failure:
                print("failed:", shape, failure, flush=True)
                continue
            rows.append({"preset": preset, "count": counts[shape], **asdict(shape), **row})
            if not row["tilings"]:
                continue
            used, best = row["tilings"][0], min(row["tilings"], key=lambda found: found["ms"])
            for name in ("all", f"{shape.height}"):
                for kind, ms in (("Triton", row["triton"]), ("in use", used["ms"]), ("best", best["ms"])):
                    totals[name][kind] += counts[shape] * ms
            error = max(found["error"] for found in row["tilings"])
            print(
                f"{shape.height:4} {shape.groups} {shape.rows:3}→{shape.columns:<3} ×{counts[shape]:<2}"
                f"{row['triton'] * 1e3:7.1f} → {used['ms'] * 1e3:6.1f} {best['ms'] * 1e3:6.1f} µs "
                f"(estimate {used['estimate'] * 1e3:5.1f}) error {error:.0e} ({row['triton_error']:.0e})  "
                f"{compact(best['tiling'])}{'' if best is used else '  not ' + compact(used['tiling'])}",
                flush=True,
            )
        for name, sums in totals.items():
            print(f"{preset} {name:>4}:", {kind: f"{ms:.3f} ms" for kind, ms in sums.items()}, flush=True)
        if args.json:
            with open(args.json, "w") as file:
                json.dump(rows, file)


if __name__ == "__main__":
    main()
