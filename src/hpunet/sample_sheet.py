"""The contact sheet of one image: what the samples say together, the distinct hypotheses, and the samples."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Integer
from PIL import Image

from hpunet.hypotheses import Hypothesis
from hpunet.pictures import grey_or_colour, overlay, sheet, stacked, stretched

_TILE, _PER_ROW, _MAX_SHOWN = 176, 6, 48


def sample_sheet(
    *,
    image: Float[np.ndarray, "c h w"],
    labels: Integer[np.ndarray, "s h w"],
    mean: Float[np.ndarray, "h w"],
    std: Float[np.ndarray, "h w"],
    hypotheses: Sequence[Hypothesis],
    title: str,
) -> Image.Image:
    """One page; of very many samples the first ones, and none again where each is a hypothesis of its own.

    Without hypotheses, samples alone are shown.
    """
    most = float(std.max())
    summary = {
        "image": grey_or_colour(stretched(image)),
        "mean probability (white is 1)": grey_or_colour(mean[None]),
        f"standard deviation (white is {most:.2f})": grey_or_colour(std[None] / max(most, 1e-6)),
    }
    letters = [_letters(number) for number in range(len(hypotheses))]
    distinct = [
        (f"{letter}: {float(hypothesis.share):.0%}, {hypothesis.description}", hypothesis.representative)
        for letter, hypothesis in zip(letters, hypotheses, strict=True)
    ]
    group_of = {member: letter for letter, h in zip(letters, hypotheses, strict=True) for member in h.members}
    single = [
        (f"{number + 1} ({group_of[number]})" if distinct else f"{number + 1}", number)
        for number in range(len(labels))
    ]

    heading = "Samples (and the hypothesis they belong to)" if distinct else "Samples"

    def rows(maps: Sequence[tuple[str, int]], heading: str) -> list[Image.Image]:
        heading += f" (the first {_MAX_SHOWN} of {len(maps)})" if len(maps) > _MAX_SHOWN else ""
        pages = []
        for start in range(0, min(len(maps), _MAX_SHOWN), _PER_ROW):
            row = maps[start : min(start + _PER_ROW, _MAX_SHOWN)]
            tiles = [overlay(image=image, labels=labels[number].astype(np.int64)) for _, number in row]
            columns = [caption for caption, _ in row]
            pages.append(sheet([tiles], columns=columns, title=heading if start == 0 else "", tile=_TILE))
        return pages

    return stacked(
        [
            sheet([list(summary.values())], columns=list(summary), title=title, tile=_TILE),
            *rows(distinct, "Distinct hypotheses, and the share of samples that show them"),
            *(rows(single, heading) if len(distinct) < len(single) else []),
        ]
    )


def _letters(number: int) -> str:
    """A, B, ... Z, AA, AB, ..."""
    return ("" if number < 26 else _letters(number // 26 - 1)) + chr(ord("A") + number % 26)
