"""Random ids: instances shown to the network as stochastic classes (App. C).

At each training step every instance draws an id, uniformly and with replacement: a table with one row per image.
Evaluation uses a fixed row per image.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hpunet.utils.text import as_utf8


def draw_id_table(uniform: Float[Tensor, "b n"], num_random_ids: int) -> Int[Tensor, "b n"]:
    """Ids 0...num_random_ids-1 from numbers in [0, 1), one for each instance of each image."""
    # Rounding may map a number just below 1 to num_random_ids itself.
    return (uniform * num_random_ids).long().clamp(max=num_random_ids - 1)


def assign_ids(
    labels: Int[Tensor, "b r *s"], *, num_fixed_classes: int, num_random_ids: int, table: Int[Tensor, "b n"]
) -> Int[Tensor, "b r *s"]:
    """Replace instances by classes: instance i of image b, of any grader, becomes num_fixed_classes + table[b, i].

    Instances i and i + n share an id; entries are taken modulo `num_random_ids`.
    """
    instance = (labels - num_fixed_classes).long()
    index = instance.clamp(min=0) % table.shape[1]
    ids = table.long().gather(1, index.flatten(1)).view_as(labels) % num_random_ids
    return torch.where(instance < 0, labels, (num_fixed_classes + ids).to(labels.dtype))


def evaluation_table(
    keys: Sequence[str], *, seed: int, num_random_ids: int, num_instances: int
) -> Int[Tensor, "b n"]:
    """The ids that evaluation uses, one row per image; each depends only on the seed and the image's key.

    A longer table starts with the shorter one.
    """
    digests = [hashlib.shake_256(as_utf8(f"{seed}\0{key}")).digest(4 * num_instances) for key in keys]
    numbers = np.frombuffer(b"".join(digests), dtype="<u4").reshape(len(keys), num_instances)
    return draw_id_table(torch.from_numpy(numbers.astype(np.float64) / 2**32), num_random_ids)
