"""Altered images: of the same size and range, and unlike the original."""

import numpy as np
import pytest

from hpunet.data.alterations import KINDS, altered
from hpunet.errors import ConfigError, DataError


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(1, 32, 32), (3, 17, 30)])
def test_size_and_range_stay(kind: str, size: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    image = (0.2 + 0.5 * rng.random(size)).astype(np.float32)
    found = altered(image, kind=kind, rng=rng)
    assert (found.shape, found.dtype) == (image.shape, image.dtype)
    assert found.min() == pytest.approx(image.min(), abs=1e-6)
    assert found.max() == pytest.approx(image.max(), abs=1e-6)
    assert not np.allclose(found, image, atol=0.05)


def test_inverted_by_hand() -> None:
    image = np.array([[[0.1, 0.2], [0.5, 0.9]]], dtype=np.float32)
    found = altered(image, kind="inverted", rng=np.random.default_rng(0))
    np.testing.assert_allclose(found, [[[0.9, 0.8], [0.5, 0.1]]], atol=1e-6)


def test_wrong_crops_move_and_scale_a_bright_square() -> None:
    image = np.zeros((1, 64, 64), dtype=np.float32)
    image[:, 28:36, 28:36] = 1
    areas = {}
    for kind in ("off centre", "elsewhere", "too close", "too far"):
        rng = np.random.default_rng(3)
        found = [altered(image, kind=kind, rng=rng)[0] > 0.5 for _ in range(20)]
        areas[kind] = [each.sum() for each in found]
        if kind == "off centre":
            assert not any(each[31:33, 31:33].all() for each in found)
    assert min(areas["too close"]) > 64 * 2
    assert all(area > 0 for area in areas["too far"])


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ConfigError, match="kind"):
        altered(np.zeros((1, 4, 4), dtype=np.float32), kind="turned", rng=np.random.default_rng(0))


def test_volumes_are_refused() -> None:
    with pytest.raises(DataError, match="volume"):
        altered(np.zeros((1, 4, 4, 4), dtype=np.float32), kind="noise", rng=np.random.default_rng(0))
