"""Validation during training: the paper's metrics on a fixed subset, and pictures of the same few images.

Images are scored as by `hpunet evaluate` with seed 0: noise is keyed by image. Arrays for the report page are saved
here, so that it needs neither model nor data.
"""

import io
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
from hpunet.errors import DivergenceError
from hpunet.evaluation.examples import example_arrays
from hpunet.evaluation.images import fast_batch_size, read_item
from hpunet.evaluation.scorer import Scorer
from hpunet.evaluation.scores import metric_arguments
from hpunet.kernels.dispatch import fast_sampler
from hpunet.metrics import pair_ious
from hpunet.training.loggers import Logger
from hpunet.utils.distributed import all_reduce, rank, world_size
from hpunet.utils.files import atomic_write
from hpunet.utils.label_painter import contrast_palette, overlay
from hpunet.utils.pictures import grey_or_colour, save_picture, sheet, spread, stretched

NUM_SHOWN = 6
_SMALL_TILE, _LARGE_TILE = 96, 192  # shorter sides of shown images, in pixels
MIN_IMAGES = 4  # validated at least, however large
METRICS = ("ged2", "hm_iou", "iou_rec")
GRADERS = ("grader_distance", "grader_iou")  # what samples are compared with; the same at every validation
CLEARLY_BETTER = 0.02


class Validation:
    """Scores a fixed subset of the validation images, shared between processes; `kernels` as in `fast_sampler`."""

    def __init__(
        self,
        model: Any,
        *,
        pack: Pack,
        settings: Settings,
        device: torch.device,
        run: Path,
        kernels: str = "torch",
    ) -> None:
        self.model, self.pack, self.settings, self.run = model, pack, settings, run
        crop = settings.data.crop if settings.data.evaluate == "crop" else None
        wanted = min(settings.logging.validate_images, len(pack))
        self.num_shown, self.note = NUM_SHOWN, ""
        count = wanted
        if crop is None:
            # Whole images may be many times as large as the crop: as many pixels as without them.
            share = math.prod(settings.data.crop) / np.mean([math.prod(size) for size in pack.sizes])
            affordable = int(settings.logging.validate_images * share)
            count = min(wanted, max(MIN_IMAGES, affordable))
            self.num_shown = max(1, min(NUM_SHOWN, int(NUM_SHOWN * share)))
            if count < wanted:
                images, pixels = ("volumes", "voxels") if pack.info.ndim == 3 else ("images", "pixels")
                size = "×".join(map(str, settings.data.crop))
                self.note = (
                    f"validation scores {count} whole {images} instead of {wanted}: as many {pixels} as in "
                    f"{settings.logging.validate_images} crops of {size}, but at least {MIN_IMAGES} {images}"
                )
        self.indices = np.linspace(0, len(pack) - 1, count).round().astype(int).tolist()
        self.scorer = Scorer(
            model=model,
            info=pack.info,
            crop=crop,
            num_samples=settings.logging.validate_samples,
            extrapolate=settings.data.extrapolate,
            device=device,
            sampler=fast_sampler(model, kernels=kernels, device=device),
        )

    def is_better(self, numbers: Mapping[str, float], *, than: float | None) -> bool:
        """Whether the deciding metric has improved; any first finite number is better, NaN never."""
        metric = self.settings.logging.best
        if than is None:
            return math.isfinite(numbers[metric])
        return numbers[metric] < than if metric == "ged2" else numbers[metric] > than

    def run_at(self, step: int, loggers: Sequence[Logger], *, averaged: Sequence[Tensor]) -> dict[str, float]:
        """Score the model with its averaged weights, if any, early on also with raw ones; log, draw and save."""
        with checked(self.model, step=step):
            if self.scorer.sampler is not None:
                mark_written(self.model)
            raw = self._score() if averaged and self.scores_raw(step) else {}
            with swapped(self.model, averaged):
                numbers = self._score() | {f"raw_{name}": raw[name] for name in METRICS if raw}
                if rank() == 0:
                    picture = self._save_examples(step)  # first: a report reads those of the last line of the log
                    for logger in loggers:
                        logger.numbers(step, {f"val_{name}": value for name, value in numbers.items()})
                        logger.picture(step, "samples", picture)
        return numbers

    def scores_raw(self, step: int) -> bool:
        """Whether raw weights are scored, too: in the first quarter while the average is young, and the first time.

        A young average reaches back over a tenth of the run so far (see `share_in_average`), and weights change
        fastest then; later, when learning rates fall, both agree, and a second score would only cost time.
        """
        optimiser = self.settings.optimiser
        grown_up = min(10 / (1 - (optimiser.ema_decay or 0)), optimiser.iterations / 4)
        return step <= max(self.settings.logging.validate_every, grown_up)

    def raw_is_better(self, numbers: Mapping[str, float]) -> str | None:
        """What to say if the raw weights were scored and are clearly better than the averaged ones."""
        metric = self.settings.logging.best
        own, raw = numbers[metric], numbers.get(f"raw_{metric}", math.nan)
        if not (own - raw if metric == "ged2" else raw - own) > CLEARLY_BETTER:
            return None
        return (
            f"raw weights are clearly better than averaged ones: {metric} {raw:.3f}, averaged {own:.3f}; "
            "lower optimiser.ema_decay, or use --weights raw if it stays so"
        )

    def _score(self) -> dict[str, float]:
        device = self.scorer.device
        names = [*METRICS, *([] if self.pack.info.has_instances else GRADERS)]
        totals = torch.zeros(2, len(names), dtype=torch.float64, device=device)  # sums, and what was summed
        size = fast_batch_size(device)
        for start in range(0, len(self.indices), size)[rank() :: world_size()]:
            chosen = self.indices[start : start + size]
            items = [read_item(self.pack, index, self.pack.info) for index in chosen]
            for drawn in self.scorer.draw(self.pack, items):
                assert drawn.maps is not None
                drawn.maps.wait()
                scores = self.scorer.distribution_scores(drawn.maps)
                if not self.pack.info.has_instances:  # ids of two graders cannot be compared
                    scores = {**scores, **self._grader_scores(drawn.maps.batch)}
                values = torch.stack([scores[name] for name in names]).to(device)
                totals += torch.stack([values.nansum(dim=1), (~values.isnan()).sum(dim=1)])
        sums, counts = all_reduce(totals).tolist()
        means = {name: total / n if n else math.nan for name, total, n in zip(names, sums, counts, strict=True)}
        return {name: mean for name, mean in means.items() if name in METRICS or not math.isnan(mean)}

    def _grader_scores(self, batch: Batch) -> dict[str, Tensor]:
        """How far the graders of each image agree; NaN for a single one."""
        pairs = pair_ious(samples=batch.labels[:, :1], **metric_arguments(batch, self.pack.info))
        return {name: torch.from_numpy(getattr(pairs, name)()) for name in GRADERS}

    def _save_examples(self, step: int) -> np.ndarray:
        """Save a sheet of samples, and the arrays behind it and the figures (`reports/examples.py`); returns it."""
        chosen = [self.indices[i] for i in spread(self.num_shown, of=len(self.indices))]
        arrays = example_arrays(self.scorer, self.pack, chosen)
        if "instances" in arrays:
            arrays["hardness_metric"] = np.array("rand_error")
        folder, content = self.run / "pictures", io.BytesIO()
        np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
        atomic_write(folder / f"step-{step:08d}.npz", content.getvalue())
        picture = _samples_sheet(arrays, title=f"iteration {step}: graders, reconstructions, samples")
        save_picture(picture, folder / f"step-{step:08d}.png")
        return np.asarray(picture)


def _samples_sheet(arrays: Mapping[str, np.ndarray], *, title: str) -> Any:
    images = arrays["image"]
    if "visible" in arrays:
        images = np.where(arrays["visible"][:, None], images, 0)
    rows = []
    groups = {"grader": arrays["labels"], "rec.": arrays["reconstructions"], "sample": arrays["samples_full"]}
    palette = contrast_palette(images, groups["grader"])
    side = min(images.shape[2:])
    tile = min(max(side, _SMALL_TILE), _LARGE_TILE)
    for i, image in enumerate(images):
        maps = np.concatenate([each[i] for each in groups.values()]).astype(np.int64)
        overlays = [overlay(image=image, labels=labels, palette=palette, reduced=side / tile) for labels in maps]
        rows.append([grey_or_colour(stretched(image)), *overlays])
    columns = ["image", *(f"{name} {i + 1}" for name, maps in groups.items() for i in range(maps.shape[1]))]
    return sheet(rows, columns=columns, title=title, tile=tile)


@torch.no_grad()
def mark_written(model: Any) -> None:
    """Give the weights a new version each: those of training steps in a CUDA graph have none."""
    torch._foreach_mul_(list(model.parameters()), 1)


@contextmanager
def checked(model: Any, *, step: int) -> Iterator[None]:
    """Look at the model's values, which training does not: logits of NaN would score as nothing marked."""
    before, model.check_values = model.check_values, True
    try:
        yield
    except DivergenceError as error:
        raise DivergenceError(f"validation at iteration {step}: {error}. Try a lower learning rate") from None
    finally:
        model.check_values = before


@contextmanager
def swapped(model: Any, averaged: Sequence[Tensor]) -> Iterator[None]:
    """Give the model its averaged weights, if there are any, and put the live ones back at the end."""
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
