"""Cityscapes: splits by city, car instances, resampling, and maps drawn from polygons."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hpunet.data.cityscapes.classes import EVALUATED, LABEL_IDS, car_labels
from hpunet.data.cityscapes.polygons import read_polygons, render_instance_ids
from hpunet.data.cityscapes.scenes import average_area, open_cityscapes, pick_nearest
from hpunet.data.io.limits import ImageSize
from hpunet.data.types import Source
from hpunet.errors import ConfigError, DataError

INSTANCE_IDS = np.array(
    [[7, 7, 26000, 26000], [8, 26, 26003, 26003], [3, 2, 24000, 24001], [33000, 33, 29000, 0]], dtype=np.uint16
)


def square(x: int, y: int, size: int) -> list[list[int]]:
    return [[x, y], [x + size, y], [x + size, y + size], [x, y + size]]


def write_scene(root: Path, folder: str, city: str, *, ids: np.ndarray | None = INSTANCE_IDS) -> str:
    name = f"{city}_000001_000019"
    for top in ("leftImg8bit", "gtFine"):
        (root / top / folder / city).mkdir(parents=True, exist_ok=True)
    image = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(image).save(root / f"leftImg8bit/{folder}/{city}/{name}_leftImg8bit.png")
    if ids is not None:
        Image.fromarray(ids).save(root / f"gtFine/{folder}/{city}/{name}_gtFine_instanceIds.png")
    return name


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for city in ("aachen", "darmstadt", "monchengladbach", "ulm", "zurich"):
        write_scene(tmp_path, "train", city)
    write_scene(tmp_path, "val", "frankfurt")
    return tmp_path


def test_open_cityscapes_splits_by_city(root: Path) -> None:
    cities = {
        split: [identity.patient for identity in open_cityscapes(root, split=split).identities]
        for split in ("train", "val", "test")
    }
    assert cities == {
        "train": ["aachen", "zurich"],
        "val": ["darmstadt", "monchengladbach", "ulm"],
        "test": ["frankfurt"],
    }


def test_open_cityscapes_info_is_the_papers(root: Path) -> None:
    source = open_cityscapes(root, split="val")
    assert isinstance(source, Source)
    assert source.info.num_fixed_classes == 18
    assert source.info.num_classes == 23
    assert source.info.stochastic_classes == (18, 19, 20, 21, 22)
    assert source[0].image.shape == (3, 512, 1024)
    assert source[0].labels.shape == (1, 512, 1024)
    assert source.identities[0].key == "darmstadt/darmstadt_000001_000019"


def test_car_labels_by_hand() -> None:
    labels, valid = car_labels(INSTANCE_IDS, name="x")
    # road 0, sidewalk 1, person 11, bicycle 17; cars 18 and 19; a car group, borders and a caravan do not count
    assert labels.tolist() == [[0, 0, 18, 18], [1, 0, 19, 19], [0, 0, 11, 11], [17, 17, 0, 0]]
    assert valid.tolist() == [
        [True] * 4,
        [True, False, True, True],
        [False, False, True, True],
        [True, True, False, False],
    ]


def test_car_labels_class_names_follow_the_official_ids() -> None:
    official = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]
    assert [LABEL_IDS[name] for name in EVALUATED] == official
    others = [label_id for label_id in official if label_id != 26]
    for index, label_id in enumerate(others):
        labels, valid = car_labels(np.full((1, 1), label_id), name="x")
        assert (labels.item(), valid.item()) == (index, True)
    ignored = set(range(34)) - set(others)
    assert not any(car_labels(np.full((1, 1), label_id), name="x")[1].item() for label_id in ignored)


def test_resampling_averages_images_and_picks_labels() -> None:
    image = np.random.default_rng(1).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    means = image.reshape(2, 2, 3, 2, 3).mean(axis=(1, 3))
    assert np.abs(average_area(image, size=(2, 3)) - means).max() <= 1  # Pillow rounds once an axis
    labels = np.arange(9).reshape(3, 3)
    assert pick_nearest(labels, size=(1, 1)).tolist() == [[4]]
    assert pick_nearest(labels, size=(3, 6))[1].tolist() == [3, 3, 4, 4, 5, 5]
    np.testing.assert_array_equal(
        pick_nearest(INSTANCE_IDS, size=(3, 2)),
        np.asarray(Image.fromarray(INSTANCE_IDS).resize((2, 3), Image.Resampling.NEAREST)),
    )


def test_render_instance_ids_by_hand() -> None:
    objects = [
        {"label": "road", "polygon": square(-50, -50, 200)},
        {"label": "car", "polygon": square(0, 0, 3)},
        {"label": "car", "polygon": square(9, 9, 2), "deleted": 1},
        {"label": "car", "polygon": square(2, 0, 2)},
        {"label": "cargroup", "polygon": square(0, 6, 1)},
        {"label": "license plate", "polygon": square(0, 0, 9)},
        {"label": "polegroup", "polygon": square(6, 6, 1)},
        {"label": "persongroup", "polygon": square(6, 0, 0)},
    ]
    content = json.dumps({"imgHeight": 8, "imgWidth": 8, "objects": objects}).encode()
    expected = np.full((8, 8), 7)
    expected[0:4, 0:4] = 26000  # Pillow's polygons include their last row and column
    expected[0:3, 2:5] = 26001
    expected[6:8, 0:2] = 26
    expected[6:8, 6:8] = 18
    expected[0, 6] = 24
    np.testing.assert_array_equal(
        render_instance_ids(read_polygons(content, size=ImageSize(1, 8, 8, "x.png"), name="x")), expected
    )


def test_open_cityscapes_draws_polygons_where_maps_are_missing(tmp_path: Path) -> None:
    name = write_scene(tmp_path, "val", "lindau", ids=None)
    polygons = {
        "imgHeight": 4,
        "imgWidth": 4,
        "objects": [
            {"label": "sky", "polygon": square(-1, -1, 9)},
            {"label": "car", "polygon": square(0, 0, 1)},
            {"label": "cargroup", "polygon": square(2, 2, 1)},
        ],
    }
    path = tmp_path / f"gtFine/val/lindau/{name}_gtFine_polygons.json"
    path.write_text(json.dumps(polygons))
    sample = open_cityscapes(tmp_path, split="test", size=(4, 4))[0]
    assert sample.labels[0].tolist() == [[18, 18, 10, 10], [18, 18, 10, 10], [10, 10, 0, 0], [10, 10, 0, 0]]
    assert (~sample.valid).sum() == 4
    write_scene(tmp_path, "val", "lindau")
    mapped = open_cityscapes(tmp_path, split="test", size=(4, 4))[0]
    assert mapped.labels[0, 0].tolist() == [0, 0, 18, 18]


def scene(**changes: object) -> dict[str, object]:
    return {"imgHeight": 4, "imgWidth": 4, "objects": []} | changes


def thing(**changes: object) -> dict[str, object]:
    return scene(objects=[{"label": "car", "polygon": square(0, 0, 2)} | changes])


@pytest.mark.parametrize(
    "tree",
    [
        [],
        scene(objects=None),
        scene(imgWidth=None),
        scene(imgWidth=True),
        scene(imgHeight=-4),
        scene(imgHeight=10**6, imgWidth=10**6),
        scene(objects=[3]),
        thing(label="spaceship"),
        thing(label="group"),
        thing(label=5),
        thing(polygon=None),
        thing(polygon=[]),
        thing(polygon=[[0, 0], [1]]),
        thing(polygon=[[0, 0], [1, "2"]]),
        thing(polygon=[[0, 0], [1, 1e9]]),
        thing(polygon=[[0, 0], [1, float("nan")]]),
    ],
)
def test_read_polygons_refuses_what_is_no_annotation(tree: object) -> None:
    with pytest.raises(DataError, match=r"bad\.json"):
        read_polygons(json.dumps(tree).encode(), size=ImageSize(1, 4, 4, "x.png"), name="bad.json")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[" * 200_000, b" " * (2**22 + 1)])
def test_read_polygons_refuses_what_is_no_json(content: bytes) -> None:
    with pytest.raises(DataError, match=r"bad\.json"):
        read_polygons(content, size=ImageSize(1, 4, 4, "x.png"), name="bad.json")


def test_open_cityscapes_bad_input_is_named(root: Path) -> None:
    with pytest.raises(ConfigError, match="'all'"):
        open_cityscapes(root, split="all")
    with pytest.raises(DataError, match="no such folder"):
        open_cityscapes(root / "nothing", split="train")
    write_scene(root, "val", "frankfurt", ids=np.full((4, 4), 34000, dtype=np.uint16))
    with pytest.raises(DataError, match=r"frankfurt.*instanceIds\.png.*34000"):
        open_cityscapes(root, split="test")[0]
    write_scene(root, "val", "frankfurt", ids=INSTANCE_IDS[:2])
    with pytest.raises(DataError, match=r"frankfurt.*instanceIds\.png: 2x4 pixels"):
        open_cityscapes(root, split="test")[0]
    grey = root / "leftImg8bit/val/frankfurt/frankfurt_000001_000019_leftImg8bit.png"
    Image.new("L", (4, 4)).save(grey)
    with pytest.raises(DataError, match=r"frankfurt.*leftImg8bit\.png: expected RGB"):
        open_cityscapes(root, split="test")[0]
    grey.unlink()
    with pytest.raises(DataError, match=r"frankfurt.*instanceIds\.png: has no image"):
        open_cityscapes(root, split="test")
    write_scene(root, "train", "bochum", ids=None)
    with pytest.raises(DataError, match=r"bochum.*leftImg8bit\.png: has no annotation"):
        open_cityscapes(root, split="train")
