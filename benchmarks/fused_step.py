"""The fused training step in a CUDA graph, with weight gradients by the CUDA and by the Triton kernel.

    python benchmarks/fused_step.py [--preset lidc-hpu lidc-hpu-plus snemi3d-hpu] [--repeats 5] [--json FILE]

Prints the milliseconds of a step (they take turns), the sums of each kernel in one replay, and how far the gradients
of one pass are apart (relative L2; "again": the CUDA kernel twice, sums are added in any order). Needs a GPU.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hpunet.bench.run import Workload, bare_step
from hpunet.bench.timing import Candidate, Timer
from hpunet.config.settings import load_settings
from hpunet.kernels import layers
from hpunet.kernels.dispatch import fused_network

WAYS: dict[str, Callable[..., bool]] = {
    "in use": layers.is_faster_than_triton,
    "triton": lambda *_: False,
    "cuda": lambda *_: True,
}


def workload(preset: str, *, repeats: int) -> Workload:
    """As `hpunet bench` measures it."""
    usual = load_settings(preset).optimiser
    changes = ["optimiser.iterations=1_000_000_000", "optimiser.boundaries=[]", "optimiser.learning_rates=[1e-4]"]
    changes += ["optimiser.accumulation_steps=1", "optimiser.precision=bf16", "optimiser.cuda_graph=true"]
    changes += [f"optimiser.batch_size={usual.batch_size // usual.accumulation_steps}", "data.extrapolate=false"]
    kind = "neurites" if preset.startswith("snemi3d") else "lesions"
    timer = Timer(torch.device("cuda"), repeats=repeats, say=lambda _: None)
    return Workload(load_settings(preset, changes), kind, timer)


def kernel_sums(call: Callable[[], object]) -> list[tuple[str, float, int]]:
    """(name, milliseconds, launches) of the kernels of a call, longest first."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = defaultdict(list)
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found[event.name[:60]].append(event.time_range.elapsed_us() / 1e3)
    return sorted(((name, sum(ms), len(ms)) for name, ms in found.items()), key=lambda row: -row[1])


def gradients(work: Workload, way: str) -> list[Tensor]:
    """Of one pass, always of the same data."""
    layers.is_faster_than_triton = WAYS[way]
    model = work.model()
    network = fused_network(model, size=work.settings.data.crop)
    torch.manual_seed(1)
    (h, w), device = work.settings.data.crop, work.timer.device
    labels = torch.randint(work.info.num_classes, (work.batch, h, w), device=device)
    noise = [torch.randn(work.batch, *shape, device=device) for shape in model.latent_shapes(h, w)]
    output = network(image=work.images(work.batch), labels=labels, noise=noise)
    loss = torch.nn.functional.cross_entropy(output.logits, labels) + output.kl.mean() / 1000
    return [g.clone() for g in torch.autograd.grad(loss, list(model.parameters()))]


def measure(preset: str, *, repeats: int) -> dict[str, Any]:
    """Print and return what is found for a preset."""
    found: dict[str, Any] = {"preset": preset, "ms": {}, "kernels": {}}
    work = workload(preset, repeats=repeats)
    with work.timer.stream():
        candidates: list[Candidate] = []
        for name, way in WAYS.items():
            layers.is_faster_than_triton = way
            candidates.append(
                work.timer.prepare(name, partial(bare_step, work, precision="bf16", fused=True), graph=True)
            )
            if candidates[-1].failure:
                print(preset, name, "failed:", candidates[-1].failure, flush=True)
        work.timer.measure(candidates)
        for candidate in candidates:
            if candidate.median is None or candidate.call is None:
                continue
            found["ms"][candidate.name] = [1e3 * s for s in candidate.seconds]
            print(
                f"{preset} {candidate.name}: {1e3 * candidate.median:.3f} ms", found["ms"][candidate.name], flush=True
            )
        for candidate in candidates:
            if candidate.call is None:
                continue
            try:
                found["kernels"][candidate.name] = rows = kernel_sums(candidate.call)
                print(f"{preset} {candidate.name}: kernels {sum(ms for _, ms, _ in rows):.2f} ms")
                print(
                    "\n".join(f"  {ms:7.3f} ms ×{count:<4} {kernel}" for kernel, ms, count in rows[:14]), flush=True
                )
            except RuntimeError as failure:
                print(preset, candidate.name, "no profile:", failure, flush=True)
        del candidates
        try:
            triton, cuda, again = (
                torch.cat([g.flatten() for g in gradients(work, way)]) for way in ("triton", "cuda", "cuda")
            )
            found["apart"] = float((cuda - triton).norm() / triton.norm())
            found["again"] = float((cuda - again).norm() / triton.norm())
            print(f"{preset} gradients: {found['apart']:.2e} from Triton's, {found['again']:.2e} again", flush=True)
        except RuntimeError as failure:
            print(preset, "gradients failed:", failure, flush=True)
    return found


def main() -> None:
    """Print all presets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", nargs="+", default=["lidc-hpu", "lidc-hpu-plus", "snemi3d-hpu"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = []
    for preset in args.preset:
        rows.append(measure(preset, repeats=args.repeats))
        if args.json:
            with open(args.json, "w") as file:
                json.dump(rows, file)


if __name__ == "__main__":
    main()
