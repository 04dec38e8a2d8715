"""Images as pictures, and captioned sheets of pictures. Needs only numpy and pillow."""

import io
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from jaxtyping import Float, Integer, UInt8
from PIL import Image, ImageDraw, ImageFont

from hpunet.utils.files import atomic_write

_ENOUGH_CONTRAST, _MOST_GAIN = 0.4, 10.0
_LEAST_SHOWN = 24  # smallest side of an enlarged part, in pixels: less would not show where it lies


def spread(count: int, *, of: int) -> list[int]:
    """`count` indices below `of`, evenly spread from the first to the last; all if there are fewer."""
    return [round(place) for place in np.linspace(0, of - 1, min(count, of)).tolist()]


def stretched(image: Float[np.ndarray, "c h w"]) -> Float[np.ndarray, "c h w"]:
    """The image for display: a contrast below 0.4 is stretched to the whole range, at most tenfold.

    The contrast is the span from the 0.2nd to the 99.8th percentile of the displayed channels together.
    """
    low, high = np.percentile(image if image.shape[0] == 3 else image[:1], (0.2, 99.8))
    span = float(high - low)
    if span >= _ENOUGH_CONTRAST:
        return image
    gain = min(_MOST_GAIN, 1 / max(span, 1e-9))
    floor = min(float(low), 1 - gain * span)  # an even image keeps its tone
    return np.asarray(np.clip(floor + gain * (image - low), 0, 1), dtype=image.dtype)


def marked_part(labels: Integer[np.ndarray, "s h w"]) -> tuple[slice, slice]:
    """The square to show: twice the extent of what maps mark, or everything if that is over half of a side."""
    h, w = labels.shape[1:]
    y, x = np.nonzero((labels != 0).any(axis=0))
    if not y.size:
        return slice(0, h), slice(0, w)
    side = max(_LEAST_SHOWN, 2 * int(max(np.ptp(y), np.ptp(x)) + 1))
    if side > min(h, w) / 2:
        return slice(0, h), slice(0, w)
    centres = ((int(each.min()) + int(each.max()) + 1) // 2 for each in (y, x))
    starts = [min(max(0, centre - side // 2), end - side) for centre, end in zip(centres, (h, w), strict=True)]
    return slice(starts[0], starts[0] + side), slice(starts[1], starts[1] + side)


def grey_or_colour(image: Float[np.ndarray, "c h w"]) -> UInt8[np.ndarray, "h w 3"]:
    """An image in [0, 1] as RGB; other channel counts than 3 show their first channel in grey."""
    shown = image if image.shape[0] == 3 else np.repeat(image[:1], 3, axis=0)
    return np.asarray(np.rint(np.clip(shown, 0, 1) * 255), dtype=np.uint8).transpose(1, 2, 0)


def sheet(
    rows: Sequence[Sequence[UInt8[np.ndarray, "_ _ 3"]]],
    *,
    columns: Sequence[str] = (),
    row_titles: Sequence[str] = (),
    title: str = "",
    tile: int | None = 128,
    text: int = 13,
) -> Image.Image:
    """Tiles in rows on white, with a title and captions of `text` pixels; columns are as wide as their captions.

    Tiles are scaled to a shorter side of `tile` pixels, or a longer one of twice that if smaller; None keeps them.
    """
    font = ImageFont.load_default(size=text)
    gap, line = 6, text + 7
    tiles = [[_scale(pixels, tile) for pixels in row] for row in rows]
    widths = [max((row[x].width for row in tiles if x < len(row)), default=0) for x in range(max(map(len, tiles)))]
    widths = [max(w, int(font.getlength(columns[x])) + 1 if x < len(columns) else 0) for x, w in enumerate(widths)]
    heights = [max(picture.height for picture in row) for row in tiles]
    left = gap + (max((int(font.getlength(t)) for t in row_titles), default=0) + 2 * gap if row_titles else 0)
    top = gap + (line + gap if title else 0) + (line if columns else 0)
    width = max(left + sum(widths) + gap * len(widths), int(font.getlength(title)) + 2 * gap)
    page = Image.new("RGB", (width, top + sum(heights) + gap * len(heights)), "white")
    draw = ImageDraw.Draw(page)
    draw.text((gap, gap), title, fill="black", font=font)
    xs = [left + sum(widths[:x]) + gap * x for x in range(len(widths))]
    for x, caption in zip(xs, columns, strict=False):
        draw.text((x, top - line), caption, fill="black", font=font)
    y = top
    for number, row in enumerate(tiles):
        if row_titles:
            draw.text((gap, y + heights[number] // 2 - line // 2), row_titles[number], fill="black", font=font)
        for x, picture in zip(xs, row, strict=False):
            page.paste(picture, (x, y))
        y += heights[number] + gap
    return page


def stacked(pages: Sequence[Image.Image]) -> Image.Image:
    """Pages stacked vertically, on white."""
    whole = Image.new("RGB", (max(page.width for page in pages), sum(page.height for page in pages)), "white")
    for page, bottom in zip(pages, accumulate(page.height for page in pages), strict=True):
        whole.paste(page, (0, bottom - page.height))
    return whole


def _scale(pixels: UInt8[np.ndarray, "h w 3"], tile: int | None) -> Image.Image:
    if tile is None:
        return Image.fromarray(pixels)
    h, w = pixels.shape[:2]
    scale = min(tile / min(h, w), 2 * tile / max(h, w))
    how = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS
    return Image.fromarray(pixels).resize((max(1, round(w * scale)), max(1, round(h * scale))), how)


def save_picture(picture: Image.Image, path: Path) -> Path:
    """Write a PNG, with its folder; returns its path."""
    content = io.BytesIO()
    picture.save(content, format="PNG")
    atomic_write(path, content.getvalue())
    return path
