"""Sheets of pictures with matplotlib. Every place is counted in inches, so that nothing overlaps or is cut off."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpunet.errors import ConfigError

WIDTH = 10.0
"""Inches; fits a landscape page, so that the words keep their size in print."""
PAGE_DPI, PRINT_DPI = 130, 300
LARGEST_STD = 0.5
"""Of a probability: half of the samples say 0, the others 1."""
_MARGIN, _GAP, _GROUP_GAP = 0.08, 0.05, 0.16
_WORDS, _SMALL_WORDS = 0.21, 0.17
"""Heights of a line of words."""
_MAX_TILE = 2.4
_MAX_KEY = 80


@dataclass(frozen=True)
class Cell:
    """A picture: RGB, or a float map that is drawn as a standard deviation. Boxes and lines are in pixels."""

    pixels: np.ndarray | None
    title: str = ""
    words: str = ""
    """In the place of a picture."""
    size: tuple[int, int] = (1, 1)
    """Height and width of the map behind the picture."""
    visible: np.ndarray | None = None
    """Where this changes, a dashed line is drawn."""
    box: tuple[int, int, int, int] | None = None
    """Top, left, height and width of a frame."""


@dataclass(frozen=True)
class Line:
    """Pictures side by side. None leaves a place empty."""

    cells: Sequence[Cell | None]
    heading: str = ""
    """Above the pictures, where a new example begins."""
    label: str = ""
    """Left of the pictures, from bottom to top."""


@dataclass(frozen=True)
class Sheet:
    """Lines of pictures, all of one shape."""

    lines: Sequence[Line]
    aspect: float
    """Height of a picture by its width."""
    groups: Sequence[int] = ()
    """Columns that begin a group; a wider gap is left before them."""
    legend: Sequence[tuple[np.ndarray, str]] = ()
    """Little fields, and what they mean."""
    bar: str = ""
    """What the bar of standard deviations says; no bar where it is empty."""


def new_figure(**options: Any) -> Any:
    """A matplotlib figure of its own: no window, no state shared with the caller's figures."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("the report needs matplotlib: pip install hpunet[report]") from None
    drawn = Figure(**options)
    FigureCanvasAgg(drawn)
    return drawn


def as_png(drawn: Any, *, dpi: int) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def as_svg(drawn: Any) -> bytes:
    """The figure as an SVG file whose words are words; the same figure gives the same bytes."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "hpunet"}):
        drawn.savefig(buffer, format="svg", dpi=PRINT_DPI, metadata={"Date": None})
    return buffer.getvalue()


def draw_sheet(sheet: Sheet) -> Any:
    """The sheet as a matplotlib figure, `WIDTH` inches wide or less."""
    num_columns = max(len(line.cells) for line in sheet.lines)
    left = _MARGIN + (0.22 if any(line.label for line in sheet.lines) else 0.0)
    right = _MARGIN + (0.75 if sheet.bar else 0.0)
    gaps = [0.0] + [_GROUP_GAP if column in sheet.groups else _GAP for column in range(1, num_columns)]
    tile = min(_MAX_TILE, (WIDTH - left - right - sum(gaps)) / num_columns)
    xs = left + np.cumsum(gaps) + tile * np.arange(num_columns)
    width = max(xs[-1] + tile + right, 4.0)
    above = [_words_above(line, first=i == 0) for i, line in enumerate(sheet.lines)]
    legend = _legend_lines(sheet.legend, width=width)
    height = _MARGIN * 2 + sum(above) + tile * sheet.aspect * len(above) + len(legend) * 0.24 + bool(legend) * _GAP
    page = new_figure(figsize=(width, height))
    y = height - _MARGIN
    shown = None
    for line, words in zip(sheet.lines, above, strict=True):
        y -= words + tile * sheet.aspect
        if line.heading:
            title_height = _WORDS if any(cell and cell.title for cell in line.cells) else 0.02
            place = (xs[0] / width, (y + tile * sheet.aspect + title_height) / height)
            page.text(*place, _shortened(line.heading), fontsize=8.5, color="#333333", va="bottom", parse_math=False)
        if line.label:
            place = (_MARGIN / width, (y + tile * sheet.aspect / 2) / height)
            page.text(*place, line.label, fontsize=9.5, rotation=90, va="center", ha="left")
        for x, cell in zip(xs, line.cells, strict=False):
            if cell is not None:
                axis = page.add_axes((x / width, y / height, tile / width, tile * sheet.aspect / height))
                shown = _draw_cell(axis, cell) or shown
    if sheet.bar and shown is not None:
        _draw_bar(
            page, shown, says=sheet.bar, left=(width - right + 0.12) / width, top=1 - (_MARGIN + above[0]) / height
        )
    _draw_legend(page, legend, width=width, height=height)
    return page


def _words_above(line: Line, *, first: bool) -> float:
    titles = _WORDS if any(cell and cell.title for cell in line.cells) else 0.0
    heading = _SMALL_WORDS + (0.0 if first else 0.1) if line.heading else 0.0
    return max(titles + heading, 0.0 if first else _GAP)


def _draw_cell(axis: Any, cell: Cell) -> Any:
    """Draw it; returns what a colour bar can be made of, if anything."""
    axis.set_xticks([])
    axis.set_yticks([])
    if cell.title:
        axis.set_title(cell.title, fontsize=9.5, pad=2.5, parse_math=False)
    if cell.pixels is None:
        axis.set_axis_off()
        axis.text(1, 0.5, cell.words, fontsize=9, color="#333333", ha="right", va="center")
        return None
    h, w = cell.size
    is_std = cell.pixels.ndim == 2
    scale = {"cmap": "cividis", "vmin": 0, "vmax": LARGEST_STD} if is_std else {}
    drawn = axis.imshow(cell.pixels, extent=(0, w, h, 0), aspect="auto", **scale)
    if cell.visible is not None:
        _draw_mask_line(axis, cell.visible)
    if cell.box is not None:
        from matplotlib.patches import Rectangle

        top, left, height, width = cell.box
        for colour, thickness in (("black", 2.4), ("white", 1.0)):
            axis.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor=colour, linewidth=thickness))
    for spine in axis.spines.values():
        spine.set_linewidth(0.5)
    return drawn if is_std else None


def _draw_mask_line(axis: Any, visible: np.ndarray) -> None:
    """A dashed line, white on black, between what is visible and what is hidden."""
    across = np.argwhere(visible[:, 1:] != visible[:, :-1])
    down = np.argwhere(visible[1:] != visible[:-1])
    steps = [((x + 1, y), (x + 1, y + 1)) for y, x in across.tolist()]
    steps += [((x, y + 1), (x + 1, y + 1)) for y, x in down.tolist()]
    for start, end in _joined(steps):
        axis.plot(*zip(start, end, strict=True), color="black", linewidth=2.0, solid_capstyle="butt")
        axis.plot(*zip(start, end, strict=True), color="white", linewidth=1.3, dashes=(4, 2.5))


def _joined(steps: list[tuple[tuple[int, int], tuple[int, int]]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Steps of one pixel, given in the order of their places, joined to straight lines."""
    lines: list[tuple[tuple[int, int], tuple[int, int]]] = []
    open_ends: dict[tuple[tuple[int, int], bool], int] = {}
    for start, end in steps:
        upright = start[0] == end[0]
        at = open_ends.pop((start, upright), None)
        if at is None:
            at = len(lines)
            lines.append((start, end))
        lines[at] = (lines[at][0], end)
        open_ends[end, upright] = at
    return lines


def _draw_bar(page: Any, shown: Any, *, says: str, left: float, top: float) -> None:
    width, height = page.get_size_inches()
    tall = min(3.0, height * top - 0.2) / height
    axis = page.add_axes((left, top - tall, 0.13 / width, tall))
    page.colorbar(shown, cax=axis, ticks=np.linspace(0, LARGEST_STD, 6))
    axis.tick_params(labelsize=8.5)
    axis.set_ylabel(says, fontsize=9)


def _legend_lines(
    legend: Sequence[tuple[np.ndarray, str]], *, width: float
) -> list[list[tuple[float, np.ndarray, str]]]:
    """Entries with their places from the left, broken into as many lines as the width asks for."""
    lines: list[list[tuple[float, np.ndarray, str]]] = []
    x = width
    for field_, text in legend:
        needed = 0.26 + 0.083 * len(text) + 0.12
        if x + needed > width - _MARGIN or not lines:
            lines.append([])
            x = _MARGIN
        lines[-1].append((x, field_, text))
        x += needed
    return lines


def _draw_legend(page: Any, lines: list[list[tuple[float, np.ndarray, str]]], *, width: float, height: float) -> None:
    for number, line in enumerate(reversed(lines)):
        y = _MARGIN + number * 0.24
        for x, pixels, text in line:
            axis = page.add_axes((x / width, (y + 0.03) / height, 0.2 / width, 0.16 / height))
            axis.imshow(pixels, aspect="auto")
            axis.set_xticks([])
            axis.set_yticks([])
            page.text((x + 0.25) / width, (y + 0.11) / height, text, fontsize=9.5, va="center", parse_math=False)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_KEY else f"{text[: _MAX_KEY // 2]}…{text[-_MAX_KEY // 2 :]}"
