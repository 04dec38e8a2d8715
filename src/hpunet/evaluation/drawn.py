"""What an evaluation draws: what the network sees of some images, and the maps that scores need."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int32, UInt8
from torch import Tensor

from hpunet.data.batch import Batch
from hpunet.evaluation.counts import Counts
from hpunet.evaluation.images import Item
from hpunet.models.base import SegmentationModel
from hpunet.sampling.tiling import Padding


class Maps(NamedTuple):
    """Images with their labels, and what scores need of the samples drawn for them with one seed, on the CPU."""

    indices: Sequence[int]
    keys: Sequence[str]
    batch: Batch
    truth: Int32[np.ndarray, " b *s"] | None
    labels: UInt8[np.ndarray, "b n *s"] | None = None
    confidence: Float[np.ndarray, " b *s"] | None = None
    rebuilt: Int[Tensor, "b r *s"] | None = None
    visible: Bool[Tensor, " b *s"] | None = None  # what the prior saw, if a part was hidden
    counts: Counts | None = None  # of pixels, if a GPU has counted them; labels may be missing then
    wait: Callable[[], None] = lambda: None
    """Until everything has arrived from the device; to be called before anything is read."""

    @property
    def samples(self) -> UInt8[Tensor, "b n *s"]:
        """The labels as a tensor."""
        assert self.labels is not None
        return torch.from_numpy(self.labels)

    @property
    def reconstructions(self) -> Int[Tensor, "b r *s"]:
        """The graders' maps, as the posterior sees them."""
        assert self.rebuilt is not None
        return self.rebuilt


class Inputs(NamedTuple):
    """What the network sees: images, and what goes with them, padded to a size that it can halve."""

    network: SegmentationModel  # that computes: the sampler, the model, or, for large images, the model tile by tile
    image: Float[Tensor, "b c *s2"]
    cond: Float[Tensor, "b e *s2"] | None
    labels: Int[Tensor, "b r *s2"]
    padding: Padding

    def filled_up(self, count: int) -> "Inputs":
        """With the last image again and again, `count` images in all."""

        def fill(maps: Tensor) -> Tensor:
            return torch.cat([maps, maps[-1:].expand(count - len(maps), *maps.shape[1:])])

        cond = None if self.cond is None else fill(self.cond)
        return self._replace(image=fill(self.image), cond=cond, labels=fill(self.labels))


class Drawn(NamedTuple):
    """Images of a set, and the maps of those that could be read."""

    items: Sequence[Item]
    maps: Maps | None
