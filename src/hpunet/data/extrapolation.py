"""The extrapolation task (Section 3.3): a part of the image is hidden, and the model has to continue it.

Of a series over time, the future is hidden: everything after a moment.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hpunet.errors import DataError
from hpunet.utils.tensors import one_hot

NUM_UNIFORMS = 5  # random numbers per image: side, shape, then extent, depth and position of the hidden part
MIN_SIDE = 4  # in smaller images there may be no whole number of pixels between a quarter and half


class Hidden(NamedTuple):
    """An image with a part hidden (0), and the conditioning of the prior.

    `cond` holds visibility and the one-hot labels of the visible part (all zero where hidden): 1 + k channels. If the
    future is hidden, one more holds the years since the last visible moment, negative in the past.
    """

    image: Float[Tensor, "b c *s"]
    visible: Bool[Tensor, " b *s"]
    cond: Float[Tensor, "b e *s"]


def _draw(uniform: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Whole numbers from low to high, both included."""
    return torch.minimum(low + (uniform * (high - low + 1)).long(), high)


def visibility(uniform: Float[Tensor, "b 5"], *, height: int, width: int) -> Bool[Tensor, "b h w"]:
    """False on a quarter to half of each image, along one of its four sides drawn at random.

    Half of the images lose a strip along the whole side (a half-plane), the others a rectangle at least half as long.
    The paper does not give the shape; these are our choices.
    """
    if min(height, width) < MIN_SIDE:
        raise DataError(f"image: {height}x{width} is too small to hide a part, expected {MIN_SIDE} pixels per side")
    side = (uniform[:, 0] * 4).long().clamp(max=3)  # top, bottom, left, right
    length, across = torch.where(side < 2, width, height), torch.where(side < 2, height, width)
    extent = torch.where(uniform[:, 1] < 0.5, length, _draw(uniform[:, 2], (length + 1) // 2, length))
    pixels = length * across
    # extent >= length / 2, hence depth <= across; extent * depth is a quarter to half of the pixels.
    depth = _draw(uniform[:, 3], -(-pixels // (4 * extent)), pixels // (2 * extent))
    start = _draw(uniform[:, 4], torch.zeros_like(length), length - extent)

    rows = torch.arange(height, device=uniform.device).view(1, -1, 1).expand(-1, -1, width)
    columns = torch.arange(width, device=uniform.device).view(1, 1, -1).expand(-1, height, -1)
    from_side = torch.cat([rows, height - 1 - rows, columns, width - 1 - columns])[side]
    along = torch.cat([columns, columns, rows, rows])[side]
    depth, start, extent = (value.view(-1, 1, 1) for value in (depth, start, extent))
    return (from_side >= depth) | (along < start) | (along >= start + extent)


def hide(
    *, image: Float[Tensor, "b c *s"], labels: Int[Tensor, " b *s"], uniform: Float[Tensor, "b 5"], num_classes: int
) -> Hidden:
    """Hide a part of each image, chosen by `uniform`: `NUM_UNIFORMS` numbers in [0, 1) per image.

    Of a volume, it is the same part of all slices.
    The posterior sees the masked image and the full labels; the prior the masked image and `cond`.
    """
    visible = visibility(uniform, height=image.shape[-2], width=image.shape[-1])
    if image.ndim == 5:
        visible = visible.unsqueeze(1).expand(-1, image.shape[2], -1, -1)
    return conceal(image=image, labels=labels, visible=visible, num_classes=num_classes)


def conceal(
    *, image: Float[Tensor, "b c *s"], labels: Int[Tensor, " b *s"], visible: Bool[Tensor, " b *s"], num_classes: int
) -> Hidden:
    """Hide all but the visible part of each image."""
    shown = visible.unsqueeze(1)
    cond = torch.cat([shown, one_hot(labels, num_classes) & shown], dim=1).to(image.dtype)
    # Not a product, in which a hidden NaN would stay NaN.
    return Hidden(image=torch.where(shown, image, 0), visible=visible, cond=cond)


def num_future(moments: int) -> int:
    """How many of the last moments evaluation hides: a third, rounded down, but at least one."""
    return max(1, moments // 3)


def hide_future(
    *,
    image: Float[Tensor, "b c d h w"],
    labels: Int[Tensor, "b d h w"],
    times: Float[Tensor, "b t"] | None,
    num_classes: int,
    uniform: Float[Tensor, "b n"] | None = None,
) -> Hidden:
    """Hide all after a moment, of which at least one image stays and at least one is hidden.

    It is chosen by the first number in [0, 1) of `uniform`, each possible moment equally likely; without, the last
    `num_future` moments are hidden. Without `times`, moments are a year apart.
    """
    b, d = image.shape[0], image.shape[2]
    if d < 2:
        raise DataError("image: a series needs at least two moments to hide the future")
    if times is None:
        times = torch.arange(d, dtype=torch.float32, device=image.device).expand(b, -1)
    if times.shape[1] != d:
        raise DataError(f"times: {times.shape[1]} moments, the images have {d}; crop as many as the series have")
    if uniform is None:
        present = torch.full((b,), d - num_future(d) - 1, device=image.device)
    else:
        present = (uniform[:, 0] * (d - 1)).long().clamp(max=d - 2)
    visible = torch.arange(d, device=image.device) <= present.unsqueeze(1)
    return conceal_future(image=image, labels=labels, visible=visible, times=times, num_classes=num_classes)


def conceal_future(
    *,
    image: Float[Tensor, "b c d h w"],
    labels: Int[Tensor, "b d h w"],
    visible: Bool[Tensor, "b d"],
    times: Float[Tensor, "b d"],
    num_classes: int,
) -> Hidden:
    """Hide all but the visible moments, which come first; the times are known of all."""
    shown = visible[:, :, None, None].expand_as(labels)
    hidden = conceal(image=image, labels=labels, visible=shown, num_classes=num_classes)
    since = times - times.gather(1, visible.sum(dim=1, keepdim=True) - 1)
    channel = since[:, None, :, None, None].to(image.dtype).expand(-1, -1, -1, *image.shape[3:])
    return hidden._replace(cond=torch.cat([hidden.cond, channel], dim=1))
