"""Sheets of pictures with matplotlib. All positions are in inches, so that nothing overlaps or is cut off."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpunet.errors import ConfigError
from hpunet.utils.text import printable

WIDTH = 10.0  # inches: fits a landscape page, so that text keeps its size in print
PAGE_DPI, PRINT_DPI = 130, 300
LARGEST_STD = 0.5  # of a probability: half of the samples say 0, the others 1
_MARGIN, _GAP, _GROUP_GAP = 0.08, 0.05, 0.16
_TITLE_HEIGHT, _HEADING_HEIGHT, _LEGEND_LINE = 0.21, 0.17, 0.24
_MAX_TILE, _MIN_WIDTH = 2.4, 4.0
_GREY = "#333333"
_MAX_KEY = 80
_LegendEntry = tuple[float, np.ndarray, str]  # x, pixels, text


@dataclass(frozen=True)
class Cell:
    """A picture: RGB, or a float map in the colours of the sheet's colour bar. `size` and `box` are in pixels."""

    pixels: np.ndarray | None
    title: str = ""
    text: str = ""  # shown if there are no pixels
    size: tuple[int, int] = (1, 1)  # height and width of the map before it was enlarged
    visible: np.ndarray | None = None  # a dashed line marks the border of this mask
    box: tuple[int, int, int, int] | None = None  # frame: top, left, height, width


@dataclass(frozen=True)
class Line:
    """Pictures side by side; None leaves a place empty. The heading is above them, the label left of them."""

    cells: Sequence[Cell | None]
    heading: str = ""
    label: str = ""


@dataclass(frozen=True)
class Sheet:
    """Lines of pictures of one shape, with a legend, and a colour bar from 0 to `LARGEST_STD` if it has a label."""

    lines: Sequence[Line]
    aspect: float  # height by width of a picture
    groups: Sequence[int] = ()  # columns with a wider gap before them
    legend: Sequence[tuple[np.ndarray, str]] = ()
    bar_label: str = ""


def new_figure(**options: Any) -> Any:
    """A matplotlib figure without a window or global state."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("the report needs matplotlib: pip install matplotlib") from None
    figure = Figure(**options)
    FigureCanvasAgg(figure)
    return figure


def figure_text(text: str) -> str:
    """A text that matplotlib draws as it is: dollar signs begin no formula, an underscore hides no line."""
    return re.sub("^_", " _", printable(text).replace("$", r"\$"))


def as_png(figure: Any, *, dpi: int) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def as_svg(figure: Any) -> bytes:
    """The figure as an SVG file with text as text; the same figure gives the same bytes."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "hpunet", "image.composite_image": False}):
        figure.savefig(buffer, format="svg", dpi=PRINT_DPI, metadata={"Date": None})
    return buffer.getvalue()


def draw_sheet(sheet: Sheet) -> Any:
    """The sheet as a matplotlib figure, at most `WIDTH` inches wide."""
    num_columns = max(len(line.cells) for line in sheet.lines)
    left = _MARGIN + (0.22 if any(line.label for line in sheet.lines) else 0.0)
    right = _MARGIN + (0.75 if sheet.bar_label else 0.0)
    gaps = [0.0] + [_GROUP_GAP if column in sheet.groups else _GAP for column in range(1, num_columns)]
    tile = min(_MAX_TILE, (WIDTH - left - right - sum(gaps)) / num_columns)
    tall = tile * sheet.aspect
    xs = left + np.cumsum(gaps) + tile * np.arange(num_columns)
    width = max(xs[-1] + tile + right, _MIN_WIDTH)
    above = [_height_above(line, first=i == 0) for i, line in enumerate(sheet.lines)]
    legend = _legend_lines(sheet.legend, width=width)
    height = _MARGIN * 2 + sum(above) + tall * len(above) + len(legend) * _LEGEND_LINE + bool(legend) * _GAP
    figure = new_figure(figsize=(width, height))
    axis = figure.add_axes((0, 0, 1, 1))  # one for all: each costs as much as drawing a picture
    axis.set(xlim=(0, width), ylim=(0, height), autoscale_on=False)
    axis.set_axis_off()
    y = height - _MARGIN
    mapped = None
    for line, space in zip(sheet.lines, above, strict=True):
        y -= space + tall
        if line.heading:
            titles = _TITLE_HEIGHT if _has_titles(line) else 0.02
            half = _MAX_KEY // 2
            heading = (
                line.heading if len(line.heading) <= _MAX_KEY else f"{line.heading[:half]}…{line.heading[-half:]}"
            )
            _text(axis, xs[0], y + tall + titles, heading, size=8.5, va="bottom", color=_GREY)
        if line.label:
            _text(axis, _MARGIN, y + tall / 2, line.label, size=9.5, rotation=90, va="center")
        for x, cell in zip(xs, line.cells, strict=False):
            if cell is not None:
                mapped = _draw_cell(axis, cell, box=(x, y, tile, tall)) or mapped
    if sheet.bar_label and mapped is not None:
        tall = min(3.0, height - 2 * _MARGIN - above[0])
        place = np.array((width - right + 0.12, height - _MARGIN - above[0] - tall, 0.13, tall))
        bar = figure.add_axes(place / (width, height, width, height))
        figure.colorbar(mapped, cax=bar, ticks=np.linspace(0, LARGEST_STD, 6))
        bar.tick_params(labelsize=8.5)
        bar.set_ylabel(sheet.bar_label, fontsize=9)
    for number, entries in enumerate(reversed(legend)):
        y = _MARGIN + number * _LEGEND_LINE
        for x, pixels, text in entries:
            _draw_cell(axis, Cell(pixels), box=(x, y + 0.03, 0.2, 0.16))
            _text(axis, x + 0.25, y + 0.11, text, size=9.5, va="center")
    return figure


def _height_above(line: Line, *, first: bool) -> float:
    """The space for the heading and the titles of a line."""
    titles = _TITLE_HEIGHT if _has_titles(line) else 0.0
    heading = _HEADING_HEIGHT + (0.0 if first else 0.1) if line.heading else 0.0
    return max(titles + heading, 0.0 if first else _GAP)


def _has_titles(line: Line) -> bool:
    return any(cell is not None and cell.title for cell in line.cells)


def _text(axis: Any, x: float, y: float, text: str, *, size: float, **style: Any) -> None:
    axis.text(x, y, figure_text(text), fontsize=size, **style)


def _draw_cell(axis: Any, cell: Cell, *, box: tuple[float, float, float, float]) -> Any:
    """Draw into the box (left, bottom, width, height); returns the image of a float map, for the colour bar."""
    from matplotlib.patches import Rectangle

    left, bottom, wide, tall = box
    if cell.title:
        _text(axis, left + wide / 2, bottom + tall + 0.04, cell.title, size=9.5, ha="center", va="baseline")
    if cell.pixels is None:
        _text(axis, left + wide, bottom + tall / 2, cell.text, size=9.0, color=_GREY, ha="right", va="center")
        return None
    is_float = cell.pixels.ndim == 2
    scale = {"cmap": "cividis", "vmin": 0, "vmax": LARGEST_STD} if is_float else {}
    image = axis.imshow(cell.pixels, extent=(left, left + wide, bottom, bottom + tall), aspect="auto", **scale)
    axis.add_patch(Rectangle((left, bottom), wide, tall, fill=False, edgecolor="black", linewidth=0.5))
    h, w = cell.size
    if cell.visible is not None:
        for ends in _mask_borders(cell.visible):
            x, y = np.array(ends).T
            place = (left + x * wide / w, bottom + tall - y * tall / h)
            axis.plot(*place, color="black", linewidth=2.0, solid_capstyle="butt")
            axis.plot(*place, color="white", linewidth=1.3, dashes=(4, 2.5))
    if cell.box is not None:
        top, start, height, width = cell.box
        corner = (left + start * wide / w, bottom + tall - (top + height) * tall / h)
        for colour, thickness in (("black", 2.4), ("white", 1.0)):
            size = (width * wide / w, height * tall / h)
            axis.add_patch(Rectangle(corner, *size, fill=False, edgecolor=colour, linewidth=thickness))
    return image if is_float else None


def _mask_borders(visible: np.ndarray) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Ends (x, y) of the straight lines between visible and hidden pixels."""
    across = np.argwhere(visible[:, 1:] != visible[:, :-1]).tolist()
    down = np.argwhere(visible[1:] != visible[:-1]).tolist()
    steps = [((x + 1, y), (x + 1, y + 1)) for y, x in across] + [((x, y + 1), (x + 1, y + 1)) for y, x in down]
    lines: list[tuple[tuple[int, int], tuple[int, int]]] = []
    open_ends: dict[tuple[tuple[int, int], bool], int] = {}
    for start, end in steps:  # of one pixel each, in order of position
        upright = start[0] == end[0]
        at = open_ends.pop((start, upright), len(lines))
        if at == len(lines):
            lines.append((start, end))
        lines[at] = (lines[at][0], end)
        open_ends[end, upright] = at
    return lines


def _legend_lines(legend: Sequence[tuple[np.ndarray, str]], *, width: float) -> list[list[_LegendEntry]]:
    """Legend entries, broken into lines."""
    lines: list[list[_LegendEntry]] = []
    x = width
    for pixels, text in legend:
        needed = 0.26 + 0.083 * len(text) + 0.12
        if x + needed > width - _MARGIN:
            lines.append([])
            x = _MARGIN
        lines[-1].append((x, pixels, text))
        x += needed
    return lines
