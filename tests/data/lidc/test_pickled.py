"""The pickle of LIDC crops: what it holds, splits by scan, and how it becomes a pack."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpunet.cli.data import pack
from hpunet.data.lidc.pickled import open_lidc_pickle
from hpunet.data.open import detect_kind, open_data, open_splits
from hpunet.deploy.export import default_window
from hpunet.errors import ConfigError, DataError
from hpunet.predict.open_image import open_image

UID = "1.3.6.1.4.1.14519.5.2.1.6279.6001.{}"


def records(count: int = 12, *, size: tuple[int, int] = (8, 6), dtype: Any = np.float64) -> dict[str, Any]:
    """Three crops of each scan."""
    rng = np.random.default_rng(0)
    return {
        f"crop{i:02d}": {
            "image": rng.random(size).astype(dtype),
            "masks": [(rng.random(size) > 0.5).astype(np.uint8) for _ in range(4)],
            "series_uid": UID.format(i // 3),
        }
        for i in range(count)
    }


def saved(folder: Path, content: Any, protocol: int = 4) -> Path:
    path = folder / "data_lidc.pickle"
    path.write_bytes(pickle.dumps(content, protocol))
    return path


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_samples_are_the_records_split_by_scan(protocol: int, tmp_path: Path) -> None:
    content = records()
    path = saved(tmp_path, content, protocol)
    assert detect_kind(str(path)) == "pickle"
    sources = open_splits(str(path), options={"val_every": 2})
    assert [len(sources[split]) for split in ("train", "val")] == [6, 6]
    patients = {split: {i.patient for i in source.identities} for split, source in sources.items()}
    assert not patients["train"] & patients["val"]
    assert all(name.startswith("image-") and "14519" not in name for names in patients.values() for name in names)
    for source in sources.values():
        for index, (_, key) in enumerate(source.identities):
            sample = source[index]
            np.testing.assert_array_equal(sample.image[0], content[key]["image"].astype(np.float32))
            np.testing.assert_array_equal(sample.labels, content[key]["masks"])
            assert sample.graders.tolist() == [True] * 4
    again = pickle.loads(pickle.dumps(sources["val"]))  # as a worker process gets it
    assert again.identities == sources["val"].identities
    np.testing.assert_array_equal(again[1].labels, sources["val"][1].labels)


def test_missing_gradings_bytes_and_stacked_masks(tmp_path: Path) -> None:
    content = records(4, dtype=np.float32)
    for record in content.values():
        record["image"] = (255 * record["image"]).astype(np.uint8)
        record["masks"] = np.array(record["masks"], dtype=bool)
    content["crop00"]["masks"] = content["crop00"]["masks"][:2]
    content["crop01"]["masks"] = [255.0 * mask for mask in content["crop01"]["masks"]]
    source = open_lidc_pickle(saved(tmp_path, content), split="train", lists={"train": listed(tmp_path, *content)})
    assert (source.info.image_bits, source.info.num_graders, source[0].graders.tolist()) == (
        8,
        4,
        [True, True, False, False],
    )
    np.testing.assert_array_equal(source[0].pixels[0], content["crop00"]["image"])
    np.testing.assert_array_equal(source[1].labels, np.array(content["crop01"]["masks"]) > 0)


def test_prediction_sees_the_pixels_of_training(tmp_path: Path) -> None:
    """Floats as they are, not stretched to the range of each file; of whole numbers nothing is known."""
    content = {name: record | {"image": 0.2 + 0.5 * record["image"]} for name, record in records().items()}
    source = open_lidc_pickle(saved(tmp_path, content), split="train")
    how: dict[str, Any] = {"name": None, "info": source.info, "crop": (8, 6)}
    image = content[source.identities[0].key]["image"]
    for pixels in (image, image.astype(np.float32)):
        np.save(tmp_path / "crop.npy", pixels)
        opened = open_image(tmp_path / "crop.npy", **how)
        np.testing.assert_array_equal(opened.images[0], source[0].image)
    assert default_window(source.info) == (0, 1)
    np.save(tmp_path / "crop.npy", (255 * image).astype(np.uint8))
    with pytest.raises(DataError, match=r"trained on images of 32 bits; say which"):
        open_image(tmp_path / "crop.npy", **how)
    opened = open_image(tmp_path / "crop.npy", **how, window=(0.0, 255.0))
    np.testing.assert_allclose(opened.images[0], source[0].image, atol=1 / 255)


def listed(folder: Path, *names: str, file: str = "list.txt") -> str:
    path = folder / file
    path.write_text("# frozen\n\n" + "\n".join(names) + "\n")
    return str(path)


def test_a_frozen_list_of_series_is_the_split_of_the_pack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, records())
    val = listed(tmp_path, UID.format(1), UID.format(3))
    pack(str(path), tmp_path / "pack", options=[f"lists.val={val}"])
    assert "Packed 6 train, 6 val images" in capsys.readouterr().out
    packed = open_data(str(tmp_path / "pack"), split="val")
    assert [key for _, key in packed.identities] == [f"crop{i:02d}" for i in (3, 4, 5, 9, 10, 11)]
    np.testing.assert_array_equal(packed[0].labels, records()["crop03"]["masks"])
    np.testing.assert_array_equal(packed[0].image[0], records()["crop03"]["image"].astype(np.float32))
    assert not any(
        UID[:12].encode() in file.read_bytes() for file in (tmp_path / "pack").rglob("*") if file.is_file()
    )


def test_names_with_uids_are_hashed_and_their_lists_still_fit(tmp_path: Path) -> None:
    content = {f"{UID.format(i)}_slice{i}": record for i, record in enumerate(records(4).values())}
    name = f"{UID.format(2)}_slice2"
    with pytest.raises(DataError, match="of one patient"):  # crops 0, 1, 2 are of one scan
        open_lidc_pickle(saved(tmp_path, content), split="val", lists={"val": listed(tmp_path, name)})
    for i, record in enumerate(content.values()):
        record["series_uid"] = f"scan{i}"
    source = open_lidc_pickle(saved(tmp_path, content), split="val", lists={"val": listed(tmp_path, name)})
    ((patient, key),) = source.identities
    assert (patient, key.startswith("image-"), key.endswith("_slice2")) == ("scan2", True, True)


def broken(**changes: Any) -> dict[str, Any]:
    content = records(2)
    content["crop01"] |= changes
    return {"crop00": content["crop00"], "crop01": {k: v for k, v in content["crop01"].items() if v is not None}}


BROKEN = {
    "no dict": ([1, 2], "expected a dict"),
    "empty": ({}, "expected a dict"),
    "no record": ({"crop00": 3}, "crop00.*expected image, masks and series_uid"),
    "no image": (broken(image=None), "crop01.*expected image, masks"),
    "no series": (broken(series_uid=""), "crop01.*expected image, masks"),
    "wide values": (broken(image=np.full((8, 6), 1.5)), "crop01.*within"),
    "not finite": (broken(image=np.full((8, 6), np.nan)), "crop01.*finite"),
    "whole numbers": (broken(image=np.zeros((8, 6), np.int32)), "crop01.*int32"),
    "types differ": (broken(image=np.zeros((8, 6), np.uint8)), "several types"),
    "three dimensions": (broken(image=np.zeros((8, 6, 3))), "crop01.*got shape"),
    "no masks": (broken(masks=[]), "crop01.*list of 1 to"),
    "no list": (broken(masks={"a": 1}), "crop01.*list of 1 to"),
    "no array": (broken(masks=[3]), "crop01.*mask 1.*array"),
    "other size": (broken(masks=[np.zeros((6, 8), np.uint8)]), "crop01.*mask 1: shape"),
    "other class": (broken(masks=[np.full((8, 6), 2, np.uint8)]), "crop01.*mask 1: value 2"),
    "fractions": (broken(masks=[np.full((8, 6), 0.5)]), "crop01.*mask 1.*fractions"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_other_content_is_refused(name: str, tmp_path: Path) -> None:
    content, words = BROKEN[name]
    with pytest.raises(DataError, match=r"data_lidc\.pickle.*" + words):
        open_lidc_pickle(saved(tmp_path, content), split="train")


def test_one_array_cannot_be_many(tmp_path: Path) -> None:
    image = np.zeros((2**10, 2**10), np.uint8)
    content = {str(i): {"image": image, "masks": [image], "series_uid": str(i)} for i in range(500)}
    with pytest.raises(DataError, match=r"data_lidc\.pickle.*claim to hold"):
        open_lidc_pickle(saved(tmp_path, content), split="train")


def test_lists_are_checked(tmp_path: Path) -> None:
    path, one = saved(tmp_path, records()), listed(tmp_path, "crop00")
    for lists, error, words in (
        ({"val": listed(tmp_path, "crop99", file="a.txt")}, DataError, r"a\.txt, line 3: .* image crop99"),
        ({"dev": one}, ConfigError, "dev"),
        ({"val": str(tmp_path / "none.txt")}, DataError, r"none\.txt: .*does not exist"),
        ({"val": one, "test": listed(tmp_path, "crop01", file="b.txt")}, DataError, "one patient"),
        ({"val": one, "test": listed(tmp_path, UID.format(0), file="c.txt")}, DataError, "too"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            open_lidc_pickle(path, split="val", lists=lists)
    with pytest.raises(ConfigError, match="val_every names splits already"):
        open_lidc_pickle(path, split="val", lists={"val": one}, val_every=2)
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"bytes\.txt: not a list in UTF-8"):
        open_lidc_pickle(path, split="val", lists={"val": str(tmp_path / "bytes.txt")})
