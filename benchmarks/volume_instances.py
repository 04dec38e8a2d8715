"""What finding the instances of a large volume costs: seconds and memory beyond the samples.

    python benchmarks/volume_instances.py [--size 40,512,512] [--cells 600] [--wrong 0.03] [--samples 16]

The samples are those of a good model: the volume is filled with Voronoi cells, each with one of 15 ids, and a share
of the voxels at their borders is wrong in each sample. The Rand error says that the cells are found.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
from scipy import ndimage

from hpunet.metrics import rand_error
from hpunet.sampling.instances import cluster, connected_parts, postprocess

STATUS, RESET_PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def voronoi(size: tuple[int, ...], *, cells: int, rng: np.random.Generator) -> np.ndarray:
    """Cells 1 to `cells`, each the voxels that are nearest to its random point."""
    points = np.zeros(size, dtype=np.int32)
    points[tuple(rng.integers(0, side, cells) for side in size)] = np.arange(1, cells + 1)
    nearest = ndimage.distance_transform_edt(points == 0, return_distances=False, return_indices=True)
    return np.asarray(points[tuple(nearest)])


def drawn(cells: np.ndarray, *, num: int, wrong: float, rng: np.random.Generator) -> np.ndarray:
    """Samples (s, d, h, w)."""
    border = ndimage.maximum_filter(cells, 3) != ndimage.minimum_filter(cells, 3)
    samples = np.empty((num, *cells.shape), dtype=np.uint8)
    for sample in samples:
        sample[:] = np.append(0, rng.integers(1, 16, cells.max()))[cells]
        flipped = border & (rng.random(cells.shape, dtype=np.float32) < wrong)
        sample[flipped] = rng.integers(0, 16, flipped.sum())
    return samples


def memory(name: str) -> int:
    """Bytes, from the kernel's account of this process: VmRSS is now, VmHWM the peak."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def measured(what: str, run: Callable[[], np.ndarray]) -> np.ndarray:
    """Run once and print a line."""
    RESET_PEAK.write_text("5")
    before, start = memory("VmRSS"), perf_counter()
    found = run()
    seconds, peak = perf_counter() - start, memory("VmHWM") - before
    print(f"{what:<28} {seconds:8.2f} s {peak / 1e9:6.2f} GB {found.max():8} instances")
    return found


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="40,512,512")
    parser.add_argument("--cells", type=int, default=600)
    parser.add_argument("--wrong", type=float, default=0.03)
    parser.add_argument("--samples", type=int, default=16)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    truth = voronoi(tuple(map(int, args.size.split(","))), cells=args.cells, rng=rng)
    samples = drawn(truth, num=args.samples, wrong=args.wrong, rng=rng)
    print(f"{args.samples} samples of {args.size}: {samples.nbytes / 1e9:.2f} GB")
    clusters = measured("clustering", lambda: cluster(samples, num_classes=16, threshold=args.samples, seed=0))
    measured("connected parts", lambda: connected_parts(clusters))
    found = measured("post-processing", lambda: postprocess(clusters, keep_unmatched=True))
    print(f"Rand error {rand_error(prediction=found[None], truth=truth[None])[0]:.5f}")


if __name__ == "__main__":
    main()
