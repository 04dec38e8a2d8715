"""Images and volumes as evaluation sees them: read and checked, whole or cropped, with fixed ids and hidden parts."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int32, Integer, Shaped
from torch import Tensor

from hpunet.config.settings import Extrapolate
from hpunet.data.batch import FIELDS, Batch
from hpunet.data.extrapolation import NUM_UNIFORMS, hide, hide_future
from hpunet.data.instance_ids import assign_ids, evaluation_table
from hpunet.data.types import Sample, SetInfo, Source
from hpunet.errors import DataError, HPUNetError
from hpunet.utils.keyed_random import Stream, keyed_uniform

NUM_TABLE_IDS = 4096
MAX_PIXELS = 2**20  # of whole images, and of volumes, in one forward pass


class Item(NamedTuple):
    """An image of the set, or why it could not be read."""

    number: int
    sample: Sample | None
    error: str = ""


def read_item(source: Source, index: int, info: SetInfo) -> Item:
    """Read an image with its labels and check it against what the model takes."""
    try:
        found = source[index]
        if found.image.shape[0] != info.in_channels:
            raise DataError(f"{found.identity.key}: {found.image.shape[0]} channels, expected {info.in_channels}")
        highest = int(found.labels.max(initial=0))
        if highest >= info.num_classes and not info.has_instances:
            allowed = f"0...{info.num_classes - 1}"
            raise DataError(f"{found.identity.key}: label {highest}, the model has classes {allowed}")
    except (HPUNetError, OSError) as error:
        return Item(index, None, str(error) or type(error).__name__)
    return Item(index, found)


def fast_batch_size(device: torch.device, *, volume: Sequence[int] | None = None) -> int:
    """Default number of images per forward pass; of volumes of about this size, as many as memory should hold."""
    size = 8 if device.type == "cpu" else 32
    return size if volume is None else max(1, min(size, MAX_PIXELS // math.prod(volume)))


def as_batch(sample: Sample) -> Batch:
    """A batch of one image."""
    tensors: dict[str, Any] = {name: torch.from_numpy(getattr(sample, name))[None] for name in FIELDS}
    times = None if sample.times is None else torch.from_numpy(sample.times)[None]
    return Batch(**tensors, times=times)


def drawn_together(items: Sequence[Item], *, crop: tuple[int, ...] | None) -> list[list[Item]]:
    """Items in groups for one forward pass each: crops all together, whole images by size and as many as fit.

    Crops of volumes, too, as many as fit.
    """
    if crop is not None and len(crop) == 2:
        return [list(items)]
    groups: list[list[Item]] = []
    newest: dict[tuple[int, ...], list[Item]] = {}
    for item in items:
        size = (0,) if item.sample is None else crop or item.sample.valid.shape
        if size not in newest or (len(newest[size]) + 1) * math.prod(size) > MAX_PIXELS:
            groups.append([])
            newest[size] = groups[-1]
        newest[size].append(item)
    return groups


def centre_crop(batch: Batch, *, crop: tuple[int, ...]) -> Batch:
    """The centre of each image, of this size; a smaller image is padded with invalid pixels."""
    image, labels, valid = (centred(each, crop=crop) for each in (batch.image, batch.labels, batch.valid))
    return replace(batch, image=image, labels=labels * valid.unsqueeze(1), valid=valid)


def centred(maps: Shaped[Tensor, "..."], *, crop: tuple[int, ...]) -> Shaped[Tensor, "..."]:
    """The centre of maps whose last axes are positions; smaller ones are padded with 0."""
    sides = zip(maps.shape[: -len(crop) - 1 : -1], crop[::-1], strict=True)  # the last one first
    margins = [(side, wanted, min(0, side - wanted) + abs(side - wanted) // 2) for side, wanted in sides]
    return F.pad(maps, [n for side, wanted, start in margins for n in (-start, start + wanted - side)])  # or cropped


def with_evaluation_ids(batch: Batch, *, keys: Sequence[str], info: SetInfo, seed: int) -> Batch:
    """Map instances to ids, fixed by seed and image key; classes stay as they are."""
    if not info.has_instances:
        return batch
    table = evaluation_table(keys, seed=seed, num_random_ids=info.num_random_ids, num_instances=NUM_TABLE_IDS)
    labels = assign_ids(
        batch.labels,
        num_fixed_classes=info.num_fixed_classes,
        num_random_ids=info.num_random_ids,
        table=table.to(batch.labels.device),
    )
    return replace(batch, labels=labels)


def of_first_grader(batch: Batch, maps: Integer[Tensor, "b r *s"]) -> Integer[Tensor, " b *s"]:
    """The map of each image's first grader: the truth where there can be only one."""
    first = batch.graders.int().argmax(dim=1)
    return maps[torch.arange(len(first), device=maps.device), first.to(maps.device)]


def prior_inputs(
    batch: Batch, *, places: Sequence[int], extrapolate: Extrapolate, num_classes: int
) -> tuple[Float[Tensor, "b c *s"], Float[Tensor, "b e *s"] | None]:
    """Image and conditioning for the prior; when extrapolating, hidden parts depend on the images' numbers.

    The visible labels are those of each image's first grader. With "future", the last third of each series is hidden.
    """
    if not extrapolate:
        return batch.image, None
    if extrapolate == "future":
        shown: dict[str, Any] = {"image": batch.image, "labels": of_first_grader(batch, batch.labels)}
        hidden = hide_future(**shown, times=batch.times, num_classes=num_classes)
        return hidden.image, hidden.cond
    index = torch.tensor(places, device=batch.image.device)
    uniform = keyed_uniform(seed=0, step=0, index=index, stream=Stream.HIDE, count=NUM_UNIFORMS)
    labels = of_first_grader(batch, batch.labels)
    hidden = hide(image=batch.image, labels=labels, uniform=uniform, num_classes=num_classes)
    return hidden.image, hidden.cond


def true_instances(batch: Batch, info: SetInfo) -> Int32[np.ndarray, " b *s"]:
    """Instances of each image's first grader, 0 for none; `batch` has labels as stored."""
    labels = of_first_grader(batch, batch.labels).cpu().numpy()
    return np.asarray(np.maximum(labels - (info.num_fixed_classes - 1), 0), dtype=np.int32)
