"""Tile sizes of the convolution kernels, measured on the GPU at hand for the shapes of one preset.

    python benchmarks/tiles.py [--preset lidc-hpu] [--batch 32] [--shapes 20] [--rounds 2]

The shapes that take most of a training step are measured with the tiles of `src/hpunet/kernels/tile_sizes.py`, then
with neighbouring ones: each round changes one number of the best tiles so far. A row has the calls of a shape per
step, microseconds per call with the present and the best tiles, and what changed. Launches overlap in a step, so it
gains less than the sum. Write what helps into `tile_sizes.py`, and run `make test-kernels`: it finds code that spills
registers, or that Triton compiles wrongly.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from hpunet.config.settings import load_settings
from hpunet.kernels import layers
from hpunet.kernels.launch import compiling_ahead
from hpunet.kernels.network import FusedNetwork
from hpunet.kernels.tile_sizes import PATCHES
from hpunet.kernels.triton_convolution import ConvTiling, CorrelationTiling, WeightView, convolve, correlate
from hpunet.models.build import build_model

CLEARLY_FASTER = 0.97
LIMITS = {  # the smallest and the largest of what is tried
    "patches": (16, 256), "columns": (16, 256), "rows": (16, 128), "chunk": (16, 128), "warps": (4, 8),
    "programs": (66, 2112), "stages": (1, 8),
}  # fmt: skip


@dataclass
class Shape:
    """A launch of a training step: maps, what is fused with it, and how often it comes."""

    kernel: Any
    maps: list[Tensor]
    options: dict[str, Any]
    calls: int = 1

    def __str__(self) -> str:
        names = [name for name, value in self.options.items() if value is not None and value is not False]
        skipped = {"weight", "tiling", "taps", "out"}
        *sides, c = self.maps[0].shape
        out = self.out_channels if self.kernel is convolve else self.maps[1].shape[4]
        size = f"{'×'.join(map(str, sides))}, {c}→{out}, {self.options.get('taps', 3)} taps"
        return f"{self.kernel.__name__} {size} {' '.join(name for name in names if name not in skipped)}"

    @property
    def tiling(self) -> Any:
        """Of the present tile sizes."""
        return self.options["tiling"]

    @property
    def out_channels(self) -> int:
        """Of a convolution."""
        return int(self.options["weight"].width) // (self.tiling.py * self.tiling.px)

    def with_tiles(self, tiling: Any) -> Callable[[], Any]:
        """The launch with other tiles; weights packed for them are random."""
        options = {**self.options, "tiling": tiling}
        if self.kernel is convolve and _packing(tiling) != _packing(self.tiling):
            options["weight"] = self._packed(tiling)
        return partial(self.kernel, *self.maps, **options)

    def _packed(self, tiling: ConvTiling) -> WeightView:
        x, taps, columns = self.maps[0], self.options.get("taps", 3), self.out_channels * tiling.py * tiling.px
        run, channels = tiling.run(x.shape[4], taps=taps), x.shape[4]
        size = (tiling.py + taps - 1) * run * columns
        data = torch.randn(len(x) * size, device=x.device).to(x.dtype)
        return WeightView(data, size, run * columns, channels * columns, columns, 1, width=columns)


def _packing(tiling: ConvTiling) -> tuple[int, ...]:
    return tiling.py, tiling.px, tiling.chunk


def shapes_of_a_step(preset: str, *, batch: int, device: torch.device) -> list[Shape]:
    """The convolutions and weight gradients of a training pass on random images."""
    settings = load_settings(preset)
    model = build_model(settings.model, in_channels=1, num_classes=2).to(device)
    found: dict[str, Shape] = {}

    def recording(kernel: Any) -> Callable[..., Any]:
        def launch(*maps: Tensor, **options: Any) -> Any:
            shape = Shape(kernel, list(maps), options)
            if (key := f"{shape} {shape.tiling}") in found:
                found[key].calls += 1
            else:
                found[key] = shape
            return kernel(*maps, **options)

        return launch

    network = FusedNetwork(model, dtype=torch.bfloat16, size=settings.data.crop)
    network.try_pass(batch)
    layers.convolve, layers.correlate = recording(convolve), recording(correlate)
    try:
        network.try_pass(batch)
    finally:
        layers.convolve, layers.correlate = convolve, correlate
    return list(found.values())


def neighbours(tiling: Any, shape: Shape) -> Iterator[Any]:
    """Tiles that differ in one number, or in the patch."""
    for field in fields(tiling):
        if field.name in LIMITS:
            low, high = LIMITS[field.name]
            value = getattr(tiling, field.name)
            for other in (value - 1, value + 1) if field.name == "stages" else (value // 2, value * 2):
                if low <= other <= high:
                    yield replace(tiling, **{field.name: other})
    _, _, h, w, _ = shape.maps[0].shape
    if isinstance(tiling, ConvTiling) and shape.options.get("taps", 3) == 3:
        for py, px in PATCHES:
            if (py, px) != (tiling.py, tiling.px) and (h % py, w % px) == (0, 0):
                yield replace(tiling, py=py, px=px)
    if isinstance(tiling, CorrelationTiling) and tiling.py == 1:
        yield replace(tiling, together=not tiling.together)


def microseconds(run: Callable[[], object], *, calls: int = 20, repeats: int = 7) -> float:
    """Median time of a call, by a CUDA graph of several."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / calls)
    return median(times)


def best_tiles(shape: Shape, *, now: float, rounds: int) -> tuple[Any, float]:
    """The fastest tiles found and their microseconds; tiles that do not compile or launch are left out."""
    best, time, seen = shape.tiling, now, {shape.tiling}
    for _ in range(rounds):
        candidates = [t for t in dict.fromkeys(neighbours(best, shape)) if t not in seen]
        seen.update(candidates)
        with compiling_ahead():
            for tiling in candidates:
                shape.with_tiles(tiling)()
        times: dict[Any, float] = {}
        for tiling in candidates:
            try:
                times[tiling] = microseconds(shape.with_tiles(tiling))
            except Exception:  # Triton and CUDA have many
                continue
        fastest = min(times, key=times.__getitem__, default=best)
        if times.get(fastest, time) > time * CLEARLY_FASTER:
            break
        best, time = fastest, times[fastest]
    return best, time


def _changes(before: Any, after: Any) -> str:
    pairs = [(f.name, getattr(before, f.name), getattr(after, f.name)) for f in fields(before)]
    return ", ".join(f"{name} {old}→{new}" for name, old, new in pairs if old != new) or "as it is"


def main() -> None:
    """Measure, and print one row per shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="lidc-hpu")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--shapes", type=int, default=20, help="those that take most of a step")
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("tiles.py needs a CUDA GPU")
    shapes = shapes_of_a_step(
        asked.preset, batch=asked.batch, device=torch.device("cuda", torch.cuda.current_device())
    )
    timed = [(microseconds(partial(shape.run, shape.tiling)), shape) for shape in shapes]
    timed.sort(key=lambda pair: -pair[0] * pair[1].calls)
    total = sum(time * shape.calls for time, shape in timed)
    what = f"{asked.preset}, batch {asked.batch}: {len(shapes)} shapes, {total / 1000:.2f} ms one after another"
    print(f"{torch.cuda.get_device_name()}, {what}")
    print("calls    now   best  shape; change")
    saved = 0.0
    for now, shape in timed[: asked.shapes]:
        tiling, time = best_tiles(shape, now=now, rounds=asked.rounds)
        saved += (now - time) * shape.calls
        print(f"{shape.calls:5} {now:6.1f} {time:6.1f}  {shape}; {_changes(shape.tiling, tiling)}", flush=True)
    print(f"saved at most {saved / 1000:.2f} ms of {total / 1000:.2f} ms")


if __name__ == "__main__":
    main()
