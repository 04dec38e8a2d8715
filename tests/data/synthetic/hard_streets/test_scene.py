"""Hard street scenes: their classes and ids, and that decoys, texture and optics change only colours."""

from dataclasses import replace

import numpy as np
import pytest

from hpunet.data.cityscapes.classes import CAR, LABEL_IDS, LABEL_NAMES, car_labels
from hpunet.data.synthetic.hard_streets.difficulty import HARD
from hpunet.data.synthetic.hard_streets.photograph import photograph
from hpunet.data.synthetic.hard_streets.scene import make_hard_street

SIZE = (64, 128)


@pytest.fixture(scope="module")
def scenes() -> list[tuple[np.ndarray, np.ndarray]]:
    return [make_hard_street(np.random.default_rng((4, i)), size=SIZE) for i in range(8)]


def test_make_hard_street_gives_bytes_and_ids_of_cityscapes(scenes):
    for image, ids in scenes:
        assert (image.shape, image.dtype, ids.shape) == ((3, *SIZE), np.uint8, SIZE)
        _, valid = car_labels(ids, name="ids")
        assert 0.7 < valid.mean() < 1
        assert image.std() > 5
        for label_id in np.unique(ids[ids >= 1000] // 1000):
            numbers = np.unique(ids[ids // 1000 == label_id]) % 1000
            np.testing.assert_array_equal(numbers, np.arange(len(numbers)))


def test_make_hard_street_has_the_classes_of_cityscapes_and_a_long_tail_of_cars(scenes):
    found = {LABEL_NAMES[k] for _, ids in scenes for k in np.unique(np.where(ids >= 1000, ids // 1000, ids))}
    assert {"road", "sidewalk", "building", "vegetation", "sky", "car", "person", "pole"} <= found
    assert len(found & {"rider", "bicycle", "motorcycle", "truck", "bus", "train", "fence", "wall", "terrain"}) > 4
    areas = np.concatenate([np.unique(ids[ids // 1000 == CAR], return_counts=True)[1] for _, ids in scenes])
    assert len(areas) > 3 * len(scenes)
    assert areas.mean() > 1.5 * np.median(areas)


def test_photograph_changes_texture_by_class_and_strength():
    ids = np.full(SIZE, LABEL_IDS["road"], np.int32)
    ids[:32] = LABEL_IDS["vegetation"]
    plain = np.full((*SIZE, 3), 128, np.uint8)

    def roughness(**change: float) -> tuple[float, float]:
        hard = replace(HARD, weather=0.0, optics=0.0, **change)
        image = photograph(np.random.default_rng(1), colour=plain, ids=ids, horizon=30.0, hard=hard).astype(float)
        return image[0, :30].std(), image[0, 34:].std()

    assert max(roughness(texture=0.0)) < 1
    leaves, road = roughness(texture=1.0)
    assert leaves > 2 * road > 2


def test_optics_blur_and_add_noise():
    ids = np.full(SIZE, LABEL_IDS["road"], np.int32)
    edge = np.zeros((*SIZE, 3), np.uint8)
    edge[:, 64:] = 200
    easy, hard = (replace(HARD, weather=0.0, texture=0.0, optics=optics) for optics in (0.0, 2.0))
    sharp, noisy = (
        photograph(np.random.default_rng(3), colour=edge, ids=ids, horizon=30.0, hard=each) for each in (easy, hard)
    )
    assert sharp[0, :, 70:].std() < 1 < noisy[0, :, 70:].std()
