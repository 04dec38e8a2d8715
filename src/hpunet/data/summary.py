"""Statistics of a data set (counts, sizes, graders, their agreement, class shares), and a sheet of examples."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from hpunet.data.types import Sample, Source
from hpunet.metrics.overlap import dice_from_counts, iou_from_counts
from hpunet.utils.label_painter import contrast_palette, cover_hidden, overlay
from hpunet.utils.pictures import grey_or_colour, sheet, spread, stretched
from hpunet.utils.plane_layout import AXIAL, Layout, plane_indices, shown_box, shown_position

MAX_COMPARED = 200  # images per split on which graders are compared
TILE = 160  # pixels along a side of an image on the contact sheet
RARE = 0.02  # a class in a smaller share of the images is hard to learn


class Agreement(NamedTuple):
    """How two graders agree: means over the images that either marked, pixels of all classes together."""

    dice: float
    iou: float
    num_images: int


@dataclass(frozen=True)
class Summary:
    """Statistics of one split.

    `sizes` counts images by (height, width), volumes by (depth, height, width). Per grader: the share of images
    graded, and of these the share marked. `num_marked_by_all` images were marked by every existing grader (subset B
    of LIDC). Class shares are of valid pixels, mean over graders, with all instances as one class.
    `instances_per_image` holds mean and maximum. `images_with` counts the images in which a grader marked a class.
    `agreement` is by pair of graders, on at most `MAX_COMPARED` images spread over the split.
    """

    num_images: int
    num_patients: int
    sizes: dict[tuple[int, ...], int]
    grader_present: list[float]
    grader_marked: list[float]
    num_marked_by_all: int
    class_shares: dict[str, float]
    instances_per_image: tuple[float, int]
    invalid_share: float
    images_with: dict[str, int]
    agreement: dict[tuple[int, int], Agreement]

    @property
    def rare_classes(self) -> dict[str, int]:
        """The classes that occur in one image at most, or in fewer than `RARE` of them, and in how many."""
        return {name: n for name, n in self.images_with.items() if n < max(2, RARE * self.num_images)}


def summarise(source: Source, samples: Iterable[Sample]) -> Summary:
    """The statistics of a split; `samples` are those of `source`, possibly wrapped to show progress."""
    info = source.info
    sizes: Counter[tuple[int, ...]] = Counter()
    present, marked = np.zeros(info.num_graders, dtype=np.int64), np.zeros(info.num_graders, dtype=np.int64)
    num_fixed = info.num_fixed_classes
    pixels = np.zeros(num_fixed + 1, dtype=np.int64)  # the last is "any instance"
    images_with = np.zeros(num_fixed + 1, dtype=np.int64)
    compared = set(spread(MAX_COMPARED, of=len(source)))
    overlaps: dict[tuple[int, int], list[tuple[float, float]]] = {}
    invalid = total = num_instances = most_instances = marked_by_all = count = 0
    for index, sample in enumerate(samples):
        count += 1
        sizes[sample.valid.shape] += 1
        total += sample.valid.size
        invalid += int((~sample.valid).sum())
        has_mark = sample.labels.any(axis=tuple(range(1, sample.labels.ndim))) & sample.graders
        present += sample.graders
        marked += has_mark
        marked_by_all += bool((has_mark | ~sample.graders).all())
        values = sample.labels[:, sample.valid][sample.graders]
        found = np.bincount(np.minimum(values, num_fixed).ravel(), minlength=num_fixed + 1)
        pixels += found
        images_with += found > 0
        if index in compared:
            for pair, scores in _overlaps(sample, num_fixed=num_fixed):
                overlaps.setdefault(pair, []).append(scores)
        if info.has_instances:
            num_instances += (number := len(np.unique(values[values >= num_fixed])))
            most_instances = max(most_instances, number)
    names = [*info.fixed_classes, *(["instances"] if info.has_instances else [])]
    return Summary(
        num_images=count,
        num_patients=len({identity.patient for identity in source.identities}),
        sizes=dict(sizes.most_common()),
        grader_present=(present / count).tolist(),
        grader_marked=(marked / np.maximum(present, 1)).tolist(),
        num_marked_by_all=marked_by_all,
        class_shares=dict(zip(names, (pixels / max(pixels.sum(), 1)).tolist(), strict=False)),
        instances_per_image=(num_instances / count, most_instances),
        invalid_share=invalid / total,
        images_with=dict(list(zip(names, images_with.tolist(), strict=False))[1:]),
        agreement={pair: _mean(scores) for pair, scores in overlaps.items()},
    )


def _mean(scores: list[tuple[float, float]]) -> Agreement:
    dice, iou = np.mean(scores, axis=0)
    return Agreement(float(dice), float(iou), len(scores))


def _overlaps(sample: Sample, *, num_fixed: int) -> Iterable[tuple[tuple[int, int], tuple[float, float]]]:
    """Dice and IoU of each pair of graders of whom one marked something, instances as one class."""
    maps = {r: np.minimum(sample.labels[r], num_fixed) for r in np.flatnonzero(sample.graders).tolist()}
    areas = {r: np.count_nonzero(labels) for r, labels in maps.items()}
    for a, b in combinations(maps, 2):
        if areas[a] + areas[b]:
            shared = np.asarray(np.count_nonzero((maps[a] == maps[b]) & (maps[a] > 0)))
            both = np.asarray(areas[a] + areas[b])
            yield (a, b), (float(dice_from_counts(shared, both)), float(iou_from_counts(shared, both)))


def contact_sheet(source: Source, *, num_images: int = 8) -> Image.Image:
    """Images spread over the split, each beside its labels; invalid pixels are covered by stripes.

    Of a volume, the slice in which graders marked most, below and beside it the other two planes through a mark.
    """
    spacing, chosen = source.info.spacing or (1.0, 1.0, 1.0), spread(num_images, of=len(source))
    pictures = [_picture(source[index], spacing=spacing) for index in chosen]
    samples = [_reduced(sample, side=2 * TILE) for sample, _ in pictures]
    palette = contrast_palette([sample.image for sample in samples], [sample.labels for sample in samples])
    rows, titles = [], []
    for sample, (whole, blank) in zip(samples, pictures, strict=True):
        row = [grey_or_colour(stretched(sample.image))]
        for labels, exists in zip(sample.labels, sample.graders, strict=True):
            shown = cover_hidden(overlay(image=sample.image, labels=labels, palette=palette), visible=sample.valid)
            row.append(shown if exists else np.full_like(row[0], 255))
        if source.info.num_graders == 1:
            flat = overlay(image=np.zeros_like(sample.image), labels=sample.labels[0], opacity=1.0, palette=palette)
            row.append(cover_hidden(flat, visible=sample.valid))
        if blank is not None:
            step = _step(whole, side=2 * TILE)
            row = [np.where(blank[::step, ::step, None], np.uint8(255), pixels) for pixels in row]
        rows.append(row)
        titles.append(sample.identity.key[-28:])
    graders = source.info.grader_titles
    columns = ["image", *(graders if len(graders) > 1 else ["labels on image", "labels"])]
    images = "volumes" if source.info.ndim == 3 else "images"
    title = f"{source.info.kind}, {source.split}: {len(source)} {images} (white: no such grader; stripes: invalid)"
    return sheet(rows, columns=columns, row_titles=titles, title=title, tile=TILE)


def _picture(sample: Sample, *, spacing: Sequence[float]) -> tuple[Sample, np.ndarray | None]:
    """An image; of a volume three planes as one, and where it shows none."""
    if sample.valid.ndim == 2:
        return sample, None
    position = shown_position(sample.labels)
    box = shown_box(position, sample.valid.shape)
    parts = plane_indices(position, box)
    layout = Layout.of([part.stop - part.start for part in box], spacing=spacing)

    def shown(maps: np.ndarray, fill: Any) -> np.ndarray:
        return layout.picture({plane: maps[part] for plane, part in parts.items()}, fill=fill)

    # Between planes a value of the volume, lest it changes the contrast.
    pixels, labels = shown(sample.pixels, np.median(sample.pixels[parts[AXIAL]])), shown(sample.labels, 0)
    return replace(sample, pixels=pixels, labels=labels, valid=shown(sample.valid, True)), layout.blank()


def _reduced(sample: Sample, *, side: int) -> Sample:
    """Every n-th pixel of a large image: painting all of them takes seconds and a tile does not show them."""
    step = _step(sample, side=side)
    pixels, labels, valid = (planes[..., ::step, ::step] for planes in (sample.pixels, sample.labels, sample.valid))
    return replace(sample, pixels=pixels, labels=labels, valid=valid)


def _step(sample: Sample, *, side: int) -> int:
    return max(1, int(min(sample.valid.shape)) // side)
