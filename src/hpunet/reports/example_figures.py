"""The figures of example images, as in the paper: samples, scales, instances, hardest cases, extrapolations."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from hpunet.reports.examples import Examples
from hpunet.reports.layout import WIDTH, Cell, Line, Sheet, draw_sheet
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
from hpunet.utils.pictures import marked_part, spread, stretched

_MAX_EXAMPLES, _MAX_GRADERS = 6, 6
_MAX_HEIGHT = 11.5  # inches: a printed page
_STD_LABEL = "standard deviation"
_ROWS = {"full": "all", "global": "global", "local": "local"}


def shown_in_samples(examples: Examples, *, hardest: bool = False) -> list[int]:
    """The examples that `draw_samples` shows."""
    num_graders, per_line = _graders_and_samples(examples)
    return _chosen(examples, hardest=hardest, columns=1 + num_graders + per_line, lines=2, above=0.7)


def draw_samples(examples: Examples, *, hardest: bool = False) -> Any:
    """Graders above their reconstructions (Fig. 2), and two rows of samples, for the examples that fit a page."""
    num_graders, per_line = _graders_and_samples(examples)
    titles = ("grader {}", "rec. {}") if num_graders > 1 else ("ground truth", "reconstruction")
    lines: list[Line] = []
    for i in shown_in_samples(examples, hardest=hardest):
        top: list[Cell | None] = [_image(examples, i, "image")]
        bottom: list[Cell | None] = [None]
        for r in range(num_graders):
            truth, rebuilt = (Cell(None, title=title.format(r + 1), text="no grading") for title in titles)
            if examples.graders[i, r]:
                truth = _classes(examples, i, examples.labels[i, r], truth.title, truth=True)
                rebuilt = _classes(examples, i, examples.reconstructions[i, r], rebuilt.title)
            top.append(truth)
            bottom.append(rebuilt)
        samples = _samples(examples, i, "full", 2 * per_line)
        lines.append(Line([*top, *samples[:per_line]], heading=_heading(examples, i)))
        lines.append(Line([*bottom, *samples[per_line:]]))
    return _draw(examples, lines, groups=(1, 1 + num_graders))


def draw_scales(examples: Examples, *, several: bool) -> Any:
    """The prior-mean prediction, samples, and their standard deviation by what was sampled (Fig. 3).

    `several` is whether the model has several latent scales; otherwise there is one row per example.
    """
    assert examples.prior_mean is not None
    assert examples.std is not None
    num_samples = min(5, *(maps.shape[1] for maps in examples.samples.values()))
    ways = dict(zip(_ROWS, (0, 1, -1), strict=True)) if several else {"full": 0}
    lines: list[Line] = []
    for i in _chosen(examples, columns=3 + num_samples, lines=len(ways)):
        mean = _classes(examples, i, examples.prior_mean[i], "prior mean")
        for way, number in ways.items():
            first = (_image(examples, i, "image"), mean) if way == "full" else (None, None)
            cells = (
                *first,
                *_samples(examples, i, way, num_samples),
                _deviation(examples, i, examples.std[i, number], "std. dev."),
            )
            heading = _heading(examples, i) if way == "full" else ""
            lines.append(Line(cells, heading=heading, label=_ROWS[way] if several else ""))
    return _draw(examples, _titled_once(lines), groups=(2, 2 + num_samples), bar_label=_STD_LABEL)


def draw_deviations(examples: Examples, *, scales: Sequence[int]) -> Any:
    """The standard deviation with all `scales` sampled, and with each alone, beside that of several graders."""
    assert examples.std is not None
    num_graders, lines = examples.labels.shape[1], []
    for i in _chosen(examples, columns=2 + (num_graders > 1) + len(scales), lines=1):
        cells = [_image(examples, i, "image")]
        if num_graders > 1:
            marked = np.isin(examples.labels[i, examples.graders[i]], examples.stochastic_classes)
            cells.append(_deviation(examples, i, marked.std(axis=0), "graders"))
        cells.append(_deviation(examples, i, examples.std[i, 0], "all scales"))
        cells += [_deviation(examples, i, examples.std[i, 1 + n], f"only scale {n}") for n in scales]
        lines.append(Line(cells, heading=_heading(examples, i)))
    columns = len(lines[0].cells) - len(scales)
    how: dict[str, Any] = {"groups": range(1, columns + 1), "bar_label": _STD_LABEL, "legend": ()}
    return _draw(examples, _titled_once(lines), **how)


def shown_in_instances(examples: Examples, *, hardest: bool = False) -> list[int]:
    """The examples that `draw_instances` shows."""
    return _chosen(examples, hardest=hardest, columns=3 + min(4, examples.samples["full"].shape[1]), lines=2)


def draw_instances(examples: Examples, *, hardest: bool = False) -> Any:
    """Image, true instances, clustering and samples, and a part of them enlarged (Fig. 4 and 6), as many as fit."""
    assert examples.true_instances is not None
    assert examples.instances is not None
    lines: list[Line] = []
    for i in shown_in_instances(examples, hardest=hardest):
        truth, found = examples.true_instances[i], examples.instances[i]
        true_colours = colour_instances(truth)
        found_colours = colour_instances(found, prefer=true_colours)
        h, w = truth.shape
        whole_image = stretched(examples.image[i])
        base = light_grey(whole_image) if examples.has_other_classes else np.zeros((h, w, 3), dtype=np.uint8)
        counted = np.where(examples.valid[i][..., None], base, WHITE)
        box = _busiest_part(truth, found)
        for y, x, height, width in ((0, 0, h, w), box) if examples.blank is None else ((0, 0, h, w),):
            part = np.s_[y : y + height, x : x + width]
            image, whole = whole_image[:, *part], height == h
            pixels = {
                "image": paint_image(image),
                "true instances": paint_instances(
                    base=counted[part], instances=truth[part], colours=true_colours[part]
                ),
                "clustering": paint_instances(base=base[part], instances=found[part], colours=found_colours[part]),
            }
            for s, labels in enumerate(examples.samples["full"][i, :4], start=1):
                classes = examples.stochastic_classes
                pixels[f"sample {s}"] = paint_classes(image=image, labels=labels[part], stochastic_classes=classes)
            pixels = {title: _without_blank(examples, p) if whole else p for title, p in pixels.items()}
            frame = box if whole and examples.blank is None else None
            cells = [Cell(p, title=title, size=(height, width), box=frame) for title, p in pixels.items()]
            heading, label = (_heading(examples, i), "") if whole else ("", "enlarged")
            lines.append(Line(cells, heading=heading, label=label))
    return _draw(examples, _titled_once(lines), groups=(1, 3))


def hardest_first(examples: Examples) -> list[int]:
    """The examples by falling hardness, without those where it is undefined; none if it was not saved."""
    if examples.hardness is None:
        return []
    order = np.argsort(-examples.hardness, kind="stable")
    return [int(i) for i in order if np.isfinite(examples.hardness[i])]


def _heading(examples: Examples, i: int) -> str:
    if examples.hardness is None:
        return examples.keys[i]
    value = examples.hardness[i]
    return f"{examples.keys[i]} – {examples.hardness_name} {'undefined' if np.isnan(value) else f'{value:.3f}'}"


def draw_extrapolation(examples: Examples) -> Any:
    """What the prior saw, and how samples continue it beyond the dashed line (Fig. 5)."""
    num_samples = min(4, examples.samples["full"].shape[1])
    lines: list[Line] = []
    for i in _chosen(examples, columns=5 + num_samples, lines=1):
        grader = int(examples.graders[i].argmax())
        truth = examples.labels[i, grader]
        cells = [
            _image(examples, i, "whole image", cover=False),
            _image(examples, i, "visible part"),
            _classes(examples, i, truth, "visible labels", truth=True, cover=True),
            _classes(examples, i, truth, "ground truth", truth=True),
            _classes(examples, i, examples.reconstructions[i, grader], "reconstruction"),
        ]
        lines.append(Line(cells + _samples(examples, i, "full", num_samples), heading=_heading(examples, i)))
    return _draw(examples, _titled_once(lines), groups=(3, 5))


def _graders_and_samples(examples: Examples) -> tuple[int, int]:
    """How many graders are shown, and samples in each of two lines."""
    num_graders = min(_MAX_GRADERS, examples.labels.shape[1])
    return num_graders, min(max(2, 8 - num_graders), 4, -(-examples.samples["full"].shape[1] // 2))


def _chosen(examples: Examples, *, columns: int, lines: int, above: float = 0.3, hardest: bool = False) -> list[int]:
    """The examples that fit a page: the hardest, or spread over the set. `above` is the inches of text above each."""
    h, w = examples.image.shape[2:]
    height = lines * ((WIDTH - 1) / columns * h / w) + above
    count = min(_MAX_EXAMPLES, max(1, int(_MAX_HEIGHT / height)))
    if hardest:
        return hardest_first(examples)[:count]
    is_spread = np.ones(len(examples.image)) if examples.is_spread is None else examples.is_spread
    candidates = np.flatnonzero(is_spread).tolist()
    return [candidates[i] for i in spread(count, of=len(candidates))]


def _titled_once(lines: Sequence[Line]) -> list[Line]:
    """The lines, with titles on the first one only."""
    rest = [replace(line, cells=[cell and replace(cell, title="") for cell in line.cells]) for line in lines[1:]]
    return [*lines[:1], *rest]


def _draw(examples: Examples, lines: Sequence[Line], **how: Any) -> Any:
    h, w = examples.image.shape[2:]
    return draw_sheet(Sheet(lines=lines, aspect=h / w, **{"legend": _legend(examples), **how}))


def _legend(examples: Examples) -> list[tuple[np.ndarray, str]]:
    classes, names = list(examples.stochastic_classes), examples.class_names
    entries = [(legend_swatch(i + 1, palette=examples.palette), names[c]) for i, c in enumerate(classes)]
    if len(classes) == 1 and examples.visible is None:
        return entries
    if examples.has_other_classes:
        entries.append((np.full((1, 1, 3), 200, dtype=np.uint8), "other classes, in greys"))
    black = legend_swatch(0)
    entries.append((black, names[0]))
    if examples.visible is not None:
        entries.append((cover_hidden(black, visible=np.zeros(black.shape[:2], dtype=np.bool_)), "hidden"))
    if not examples.valid.all():
        entries.append((np.full((1, 1, 3), 255, dtype=np.uint8), "not counted"))
    return entries


def _cell(examples: Examples, i: int, pixels: np.ndarray, title: str, *, cover: bool = False) -> Cell:
    """A cell with the border of the visible part; `cover` hides the rest."""
    visible = None if examples.visible is None else examples.visible[i]
    h, w = examples.image.shape[2:]
    shown = cover_hidden(pixels, visible=visible) if cover and visible is not None else pixels
    return Cell(_without_blank(examples, shown), title=title, size=(h, w), visible=visible)


def _without_blank(examples: Examples, pixels: np.ndarray) -> np.ndarray:
    """White between the planes of a volume; a map with a colour bar is drawn nowhere there."""
    if examples.blank is None:
        return pixels
    factor = len(pixels) // len(examples.blank)
    blank = examples.blank.repeat(factor, axis=0).repeat(factor, axis=1)
    return np.where(blank, np.nan, pixels) if pixels.ndim == 2 else np.where(blank[..., None], WHITE, pixels)


def _image(examples: Examples, i: int, title: str, *, cover: bool = True) -> Cell:
    """The image, as the prior saw it unless `cover` is false."""
    cell = _cell(examples, i, paint_image(_with_cuts(examples, i, stretched(examples.image[i]))), title, cover=cover)
    part = _part(examples, i)
    if (slice(0, cell.size[0]), slice(0, cell.size[1])) == part:
        return cell
    top, left = (each.start for each in part)
    return replace(cell, box=(top, left, part[0].stop - top, part[1].stop - left))


def _with_cuts(examples: Examples, i: int, image: np.ndarray) -> np.ndarray:
    """The picture of a volume with thin lines in each plane where the other two cut it."""
    if examples.cuts is None:
        return image
    lines = np.zeros(image.shape[1:], dtype=np.bool_)
    rows, columns = examples.cuts[i].tolist()
    lines[rows], lines[:, columns] = True, True
    return np.asarray(np.where(lines, 0.5 * image + 0.5, image), dtype=image.dtype)


def _part(examples: Examples, i: int) -> tuple[slice, slice]:
    """What is shown of maps of an example: of one class in a square image, the square around all marked pixels."""
    h, w = examples.image.shape[2:]
    is_whole = examples.blank is not None or examples.visible is not None
    if len(examples.class_names) > 2 or h != w or examples.are_ids or is_whole:
        return slice(0, h), slice(0, w)
    maps = [examples.labels[i], examples.reconstructions[i], *(found[i] for found in examples.samples.values())]
    return marked_part(np.concatenate([each.astype(np.int64) for each in maps]))


def _deviation(examples: Examples, i: int, pixels: np.ndarray, title: str) -> Cell:
    return _cell(examples, i, pixels[_part(examples, i)], title)


def _classes(
    examples: Examples, i: int, labels: Integer[np.ndarray, "h w"], title: str, *, truth: bool = False, **how: bool
) -> Cell:
    """A label map; pixels of a true one that are not valid are white."""
    part = _part(examples, i)
    image: Float[np.ndarray, "c h w"] = stretched(examples.image[i])[:, *part]
    labels = labels[part]
    valid, classes = examples.valid[i][part] if truth else None, examples.stochastic_classes
    how_painted: dict[str, Any] = {"stochastic_classes": classes, "valid": valid, "palette": examples.palette}
    pixels = paint_classes(image=image, labels=labels, **how_painted)
    return _cell(examples, i, pixels, title, **how)


def _samples(examples: Examples, i: int, way: str, count: int) -> list[Cell]:
    maps = examples.samples[way][i, :count]
    return [_classes(examples, i, labels, f"sample {s}") for s, labels in enumerate(maps, start=1)]


def _busiest_part(truth: np.ndarray, found: np.ndarray) -> tuple[int, int, int, int]:
    """Top, left, height and width of the third of the image with most borders of instances."""
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
