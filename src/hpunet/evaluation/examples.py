"""Maps of a few images for figures: graders, samples, reconstructions, and deviations by latent scale."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from hpunet.data.types import Source
from hpunet.evaluation.images import read_item
from hpunet.evaluation.scorer import Scorer
from hpunet.evaluation.scores import instances_of
from hpunet.sampling.sample import LatentSource, reconstruct, sample

NUM_SHOWN_SAMPLES = 8


def example_arrays(scorer: Scorer, source: Source, indices: Sequence[int]) -> dict[str, np.ndarray]:
    """The arrays of `reports/examples.py` for the images that can be read, drawn with the first seed.

    At most 8 samples per image are kept; deviations are over all.
    """
    # One at a time: the logits of all would not fit.
    singles = [arrays for index in indices if (arrays := _arrays_of(scorer, source, index)) is not None]
    return {name: np.concatenate([arrays[name] for arrays in singles]) for name in (singles[0] if singles else ())}


def _arrays_of(scorer: Scorer, source: Source, index: int) -> dict[str, np.ndarray] | None:
    item, key, model = read_item(source, index, scorer.info), source.identities[index].key, scorer.network
    if item.sample is None:
        return None
    batch, truth = scorer.prepare([item.sample], [key])
    image, cond = scorer.prior_inputs(batch, [index])
    arrays: dict[str, np.ndarray] = {
        "image": batch.image.float().numpy(),
        "labels": _maps(batch.labels),
        "graders": batch.graders.numpy(),
        "valid": batch.valid.numpy(),
        "keys": np.array([key]),
    }
    if cond is not None:
        arrays["visible"] = cond[:, 0].cpu().numpy() > 0
    rest: list[LatentSource] = ["mean"] * (len(model.latent_dims) - 1)
    every: list[LatentSource] = ["sample"] * len(model.latent_dims)
    ways: dict[str, Sequence[LatentSource]] = {"full": every, "global": ["sample", *rest], "local": [*rest, "sample"]}
    for name, latents in ways.items():
        generator = scorer.generators([key], seed=scorer.seed)
        drawn = sample(
            model, image=image, cond=cond, num_samples=scorer.num_samples, latents=latents, generator=generator
        )
        maps = _maps(drawn.labels)
        arrays[f"samples_{name}"] = maps[:, :NUM_SHOWN_SAMPLES]
        if name == "full" and truth is not None:
            found = instances_of(
                maps[0], info=scorer.info, alpha=scorer.threshold, connected=scorer.connected, seed=scorer.seed
            )
            arrays |= {"instances": found[None], "true_instances": truth}
        probability = drawn.probs[:, :, list(scorer.info.stochastic_classes)].sum(dim=2)
        arrays[f"std_{name}"] = probability.float().std(dim=1, correction=0).cpu().numpy()
    mean = sample(model, image=image, cond=cond, num_samples=1, latents="mean", return_logits=False)
    arrays["prior_mean"] = _maps(mean.labels[:, 0])
    labels = batch.labels.to(scorer.device).long()
    rebuilt = reconstruct(model, image=image, labels=labels, cond=cond, return_logits=False)
    arrays["reconstructions"] = _maps(rebuilt.labels)
    return arrays


def _maps(labels: Tensor) -> np.ndarray:
    return labels.cpu().numpy().astype(np.uint8)
