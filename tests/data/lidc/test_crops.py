"""The reader of LIDC crops."""

import io
import multiprocessing
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from places import SHARED

from hpunet.data.lidc.crops import open_lidc_crops
from hpunet.data.summary import summarise
from hpunet.data.types import Source, refuse_shared_patients
from hpunet.errors import ConfigError, DataError
from hpunet.metrics import subset_b

LIDC = SHARED / "data" / "lidc_crops"


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def grey(side: int = 8, value: int = 51) -> bytes:
    return png(np.full((side, side), value, dtype=np.uint8))


def grading(*pixels: tuple[int, int], side: int = 8, value: int = 255) -> bytes:
    array = np.zeros((side, side), dtype=np.uint8)
    for row, column in pixels:
        array[row, column] = value
    return png(array)


def small_set(first: int = 0, patient: str = "P1") -> dict[str, bytes]:
    """Two crops: one marked by all four graders, one with grader 3 missing and grader 1 seeing nothing."""
    files = {f"images/{patient}/z-7_c0.png": grey(), f"images/{patient}/z-10.5_c1.png": grey()}
    for grader in range(4):
        files[f"gt/{patient}/z-7_c0_l{first + grader}.png"] = grading((grader, 2))
    files[f"gt/{patient}/z-10.5_c1_l{first}.png"] = grading((1, 1), value=1)
    files[f"gt/{patient}/z-10.5_c1_l{first + 1}.png"] = grading()
    files[f"gt/{patient}/z-10.5_c1_l{first + 2}.png"] = grading((1, 2))
    return files


def write_folder(root: Path, files: dict[str, bytes], split: str = "val") -> Path:
    for name, content in files.items():
        path = root / split / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def write_archive(root: Path, files: dict[str, bytes], split: str = "val", prefix: str | None = None) -> Path:
    root.mkdir(exist_ok=True)
    with tarfile.open(root / f"{split}.tar.gz", "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo((f"{split}/" if prefix is None else prefix) + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return root


@pytest.mark.parametrize("write", [write_folder, write_archive])
@pytest.mark.parametrize("first", [0, 1])
def test_open_lidc_crops_reads_images_and_graders(tmp_path, write, first):
    source = open_lidc_crops(write(tmp_path, small_set(first)), split="val")
    assert isinstance(source, Source)
    assert len(source) == 2
    assert [identity.key for identity in source.identities] == ["P1/z-10.5_c1", "P1/z-7_c0"]
    partial, full = source[0], source[1]
    assert full.image.shape == (1, 8, 8)
    assert np.allclose(full.image, 0.2)
    assert full.graders.all()
    assert [np.argwhere(labels).tolist() for labels in full.labels] == [[[grader, 2]] for grader in range(4)]
    assert partial.graders.tolist() == [True, True, True, False]
    assert partial.labels.sum(axis=(1, 2)).tolist() == [1, 0, 1, 0]
    assert source.info.stochastic_classes == (1,)


def test_open_lidc_crops_cuts_out_the_centre(tmp_path):
    pixels = np.add.outer(np.arange(180), np.arange(180) // 2).astype(np.uint8)
    files = {"images/P/z-0_c0.png": png(pixels), "gt/P/z-0_c0_l0.png": grading((26, 26), (153, 153), side=180)}
    sample = open_lidc_crops(write_folder(tmp_path, files), split="val", size=128)[0]
    assert np.array_equal(sample.image[0], pixels[26:-26, 26:-26].astype(np.float32) / np.float32(255))
    assert np.argwhere(sample.labels[0]).tolist() == [[0, 0], [127, 127]]
    with pytest.raises(DataError, match="cannot crop 181"):
        open_lidc_crops(tmp_path, split="val", size=181)[0]


def test_open_lidc_crops_ignores_hidden_files(tmp_path):
    files = small_set() | {"images/P1/._z-7_c0.png": b"", ".DS_Store": b""}
    assert len(open_lidc_crops(write_folder(tmp_path / "a", files), split="val")) == 2
    assert len(open_lidc_crops(write_archive(tmp_path / "b", files, prefix="./val/"), split="val")) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gt/P1/z-9_c0_l0.png": grading()}, r"z-9_c0_l0\.png: a grading without its image"),
        ({"images/P1/z-9_c0.png": grey()}, r"z-9_c0\.png: an image without any grading"),
        ({"gt/P1/z-7_c0_l4.png": grading()}, r"z-7_c0_l4\.png: grader 4; expected 0\.\.\.3"),
        ({"images/P1/slice9.png": grey()}, r"slice9\.png: expected images/<patient>"),
        ({"readme.txt": b"hello"}, r"readme\.txt: expected images/<patient>"),
    ],
)
def test_open_lidc_crops_refuses_names(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        open_lidc_crops(write_folder(tmp_path, small_set() | change), split="val")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gt/P1/z-7_c0_l2.png": grading((1, 1), value=2)}, r"z-7_c0_l2\.png: expected 0 and one other value"),
        (
            {"gt/P1/z-7_c0_l2.png": png(np.array([[0, 1], [255, 0]] * 4, dtype=np.uint8).repeat(4, 1))},
            r"z-7_c0_l2\.png: expected 0 and one other value.*\[0, 1, 255\]",
        ),
        (
            {"gt/P1/z-7_c0_l2.png": grading(side=9)},
            r"z-7_c0_l2\.png: 9x9 pixels, its image images/P1/z-7_c0\.png has 8x8",
        ),
        ({"gt/P1/z-7_c0_l2.png": b"no picture"}, r"z-7_c0_l2\.png: not a readable PNG"),
        ({"images/P1/z-7_c0.png": png(np.zeros((8, 9), dtype=np.uint8))}, r"z-7_c0\.png: expected a square"),
        ({"images/P1/z-7_c0.png": png(np.zeros((8, 8, 3), dtype=np.uint8))}, r"z-7_c0\.png: expected a square"),
        ({"images/P1/z-7_c0.png": png(np.zeros((8, 8), dtype=np.uint16))}, r"z-7_c0\.png: expected .* 8 bit"),
    ],
)
def test_lidc_crops_refuses_pictures(tmp_path, change, message):
    source = open_lidc_crops(write_folder(tmp_path, small_set() | change), split="val")
    assert len(source[0].graders) == 4  # the other crop can still be read
    with pytest.raises(DataError, match=message):
        source[1]


def test_open_lidc_crops_names_what_is_missing(tmp_path):
    with pytest.raises(DataError, match=r"neither the folder val/ nor the archive val\.tar\.gz"):
        open_lidc_crops(tmp_path, split="val")
    with pytest.raises(ConfigError, match="one of train, val, test"):
        open_lidc_crops(tmp_path, split="validation")
    with pytest.raises(ConfigError, match="size"):
        open_lidc_crops(tmp_path, split="val", size=0)
    (tmp_path / "val").mkdir()
    with pytest.raises(DataError, match="no images"):
        open_lidc_crops(tmp_path, split="val")


@pytest.mark.parametrize("prefix", ["../val/", "/val/", "val/../../"])
def test_open_lidc_crops_refuses_names_that_leave_the_archive(tmp_path, prefix):
    with pytest.raises(DataError, match="leads out of the archive"):
        open_lidc_crops(write_archive(tmp_path, small_set(), prefix=prefix), split="val")


def test_open_lidc_crops_refuses_bad_archives(tmp_path, monkeypatch):
    archive = tmp_path / "val.tar.gz"
    write_archive(tmp_path, small_set(), prefix="train/")
    with pytest.raises(DataError, match="begin with val/"):
        open_lidc_crops(tmp_path, split="val")
    write_archive(tmp_path, small_set())
    whole = archive.read_bytes()
    for broken in (whole[: len(whole) // 2], b"not gzip", whole[:100] + bytes(20) + whole[120:]):
        archive.write_bytes(broken)
        with pytest.raises(DataError, match=r"val\.tar\.gz: not a readable archive"):
            open_lidc_crops(tmp_path, split="val")
    with tarfile.open(archive, "w:gz") as tar:
        link = tarfile.TarInfo("val/images/P1/z-7_c0.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        tar.addfile(link)
    with pytest.raises(DataError, match="links, devices and sparse files are refused"):
        open_lidc_crops(tmp_path, split="val")
    archive.write_bytes(whole)
    monkeypatch.setattr("hpunet.data.io.archives.MAX_ARCHIVE_BYTES", 2000)
    with pytest.raises(DataError, match="unpacks to more than 2000 bytes"):
        open_lidc_crops(tmp_path, split="val")


def test_open_lidc_crops_refuses_a_patient_in_two_splits(tmp_path):
    write_folder(tmp_path, small_set(), split="train")
    with pytest.raises(DataError, match="in val and P1 in train are of one patient"):
        open_lidc_crops(write_archive(tmp_path, small_set()), split="val")
    write_archive(tmp_path, small_set(patient="P2"))
    assert len(open_lidc_crops(tmp_path, split="val")) == 2


def test_refuse_shared_patients_looks_at_all_pairs(tmp_path):
    sets = {"train": "P1", "val": "P2", "test": "P1"}
    sources = []
    for split, patient in sets.items():
        write_archive(tmp_path, small_set(patient=patient), split=split)
        sources.append(open_lidc_crops(tmp_path, split=split))
    refuse_shared_patients(sources[:2])
    with pytest.raises(DataError, match="are of one patient"):
        refuse_shared_patients(sources)


def test_summary_counts_subset_b_among_the_graders_there_are(tmp_path):
    files = small_set() | {"images/P2/z-1_c0.png": grey()}
    files |= {f"gt/P2/z-1_c0_l{grader}.png": grading((1, 1)) for grader in (0, 1, 3)}
    source = open_lidc_crops(write_folder(tmp_path, files), split="val")
    samples = [source[index] for index in range(3)]
    labels, graders = (np.stack([getattr(sample, name) for sample in samples]) for name in ("labels", "graders"))
    assert summarise(source, samples).num_marked_by_all == 2
    assert subset_b(labels=labels, num_classes=2, graders=graders).sum() == 2


@pytest.mark.parametrize("write", [write_folder, write_archive])
def test_lidc_crops_are_pickled_as_their_path(tmp_path, write):
    files = small_set()
    files["images/P1/z-7_c0.png"] = png(np.random.default_rng(0).integers(0, 255, (200, 200), dtype=np.uint8))
    files |= {f"gt/P1/z-7_c0_l{grader}.png": grading((90, 90), side=200) for grader in range(4)}
    source = open_lidc_crops(write(tmp_path, files), split="val", size=6)
    pickled = pickle.dumps(source)
    assert len(pickled) < 1000
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        image = pool.apply(_first_image, (source,))
    assert np.array_equal(image, source[0].image)
    assert image.shape == (1, 6, 6)


def _first_image(source: Source) -> np.ndarray:
    return source[0].image


@pytest.mark.skipif(not LIDC.is_dir(), reason=f"no LIDC crops at {LIDC}; set HPUNET_SHARED")
def test_open_lidc_crops_opens_the_shared_data():
    train, val = (open_lidc_crops(LIDC, split=split) for split in ("train", "val"))
    refuse_shared_patients([train, val])
    assert (len(train), len({identity.patient for identity in train.identities})) == (11052, 625)
    assert (len(val), len({identity.patient for identity in val.identities})) == (2399, 125)
    for index in range(0, len(val), 300):
        sample = val[index]
        assert sample.image.shape == (1, 128, 128)
        assert sample.graders.all()
        assert sample.labels.any()
