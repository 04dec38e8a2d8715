"""Samples of a run on the images of a set, seen as `hpunet evaluate` sees them; for the scripts beside this one."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hpunet.config.settings import parse_assignments
from hpunet.data.batch import Batch
from hpunet.data.open import adapt_options, open_split
from hpunet.data.types import Source
from hpunet.evaluation.examples import ClassSpread
from hpunet.evaluation.images import read_item
from hpunet.evaluation.scorer import Scorer
from hpunet.sampling.orientations import encode_orientations
from hpunet.sampling.sample import LatentSource
from hpunet.weights.load import TrainedModel, load_trained


class Drawn(NamedTuple):
    """The image as a batch of one, its samples, and the largest standard deviation of a class's probability."""

    batch: Batch
    labels: np.ndarray  # (s, h, w)
    std: np.ndarray  # (h, w)


class Drawer:
    """Draws samples of images of a set."""

    def __init__(self, trained: TrainedModel, source: Source, *, num_samples: int) -> None:
        settings = trained.settings.data
        self.source, self.info, self.latent_dims = source, trained.info, trained.model.latent_dims
        self.scorer = Scorer(
            model=trained.model,
            sampler=trained.sampler,
            device=trained.device,
            info=trained.info,
            crop=None if settings.evaluate == "whole" else settings.crop,
            num_samples=num_samples,
        )
        self.scorer.check(source)

    def draw(self, index: int, *, latents: Sequence[LatentSource] | str = "sample") -> Drawn:
        """Samples of an image; `latents` as for `hpunet.sample`."""
        item = read_item(self.source, index, self.info)
        if item.sample is None:
            raise SystemExit(f"image {index}: {item.error}")
        keys = [self.source.identities[index].key]
        batch, _ = self.scorer.prepare([item.sample], keys)
        inputs = self.scorer.inputs(batch, [index])
        features = encode_orientations(inputs.network, image=inputs.image, cond=inputs.cond, names=keys)
        how: dict[str, Any] = {"generator": self.scorer.generators(keys, seed=0), "latents": latents}
        labels, spread_out = [], ClassSpread()
        for part in self.scorer.in_parts(inputs, return_logits=True, features=features, **how):
            spread_out.add(part.probs[inputs.padding.inside])
            labels.append(part.labels[inputs.padding.inside][0].cpu().numpy())
        return Drawn(batch, np.concatenate(labels), spread_out.largest_std()[0])


def open_drawer(run: str, *, data: str, split: str, changes: Sequence[str], num_samples: int) -> Drawer:
    """A run folder or published weights, and data with their options changed by `changes` (NAME=VALUE)."""
    trained = load_trained(run)
    changed = parse_assignments(changes)
    options = adapt_options(data, kind=trained.info.kind, options=trained.settings.data.options, changes=changed)
    return Drawer(trained, open_split(data, split=split, options=options), num_samples=num_samples)
