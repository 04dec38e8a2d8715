"""What a report shows: which figures the saved files of runs allow, each with its caption, under a heading."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hpunet.reports.curves import training_dynamics, validation_curves
from hpunet.reports.example_figures import (
    METRIC_NAMES,
    draw_extrapolation,
    draw_instances,
    draw_samples,
    draw_scales,
    has_other_classes,
    shown_in_instances,
    shown_in_samples,
)
from hpunet.reports.examples import Examples
from hpunet.reports.saved_run import SavedRun

_DYNAMICS = (
    "Training dynamics, as in the paper's appendix. Thin lines are single batches, thick lines running means. GECO "
    "raises λ while the reconstruction's cross-entropy lies above κ (dotted) and lowers it once it lies below; "
    "then the KL terms, which say how many nats each latent scale carries, can shrink. Runs that count other pixels "
    "(objective.top_k) have cross-entropies that cannot be compared. Logarithmic axes; KL below 0.001 is drawn there."
)
_VALIDATION = (
    "Metrics on a fixed part of the validation images. GED² is the distance between samples and graders' maps; "
    "matched IoU is the agreement of the two sets after an optimal one-to-one match; IoU_rec says how well a "
    "grader's own map comes back through the posterior."
)
_SAMPLES = (
    "{what}, {where}: the image, what each grader drew, below it how the model reconstructs that map through its "
    "posterior (rec.), and samples from the prior, which sees the image alone. Good samples differ from each other "
    "as the graders do. {colours}"
)
_SCALES = (
    "{what}, {where}: the prior-mean prediction, then samples and, pixel by pixel, {differ}. All: every "
    "latent scale is sampled; global: only the most global one, the others stay at their mean; local: only "
    "the most local one. In the paper the global scale switches whole structures on and off, the local one alters "
    "mostly their borders. {colours}"
)
_ONE_SCALE = (
    "Where samples differ, {where}: the prior-mean prediction, samples and, pixel by pixel, {differ}. "
    "This model has a single, global latent scale, so there is nothing to take apart. {colours}"
)
_STD = "the standard deviation over all samples of the probability of {classes}"
_DISAGREEMENT = (
    "how often two samples have different labels (the share of all pairs of the {count} that were saved): ids are "
    "random, so an instance that is drawn anew each time is bright, and one that never changes its id is dark"
)
_INSTANCES = (
    "{what}, {where}: the true instances, those found by clustering the samples (Hamming distance, small clusters "
    "painted over), and some of the samples; below, the framed part enlarged. An instance that was found has the "
    "colour of the true one it overlaps most, unless a neighbour has it; colours of instances mean nothing else. "
    "The Rand error is 0 for a perfect clustering. {colours}"
)
_EXTRAPOLATION = (
    "{what}, {where}: beyond the dashed line the image was hidden from the prior, which saw the visible part "
    "and its labels. Reconstructions come from the posterior, which is given all labels; samples from the prior are "
    "guesses that should go on with what is visible. {colours}"
)


@dataclass(frozen=True)
class Drawing:
    """A figure, drawn when asked for, so that only one need be in memory."""

    name: str
    """Unique in a report: what its file is called."""
    title: str
    caption: str
    draw: Callable[[], Any]


@dataclass(frozen=True)
class Section:
    """Drawings under a heading; a note where there are none."""

    heading: str
    drawings: Sequence[Drawing]
    note: str = ""


def report_sections(runs: Sequence[SavedRun]) -> list[Section]:
    """Curves of all runs together, then what each run's validation and evaluations saved."""
    several = "all runs overlaid" if len(runs) > 1 else runs[0].name
    dynamics = Drawing("dynamics", f"Training curves, {several}", _DYNAMICS, partial(training_dynamics, runs))
    sections = [Section("Training", [dynamics])]
    if any(run.examples for run in runs):
        curves = Drawing(
            "validation", f"Validation metrics, {several}", _VALIDATION, partial(validation_curves, runs)
        )
        sections.append(Section("Validation", [curves]))
    for run in runs:
        if run.examples is None:
            note = "This run has not validated yet, so it has saved no pictures."
            sections.append(Section(f"Hypotheses of {run.name}", [], note))
        else:
            where = f"validation images at iteration {run.step}"
            drawings = _drawings(run.examples, run=run, name=run.name, where=where)
            sections.append(Section(f"Hypotheses of {run.name}", drawings))
        for folder, evaluation in run.evaluations.items():
            if evaluation.examples is not None:
                where, number = f"images of evaluation {folder}", evaluation.num_images
                drawings = _drawings(
                    evaluation.examples, run=run, name=f"{run.name}-{folder}", where=where, num_evaluated=number
                )
                sections.append(Section(f"Evaluation {folder} of {run.name}", drawings))
    return sections


def _drawings(
    examples: Examples, *, run: SavedRun, name: str, where: str, num_evaluated: int | None = None
) -> list[Drawing]:
    """The figures that these examples allow; the paper's order."""
    words = {"where": where, "colours": _colours(examples), "differ": _differ(examples)}
    found: dict[str, tuple[str, str, Callable[[], Any]]] = {}
    if examples.visible is not None:
        found["extrapolation"] = ("Extrapolations", _EXTRAPOLATION, partial(draw_extrapolation, examples))
    else:
        found["samples"] = (
            "Graders, reconstructions and samples",
            _SAMPLES,
            partial(draw_samples, examples),
        )
    if examples.std:
        several = len(run.settings.model.latent_dims) > 1
        caption = _SCALES if several else _ONE_SCALE
        found["scales"] = ("What each scale decides", caption, partial(draw_scales, examples, several=several))
    has_instances = examples.instances is not None
    caption, draw = (_INSTANCES, draw_instances) if has_instances else (_SAMPLES, draw_samples)
    chosen = shown_in_instances if has_instances else shown_in_samples
    if has_instances:
        found["instances"] = ("Instances", caption, partial(draw, examples))
    # Where all of them are shown above already, each with its number, another order says nothing new.
    new = set(chosen(examples, hardest=True)) - set(chosen(examples))
    if new and examples.visible is None:
        found["hardest"] = (_hardest(examples, num_evaluated), caption, partial(draw, examples, hardest=True))
    return [
        Drawing(f"{name}-{what}", f"{title}, {run.name}", caption.format(what=title, **words), draw)
        for what, (title, caption, draw) in found.items()
    ]


def _hardest(examples: Examples, num_evaluated: int | None) -> str:
    metric = METRIC_NAMES.get(examples.hardness_metric, examples.hardness_metric)
    of_all = examples.is_hardest is not None and num_evaluated is not None
    of = f"the {num_evaluated} evaluated" if of_all else f"{len(examples.image)} saved examples"
    return f"The hardest of {of} by {metric}"


def _differ(examples: Examples) -> str:
    """What the last column of scales shows."""
    if examples.are_ids:
        return _DISAGREEMENT.format(count=examples.samples["full"].shape[1])
    classes = examples.stochastic_classes
    several = "the classes in colour, all together"
    return _STD.format(classes=examples.class_names[classes[0]] if len(classes) == 1 else several)


def _colours(examples: Examples) -> str:
    """How label maps are painted, in words."""
    names = examples.class_names
    if len(examples.stochastic_classes) == 1:
        return f"Painted: {names[examples.stochastic_classes[0]]}."
    others = ", other classes grey" if has_other_classes(examples) else ""
    return f"In label maps, colour and hatching are the id or class{others}, {names[0]} black."
