"""The contact sheet of one image: mean and spread, distinct hypotheses, and the samples."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Integer, UInt8
from PIL import Image

from hpunet.predict.export.results import letters
from hpunet.sampling.hypotheses import Hypothesis, summarise
from hpunet.utils.label_painter import contrast_palette, overlay
from hpunet.utils.pictures import grey_or_colour, marked_part, sheet, stacked, stretched

_SMALL_TILE, _LARGE_TILE, _TEXT = 192, 300, 16  # shorter sides of tiles, in pixels: small enough parts are enlarged
_WIDTH, _GAP, _MAX_PER_ROW, _MAX_SHOWN = 2000, 6, 6, 48


def sample_sheet(
    *,
    image: Float[np.ndarray, "c h w"],
    labels: Integer[np.ndarray, "s h w"],
    mean: Float[np.ndarray, "h w"],
    std: Float[np.ndarray, "h w"],
    hypotheses: Sequence[Hypothesis],
    title: str,
    colour: str | None = None,
) -> Image.Image:
    """One page. Samples are left out if each is a distinct hypothesis; of very many, the first ones are shown.

    If the samples mark only a small part of the image, it is shown enlarged, and a frame in the image marks it.
    Without `colour`, outlines have the colour that differs most from the image.
    """
    most = float(std.max())
    part = marked_part(labels)
    is_whole = labels[0][part].shape == labels.shape[1:]
    palette = contrast_palette([image], [labels.astype(np.int64)], colour=colour)
    summary = {
        "image" if is_whole else "image (frame: shown below)": _framed(
            grey_or_colour(stretched(image)), part, colour=palette[1]
        ),
        "mean probability (black 0, white 1)": grey_or_colour(mean[None]),
        f"standard deviation (black 0, white {most:.2f})": grey_or_colour(std[None] / max(most, 1e-6)),
    }
    names = [letters(number) for number in range(len(hypotheses))]
    distinct = [
        (f"{letter}: {hypothesis.share:.0%}, {hypothesis.description}", hypothesis.representative)
        for letter, hypothesis in zip(names, hypotheses, strict=True)
    ]
    group_of = {member: letter for letter, h in zip(names, hypotheses, strict=True) for member in h.members}
    single = [(f"{n + 1} ({group_of[n]})" if distinct else f"{n + 1}", n) for n in range(len(labels))]
    heading = "Samples (and the hypothesis they belong to)" if distinct else "Samples"

    h, w = labels[0][part].shape
    tile = min(max(min(h, w), _SMALL_TILE), _LARGE_TILE)
    tile_width = w * min(tile / min(h, w), 2 * tile / max(h, w))
    per_row = min(max(1, int(_WIDTH / (tile_width + _GAP))), _MAX_PER_ROW)

    def page(tiles: Sequence[UInt8[np.ndarray, "h w 3"]], captions: Sequence[str], title: str) -> list[Image.Image]:
        starts = range(0, len(tiles), per_row)
        lines = [(tiles[n : n + per_row], captions[n : n + per_row]) for n in starts]
        return [
            sheet([line], columns=words, title=title if n == 0 else "", tile=tile, text=_TEXT)
            for n, (line, words) in enumerate(lines)
        ]

    def rows(maps: Sequence[tuple[str, int]], heading: str) -> list[Image.Image]:
        heading += f" (the first {_MAX_SHOWN} of {len(maps)})" if len(maps) > _MAX_SHOWN else ""
        how: dict[str, Any] = {"image": image, "palette": palette, "reduced": w / tile_width}
        painted = (overlay(labels=labels[number].astype(np.int64), **how)[part] for _, number in maps[:_MAX_SHOWN])
        return page(list(painted), [caption for caption, _ in maps[:_MAX_SHOWN]], heading)

    pages = page(list(summary.values()), list(summary), title)
    if hypotheses:
        pages += rows(distinct, f"Hypotheses and their shares: {summarise(hypotheses)}")
    return stacked(pages + (rows(single, heading) if len(distinct) < len(single) else []))


def _framed(
    pixels: UInt8[np.ndarray, "h w 3"], part: tuple[slice, slice], *, colour: UInt8[np.ndarray, "3"]
) -> UInt8[np.ndarray, "h w 3"]:
    """The picture with a frame around the part, unless that is everything."""
    rows, columns = (slice(max(0, each.start - 1), each.stop + 1) for each in part)
    framed = pixels.copy()
    framed[rows, columns] = colour
    framed[part] = pixels[part]
    return framed
