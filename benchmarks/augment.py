"""How fast is augmentation? LIDC's case: 180×180 image with 4 label maps, warped and cropped to 128×128.

    python benchmarks/augment.py                  ours beside batchgeneratorsv2 and MONAI, on the CPU
    python benchmarks/augment.py --device cuda    ours alone, images a second on a GPU, parameter draws included

The peers are no dependencies of this project. To have them measured:

    pip install --no-deps batchgeneratorsv2 monai && pip install pandas

All get the same operations at the same ranges, each in its own fastest way: elastic deformation, rotation,
mirroring, shear, scale and random crop; image bilinear, labels nearest (all of them warp 4 label channels at once);
one process, the same number of threads, timings interleaved. Not the same: batchgeneratorsv2 has no shear and
smooths a dense field instead of a control grid; neither peer computes a validity map, ours does.
"""

import argparse
import math
import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median

import numpy as np
import torch

from hpunet.config.settings import AugmentationSettings
from hpunet.data.augment import augment
from hpunet.data.batch import Batch
from hpunet.data.warps import draw_warp

SOURCE, CROP, GRADERS = 180, 128, 4
SETTINGS = AugmentationSettings()


def make_batch(batch_size: int, device: torch.device) -> Batch:
    """Random images and labels: what the pixels show does not matter to the speed."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch_size, GRADERS, SOURCE, SOURCE)
    return Batch(
        image=torch.rand(batch_size, 1, SOURCE, SOURCE, generator=generator).to(device),
        labels=torch.randint(0, 2, shape, generator=generator, dtype=torch.int32).to(device),
        valid=torch.ones(batch_size, SOURCE, SOURCE, dtype=torch.bool, device=device),
        graders=torch.ones(batch_size, GRADERS, dtype=torch.bool, device=device),
    )


def ours(batch: Batch) -> Callable[[int], object]:
    """Our augmentation of the batch at a step."""
    index = torch.arange(len(batch.image), device=batch.image.device)
    return lambda step: augment(batch, settings=SETTINGS, crop_size=(CROP, CROP), seed=0, step=step, index=index)


def batchgeneratorsv2(batch: Batch) -> Callable[[int], object]:
    """Image by image, as its data loaders do."""
    from batchgeneratorsv2.transforms.spatial.mirroring import MirrorTransform
    from batchgeneratorsv2.transforms.spatial.spatial import SpatialTransform

    spatial = SpatialTransform(
        patch_size=(CROP, CROP),
        patch_center_dist_from_border=CROP // 2,
        random_crop=True,
        p_elastic_deform=1,
        elastic_deform_scale=(0.25, 0.25),
        elastic_deform_magnitude=(2 * SETTINGS.elastic * CROP, 2 * SETTINGS.elastic * CROP),
        p_rotation=1,
        rotation=(-math.pi, math.pi),
        p_scaling=1,
        scaling=SETTINGS.scale,
        p_synchronize_scaling_across_axes=1,
        mode_seg="nearest",
    )
    mirror = MirrorTransform((0, 1))
    labels = batch.labels

    def run(step: int) -> object:
        np.random.seed(step)  # the library draws from the global generator
        outputs = [
            mirror(**spatial(image=image, segmentation=segmentation))
            for image, segmentation in zip(batch.image, labels, strict=True)
        ]
        return (
            torch.stack([out["image"] for out in outputs]),
            torch.stack([out["segmentation"] for out in outputs]),
        )

    return run


def monai(batch: Batch) -> Callable[[int], object]:
    """Image by image; elastic, affine and crop in one resampling, metadata tracking off."""
    from monai.data import set_track_meta
    from monai.transforms import Compose, Rand2DElasticd, RandFlipd

    set_track_meta(False)
    margin = (SOURCE - CROP) / 2
    displacement = SETTINGS.elastic * CROP
    transform = Compose(
        [
            Rand2DElasticd(
                keys=("image", "labels"),
                spacing=(CROP // 4, CROP // 4),
                magnitude_range=(displacement, displacement),
                spatial_size=(CROP, CROP),
                prob=1.0,
                rotate_range=math.pi,
                shear_range=(SETTINGS.shear, 0.0),
                translate_range=(margin, margin),
                scale_range=(SETTINGS.scale[0] - 1, SETTINGS.scale[1] - 1),
                mode=("bilinear", "nearest"),
                padding_mode="zeros",
            ),
            RandFlipd(keys=("image", "labels"), prob=0.5, spatial_axis=0),
            RandFlipd(keys=("image", "labels"), prob=0.5, spatial_axis=1),
        ]
    )

    def run(step: int) -> object:
        transform.set_random_state(seed=step)
        outputs = [
            transform({"image": image, "labels": labels})
            for image, labels in zip(batch.image, batch.labels, strict=True)
        ]
        return torch.stack([out["image"] for out in outputs]), torch.stack([out["labels"] for out in outputs])

    return run


def on_cpu(batch_size: int, rounds: int) -> None:
    """One table: ours and the peers that are installed."""
    batch = make_batch(batch_size, torch.device("cpu"))
    runs = {"hpunet": ours(batch)}
    for name, peer in (("batchgeneratorsv2", batchgeneratorsv2), ("monai", monai)):
        if find_spec(name) is None:
            print(f"{name} is not installed, so not measured; how to install it is said at the top of this file")
        else:
            runs[name] = peer(batch)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for step in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run(step)
            if step:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    print(f"batch {batch_size}, {rounds} rounds, {torch.get_num_threads()} thread(s), torch {torch.__version__}")
    print(f"{'':20}{'ms a batch':>12}{'fastest':>10}{'images/s':>10}{'times our time':>16}")
    for name, times in seconds.items():
        ratio = median(times) / median(seconds["hpunet"])
        print(
            f"{name:20}{1e3 * median(times):12.1f}{1e3 * min(times):10.1f}"
            f"{batch_size / median(times):10.0f}{ratio:16.1f}"
        )


def on_gpu(batch_size: int, rounds: int, device: torch.device) -> None:
    """One table: what drawing the warps costs, and everything."""
    batch = make_batch(batch_size, device)
    index = torch.arange(batch_size, device=device)
    whole = ours(batch)

    def draw_only(step: int) -> object:
        size = {"source_size": (SOURCE, SOURCE), "crop_size": (CROP, CROP)}
        return draw_warp(SETTINGS, seed=0, step=step, index=index, **size)

    print(f"{torch.cuda.get_device_name(device)}, batch {batch_size}, {rounds} rounds, torch {torch.__version__}")
    print(f"{'':20}{'ms a batch':>12}{'images/s':>12}")
    for name, run in (("draw the warps", draw_only), ("draw and apply", whole)):
        for step in range(10):
            run(step)
        times = []
        for step in range(rounds):
            torch.cuda.synchronize(device)
            start = time.perf_counter()
            run(step)
            torch.cuda.synchronize(device)
            times.append(time.perf_counter() - start)
        print(f"{name:20}{1e3 * median(times):12.2f}{batch_size / median(times):12.0f}")
    print(f"peak memory {torch.cuda.max_memory_allocated(device) / 2**20:.0f} MiB")


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description="Speed of augmentation, 180x180 to 128x128 with 4 label maps.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, help="images a batch (32 on the CPU, 256 on a GPU)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads, for everybody")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    if device.type == "cpu":
        on_cpu(arguments.batch or 32, arguments.rounds)
    else:
        on_gpu(arguments.batch or 256, arguments.rounds, device)


if __name__ == "__main__":
    main()
