"""Small pictures of images and label maps: colours, overlays and captioned sheets. Needs numpy and pillow only."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image, ImageDraw, ImageFont

PALETTE = np.array(
    [
        (0, 0, 0),  # background, never painted in overlays
        (230, 159, 0),
        (86, 180, 233),
        (0, 158, 115),
        (240, 228, 66),
        (0, 114, 178),
        (213, 94, 0),
        (204, 121, 167),
    ],
    dtype=np.uint8,
)
"""The eight colours of Okabe and Ito, which people with any kind of colour vision can tell apart."""


def label_colours(labels: Int[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w 3"]:
    """A colour for every label; 0 is black, labels beyond the palette repeat it in ever darker shades."""
    hue = np.where(labels == 0, 0, 1 + (labels - 1) % 7)
    shade = 0.7 ** ((labels - 1) // 7 % 4)
    colours = PALETTE[hue] * np.where(labels == 0, 1.0, shade)[..., None]
    return np.asarray(colours, dtype=np.uint8)


def grey_or_colour(image: Float[np.ndarray, "c h w"]) -> UInt8[np.ndarray, "h w 3"]:
    """An image in [0, 1] as RGB; other channel counts than 3 show their first channel in grey."""
    shown = image if image.shape[0] == 3 else np.repeat(image[:1], 3, axis=0)
    return np.asarray(np.rint(np.clip(shown, 0, 1) * 255), dtype=np.uint8).transpose(1, 2, 0)


def overlay(
    *, image: Float[np.ndarray, "c h w"], labels: Int[np.ndarray, "h w"], opacity: float = 0.45
) -> UInt8[np.ndarray, "h w 3"]:
    """The image with its labels painted over it and their borders drawn in full colour."""
    base, colour = grey_or_colour(image), label_colours(labels)
    padded = np.pad(labels, 1, mode="edge")
    border = np.zeros(labels.shape, dtype=np.bool_)
    for shifted in (padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]):
        border |= shifted != labels
    weight = np.where(labels == 0, 0.0, np.where(border, 1.0, opacity))[..., None]
    return np.asarray(np.rint(base * (1 - weight) + colour * weight), dtype=np.uint8)


def sheet(
    rows: Sequence[Sequence[UInt8[np.ndarray, "_ _ 3"]]],
    *,
    columns: Sequence[str] = (),
    row_titles: Sequence[str] = (),
    title: str = "",
    tile: int = 128,
) -> Image.Image:
    """Tiles in rows on white, each scaled to fit a square of `tile` pixels, with a title and captions."""
    font = ImageFont.load_default(size=13)
    gap, line = 6, 20
    left = gap + (max((int(font.getlength(t)) for t in row_titles), default=0) + 2 * gap if row_titles else 0)
    top = gap + (line + gap if title else 0) + (line if columns else 0)
    num_columns = max(len(row) for row in rows)
    width = max(left + num_columns * (tile + gap), int(font.getlength(title)) + 2 * gap)
    page = Image.new("RGB", (width, top + len(rows) * (tile + gap)), "white")
    draw = ImageDraw.Draw(page)
    draw.text((gap, gap), title, fill="black", font=font)
    for x, caption in enumerate(columns):
        draw.text((left + x * (tile + gap), top - line), caption, fill="black", font=font)
    for y, row in enumerate(rows):
        if row_titles:
            draw.text((gap, top + y * (tile + gap) + tile // 2 - line // 2), row_titles[y], fill="black", font=font)
        for x, pixels in enumerate(row):
            h, w = pixels.shape[:2]
            scale = tile / max(h, w)
            size = (max(1, round(w * scale)), max(1, round(h * scale)))
            how = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS
            page.paste(Image.fromarray(pixels).resize(size, how), (left + x * (tile + gap), top + y * (tile + gap)))
    return page


def save_picture(picture: Image.Image, path: Path) -> Path:
    """Write a PNG, making its folder; returns where it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, format="PNG")
    return path
