"""A batch becomes training examples: augmentation, choice of one grader per image, random ids, hidden parts.

Every random number is keyed by (seed, step, position in the batch): an example depends on nothing else.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hpunet.config.settings import AugmentationSettings, Extrapolate
from hpunet.data.augment import augment
from hpunet.data.batch import Batch
from hpunet.data.extrapolation import NUM_UNIFORMS, hide, hide_future
from hpunet.data.instance_ids import assign_ids, draw_id_table
from hpunet.data.types import SetInfo
from hpunet.utils.keyed_random import Stream, keyed_uniform

NUM_TABLE_IDS = 512  # instances per image with their own random id; further ones share


@dataclass(frozen=True)
class Example:
    """The input of a training step: one grader's map per image."""

    image: Float[Tensor, "b c *s"]
    labels: Int[Tensor, " b *s"]
    valid: Bool[Tensor, " b *s"]
    cond: Float[Tensor, "b e *s"] | None  # visibility and visible labels (`Hidden.cond`), if a part is hidden
    gradings: Int[Tensor, "b r *s"] | None = None  # all graders' maps as stored (instances, not ids); on request
    graders: Bool[Tensor, "b r"] | None = None  # which of them exist

    def __getitem__(self, part: slice) -> "Example":
        """Some of the images."""
        parts: dict[str, Any] = {name: None if value is None else value[part] for name, value in vars(self).items()}
        return Example(**parts)


@dataclass(frozen=True)
class ExampleBuilder:
    """Turn batches into examples."""

    info: SetInfo
    crop: tuple[int, ...]
    augmentation: AugmentationSettings
    extrapolate: Extrapolate
    seed: int

    def __call__(
        self, batch: Batch, *, step: int | Int[Tensor, ""], positions: Int[Tensor, " b"], all_gradings: bool = False
    ) -> Example:
        """The examples of a batch at a step, on request with all gradings; `positions` are in the whole batch."""
        key: dict[str, Any] = {"seed": self.seed, "step": step, "index": positions}

        def uniform(stream: Stream, count: int) -> Tensor:
            return keyed_uniform(**key, stream=stream, count=count)

        choice = uniform(Stream.GRADER, 1)[:, 0]
        if not all_gradings:  # choose first: the other graders' maps need no warping
            chosen = one_grader(batch, choice).unsqueeze(1)
            batch = replace(batch, labels=chosen, graders=batch.graders.any(dim=1, keepdim=True))
        how: dict[str, Any] = {"settings": self.augmentation, "crop_size": self.crop, "spacing": self.info.spacing}
        batch = augment(batch, **how, **key)
        labels = one_grader(batch, choice) if all_gradings else batch.labels[:, 0]
        if self.info.has_instances:
            labels = assign_ids(
                labels.unsqueeze(1),
                num_fixed_classes=self.info.num_fixed_classes,
                num_random_ids=self.info.num_random_ids,
                table=draw_id_table(uniform(Stream.IDS, NUM_TABLE_IDS), self.info.num_random_ids),
            ).squeeze(1)
        example = Example(image=batch.image, labels=labels, valid=batch.valid, cond=None)
        if all_gradings:
            example = replace(example, gradings=batch.labels, graders=batch.graders)
        if self.extrapolate:
            noise = uniform(Stream.HIDE, NUM_UNIFORMS)
            shown: dict[str, Any] = {"image": batch.image, "labels": labels, "num_classes": self.info.num_classes}
            if self.extrapolate == "future":
                hidden = hide_future(**shown, times=batch.times, uniform=noise)
            else:
                hidden = hide(**shown, uniform=noise)
            example = replace(example, image=hidden.image, cond=hidden.cond)
        return example


def one_grader(batch: Batch, uniform: Float[Tensor, " b"]) -> Int[Tensor, " b *s"]:
    """The label map of one existing grader per image, all equally likely."""
    number = (uniform * batch.graders.sum(dim=1)).long()  # which of the existing ones
    reached = batch.graders.cumsum(dim=1) > number.unsqueeze(1)
    chosen = reached.int().argmax(dim=1)
    return batch.labels[torch.arange(len(chosen), device=chosen.device), chosen]
