"""Stacks of slices as a source of patches with cell instances."""

import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
import tifffile
from places import SHARED

from hpunet.data.snemi3d import default_slices, open_snemi3d
from hpunet.data.types import Source
from hpunet.errors import ConfigError, DataError

EM, FIBSEM = SHARED / "data" / "em_neurites", SHARED / "data" / "fibsem_neurites"


def volume(depth: int = 10, height: int = 8, width: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (depth, height, width), dtype=np.uint8)
    labels = rng.choice(np.array([0, 7, 300, 4000], dtype=np.uint16), (depth, height, width))
    return image, labels


def write(folder: Path, image: np.ndarray, labels: np.ndarray, *, ending: str = "tif") -> Path:
    folder.mkdir(exist_ok=True)
    for name, stack in (("train-input", image), ("train-labels", labels)):
        path = folder / f"{name}.{ending}"
        if ending == "tif":
            tifffile.imwrite(path, stack, photometric="minisblack")
        else:
            with h5py.File(path, "w") as file:
                file["main"] = stack
    return folder


@pytest.mark.parametrize("ending", ["tif", "h5"])
def test_open_snemi3d_patches_tile_the_slices(tmp_path: Path, ending: str) -> None:
    image, labels = volume()
    source = open_snemi3d(write(tmp_path, image, labels, ending=ending), split="val", patch=4)
    assert isinstance(source, Source)
    assert len(source) == 2 * 3  # one slice of 8x12
    mosaic, cells = np.zeros((8, 12), np.float32), np.zeros((8, 12), bool)
    for sample in (source[i] for i in range(len(source))):
        assert sample.identity.patient == "z-008"
        y, x = (int(part[2:]) for part in sample.identity.key.split("/")[1].split("_"))
        mosaic[y : y + 4, x : x + 4] = sample.image[0]
        cells[y : y + 4, x : x + 4] = sample.labels[0] > 0
    np.testing.assert_allclose(mosaic, image[8] / np.float32(255))
    np.testing.assert_array_equal(cells, labels[8] > 0)
    assert len({identity.key for identity in source.identities}) == len(source)


def test_open_snemi3d_numbers_cells_compactly_and_keeps_parts_together(tmp_path: Path) -> None:
    image, labels = volume(depth=1, height=4, width=4)
    labels[0] = [[4000, 0, 0, 7], [0, 0, 0, 0], [0, 65535, 0, 0], [7, 0, 0, 4000]]
    write(tmp_path, image, labels)
    source = open_snemi3d(tmp_path, split="train", slices={"train": (0, 1)}, patch=4, num_random_ids=3)
    assert source[0].labels[0].tolist() == [[2, 0, 0, 1], [0, 0, 0, 0], [0, 3, 0, 0], [1, 0, 0, 2]]
    assert source.info.num_classes == 4
    assert source.info.stochastic_classes == (1, 2, 3)


def test_open_snemi3d_reduces_images_to_means_and_labels_to_those_in_the_middle(tmp_path: Path) -> None:
    image, labels = volume(depth=1, height=6, width=12)
    write(tmp_path, image, labels)
    for factor in (2, 3):
        source = open_snemi3d(tmp_path, split="train", slices={"train": (0, 1)}, patch=6, reduce=factor)
        assert len(source) == 2
        side, sample = 6 // factor, source[1]
        for y in range(side):
            for x in range(side):
                top, left = factor * y, 6 + factor * x
                block = image[0, top : top + factor, left : left + factor]
                assert sample.image[0, y, x] == pytest.approx(np.rint(block.mean()) / 255)
                middle = labels[0, top + factor // 2, left + factor // 2]
                assert (sample.labels[0, y, x] > 0) == (middle > 0)
        assert sample.image.shape == (1, side, side)
    for factor in (0, 4):
        with pytest.raises(ConfigError, match=f"reduce: expected a whole number that divides .* 6 .* got {factor}"):
            open_snemi3d(tmp_path, split="train", patch=6, reduce=factor)


def test_default_slices_are_the_papers() -> None:
    assert default_slices(100) == {"train": (0, 80), "val": (80, 90), "test": (90, 100)}
    assert default_slices(18) == {"train": (0, 14), "val": (14, 16), "test": (16, 18)}


def test_open_snemi3d_remainder_has_to_be_allowed(tmp_path: Path) -> None:
    write(tmp_path, *volume())
    with pytest.raises(DataError, match=r"train-input\.tif.*8x12.*patches of 5x5"):
        open_snemi3d(tmp_path, split="train", patch=5)
    assert len(open_snemi3d(tmp_path, split="train", patch=5, allow_remainder=True)) == 8 * 2
    with pytest.raises(DataError, match="patches of 9x9"):
        open_snemi3d(tmp_path, split="train", patch=9, allow_remainder=True)


def test_open_snemi3d_travels_without_its_voxels(tmp_path: Path) -> None:
    write(tmp_path, *volume(height=64, width=64))
    source = open_snemi3d(tmp_path, split="train", patch=64)
    expected = source[3]
    sent = pickle.dumps(source)
    assert len(sent) < 5000
    np.testing.assert_array_equal(pickle.loads(sent)[3].labels, expected.labels)


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        ({"train": (0, 6), "val": (5, 8)}, "overlaps"),
        ({"train": (0, 11)}, "10 slices"),
        ({"train": (4, 2)}, "10 slices"),
        ({"training": (0, 2)}, "not among"),
    ],
)
def test_open_snemi3d_checks_slices(tmp_path: Path, slices: dict[str, tuple[int, int]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_snemi3d(write(tmp_path, *volume()), split="train", slices=slices, patch=4)


def test_open_snemi3d_bad_input_is_named(tmp_path: Path) -> None:
    image, labels = volume()
    with pytest.raises(DataError, match=r"train-input.*found none"):
        open_snemi3d(tmp_path, split="train")
    with pytest.raises(ConfigError, match="'all'"):
        open_snemi3d(write(tmp_path / "a", image, labels), split="all")
    with pytest.raises(DataError, match="no slices for 'val'"):
        open_snemi3d(tmp_path / "a", split="val", slices={"train": (0, 10)}, patch=4)
    with pytest.raises(DataError, match=r"train-labels\.tif: shape"):
        open_snemi3d(write(tmp_path / "b", image, labels[:, :4]), split="train", patch=4)
    with pytest.raises(DataError, match=r"train-input\.tif.*uint16"):
        open_snemi3d(write(tmp_path / "c", image.astype(np.uint16), labels), split="train", patch=4)
    with pytest.raises(DataError, match=r"train-labels\.tif.*float32"):
        open_snemi3d(write(tmp_path / "d", image, labels.astype(np.float32)), split="train", patch=4)
    write(tmp_path / "e", image, labels.astype(np.int16) - 1)
    with pytest.raises(DataError, match=r"train-labels\.tif, slice 0.*found -1"):
        open_snemi3d(tmp_path / "e", split="train", patch=4)[0]
    write(tmp_path / "a", image, labels, ending="h5")
    with pytest.raises(DataError, match=r"found train-input\.tif, train-input\.h5"):
        open_snemi3d(tmp_path / "a", split="train", patch=4)


@pytest.mark.parametrize("ending", ["tif", "h5"])
def test_volumes_keep_ids_across_slices(tmp_path: Path, ending: str) -> None:
    image, labels = volume()
    write(tmp_path, image, labels, ending=ending)
    options = {"volumes": True, "slices": {"train": (0, 6), "val": (6, 10)}}
    source = open_snemi3d(tmp_path, split="val", spacing=(3e-5, 6e-6, 6e-6), **options)
    assert isinstance(source, Source)
    assert [tuple(identity) for identity in source.identities] == [("z-006-009", "z-006-009")]
    assert (source.info.ndim, source.info.spacing) == (3, (3e-5, 6e-6, 6e-6))
    sample = pickle.loads(pickle.dumps(source))[0]
    np.testing.assert_array_equal(sample.pixels, image[None, 6:])
    ids = np.array([0, 7, 300, 4000])  # 1, 2 and 3, whichever slice they are in
    np.testing.assert_array_equal(ids[sample.labels[0]], labels[6:])
    assert sorted(source.files(0)) == [f"train-input.{ending}", f"train-labels.{ending}"]
    train = open_snemi3d(tmp_path, split="train", **options)
    assert train.info.spacing is None
    assert train[0].image.shape == (1, 6, 8, 12)
    with pytest.raises(DataError, match="no slices for 'test'"):
        open_snemi3d(tmp_path, split="test", **options)


@pytest.mark.parametrize("volumes", [False, True])
def test_a_number_may_be_background(tmp_path: Path, volumes: bool) -> None:
    image, labels = volume(depth=1, height=4, width=4)
    write(tmp_path, image, labels)
    how = {"split": "train", "slices": {"train": (0, 1)}, "volumes": volumes} | ({} if volumes else {"patch": 4})
    found = open_snemi3d(tmp_path, background=300, **how)[0].labels[0]
    expected = np.select([labels == 7, labels == 4000], [1, 2])
    np.testing.assert_array_equal(found, expected if volumes else expected[0])


def test_volumes_are_reduced_in_the_plane_of_their_slices(tmp_path: Path) -> None:
    image, labels = volume(depth=2, height=9, width=12)
    write(tmp_path, image, labels)
    options = {"split": "train", "slices": {"train": (0, 2)}, "reduce": 2, "volumes": True}
    with pytest.raises(DataError, match="9x12 do not divide into blocks of 2x2; choose another reduce"):
        open_snemi3d(tmp_path, **options)
    source = open_snemi3d(tmp_path, allow_remainder=True, spacing=(3.0, 1.0, 1.0), **options)
    assert source.info.spacing == (3, 2, 2)
    sample = source[0]
    assert sample.image.shape == (1, 2, 4, 6)
    for z, y, x in np.ndindex(2, 4, 6):
        block = image[z, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2]
        assert sample.pixels[0, z, y, x] == np.rint(block.mean())
        assert (sample.labels[0, z, y, x] > 0) == (labels[z, 2 * y + 1, 2 * x + 1] > 0)


def test_volumes_refuse_options_of_slices_and_stacks_out_of_proportion(tmp_path: Path) -> None:
    write(tmp_path, *volume())
    with pytest.raises(ConfigError, match="patch: only of slices"):
        open_snemi3d(tmp_path, split="train", volumes=True, patch=4)
    with pytest.raises(ConfigError, match="spacing: an option of volumes"):
        open_snemi3d(tmp_path, split="train", spacing=(1.0, 1.0, 1.0))
    zeros = np.zeros((64, 640, 640), np.uint8)
    for name in ("train-input", "train-labels"):
        tifffile.imwrite(tmp_path / f"{name}.tif", zeros, compression="zlib", photometric="minisblack")
    with pytest.raises(DataError, match=r"train-input\.tif.*memory"):
        open_snemi3d(tmp_path, split="train", volumes=True)


@pytest.mark.skipif(not FIBSEM.is_dir(), reason=f"needs the stack in {FIBSEM}")
def test_the_shared_volume_has_cells_across_slices() -> None:
    source = open_snemi3d(FIBSEM, split="val", slices={"train": (0, 160), "val": (160, 200)}, volumes=True)
    labels = source[0].labels[0]
    assert labels.shape == (40, 250, 250)
    raw = tifffile.imread(FIBSEM / "train-labels.tif")[160:200]
    present = np.unique(raw[raw > 0])
    np.testing.assert_array_equal(np.r_[0, present][labels], raw)
    assert sum(np.isin(labels[0], n).any() and np.isin(labels[-1], n).any() for n in range(1, len(present) + 1)) > 10


@pytest.mark.skipif(not EM.is_dir(), reason=f"needs the EM stack in {EM}")
def test_open_snemi3d_opens_the_shared_stack() -> None:
    slices = {"train": (0, 16), "val": (16, 18)}
    assert len(open_snemi3d(EM, split="train", slices=slices)) == 256
    source = open_snemi3d(EM, split="val", slices=slices)
    assert len(source) == 32
    sample = source[5]
    assert sample.image.shape == (1, 256, 256)
    raw = tifffile.imread(EM / "train-labels.tif", key=16)[256:512, 256:512]
    present = np.unique(raw[raw > 0])
    assert sample.labels.max() == present.size
    np.testing.assert_array_equal(np.r_[0, present][sample.labels[0]], raw)
