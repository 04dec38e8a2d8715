"""How fast is augmentation of volumes? 40×180×180 voxels with label maps, warped and cropped to 32×128×128.

    python benchmarks/augment_volumes.py                     one core, beside torch and SciPy on the same warps
    python benchmarks/augment_volumes.py --device cuda       ours and torch on a GPU
    python benchmarks/augment_volumes.py --memory            the peak memory of a batch of 2 of 32×160×160, 4 graders

All warp image (trilinear), labels and validity (nearest). torch: `affine_grid` plus a control grid enlarged
trilinearly, then `grid_sample` three times. SciPy: `map_coordinates` per map at our positions, whose time does not
count.
"""

import argparse
import resource
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import torch
import torch.nn.functional as F
from scipy.ndimage import map_coordinates

from hpunet.config.settings import AugmentationSettings
from hpunet.data.augment import augment
from hpunet.data.batch import FIELDS, Batch
from hpunet.data.warps import draw_warp, source_positions
from timing import medians

SOURCE, CROP = (40, 180, 180), (32, 128, 128)
LARGE_SOURCE, LARGE_CROP = (48, 232, 232), (32, 160, 160)
SETTINGS = AugmentationSettings()


def make_batch(batch_size: int, *, graders: int, size: tuple[int, ...], device: torch.device) -> Batch:
    """Random volumes and labels: what they show does not matter to the speed."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch_size, graders, *size)
    return Batch(
        image=torch.rand(batch_size, 1, *size, generator=generator).to(device),
        labels=torch.randint(0, 2, shape, generator=generator, dtype=torch.int32).to(device),
        valid=torch.ones(batch_size, *size, dtype=torch.bool, device=device),
        graders=torch.ones(batch_size, graders, dtype=torch.bool, device=device),
    )


def ours(batch: Batch, crop: tuple[int, ...] = CROP) -> Callable[[int], object]:
    """Our augmentation of the batch at a step, random numbers included."""
    index = torch.arange(len(batch.image), device=batch.image.device)
    return lambda step: augment(batch, settings=SETTINGS, crop_size=crop, seed=0, step=step, index=index)


def by_torch(batch: Batch) -> Callable[[int], object]:
    """Affine maps and elastic deformation of the same strength, without keyed numbers."""
    b, device = len(batch.image), batch.image.device
    labels, valid = batch.labels.float(), batch.valid.unsqueeze(1).float()
    share = [crop / source for crop, source in zip(CROP[::-1], SOURCE[::-1], strict=True)]  # (x, y, z)

    def run(step: int) -> object:
        turn = torch.rand(b, device=device) * 2 * torch.pi
        cos, sin, zero, one = turn.cos(), turn.sin(), torch.zeros_like(turn), torch.ones_like(turn)
        rows = [[cos, sin, zero], [-sin, cos, zero], [zero, zero, one]]
        affine = torch.stack(
            [torch.stack([*(s * v for v in row), zero], 1) for s, row in zip(share, rows, strict=True)], 1
        )
        grid = F.affine_grid(affine, [b, 1, *CROP], align_corners=False)
        elastic = 2 * SETTINGS.elastic * torch.randn(b, 3, 5, 5, 5, device=device)
        elastic = F.interpolate(elastic, CROP, mode="trilinear", align_corners=True).movedim(1, -1)
        grid = grid + elastic * torch.tensor(share, device=device)
        how = {"align_corners": False, "padding_mode": "zeros"}
        nearest = [F.grid_sample(planes, grid, mode="nearest", **how) for planes in (labels, valid)]
        return F.grid_sample(batch.image, grid, **how), nearest[0].int(), nearest[1].bool()

    return run


def by_scipy(batch: Batch) -> Callable[[int], object]:
    """Volume by volume at our positions, which are computed beforehand."""
    b, index = len(batch.image), torch.arange(len(batch.image))
    warp = draw_warp(SETTINGS, seed=0, step=0, index=index, source_size=SOURCE, crop_size=CROP)
    positions = torch.stack(source_positions(warp, crop_size=CROP, rows=slice(None)), dim=1).numpy()
    image, labels, valid = batch.image.numpy(), batch.labels.numpy(), batch.valid.numpy()

    def run(step: int) -> object:
        for i in range(b):
            map_coordinates(image[i, 0], positions[i], order=1)
            map_coordinates(valid[i], positions[i], order=0)
            for each in labels[i]:
                map_coordinates(each, positions[i], order=0)
        return None

    return run


def compare(batch_size: int, graders: int, rounds: int, device: torch.device) -> None:
    """One table."""
    batch = make_batch(batch_size, graders=graders, size=SOURCE, device=device)
    runs = {"hpunet": ours(batch), "torch affine_grid, grid_sample": by_torch(batch)}
    if device.type == "cpu":
        runs["scipy map_coordinates"] = by_scipy(batch)
    steps = count()

    def timed(run: Callable[[int], object]) -> object:
        run(next(steps))
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    found = medians({name: partial(timed, run) for name, run in runs.items()}, repeats=rounds)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} thread(s)"
    print(f"batch {batch_size}, {graders} label map(s), {rounds} rounds, {where}, torch {torch.__version__}")
    print(f"{'':32}{'ms a batch':>12}{'times our time':>16}")
    for name, seconds in found.items():
        print(f"{name:32}{1e3 * seconds:12.1f}{seconds / found['hpunet']:16.1f}")


def memory() -> None:
    """What the warp of one batch adds to the memory of the process, at its peak and with its result."""
    ours(make_batch(1, graders=1, size=(4, 8, 8), device=torch.device("cpu")), (2, 4, 4))(0)  # imports
    batch = make_batch(2, graders=4, size=LARGE_SOURCE, device=torch.device("cpu"))
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    out = ours(batch, LARGE_CROP)(0)
    grown = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert isinstance(out, Batch)
    held, result = (sum(getattr(each, name).nbytes for name in FIELDS) for each in (batch, out))
    for name, size in (("sources", held), ("crops", result), ("peak beyond the sources", grown)):
        print(f"{name}: {size / 2**20:.0f} MiB")


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description="Speed of augmentation of volumes, 40x180x180 to 32x128x128.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--graders", type=int, default=1, help="label maps per volume (a training step warps one)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads, for everybody")
    parser.add_argument("--memory", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory:
        memory()
    else:
        compare(arguments.batch, arguments.graders, arguments.rounds, torch.device(arguments.device))


if __name__ == "__main__":
    main()
