"""Statistics of a data set (counts, sizes, graders, class shares), and a sheet of examples."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from hpunet.data.types import Sample, Source
from hpunet.utils.label_painter import contrast_palette, cover_hidden, overlay
from hpunet.utils.pictures import grey_or_colour, sheet, spread, stretched


@dataclass(frozen=True)
class Summary:
    """Statistics of one split.

    `sizes` counts images by (height, width). Per grader: the share of images graded, and of these the share marked.
    `num_marked_by_all` images were marked by every existing grader (subset B of LIDC). Class shares are of valid
    pixels, mean over graders, with all instances as one class. `instances_per_image` holds mean and maximum.
    """

    num_images: int
    num_patients: int
    sizes: dict[tuple[int, int], int]
    grader_present: list[float]
    grader_marked: list[float]
    num_marked_by_all: int
    class_shares: dict[str, float]
    instances_per_image: tuple[float, int]
    invalid_share: float


def summarise(source: Source, samples: Iterable[Sample]) -> Summary:
    """The statistics of a split; `samples` are those of `source`, possibly wrapped to show progress."""
    info = source.info
    sizes: Counter[tuple[int, int]] = Counter()
    present, marked = np.zeros(info.num_graders, dtype=np.int64), np.zeros(info.num_graders, dtype=np.int64)
    num_fixed = info.num_fixed_classes
    pixels = np.zeros(num_fixed + 1, dtype=np.int64)  # the last is "any instance"
    invalid = total = num_instances = most_instances = marked_by_all = count = 0
    for sample in samples:
        count += 1
        sizes[sample.valid.shape] += 1
        total += sample.valid.size
        invalid += int((~sample.valid).sum())
        has_mark = sample.labels.any(axis=(1, 2)) & sample.graders
        present += sample.graders
        marked += has_mark
        marked_by_all += bool((has_mark | ~sample.graders).all())
        values = sample.labels[:, sample.valid][sample.graders]
        pixels += np.bincount(np.minimum(values, num_fixed).ravel(), minlength=num_fixed + 1)
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
    )


def contact_sheet(source: Source, *, num_images: int = 8) -> Image.Image:
    """Images spread over the split, each beside its labels; invalid pixels are covered by stripes."""
    samples = [source[index] for index in spread(num_images, of=len(source))]
    palette = contrast_palette([sample.image for sample in samples], [sample.labels for sample in samples])
    rows, titles = [], []
    for sample in samples:
        row = [grey_or_colour(stretched(sample.image))]
        for labels, exists in zip(sample.labels, sample.graders, strict=True):
            shown = cover_hidden(overlay(image=sample.image, labels=labels, palette=palette), visible=sample.valid)
            row.append(shown if exists else np.full_like(row[0], 255))
        if source.info.num_graders == 1:
            flat = overlay(image=np.zeros_like(sample.image), labels=sample.labels[0], opacity=1.0, palette=palette)
            row.append(cover_hidden(flat, visible=sample.valid))
        rows.append(row)
        titles.append(sample.identity.key[-28:])
    graders = [f"grader {i + 1}" for i in range(source.info.num_graders)]
    columns = ["image", *(graders if len(graders) > 1 else ["labels on image", "labels"])]
    title = f"{source.info.kind}, {source.split}: {len(source)} images (white: no such grader; stripes: invalid)"
    return sheet(rows, columns=columns, row_titles=titles, title=title, tile=160)
