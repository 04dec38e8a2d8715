"""What volumes a model was trained on, and how others differ from them."""

import numpy as np
import pytest
from random_sources import random_source

from hpunet.data.field_of_view import differences, is_larger, measured

SIZES = [(4, 20, 30), (6, 20, 10), (8, 10, 30)]


def test_measured_volumes_have_a_median_size_and_a_range() -> None:
    info = measured(random_source(num_classes=2, sizes=SIZES, spacing=(5.0, 0.7, 0.7)))
    assert info.image_size == (6, 20, 30)
    assert info.value_range is not None
    assert info.value_range[0] < 0.05
    assert info.value_range[1] > 0.95
    assert is_larger((10, 20, 30), info=info)
    assert not is_larger((9, 30, 45), info=info)


@pytest.mark.parametrize(
    ("shape", "spacing", "words"),
    [
        ((6, 20, 30), (5.0, 0.7, 0.7), []),
        ((16, 20, 30), None, ["The volume has 16×20×30 voxels, training volumes had 6×20×30; cut"]),
        ((3, 20, 30), None, ["surroundings"]),
        ((6, 20, 30), (2.5, 0.7, 0.7), ["Voxels are 2.5×0.7×0.7 mm apart, in training 5×0.7×0.7 mm"]),
        ((20, 30), None, ["2 axes"]),
    ],
)
def test_differences_of_volumes_are_sentences(
    shape: tuple[int, ...], spacing: tuple[float, ...] | None, words: list[str]
) -> None:
    info = measured(random_source(num_classes=2, sizes=SIZES, spacing=(5.0, 0.7, 0.7)))
    image = np.linspace(0, 1, int(np.prod(shape)), dtype=np.float32).reshape(1, *shape)
    found = differences(image, info=info, crop=(6, 20, 20), spacing=spacing)
    assert len(found) == len(words)
    assert all(word in sentence for word, sentence in zip(words, found, strict=True))
