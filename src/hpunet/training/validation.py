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
from torch import Tensor

from hpunet.config.settings import Settings
from hpunet.data.batch import Batch
from hpunet.data.packs import Pack
from hpunet.evaluation.scoring import (
    centre_crop,
    fast_batch_size,
    image_scores,
    prior_inputs,
    shown_arrays,
    true_instances,
    with_evaluation_ids,
)
from hpunet.metrics import rand_error
from hpunet.sampling.sample import reconstruct, sample
from hpunet.training.loggers import Logger
from hpunet.utils.distributed import all_reduce, rank, world_size
from hpunet.utils.label_painter import overlay
from hpunet.utils.pictures import grey_or_colour, save_picture, sheet, spread, stretched

NUM_SHOWN = 6
METRICS = ("ged2", "hm_iou", "iou_rec")
_LOWER_IS_BETTER = ("ged2",)


def centre_crops(pack: Pack, indices: Sequence[int], *, crop: tuple[int, int]) -> Batch:
    """Images cut out at their centres, with labels as they are stored: instances are still instances."""
    if len({pack.sizes[i] for i in indices}) > 1:  # each at its own centre, whatever its neighbours
        singles = [centre_crops(pack, [i], crop=crop) for i in indices]
        return Batch(**{name: torch.cat([getattr(s, name) for s in singles]) for name in vars(singles[0])})
    return centre_crop(pack.batch(torch.tensor(indices)), crop=crop)


def evaluation_batch(pack: Pack, indices: Sequence[int], *, crop: tuple[int, int], seed: int) -> Batch:
    """Images as evaluation sees them: the centre crop, and instances under one fixed mapping to ids an image."""
    batch = centre_crops(pack, indices, crop=crop)
    return with_evaluation_ids(batch, keys=[pack.identities[i].key for i in indices], info=pack.info, seed=seed)


class Validation:
    """A fixed subset of the validation images, spread evenly over it and shared out over the processes."""

    def __init__(self, model: Any, *, pack: Pack, settings: Settings, device: torch.device, run: Path) -> None:
        self.model, self.pack, self.settings, self.device, self.run = model, pack, settings, device, run
        count = min(settings.logging.validate_images, len(pack))
        self.indices = np.linspace(0, len(pack) - 1, count).round().astype(int).tolist()

    def is_better(self, numbers: Mapping[str, float], *, than: float | None) -> bool:
        """Whether the deciding metric has improved; the first number there is has, NaN never."""
        metric = self.settings.logging.best
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
        # Scored together by one process, with noise of their own: the score does not depend on how many processes
        # share the work, nor on training's batch size.
        at_once = fast_batch_size(self.device)
        starts = range(0, len(self.indices), at_once)
        for start in starts[rank() :: world_size()]:
            chosen = self.indices[start : start + at_once]
            batch, image, cond = self._inputs(chosen)
            drawn = sample(
                self.model,
                image=image,
                cond=cond,
                num_samples=self.settings.logging.validate_samples,
                generator=torch.Generator().manual_seed(start),
                return_logits=False,
            )
            rebuilt = reconstruct(self.model, image=image, labels=batch.labels.long(), cond=cond, return_logits=False)
            scores = image_scores(
                samples=drawn.labels, reconstructions=rebuilt.labels, batch=batch, info=self.pack.info
            )
            totals[:-1] += torch.stack([scores[name].sum() for name in METRICS]).to(self.device)
            totals[-1] += len(chosen)
        totals = all_reduce(totals)
        return {name: float(totals[i] / totals[-1]) for i, name in enumerate(METRICS)}

    def _inputs(self, indices: Sequence[int]) -> tuple[Batch, Tensor, Tensor | None]:
        """A batch, and what the prior is given of it: image, and visibility and visible labels (`Hidden.cond`)."""
        batch = evaluation_batch(self.pack, indices, crop=self.settings.data.crop, seed=self.settings.seed)
        batch = Batch(**{name: value.to(self.device) for name, value in vars(batch).items()})
        image, cond = prior_inputs(
            batch,
            places=indices,
            extrapolate=self.settings.data.extrapolate,
            num_classes=self.pack.info.num_classes,
        )
        return batch, image, cond

    def _show(self, step: int, loggers: Sequence[Logger]) -> None:
        """A sheet of samples, and the arrays behind it and the figures (see `examples.py`)."""
        info = self.pack.info
        chosen = [self.indices[i] for i in spread(NUM_SHOWN, of=len(self.indices))]
        batch, image, cond = self._inputs(chosen)
        keys = [self.pack.identities[i].key for i in chosen]
        truth = None
        if info.has_instances:
            truth = true_instances(centre_crops(self.pack, chosen, crop=self.settings.data.crop), info)
        arrays = shown_arrays(
            self.model,
            batch=batch,
            image=image,
            cond=cond,
            keys=keys,
            info=info,
            num_samples=self.settings.logging.validate_samples,
            generators=lambda: torch.Generator().manual_seed(0),
            truth=truth,
        )
        arrays["stochastic_classes"] = np.array(info.stochastic_classes)
        names = [*info.fixed_classes, *(f"id {i + 1}" for i in range(info.num_random_ids))]
        arrays["class_names"] = np.array(names)
        if truth is not None and "instances" in arrays:
            error = rand_error(prediction=arrays["instances"], truth=truth, valid=arrays["valid"])
            arrays |= {"hardness": np.asarray(error), "hardness_metric": np.array("rand_error")}
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
        rows.append(
            [grey_or_colour(stretched(image)), *(overlay(image=image, labels=m.astype(np.int64)) for m in maps)]
        )
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
