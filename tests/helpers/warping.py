"""Random batches and warps, and a slow twin of the warp for any number of axes."""

import math
from itertools import product

import numpy as np
import torch
from scipy.interpolate import CubicSpline

from hpunet.config.settings import AugmentationSettings
from hpunet.data.batch import FIELDS, Batch
from hpunet.data.warps import NO_AUGMENTATION, Warp

COLOURS = {"saturation": (0.7, 1.4), "contrast": (0.6, 1.5), "gain": (0.8, 1.25)}
EVERYTHING = AugmentationSettings(translate=0.1, gamma=(0.7, 1.5), **COLOURS)
EVERYTHING_3D = EVERYTHING.model_copy(update={"tilt": 20.0, "scale_depth": (0.8, 1.25)})


def make_batch(
    b=3, c=1, r=2, h=20, w=16, *, depth=None, dtype=torch.float32, high=2**31 - 1, valid_share=0.9
) -> Batch:
    size = (h, w) if depth is None else (depth, h, w)
    g = torch.Generator().manual_seed(b + 10 * c + 100 * h + w)
    valid = torch.rand(b, *size, generator=g) < valid_share
    labels = torch.randint(1, high, (b, r, *size), generator=g, dtype=torch.int32) * valid.unsqueeze(1)
    image = torch.rand(b, c, *size, generator=g).to(dtype)
    return Batch(image=image, labels=labels, valid=valid, graders=torch.ones(b, r, dtype=torch.bool))


def only(**changes) -> AugmentationSettings:
    return NO_AUGMENTATION.model_copy(update=changes)


def assert_same(a: Batch, b: Batch) -> None:
    for name in FIELDS:
        x, y = getattr(a, name), getattr(b, name)
        assert x.dtype == y.dtype
        assert torch.equal(x, y), name


def brute_force(batch: Batch, warp: Warp, crop: tuple[int, ...]):
    """Every crop pixel by itself, in float64; `tie` marks pixels whose nearest source pixel is a toss-up."""
    (b, c, *source), n = batch.image.shape, len(crop)
    image, labels = np.zeros((b, c, *crop)), np.zeros((b, batch.labels.shape[1], *crop), dtype=np.int64)
    valid, tie, inside = (np.zeros((b, *crop), dtype=bool) for _ in range(3))
    for i in range(b):
        elastic = warp.displacement[i].numpy()
        for axis, side in enumerate(crop):
            share = warp.depth_share if n == 3 and axis == 0 else 1
            places = np.linspace(2 - 2 * share, 2 + 2 * share, side)
            elastic = CubicSpline(np.arange(5), elastic, axis=axis + 1, bc_type="natural")(places)
        for q in np.ndindex(*crop):
            p = warp.affine[i].numpy() @ (*q, 1) + elastic[:, *q]
            nearest = tuple(math.floor(x + 0.5) for x in p)
            tie[i, *q] = max(abs(p - nearest)) > 0.4999
            if not all(0 <= x < side for x, side in zip(nearest, source, strict=True)):
                continue
            inside[i, *q] = True
            if batch.valid[i, *nearest]:
                valid[i, *q] = True
                labels[i, :, *q] = batch.labels[i, :, *nearest]
            p = np.clip(p, 0, np.array(source) - 1)
            first = np.floor(p).astype(int)
            for ahead in product((0, 1), repeat=n):
                weight = np.prod(np.where(ahead, p - first, 1 - (p - first)))
                tap = np.minimum(first + ahead, np.array(source) - 1)
                image[i, :, *q] += weight * batch.image[i, :, *tap].numpy()
        image[i] **= warp.gamma[i].item()
        for q in np.ndindex(*crop):
            pixel = image[i, :, *q]
            grey = pixel.mean()
            pixel = 0.5 + warp.contrast[i].item() * (grey + warp.saturation[i].item() * (pixel - grey) - 0.5)
            exists = not tie[i, *q] and inside[i, *q]
            image[i, :, *q] = np.clip(pixel * warp.gain[i].numpy(), 0, 1) * exists
    return image, labels, valid, tie
