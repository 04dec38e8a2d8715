"""Synthetic data with known ground truth, without download.

One kind per data set of the paper (App. C), and a harder one:

* lesions: lung-like images, four graders drawn from a known distribution (`SyntheticSource.distribution`);
* neurites: EM-like images, each cell one instance; the partition is exact, ids are uniform and independent;
* streets: street scenes with Cityscapes' classes, each car one instance, with ignored pixels and car groups;
* hard-streets: the same with background that looks like cars, so that only context tells them apart;
* nodules3d: CT-like volumes, four graders drawn from a known distribution; or the slices of these volumes;
* growth: series of images of a lesion over time, whose distribution of futures is known (`SyntheticSource.future`).

Image i is a pure function of kind, seed, split, i and size, generated when read.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32, UInt8

from hpunet.data.cityscapes.classes import FIXED_CLASSES, car_labels
from hpunet.data.synthetic.growth import NUM_MOMENTS, KnownFuture, make_growth
from hpunet.data.synthetic.hard_streets.scene import make_hard_street
from hpunet.data.synthetic.known_distribution import KnownDistribution
from hpunet.data.synthetic.lesions import NUM_LESIONS, make_lesions
from hpunet.data.synthetic.neurites import make_neurites
from hpunet.data.synthetic.nodules3d import NUM_NODULES, SPACING, make_nodules
from hpunet.data.synthetic.streets import make_street
from hpunet.data.types import SPLITS, Identity, Sample, SetInfo, check_split, make_sample
from hpunet.errors import ConfigError


def _instances_info(kind: str, *, in_channels: int, fixed_classes: tuple[str, ...], num_random_ids: int) -> SetInfo:
    ids = tuple(range(len(fixed_classes), len(fixed_classes) + num_random_ids))
    return SetInfo(kind, in_channels, 1, fixed_classes, num_random_ids, stochastic_classes=ids)


INFO = {
    "lesions": SetInfo("synthetic-lesions", 1, 4, ("background", "lesion"), stochastic_classes=(1,)),
    "neurites": _instances_info(
        "synthetic-neurites", in_channels=1, fixed_classes=("background",), num_random_ids=15
    ),
    "streets": _instances_info("synthetic-streets", in_channels=3, fixed_classes=FIXED_CLASSES, num_random_ids=5),
    "hard-streets": _instances_info(
        "synthetic-hard-streets", in_channels=3, fixed_classes=FIXED_CLASSES, num_random_ids=5
    ),
    "nodules3d": SetInfo(
        "synthetic-nodules3d", 1, 4, ("background", "nodule"), stochastic_classes=(1,), ndim=3, spacing=SPACING
    ),
    "growth": SetInfo(
        "synthetic-growth", 1, 1, ("background", "lesion"), stochastic_classes=(1,), ndim=3, axis0="time"
    ),
}
"""Descriptions by name; positional: kind, image channels, graders, fixed classes.

The number of a kind is part of its random streams: new ones come last.
"""
IMAGES_PER_PATIENT = 4
"""Of images; a volume is a patient of its own."""
SCENES: dict[str, Callable[..., tuple[np.ndarray, np.ndarray]]] = {
    "streets": make_street,
    "hard-streets": make_hard_street,
}
"""What paints a street scene and its ids."""
_GRADED: dict[str, Callable[..., tuple[np.ndarray, KnownDistribution]]] = {
    "lesions": make_lesions,
    "nodules3d": make_nodules,
}
"""What makes an image or volume and the distribution of its gradings."""
_DEFAULT_HEIGHT = {"lesions": 64, "neurites": 128, **dict.fromkeys(SCENES, 128), "nodules3d": 64, "growth": 64}
_DEFAULT_LESIONS = {"lesions": NUM_LESIONS, "nodules3d": NUM_NODULES}
_MIN_SIDE, _MIN_DEPTH, _MAX_LESIONS = 16, 4, 16


def open_synthetic(
    name: str,
    *,
    split: str,
    num_images: int = 256,
    size: int | tuple[int, ...] | None = None,
    seed: int = 0,
    num_lesions: tuple[int, int] | None = None,
    volumes: bool | None = None,
) -> "SyntheticSource":
    """One split of a synthetic set: `name` is one of `INFO`.

    `size` is (height, width), of volumes (depth, height, width), or the height alone: streets are then twice as wide,
    the others square, volumes a quarter as deep, series of 6 moments. Splits, seeds and kinds have different random
    streams. `num_lesions` is the least and the most per image of lesions or volume of nodules. With `volumes` false,
    samples of nodules3d are the slices of its `num_images` volumes.
    """
    if name not in INFO:
        raise ConfigError(f"synthetic set {name!r} is unknown, expected one of {', '.join(INFO)}")
    check_split(split)
    if num_images < 1:
        raise ConfigError(f"num_images must be at least 1, got {num_images}")
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed must lie in 0...{2**32 - 1}, got {seed}")
    if volumes and INFO[name].ndim == 2:
        raise ConfigError(f"volumes: {name} are images; leave it out, or choose nodules3d")
    if volumes is False and INFO[name].axis0 == "time":
        raise ConfigError(f"volumes: {name} are series over time, which are samples as a whole; leave it out")
    full_size = _full_size(name, _DEFAULT_HEIGHT[name] if size is None else size)
    if num_lesions is not None and name not in _GRADED:
        raise ConfigError(f"num_lesions: an option of {' and '.join(_GRADED)} only, not of {name}")
    least, most = num_lesions or _DEFAULT_LESIONS.get(name, NUM_LESIONS)
    if not 1 <= least <= most <= _MAX_LESIONS:
        raise ConfigError(f"num_lesions: expected least and most, 1 to {_MAX_LESIONS}, got {num_lesions}")
    how: dict[str, Any] = {"num_images": num_images, "size": full_size, "seed": seed, "num_lesions": (least, most)}
    return SyntheticSource(name, split=split, **how, in_slices=INFO[name].ndim == 3 and volumes is False)


def _full_size(name: str, size: int | tuple[int, ...]) -> tuple[int, ...]:
    """The checked size of each image or volume."""
    ndim = INFO[name].ndim
    if isinstance(size, int):
        depth = NUM_MOMENTS if INFO[name].axis0 == "time" else size // 4
        size = (depth, size, size) if ndim == 3 else (size, 2 * size if name in SCENES else size)
    if len(size) != ndim:
        first = "moments" if INFO[name].axis0 == "time" else "depth"
        wanted = f"{first}, height and width" if ndim == 3 else "height and width"
        raise ConfigError(f"size: {name} have {wanted}, or the height alone, got {size}")
    least = (_MIN_DEPTH, _MIN_SIDE, _MIN_SIDE)[-ndim:]
    if any(side < its_least for side, its_least in zip(size, least, strict=True)):
        what = "moments" if INFO[name].axis0 == "time" else "slices"
        sides = f"at least {_MIN_SIDE} on each side" + (f", and {_MIN_DEPTH} {what}" if ndim == 3 else "")
        raise ConfigError(f"size must be {sides}, got {'x'.join(map(str, size))}")
    return size


class SyntheticSource:
    """A `Source` that generates its samples; see `open_synthetic`. The last volume stays in memory for its slices."""

    def __init__(
        self,
        name: str,
        *,
        split: str,
        num_images: int,
        size: tuple[int, ...],
        seed: int,
        num_lesions: tuple[int, int],
        in_slices: bool,
    ) -> None:
        self.info, self.split, self.size, self._num_lesions = INFO[name], split, size, num_lesions
        self._name, self._num_slices = name, size[0] if in_slices else 1
        self._stream = (seed, list(INFO).index(name), SPLITS.index(split))
        prefix, per_patient = f"{name}-s{seed}-{split}", IMAGES_PER_PATIENT if self.info.ndim == 2 else 1
        patients = [f"{prefix}-{i // per_patient:04d}" for i in range(num_images)]
        if in_slices:
            self.info = replace(self.info, ndim=2, spacing=SPACING[1:])
            self.identities = [Identity(p, f"{p}/z-{z:03d}") for p in patients for z in range(size[0])]
        elif self.info.ndim == 3:
            self.identities = [Identity(p, p) for p in patients]
        else:
            self.identities = [Identity(p, f"{p}/{i:05d}") for i, p in enumerate(patients)]
        self._last: tuple[int, np.ndarray, np.ndarray, KnownDistribution] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the volume in memory."""
        return self.__dict__ | {"_last": None}

    def __len__(self) -> int:
        return len(self.identities)

    def __getitem__(self, index: int) -> Sample:
        valid, times, where = None, None, self.identities[index].key
        if self._name in _GRADED:
            image, labels, _ = self._graded(index)
        elif self._name == "growth":
            image, masks, times, _ = self._series(index)
            labels = masks[None]
        elif self._name == "neurites":
            h, w = self.size
            image, cells = make_neurites(self.rng(index), size=(h, w))
            labels = cells[None]
        else:
            image, ids = self.scene(index)
            cars, valid = car_labels(ids, name=where)
            labels = cars[None]
        image = image.reshape(self.info.in_channels, *labels.shape[1:])
        identity, info = self.identities[index], self.info
        planes: dict[str, Any] = {"image": image, "labels": labels, "valid": valid, "times": times}
        return make_sample(**planes, identity=identity, info=info, where=where)

    def files(self, index: int) -> dict[str, Path | bytes]:
        """None: samples are generated."""
        return {}

    def distribution(self, index: int) -> KnownDistribution:
        """The exact distribution of the label maps of sample `index`; lesions and nodules3d only."""
        if self._name not in _GRADED:
            raise ConfigError(f"{self._name} have no distribution of gradings, only {' and '.join(_GRADED)} do")
        return self._graded(index)[2]

    def future(self, index: int, *, present: int) -> KnownFuture:
        """The exact distribution of the masks of series `index` after the moment `present`; growth only."""
        if self._name != "growth":
            raise ConfigError(f"{self._name} have no future, only growth does")
        return self._series(index)[3].after(present)

    def scene(self, index: int) -> tuple[UInt8[np.ndarray, "3 h w"], Int32[np.ndarray, "h w"]]:
        """The colours of image `index` and its ids, as in Cityscapes' `instanceIds`; streets only."""
        if self._name not in SCENES:
            raise ConfigError(f"{self._name} have no ids of Cityscapes, only {' and '.join(SCENES)} do")
        return SCENES[self._name](self.rng(index), size=self.size)

    def rng(self, index: int) -> np.random.Generator:
        """The random stream of image or volume `index` at its beginning; of a slice, that of its volume."""
        return np.random.default_rng((*self._stream, range(len(self))[index] // self._num_slices))

    def _series(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, KnownFuture]:
        d, h, w = self.size
        return make_growth(self.rng(index), size=(d, h, w))

    def _graded(self, index: int) -> tuple[np.ndarray, np.ndarray, KnownDistribution]:
        """An image or volume, its gradings and their distribution; or those of one slice."""
        number, z = divmod(range(len(self))[index], self._num_slices)
        last = self._last
        if last is None or last[0] != number:
            rng = self.rng(index)
            image, known = _GRADED[self._name](rng, size=self.size, num_lesions=self._num_lesions)
            last = self._last = (number, image, known.sample(rng, self.info.num_graders), known)
        _, image, labels, known = last
        if image.ndim == self.info.ndim:
            return image, labels, known
        return image[z], labels[:, z], replace(known, regions=known.regions[z])
