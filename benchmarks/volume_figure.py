"""Makes a figure of a volume of `synthetic:nodules3d` in three planes: gradings, samples of volumes and of slices.

    python benchmarks/volume_figure.py OUT.webp [--hpu-3d RUN] [--hpu-2d RUN] [--volume 1] [--split test]

Samples that are drawn slice by slice flicker: seen from the side they are torn. Models of images are trained on the
slices of the same volumes (`--set data.options.volumes=false`). Without runs, both rows are draws of the truth: of
volumes, and of every slice alone, what a perfect model of volumes and a perfect model of slices would sample.
"""

import argparse
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hpunet
from hpunet.data.synthetic.independent_slices import IndependentSlices
from hpunet.data.synthetic.source import SyntheticSource, open_synthetic
from hpunet.utils.files import atomic_write
from hpunet.utils.label_painter import overlay
from hpunet.utils.pictures import grey_or_colour, sheet, stacked, stretched
from hpunet.utils.plane_layout import AXIAL, Layout, plane_indices, shown_box, shown_position
from volumes import from_slices

NUM_SAMPLES, TILE = 5, 236


def main() -> None:
    """Read the arguments, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="a .webp or .png file")
    parser.add_argument("--hpu-3d", metavar="RUN", help="a model of volumes")
    parser.add_argument("--hpu-2d", metavar="RUN", help="a model of their slices")
    parser.add_argument("--volume", type=int, default=1, help="number of the volume in its split")
    parser.add_argument("--split", default="test")
    args = parser.parse_args()
    models = {name: hpunet.load(run) for name, run in (("3d", args.hpu_3d), ("2d", args.hpu_2d)) if run}
    options: dict[str, Any] = {}
    for model in models.values():
        options = {key: value for key, value in model.settings.data.options.items() if key in ("size", "num_lesions")}
    how: dict[str, Any] = {"split": args.split, "num_images": args.volume + 1, **options}
    volumes, slices = (open_synthetic("nodules3d", **how, volumes=whole) for whole in (True, False))
    page = draw(volumes, slices, models, index=args.volume)
    content = io.BytesIO()
    page.save(content, format=args.out.suffix[1:], quality=85)
    atomic_write(args.out, content.getvalue())
    print(f"{args.out}: {page.width}×{page.height}, {len(content.getvalue()) / 1000:.0f} kB")


def draw(
    volumes: SyntheticSource, slices: SyntheticSource, models: dict[str, hpunet.Predictor], *, index: int
) -> Any:
    """The image beside its gradings; below, samples of volumes; below, samples of slices."""
    sample, truth = volumes[index], volumes.distribution(index)
    samplers = (truth, IndependentSlices(truth))
    whole, flickering = (known.sample(np.random.default_rng(index), NUM_SAMPLES) for known in samplers)
    titles = [
        "A volume of synthetic:nodules3d in three planes, and four gradings of it",
        "A perfect sampler of volumes",
        "A perfect sampler of slices, one by one",
    ]
    if "3d" in models:
        image = torch.from_numpy(sample.image)[None]
        generator = [torch.Generator().manual_seed(index)]
        drawn = hpunet.sample(models["3d"].model, image=image, num_samples=NUM_SAMPLES, generator=generator)
        whole, titles[1] = drawn.labels[0].numpy(), "Samples of a model of volumes"
    if "2d" in models:
        how: dict[str, Any] = {"source": slices, "run": models["2d"], "num_samples": NUM_SAMPLES}
        flickering, titles[2] = (
            from_slices(index, **how, same_noise=False)[0],
            "Samples of a model of images, slice by slice",
        )
    layout = Layout.of(sample.valid.shape, spacing=volumes.info.spacing or (1.0, 1.0, 1.0))
    position = shown_position(np.concatenate([sample.labels, whole, flickering]))
    parts = plane_indices(position, shown_box(position, sample.valid.shape))

    def picture(maps: np.ndarray, fill: Any = 0) -> np.ndarray:
        return layout.picture({plane: maps[part] for plane, part in parts.items()}, fill=fill)

    image = stretched(picture(sample.image, fill=np.median(sample.image[parts[AXIAL]])))
    enlarged, blank = (np.kron(maps, np.ones((4, 4), dtype=maps.dtype)) for maps in (image[0], layout.blank()))

    def painted(labels: np.ndarray) -> np.ndarray:
        maps = np.kron(picture(labels.astype(np.uint8)), np.ones((4, 4), dtype=np.uint8))
        return np.where(blank[..., None], np.uint8(255), overlay(image=enlarged[None], labels=maps, reduced=2))

    plain = np.where(blank[..., None], np.uint8(255), grey_or_colour(enlarged[None]))
    rows = [[plain, *map(painted, sample.labels)], [*map(painted, whole)], [*map(painted, flickering)]]
    columns = ["image", *(f"grader {number}" for number in range(1, 5))]
    style: dict[str, Any] = {"tile": TILE, "text": 18}
    pages = [
        sheet([row], columns=names, title=title, **style)
        for row, names, title in zip(rows, (columns, (), ()), titles, strict=True)
    ]
    return stacked(pages)


if __name__ == "__main__":
    main()
