"""Cityscapes with car instances (App. C): 18 fixed classes, and each car is an instance.

Layout: `leftImg8bit/<folder>/<city>/<name>_leftImg8bit.png` and, in `gtFine/<folder>/<city>/`, either
`<name>_gtFine_instanceIds.png` or `<name>_gtFine_polygons.json`. `labelIds` files add nothing and are not read.
"""

from pathlib import Path

import numpy as np
from jaxtyping import Shaped, UInt8
from PIL import Image

from hpunet.data.cityscapes.classes import FIXED_CLASSES, car_labels
from hpunet.data.cityscapes.polygons import read_polygons, render_instance_ids
from hpunet.data.io.images import decode_png
from hpunet.data.io.label_maps import check_num_random_ids
from hpunet.data.io.limits import ImageSize
from hpunet.data.types import Identity, NoSuchSplitError, Sample, SetInfo, check_split, make_sample
from hpunet.errors import ConfigError, DataError
from hpunet.utils.files import read_file
from hpunet.utils.limits import MAX_POLYGON_BYTES

VAL_CITIES = ("darmstadt", "monchengladbach", "ulm")  # of the official training set, for validation in the paper
_IMAGE_ENDING = "_leftImg8bit.png"
_ANNOTATION_ENDINGS = ("_gtFine_instanceIds.png", "_gtFine_polygons.json")


def open_cityscapes(
    path: Path, *, split: str, size: tuple[int, int] = (512, 1024), num_random_ids: int = 5
) -> "CityscapesSource":
    """The paper's splits: "train" and "val" by city from the official train folder, "test" the official val folder.

    Images are downscaled to `size` (height, width) by area averaging, labels by nearest pixel. Ignored pixels and
    car groups are invalid. The `patient` of a scene is its city, the unit of the splits.
    """
    check_split(split)
    if min(size) < 1:
        raise ConfigError(f"size: expected 1 or more pixels, got {size[0]}x{size[1]}")
    check_num_random_ids(num_random_ids, num_fixed_classes=len(FIXED_CLASSES))
    folder = "val" if split == "test" else "train"
    images = _find(path / "leftImg8bit" / folder, endings=(_IMAGE_ENDING,))
    annotations = _find(path / "gtFine" / folder, endings=_ANNOTATION_ENDINGS)
    wanted = sorted(images.keys() | annotations.keys())
    if split != "test":
        wanted = [name for name in wanted if (name[0] in VAL_CITIES) == (split == "val")]
    for name in wanted:
        if name not in images:
            raise DataError(f"{annotations[name]}: has no image *{_IMAGE_ENDING}")
        if name not in annotations:
            raise DataError(f"{images[name]}: has no annotation *{' or *'.join(_ANNOTATION_ENDINGS)} in gtFine")
    if not wanted:
        where = path / "leftImg8bit" / folder
        raise NoSuchSplitError(f"{where}: no images for {split!r}, expected <city>/*{_IMAGE_ENDING}")
    files = {name: (images[name], annotations[name]) for name in wanted}
    return CityscapesSource(files, split=split, size=size, num_random_ids=num_random_ids)


def _find(folder: Path, *, endings: tuple[str, ...]) -> dict[tuple[str, str], Path]:
    """Files by city and name; the first of several endings wins."""
    if not folder.is_dir():
        raise NoSuchSplitError(f"{folder}: no such folder")
    return {
        (file.parent.name, file.name.removesuffix(ending)): file
        for ending in reversed(endings)
        for file in folder.glob(f"*/*{ending}")
    }


class CityscapesSource:
    """Street scenes with car instances; see `open_cityscapes`."""

    def __init__(
        self,
        files: dict[tuple[str, str], tuple[Path, Path]],
        *,
        split: str,
        size: tuple[int, int],
        num_random_ids: int,
    ) -> None:
        scored = tuple(range(len(FIXED_CLASSES), len(FIXED_CLASSES) + num_random_ids))
        self.info = SetInfo("cityscapes", 3, 1, FIXED_CLASSES, num_random_ids, stochastic_classes=scored)
        self.identities = [Identity(patient=city, key=f"{city}/{name}") for city, name in files]
        self.split, self._size, self._files = split, size, list(files.values())

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Sample:
        """One scene."""
        image_path, annotation_path = self._files[index]
        image = decode_png(read_file(image_path, error=DataError), name=str(image_path))
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise DataError(f"{image_path}: expected RGB of 8 bits, got {image.dtype} of shape {image.shape}")
        size = ImageSize(1, image.shape[0], image.shape[1], str(image_path))
        instance_ids = pick_nearest(read_instance_ids(annotation_path, size=size), size=self._size)
        labels, valid = car_labels(instance_ids, name=str(annotation_path))
        return make_sample(
            image=average_area(image, size=self._size).transpose(2, 0, 1),
            labels=labels[None],
            valid=valid,
            identity=self.identities[index],
            info=self.info,
            where=str(image_path),
        )

    def files(self, index: int) -> dict[str, Path | bytes]:
        """The image and its annotation; their names say city, scene and kind."""
        return {"/".join(path.parts[-4:]): path for path in self._files[index]}


def read_instance_ids(path: Path, *, size: ImageSize) -> np.ndarray:
    """The instance ids of a scene, from their map or from polygons, of the required `size`."""
    if path.suffix == ".json":
        content = read_file(path, max_bytes=MAX_POLYGON_BYTES, error=DataError)
        return render_instance_ids(read_polygons(content, name=str(path), size=size))
    instance_ids = decode_png(read_file(path, error=DataError), name=str(path), labels=True, size=size)
    if instance_ids.ndim != 2:
        raise DataError(f"{path}: expected a map of instance ids, got shape {instance_ids.shape}")
    return instance_ids


def pick_nearest(labels: Shaped[np.ndarray, "h w"], *, size: tuple[int, int]) -> Shaped[np.ndarray, "h2 w2"]:
    """Downscale to `size`: the value at the centre of each new pixel."""
    rows, columns = (
        ((2 * np.arange(new) + 1) * old) // (2 * new) for new, old in zip(size, labels.shape, strict=True)
    )
    picked: np.ndarray = labels[rows[:, None], columns]
    return picked


def average_area(image: UInt8[np.ndarray, "h w 3"], *, size: tuple[int, int]) -> UInt8[np.ndarray, "h2 w2 3"]:
    """Downscale to `size`: the mean over the area of each new pixel."""
    height, width = size
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BOX))
