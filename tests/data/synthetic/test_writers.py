"""Written synthetic data are read back by plain libraries to the same images and labels."""

import itertools
import sys

import numpy as np
import pytest
import SimpleITK
from PIL import Image

from hpunet.data.cityscapes.classes import car_labels
from hpunet.data.open import open_data
from hpunet.data.synthetic.source import open_synthetic
from hpunet.data.synthetic.writers import (
    write_cityscapes_scenes,
    write_lidc_crops,
    write_snemi3d_stack,
    write_volumes,
)
from hpunet.data.types import SPLITS
from hpunet.errors import ConfigError, DataError


def read(path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def test_write_lidc_crops_keeps_images_and_all_graders(tmp_path):
    write_lidc_crops(tmp_path / "crops", num_patients=2, size=32, seed=5)
    for split in SPLITS:
        source = open_synthetic("lesions", split=split, num_images=8, size=32, seed=5)
        images = sorted((tmp_path / "crops" / split / "images").glob("*/*.png"))
        assert len(images) == 8
        assert {path.parent.name for path in images} == {identity.patient for identity in source.identities}
        for i, path in enumerate(images):
            np.testing.assert_array_equal(read(path), np.rint(source[i].image[0] * 255))
            for grader in range(4):
                gt = tmp_path / "crops" / split / "gt" / path.parent.name / f"{path.stem}_l{grader}.png"
                np.testing.assert_array_equal(read(gt), source[i].labels[grader] * 255)
        assert len(list((tmp_path / "crops" / split / "gt").glob("*/*.png"))) == 32


@pytest.mark.parametrize(("hard", "num_images"), [(False, 2), (True, 1)])
def test_write_cityscapes_scenes_keeps_official_ids(tmp_path, hard, num_images):
    write_cityscapes_scenes(tmp_path, num_images=num_images, size=64, hard=hard)
    folders = {"train": "train/aachen", "val": "train/darmstadt", "test": "val/frankfurt"}
    for split, folder in folders.items():
        sample = open_synthetic("hard-streets" if hard else "streets", split=split, size=64)[0]
        stem = folder.split("/")[1] + "_000000_000019"
        image = read(tmp_path / "leftImg8bit" / folder / f"{stem}_leftImg8bit.png")
        label_ids = read(tmp_path / "gtFine" / folder / f"{stem}_gtFine_labelIds.png")
        ids = read(tmp_path / "gtFine" / folder / f"{stem}_gtFine_instanceIds.png").astype(np.int32)
        np.testing.assert_array_equal(image, np.rint(sample.image * 255).transpose(1, 2, 0))
        assert label_ids.dtype == np.uint8
        np.testing.assert_array_equal(label_ids, np.where(ids >= 1000, ids // 1000, ids))
        assert (ids // 1000 == 26).any()
        labels, valid = car_labels(ids, name="ids")
        np.testing.assert_array_equal(labels, sample.labels[0])
        np.testing.assert_array_equal(valid, sample.valid)
    assert len(list((tmp_path / "leftImg8bit").glob("*/*/*_leftImg8bit.png"))) == 3 * num_images


def test_write_cityscapes_scenes_does_not_depend_on_the_number_of_processes(tmp_path):
    written = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        write_cityscapes_scenes(folder, num_images=2, size=32, processes=processes)
        written.append({path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.png")})
    alone, shared = written
    assert len(alone) == 18
    assert shared == alone


def test_write_snemi3d_stack_keeps_cells_through_slices(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    write_snemi3d_stack(tmp_path, depth=4, size=64)
    images = tifffile.imread(tmp_path / "train-input.tif")
    cells = tifffile.imread(tmp_path / "train-labels.tif")
    assert (images.shape, images.dtype) == ((4, 64, 64), np.uint8)
    assert (cells.shape, cells.dtype) == ((4, 64, 64), np.uint16)
    assert images[cells == 0].mean() < images[cells > 0].mean() - 40
    for one, other in itertools.pairwise(cells):
        assert not np.array_equal(one, other)
        inside = (one > 0) & (other > 0)
        assert (one == other)[inside].mean() > 0.8


def test_write_volumes_keeps_voxels_raters_spacing_and_splits(tmp_path):
    write_volumes(tmp_path, num_volumes=2, size=(5, 32, 24), seed=7)
    table = (tmp_path / "data.csv").read_text().splitlines()
    for split in SPLITS:
        source = open_synthetic("nodules3d", split=split, num_images=2, size=(5, 32, 24), seed=7)
        for sample in (source[i] for i in range(2)):
            case = sample.identity.key
            assert f"{case},{case},{split}" in table
            image = SimpleITK.ReadImage(tmp_path / "images" / f"{case}.nii.gz")
            np.testing.assert_allclose(image.GetSpacing(), (0.8, 0.8, 2.0), rtol=1e-6)
            # SimpleITK counts left and back as positive: rows run to the back, columns to the left, slices up.
            np.testing.assert_allclose(np.reshape(image.GetDirection(), (3, 3)), [[0, 1, 0], [1, 0, 0], [0, 0, 1]])
            voxels = SimpleITK.GetArrayFromImage(image)  # the last axis of the file first
            assert voxels.dtype == np.uint8
            np.testing.assert_array_equal(voxels.swapaxes(1, 2), sample.pixels[0])
            for rater, labels in enumerate(sample.labels, start=1):
                mask = SimpleITK.ReadImage(tmp_path / "graders" / f"rater-{rater}" / f"{case}.nii.gz")
                assert mask.GetSpacing() == image.GetSpacing()
                np.testing.assert_array_equal(SimpleITK.GetArrayFromImage(mask).swapaxes(1, 2), labels)
    assert len(table) == 7
    assert len(list(tmp_path.rglob("*.nii.gz"))) == 6 * 5


def test_written_volumes_are_read_in_slices_as_they_were_made(tmp_path):
    write_volumes(tmp_path, num_volumes=1, size=(4, 16, 16))
    options = {"window": [0.0, 255.0], "classes": ["background", "nodule"]}
    for split in SPLITS:
        read = open_data(str(tmp_path), split=split, options=options)
        made = open_synthetic("nodules3d", split=split, num_images=1, size=(4, 16, 16), volumes=False)
        assert read.identities == made.identities
        assert read.info.spacing == pytest.approx(made.info.spacing)
        for i in range(4):
            np.testing.assert_array_equal(read[i].image, made[i].image)
            np.testing.assert_array_equal(read[i].labels, made[i].labels)


def test_written_volumes_without_all_files_are_refused(tmp_path):
    write_volumes(tmp_path, num_volumes=1, size=(4, 16, 16))
    for path in tmp_path.rglob("*test-0000.nii.gz"):
        path.unlink()
    with pytest.raises(DataError, match=r"data\.csv"):
        open_data(str(tmp_path), split="train", options={"classes": ["background", "nodule"]})


def test_writers_refuse_a_folder_that_holds_something(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    for write in (write_lidc_crops, write_cityscapes_scenes, write_snemi3d_stack, write_volumes):
        amounts = {
            write_lidc_crops: "num_patients",
            write_cityscapes_scenes: "num_images",
            write_volumes: "num_volumes",
        }
        with pytest.raises(DataError, match="not an empty folder"):
            write(tmp_path, **{amounts.get(write, "depth"): 1})
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_write_snemi3d_stack_names_the_missing_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(DataError, match=r"tifffile"):
        write_snemi3d_stack(tmp_path, depth=1)


def test_write_snemi3d_stack_refuses_an_empty_stack(tmp_path):
    pytest.importorskip("tifffile")
    with pytest.raises(ConfigError, match="depth"):
        write_snemi3d_stack(tmp_path, depth=0)
