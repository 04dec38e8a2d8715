"""Samples of a model of instances, clustered into the map that a person chooses and corrects."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8, UInt16

from hpunet.errors import DataError

if TYPE_CHECKING:
    from hpunet.data.types import SetInfo

MAX_INSTANCES = 2**16 - 1


def instances_in(
    samples: UInt8[np.ndarray, " s *p"], *, info: "SetInfo", seed: int
) -> UInt16[np.ndarray, "*p"] | None:
    """One id per instance, as `hpunet instances` finds them; None if the classes of the model are no ids."""
    if not info.has_instances:
        return None
    from hpunet.evaluation.scores import instances_of
    from hpunet.sampling.instances import clustering_threshold

    alpha = clustering_threshold(None, num_samples=len(samples))
    found = instances_of(samples, info=info, alpha=alpha, seed=seed)
    count, ids = count_instances(found), np.unique(found)
    if count > MAX_INSTANCES:
        raise DataError(f"{count} instances, a map holds {MAX_INSTANCES}; cut a part of the image out")
    return np.searchsorted(ids[ids > 0], found, side="right").astype(np.uint16)


def count_instances(instances: np.ndarray) -> int:
    """The number of ids; 0 is background."""
    return len(np.unique(instances[instances > 0]))
