"""LIDC crops as published by the authors (App. C): an image and up to four gradings of a lesion.

Layout, in a folder or in one `<split>.tar.gz` per split:

    <split>/images/<patient>/z-<z>_c<crop>.png           8 bit grey, square
    <split>/gt/<patient>/z-<z>_c<crop>_l<grader>.png     0 and one other value, 1 or 255

Graders are numbered 0–3 or 1–4. A grader without a file is missing; an all-zero file is a grading without lesion.
The slices of one nodule also make a volume (`stacks.py`).
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from hpunet.data.io.archives import FileTree
from hpunet.data.io.images import decode_png
from hpunet.data.io.limits import ImageSize
from hpunet.data.lidc.stacks import LidcNodules
from hpunet.data.types import (
    SPLITS,
    Identity,
    NoSuchSplitError,
    Sample,
    SetInfo,
    check_disjoint,
    check_split,
    make_sample,
)
from hpunet.errors import ConfigError, DataError

NUM_GRADERS = 4
_CLASSES = ("background", "lesion")
INFO = SetInfo("lidc", in_channels=1, num_graders=NUM_GRADERS, fixed_classes=_CLASSES, stochastic_classes=(1,))
_PATIENT = r"(?P<patient>[A-Za-z0-9][A-Za-z0-9._-]*)"
_CROP = r"(?P<crop>z-(?:-?\d+(?:\.\d+)?)_c\d+)"
_IMAGE_NAME = re.compile(rf"images/{_PATIENT}/{_CROP}\.png")
_GRADING_NAME = re.compile(rf"gt/{_PATIENT}/{_CROP}_l(?P<grader>\d)\.png")


class LidcCrops:
    """A split of LIDC crops; see `open_lidc_crops`."""

    info = INFO

    def __init__(self, *, tree: FileTree, split: str, size: int | None) -> None:
        self.split, self._tree, self._size = split, tree, size
        images, gradings = _sort_names(tree.names, where=str(tree.path))
        self.identities, self._images = list(images), list(images.values())
        self._gradings = [gradings[identity] for identity in images]

    def __len__(self) -> int:
        return len(self.identities)

    def __getitem__(self, index: int) -> Sample:
        name = self._images[index]
        image = self._read(name)
        labels = np.zeros((NUM_GRADERS, *image.shape), dtype=np.int32)
        graders = np.zeros(NUM_GRADERS, dtype=np.bool_)
        size = ImageSize(1, image.shape[0], image.shape[1], name)
        for slot, grading_name in self._gradings[index].items():
            grading = self._read(grading_name, size=size)
            values = np.flatnonzero(np.bincount(grading.ravel())).tolist()
            if values not in ([0], [1], [255], [0, 1], [0, 255]):
                where = self._tree.where(grading_name)
                raise DataError(f"{where}: expected 0 and one other value, 1 or 255; found {values[:8]}")
            labels[slot], graders[slot] = grading > 0, True
        side = len(image)
        cropped = side if self._size is None else self._size
        if cropped > side:
            raise DataError(f"{self._tree.where(name)}: cannot crop {cropped} pixels from {side}")
        start = (side - cropped) // 2
        window = (slice(start, start + cropped),) * 2
        return make_sample(
            image=image[None, *window],
            labels=labels[:, *window],
            identity=self.identities[index],
            info=self.info,
            where=self._tree.where(name),
            graders=graders,
        )

    def files(self, index: int) -> dict[str, Path | bytes]:
        """The image and its gradings."""
        names = (self._images[index], *self._gradings[index].values())
        return {f"{self.split}/{name}": self._tree.file(name) for name in names}

    def _read(self, name: str, *, size: ImageSize | None = None) -> np.ndarray:
        where = self._tree.where(name)
        array = decode_png(self._tree.read(name), name=where, size=size)
        if array.ndim != 2 or array.dtype != np.uint8 or array.shape[0] != array.shape[1]:
            raise DataError(f"{where}: expected a square 8 bit grey image, got {array.dtype} of shape {array.shape}")
        return array


def open_lidc_crops(
    path: Path, *, split: str, size: int | None = None, volumes: bool = False
) -> LidcCrops | LidcNodules:
    """The `split` of the crops below `path`, from the folder `<split>` or else from `<split>.tar.gz`.

    `size` crops images and gradings at their centre (180 → 128 is [26:-26], the paper's evaluation). A patient with a
    folder in another split of `path` is refused; for archives see `types.refuse_shared_patients`.
    With `volumes`, the slices of a nodule are one volume.
    """
    path = Path(path)
    check_split(split)
    if size is not None and size < 1:
        raise ConfigError(f"size: expected a positive number of pixels, got {size}")
    folder, archive = path / split, path / f"{split}.tar.gz"
    if folder.is_dir():
        tree = FileTree(folder)
    elif archive.is_file():
        tree = FileTree(archive, root=split)
    else:
        raise NoSuchSplitError(f"{path}: holds neither the folder {split}/ nor the archive {split}.tar.gz")
    source = LidcCrops(tree=tree, split=split, size=size)
    for other in SPLITS:
        if other != split and (path / other / "images").is_dir():
            found = (Identity(entry.name, entry.name) for entry in (path / other / "images").iterdir())
            check_disjoint({split: source.identities, other: found}, where=str(path))
    return LidcNodules(source, all_keys=_all_keys(path)) if volumes else source


def _all_keys(path: Path) -> Iterator[str]:
    """The keys of the crops of every split, by the names of their files."""
    for split in SPLITS:
        folder, archive = path / split, path / f"{split}.tar.gz"
        tree = FileTree(folder) if folder.is_dir() else FileTree(archive, root=split) if archive.is_file() else None
        for match in map(_IMAGE_NAME.fullmatch, tree.names if tree else ()):
            if match is not None:
                yield f"{match['patient']}/{match['crop']}"


def _sort_names(names: Iterable[str], *, where: str) -> tuple[dict[Identity, str], dict[Identity, dict[int, str]]]:
    """Images in the order of their keys, and the files of the graders of each by slot 0...3."""
    images: dict[Identity, str] = {}
    by_number: dict[Identity, dict[int, str]] = defaultdict(dict)
    for name in sorted(names):
        match = _IMAGE_NAME.fullmatch(name) or _GRADING_NAME.fullmatch(name)
        if match is None:
            expected = "images/<patient>/z-<z>_c<crop>.png or gt/<patient>/z-<z>_c<crop>_l<grader>.png"
            raise DataError(f"{where}/{name}: expected {expected}")
        identity = Identity(patient=match["patient"], key=f"{match['patient']}/{match['crop']}")
        if match.re is _IMAGE_NAME:
            images[identity] = name
        else:
            by_number[identity][int(match["grader"])] = name
    if not images:
        raise DataError(f"{where}: no images")
    numbers = {number for gradings in by_number.values() for number in gradings}
    first = 0 if 0 in numbers else 1
    for identity, gradings in by_number.items():
        if identity not in images:
            raise DataError(f"{where}/{min(gradings.values())}: a grading without its image")
        for number, name in gradings.items():
            if not first <= number < first + NUM_GRADERS:
                last = first + NUM_GRADERS - 1
                raise DataError(f"{where}/{name}: grader {number}; expected {first}...{last} as in the other files")
    for identity, name in images.items():
        if identity not in by_number:
            raise DataError(f"{where}/{name}: an image without any grading")
    slots = {identity: {n - first: name for n, name in found.items()} for identity, found in by_number.items()}
    return images, slots
