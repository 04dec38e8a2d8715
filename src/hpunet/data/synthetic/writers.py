"""Synthetic data in the layouts of the real data sets, and as a folder of volumes, to try every reader and preset."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hpunet.data.folder.names import GRADERS, IMAGES, TABLE
from hpunet.data.io.geometry import Geometry
from hpunet.data.io.limits import need
from hpunet.data.io.volumes import encode_nifti
from hpunet.data.synthetic.neurites import make_neurite_slices
from hpunet.data.synthetic.nodules3d import SPACING
from hpunet.data.synthetic.source import IMAGES_PER_PATIENT, SyntheticSource, open_synthetic
from hpunet.data.types import SPLITS
from hpunet.data.workers import workers
from hpunet.errors import ConfigError, DataError
from hpunet.utils.files import atomic_write
from hpunet.utils.locks import LOCK, is_vacant, lock_folder

CITIES = {
    "train": ("train", ("aachen", "bochum")),
    "val": ("train", ("darmstadt", "ulm")),
    "test": ("val", ("frankfurt", "munster")),
}
"""By our split: the official split and its cities (our validation cities are official training cities)."""


def write_lidc_crops(out: Path, *, num_patients: int, size: int | tuple[int, int] = 128, seed: int = 0) -> None:
    """Lesions as `<split>/images/<patient>/z-<z>_c0.png` and `<split>/gt/<patient>/z-<z>_c0_l<0-3>.png` (0 or 255).

    Images are those of `open_synthetic`, 4 per patient.
    """
    with _empty_folder(out):
        for split in SPLITS:
            num_images = num_patients * IMAGES_PER_PATIENT
            source = open_synthetic("lesions", split=split, num_images=num_images, size=size, seed=seed)
            for i, identity in enumerate(source.identities):
                sample, name = source[i], f"z-{i % IMAGES_PER_PATIENT:03d}_c0"
                _save(out / split / "images" / identity.patient / f"{name}.png", sample.pixels[0])
                for grader, labels in enumerate(sample.labels):
                    pixels = (labels * 255).astype(np.uint8)
                    _save(out / split / "gt" / identity.patient / f"{name}_l{grader}.png", pixels)


def write_snemi3d_stack(out: Path, *, depth: int, size: int | tuple[int, int] = 256, seed: int = 0) -> None:
    """Neurites as `train-input.tif` (uint8) and `train-labels.tif` (uint16), both (z, y, x)."""
    tifffile = need("tifffile")
    if depth < 1:
        raise ConfigError(f"depth must be at least 1, got {depth}")
    source = open_synthetic("neurites", split="train", size=size, seed=seed)
    with _empty_folder(out):
        h, w = source.size
        slices = make_neurite_slices(source.rng(0), size=(h, w))
        images, cells = (np.stack(volume) for volume in zip(*islice(slices, depth), strict=True))
        for name, volume in (("train-input", images), ("train-labels", cells.astype(np.uint16))):
            tifffile.imwrite(out / f"{name}.tif", volume, photometric="minisblack", compression="zlib")


def write_volumes(out: Path, *, num_volumes: int, size: int | tuple[int, ...] = 64, seed: int = 0) -> None:
    """Nodules as `images/<case>.nii.gz`, `graders/rater-<1-4>/<case>.nii.gz` and `data.csv`; so many per split.

    Voxels are the bytes of `open_synthetic("nodules3d")`; affines have the spacing, rows run to the back of the
    patient, columns to the left, slices up.
    """
    sources = [
        open_synthetic("nodules3d", split=split, num_images=num_volumes, size=size, seed=seed) for split in SPLITS
    ]
    affine = np.zeros((4, 4))
    affine[[2, 1, 0, 3], [2, 0, 1, 3]] = (SPACING[0], -SPACING[1], -SPACING[2], 1)
    d, h, w = sources[0].size
    header = Geometry.from_affine(affine, axes="zyx").nifti_header((d, h, w))
    rows = [f"{case.key},{case.patient},{source.split}" for source in sources for case in source.identities]
    with _empty_folder(out):
        # First: a folder that is not complete does not fit its table, and is refused.
        atomic_write(out / TABLE, "\n".join(["file,patient,split", *rows, ""]).encode(), error=DataError)
        for source in sources:
            for i, case in enumerate(source.identities):
                sample = source[i]
                volumes = {
                    f"{GRADERS}/rater-{r}": labels.astype(np.uint8) for r, labels in enumerate(sample.labels, 1)
                }
                for folder, voxels in {IMAGES: sample.pixels[0], **volumes}.items():
                    path = out / folder / f"{case.key}.nii.gz"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    atomic_write(path, encode_nifti(voxels, header=header), error=DataError)


def write_cityscapes_scenes(
    out: Path,
    *,
    num_images: int,
    size: int | tuple[int, int] = (512, 1024),
    seed: int = 0,
    hard: bool = False,
    processes: int | None = 1,
    progress: Callable[[Iterable[Any], int, str], Iterable[Any]] | None = None,
) -> None:
    """Streets as `leftImg8bit/<split>/<city>/…` and `gtFine/<split>/<city>/…_gtFine_{labelIds,instanceIds}.png`.

    Each split gets the `num_images` scenes of `open_synthetic`, of "hard-streets" if they are to be `hard`;
    `processes` paint them (None: one per core).
    """
    scenes = [(split, i) for split in CITIES for i in range(num_images)]
    how: dict[str, Any] = {"num_images": num_images, "size": size, "seed": seed}
    name = "hard-streets" if hard else "streets"
    sources = {split: open_synthetic(name, split=split, **how) for split in CITIES}
    with _empty_folder(out), workers(processes, out, sources) as run:
        written = run(_write_scene, scenes)
        for _ in progress(written, len(scenes), "painting scenes") if progress else written:
            pass


def _write_scene(out: Path, sources: Mapping[str, SyntheticSource], scene: tuple[str, int]) -> None:
    split, i = scene
    official_split, cities = CITIES[split]
    image, ids = sources[split].scene(i)
    city = cities[i % len(cities)]
    stem = Path(official_split) / city / f"{city}_{i // len(cities):06d}_000019"
    label_ids = np.where(ids >= 1000, ids // 1000, ids)
    _save(out / "leftImg8bit" / f"{stem}_leftImg8bit.png", image.transpose(1, 2, 0))
    _save(out / "gtFine" / f"{stem}_gtFine_labelIds.png", label_ids.astype(np.uint8))
    _save(out / "gtFine" / f"{stem}_gtFine_instanceIds.png", ids.astype(np.uint16))


@contextmanager
def _empty_folder(out: Path) -> Iterator[None]:
    """Create the folder and lock it; an existing one must be empty. After an error it is empty again."""
    words = f"{out}: already exists and is not an empty folder, choose another one"
    if out.exists() and not out.is_dir():
        raise DataError(words)
    with lock_folder(out):
        if not is_vacant(out):
            raise DataError(words)
        try:
            yield
        except BaseException:
            for entry in out.iterdir():
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                elif entry.name != LOCK:
                    entry.unlink(missing_ok=True)
            raise


def _save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
