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
from hpunet.utils.plane_layout import AXIAL, PLANES, plane_array, plane_indices, plane_of, shown_box, shown_position

NUM_SHOWN_SAMPLES = 8
MAX_SIDE = 512  # of whole images in figures, in pixels
_NOT_MAPS = ("graders", "keys", "hardness", "position")


def example_arrays(scorer: Scorer, source: Source, indices: Sequence[int]) -> dict[str, np.ndarray]:
    """The arrays of `reports/examples.py` for the images that can be read, drawn with the first seed.

    At most 8 samples per image are kept; standard deviations are over all. Of large whole images every n-th pixel is
    kept, and images of several sizes are padded with invalid pixels to the largest. Of volumes three planes are kept.
    """
    items = [item for index in indices if (item := read_item(source, index, scorer.info)).sample is not None]
    groups = [_arrays_of(scorer, source, group) for group in _drawn_together(scorer, items)]
    if not groups:
        return {}
    valid = [name for plane in PLANES if (name := plane_array(plane, "valid")) in groups[0]]
    largest = {plane_of(name): np.max([g[name].shape[1:] for g in groups], axis=0).tolist() for name in valid}
    groups = [{name: _padded(name, g[name], to=largest[plane_of(name)]) for name in g} for g in groups]
    info = scorer.info
    names = [*info.fixed_classes, *(f"id {i + 1}" for i in range(info.num_random_ids))]
    classes = {"stochastic_classes": np.array(info.stochastic_classes), "class_names": np.array(names)}
    arrays = {name: np.concatenate([group[name] for group in groups]) for name in groups[0]} | classes
    if info.ndim == 3:
        arrays["spacing"] = np.array(source.info.spacing or (1.0, 1.0, 1.0))
    return arrays


def _drawn_together(scorer: Scorer, items: Sequence[Item]) -> list[list[Item]]:
    """As many images as logits fit: crops together, whole images and volumes one by one."""
    if scorer.crop is None or scorer.info.ndim == 3:
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
    parts: dict[str, Any] = {AXIAL: np.s_[..., ::step, ::step]}
    arrays: dict[str, np.ndarray] = {}

    def keep(name: str, maps: np.ndarray | Tensor) -> None:
        """What figures show of maps (…, *s)."""
        for plane, part in parts.items():
            shown = maps[part]
            arrays[plane_array(plane, name)] = shown.cpu().numpy() if isinstance(shown, Tensor) else shown

    if scorer.info.ndim == 3:  # drawn one by one
        position = shown_position(batch.labels[0].numpy())
        box = shown_box(position, batch.valid.shape[1:])
        parts = plane_indices(position, box)
        arrays["position"] = np.array([[at - part.start for at, part in zip(position, box, strict=True)]])
    keep("image", batch.image.float())
    keep("labels", batch.labels.to(torch.uint8))
    arrays["graders"] = batch.graders.numpy()
    keep("valid", batch.valid)
    arrays["keys"] = np.array(keys)
    if inputs.cond is not None:
        keep("visible", (inputs.cond[:, 0] > 0)[padding.inside])
    # A temperature of 0 is the mean. On fused kernels all ways are then one CUDA graph.
    num_scales = len(model.latent_dims)
    alone = np.eye(num_scales).tolist()
    kept_as = {"samples_full": 0, "samples_global": 1, "samples_local": num_scales}
    std: list[dict[str, np.ndarray]] = []
    features = encode_orientations(model, image=inputs.image, cond=inputs.cond, names=keys)
    for way, temperature in enumerate([[1.0] * num_scales, *alone]):
        how: dict[str, Any] = {"generator": scorer.generators(keys, seed=scorer.seed), "temperature": temperature}
        maps, spread_out = [], {plane: ClassSpread() for plane in parts}
        for drawn_part in scorer.in_parts(inputs, features=features, return_logits=True, **how):
            maps.append(drawn_part.labels[padding.inside].cpu().numpy().astype(np.uint8))
            probs = drawn_part.probs[padding.inside]
            for plane, part in parts.items():
                spread_out[plane].add(probs[part])
        drawn = np.concatenate(maps, axis=1)
        for name in (name for name, kept_way in kept_as.items() if kept_way == way):
            keep(name, drawn[:, :NUM_SHOWN_SAMPLES])
        std.append({plane: each.largest_std() for plane, each in spread_out.items()})
        if way == 0 and truth is not None:
            found = np.stack([instances_of(samples, **scorer.clustering._asdict()) for samples in drawn])
            error = rand_error(prediction=found, truth=truth, valid=batch.valid.numpy())
            keep("instances", found)
            keep("true_instances", truth)
            arrays["hardness"] = np.asarray(error)
    how = {"image": inputs.image, "features": features, "return_logits": False}
    arrays |= {plane_array(plane, "std"): np.stack([each[plane] for each in std], axis=1) for plane in parts}
    prior_mean = sample(model, num_samples=1, latents="mean", **how).labels[:, 0]
    keep("prior_mean", prior_mean[padding.inside].to(torch.uint8))
    keep("reconstructions", reconstruct(model, labels=inputs.labels, **how).labels[padding.inside].to(torch.uint8))
    return arrays


class ClassSpread:
    """The standard deviation of each class's probability over samples (b s k *s) that come in parts."""

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
        """The largest over the classes, (b, *s): where the most any class comes and goes between samples."""
        mean = torch.as_tensor(self._sum / self._count)
        variance = torch.as_tensor(self._squares / self._count) - mean.square()
        return variance.clamp_min(0).sqrt().amax(dim=1).float().cpu().numpy()


def _padded(name: str, maps: np.ndarray, *, to: Sequence[int]) -> np.ndarray:
    """Maps with zeros below and to the right; other arrays as they are."""
    if name in _NOT_MAPS or maps.shape[-len(to) :] == tuple(to):
        return maps
    missing = [(0, wanted - side) for wanted, side in zip(to, maps.shape[-len(to) :], strict=True)]
    return np.pad(maps, [(0, 0)] * (maps.ndim - len(to)) + missing)
