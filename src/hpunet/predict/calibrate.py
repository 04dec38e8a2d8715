"""`hpunet calibrate`: thresholds of guarantees and of the review flag, from images with gradings that a model was not
trained on, and the review statistic from images that it was trained on.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from hpunet.data.alterations import KINDS, altered
from hpunet.data.fingerprint import FileHashes, read_contents
from hpunet.data.open import open_data
from hpunet.data.packs import is_pack, open_pack
from hpunet.data.types import Identity, NoSuchSplitError, SetInfo, Source
from hpunet.errors import ConfigError, DataError
from hpunet.evaluation.images import as_batch, centre_crop
from hpunet.evaluation.scorer import image_seed
from hpunet.metrics.bootstrap import group_numbers
from hpunet.metrics.conformal import (
    area_range,
    area_score,
    inner_score,
    nested_weights,
    outer_score,
    patient_quantile,
)
from hpunet.predict.draw import SamplingOptions, sample_image
from hpunet.predict.guarantee import median_area, order_of
from hpunet.sampling.review import ReviewStatistic, fit_review, pooled_features
from hpunet.weights.calibration import (
    REVIEW,
    Calibration,
    Level,
    find_files,
    hash_patients,
    read_review,
    weights_sum,
)
from hpunet.weights.load import TrainedModel

FALSE_ALARMS = 0.05
SELECTED_ON = {"lidc-hpu-2026": "val"}
"""Published weights for whose selection a split was used."""
MAX_TRAINING_IMAGES = 3000
"""Images of the review statistic, spread evenly over patients."""
_BATCH = 16


@dataclass
class Scores:
    """Scores of all gradings of a set, and what groups them; one row per grading."""

    patients: list[str] = field(default_factory=list)
    images: list[int] = field(default_factory=list)
    counts: list[bool] = field(default_factory=list)
    """Whether the grading marks anything."""
    areas: list[float] = field(default_factory=list)
    """Median area of the image's samples, by which images are grouped."""
    outer: list[float] = field(default_factory=list)
    inner: list[float] = field(default_factory=list)
    ranges: dict[float, list[float]] = field(default_factory=dict)
    """Scores of the range of areas of each guarantee."""

    def add(
        self, samples: Bool[np.ndarray, " n *s"], mean: np.ndarray, *, gradings: Sequence[np.ndarray],
        patient: str, image: int, levels: Sequence[float], miss_rate: float, info: SetInfo,
    ) -> None:  # fmt: skip
        """Add the gradings of an image or volume; `info` is that of the model."""
        order = order_of(samples, mean=mean, info=info)
        found = {level: area_range(samples, level=level) for level in levels}
        median = median_area(samples)
        for marked in gradings:
            self.patients.append(patient)
            self.images.append(image)
            self.counts.append(bool(marked.any()))
            self.areas.append(median)
            self.outer.append(outer_score(order, marked=marked, miss_rate=miss_rate))
            self.inner.append(inner_score(order, marked=marked, miss_rate=miss_rate))
            for level, each in found.items():
                self.ranges.setdefault(level, []).append(area_score(each, area=float(marked.sum())))

    def weights(self, chosen: np.ndarray | None = None) -> Float64[np.ndarray, " n"]:
        """Of the gradings, or of the chosen ones."""
        counts = np.array(self.counts) if chosen is None else np.array(self.counts) & chosen
        return nested_weights(patients=self.patients, images=self.images, counts=counts)

    def level(self, guarantee: float, *, areas: tuple[float, float | None]) -> Level:
        """The thresholds for images of a group."""
        low, high = areas
        median = np.array(self.areas)
        chosen = (median >= low) & (median < (np.inf if high is None else high))
        weights = self.weights(chosen)
        scores = {"outer": self.outer, "inner": self.inner, "area": self.ranges[guarantee]}
        found: dict[str, Any] = {}
        for name, each in scores.items():
            used = np.where(weights > 0, np.array(each), 0.0)
            threshold = patient_quantile(used[weights > 0], weights=weights[weights > 0], level=guarantee)
            found[name] = _finite(-threshold if name == "inner" else threshold)
        used_images = {image for image, weight in zip(self.images, weights, strict=True) if weight}
        numbers = {"num_patients": round(float(weights.sum())), "num_images": len(used_images)}
        return Level(guarantee=guarantee, areas=areas, **found, **numbers)


def _finite(value: float) -> float | None:
    """None for an infinite threshold: no mask of the family is large (or small) enough."""
    return value if np.isfinite(value) else None


def collect_scores(
    trained: TrainedModel,
    source: Source,
    *,
    levels: Sequence[float],
    miss_rate: float,
    num_samples: int,
    seed: int = 0,
    crop: tuple[int, ...] | None = None,
    statistic: ReviewStatistic | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[Scores, Float64[np.ndarray, " images"]]:
    """Scores of the gradings of every image, and the review scores of images (0 without a statistic)."""
    info, scores, reviews = trained.info, Scores(), np.zeros(len(source))
    options = SamplingOptions(num_samples=num_samples)
    for index, identity in enumerate(source.identities):
        batch = as_batch(source[index])
        batch = batch if crop is None else centre_crop(batch, crop=crop)
        image = batch.image[0].numpy()
        keyed = replace(options, seed=image_seed(identity.key, seed=seed))
        drawn = sample_image(trained, image=image, options=keyed, name=identity.key)
        if not batch.valid.all():
            raise DataError(f"{identity.key}: has pixels that are not graded; guarantees need whole gradings")
        gradings = np.isin(batch.labels[0].numpy()[batch.graders[0].numpy()], info.foreground)
        scores.add(
            np.isin(drawn.labels, info.foreground), drawn.mean, gradings=list(gradings), patient=identity.patient,
            image=index, levels=levels, miss_rate=miss_rate, info=info,
        )  # fmt: skip
        if statistic is not None:
            reviews[index] = float(statistic.score(_features(trained, [image]))[0])
        advance(1)
    return scores, reviews


def review_threshold(scores: Float64[np.ndarray, " images"], *, patients: Sequence[str]) -> float | None:
    """The score that an image of a new patient exceeds with at most the probability of a false alarm."""
    numbers = list(range(len(scores)))
    weights = nested_weights(patients=patients, images=numbers, counts=[True] * len(scores))
    return _finite(patient_quantile(scores, weights=weights, level=1 - FALSE_ALARMS))


def make_statistic(
    trained: TrainedModel,
    source: Source,
    *,
    crop: tuple[int, ...] | None,
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> ReviewStatistic:
    """The review statistic of training images."""
    rng = np.random.default_rng(seed)
    features: list[Tensor] = []
    wrong: list[Tensor] = []
    chosen = spread_over_patients(source.identities, limit=MAX_TRAINING_IMAGES, rng=rng)
    for start in range(0, len(chosen), _BATCH):
        images = []
        for index in chosen[start : start + _BATCH]:
            batch = as_batch(source[index])
            images.append((batch if crop is None else centre_crop(batch, crop=crop)).image[0].numpy())
        features.append(_features(trained, images))
        kinds = [KINDS[(start + i) % len(KINDS)] for i in range(len(images))]
        wrong.append(_features(trained, [altered(x, kind=k, rng=rng) for x, k in zip(images, kinds, strict=True)]))
        advance(len(images))
    return fit_review(features=torch.cat(features), altered=torch.cat(wrong))


def review_statistic(
    trained: TrainedModel,
    source: Source,
    *,
    data: str,
    options: Mapping[str, Any],
    crop: tuple[int, ...] | None,
    seed: int = 0,
    begin: Callable[[int], None] = lambda _: None,
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[ReviewStatistic | None, Int64[Tensor, " patients"]]:
    """The review statistic and hashes of the patients of training, none if they are not known.

    The model's own is used if it has one; else it is made of the run's training images, or of those of `data` opened
    with `options`; without any, and for volumes, there is none. Raises a `DataError` if patients of `source` are
    among those of training. `begin` is called with the number of training images before they are read.
    """
    own = weights_sum(trained)
    for found in find_files(trained, file=REVIEW):
        statistic, hashes, belongs_to = read_review(found)
        if belongs_to == own:
            refuse_training_patients(source, hashes=hashes, weights=own)
            return statistic, hashes
    training = training_source(trained)
    is_known = training is not None
    if training is None:
        try:
            training = open_data(data, split="train", options=options)
        except NoSuchSplitError:
            return None, torch.empty(0, dtype=torch.int64)
    hashes = hash_patients((each.patient for each in training.identities), weights=own)
    refuse_training_patients(source, hashes=hashes, weights=own)
    if trained.info.ndim == 3:  # what the statistic compares with, altered images, there is no volume of
        return None, hashes if is_known else hashes[:0]
    begin(min(len(training), MAX_TRAINING_IMAGES))
    statistic = make_statistic(trained, training, crop=crop, seed=seed, advance=advance)
    return statistic, hashes if is_known else hashes[:0]


def spread_over_patients(identities: Sequence[Identity], *, limit: int, rng: np.random.Generator) -> list[int]:
    """Images of a set, at most so many, as many of each patient as possible."""
    patient = group_numbers([identity.patient for identity in identities], num_images=len(identities))
    shuffled = rng.permutation(len(identities))
    seen: dict[int, int] = {}
    turn = np.zeros(len(identities), dtype=np.int64)
    for index in shuffled:
        turn[index] = seen.setdefault(int(patient[index]), 0)
        seen[int(patient[index])] += 1
    return sorted(shuffled[np.argsort(turn[shuffled], kind="stable")][:limit].tolist())


def _features(trained: TrainedModel, images: Sequence[np.ndarray]) -> Tensor:
    """Pooled features of images, which may have several sizes."""
    together = len({image.shape for image in images}) == 1
    batches = [np.stack(images)] if together else [image[None] for image in images]
    found = [pooled_features(trained.model, image=torch.from_numpy(x).to(trained.device)) for x in batches]
    return torch.cat(found)


def training_source(trained: TrainedModel) -> Source | None:
    """The training images of a run, from the pack in its folder."""
    packs = sorted(trained.folder.iterdir()) if trained.folder is not None else []
    found = [open_pack(path, split="train", verify=False) for path in packs if is_pack(path)]
    return found[0] if len(found) == 1 else None


def refuse_training_patients(source: Source, *, hashes: Tensor, weights: str) -> None:
    """Raise a `DataError` if an image is of a patient of training. It names images, not patients."""
    known = set(hashes.tolist())
    found = [i.key for i in source.identities if hash_patients([i.patient], weights=weights).item() in known]
    if found:
        words = f"{len(found)} of {len(source)} images ({found[0]}, …) are of patients that the model was trained on"
        raise DataError(f"{source.info.kind} data, {source.split}: {words}; calibrate with other patients")


def notes_on(trained: TrainedModel, *, split: str, hashes_known: bool) -> tuple[str, ...]:
    """What limits the guarantees."""
    found = []
    if SELECTED_ON.get(trained.name) == split:
        found.append(
            f"The patients of this calibration (split {split}) were used for selecting {trained.name}: for other "
            "patients, the guarantees may hold a little less often."
        )
    elif split == "val":
        found.append(
            "If checkpoint or settings were selected on these validation patients, the guarantees may hold a little "
            "less often for others."
        )
    if not hashes_known:
        found.append("The patients of training are not known here; they must not be among those of this calibration.")
    return tuple(found)


def check_numbers(*, guarantees: Sequence[float], miss_rate: float, groups: Sequence[float]) -> None:
    """Refuse impossible options before any work."""
    for level in guarantees:
        if not 0.5 <= level < 1:
            raise ConfigError(f"--guarantee: expected 0.5 to below 1, got {level:g}")
    if not 0 <= miss_rate < 1:
        raise ConfigError(f"--miss-rate: expected 0 to below 1, got {miss_rate:g}")
    if any(area <= 0 for area in groups) or sorted(set(groups)) != list(groups):
        raise ConfigError(f"--groups: expected ascending areas in pixels, such as 100,400; got {list(groups)}")


def patients_needed(level: float) -> int:
    """The fewest patients K with K / (K + 1) ≥ level."""
    return math.ceil(level / (1 - level) - 1e-9)


def area_groups(bounds: Sequence[float]) -> list[tuple[float, float | None]]:
    """Groups of areas between these bounds."""
    ends = [0.0, *bounds, None]
    return [(low, high) for low, high in pairwise(ends) if low is not None]


def make_calibration(
    trained: TrainedModel,
    source: Source,
    scores: Scores,
    reviews: Float64[np.ndarray, " images"] | None,
    *,
    levels: Sequence[float],
    groups: Sequence[float],
    miss_rate: float,
    num_samples: int,
    options: Mapping[str, Any],
    hashes_known: bool,
) -> Calibration:
    """The calibration of a model from the scores of a set that was opened with `options`."""
    patients = [identity.patient for identity in source.identities]
    found = [scores.level(level, areas=areas) for level in levels for areas in area_groups(groups)]
    threshold = None if reviews is None else review_threshold(reviews, patients=patients)
    notes = [*notes_on(trained, split=source.split, hashes_known=hashes_known)]
    for level in (each for each in found if each.num_patients < patients_needed(each.guarantee)):
        few = f"{level.num_patients} of at least {patients_needed(level.guarantee)} patients"
        notes.append(f"Guarantee {level.guarantee:g}: {few}; the outer mask is the whole image, the inner one empty.")
    if trained.info.ndim == 3:
        notes.append("No review flag: there is none for volumes yet; look at images before using their samples.")
    if reviews is not None and threshold is None:
        notes.append(f"No review flag: it needs at least {patients_needed(1 - FALSE_ALARMS)} patients.")
    return Calibration(
        model=trained.name,
        weights_sha256=weights_sum(trained),
        num_samples=num_samples,
        orientations=trained.model.orientations,
        kernels="torch" if trained.sampler is None else "fused",
        miss_rate=miss_rate,
        levels=tuple(found),
        review_threshold=threshold,
        false_alarms=FALSE_ALARMS,
        data=read_contents(source, options=options, hashes=FileHashes()).fingerprint,
        split=source.split,
        num_patients=len(set(patients)),
        num_images=len(source),
        notes=tuple(notes),
    )
