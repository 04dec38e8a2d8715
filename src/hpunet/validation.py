"""Validation during training: the paper's metrics on a fixed subset, and pictures of the same few images.

What the report page draws later is saved here as arrays, so that drawing needs neither the model nor the data.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from hpunet.batch import Batch
from hpunet.config import Settings
from hpunet.data.augment import NO_AUGMENTATION, apply_warp, draw_warp
from hpunet.data.base import SetInfo
from hpunet.data.extrapolation import NUM_UNIFORMS, hide
from hpunet.data.instance_ids import assign_ids, evaluation_table
from hpunet.data.packs import Pack
from hpunet.distributed import rank, summed, world_size
from hpunet.instances import cluster, merge_to_background, postprocess
from hpunet.logs import Logger
from hpunet.metrics import iou_rec, pair_ious, rand_error
from hpunet.noise import Stream, keyed_uniform
from hpunet.pictures import grey_or_colour, overlay, save_picture, sheet
from hpunet.sampling import HowToTake, reconstruct, sample

NUM_SHOWN, NUM_SHOWN_SAMPLES = 6, 8
IMAGES_AT_ONCE = 8
"""Images that are scored together, by one process and with noise of their own: the score does not depend on how many
processes share the work, nor on the batch size."""
NUM_TABLE_IDS = 4096
METRICS = ("ged2", "hm_iou", "iou_rec")
_LOWER_IS_BETTER = ("ged2",)


def centre_crops(pack: Pack, indices: Sequence[int], *, crop: tuple[int, int]) -> Batch:
    """Images cut out at their centres, with labels as they are stored: instances are still instances."""
    if len({pack.sizes[i] for i in indices}) > 1:  # each at its own centre, whatever its neighbours
        singles = [centre_crops(pack, [i], crop=crop) for i in indices]
        return Batch(**{name: torch.cat([getattr(s, name) for s in singles]) for name in vars(singles[0])})
    batch = pack.batch(torch.tensor(indices))
    index = torch.tensor(indices, device=batch.image.device)
    size = (batch.image.shape[2], batch.image.shape[3])
    warp = draw_warp(
        NO_AUGMENTATION, seed=0, step=0, index=index, source_size=size, crop_size=crop, device=batch.image.device
    )
    return apply_warp(batch, warp, crop_size=crop)


def evaluation_batch(pack: Pack, indices: Sequence[int], *, crop: tuple[int, int], seed: int) -> Batch:
    """Images as evaluation sees them: the centre crop, and instances under one fixed mapping to ids an image."""
    batch = centre_crops(pack, indices, crop=crop)
    if not pack.info.has_instances:
        return batch
    keys = [pack.identities[i].key for i in indices]
    table = evaluation_table(keys, seed=seed, num_random_ids=pack.info.num_random_ids, num_instances=NUM_TABLE_IDS)
    labels = assign_ids(
        batch.labels,
        num_fixed_classes=pack.info.num_fixed_classes,
        num_random_ids=pack.info.num_random_ids,
        table=table.to(batch.labels.device),
    )
    return Batch(image=batch.image, labels=labels, valid=batch.valid, graders=batch.graders)


def clustered(
    samples: Integer[np.ndarray, "b s h w"], *, info: SetInfo, valid: Bool[np.ndarray, "b h w"], truth: Batch
) -> dict[str, np.ndarray]:
    """Instances from samples as in App. G and H, beside the true ones (`truth`: stored labels) and the Rand error.

    All but the stochastic classes become background first. α, the threshold, is the number of samples, as with the
    paper's 16 and 32. The truth is that of the image's first grader. Arrays as in `examples.py`.
    """
    ids = merge_to_background(samples.reshape(-1, *samples.shape[2:]), stochastic_classes=info.stochastic_classes)
    clusters = [
        postprocess(
            cluster(maps, num_classes=1 + len(info.stochastic_classes), threshold=len(maps), seed=0),
            keep_unmatched=info.num_fixed_classes == 1,  # as on SNEMI3D; with other classes as on Cityscapes
        )
        for maps in ids.reshape(samples.shape)
    ]
    first = truth.graders.int().argmax(dim=1)
    drawn = truth.labels[torch.arange(len(first)), first].cpu().numpy()
    arrays = {
        "true_instances": (drawn - (info.num_fixed_classes - 1)).clip(min=0).astype(np.int32),
        "instances": np.stack(clusters),
    }
    error = rand_error(prediction=arrays["instances"], truth=arrays["true_instances"], valid=valid)
    return arrays | {"hardness": np.asarray(error), "hardness_metric": np.array("rand_error")}


def image_scores(*, samples: Tensor, reconstructions: Tensor, batch: Batch, info: SetInfo) -> dict[str, Tensor]:
    """GED², matched IoU and reconstruction IoU of each image, on the CPU."""
    common: dict[str, Any] = {
        "labels": batch.labels,
        "num_classes": info.num_classes,
        "classes": info.stochastic_classes,
        "valid": batch.valid,
        "graders": batch.graders,
    }
    pairs = pair_ious(samples=samples, **common)
    rebuilt = iou_rec(reconstructions=reconstructions, **common)
    scores = {"ged2": pairs.ged2(), "hm_iou": pairs.hungarian_iou(), "iou_rec": rebuilt}
    return {name: torch.as_tensor(values, device="cpu") for name, values in scores.items()}


class Validation:
    """A fixed subset of the validation images, spread evenly over it and shared out over the processes."""

    def __init__(self, model: Any, *, pack: Pack, settings: Settings, device: torch.device, run: Path) -> None:
        self.model, self.pack, self.settings, self.device, self.run = model, pack, settings, device, run
        count = min(settings.watch.validate_images, len(pack))
        self.indices = np.linspace(0, len(pack) - 1, count).round().astype(int).tolist()

    def is_better(self, numbers: Mapping[str, float], *, than: float | None) -> bool:
        """Whether the deciding metric has improved; the first number there is has, NaN never."""
        metric = self.settings.watch.best
        if than is None:
            return math.isfinite(numbers[metric])
        return numbers[metric] < than if metric in _LOWER_IS_BETTER else numbers[metric] > than

    def run_at(self, step: int, loggers: Sequence[Logger], *, averaged: Sequence[Tensor]) -> dict[str, float]:
        """Score the model, with its averaged weights where there are any; log, draw and save what it shows."""
        with swapped(self.model, averaged):
            numbers = self._score()
            if rank() == 0:
                for logger in loggers:
                    logger.numbers(step, {f"val_{name}": value for name, value in numbers.items()})
                self._show(step, loggers)
        return numbers

    def _score(self) -> dict[str, float]:
        totals = torch.zeros(len(METRICS) + 1, dtype=torch.float64, device=self.device)
        starts = range(0, len(self.indices), IMAGES_AT_ONCE)
        for start in starts[rank() :: world_size()]:
            chosen = self.indices[start : start + IMAGES_AT_ONCE]
            batch, image, cond = self._inputs(chosen)
            drawn = sample(
                self.model,
                image=image,
                cond=cond,
                num_samples=self.settings.watch.validate_samples,
                generator=torch.Generator().manual_seed(start),
                return_logits=False,
            )
            rebuilt = reconstruct(self.model, image=image, labels=batch.labels.long(), cond=cond, return_logits=False)
            scores = image_scores(
                samples=drawn.labels, reconstructions=rebuilt.labels, batch=batch, info=self.pack.info
            )
            totals[:-1] += torch.stack([scores[name].sum() for name in METRICS]).to(self.device)
            totals[-1] += len(chosen)
        totals = summed(totals)
        return {name: float(totals[i] / totals[-1]) for i, name in enumerate(METRICS)}

    def _inputs(self, indices: Sequence[int]) -> tuple[Batch, Tensor, Tensor | None]:
        """A batch, and what the prior is given of it: image, and visibility and visible labels (`Hidden.cond`)."""
        batch = evaluation_batch(self.pack, indices, crop=self.settings.data.crop, seed=self.settings.seed)
        batch = Batch(**{name: value.to(self.device) for name, value in vars(batch).items()})
        if not self.settings.data.extrapolate:
            return batch, batch.image, None
        places = torch.tensor(indices, device=self.device)
        uniform = keyed_uniform(seed=0, step=0, index=places, stream=Stream.HIDE, count=NUM_UNIFORMS)
        hidden = hide(
            image=batch.image, labels=batch.labels[:, 0], uniform=uniform, num_classes=self.pack.info.num_classes
        )
        return batch, hidden.image, hidden.cond

    def _show(self, step: int, loggers: Sequence[Logger]) -> None:
        """A sheet of samples, and the arrays behind it and the figures (see `examples.py`)."""
        info = self.pack.info
        chosen = self.indices[:: max(1, len(self.indices) // NUM_SHOWN)][:NUM_SHOWN]
        batch, image, cond = self._inputs(chosen)
        rest: list[HowToTake] = ["mean"] * (len(self.model.latent_dims) - 1)
        ways: dict[str, Sequence[HowToTake]] = {
            "full": [*rest, "sample"] if not rest else ["sample"] * (len(rest) + 1),
            "global": ["sample", *rest],
            "local": [*rest, "sample"],
        }
        arrays: dict[str, np.ndarray] = {
            "image": batch.image.float().cpu().numpy(),
            "labels": batch.labels.cpu().numpy().astype(np.uint8),
            "graders": batch.graders.cpu().numpy(),
            "valid": batch.valid.cpu().numpy(),
            "keys": np.array([self.pack.identities[i].key for i in chosen]),
            "stochastic_classes": np.array(info.stochastic_classes),
            "class_names": np.array([*info.fixed_classes, *(f"id {i + 1}" for i in range(info.num_random_ids))]),
        }
        if cond is not None:
            arrays["visible"] = cond[:, 0].cpu().numpy() > 0
        for name, latents in ways.items():
            drawn = sample(
                self.model,
                image=image,
                cond=cond,
                num_samples=self.settings.watch.validate_samples,
                latents=latents,
                generator=torch.Generator().manual_seed(0),
            )
            labels = drawn.labels.cpu().numpy().astype(np.uint8)
            arrays[f"samples_{name}"] = labels[:, :NUM_SHOWN_SAMPLES]
            probability = drawn.probs[:, :, list(info.stochastic_classes)].sum(dim=2)
            arrays[f"std_{name}"] = probability.float().std(dim=1, correction=0).cpu().numpy()
            # Where a part is hidden, samples are meant to differ: there are no instances to agree on.
            if name == "full" and info.has_instances and cond is None:
                truth = centre_crops(self.pack, chosen, crop=self.settings.data.crop)
                arrays |= clustered(labels, info=info, valid=arrays["valid"], truth=truth)
        mean = sample(self.model, image=image, cond=cond, num_samples=1, latents="mean", return_logits=False)
        arrays["prior_mean"] = mean.labels[:, 0].cpu().numpy().astype(np.uint8)
        rebuilt = reconstruct(self.model, image=image, labels=batch.labels.long(), cond=cond, return_logits=False)
        arrays["reconstructions"] = rebuilt.labels.cpu().numpy().astype(np.uint8)
        folder = self.run / "pictures"
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(folder / f"step-{step:08d}.npz", **arrays)  # type: ignore[arg-type]
        picture = _samples_sheet(
            image.float().cpu().numpy(), arrays, title=f"iteration {step}: graders, reconstructions, samples"
        )
        save_picture(picture, folder / f"step-{step:08d}.png")
        for logger in loggers:
            logger.picture(step, "samples", np.asarray(picture))


def _samples_sheet(images: np.ndarray, arrays: Mapping[str, np.ndarray], *, title: str) -> Any:
    rows = []
    for i, image in enumerate(images):
        maps = [*arrays["labels"][i], *arrays["reconstructions"][i], *arrays["samples_full"][i]]
        rows.append([grey_or_colour(image), *(overlay(image=image, labels=m.astype(np.int64)) for m in maps)])
    r = arrays["labels"].shape[1]
    graders = [f"grader {i + 1}" for i in range(r)]
    columns = ["image", *graders, *[f"rec. {i + 1}" for i in range(r)]]
    columns += [f"sample {i + 1}" for i in range(arrays["samples_full"].shape[1])]
    return sheet(rows, columns=columns, title=title, tile=96)


@contextmanager
def swapped(model: Any, averaged: Sequence[Tensor]) -> Iterator[None]:
    """The model with its averaged weights, if there are any, for as long as this lasts."""
    live = [parameter.detach().clone() for parameter in model.parameters()] if averaged else []
    try:
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), averaged, strict=False):
                parameter.copy_(value)
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), live, strict=False):
                parameter.copy_(value)
