"""Hard street scenes: their classes and sizes, their ids, and that each number of `Difficulty` does what it says."""

from dataclasses import replace

import numpy as np
import pytest

from hpunet.data.cityscapes.classes import CAR, LABEL_IDS, LABEL_NAMES, car_labels
from hpunet.data.synthetic.hard_streets.difficulty import HARD, Difficulty
from hpunet.data.synthetic.hard_streets.scene import make_hard_street

SIZE = (64, 128)


def scenes(number: int, hard: Difficulty = HARD) -> list[tuple[np.ndarray, np.ndarray]]:
    return [make_hard_street(np.random.default_rng((4, i)), size=SIZE, hard=hard) for i in range(number)]


@pytest.fixture(scope="module")
def usual() -> list[tuple[np.ndarray, np.ndarray]]:
    return scenes(24)


def num_cars(ids: np.ndarray) -> int:
    return len(np.unique(ids[ids // 1000 == CAR]))


def test_make_hard_street_gives_bytes_and_ids_of_cityscapes(usual):
    for image, ids in usual:
        assert (image.shape, image.dtype, ids.shape) == ((3, *SIZE), np.uint8, SIZE)
        _, valid = car_labels(ids, name="ids")
        assert 0.7 < valid.mean() < 1
        assert image.std() > 5
        for label_id in np.unique(ids[ids >= 1000] // 1000):
            numbers = np.unique(ids[ids // 1000 == label_id]) % 1000
            np.testing.assert_array_equal(numbers, np.arange(len(numbers)))


def test_make_hard_street_has_the_classes_of_cityscapes_and_a_long_tail_of_cars(usual):
    found = {LABEL_NAMES[label] for _, ids in usual for label in np.unique(np.where(ids >= 1000, ids // 1000, ids))}
    wanted = {
        "road",
        "sidewalk",
        "building",
        "vegetation",
        "sky",
        "car",
        "person",
        "rider",
        "bicycle",
        "truck",
        "bus",
    }
    assert wanted | {"pole", "traffic sign", "fence", "terrain", "motorcycle"} <= found
    numbers = [num_cars(ids) for _, ids in usual]
    assert 4 < np.mean(numbers) < 16
    assert max(numbers) >= 15
    areas = np.concatenate([np.unique(ids[ids // 1000 == CAR], return_counts=True)[1] for _, ids in usual])
    assert np.quantile(areas, 0.9) > 15 * np.median(areas) / 4
    assert areas.min() <= 4 < 300 < areas.max()


def test_some_hard_streets_have_no_cars():
    assert 0 < np.mean([num_cars(ids) == 0 for _, ids in scenes(60)]) < 0.3


def test_decoys_are_background():
    (image, ids), (plain, plain_ids) = (scenes(2, replace(HARD, decoys=number))[0] for number in (9.0, 0.0))
    assert (image != plain).any()
    assert num_cars(ids) < num_cars(plain_ids) + 20


def test_far_cars_and_crowding_shift_the_sizes_and_numbers_of_cars():
    def areas(**change: float) -> np.ndarray:
        found = [
            np.unique(ids[ids // 1000 == CAR], return_counts=True)[1]
            for _, ids in scenes(16, replace(HARD, **change))
        ]
        return np.concatenate(found)

    assert np.median(areas(far_cars=1.0)) < 0.5 * np.median(areas(far_cars=0.0))
    assert len(areas(crowding=2.0)) > 1.5 * len(areas(crowding=0.5))


def test_other_vehicles_and_occluders_add_their_classes():
    def share(names: tuple[str, ...], **change: float) -> float:
        wanted = [LABEL_IDS[name] for name in names]
        return float(np.mean([np.isin(ids // 1000, wanted).mean() for _, ids in scenes(12, replace(HARD, **change))]))

    heavy = ("truck", "bus", "train")
    assert share(heavy, other_vehicles=0.0) == 0 < share(heavy, other_vehicles=2.0)
    assert share(("person",), occluders=0.0) == 0 < share(("person",), occluders=2.0)


def test_optics_and_texture_add_noise():
    def roughness(**change: float) -> float:
        images = [image.astype(float) for image, _ in scenes(6, replace(HARD, weather=0.0, **change))]
        return float(np.mean([np.abs(np.diff(image, axis=2)).mean() for image in images]))

    assert roughness(texture=3.0) > 1.2 * roughness(texture=0.0)
    assert roughness(texture=0.0, optics=3.0) != roughness(texture=0.0, optics=0.0)
