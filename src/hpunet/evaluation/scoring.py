"""Images as evaluation sees them, and how a model's maps of them score: for validation and for `hpunet evaluate`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int32, Integer
from torch import Tensor

from hpunet.data.augment import NO_AUGMENTATION, apply_warp, draw_warp
from hpunet.data.batch import Batch
from hpunet.data.extrapolation import NUM_UNIFORMS, hide
from hpunet.data.instance_ids import assign_ids, evaluation_table
from hpunet.data.types import Sample, SetInfo
from hpunet.metrics import (
    border_agreement,
    hidden_accuracy,
    hidden_iou,
    hidden_sample_disagreement,
    iou_rec,
    pair_ious,
)
from hpunet.models.base import SegmentationModel
from hpunet.sampling.instances import cluster, clustering_threshold, connected_parts, merge_to_background, postprocess
from hpunet.sampling.sample import Generators, LatentSource, reconstruct, sample
from hpunet.utils.keyed_random import Stream, keyed_uniform

NUM_SHOWN_SAMPLES = 8
NUM_TABLE_IDS = 4096


def fast_batch_size(device: torch.device) -> int:
    """Images that go through the network together, unless said otherwise."""
    return 8 if device.type == "cpu" else 32


def as_batch(sample: Sample) -> Batch:
    """A batch of one image."""
    return Batch(**{name: torch.from_numpy(getattr(sample, name))[None] for name in Batch.__dataclass_fields__})


def centre_crop(batch: Batch, *, crop: tuple[int, int]) -> Batch:
    """The centre of each image, this high and wide; a smaller image lies in the middle of invalid pixels."""
    index = torch.arange(len(batch.image), device=batch.image.device)
    size = (batch.image.shape[2], batch.image.shape[3])
    warp = draw_warp(
        NO_AUGMENTATION, seed=0, step=0, index=index, source_size=size, crop_size=crop, device=batch.image.device
    )
    return apply_warp(batch, warp, crop_size=crop)


def with_evaluation_ids(batch: Batch, *, keys: Sequence[str], info: SetInfo, seed: int) -> Batch:
    """Instances under one fixed mapping to ids, by the image's key; classes stay as they are."""
    if not info.has_instances:
        return batch
    table = evaluation_table(keys, seed=seed, num_random_ids=info.num_random_ids, num_instances=NUM_TABLE_IDS)
    labels = assign_ids(
        batch.labels,
        num_fixed_classes=info.num_fixed_classes,
        num_random_ids=info.num_random_ids,
        table=table.to(batch.labels.device),
    )
    return Batch(image=batch.image, labels=labels, valid=batch.valid, graders=batch.graders)


def of_first_grader(batch: Batch, maps: Integer[Tensor, "b r h w"]) -> Integer[Tensor, "b h w"]:
    """Of one map a grader, that of the first grader an image has: the truth where there can be only one."""
    first = batch.graders.int().argmax(dim=1)
    return maps[torch.arange(len(first), device=maps.device), first.to(maps.device)]


def prior_inputs(
    batch: Batch, *, places: Sequence[int], extrapolate: bool, num_classes: int
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b e h w"] | None]:
    """What the prior is given of a batch; when extrapolating, the images' numbers decide which part is hidden.

    The labels of the visible part are those of each image's first grader.
    """
    if not extrapolate:
        return batch.image, None
    index = torch.tensor(places, device=batch.image.device)
    uniform = keyed_uniform(seed=0, step=0, index=index, stream=Stream.HIDE, count=NUM_UNIFORMS)
    hidden = hide(
        image=batch.image, labels=of_first_grader(batch, batch.labels), uniform=uniform, num_classes=num_classes
    )
    return hidden.image, hidden.cond


def metric_arguments(batch: Batch, info: SetInfo) -> dict[str, Any]:
    """What every metric of samples is told beside them."""
    return {
        "labels": batch.labels,
        "num_classes": info.num_classes,
        "classes": info.stochastic_classes,
        "valid": batch.valid,
        "graders": batch.graders,
    }


def image_scores(
    *, samples: Integer[Tensor, "b s h w"], reconstructions: Integer[Tensor, "b r h w"], batch: Batch, info: SetInfo
) -> dict[str, Float64[Tensor, " b"]]:
    """What GED² and its relatives, and reconstruction IoU, are for each image, on the CPU; NaN where undefined."""
    common = metric_arguments(batch, info)
    pairs = pair_ious(samples=samples, **common)
    scores = {
        "ged2": pairs.ged2(),
        "ged2_unbiased": pairs.ged2_unbiased(),
        "hm_iou": pairs.hungarian_iou(),
        "sample_diversity": pairs.sample_diversity(),
        "iou_rec": iou_rec(reconstructions=reconstructions, **common),
    }
    return {name: torch.as_tensor(values, device="cpu") for name, values in scores.items()}


def hidden_scores(
    *,
    samples: Integer[Tensor, "b s h w"],
    reconstructions: Integer[Tensor, "b r h w"],
    visible: Bool[Tensor, "b h w"],
    batch: Batch,
    info: SetInfo,
) -> dict[str, Float64[Tensor, " b"]]:
    """How the hidden part of each image is completed, on the CPU; NaN where undefined.

    Truth and reconstruction are those of the grader whose visible labels the prior was given.
    """
    labels = of_first_grader(batch, batch.labels)
    rebuilt = of_first_grader(batch, reconstructions).unsqueeze(1)
    pixels: dict[str, Any] = {"visible": visible, "valid": batch.valid, "num_classes": info.num_classes}
    all_classes = {**pixels, "labels": labels}
    stochastic = {**all_classes, "classes": info.stochastic_classes}
    scores = {
        "hidden_iou_rec": hidden_iou(maps=rebuilt, **stochastic),
        "hidden_iou_samples": hidden_iou(maps=samples, **stochastic),
        "hidden_accuracy_rec": hidden_accuracy(maps=rebuilt, **all_classes),
        "hidden_accuracy_samples": hidden_accuracy(maps=samples, **all_classes),
        "hidden_accuracy_background": hidden_accuracy(maps=torch.zeros_like(rebuilt), **all_classes),
        "border_agreement_samples": border_agreement(maps=samples, **stochastic),
        "border_agreement_truth": border_agreement(maps=labels.unsqueeze(1), **stochastic),
        "hidden_sample_disagreement": hidden_sample_disagreement(samples=samples, **pixels),
    }
    return {name: torch.as_tensor(values, device="cpu") for name, values in scores.items()}


def true_instances(batch: Batch, info: SetInfo) -> Int32[np.ndarray, "b h w"]:
    """The instances that each image's first grader drew, 0 where there is none; `batch` has labels as stored."""
    labels = of_first_grader(batch, batch.labels).cpu().numpy()
    return np.asarray(np.maximum(labels - (info.num_fixed_classes - 1), 0), dtype=np.int32)


def instances_of(
    samples: Integer[np.ndarray, "s h w"], *, info: SetInfo, alpha: int, seed: int, connected: bool = False
) -> Int32[np.ndarray, "h w"]:
    """Instances by clustering samples, and post-processing, as the paper does on this kind of data (App. G and H).

    Beside other classes (street scenes) everything but the instances becomes background first, and thin clusters
    without neighbours vanish; where all is instances (EM) they stay. Where instances are `connected`, clusters are
    taken apart before that.
    """
    merged = merge_to_background(samples, stochastic_classes=info.stochastic_classes)
    clusters = cluster(merged, num_classes=1 + len(info.stochastic_classes), threshold=alpha, seed=seed)
    clusters = connected_parts(clusters) if connected else clusters
    return postprocess(clusters, keep_unmatched=info.num_fixed_classes == 1)


def shown_arrays(
    model: SegmentationModel,
    *,
    batch: Batch,
    image: Float[Tensor, "b c h w"],
    cond: Float[Tensor, "b e h w"] | None,
    keys: Sequence[str],
    info: SetInfo,
    num_samples: int,
    generators: Callable[[], Generators],
    truth: Int32[np.ndarray, "b h w"] | None = None,
    alpha: int | None = None,
    connected: bool = False,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """What figures draw of a few images: maps of graders, reconstructions and samples, deviations by scale.

    The arrays are those of `examples.py`; of the samples at most 8 an image are kept, deviations are over all. Where
    there are true instances (`truth`), those found by clustering all samples stand beside them, α (by default the
    number of samples), `connected` and `seed` as in `instances_of`. Where a part of the image was hidden, samples are
    meant to differ, so there are no instances to agree on.
    """
    rest: list[LatentSource] = ["mean"] * (len(model.latent_dims) - 1)
    ways: dict[str, Sequence[LatentSource]] = {
        "full": ["sample"] * (len(rest) + 1),
        "global": ["sample", *rest],
        "local": [*rest, "sample"],
    }
    arrays: dict[str, np.ndarray] = {
        "image": batch.image.float().cpu().numpy(),
        "labels": _maps(batch.labels),
        "graders": batch.graders.cpu().numpy(),
        "valid": batch.valid.cpu().numpy(),
        "keys": np.array(keys),
    }
    if cond is not None:
        arrays["visible"] = cond[:, 0].cpu().numpy() > 0
    for name, latents in ways.items():
        drawn = sample(
            model, image=image, cond=cond, num_samples=num_samples, latents=latents, generator=generators()
        )
        arrays[f"samples_{name}"] = _maps(drawn.labels[:, :NUM_SHOWN_SAMPLES])
        if name == "full" and truth is not None and cond is None:
            threshold = clustering_threshold(alpha, num_samples=num_samples)
            how: dict[str, Any] = {"info": info, "alpha": threshold, "connected": connected, "seed": seed}
            found = [instances_of(each, **how) for each in _maps(drawn.labels)]
            arrays |= {"instances": np.stack(found), "true_instances": truth}
        probability = drawn.probs[:, :, list(info.stochastic_classes)].sum(dim=2)
        arrays[f"std_{name}"] = probability.float().std(dim=1, correction=0).cpu().numpy()
    mean = sample(model, image=image, cond=cond, num_samples=1, latents="mean", return_logits=False)
    arrays["prior_mean"] = _maps(mean.labels[:, 0])
    rebuilt = reconstruct(model, image=image, labels=batch.labels.long(), cond=cond, return_logits=False)
    arrays["reconstructions"] = _maps(rebuilt.labels)
    return arrays


def _maps(labels: Tensor) -> np.ndarray:
    return labels.cpu().numpy().astype(np.uint8)
