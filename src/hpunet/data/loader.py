"""Batches of training steps: a pure function of (seed, step), whatever the number of workers and processes."""

from collections.abc import Iterator
from functools import lru_cache
from multiprocessing import get_all_start_methods

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from hpunet.config.settings import AugmentationSettings
from hpunet.data.batch import Batch
from hpunet.data.packs import Pack
from hpunet.data.warps import draw_warp, needed
from hpunet.data.workers import worker_pool
from hpunet.errors import ConfigError

_ADVICE = "set data.num_workers lower, and continue from the last checkpoint with --resume"


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, num_images: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(num_images)


def images_at(*, seed: int, step: int, batch_size: int, num_images: int) -> Int[Tensor, " b"]:
    """The images of a training step: each image once per epoch, in a new random order."""
    positions = range(step * batch_size, (step + 1) * batch_size)
    chosen = [_permutation(seed, p // num_images, num_images)[p % num_images] for p in positions]
    return torch.from_numpy(np.array(chosen, dtype=np.int64))


class TrainingSteps:
    """The batches of a run by step, before augmentation; each process takes an equal, consecutive share.

    Of volumes, only the part that augmentation to `crop` needs is read, if both are given: the same warps are drawn
    here, so the result is that of whole volumes.
    """

    def __init__(
        self,
        pack: Pack,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        crop: tuple[int, ...] | None = None,
        augmentation: AugmentationSettings | None = None,
    ) -> None:
        if batch_size < 1 or batch_size % world_size or not 0 <= rank < world_size:
            raise ConfigError(f"a batch of {batch_size} does not divide over {world_size} processes (this is {rank})")
        self.pack, self.batch_size, self.seed = pack, batch_size, seed
        self.crop, self.augmentation = crop, augmentation
        share = batch_size // world_size
        self.positions = slice(rank * share, (rank + 1) * share)

    def images(self, step: int) -> Int[Tensor, " b"]:
        """This process's images of a step."""
        images = images_at(seed=self.seed, step=step, batch_size=self.batch_size, num_images=len(self.pack))
        return images[self.positions]

    def __getitem__(self, step: int) -> Batch:
        images = self.images(step)
        if self.pack.info.ndim == 2 or self.crop is None or self.augmentation is None:
            return self.pack.batch(images)
        warp = draw_warp(
            self.augmentation,
            seed=self.seed,
            step=step,
            index=torch.arange(self.positions.start, self.positions.stop),
            source_size=torch.tensor([self.pack.sizes[i] for i in images.tolist()]).unbind(1),
            crop_size=self.crop,
            spacing=self.pack.info.spacing,
        )
        first, last = needed(warp, crop_size=self.crop)
        return self.pack.windows(images, first=first, last=last)

    def iterate(self, first: int, end: int, *, num_workers: int = 0) -> Iterator[Batch]:
        """Steps `first` to `end` (exclusive), read ahead by `num_workers` processes unless the pack is on a GPU."""
        if num_workers == 0 or self.pack.device.type != "cpu":
            yield from (self[step] for step in range(first, end))
            return
        # A fork starts at once, but cannot use CUDA.
        method = "fork" if "fork" in get_all_start_methods() and not torch.cuda.is_initialized() else "spawn"
        with worker_pool(num_workers, self, method=method, advice=_ADVICE) as run:
            yield from run(_batch, range(first, end), chunk=1)


def _batch(steps: TrainingSteps, step: int) -> Batch:
    torch.set_num_threads(1)  # the others are for training
    return steps[step]
