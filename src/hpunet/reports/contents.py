"""What a report shows: the figures that the saved files of runs allow, with captions and headings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hpunet.config.settings import Settings
from hpunet.reports import example_figures as figures
from hpunet.reports.curves import training_dynamics, validation_curves
from hpunet.reports.examples import Examples
from hpunet.reports.saved_run import SavedEvaluation, SavedRun
from hpunet.training.verdict import verdict

_DYNAMICS = (
    "Training curves, as in the paper's appendix. Thin lines are single batches, thick lines running means. GECO "
    "raises λ while the cross-entropy of the reconstruction is above κ (dotted) and lowers it once it is below; then "
    "the KL terms, the nats that each latent scale carries, can shrink. Cross-entropies of runs that count different "
    "pixels (objective.top_k) cannot be compared. Axes are logarithmic; KL below 0.001 is drawn as 0.001."
)
_VALIDATION = (
    "Metrics on a fixed part of the validation images. GED² is the distance between the samples and the graders' "
    "maps; matched IoU is the agreement of the two sets after an optimal one-to-one match; IoU_rec is the agreement "
    "of a grader's map with its reconstruction through the posterior."
)
_SAMPLES = (
    "{what}, {where}: the image, each grader's map, below it its reconstruction through the posterior (rec.), and "
    "samples from the prior, which sees only the image. Good samples differ from each other as the graders do. "
    "{colours}"
)
_SCALES = (
    "{what}, {where}: the prior-mean prediction, samples and, for each pixel, {differ}. All: every latent scale is "
    "sampled; global: only the most global one, the others stay at their mean; local: only the most local one. In "
    "the paper the global scale switches whole structures on and off, and the local one mostly changes their "
    "borders. {colours}"
)
_ONE_SCALE = (
    "Where samples differ, {where}: the prior-mean prediction, samples and, for each pixel, {differ}. This model has "
    "a single, global latent scale, so there are no scales to compare. {colours}"
)
_DEVIATIONS = (
    "{what}, {where}: for each pixel, {differ}. All latent scales are sampled, or one of them while the others stay "
    "at their mean; scale 0 is the coarsest.{graders}{part}"
)
_PLANES = (
    " Each picture has three planes of a volume that cut each other in a position that a grader marked (lines in the "
    "image): axial, below it coronal, right of it sagittal. Slices are as thick as they are in the data.{part}"
)
_PART_OF_VOLUME = " Where little is marked, planes show only its surroundings."
_PART = " Where little is marked, maps show the part that is framed in the image."
_GRADERS = " Graders: the standard deviation over the graders' maps, 0 where all agree, at most 0.5."
_STD = "the standard deviation over all samples of the probability of {classes}"
_LARGEST_STD = "the standard deviation over all samples of a class's probability, for the class where it is largest"
_STD_OF_IDS = (
    "the standard deviation over all samples of the probability of an id or class, for the one where it is largest. "
    "Ids are random: an instance whose id changes between samples is bright, one that keeps its id is dark"
)
_INSTANCES = (
    "{what}, {where}: the true instances, those found by clustering the samples (Hamming distance, small clusters "
    "filled in), and some of the samples{enlarged}. A found instance has the colour of the "
    "true one it overlaps most, unless a neighbour has that colour; colours mean nothing else. The Rand error of a "
    "perfect clustering is 0. {colours}"
)
_EXTRAPOLATION = (
    "{what}, {where}: beyond the dashed line the image was hidden from the prior, which saw the visible part and its "
    "labels. Reconstructions come from the posterior, which is given all labels; samples from the prior are guesses "
    "that should continue the visible part. {colours}"
)


@dataclass(frozen=True)
class Drawing:
    """A figure with a name that is unique in the report; drawn on request, so that memory holds one at a time."""

    name: str
    title: str
    caption: str
    draw: Callable[[], Any]


@dataclass(frozen=True)
class Section:
    """Drawings under a heading; a note where there are none."""

    heading: str
    drawings: Sequence[Drawing]
    note: str = ""


def verdicts(runs: Sequence[SavedRun]) -> list[Section]:
    """What to make of each run, for the top of the page."""
    return [
        Section(f"Verdict on {run.name}", [], " ".join(verdict(run.log, run.settings, run.description)))
        for run in runs
    ]


def report_sections(runs: Sequence[SavedRun]) -> list[Section]:
    """Curves of all runs together, then the examples of each run's validation and evaluations."""
    several = "all runs overlaid" if len(runs) > 1 else runs[0].name
    dynamics = Drawing("dynamics", f"Training curves, {several}", _DYNAMICS, partial(training_dynamics, runs))
    sections = [Section("Training", [dynamics])]
    if any(run.examples for run in runs):
        draw = partial(validation_curves, runs)
        curves = Drawing("validation", f"Validation metrics, {several}", _VALIDATION, draw)
        sections.append(Section("Validation", [curves]))
    for run in runs:
        if run.examples is None:
            note = "This run has not validated yet, so it has no example images."
            sections.append(Section(f"Hypotheses of {run.name}", [], note))
        else:
            where = f"validation {_images(run.examples)} at iteration {run.step}"
            drawings = example_drawings(run.examples, of=run.name, settings=run.settings, where=where)
            sections.append(Section(f"Hypotheses of {run.name}", drawings))
        for folder, evaluation in run.evaluations.items():
            sections += evaluation_sections(evaluation, of=run.name, folder=folder, settings=run.settings)
    return sections


def evaluation_sections(evaluation: SavedEvaluation, *, of: str, folder: str, settings: Settings) -> list[Section]:
    """The examples of an evaluation `of` a model in a folder of this name; none if every image failed."""
    if evaluation.examples is None:
        return []
    named: dict[str, Any] = {"of": of, "settings": settings, "name": f"{of}-{folder}"}
    named |= {
        "where": f"{_images(evaluation.examples)} of evaluation {folder}",
        "num_evaluated": evaluation.num_images,
    }
    return [Section(f"Evaluation {folder} of {of}", example_drawings(evaluation.examples, **named))]


def example_drawings(
    examples: Examples,
    *,
    of: str,
    settings: Settings,
    where: str,
    name: str | None = None,
    num_evaluated: int | None = None,
) -> list[Drawing]:
    """The figures that these examples `of` a model allow, in the order of the paper; `name` begins their names."""
    name = of if name is None else name
    words = {"where": where, "colours": _colours(examples), "differ": _differ(examples)}
    words["enlarged"] = "" if examples.blank is not None else "; below, the framed part enlarged"
    found: dict[str, tuple[str, str, Callable[..., Any]]] = {}
    if examples.visible is not None:
        found["extrapolation"] = ("Extrapolations", _EXTRAPOLATION, figures.draw_extrapolation)
    else:
        found["samples"] = ("Graders, reconstructions and samples", _SAMPLES, figures.draw_samples)
    if examples.std is not None and examples.prior_mean is not None:
        several = len(settings.model.latent_dims) > 1
        draw = partial(figures.draw_scales, several=several)
        found["scales"] = ("The role of each scale", _SCALES if several else _ONE_SCALE, draw)
        scales = [i for i, dim in enumerate(settings.model.latent_dims[: examples.std.shape[1] - 1]) if dim]
        if len(scales) > 2:  # else the figure above shows them all
            text = _DEVIATIONS.replace("{graders}", _GRADERS if examples.labels.shape[1] > 1 else "")
            text = text.replace("{part}", _part(examples))
            found["std"] = ("Standard deviation by scale", text, partial(figures.draw_deviations, scales=scales))
    chosen, caption, draw_hardest = figures.shown_in_samples, _SAMPLES, figures.draw_samples
    if examples.instances is not None:
        chosen, caption, draw_hardest = figures.shown_in_instances, _INSTANCES, figures.draw_instances
        found["instances"] = ("Instances", caption, draw_hardest)
    # Without new examples the hardest ones would repeat the figure above in another order.
    if examples.visible is None and set(chosen(examples, hardest=True)) - set(chosen(examples)):
        is_of_all = examples.is_hardest is not None and num_evaluated is not None
        among = f"the {num_evaluated} evaluated" if is_of_all else f"{len(examples.image)} saved examples"
        title = f"The hardest of {among} by {examples.hardness_name}"
        found["hardest"] = (title, caption, partial(draw_hardest, hardest=True))
    return [
        Drawing(f"{name}-{what}", f"{title}, {of}", text.format(what=title, **words), partial(draw, examples))
        for what, (title, text, draw) in found.items()
    ]


def _differ(examples: Examples) -> str:
    """The meaning of the standard deviation."""
    if examples.are_ids:
        return _STD_OF_IDS
    if len(examples.class_names) > 2:
        return _LARGEST_STD
    return _STD.format(classes=examples.class_names[examples.stochastic_classes[0]])


def _colours(examples: Examples) -> str:
    """How label maps are painted, in words."""
    names = examples.class_names
    if len(examples.stochastic_classes) == 1:
        return f"Painted: {names[examples.stochastic_classes[0]]}.{_part(examples)}"
    others = ", other classes are grey" if examples.has_other_classes else ""
    planes = "" if examples.blank is None else _part(examples)
    return f"In label maps, colour and hatching show the id or class{others}, {names[0]} is black.{planes}"


def _part(examples: Examples) -> str:
    """Which part pictures show, in words."""
    is_enlarged = len(examples.class_names) == 2
    if examples.blank is not None:
        return _PLANES.format(part=_PART_OF_VOLUME if is_enlarged else "")
    return _PART if is_enlarged else ""


def _images(examples: Examples) -> str:
    return "images" if examples.blank is None else "volumes"
