"""Statements about a new image that hold as often as stated, from a calibration; see docs/guides/guarantees.md."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Integer

from hpunet.data.types import SetInfo
from hpunet.errors import CheckpointError, ConfigError
from hpunet.metrics.conformal import Interval, area_interval, area_range, mask_order
from hpunet.metrics.shapes import voxel_size
from hpunet.predict.draw import SamplingOptions, sampler_for
from hpunet.sampling.review import MAX_PIXELS, ReviewStatistic, pooled_features
from hpunet.sampling.tiling import Tiled
from hpunet.weights.calibration import (
    REVIEW,
    Calibration,
    Level,
    find_files,
    read_calibration,
    read_review,
    reason_against,
    weights_sum,
)
from hpunet.weights.load import TrainedModel


class Review(NamedTuple):
    """How unlike the training images an image is."""

    score: float
    threshold: float
    false_alarms: float
    """Share of images like those of the calibration whose score is above the threshold, at most."""

    @property
    def is_unusual(self) -> bool:
        """Whether somebody should look at the image before using its samples."""
        return self.score > self.threshold

    @property
    def note(self) -> str:
        """A warning in one line."""
        words = f"review score {self.score:.1f}, above {self.threshold:.1f}; {self.false_alarms:.0%} false alarms"
        return f"Warning: the image is unlike those of training; do not rely on its samples ({words})."


@dataclass(frozen=True, eq=False)
class Guarantee:
    """About a grader who marks something, drawn at random, in an image of a new patient; each statement by itself."""

    level: float
    """The probability with which each of the three statements holds."""
    miss_rate: float
    outer: Bool[np.ndarray, "*s"]
    """The grader marks at most a share `miss_rate` of their pixels outside of this mask."""
    inner: Bool[np.ndarray, "*s"]
    """The grader marks all of these pixels, but for at most a share `miss_rate` of them."""
    area: Interval
    """The number of pixels or voxels that the grader marks."""
    calibration: Calibration
    voxel_ml: float | None = None
    """Of a volume whose spacing is known: the size of a voxel."""
    is_unusual: bool = False
    """Whether the review flag is raised: then nothing is guaranteed."""

    @property
    def volume(self) -> Interval | None:
        """The ml that the grader marks; None for images, and without a spacing."""
        return None if self.voxel_ml is None else Interval(*(end * self.voxel_ml for end in self.area))

    @property
    def note(self) -> str:
        """The statements in one line."""
        dots = "pixels" if self.outer.ndim == 2 else "voxels"
        outer, inner = (f"{int(each.sum())} {dots}" for each in (self.outer, self.inner))
        least = f"at least {1 - self.miss_rate:.0%}"
        words = f"{least} of what they mark lies in the outer mask ({outer}); they mark {least} of the inner "
        words += f"mask ({inner}), and {self.area.low:.0f} to {self.area.high:.0f} {dots} in all"
        words += "" if self.volume is None else f" ({self.volume.low:.3g} to {self.volume.high:.3g} ml)"
        doubt = "Does not hold here, since the image is unlike those of training. " if self.is_unusual else ""
        return f"{doubt}For a grader who marks something, each with {self.level:.0%} probability: {words}."


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A model with what `hpunet calibrate` has found out about it; read when it is needed."""

    trained: TrainedModel
    folder: Path | None = None
    """Where to look; by default where `hpunet calibrate` writes, then beside the weights."""

    @cached_property
    def _weights(self) -> str:
        return weights_sum(self.trained)

    @cached_property
    def _found(self) -> list[tuple[Path, Calibration]]:
        """Calibrations, which may be of other weights, in the order in which they are preferred."""
        return [(path, read_calibration(path)) for path in find_files(self.trained, folder=self.folder)]

    @property
    def exists(self) -> bool:
        """Whether there is a calibration, fitting or not."""
        return bool(self._found)

    def calibration(self, kernels: str) -> Calibration:
        """The first calibration of these weights and of samples drawn with these kernels, "torch" or "fused".

        An error says what is missing.
        """
        if not self._found:
            name = self.trained.name
            raise ConfigError(f"{name}: is not calibrated; run `hpunet calibrate {name} --data DATA` first")
        reasons = []
        for path, found in self._found:
            reason = reason_against(found, self.trained, weights=self._weights, kernels=kernels)
            if reason is None:
                return found
            reasons.append(f"{path}: {reason}")
        raise CheckpointError(reasons[0])

    @cached_property
    def _statistic(self) -> tuple[ReviewStatistic, Calibration] | None:
        """None if there is none of these weights."""
        for path, calibration in self._found:
            place = path.with_name(REVIEW)
            if calibration.review_threshold is not None and place.is_file():
                statistic, _, weights = read_review(place)
                if weights == calibration.weights_sha256 == self._weights:
                    return statistic, calibration
        return None

    def review(self, image: Float32[np.ndarray, " c *s"]) -> Review | None:
        """The review score of an image in [0, 1]; None without a statistic, or if the image is very large."""
        found = self._statistic
        if found is None or image[0].size > MAX_PIXELS:
            return None
        features = pooled_features(self.trained.model, image=torch.from_numpy(image)[None].to(self.trained.device))
        statistic, calibration = found
        assert calibration.review_threshold is not None
        return Review(float(statistic.score(features)[0]), calibration.review_threshold, calibration.false_alarms)

    def check(self, options: SamplingOptions, *, level: float) -> Calibration:
        """Refuse a guarantee that is not calibrated, or samples drawn otherwise, before any work."""
        is_tiled = isinstance(sampler_for(self.trained, (1,) * self.trained.info.ndim, tile=options.tile), Tiled)
        calibration = self.calibration("torch" if is_tiled or self.trained.sampler is None else "fused")
        check_sampling(options, calibration)
        level_for(calibration, level=level, area=0.0)
        return calibration

    def guarantee(
        self,
        samples: Integer[np.ndarray, " n *s"],
        *,
        mean: Float32[np.ndarray, "*s"],
        info: SetInfo,
        options: SamplingOptions,
        kernels: str,
        level: float,
        spacing: tuple[float, ...] | None = None,
    ) -> Guarantee:
        """What `Prediction.guarantee` gives; of a volume, `spacing` gives its size in ml."""
        calibration = self.calibration(kernels)
        check_sampling(options, calibration)
        marked = np.isin(samples, info.foreground)
        found = level_for(calibration, level=level, area=median_area(marked))
        order = order_of(marked, mean=mean, info=info)
        widened = np.inf if found.area is None else found.area
        largest = float(order.size)
        return Guarantee(
            level=level,
            miss_rate=calibration.miss_rate,
            outer=np.ones_like(marked[0]) if found.outer is None else order <= found.outer,
            inner=np.zeros_like(marked[0]) if found.inner is None else order < found.inner,
            area=area_interval(area_range(marked, level=level), threshold=widened, largest=largest),
            calibration=calibration,
            voxel_ml=voxel_size(spacing) if spacing is not None and mean.ndim == 3 else None,
        )


def order_of(
    marked: Bool[np.ndarray, " n *s"], *, mean: Float32[np.ndarray, "*s"], info: SetInfo
) -> Float64[np.ndarray, "*s"]:
    """The nested masks of samples, by the spacing of the training data in volumes, the same for all of them."""
    return mask_order(marked, mean=mean, spacing=info.spacing if mean.ndim == 3 else None)


def median_area(marked: Bool[np.ndarray, " n *s"]) -> float:
    """Median area of the samples that mark something, in pixels, by which images are grouped; 0 if none does."""
    areas = marked.reshape(len(marked), -1).sum(axis=1)
    return float(np.median(areas[areas > 0])) if areas.any() else 0.0


def level_for(calibration: Calibration, *, level: float, area: float) -> Level:
    """The thresholds of a guarantee for images of this median area."""
    for found in calibration.levels:
        low, high = found.areas
        if abs(found.guarantee - level) < 1e-9 and low <= area and (high is None or area < high):
            return found
    if not 0 < level < 1:
        raise ConfigError(f"guarantee: expected a probability between 0 and 1, such as 0.9, got {level:g}")
    there = ", ".join(f"{each:g}" for each in sorted({found.guarantee for found in calibration.levels}))
    raise ConfigError(f"guarantee: {level:g} is not calibrated, only {there}; calibrate with --guarantee {level:g}")


def check_sampling(options: SamplingOptions, calibration: Calibration) -> None:
    """Refuse samples that were drawn otherwise than those of the calibration."""
    factors = options.temperature if isinstance(options.temperature, Sequence) else [options.temperature]
    if options.num_samples != calibration.num_samples:
        words = f"was calibrated with {calibration.num_samples} samples, not {options.num_samples}"
        raise ConfigError(f"guarantee: {words}; draw as many, or calibrate with --samples {options.num_samples}")
    if options.scales != "full" or any(factor != 1 for factor in factors):
        raise ConfigError("guarantee: was calibrated with all scales at temperature 1; draw samples like that")
