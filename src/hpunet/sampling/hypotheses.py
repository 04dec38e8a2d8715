"""Distinct hypotheses and their shares: sixteen samples that a person sees as, say, three opinions.

Samples are grouped so that any two of a group have an IoU of at least `same_iou` (complete linkage on 1 − IoU). A
map that shows none of the classes is like no other but such maps, so "nothing marked" is a group of its own.
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
    """One opinion: a group of samples that show nearly the same."""

    representative: int
    """The sample of the group that is most like the others (its medoid)."""
    members: tuple[int, ...]
    """All samples of the group, in their order."""
    share: Fraction
    """Members over all samples; a fraction, so that the shares of all groups add up to exactly 1."""
    area: int
    """Pixels that the representative marks."""
    num_parts: int
    """Connected parts (8 neighbours) of what it marks, class by class."""

    @property
    def description(self) -> str:
        """What the representative shows, in a few words."""
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
    """The distinct hypotheses among the samples of one image, the most frequent first.

    `classes` are the ones that count, by default all but 0, with the IoU and its rules of `metrics.overlap`. Equal
    shares come in the order of their first samples.
    """
    if not 0 < same_iou <= 1:
        raise ConfigError(f"same_iou: expected a number above 0 and up to 1, got {same_iou}")
    num_samples = len(samples)
    maps = samples[None]
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
