"""A verdict on a run in a few sentences, from its log and settings alone: what was reached, what to change next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hpunet.config.settings import Settings

VERDICT_FILE = "verdict.txt"
_TITLES = {"ged2": "GED²", "hm_iou": "matched IoU", "iou_rec": "IoU_rec"}
_REACHED = 1.05  # rec is noisy: up to this factor above κ counts as reached
_RISES = 1.02
_IDLE_NATS = 0.05  # a scale with less KL carries nothing
_IDLE_LAMBDA = 0.01
_BETTER = 0.01  # relative changes of validation scores below this are noise
_OVERFITTED = 0.05


def verdict(log: Sequence[Mapping[str, Any]], settings: Settings, about: Mapping[str, Any]) -> list[str]:
    """Sentences on a run; `about` is its `run.json`. What the log does not hold is left out."""
    run = _Run(log, settings, about)
    found = [run.length(), run.constraint(), run.validation(), run.graders(), run.scales(), run.advice()]
    return [sentence for sentence in found if sentence]


@dataclass(frozen=True)
class _Run:
    log: Sequence[Mapping[str, Any]]
    settings: Settings
    about: Mapping[str, Any]

    def length(self) -> str:
        done, planned = self.log[-1]["step"], self.settings.optimiser.iterations
        return "" if done >= planned else f"The run is at iteration {done:,} of {planned:,}."

    def constraint(self) -> str:
        if self.rec is None or self.lambda_ is None:
            return ""
        said = "reached" if self.reached else "not reached"
        trend = {True: " and still rises", False: " and no longer rises", None: ""}[self.lambda_rises]
        bound = f", its bound is {self.settings.objective.lambda_max:g}" if self.at_lambda_max else ""
        words = f"κ was {said}: rec {self.rec:.3g}, κ {self.kappa:g}; λ is {self.lambda_:.3g}{trend}{bound}."
        if self.constant_meets_kappa:
            words += f" A constant map meets κ, too: its rec is {self.about['constant_map_rec']:.3g}."
        return words

    def validation(self) -> str:
        points = self._scores()
        if len(points) < 3:
            return (
                "Too few validations to say whether scores still improve (logging.validate_every)." if points else ""
            )
        (step, value), title = points[-1], _TITLES[self.settings.logging.best]
        if self.improves:
            return (
                f"Validation still improves: {title} {value:.3f} at iteration {step:,}, {points[-2][1]:.3f} before."
            )
        best_step, best = self.best
        if best_step == step:
            return f"Validation hardly improves any more: {title} {value:.3f} at the end is the best."
        words = f"Validation does not improve any more: {title} {value:.3f}"
        return f"{words}, the best at iteration {best_step:,} was {best:.3f}."

    def graders(self) -> str:
        ged2, line, iou = (self._last(f"val_{name}") for name in ("ged2", "grader_distance", "grader_iou"))
        if ged2 is None or line is None or iou is None:
            return ""
        perfect = line / self.settings.logging.validate_samples
        side = "below" if ged2 < line else "not below"
        return (
            f"Samples have a GED² of {ged2:.3f}, {side} the line to beat, {line:.3f}: that of one grader's map "
            f"in place of all samples. Two graders agree with an IoU of {iou:.2f}; a perfect sampler has a GED² of "
            f"{perfect:.3f}."
        )

    def scales(self) -> str:
        if not self.kl:
            return ""
        rounded = {i: float(f"{nats:.2g}") for i, nats in self.kl.items()}
        active = ", ".join(f"scale {i} ({nats:g} nats)" for i, nats in rounded.items() if nats >= _IDLE_NATS)
        idle = [str(i) for i, nats in rounded.items() if nats < _IDLE_NATS]
        if not active:
            return "No scale carries KL: the samples of an image are all alike."
        none = f"; scale{'s' * (len(idle) > 1)} {', '.join(idle)} carr{'y' if len(idle) > 1 else 'ies'} none"
        return f"KL (scale 0 is the coarsest): {active}{none if idle else ''}."

    def advice(self) -> str:
        """The first thing to change."""
        objective = self.settings.objective
        longer = "train longer (optimiser.iterations)"
        weight = "objective.kappa" if objective.kind == "geco" else "objective.beta"
        if self.constant_meets_kappa:
            next_ = f"lower objective.kappa well below {self.about['constant_map_rec']:.3g}"
        elif self.reached is False and self.at_lambda_max:
            next_ = "raise objective.lambda_max or objective.kappa, unless the bound of λ is intended"
        elif self.reached is False:
            next_ = longer if self.improves else f"{longer}, or raise objective.kappa, which may be out of reach"
        elif self.kl and max(self.kl.values()) < _IDLE_NATS:
            next_ = f"lower {weight}, so that the latents are needed"
        elif self.lambda_ is not None and self.lambda_ < _IDLE_LAMBDA:
            next_ = "lower objective.kappa: λ is nearly 0, so κ asks for nothing"
        elif self.improves:
            next_ = longer
        elif self.overfitted:
            next_ = "evaluate and sample with --checkpoint best; more images or augmentation help against overfitting"
        elif self.coarsest_is_idle and objective.kind == "geco" and not objective.kl_warm_up:
            warm_up = [0] * min(self.kl) + [0.1]
            next_ = f"set objective.kl_warm_up={warm_up}, so that scale {min(self.kl)} is used"
        else:
            return "Nothing stands out that should change."
        return f"Next: {next_}."

    @property
    def kappa(self) -> float:
        return self.settings.objective.kappa

    @property
    def rec(self) -> float | None:
        """At the end."""
        return self._recent("rec") if self.settings.objective.kind == "geco" else None

    @property
    def lambda_(self) -> float | None:
        return self._recent("lambda")

    @property
    def reached(self) -> bool | None:
        return None if self.rec is None else self.rec <= self.kappa * _REACHED

    @property
    def lambda_rises(self) -> bool | None:
        """None: the log is too short to say."""
        now, before = self._recent("lambda"), self._recent("lambda", parts_ago=1)
        return None if now is None or before is None else now > before * _RISES

    @property
    def at_lambda_max(self) -> bool:
        most = self.settings.objective.lambda_max
        return most is not None and self.lambda_ is not None and self.lambda_ > 0.98 * most

    @property
    def constant_meets_kappa(self) -> bool:
        constant = self.about.get("constant_map_rec")
        return self.rec is not None and isinstance(constant, float) and constant <= self.kappa

    @property
    def kl(self) -> dict[int, float]:
        """At the end, by scale; not of scales without latents."""
        found = {i: self._recent(f"kl_{i}") for i, dims in enumerate(self.settings.model.latent_dims) if dims}
        return {i: nats for i, nats in found.items() if nats is not None}

    @property
    def coarsest_is_idle(self) -> bool:
        return bool(self.kl) and self.kl[min(self.kl)] < _IDLE_NATS

    @property
    def best(self) -> tuple[int, float]:
        pick = min if self.settings.logging.best == "ged2" else max
        return pick(self._scores(), key=lambda point: point[1])

    @property
    def improves(self) -> bool:
        """Whether the best validation is among the last quarter of all, and better than the others."""
        points = self._scores()
        split = len(points) - max(1, len(points) // 4)
        if len(points) < 3:
            return False
        sign = -1 if self.settings.logging.best == "ged2" else 1
        earlier, recent = (max(sign * value for _, value in part) for part in (points[:split], points[split:]))
        return recent - earlier > _BETTER * abs(earlier)

    @property
    def overfitted(self) -> bool:
        points = self._scores()
        return len(points) >= 3 and abs(points[-1][1] - self.best[1]) > _OVERFITTED * abs(self.best[1])

    def _scores(self) -> list[tuple[int, float]]:
        return self._series(f"val_{self.settings.logging.best}")

    def _series(self, name: str) -> list[tuple[int, float]]:
        return [(line["step"], line[name]) for line in self.log if line.get(name) is not None]

    def _last(self, name: str) -> float | None:
        points = self._series(name)
        return points[-1][1] if points else None

    def _recent(self, name: str, *, parts_ago: int = 0) -> float | None:
        """The mean over the last tenth of the logged values, or over the tenth before; five values if there are."""
        values = [value for _, value in self._series(name)]
        count = max(len(values) // 10, min(5, len(values) // 2), 1)
        part = values[len(values) - (parts_ago + 1) * count : len(values) - parts_ago * count]
        return fmean(part) if part else None
