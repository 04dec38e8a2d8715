"""Slices find their volumes again, whatever order they come in."""

import numpy as np
import pytest

from hpunet.data.slices import slices_of_volumes
from hpunet.data.synthetic.source import open_synthetic
from hpunet.data.types import Identity
from hpunet.errors import DataError


def of(*keys: str) -> list[Identity]:
    return [Identity(patient="p", key=key) for key in keys]


def test_slices_of_volumes_are_in_order():
    found = slices_of_volumes(
        of("b/z-2", "a/one/z-011", "b/z-10", "a/one/z-010", "b/z-9", "b/z-3", "b/z-4")
        + of(*(f"b/z-{z}" for z in range(5, 9)))
    )
    assert found == {"b": [0, 5, 6, 7, 8, 9, 10, 4, 2], "a/one": [3, 1]}


def test_slices_stack_to_the_volumes_of_the_same_set():
    volumes = open_synthetic("nodules3d", split="test", num_images=2, size=(5, 16, 16))
    slices = open_synthetic("nodules3d", split="test", num_images=2, size=(5, 16, 16), volumes=False)
    found = slices_of_volumes(slices.identities)
    assert list(found) == [identity.key for identity in volumes.identities]
    for volume, indices in zip((volumes[i] for i in range(2)), found.values(), strict=True):
        np.testing.assert_array_equal(np.stack([slices[i].pixels for i in indices], axis=1), volume.pixels)
        np.testing.assert_array_equal(np.stack([slices[i].labels for i in indices], axis=1), volume.labels)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("a/z-0", "a/z-57_c0"), "z-57_c0: not a slice"),
        (("a/z-0", "a/z-00"), "a/z-00: .*two"),
        (("a/z-3", "b/z-0", "a/z-5", "a/z-6"), "a: slice 4 is missing"),
    ],
)
def test_slices_of_volumes_name_what_does_not_fit(keys, message):
    with pytest.raises(DataError, match=message):
        slices_of_volumes(of(*keys))
