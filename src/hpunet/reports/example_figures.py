"""The figures of example images, as in the paper: samples, scales, instances, hardest cases, extrapolations."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Integer

from hpunet.reports.examples import Examples
from hpunet.reports.layout import LARGEST_STD, WIDTH, Cell, Line, Sheet, draw_sheet
from hpunet.utils.label_painter import (
    WHITE,
    colour_instances,
    cover_hidden,
    legend_swatch,
    light_grey,
    paint_classes,
    paint_image,
    paint_instances,
)
from hpunet.utils.pictures import spread, stretched

_MAX_EXAMPLES = 6
_MAX_HEIGHT = 11.5
"""Inches: a printed page."""
_MAX_GRADERS = 6
METRIC_NAMES = {"rand_error": "Rand error", "ged2": "GED²"}
_SPREADS = {False: ("std. dev.", "standard deviation", LARGEST_STD), True: ("disagreement", "pairs that differ", 1.0)}
"""Title, bar and its end for what samples of classes, and those of ids, are summed up by."""
_ROWS = {"full": "all", "global": "global", "local": "local"}


def shown_in_samples(examples: Examples, *, hardest: bool = False) -> list[int]:
    """The examples that `draw_samples` shows."""
    num_graders, per_line = _graders_and_samples(examples)
    return _chosen(examples, hardest=hardest, columns=1 + num_graders + per_line, lines=2, words=0.7)


def draw_samples(examples: Examples, *, hardest: bool = False) -> Any:
    """Graders above their reconstructions (Fig. 2), samples beside them in two rows; each example has its titles.

    As many examples as fit a page: spread over all, or the hardest.
    """
    num_graders, per_line = _graders_and_samples(examples)
    lines: list[Line] = []
    for i in shown_in_samples(examples, hardest=hardest):
        titles = ("grader {}", "rec. {}") if num_graders > 1 else ("ground truth", "reconstruction")
        rows: list[list[Cell | None]] = [[_image(examples, i, "image")], [None]]
        for r in range(num_graders):
            there = bool(examples.graders[i, r])
            for row, maps, title in zip(rows, (examples.labels, examples.reconstructions), titles, strict=True):
                truth = maps is examples.labels
                shown = _classes(examples, i, maps[i, r], truth=truth) if there else _words("no grading")
                row.append(_titled(shown, title.format(r + 1)))
        samples = examples.samples["full"][i][: 2 * per_line]
        for s, labels in enumerate(samples):
            rows[s // per_line].append(_titled(_classes(examples, i, labels), f"sample {s + 1}"))
        lines += [Line(rows[0], heading=_heading(examples, i)), Line(rows[1])]
    return _draw(examples, lines, groups=(1, 1 + num_graders))


def draw_scales(examples: Examples, *, several: bool) -> Any:
    """The prior-mean prediction, and samples and how they differ by what was sampled (Fig. 3).

    That is the standard deviation of the probability of stochastic classes. Where these are ids of instances it would
    only say whether there is an instance, so there it is how often two samples have different labels.
    `several` says whether the model has more than one latent scale; else there is one row an example.
    """
    assert examples.prior_mean is not None
    num_samples = min(5, *(maps.shape[1] for maps in examples.samples.values()))
    ways = list(_ROWS) if several else ["full"]
    title, bar, end = _SPREADS[examples.are_ids]
    lines: list[Line] = []
    for i in _chosen(examples, columns=3 + num_samples, lines=len(ways)):
        for way in ways:
            first, top = not lines, way == "full"
            cells: list[Cell | None] = [None, None]
            if top:
                mean = _classes(examples, i, examples.prior_mean[i])
                cells = [_image(examples, i, "image" if first else ""), _titled(mean, "prior mean" if first else "")]
            for s in range(num_samples):
                shown = _classes(examples, i, examples.samples[way][i, s])
                cells.append(_titled(shown, f"sample {s + 1}" if first else ""))
            spread_out = disagreement(examples.samples[way][i]) if examples.are_ids else examples.std[way][i]
            cells.append(_titled(_cell(examples, i, spread_out), title if first else ""))
            label = _ROWS[way] if several else ""
            lines.append(Line(cells, heading=_heading(examples, i) if top else "", label=label))
    return _draw(examples, lines, groups=(2, 2 + num_samples), bar=bar, bar_end=end)


def disagreement(samples: Integer[np.ndarray, "s h w"]) -> Float[np.ndarray, "h w"]:
    """The share of all pairs of samples that have different labels, pixel by pixel; 0 for a single sample."""
    num_samples = len(samples)
    same = sum(np.square((samples == label).sum(axis=0)) for label in np.unique(samples))
    return np.asarray((num_samples**2 - same) / max(num_samples * (num_samples - 1), 1), dtype=np.float64)


def shown_in_instances(examples: Examples, *, hardest: bool = False) -> list[int]:
    """The examples that `draw_instances` shows."""
    return _chosen(examples, hardest=hardest, columns=3 + _instance_samples(examples), lines=2)


def draw_instances(examples: Examples, *, hardest: bool = False) -> Any:
    """Image, true instances, their clustering, and samples; below them the framed part enlarged (Fig. 4 and 6).

    As many examples as fit a page: spread over all, or the hardest.
    """
    assert examples.true_instances is not None
    assert examples.instances is not None
    num_samples = _instance_samples(examples)
    titles = ["image", "true instances", "clustering", *(f"sample {s + 1}" for s in range(num_samples))]
    lines: list[Line] = []
    for i in shown_in_instances(examples, hardest=hardest):
        truth, found = examples.true_instances[i], examples.instances[i]
        true_colours = colour_instances(truth)
        found_colours = colour_instances(found, prefer=true_colours)
        h, w = truth.shape
        whole_image = stretched(examples.image[i])
        base = light_grey(whole_image) if has_other_classes(examples) else np.zeros((h, w, 3), dtype=np.uint8)
        counted = np.where(examples.valid[i][..., None], base, WHITE)
        box = _busiest_part(truth, found)
        for y, x, height, width in ((0, 0, h, w), box):
            part = np.s_[y : y + height, x : x + width]
            image, whole = whole_image[:, *part], height == h
            pixels = [
                paint_image(image),
                paint_instances(base=counted[part], instances=truth[part], colours=true_colours[part]),
                paint_instances(base=base[part], instances=found[part], colours=found_colours[part]),
            ]
            for labels in examples.samples["full"][i, :num_samples]:
                classes = examples.stochastic_classes
                pixels.append(paint_classes(image=image, labels=labels[part], stochastic_classes=classes))
            cells = [
                Cell(p, size=(height, width), box=box if whole else None, title="" if lines else title)
                for p, title in zip(pixels, titles, strict=True)
            ]
            lines.append(
                Line(cells, heading=_heading(examples, i) if whole else "", label="" if whole else "enlarged")
            )
    return _draw(examples, lines, groups=(1, 3))


def hardest_first(examples: Examples) -> list[int]:
    """The examples by falling hardness, without those where it is undefined; none where it was not saved."""
    if examples.hardness is None:
        return []
    order = np.argsort(-examples.hardness, kind="stable")
    return [int(i) for i in order if np.isfinite(examples.hardness[i])]


def _heading(examples: Examples, i: int) -> str:
    if examples.hardness is None:
        return examples.keys[i]
    value = examples.hardness[i]
    metric = METRIC_NAMES.get(examples.hardness_metric, examples.hardness_metric)
    return f"{examples.keys[i]} – {metric} {'undefined' if np.isnan(value) else f'{value:.3f}'}"


def draw_extrapolation(examples: Examples) -> Any:
    """What the prior saw, and how samples go on with it beyond the dashed line (Fig. 5)."""
    assert examples.visible is not None
    num_samples = min(4, examples.samples["full"].shape[1])
    lines: list[Line] = []
    for i in _chosen(examples, columns=5 + num_samples, lines=1):
        grader = int(examples.graders[i].argmax())
        visible, truth = examples.visible[i], examples.labels[i, grader]
        shown: list[tuple[str, Cell]] = [
            ("whole image", _cell(examples, i, paint_image(stretched(examples.image[i])))),
            ("visible part", _image(examples, i, "")),
            ("visible labels", _hidden(_classes(examples, i, truth, truth=True), visible)),
            ("ground truth", _classes(examples, i, truth, truth=True)),
            ("reconstruction", _classes(examples, i, examples.reconstructions[i, grader])),
        ]
        for s, labels in enumerate(examples.samples["full"][i, :num_samples]):
            shown.append((f"sample {s + 1}", _classes(examples, i, labels)))
        cells = [_titled(cell, "" if lines else title) for title, cell in shown]
        lines.append(Line(cells, heading=_heading(examples, i)))
    return _draw(examples, lines, groups=(3, 5))


def _graders_and_samples(examples: Examples) -> tuple[int, int]:
    """How many graders are shown, and samples in each of two lines."""
    num_graders = min(_MAX_GRADERS, examples.labels.shape[1])
    return num_graders, min(max(2, 8 - num_graders), 4, -(-examples.samples["full"].shape[1] // 2))


def _instance_samples(examples: Examples) -> int:
    return int(min(4, examples.samples["full"].shape[1]))


def _chosen(examples: Examples, *, columns: int, lines: int, words: float = 0.3, hardest: bool = False) -> list[int]:
    """The examples that fit a page, if each takes so many columns and lines, and inches of words above them."""
    h, w = examples.image.shape[2:]
    height = lines * ((WIDTH - 1) / columns * h / w) + words
    count = min(_MAX_EXAMPLES, max(1, int(_MAX_HEIGHT / height)))
    if hardest:
        return hardest_first(examples)[:count]
    over_set = _over_set(examples)
    return [over_set[i] for i in spread(count, of=len(over_set))]


def _over_set(examples: Examples) -> Sequence[int]:
    """The examples that are spread over their set, without those that were saved for their hardness alone."""
    if examples.is_spread is not None and examples.is_spread.any():
        return np.flatnonzero(examples.is_spread).tolist()
    # Files of earlier evaluations do not say; they have up to twelve of them, then the other hardest ones.
    return range(len(examples.image))[: None if examples.is_hardest is None else 12]


def _draw(examples: Examples, lines: Sequence[Line], *, groups: Sequence[int], **bar: Any) -> Any:
    h, w = examples.image.shape[2:]
    return draw_sheet(Sheet(lines=lines, aspect=h / w, groups=groups, legend=_legend(examples), **bar))


def _legend(examples: Examples) -> list[tuple[np.ndarray, str]]:
    classes, names = list(examples.stochastic_classes), examples.class_names
    entries = [(legend_swatch(i + 1), names[c]) for i, c in enumerate(classes)]
    if len(classes) == 1 and examples.visible is None:
        return entries
    if has_other_classes(examples):
        entries.append((np.full((1, 1, 3), 200, dtype=np.uint8), "other classes, in greys"))
    entries.append((legend_swatch(0), names[0]))
    if examples.visible is not None:
        field = legend_swatch(0)
        entries.append((cover_hidden(field, visible=np.zeros(field.shape[:2], dtype=np.bool_)), "hidden"))
    if not examples.valid.all():
        entries.append((np.full((1, 1, 3), 255, dtype=np.uint8), "not counted"))
    return entries


def has_other_classes(examples: Examples) -> bool:
    """Whether there is anything but background and stochastic classes."""
    return len(examples.class_names) > len(examples.stochastic_classes) + 1


def _cell(examples: Examples, i: int, pixels: np.ndarray) -> Cell:
    visible = None if examples.visible is None else examples.visible[i]
    h, w = examples.image.shape[2:]
    return Cell(pixels, size=(h, w), visible=visible)


def _titled(cell: Cell, title: str) -> Cell:
    return replace(cell, title=title)


def _words(words: str) -> Cell:
    return Cell(None, words=words)


def _image(examples: Examples, i: int, title: str) -> Cell:
    """The image as the prior saw it."""
    whole = _titled(_cell(examples, i, paint_image(stretched(examples.image[i]))), title)
    return whole if examples.visible is None else _hidden(whole, examples.visible[i])


def _hidden(cell: Cell, visible: Bool[np.ndarray, "h w"]) -> Cell:
    assert cell.pixels is not None
    return replace(cell, pixels=cover_hidden(cell.pixels, visible=visible))


def _classes(examples: Examples, i: int, labels: Integer[np.ndarray, "h w"], *, truth: bool = False) -> Cell:
    """A label map; in true ones, the pixels that do not count are left white."""
    image: Float[np.ndarray, "c h w"] = stretched(examples.image[i])
    valid = examples.valid[i] if truth else None
    stochastic = examples.stochastic_classes
    return _cell(examples, i, paint_classes(image=image, labels=labels, stochastic_classes=stochastic, valid=valid))


def _busiest_part(truth: np.ndarray, found: np.ndarray) -> tuple[int, int, int, int]:
    """Top, left, height and width of the third of the image that holds most borders of instances."""
    h, w = truth.shape
    height, width = max(1, h // 3), max(1, w // 3)
    borders = np.zeros((h + 1, w + 1), dtype=np.int64)
    for maps in (truth, found):
        borders[1:h, 1 : w + 1] += maps[1:] != maps[:-1]
        borders[1 : h + 1, 1:w] += maps[:, 1:] != maps[:, :-1]
    total = borders.cumsum(axis=0).cumsum(axis=1)
    inside = total[height:, width:] - total[:-height, width:] - total[height:, :-width] + total[:-height, :-width]
    y, x = np.unravel_index(inside.argmax(), inside.shape)
    return int(y), int(x), height, width
