"""The legend of dimensions, and checks of images and labels at the public API.

Legend, for every shape annotation of the package:

    b  images in a batch          k  classes             *s  positions: (h, w) of images, (d, h, w) of volumes
    r  graders per image          c  input channels      z   channels of a latent scale
    s  samples (hypotheses)       e  extra conditioning channels of the prior

Scale 0 is the coarsest, as in the paper. Labels are integer maps. Images are float and scaled to [0, 1]: the first
residual branch applies a ReLU to the raw image.
"""

import hashlib
import warnings
from collections.abc import Iterable
from math import inf

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from hpunet.errors import DataError


def values_can_be_read(tensor: Tensor) -> bool:
    """False while a graph is traced or captured."""
    if torch.compiler.is_compiling() or tensor.is_meta:
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


MAX_PIXEL = 100.0  # A larger pixel shows that the image was not scaled
NEGATIVE_PIXEL = -0.5  # a smaller one, that it was scaled to -1 to 1 or normalised
AXES = ("depth", "height", "width")
PREDICTOR = "hpunet.load(NAME)(image) takes arrays and files as they are"


def by(size: Iterable[int]) -> str:
    """A size in words: 32x128x128."""
    return "x".join(map(str, size))


def in_words(multiples: tuple[int, ...]) -> str:
    """What sizes are multiples of: one number, if it is the same for all axes."""
    return by(multiples if len(set(multiples)) > 1 else multiples[:1])


def check_is_tensor(value: object, *, name: str) -> None:
    """Raise a `DataError` for NumPy arrays and the like."""
    if not isinstance(value, Tensor):
        kind = type(value)
        got = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        raise DataError(f"{name}: expected a torch tensor, got {got}; convert it by torch.as_tensor, or {PREDICTOR}")


def check_image(
    image: Tensor, *, channels: int, multiples: tuple[int, ...] = (1, 1), name: str = "image", values: bool = True
) -> None:
    """Raise a `DataError` unless `image` is a finite float tensor (b, channels, *s) of usable size.

    Along each axis, the size must be a multiple of that in `multiples`. Unscaled bytes, 16-bit numbers and Hounsfield
    units are refused, and values from -1 to 1 warned of; `values=False` skips these checks, which on a GPU wait for
    the device.
    """
    check_is_tensor(image, name=name)
    axes = AXES[-len(multiples) :]
    if image.ndim != 2 + len(axes) or not image.is_floating_point():
        got = f"{image.dtype} of shape {tuple(image.shape)}"
        wanted = f"a float tensor (batch, channels, {', '.join(axes)})"
        raise DataError(f"{name}: expected {wanted}, got {got}; {PREDICTOR}")
    b, c, *size = image.shape
    if b == 0:
        raise DataError(f"{name}: the batch is empty, expected at least one image")
    if c != channels:
        raise DataError(f"{name}: expected {channels} channels, got {c} (shape {tuple(image.shape)})")
    if any(side == 0 or side % multiple for side, multiple in zip(size, multiples, strict=True)):
        up = [max(1, -(-side // multiple)) * multiple for side, multiple in zip(size, multiples, strict=True)]
        sides = f"{', '.join(axes[:-1])} and {axes[-1]}"
        words = f"{sides} must be multiples of {in_words(multiples)}, got {by(size)}; pad to {by(up)}"
        raise DataError(f"{name}: {words}, or {PREDICTOR}")
    if not values or not values_can_be_read(image):
        return
    low, high = torch.stack(image.detach().aminmax()).tolist()
    if not (-inf < low and high < inf):
        count = int((~torch.isfinite(image)).sum())
        raise DataError(
            f"{name}: {count} of {image.numel()} values are NaN or infinite; torch.nan_to_num replaces them"
        )
    if max(-low, high) > MAX_PIXEL:
        got = f"{low:g} to {high:g}"
        how = f"divide bytes by 255, scale Hounsfield units as in training, or {PREDICTOR}"
        raise DataError(f"{name}: expected values from 0 to 1, got {got}; {how}")
    if low <= NEGATIVE_PIXEL:
        words = f"{name}: values from {low:g} to {high:g}, models made by hpunet take 0 to 1; {PREDICTOR}"
        warnings.warn(words, stacklevel=2)


def check_labels(
    labels: Tensor, *, image: Tensor, num_classes: int, name: str = "labels", values: bool = True
) -> None:
    """Raise a `DataError` unless `labels` is an integer map (b, *s) of the image's size with valid classes."""
    check_is_tensor(labels, name=name)
    expected = (image.shape[0], *image.shape[2:])
    if labels.is_floating_point() or labels.is_complex() or tuple(labels.shape) != expected:
        raise DataError(
            f"{name}: expected an integer tensor of shape {expected} to go with the image, "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if values and values_can_be_read(labels) and labels.dtype != torch.bool:
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= num_classes:
            raise DataError(f"{name}: values must lie in 0...{num_classes - 1}, found {low}...{high}")


def one_hot(labels: Int[Tensor, " b *s"] | Bool[Tensor, " b *s"], num_classes: int) -> Tensor:
    """Boolean one-hot planes (b, k, *s) of a label map."""
    classes = torch.arange(num_classes, device=labels.device)
    return labels.unsqueeze(1) == classes.view(1, -1, *[1] * (labels.ndim - 1))


def hash_tensors(named: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 of tensors in this order: names, types, shapes and values."""
    total = hashlib.sha256()
    for name, tensor in named:
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
