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
_LEGEND_LINE = 0.24
_MAX_TILE, _MIN_WIDTH = 2.4, 4.0
_GREY = "#333333"
_MAX_KEY = 80


@dataclass(frozen=True)
class Cell:
    """A picture: RGB, or a float map, drawn in the colours of the sheet's bar. Boxes and lines are in pixels."""

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
    """What the bar of float maps says; no bar where it is empty."""
    bar_end: float = LARGEST_STD
    """The value at its end; it begins at 0."""


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
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "hpunet", "image.composite_image": False}):
        drawn.savefig(buffer, format="svg", dpi=PRINT_DPI, metadata={"Date": None})
    return buffer.getvalue()


def draw_sheet(sheet: Sheet) -> Any:
    """The sheet as a matplotlib figure, `WIDTH` inches wide or less."""
    num_columns = max(len(line.cells) for line in sheet.lines)
    left = _MARGIN + (0.22 if any(line.label for line in sheet.lines) else 0.0)
    right = _MARGIN + (0.75 if sheet.bar else 0.0)
    gaps = [0.0] + [_GROUP_GAP if column in sheet.groups else _GAP for column in range(1, num_columns)]
    tile = min(_MAX_TILE, (WIDTH - left - right - sum(gaps)) / num_columns)
    tall = tile * sheet.aspect
    xs = left + np.cumsum(gaps) + tile * np.arange(num_columns)
    width = max(xs[-1] + tile + right, _MIN_WIDTH)
    above = [_words_above(line, first=i == 0) for i, line in enumerate(sheet.lines)]
    legend = _legend_lines(sheet.legend, width=width)
    height = _MARGIN * 2 + sum(above) + tall * len(above) + len(legend) * _LEGEND_LINE + bool(legend) * _GAP
    page = new_figure(figsize=(width, height))
    axis = page.add_axes((0, 0, 1, 1))  # one for all: each costs as much as drawing a picture
    axis.set(xlim=(0, width), ylim=(0, height), autoscale_on=False)
    axis.set_axis_off()
    y = height - _MARGIN
    shown = None
    for line, words in zip(sheet.lines, above, strict=True):
        y -= words + tall
        if line.heading:
            titles = _WORDS if _has_titles(line) else 0.02
            _say(axis, xs[0], y + tall + titles, _shortened(line.heading), size=8.5, va="bottom", color=_GREY)
        if line.label:
            _say(axis, _MARGIN, y + tall / 2, line.label, size=9.5, rotation=90, va="center")
        for x, cell in zip(xs, line.cells, strict=False):
            if cell is not None:
                shown = _draw_cell(axis, cell, box=(x, y, tile, tall), largest=sheet.bar_end) or shown
    if sheet.bar and shown is not None:
        bar_height = min(3.0, height - 2 * _MARGIN - above[0])
        place = (width - right + 0.12, height - _MARGIN - above[0] - bar_height, 0.13, bar_height)
        _draw_bar(page, shown, says=sheet.bar, end=sheet.bar_end, place=place)
    for number, entries in enumerate(reversed(legend)):
        y = _MARGIN + number * _LEGEND_LINE
        for x, pixels, text in entries:
            _draw_cell(axis, Cell(pixels), box=(x, y + 0.03, 0.2, 0.16), largest=sheet.bar_end)
            _say(axis, x + 0.25, y + 0.11, text, size=9.5, va="center")
    return page


def _words_above(line: Line, *, first: bool) -> float:
    titles = _WORDS if _has_titles(line) else 0.0
    heading = _SMALL_WORDS + (0.0 if first else 0.1) if line.heading else 0.0
    return max(titles + heading, 0.0 if first else _GAP)


def _has_titles(line: Line) -> bool:
    return any(cell is not None and cell.title for cell in line.cells)


def _say(axis: Any, x: float, y: float, text: str, *, size: float, **look: Any) -> None:
    axis.text(x, y, text, fontsize=size, parse_math=False, **look)  # a name may hold dollar signs


def _draw_cell(axis: Any, cell: Cell, *, box: tuple[float, float, float, float], largest: float) -> Any:
    """Draw it into the box (left, bottom, width, height); returns what a bar can be made of, if anything."""
    from matplotlib.patches import Rectangle

    left, bottom, wide, tall = box
    if cell.title:
        _say(axis, left + wide / 2, bottom + tall + 0.04, cell.title, size=9.5, ha="center", va="baseline")
    if cell.pixels is None:
        _say(axis, left + wide, bottom + tall / 2, cell.words, size=9.0, color=_GREY, ha="right", va="center")
        return None
    is_float = cell.pixels.ndim == 2
    scale = {"cmap": "cividis", "vmin": 0, "vmax": largest} if is_float else {}
    drawn = axis.imshow(cell.pixels, extent=(left, left + wide, bottom, bottom + tall), aspect="auto", **scale)
    axis.add_patch(Rectangle((left, bottom), wide, tall, fill=False, edgecolor="black", linewidth=0.5))
    h, w = cell.size
    if cell.visible is not None:
        for ends in _joined(_mask_steps(cell.visible)):
            x, y = np.array(ends).T
            place = (left + x * wide / w, bottom + tall - y * tall / h)
            axis.plot(*place, color="black", linewidth=2.0, solid_capstyle="butt")
            axis.plot(*place, color="white", linewidth=1.3, dashes=(4, 2.5))
    if cell.box is not None:
        top, start, height, width = cell.box
        corner = (left + start * wide / w, bottom + tall - (top + height) * tall / h)
        for colour, thickness in (("black", 2.4), ("white", 1.0)):
            frame = Rectangle(corner, width * wide / w, height * tall / h, fill=False, edgecolor=colour)
            frame.set_linewidth(thickness)
            axis.add_patch(frame)
    return drawn if is_float else None


def _mask_steps(visible: np.ndarray) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Ends (x, y) of the pixel sides between what is visible and what is hidden."""
    across = np.argwhere(visible[:, 1:] != visible[:, :-1])
    down = np.argwhere(visible[1:] != visible[:-1])
    steps = [((x + 1, y), (x + 1, y + 1)) for y, x in across.tolist()]
    return steps + [((x, y + 1), (x + 1, y + 1)) for y, x in down.tolist()]


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


def _draw_bar(page: Any, shown: Any, *, says: str, end: float, place: tuple[float, float, float, float]) -> None:
    width, height = page.get_size_inches()
    axis = page.add_axes((place[0] / width, place[1] / height, place[2] / width, place[3] / height))
    page.colorbar(shown, cax=axis, ticks=np.linspace(0, end, 6))
    axis.tick_params(labelsize=8.5)
    axis.set_ylabel(says, fontsize=9)


def _legend_lines(
    legend: Sequence[tuple[np.ndarray, str]], *, width: float
) -> list[list[tuple[float, np.ndarray, str]]]:
    """Entries with their places from the left, broken into as many lines as the width asks for."""
    lines: list[list[tuple[float, np.ndarray, str]]] = []
    x = width
    for pixels, text in legend:
        needed = 0.26 + 0.083 * len(text) + 0.12
        if x + needed > width - _MARGIN or not lines:
            lines.append([])
            x = _MARGIN
        lines[-1].append((x, pixels, text))
        x += needed
    return lines


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_KEY else f"{text[: _MAX_KEY // 2]}…{text[-_MAX_KEY // 2 :]}"
