"""A folder of your own images: layouts, formats, tables, splits, and refusals."""

import pickle
import tarfile
from pathlib import Path

import nibabel
import numpy as np
import pytest
import tifffile
from PIL import Image
from places import SHARED

from hpunet.data.folder.source import FolderSource, open_folder
from hpunet.data.folder.table import Entry, assign_splits, read_table
from hpunet.data.types import NoSuchSplitError, Source
from hpunet.errors import ConfigError, DataError

NUCLEI = SHARED / "data" / "nuclei.tar.gz"
GREY = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10
MASK = (GREY > 100).astype(np.uint8)


def put(path: Path, array: np.ndarray | None = None, *, text: str = "", affine: np.ndarray | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if array is None:
        path.write_text(text)
    elif ".nii" in path.suffixes:
        nibabel.Nifti1Image(array, np.eye(4) if affine is None else affine).to_filename(path)
    elif path.suffix == ".tif":
        tifffile.imwrite(path, array)
    else:
        Image.fromarray(array).save(path)
    return path


def put_pairs(root: Path, count: int, *, masks: str = "masks") -> Path:
    for i in range(count):
        put(root / f"images/case{i:02d}.png", GREY)
        put(root / f"{masks}/case{i:02d}.png", MASK)
    return root


def open_all(root: Path, **options: object) -> FolderSource:
    """Everything as training, whatever the number of files."""
    names = sorted(path.name for path in (root / "images").iterdir())
    put(root / "data.csv", text="file,split\n" + "".join(f"{name},train\n" for name in names))
    return open_folder(root, split="train", **options)  # type: ignore[arg-type]


def test_open_folder_reads_masks_of_a_single_grader(tmp_path: Path) -> None:
    source = open_all(put_pairs(tmp_path, 2))
    assert isinstance(source, Source)
    assert (source.info.num_graders, source.info.num_classes, source.info.image_bits) == (1, 2, 8)
    assert source.info.stochastic_classes == (1,)
    sample = source[1]
    np.testing.assert_allclose(sample.image[0], GREY / np.float32(255))
    np.testing.assert_array_equal(sample.labels[0], MASK)
    assert sample.identity == ("case01.png", "case01")


def test_open_folder_missing_grader_is_no_empty_map(tmp_path: Path) -> None:
    put_pairs(tmp_path, 2, masks="graders/ann")
    put(tmp_path / "graders/bob/case01.png", np.zeros_like(MASK))
    source = open_all(tmp_path)
    assert source.info.num_graders == 2
    assert source[0].graders.tolist() == [True, False]
    assert source[1].graders.tolist() == [True, True]


@pytest.mark.parametrize("scale", [1, 255])
def test_open_folder_takes_two_classes_as_1_or_255(tmp_path: Path, scale: int) -> None:
    put(put_pairs(tmp_path, 1) / "masks/case00.png", MASK * np.uint8(scale))
    np.testing.assert_array_equal(open_all(tmp_path)[0].labels[0], MASK)


def test_open_folder_numbers_instances(tmp_path: Path) -> None:
    put(tmp_path / "images/a.png", GREY)
    cells = np.zeros((4, 6), np.uint16)
    cells[0, 0], cells[3, 3], cells[3, 5] = 900, 17, 900
    put(tmp_path / "instances/a.tif", cells)
    source = open_all(tmp_path, num_random_ids=4)
    labels = source[0].labels[0]
    assert (labels[0, 0], labels[3, 3], labels[3, 5], labels.max()) == (2, 1, 2, 2)
    assert (source.info.num_classes, source.info.stochastic_classes) == (5, (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("name", "image", "channels", "bits"),
    [
        ("a.png", GREY, 1, 8),
        ("a.png", GREY.astype(np.uint16) * 257, 1, 16),
        ("a.tif", GREY.astype(np.uint16) * 257, 1, 16),
        ("a.png", np.stack([GREY] * 3, -1), 3, 8),
        ("a.png", np.stack([GREY] * 3 + [np.full_like(GREY, 255)], -1), 3, 8),
        ("a.png", np.stack([GREY, np.full_like(GREY, 255)], -1), 1, 8),
        ("a.jpg", np.full((4, 6), 90, np.uint8), 1, 8),
    ],
)
def test_open_folder_image_formats(tmp_path: Path, name: str, image: np.ndarray, channels: int, bits: int) -> None:
    put(tmp_path / "images" / name, image)
    put(tmp_path / "masks/a.png", MASK)
    source = open_all(tmp_path)
    assert (source.info.in_channels, source.info.image_bits) == (channels, bits)
    first = image if image.ndim == 2 else image[..., 0]
    expected = first / np.float32(np.iinfo(image.dtype).max)
    np.testing.assert_allclose(source[0].image, np.stack([expected] * channels), atol=2e-2 if "jpg" in name else 1e-6)


def test_open_folder_scales_floats_by_range_or_window(tmp_path: Path) -> None:
    put(tmp_path / "images/a.tif", GREY.astype(np.float32) - 30)
    put(tmp_path / "images/b.tif", np.full((4, 6), 7, np.float32))
    put(tmp_path / "masks/a.png", MASK)
    put(tmp_path / "masks/b.png", MASK)
    source = open_all(tmp_path)
    assert (source.info.image_bits, source.info.intensity_window) == (32, None)
    np.testing.assert_allclose(source[0].image[0], GREY / 230, rtol=1e-6)
    assert source[1].image.max() == 0
    windowed = open_all(tmp_path, window=(0.0, 100.0))
    assert windowed.info.intensity_window == (0, 100)
    np.testing.assert_allclose(windowed[0].image[0], np.clip((GREY.astype(float) - 30) / 100, 0, 1), rtol=1e-6)


def test_open_folder_window_holds_for_integers_too(tmp_path: Path) -> None:
    source = open_all(put_pairs(tmp_path, 1), window=(100.0, 200.0))
    assert source.info.image_bits == 32
    np.testing.assert_allclose(source[0].image[0], np.clip((GREY.astype(float) - 100) / 100, 0, 1), rtol=1e-6)


def test_open_folder_volume_gives_slices_of_one_patient(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    volume = rng.integers(-1000, 400, (5, 4, 3)).astype(np.int16)
    mask = (volume > 0).astype(np.float32)
    put(tmp_path / "images/scan.nii.gz", volume)
    put(tmp_path / "graders/x/scan.nii", mask)
    source = open_folder(put(tmp_path / "data.csv", text="file,split\nscan,train").parent, split="train")
    assert [identity.key for identity in source.identities] == ["scan/z-000", "scan/z-001", "scan/z-002"]
    assert {identity.patient for identity in source.identities} == {"scan"}
    low, high = volume.min(), volume.max()
    np.testing.assert_allclose(source[2].image[0], (volume[..., 2] - float(low)) / (high - float(low)), rtol=1e-5)
    np.testing.assert_array_equal(source[2].labels[0], mask[..., 2])


def test_open_folder_travels_without_pixels(tmp_path: Path) -> None:
    put(tmp_path / "images/a.png", np.zeros((100, 100), np.uint8))
    put(tmp_path / "masks/a.png", np.zeros((100, 100), np.uint8))
    source = open_all(tmp_path)
    expected = source[0]
    sent = pickle.dumps(source)
    assert len(sent) < 5000
    np.testing.assert_array_equal(pickle.loads(sent)[0].image, expected.image)


def test_open_folder_sizes_may_differ(tmp_path: Path) -> None:
    put_pairs(tmp_path, 1)
    put(tmp_path / "images/wide.png", np.zeros((4, 9), np.uint8))
    put(tmp_path / "masks/wide.png", np.zeros((4, 9), np.uint8))
    source = open_all(tmp_path)
    assert [source[i].image.shape for i in range(2)] == [(1, 4, 6), (1, 4, 9)]


def test_open_folder_archive_is_the_folder(tmp_path: Path) -> None:
    root = put_pairs(tmp_path / "set", 5)
    with tarfile.open(tmp_path / "set.tar.gz", "w:gz") as archive:
        archive.add(root, "set")
    for split in ("train", "val"):
        plain, packed = open_folder(root, split=split), open_folder(tmp_path / "set.tar.gz", split=split)
        packed = pickle.loads(pickle.dumps(packed))
        assert plain.identities == packed.identities
        np.testing.assert_array_equal(plain[0].labels, packed[0].labels)


def test_open_folder_splits_cover_all_images_once(tmp_path: Path) -> None:
    put_pairs(tmp_path, 20)
    patients = [{i.patient for i in open_folder(tmp_path, split=s).identities} for s in ("train", "val", "test")]
    assert [len(members) for members in patients] == [16, 2, 2]
    assert len(set.union(*patients)) == 20
    other = open_folder(tmp_path, split="val", seed=1)
    assert {i.patient for i in other.identities} != patients[1]
    every = open_folder(tmp_path, split="val", val_every=10)
    assert [i.key for i in every.identities] == ["case00", "case10"]
    assert len(open_folder(tmp_path, split="train", val_every=10)) == 18


@pytest.mark.parametrize("count", range(2, 16))
def test_assign_splits_leaves_something_for_validation_and_training(count: int) -> None:
    entries = {f"{i}": Entry(f"{i}", None) for i in range(count)}
    splits = assign_splits(entries, val_every=None, seed=0, name="x")
    assert splits.keys() == entries.keys()
    assert {"train", "val"} <= set(splits.values())


def test_lists_of_patients_or_images_are_the_splits(tmp_path: Path) -> None:
    root = put_pairs(tmp_path / "data", 6)
    names = [f"case{i:02d}" for i in range(6)]
    val, test, train = (tmp_path / f"{split}.txt" for split in ("val", "test", "train"))
    val.write_text(f"# of the paper\r\n{names[3]}\r\n  {names[0]}\r\n")
    test.write_text(names[5])
    train.write_text(names[1])
    lists = {"val": str(val), "test": str(test)}

    def of(split: str, **lists: str) -> list[str]:
        return [key for _, key in open_folder(root, split=split, lists=lists).identities]

    assert (of("val", **lists), of("test", **lists)) == ([names[0], names[3]], [names[5]])
    assert of("train", **lists) == [names[1], names[2], names[4]]
    assert of("train", **lists, train=str(train)) == [names[1]]
    with pytest.raises(NoSuchSplitError):
        of("test", val=str(val))
    (root / "data.csv").write_text("file,patient\n" + "".join(f"{name}.png,{name[-1] in '01'}\n" for name in names))
    assert of("val", val=str(listed_patient(tmp_path, "True"))) == names[:2]
    with pytest.raises(DataError, match=r"val\.txt.*of one patient"):
        of("val", val=str(val))


def listed_patient(folder: Path, name: str) -> Path:
    (folder / "patients.txt").write_text(name)
    return folder / "patients.txt"


def test_assign_splits_keeps_patients_whole() -> None:
    entries = {f"{i}": Entry(f"p{i // 4}", None) for i in range(40)}
    for val_every in (None, 3):
        splits = assign_splits(entries, val_every=val_every, seed=0, name="x")
        assert len({(entries[file].patient, split) for file, split in splits.items()}) == 10


def test_read_table_takes_any_subset_of_columns() -> None:
    table = read_table(b"\xef\xbb\xbfsplit,file\r\nval,a.png\r\n\r\ntrain,b.png\r\n", name="t")
    assert table == {"a.png": Entry("a.png", "val"), "b.png": Entry("b.png", "train")}
    assert read_table(b'patient,file\n"Doe, J",a\n', name="t") == {"a": Entry("Doe, J", None)}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"a.png,train\n",
        b"patient,split\np,train\n",
        b"file,colour\na,red\n",
        b"file,file\na,b\n",
        b"file,split\na\n",
        b"file,split\na,train,x\n",
        b"file,split\na,\n",
        b"file,split\na,training\n",
        b"file\na\na\n",
        b"file\n\xff\n",
        b'file\n"a\n',
    ],
)
def test_read_table_refuses_what_is_unclear(content: bytes) -> None:
    with pytest.raises(DataError, match=r"data\.csv"):
        read_table(content, name="data.csv")


def test_open_folder_table_must_fit(tmp_path: Path) -> None:
    put_pairs(tmp_path, 2)
    for rows in ("case00.png,p\n", "case00,p\ncase01,p\ncase02,p\n", "case00,p\ncase00.png,p\ncase01,q\n", ""):
        put(tmp_path / "data.csv", text="file,patient\n" + rows)
        with pytest.raises(DataError, match=r"data\.csv"):
            open_folder(tmp_path, split="train")
    put(tmp_path / "data.csv", text="file,patient,split\ncase00,p,train\ncase01,p,val\n")
    with pytest.raises(DataError, match="are of one patient"):
        open_folder(tmp_path, split="train")
    put(tmp_path / "data.csv", text="file,split\ncase00,train\ncase01,val\n")
    with pytest.raises(DataError, match="none of 2 images is in the split 'test'"):
        open_folder(tmp_path, split="test")
    with pytest.raises(ConfigError, match="val_every"):
        open_folder(tmp_path, split="train", val_every=2)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("masks/case00.png", MASK * 7, r"masks/case00\.png: value 7 is not a class.*--set"),
        ("masks/case00.png", MASK[:2], r"masks/case00\.png: 2x6 pixels, its image images/case00\.png has 4x6"),
        ("masks/case00.png", np.stack([MASK] * 3, -1), r"masks/case00\.png: shape"),
        ("images/case00.png", GREY.astype(np.uint16), r"images/case00\.png: 1 channels of 16 bits"),
        ("images/case00.png", np.stack([GREY] * 3, -1), r"images/case00\.png: 3 channels"),
        ("images/case00.png", np.stack([GREY] * 4, -1), r"images/case00\.png.*transparent"),
    ],
)
def test_open_folder_bad_files_are_named(tmp_path: Path, name: str, array: np.ndarray, message: str) -> None:
    put(put_pairs(tmp_path, 2) / "images/a.png", GREY)
    put(tmp_path / "masks/a.png", MASK)
    put(tmp_path / name, array)
    with pytest.raises(DataError, match=message):
        open_all(tmp_path)[1]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_open_folder_non_finite_pixels_are_named(tmp_path: Path, value: float) -> None:
    image = GREY.astype(np.float32)
    image[1, 1] = value
    put(tmp_path / "images/a.tif", image)
    put(tmp_path / "masks/a.png", MASK)
    with pytest.raises(DataError, match=r"a\.tif: 1 pixels are NaN"):
        open_all(tmp_path)


def test_open_folder_masks_of_fractions_are_named(tmp_path: Path) -> None:
    put(tmp_path / "images/a.png", GREY)
    for mask in (MASK * 0.5, MASK * np.nan, -MASK.astype(np.float32)):
        put(tmp_path / "masks/a.tif", mask.astype(np.float32))
        with pytest.raises(DataError, match=r"masks/a\.tif: expected labels"):
            open_all(tmp_path)[0]


def test_open_folder_volumes_must_have_equal_affines(tmp_path: Path) -> None:
    put(tmp_path / "images/v.nii", np.arange(8, dtype=np.int16).reshape(2, 2, 2))
    put(tmp_path / "masks/v.nii", np.zeros((2, 2, 2), np.uint8), affine=np.diag([-1.0, 1, 1, 1]))
    with pytest.raises(DataError, match=r"masks/v\.nii.*orient"):
        open_all(tmp_path)[0]


def test_open_folder_unpaired_and_unknown_files_are_named(tmp_path: Path) -> None:
    root = put_pairs(tmp_path, 2)
    extra = put(root / "images/lonely.png", GREY)
    with pytest.raises(DataError, match=r"lonely\.png: has no label map"):
        open_folder(root, split="train")
    extra.rename(root / "masks/lonely.png")
    with pytest.raises(DataError, match=r"masks/lonely\.png: there is no image"):
        open_folder(root, split="train")
    (root / "masks/lonely.png").unlink()
    for name in ("images/notes.txt", "images/deeper/case00.png", "masks/case00.tif"):
        odd = put(root / name, text="x")
        with pytest.raises(DataError, match=odd.name):
            open_folder(root, split="train")
        odd.unlink()
    put(root / "instances/case00.png", MASK)
    with pytest.raises(DataError, match="expected files in one of"):
        open_folder(root, split="train")


def test_open_folder_wrong_places_and_settings(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        open_folder(tmp_path / "absent", split="train")
    with pytest.raises(DataError, match="expected files in one of"):
        open_folder(tmp_path, split="train")
    put(tmp_path / "graders/a.png", MASK)
    with pytest.raises(DataError, match="graders/<name>/"):
        open_folder(tmp_path, split="train")
    root = put_pairs(tmp_path / "set", 2)
    for options in ({"split": "all"}, {"window": (1.0, 1.0)}, {"classes": ("one",)}, {"val_every": 1}):
        with pytest.raises(ConfigError):
            open_folder(root, **({"split": "train"} | options))  # type: ignore[arg-type]


@pytest.mark.skipif(not NUCLEI.is_file(), reason=f"needs {NUCLEI}")
def test_open_folder_opens_the_shared_nuclei(tmp_path: Path) -> None:
    val = open_folder(NUCLEI, split="val", val_every=10)
    train = open_folder(NUCLEI, split="train", val_every=10)
    assert (len(train), len(val)) == (252, 28)
    assert (val.info.in_channels, val.info.image_bits) == (3, 8)
    sample = val[0]
    assert sample.image.shape == (3, 256, 256)
    with tarfile.open(NUCLEI) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = open_folder(tmp_path / "nuclei", split="val", val_every=10)
    assert unpacked.identities == val.identities
    raw = np.asarray(Image.open(tmp_path / "nuclei/instances" / f"{sample.identity.key}.png"))
    assert sample.labels.max() == np.unique(raw[raw > 0]).size
    np.testing.assert_array_equal(unpacked[0].labels, sample.labels)
