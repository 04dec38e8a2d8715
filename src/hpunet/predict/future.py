"""What samples of a series' future say: sizes day by day, and the probability of growth."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

import numpy as np
from jaxtyping import Float32, Integer
from PIL import Image

from hpunet.data.types import SetInfo
from hpunet.predict.series import Series
from hpunet.utils.label_painter import contrast_palette, overlay
from hpunet.utils.pictures import grey_or_colour, sheet, spread, stretched

FILE = "future.json"
MORE_THAN = 0.25
SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
_NUM_SHOWN, _TILE = 4, 128


@dataclass(frozen=True)
class Moment:
    """A day of the future."""

    day: date
    areas: tuple[int, ...]
    """Pixels of the foreground in each sample."""
    p_growth: float
    """The share of samples in which the area is larger than at present by more than `Future.more_than`."""

    @property
    def quantiles(self) -> dict[float, float]:
        """Of the areas, by share."""
        return {share: float(np.quantile(self.areas, share)) for share in SHARES}


@dataclass(frozen=True)
class Future:
    """What is to be expected after the last image."""

    name: str
    present: date
    area: int
    """Pixels of the foreground at present."""
    more_than: float
    moments: tuple[Moment, ...]

    def content(self) -> str:
        """As JSON, for `FILE`."""
        moments = [{**asdict(each), "quantiles": each.quantiles} for each in self.moments]
        return json.dumps(asdict(self) | {"moments": moments}, indent=1, default=str) + "\n"


def summarise_future(
    samples: Integer[np.ndarray, "s d h w"], *, series: Series, info: SetInfo, name: str, more_than: float = MORE_THAN
) -> Future:
    """Sizes and growth of all foreground classes together."""
    area = int(np.isin(series.labels[-1], info.foreground).sum())
    areas = np.isin(samples[:, series.num_past :], info.foreground).sum(axis=(2, 3))
    moments = tuple(
        Moment(day, tuple(of_day.tolist()), float((of_day > (1 + more_than) * area).mean()))
        for day, of_day in zip(series.days[series.num_past :], areas.T, strict=True)
    )
    return Future(name, series.days[series.num_past - 1], area, more_than, moments)


def future_sheet(
    *,
    image: Float32[np.ndarray, "c d h w"],
    samples: Integer[np.ndarray, "s d h w"],
    series: Series,
    future: Future,
    title: str,
    colour: str | None = None,
) -> Image.Image:
    """The images of the past with their labels, and four futures on the last image: evenly spread by final size."""
    past = series.num_past
    order = np.argsort(future.moments[-1].areas, kind="stable")
    middles = [round((2 * k + 1) / (2 * _NUM_SHOWN) * len(order) - 0.5) for k in range(_NUM_SHOWN)]
    chosen = [int(order[i]) for i in (middles if len(order) > _NUM_SHOWN else spread(_NUM_SHOWN, of=len(order)))]
    present = image[:, past - 1]
    palette = contrast_palette([present], [series.labels.astype(np.int64)], colour=colour)
    how: dict[str, Any] = {"palette": palette, "reduced": present.shape[2] / _TILE}
    captions = [str(day) for day in series.days]
    top = [grey_or_colour(stretched(image[:, t])) for t in range(past)]
    below = [overlay(image=image[:, t], labels=series.labels[t].astype(np.int64), **how) for t in range(past)]
    rows: list[Sequence[Any]] = [top, below]
    names = ["images", "labels"]
    blank = np.full_like(top[0], 255)
    for number in chosen:
        tiles = [
            overlay(image=present, labels=samples[number, t].astype(np.int64), **how)
            for t in range(past, len(captions))
        ]
        rows.append([blank] * (past - 1) + [below[-1], *tiles])
        names.append(f"sample {number + 1}")
    return sheet(rows, columns=captions, row_titles=names, title=title, tile=_TILE)
