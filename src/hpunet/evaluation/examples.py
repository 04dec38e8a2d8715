"""Maps of a few images for figures: graders, samples, reconstructions, and deviations by latent scale."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpunet.data.types import Source
from hpunet.evaluation.images import Item, read_item
from hpunet.evaluation.scorer import LOGITS_AT_ONCE, Scorer
from hpunet.evaluation.scores import instances_of
from hpunet.metrics import rand_error
from hpunet.sampling.orientations import encode_orientations
from hpunet.sampling.sample import reconstruct, sample

NUM_SHOWN_SAMPLES = 8
MAX_SIDE = 512  # of whole images in figures, in pixels


def example_arrays(scorer: Scorer, source: Source, indices: Sequence[int]) -> dict[str, np.ndarray]:
    """The arrays of `reports/examples.py` for the images that can be read, drawn with the first seed.

    At most 8 samples per image are kept; standard deviations are over all. Of large whole images every n-th pixel is
    kept, and images of several sizes are padded with invalid pixels to the largest.
    """
    items = [item for index in indices if (item := read_item(source, index, scorer.info)).sample is not None]
    groups = [_arrays_of(scorer, source, group) for group in _drawn_together(scorer, items)]
    if len({arrays["valid"].shape[1:] for arrays in groups}) > 1:
        largest = np.max([arrays["valid"].shape[1:] for arrays in groups], axis=0).tolist()
        groups = [{name: _padded(name, maps, to=largest) for name, maps in arrays.items()} for arrays in groups]
    if not groups:
        return {}
    info = scorer.info
    names = [*info.fixed_classes, *(f"id {i + 1}" for i in range(info.num_random_ids))]
    classes = {"stochastic_classes": np.array(info.stochastic_classes), "class_names": np.array(names)}
    return {name: np.concatenate([arrays[name] for arrays in groups]) for name in groups[0]} | classes


def _drawn_together(scorer: Scorer, items: Sequence[Item]) -> list[list[Item]]:
    """As many images as logits fit: crops together, whole images one by one."""
    if scorer.crop is None:
        return [[item] for item in items]
    logits = scorer.num_samples * scorer.info.num_classes * math.prod(scorer.crop)
    size = max(1, LOGITS_AT_ONCE // logits)
    return [list(items[i : i + size]) for i in range(0, len(items), size)]


def _arrays_of(scorer: Scorer, source: Source, items: Sequence[Item]) -> dict[str, np.ndarray]:
    keys, indices = [source.identities[item.number].key for item in items], [item.number for item in items]
    batch, truth = scorer.prepare([item.sample for item in items if item.sample is not None], keys)
    inputs = scorer.inputs(batch, indices)
    model, padding = inputs.network, inputs.padding
    step = 1 if scorer.crop is not None else -(-max(batch.valid.shape[1:]) // MAX_SIDE)
    thinned = np.s_[..., ::step, ::step]

    def kept(maps: Tensor) -> np.ndarray:
        return maps[padding.inside][thinned].cpu().numpy().astype(np.uint8)

    arrays: dict[str, np.ndarray] = {
        "image": batch.image.float().numpy()[thinned],
        "labels": batch.labels.numpy().astype(np.uint8)[thinned],
        "graders": batch.graders.numpy(),
        "valid": batch.valid.numpy()[thinned],
        "keys": np.array(keys),
    }
    if inputs.cond is not None:
        arrays["visible"] = kept(inputs.cond[:, 0] > 0) > 0
    # A temperature of 0 is the mean. On fused kernels all ways are then one CUDA graph.
    num_scales = len(model.latent_dims)
    alone = np.eye(num_scales).tolist()
    kept_as = {"samples_full": 0, "samples_global": 1, "samples_local": num_scales}
    std = []
    features = encode_orientations(model, image=inputs.image, cond=inputs.cond, names=keys)
    for way, temperature in enumerate([[1.0] * num_scales, *alone]):
        how: dict[str, Any] = {"generator": scorer.generators(keys, seed=scorer.seed), "temperature": temperature}
        maps, spread_out = [], ClassSpread()
        for part in scorer.in_parts(inputs, features=features, return_logits=True, **how):
            maps.append(part.labels[padding.inside].cpu().numpy().astype(np.uint8))
            spread_out.add(part.probs[padding.inside][thinned])
        drawn = np.concatenate(maps, axis=1)
        arrays |= {name: drawn[:, :NUM_SHOWN_SAMPLES][thinned] for name, kept in kept_as.items() if kept == way}
        std.append(spread_out.largest_std())
        if way == 0 and truth is not None:
            found = np.stack([instances_of(samples, **scorer.clustering._asdict()) for samples in drawn])
            error = rand_error(prediction=found, truth=truth, valid=batch.valid.numpy())
            arrays |= {"instances": found[thinned], "true_instances": truth[thinned], "hardness": np.asarray(error)}
    how = {"image": inputs.image, "features": features, "return_logits": False}
    arrays["std"] = np.stack(std, axis=1)
    arrays["prior_mean"] = kept(sample(model, num_samples=1, latents="mean", **how).labels[:, 0])
    arrays["reconstructions"] = kept(reconstruct(model, labels=inputs.labels, **how).labels)
    return arrays


class ClassSpread:
    """The standard deviation of each class's probability over samples (b s k h w) that come in parts."""

    def __init__(self) -> None:
        self._count = 0
        self._sum: Tensor | float = 0.0
        self._squares: Tensor | float = 0.0

    def add(self, probs: Tensor) -> None:
        """Take further samples."""
        for of_sample in probs.unbind(dim=1):
            exact = of_sample.double()
            self._count, self._sum, self._squares = self._count + 1, self._sum + exact, self._squares + exact.square()

    def largest_std(self) -> np.ndarray:
        """The largest over the classes, (b, h, w): where the most any class comes and goes between samples."""
        mean = torch.as_tensor(self._sum / self._count)
        variance = torch.as_tensor(self._squares / self._count) - mean.square()
        return variance.clamp_min(0).sqrt().amax(dim=1).float().cpu().numpy()


def _padded(name: str, maps: np.ndarray, *, to: Sequence[int]) -> np.ndarray:
    """Maps with zeros below and to the right, and after the last slice; other arrays as they are."""
    if name in ("graders", "keys", "hardness"):
        return maps
    missing = [(0, wanted - side) for wanted, side in zip(to, maps.shape[-len(to) :], strict=True)]
    return np.pad(maps, [(0, 0)] * (maps.ndim - len(to)) + missing)
