"""Whole volumes of a folder: every layout and kind of file, depth first; masks of series by SimpleITK."""

import gzip
import pickle
import shutil
import struct
import tarfile
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pytest
import SimpleITK
import tifffile
from dicom_series import ROOT, SPACING, write_series
from PIL import Image

from hpunet.data.folder.source import FolderSource, open_folder
from hpunet.data.folder.volumes import onto_grid
from hpunet.data.open import open_data, open_splits
from hpunet.data.types import Source
from hpunet.errors import ConfigError, DataError

SHAPE = (6, 5, 3)  # as stored in NIfTI: rows, columns, slices
VOLUME = np.arange(np.prod(SHAPE), dtype=np.int16).reshape(SHAPE)
AFFINE = np.diag([0.7, 0.8, 2.5, 1.0])
SPLIT = {"split": "train", "val_every": 2, "volumes": True}


def mask(rater: int) -> np.ndarray:
    """A block that no other rater has."""
    labels = np.zeros(SHAPE, np.uint8)
    labels[1 : 3 + rater, 1:3, 1:] = 1
    return labels


def put(path: Path, voxels: np.ndarray, *, affine: np.ndarray = AFFINE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(voxels, affine)
    image.header.set_xyzt_units("mm")
    image.to_filename(path)
    return path


def put_images(root: Path) -> None:
    for name in ("a", "b", "c", "d"):
        put(root / f"images/{name}.nii.gz", VOLUME)


def check(source: FolderSource, *, raters: int, keys: list[str]) -> None:
    assert isinstance(source, Source)
    assert [identity.key for identity in source.identities] == keys
    assert (source.info.ndim, source.info.num_graders, len(source)) == (3, raters, len(keys))
    assert source.info.spacing == pytest.approx((2.5, 0.7, 0.8))
    sample = source[0]
    depth_first = VOLUME.transpose(2, 0, 1)
    np.testing.assert_allclose(sample.image[0], depth_first / depth_first.max(), rtol=1e-6)
    assert sample.valid.shape == (3, 6, 5)
    for rater in range(raters):
        np.testing.assert_array_equal(sample.labels[rater], mask(rater + 1).transpose(2, 0, 1))


def test_folders_of_graders_with_a_missing_one(tmp_path: Path) -> None:
    put_images(tmp_path)
    for name in ("b", "d"):
        for rater in (1, 2):
            put(tmp_path / f"graders/g{rater}/{name}.nii.gz", mask(rater))
    for name in ("a", "c"):
        put(tmp_path / f"graders/g1/{name}.nii.gz", mask(1))
    check(open_folder(tmp_path, **SPLIT), raters=2, keys=["b", "d"])
    val = open_folder(tmp_path, **SPLIT | {"split": "val"})
    assert val[0].graders.tolist() == [True, False]
    assert not val[0].labels[1].any()
    assert sorted(val.files(0)) == ["graders/g1/a.nii.gz", "images/a.nii.gz"]
    restored = pickle.loads(pickle.dumps(val))
    np.testing.assert_array_equal(restored[1].labels, val[1].labels)
    slices = open_folder(tmp_path, split="train", val_every=2)  # without the option
    assert (slices.info.ndim, len(slices), slices.identities[4].key) == (2, 6, "d/z-001")
    np.testing.assert_array_equal(slices[1].labels[1], val[0].labels[1][1] + mask(2)[..., 1])


def test_raters_by_pattern_in_the_fourth_dimension_and_as_instances(tmp_path: Path) -> None:
    put_images(tmp_path / "pattern")
    for name in ("a", "b"):
        for rater in (1, 2):
            put(tmp_path / f"pattern/masks/{name}_{rater}.nii.gz", mask(rater))
    for name in ("c", "d"):
        (tmp_path / f"pattern/images/{name}.nii.gz").unlink()
    graders = ("masks/{name}_1.nii.gz", "masks/{name}_2.nii.gz")
    check(open_folder(tmp_path / "pattern", graders=graders, **SPLIT), raters=2, keys=["b"])
    for folder in ("masks", "instances"):
        for name in ("a", "b"):
            put(tmp_path / f"{folder}4/images/{name}.nii.gz", VOLUME)
            put(tmp_path / f"{folder}4/{folder}/{name}.nii.gz", np.stack([mask(1), mask(2), mask(3)], axis=-1))
        check(open_folder(tmp_path / f"{folder}4", **SPLIT), raters=3, keys=["b"])
    ids = mask(1) * 7
    ids[0, 4, 0], ids[0, 4, 2] = 9, 9  # one instance of two parts
    put(tmp_path / "instances4/instances/b.nii.gz", np.stack([ids] * 3, axis=-1))
    labels = open_folder(tmp_path / "instances4", **SPLIT)[0].labels[2]
    np.testing.assert_array_equal(labels, np.select([ids == 7, ids == 9], [1, 2]).transpose(2, 0, 1))


def test_cases_bids_tables_and_archives(tmp_path: Path) -> None:
    for case in ("case1", "case2", "case3"):
        put(tmp_path / "cases" / case / "image.nii.gz", VOLUME)
        for rater in (1, 2, 3):
            put(tmp_path / "cases" / case / f"annotation_{rater}.nii.gz", mask(rater))
    check(open_folder(tmp_path / "cases", **SPLIT), raters=3, keys=["case2"])
    with tarfile.open(tmp_path / "cases.tar", "w") as archive:
        archive.add(tmp_path / "cases", "cases")
    check(open_folder(tmp_path / "cases.tar", **SPLIT), raters=3, keys=["case2"])
    (tmp_path / "cases/data.csv").write_text("file,patient,split\ncase1,p,val\ncase2,p,val\ncase3,q,train\n")
    source = open_folder(tmp_path / "cases", split="val", volumes=True)
    assert [tuple(identity) for identity in source.identities] == [("p", "case1"), ("p", "case2")]
    for subject in ("sub-01", "sub-02"):
        put(tmp_path / f"bids/{subject}/anat/{subject}_T1w.nii.gz", VOLUME)
        for rater in (1, 2):
            name = f"{subject}_T1w_desc-rater{rater}_mask.nii.gz"
            put(tmp_path / f"bids/derivatives/manual/{subject}/anat/{name}", mask(rater))
    check(open_folder(tmp_path / "bids", **SPLIT), raters=2, keys=["sub-02_T1w"])
    assert list(open_splits(str(tmp_path / "bids"), options={"val_every": 2, "volumes": True})) == ["train", "val"]


@pytest.mark.parametrize("ending", ["tif", "h5"])
def test_stacks_with_a_given_spacing(tmp_path: Path, ending: str) -> None:
    stack = VOLUME.astype(">u2").transpose(2, 0, 1)
    for name in ("a", "b"):
        for folder, values in (("images", stack), ("masks", mask(1).transpose(2, 0, 1))):
            path = tmp_path / folder / f"{name}.{ending}"
            path.parent.mkdir(exist_ok=True)
            if ending == "tif":
                tifffile.imwrite(path, values, byteorder=">", photometric="minisblack")
            else:
                with h5py.File(path, "w") as file:
                    file["volume"] = values
    source = open_data(
        str(tmp_path), split="train", options={"val_every": 2, "volumes": True, "spacing": [3.0, 1.0, 1.5]}
    )
    assert source.info.spacing == (3, 1, 1.5)
    sample = source[0]
    assert sample.pixels.dtype == np.uint16
    np.testing.assert_array_equal(sample.pixels[0], stack)
    np.testing.assert_array_equal(sample.labels[0], mask(1).transpose(2, 0, 1))
    assert open_folder(tmp_path, **SPLIT).info.spacing is None
    with pytest.raises(ConfigError, match="volumes=true"):
        open_folder(tmp_path, split="train", spacing=(1.0, 1.0, 1.0))
    with pytest.raises(ConfigError, match="three distances"):
        open_folder(tmp_path, spacing=(1.0, 0.0, 1.0), **SPLIT)
    with pytest.raises(DataError, match=r"a\.h5: .*set volumes=true" if ending == "h5" else "holds|shape"):
        open_folder(tmp_path, split="train", val_every=2)
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        for folder in ("images", "masks"):
            archive.add(tmp_path / folder, folder)
    with pytest.raises(DataError, match="unpack"):
        open_folder(tmp_path / "set.tar", **SPLIT)


def as_itk(folder: Path, kind: str, labels: np.ndarray, path: Path) -> None:
    """Labels of a series as SimpleITK writes them: columns first, and another order of slices if it has one."""
    reader = SimpleITK.ImageSeriesReader()
    names = reader.GetGDCMSeriesFileNames(str(folder))
    image = SimpleITK.GetImageFromArray(labels)
    reader.SetFileNames(names)
    image.CopyInformation(reader.Execute())
    if kind == "flipped":  # as dcm2niix turns rows
        image = SimpleITK.Flip(image, [False, True, False])
    path.parent.mkdir(parents=True, exist_ok=True)
    SimpleITK.WriteImage(image, str(path))


@pytest.mark.parametrize("kind", ["axial", "reversed", "tilted", "flipped"])
def test_series_with_masks_of_another_program(tmp_path: Path, kind: str) -> None:
    labels = np.zeros((4, 28, 20), np.uint8)
    labels[1:3, 5:9, 2:12] = 1
    for name in ("a", "b"):
        shutil.move(write_series(tmp_path / "dicom" / name, kind), tmp_path / "images" / name)
        as_itk(tmp_path / "images" / name, kind, labels, tmp_path / f"masks/{name}.nii.gz")
        (tmp_path / f"images/{name}/notes.txt").write_text("about")
    source = open_folder(tmp_path, **SPLIT)
    assert source.info.spacing == pytest.approx((2.5, *SPACING))
    sample = source[0]
    assert sample.image.shape == (1, 4, 28, 20)
    np.testing.assert_array_equal(sample.labels[0], labels)
    rows, columns = np.indices((28, 20))
    expected = np.stack([60 * np.cos(rows / 3 + z) * np.sin(columns / (2 + z)) + 40 for z in range(4)])
    expected = np.rint(expected)
    np.testing.assert_allclose(
        sample.image[0], (expected - expected.min()) / (expected.max() - expected.min()), atol=1e-6
    )
    assert len(source.files(0)) == 6  # four slices, the notes and the mask
    with pytest.raises(DataError, match="expected only files in images/"):
        open_folder(tmp_path, split="train")
    other = nibabel.load(tmp_path / "masks/b.nii.gz")
    moved = other.affine.copy()
    moved[:3, 3] += moved[:3, 0] / 2
    nibabel.Nifti1Image(np.asarray(other.dataobj), moved).to_filename(tmp_path / "masks/b.nii.gz")
    with pytest.raises(DataError, match=r"masks/b\.nii\.gz: has another position"):
        source[0]


def test_series_of_cases_hide_uids_and_tell_what_is_wrong(tmp_path: Path) -> None:
    labels = np.zeros((6, 28, 20), np.uint8)
    for case in (ROOT + ".9", "case2"):
        folder = write_series(tmp_path / "dicom" / case, "axial", num_slices=6)
        (tmp_path / case).mkdir()
        shutil.move(folder, tmp_path / case / "image")
        for rater in (1, 2):
            as_itk(tmp_path / case / "image", "axial", labels, tmp_path / case / f"annotation_{rater}.nii.gz")
    shutil.rmtree(tmp_path / "dicom")
    sources = open_splits(str(tmp_path), options={"val_every": 2, "volumes": True})
    keys = [identity for source in sources.values() for identity in source.identities]
    assert len(keys) == 2
    assert ROOT not in str(keys)
    assert all(source[0].graders.tolist() == [True, True] for source in sources.values())
    slices = sorted((tmp_path / "case2/image").iterdir())
    middle = slices[1].read_bytes()
    slices[1].unlink()
    with pytest.raises(DataError, match=r"case2/image: .*missing"):
        open_folder(tmp_path, **SPLIT)
    slices[1].write_bytes(middle)
    shutil.rmtree(tmp_path / "case2/image")
    shutil.move(write_series(tmp_path / "gantry", "gantry", num_slices=6), tmp_path / "case2/image")
    shutil.rmtree(tmp_path / "gantry")
    with pytest.raises(DataError, match=r"case2/image: .*20\.0°.*gantry"):
        [source[0] for source in open_splits(str(tmp_path), options={"val_every": 2, "volumes": True}).values()]


def test_onto_grid_is_a_search_of_all_turns() -> None:
    """Every exchange and turn of axes brings voxels back to where they were; half a voxel aside none does."""
    rng = np.random.default_rng(0)
    voxels = rng.integers(0, 9, (2, 3, 4))
    grid = nibabel.affines.from_matvec(np.diag([2.0, 1.0, 0.5]) @ np.eye(3)[[1, 2, 0]], [5, -3, 1])
    count = 0
    for first in range(6):
        axes = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)][first]
        for signs in np.ndindex(2, 2, 2):
            orientation = np.array([(axis, 1 - 2 * sign) for axis, sign in zip(axes, signs, strict=True)])
            turned = nibabel.apply_orientation(voxels, orientation)
            affine = grid @ nibabel.orientations.inv_ornt_aff(orientation, voxels.shape)
            found = onto_grid(turned, affine, grid=grid, shape=voxels.shape)
            assert found is not None
            np.testing.assert_array_equal(found, voxels)
            count += 1
            shifted = affine.copy()
            shifted[:3, 3] += 0.5 * affine[:3, 1]
            assert onto_grid(turned, shifted, grid=grid, shape=voxels.shape) is None
    assert count == 48
    assert onto_grid(voxels, grid @ np.diag([1.1, 1, 1, 1]), grid=grid, shape=voxels.shape) is None
    assert onto_grid(voxels, np.full((4, 4), np.nan), grid=grid, shape=voxels.shape) is None


def sheared(affine: np.ndarray) -> np.ndarray:
    return affine @ np.array([[1, 0, 0.6, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])


@pytest.mark.parametrize(
    ("affine", "message"),
    [
        (AFFINE, "finite"),
        (sheared(AFFINE), r"shifted in their plane.*right angles"),
        (AFFINE[:, [2, 1, 0, 3]], "another direction"),
        (np.diag([0.7, 0.8, 1e7, 1]), "impossible"),
    ],
)
def test_odd_affines_are_refused(tmp_path: Path, affine: np.ndarray, message: str) -> None:
    for name in ("a", "b"):
        put(tmp_path / f"images/{name}.nii.gz", VOLUME, affine=AFFINE if name == "a" else affine)
        put(tmp_path / f"masks/{name}.nii.gz", mask(1), affine=AFFINE if name == "a" else affine)
    if message == "finite":
        content = bytearray(gzip.decompress((tmp_path / "images/b.nii.gz").read_bytes()))
        content[320:324] = struct.pack("<f", np.nan)  # srow_z
        (tmp_path / "images/b.nii.gz").write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=message):
        open_folder(tmp_path, **SPLIT)[0]


def test_masks_lie_where_their_images_do_and_volumes_are_volumes(tmp_path: Path) -> None:
    put_images(tmp_path)
    for name in ("a", "b", "c", "d"):
        put(tmp_path / f"masks/{name}.nii.gz", mask(1))
    put(tmp_path / "masks/b.nii.gz", mask(1), affine=AFFINE[:, [1, 0, 2, 3]])
    with pytest.raises(DataError, match=r"masks/b\.nii\.gz: has another position or orientation"):
        open_folder(tmp_path, **SPLIT)[0]
    (tmp_path / "masks/b.nii.gz").unlink()
    tifffile.imwrite(tmp_path / "masks/b.tif", mask(1).transpose(2, 0, 1), photometric="minisblack")
    with pytest.raises(DataError, match=r"masks/b\.tif: is of another kind than its image images/b\.nii\.gz"):
        open_folder(tmp_path, **SPLIT)[0]
    (tmp_path / "masks/d.nii.gz").unlink()
    put(tmp_path / "masks/d.nii.gz", mask(1)[..., :2])
    with pytest.raises(DataError, match=r"masks/d\.nii\.gz: shape"):
        open_folder(tmp_path, **SPLIT)[1]
    with pytest.raises(ConfigError, match="volumes say theirs"):
        open_folder(tmp_path, spacing=(1.0, 1.0, 1.0), **SPLIT)
    Image.fromarray(np.zeros((6, 5), np.uint8)).save(tmp_path / "images/e.png")
    put(tmp_path / "masks/e.nii.gz", mask(1))
    with pytest.raises(DataError, match=r"images/e\.png: expected a volume"):
        open_folder(tmp_path, **SPLIT)


def test_stacks_take_no_raters_of_nifti(tmp_path: Path) -> None:
    """Whose axes are others: of a square stack nobody would notice."""
    for name in ("a", "b"):
        put(tmp_path / f"masks/{name}.nii.gz", np.stack([mask(1), mask(2)], axis=-1))
        (tmp_path / "images").mkdir(exist_ok=True)
        stack = np.ascontiguousarray(VOLUME.astype(np.uint8).transpose(2, 0, 1))
        tifffile.imwrite(tmp_path / f"images/{name}.tif", stack, photometric="minisblack")
    with pytest.raises(DataError, match=r"masks/b\.nii\.gz: is of another kind than its image images/b\.tif"):
        open_folder(tmp_path, **SPLIT)[0]


def test_many_raters_of_zeros_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    zeros = np.zeros((160, 160, 300), np.uint8)
    put(tmp_path / "images/a.nii.gz", zeros)
    first = put(tmp_path / "graders/g00/a.nii.gz", zeros)
    for rater in range(1, 40):
        (tmp_path / f"graders/g{rater:02}").mkdir()
        shutil.copy(first, tmp_path / f"graders/g{rater:02}/a.nii.gz")
    with pytest.raises(DataError, match=r"images/a\.nii\.gz: .*memory"):
        open_folder(tmp_path, split="train", volumes=True)[0]
