"""Distinct hypotheses and their shares: 16 samples that show, say, three opinions.

Clustered by complete linkage on 1 − IoU: any two samples of a group have an IoU of at least `same_iou`. Maps without
any of the classes have IoU 1 with each other and 0 with all others: "nothing marked" is its own group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Integer
from scipy import ndimage
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from hpunet.errors import ConfigError
from hpunet.metrics import pair_ious

_EIGHT_NEIGHBOURS = np.ones((3, 3), dtype=np.bool_)


@dataclass(frozen=True)
class Hypothesis:
    """One opinion: a group of similar samples."""

    representative: int
    """The medoid: the sample with the highest IoU to the rest of its group."""
    members: tuple[int, ...]
    """Indices of the group's samples, ascending."""
    share: Fraction
    """Members / samples; a `Fraction`, so that all shares add up to exactly 1."""
    area: int
    """Foreground pixels of the representative."""
    num_parts: int
    """Connected parts of its foreground (8 neighbours), counted per class."""

    @property
    def description(self) -> str:
        """The representative's foreground in a few words."""
        if self.area == 0:
            return "nothing marked"
        pixels, parts = ("" if n == 1 else "s" for n in (self.area, self.num_parts))
        return f"{self.area} pixel{pixels} in {self.num_parts} part{parts}"


def distinct_hypotheses(
    samples: Integer[np.ndarray, "s h w"],
    *,
    num_classes: int,
    classes: Sequence[int] | None = None,
    same_iou: float = 0.5,
) -> list[Hypothesis]:
    """The distinct hypotheses among the samples of one image, the most frequent first, then by first sample.

    `classes` are the foreground, by default all but 0. The IoU is that of `metrics.overlap`.
    """
    if not 0 < same_iou <= 1:
        raise ConfigError(f"same_iou: expected a number above 0 and up to 1, got {same_iou}")
    num_samples, maps = len(samples), samples[None]
    iou = pair_ious(samples=maps, labels=maps[:, :1], num_classes=num_classes, classes=classes).samples[0]
    numbers = np.ones(num_samples, dtype=np.int32)
    if num_samples > 1:
        tree = linkage(squareform(1 - iou, checks=False), method="complete")
        numbers = fcluster(tree, t=1 - same_iou, criterion="distance")
    chosen = list(range(1, num_classes)) if classes is None else list(classes)
    found = []
    for number in np.unique(numbers):
        members = np.flatnonzero(numbers == number)
        medoid = int(members[iou[np.ix_(members, members)].sum(axis=1).argmax()])
        shown = samples[medoid]
        found.append(
            Hypothesis(
                representative=medoid,
                members=tuple(members.tolist()),
                share=Fraction(len(members), num_samples),
                area=int(np.isin(shown, chosen).sum()),
                num_parts=sum(ndimage.label(shown == c, structure=_EIGHT_NEIGHBOURS)[1] for c in chosen),
            )
        )
    return sorted(found, key=lambda hypothesis: (-hypothesis.share, hypothesis.members))
