"""The visible part of an image and its labels, which models with `data.extrapolate` continue (Section 3.3)."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int32, Integer
from PIL import Image

from hpunet.data.extrapolation import conceal
from hpunet.data.instance_ids import assign_ids, evaluation_table
from hpunet.data.io.images import decode_image
from hpunet.data.io.inputs import read_stored
from hpunet.data.io.label_maps import as_integers, class_map
from hpunet.data.io.limits import ImageSize
from hpunet.data.io.volumes import NIFTI_ENDINGS, decode_nifti
from hpunet.data.types import SetInfo
from hpunet.errors import ConfigError, DataError
from hpunet.predict.open_image import WARNING, OpenedImage
from hpunet.utils.files import read_file
from hpunet.weights.load import TrainedModel

MapLike = str | Path | Image.Image | np.ndarray | torch.Tensor
_USUAL = (0.5, 0.75)  # of an image are visible in training


def check_visible(
    trained: TrainedModel, *, visible: MapLike | None, labels: MapLike | None, futures: object = None
) -> None:
    """Refuse a visible part (or futures) for a model that continues none, and such a model without."""
    if trained.settings.data.extrapolate == "future":
        if labels is None or futures is None or visible is not None:
            raise ConfigError(
                f"{trained.name}: predicts the future of a series (data.extrapolate) and needs the days to predict "
                "and the labels of the past: futures= and labels= (--futures, --labels), without visible"
            )
    elif futures is not None:
        raise ConfigError(f'{trained.name}: was not trained with data.extrapolate="future"; omit futures')
    elif not trained.model.cond_channels:
        if visible is not None or labels is not None:
            raise ConfigError(f"{trained.name}: was not trained with data.extrapolate; omit visible and labels")
    elif visible is None or labels is None:
        raise ConfigError(
            f"{trained.name}: continues the visible part of an image (data.extrapolate) and needs it: give a map of "
            "what is visible and its labels, visible= and labels= (--visible, --labels)"
        )


def show_part(source: OpenedImage, *, visible: MapLike, labels: MapLike, info: SetInfo) -> OpenedImage:
    """The image with its hidden part set to 0, and the conditioning of the prior.

    Both maps have the size of the image, or, for arrays, of the part of it that was cut out; one of two dimensions is
    for all slices. Where `visible` is 0 nothing of the image and of the labels is used. Labels are as in training
    data: classes, or instances from the last class on, of which each gets a random id, always the same.
    """
    shown = _map(visible, source, name="visible") > 0
    known = np.where(shown, _map(labels, source, name="labels"), 0)
    classes = (
        _with_ids(known, info)
        if info.has_instances
        else class_map(known, num_classes=info.num_classes, name="labels")
    )
    hidden = conceal(
        image=torch.from_numpy(source.images),
        labels=torch.from_numpy(classes),
        visible=torch.from_numpy(shown),
        num_classes=info.num_classes,
    )
    share = float(shown.mean())
    note = f"{share:.0%} of the pixels are visible; the rest of image and labels is not used."
    if not _USUAL[0] <= share <= _USUAL[1]:
        note = f"{WARNING}{note} In training, {_USUAL[0]:.0%} to {_USUAL[1]:.0%} were visible."
    images, cond = hidden.image.numpy(), hidden.cond.numpy()
    return OpenedImage(source.name, images, source.place, (*source.notes, note), cond)


def _with_ids(labels: Integer[np.ndarray, "z h w"], info: SetInfo) -> Int32[np.ndarray, "z h w"]:
    """Instances as random ids."""
    numbered = labels.astype(np.int32)
    instances = numbered >= info.num_fixed_classes
    values, index = np.unique(numbered[instances], return_inverse=True)
    numbered[instances] = info.num_fixed_classes + index
    how: dict[str, Any] = {"num_random_ids": info.num_random_ids}
    table = evaluation_table(["visible"], seed=0, num_instances=max(1, len(values)), **how)
    given = torch.from_numpy(numbered)[None]
    return np.asarray(assign_ids(given, num_fixed_classes=info.num_fixed_classes, table=table, **how)[0].numpy())


def _map(given: MapLike, source: OpenedImage, *, name: str) -> Integer[np.ndarray, "z h w"]:
    """The map of the slices."""
    values = as_integers(_stored(given, source, name=name), name=name)
    depth, h, w = source.images.shape[0], *source.images.shape[2:]
    whole = source.place.shape
    if values.shape not in (whole, whole[1:], (depth, h, w), (h, w)):
        sizes = " or ".join(dict.fromkeys("×".join(map(str, size)) for size in (whole[1:], (h, w))))
        raise DataError(f"{name}: shape {values.shape}, the image has {sizes} pixels in {depth} slice(s)")
    if values.shape[-2:] != (h, w):
        _, y, x = source.place.offset
        values = values[..., y : y + h, x : x + w]
    return np.broadcast_to(values, (depth, h, w))


def _stored(given: MapLike, source: OpenedImage, *, name: str) -> np.ndarray:
    if isinstance(given, (str, Path)):
        path = Path(given)
        size = ImageSize(*source.place.shape, source.name)
        if path.suffix.lower() == ".npy":
            return np.asarray(read_stored(path).values[0])
        content = read_file(path, error=DataError)
        if path.name.lower().endswith(NIFTI_ENDINGS):
            return decode_nifti(content, name=str(path), size=size).slices
        return np.asarray(decode_image(content, name=str(path), labels=True, size=size))
    if isinstance(given, torch.Tensor):
        given = given.detach().cpu().numpy()
    array = np.asarray(given)
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name}: expected a path, a Pillow image, an array or a tensor, got {type(given).__name__}")
    return array
