"""The classes of Cityscapes, and labels from its `instanceIds` maps."""

import numpy as np
from jaxtyping import Bool, Int32, Shaped

from hpunet.data.io.label_maps import as_integers, number_instances
from hpunet.errors import DataError

_ALL = (
    "unlabeled, ego vehicle, rectification border, out of roi, static, dynamic, ground, road, sidewalk, parking, "
    "rail track, building, wall, fence, guard rail, bridge, tunnel, pole, polegroup, traffic light, traffic sign, "
    "vegetation, terrain, sky, person, rider, car, truck, bus, caravan, trailer, train, motorcycle, bicycle"
)
_EVALUATED = (
    "road, sidewalk, building, wall, fence, pole, traffic light, traffic sign, vegetation, terrain, sky, person, "
    "rider, car, truck, bus, train, motorcycle, bicycle"
)
LABEL_NAMES = tuple(_ALL.split(", "))  # the official classes; the position is the label id
LABEL_IDS = {name: label_id for label_id, name in enumerate(LABEL_NAMES)}
EVALUATED = tuple(_EVALUATED.split(", "))  # the 19 classes of the benchmark by official train id
FIXED_CLASSES = tuple(name for name in EVALUATED if name != "car")
CAR = LABEL_IDS["car"]
_IGNORED = -1


def car_labels(
    instance_ids: Shaped[np.ndarray, "h w"], *, name: str
) -> tuple[Int32[np.ndarray, "h w"], Bool[np.ndarray, "h w"]]:
    """Labels and validity: the 18 `FIXED_CLASSES` as 0...17, car i as 18 + i; ignored ids and car groups are invalid.

    An instance id is 1000 · label id + number, or the label id alone without single instances.
    """
    instance_ids = as_integers(instance_ids, name=name).astype(np.int64)
    label_ids = np.where(instance_ids >= 1000, instance_ids // 1000, instance_ids)
    if label_ids.max() >= len(LABEL_NAMES):
        wrong = int(instance_ids[label_ids >= len(LABEL_NAMES)][0])
        raise DataError(f"{name}: value {wrong} is not a Cityscapes instance id")
    classes = np.full(len(LABEL_NAMES), _IGNORED, dtype=np.int32)
    classes[[LABEL_IDS[fixed] for fixed in FIXED_CLASSES]] = np.arange(len(FIXED_CLASSES))
    labels = classes[label_ids]
    cars = np.where((label_ids == CAR) & (instance_ids >= 1000), instance_ids, 0)
    numbered = number_instances(cars, num_fixed_classes=len(FIXED_CLASSES), name=name)
    labels = np.where(cars > 0, numbered, labels)
    return np.where(labels != _IGNORED, labels, 0), labels != _IGNORED
