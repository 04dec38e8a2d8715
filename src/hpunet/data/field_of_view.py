"""What a model was trained on, measured when training starts, and whether another image is like it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float32

from hpunet.data.types import SetInfo, Source
from hpunet.utils.pictures import spread

_NUM_MEASURED = {2: 50, 3: 10}  # images, volumes
_SIMILAR_SIZE = 1.5  # as a factor
_SIMILAR_SPACING = {2: 1.25, 3: 1.5}  # images, volumes
_LEAST_OVERLAP = 0.5  # of the range of values that training images span


def measured(source: Source) -> SetInfo:
    """The description of a set with the size of its images and the range of their values."""
    lows, highs, sizes = [], [], []
    for index in spread(_NUM_MEASURED[source.info.ndim], of=len(source)):
        sample = source[index]
        pixels = sample.image[:, sample.valid]
        sizes.append(sample.valid.shape)
        if pixels.size:
            lows.append(float(pixels.min()))
            highs.append(float(pixels.max()))
    size = tuple(int(side) for side in np.median(sizes, axis=0))
    low, high = (round(float(value), 4) for value in (np.quantile(lows, 0.95), np.quantile(highs, 0.05)))
    return replace(source.info, image_size=size, value_range=(low, high) if low < high else None)


def is_larger(size: tuple[int, ...], *, info: SetInfo) -> bool:
    """Whether an image is clearly larger than those of training, so that a part of it should be cut out."""
    sides = zip(size, info.image_size or size, strict=True)
    return any(side > _SIMILAR_SIZE * usual for side, usual in sides)


def differences(
    image: Float32[np.ndarray, " c *s"],
    *,
    info: SetInfo,
    crop: Sequence[int],
    spacing: tuple[float, ...] | None = None,
) -> list[str]:
    """Sentences that say how an image in [0, 1] differs from those that `info` describes; `crop` is that of training.

    An image may be as small as the crop, and as large as the training images. Both are volumes, or neither is.
    """
    found, size = [], image.shape[1:]
    if len(size) != info.ndim:
        return [f"The image has {len(size)} axes of positions, training images had {info.ndim}."]
    kind, dots, how = ("volume", "voxels", "") if info.ndim == 3 else ("image", "pixels", " (at=(x, y), --at X,Y)")
    if info.image_size is not None:
        least = [min(each) for each in zip(crop, info.image_size, strict=True)]
        small = any(_SIMILAR_SIZE * side < usual for side, usual in zip(size, least, strict=True))
        its, usual = ("×".join(map(str, sides)) for sides in (size, info.image_size))
        sizes = f"The {kind} has {its} {dots}, training {kind}s had {usual}"
        if is_larger(size, info=info):
            found.append(f"{sizes}; cut it around the object{how} or scale it down.")
        elif small:
            found.append(f"{sizes}; it needs more of the object's surroundings.")
    if info.value_range is not None:
        low, high = info.value_range
        its_low, its_high = float(image.min()), float(image.max())
        if min(high, its_high) - max(low, its_low) < _LEAST_OVERLAP * (high - low):
            its, usual = f"{its_low:.2f} to {its_high:.2f}", f"{low:.2f} to {high:.2f}"
            found.append(f"Scaled values go from {its}, in training at least from {usual}; try the window auto.")
    if info.spacing is not None and spacing is not None:
        pairs = list(zip(spacing[-info.ndim :], info.spacing, strict=True))
        most = _SIMILAR_SPACING[info.ndim]
        if any(not 1 / most < own / usual < most for own, usual in pairs):
            its, usual = ("×".join(f"{each:.3g}" for each in numbers) for numbers in zip(*pairs, strict=True))
            dots = dots.capitalize()
            what = "resample the volume" if info.ndim == 3 else "spacing resamples the image"
            found.append(f"{dots} are {its} mm apart, in training {usual} mm; {what}.")
    return found
