"""The page of published weights: what they are, what they were trained on, their scores, and example images."""

from pathlib import Path
from typing import Any

from hpunet.data.examples.load import example, example_names
from hpunet.data.types import Identity, Sample, SetInfo, make_sample
from hpunet.evaluation.examples import example_arrays
from hpunet.evaluation.scorer import Scorer
from hpunet.reports.contents import Section, evaluation_sections, example_drawings
from hpunet.reports.examples import Examples, as_examples
from hpunet.reports.page import Progress, Table, evaluations_table, settings_words, write_page
from hpunet.reports.saved_run import read_evaluation
from hpunet.weights.load import TrainedModel, load_trained
from hpunet.weights.published import find_published

_NUM_SAMPLES = 32
"""Standard deviations are over all, as in the paper; the first ones are shown."""
_SHIPPED = "LIDC crops that ship with hpunet, of patients held out from training"


class _ShippedExamples:
    """The example images that ship with hpunet, as data."""

    def __init__(self, info: SetInfo) -> None:
        self.info, self.split = info, "val"
        self.identities = [Identity(name, name) for name in example_names()]

    def __len__(self) -> int:
        return len(self.identities)

    def __getitem__(self, index: int) -> Sample:
        identity = self.identities[index]
        found = example(identity.key)
        pixels: dict[str, Any] = {"image": found.image[None], "labels": found.labels}
        return make_sample(**pixels, identity=identity, info=self.info, where=str(found.path))

    def files(self, index: int) -> dict[str, Path | bytes]:
        return {}


def write_published_report(
    name: str, out: Path, *, figures: Path | None = None, progress: Progress = lambda drawings, _count: drawings
) -> Path:
    """Write the page of published weights, by name or folder, to `out`, overwriting it; returns its path.

    Evaluations in `evaluation/NAME` of the working folder, where `hpunet evaluate NAME` writes them, are on it too.
    """
    trained = load_trained(name)
    folder, sections = find_published(name) or Path(name), _sections(trained)
    evaluated = sorted(path.parent for path in folder.glob("evaluation/*/summary.json"))
    evaluations = {f"{trained.name}, {path.name}": read_evaluation(path) for path in evaluated}
    for path in sorted(path.parent for path in Path("evaluation", trained.name).glob("*/summary.json")):
        evaluation = evaluations[str(path)] = read_evaluation(path)
        named: dict[str, Any] = {"of": trained.name, "folder": path.name, "settings": trained.settings}
        sections += evaluation_sections(evaluation, **named)
    tables = [_about(trained), *([evaluations_table(evaluations)] if evaluations else [])]
    title = f"{trained.name}: published weights"
    return write_page(sections, out, figures=figures, title=title, tables=tables, progress=progress)


def _about(trained: TrainedModel) -> Table:
    info, settings = trained.info, trained.settings
    words = settings_words(settings)
    num_parameters = sum(parameter.numel() for parameter in trained.model.parameters())
    classes = [
        *info.fixed_classes,
        *([f"{info.num_random_ids} random ids of instances"] if info.has_instances else []),
    ]
    rows = {
        "model": f"{words['model']}; {num_parameters / 1e6:.1f} million parameters",
        "trained on": f"{info.kind}: {info.in_channels} channel(s) of {info.image_bits} bits, {info.num_graders} "
        f"grader(s), classes {', '.join(classes)}; crops of {'×'.join(map(str, settings.data.crop))} pixels",
        "objective": words["objective"],
        "optimiser": f"iteration {trained.step} of {words['optimiser']}",
        "orientations": f"samples are drawn from {settings.model.orientations} orientation(s) of the image",
        "reconstruction": "yes" if trained.has_posterior else "no: these weights are for sampling only",
        "credit": trained.credit or "–",
    }
    return Table("Model", "", ["", ""], [list(row) for row in rows.items()])


def _sections(trained: TrainedModel) -> list[Section]:
    heading, info = "Example images", trained.info
    if info.kind != "lidc" or not trained.has_posterior:
        why = "weights for sampling only have no reconstructions" if info.kind == "lidc" else f"{info.kind} has none"
        return [Section(heading, [], f"No example images: hpunet ships some of LIDC; {why}.")]
    examples = _drawn(trained)
    drawings = example_drawings(examples, of=trained.name, settings=trained.settings, where=_SHIPPED)
    return [Section(heading, drawings, f"Images: {example().credit}")]


def _drawn(trained: TrainedModel) -> Examples:
    source = _ShippedExamples(trained.info)
    scorer = Scorer(
        model=trained.model,
        sampler=trained.sampler,
        device=trained.device,
        info=trained.info,
        crop=trained.settings.data.crop,
        num_samples=_NUM_SAMPLES,
    )
    arrays = example_arrays(scorer, source, range(len(source)))
    return as_examples(arrays, path=Path(trained.name))
