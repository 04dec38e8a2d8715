"""Synthetic data with known ground truth, without download.

One kind per data set of the paper (App. C), and a harder one:

* lesions: lung-like images, four graders drawn from a known distribution (`SyntheticSource.distribution`);
* neurites: EM-like images, each cell one instance; the partition is exact, ids are uniform and independent;
* streets: street scenes with Cityscapes' classes, each car one instance, with ignored pixels and car groups;
* hard-streets: the same with background that looks like cars, so that only context tells them apart.

Image i is a pure function of kind, seed, split, i and size, generated when read.
"""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32, UInt8

from hpunet.data.cityscapes.classes import FIXED_CLASSES, car_labels
from hpunet.data.synthetic.hard_streets.scene import make_hard_street
from hpunet.data.synthetic.lesions import NUM_LESIONS, KnownDistribution, make_lesions
from hpunet.data.synthetic.neurites import make_neurites
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
}
"""Descriptions by name; positional: kind, image channels, graders, fixed classes."""
IMAGES_PER_PATIENT = 4
SCENES = {"streets": make_street, "hard-streets": make_hard_street}
"""What paints a street scene and its ids."""
_DEFAULT_HEIGHT = {"lesions": 64, "neurites": 128, **dict.fromkeys(SCENES, 128)}
_MIN_SIDE, _MAX_LESIONS = 16, 16


def open_synthetic(
    name: str,
    *,
    split: str,
    num_images: int = 256,
    size: int | tuple[int, ...] | None = None,
    seed: int = 0,
    num_lesions: tuple[int, int] = NUM_LESIONS,
) -> "SyntheticSource":
    """One split of a synthetic set: `name` is one of `INFO`.

    `size` is (height, width), or the height alone: streets are then twice as wide, the others square. Splits, seeds
    and kinds have different random streams. `num_lesions` is the least and the most per image of lesions.
    """
    if name not in INFO:
        raise ConfigError(f"synthetic set {name!r} is unknown, expected one of {', '.join(INFO)}")
    check_split(split)
    if num_images < 1:
        raise ConfigError(f"num_images must be at least 1, got {num_images}")
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed must lie in 0...{2**32 - 1}, got {seed}")
    size = _DEFAULT_HEIGHT[name] if size is None else size
    if isinstance(size, int):
        size = (size, 2 * size if name in SCENES else size)
    if len(size) != 2:
        raise ConfigError(f"size: expected height and width, got {size}")
    if min(size) < _MIN_SIDE:
        raise ConfigError(f"size must be at least {_MIN_SIDE} on each side, got {size[0]}x{size[1]}")
    if num_lesions != NUM_LESIONS and name != "lesions":
        raise ConfigError(f"num_lesions: an option of lesions only, not of {name}")
    if not 1 <= num_lesions[0] <= num_lesions[1] <= _MAX_LESIONS:
        raise ConfigError(f"num_lesions: expected least and most, 1 to {_MAX_LESIONS}, got {num_lesions}")
    how: dict[str, Any] = {"num_images": num_images, "size": size, "seed": seed, "num_lesions": num_lesions}
    return SyntheticSource(name, split=split, **how)


class SyntheticSource:
    """A `Source` that generates its samples; see `open_synthetic`."""

    def __init__(
        self,
        name: str,
        *,
        split: str,
        num_images: int,
        size: tuple[int, int],
        seed: int,
        num_lesions: tuple[int, int],
    ) -> None:
        self.info, self.split, self.size, self._num_lesions = INFO[name], split, size, num_lesions
        patients = [f"{name}-s{seed}-{split}-{i // IMAGES_PER_PATIENT:04d}" for i in range(num_images)]
        self.identities = [Identity(patient=p, key=f"{p}/{i:05d}") for i, p in enumerate(patients)]
        self._name = name
        self._stream = (seed, list(INFO).index(name), SPLITS.index(split))

    def __len__(self) -> int:
        return len(self.identities)

    def __getitem__(self, index: int) -> Sample:
        rng, valid, where = self.rng(index), None, self.identities[index].key
        if self._name == "lesions":
            image, distribution = make_lesions(rng, size=self.size, num_lesions=self._num_lesions)
            image, labels = image[None], distribution.sample(rng, self.info.num_graders)
        elif self._name == "neurites":
            image, cells = make_neurites(rng, size=self.size)
            image, labels = image[None], cells[None]
        else:
            image, ids = self.scene(index)
            labels, valid = car_labels(ids, name=where)
            labels = labels[None]
        identity, info = self.identities[index], self.info
        return make_sample(image=image, labels=labels, valid=valid, identity=identity, info=info, where=where)

    def files(self, index: int) -> dict[str, Path | bytes]:
        """None: samples are generated."""
        return {}

    def distribution(self, index: int) -> KnownDistribution:
        """The exact distribution of the label maps of image `index`; lesions only."""
        if self._name != "lesions":
            raise ConfigError(f"{self._name} have no distribution of gradings, only lesions do")
        return make_lesions(self.rng(index), size=self.size, num_lesions=self._num_lesions)[1]

    def scene(self, index: int) -> tuple[UInt8[np.ndarray, "3 h w"], Int32[np.ndarray, "h w"]]:
        """The colours of image `index` and its ids, as in Cityscapes' `instanceIds`; streets only."""
        if self._name not in SCENES:
            raise ConfigError(f"{self._name} have no ids of Cityscapes, only {' and '.join(SCENES)} do")
        return SCENES[self._name](self.rng(index), size=self.size)

    def rng(self, index: int) -> np.random.Generator:
        """The random stream of image `index`, at its beginning."""
        return np.random.default_rng((*self._stream, range(len(self))[index]))
