"""Opening data of every kind by their layout, and the whole way from files to a pack."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hpunet.data.packs import open_pack, write_pack
from hpunet.data.snemi3d import open_snemi3d
from hpunet.data.sources import detect_kind, open_data, open_splits
from hpunet.data.summary import contact_sheet, summarise
from hpunet.data.synthetic import open_synthetic
from hpunet.data.synthetic_writers import write_cityscapes_scenes, write_lidc_crops, write_snemi3d_stack
from hpunet.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_lidc_crops(root / "lidc", num_patients=2, size=32)
    write_snemi3d_stack(root / "snemi3d", depth=10, size=64)
    write_cityscapes_scenes(root / "cityscapes", num_images=4, size=(64, 128))
    for folder in ("images", "masks"):
        (root / "folder" / folder).mkdir(parents=True)
        for i in range(10):
            pixels = np.full((8, 8), i if folder == "images" else i % 2, dtype=np.uint8)
            Image.fromarray(pixels).save(root / "folder" / folder / f"{i}.png")
    write_pack(open_splits(str(root / "lidc")), root / "pack")
    return root


OPTIONS = {
    "lidc": {},
    "snemi3d": {"patch": 32},
    "cityscapes": {"size": [64, 128]},
    "folder": {"val_every": 5},
    "pack": {},
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_layouts_are_recognised_and_every_split_opens(kind: str, written: Path) -> None:
    assert detect_kind(str(written / kind)) == kind
    sources = open_splits(str(written / kind), options=OPTIONS[kind])
    assert {"train", "val"} <= sources.keys()
    for split, source in sources.items():
        assert source.split == split
        assert len(source) == len(source.identities)
        assert source[0].image.shape[0] == source.info.in_channels


def test_real_layouts_give_exactly_what_the_generator_made(written: Path) -> None:
    """The writers fill the files from the generators, the readers read them back: nothing may change on the way."""
    for kind, name, size in (("lidc", "lesions", 32), ("cityscapes", "streets", (64, 128))):
        for split in ("train", "val", "test"):
            read = open_data(str(written / kind), split=split, options=OPTIONS[kind])
            made = open_synthetic(name, split=split, num_images=len(read), size=size)
            # The files' names sort differently: find each generated sample by its pixels.
            by_pixels = {sample.image.tobytes(): sample for sample in (read[i] for i in range(len(read)))}
            for i in range(len(made)):
                expected = made[i]
                found = by_pixels[expected.image.tobytes()]
                np.testing.assert_array_equal(found.valid, expected.valid)
                for grader, labels in enumerate(expected.labels):
                    _same_up_to_instance_numbers(found.labels[grader], labels, made.info.num_fixed_classes)


def _same_up_to_instance_numbers(a: np.ndarray, b: np.ndarray, num_fixed: int) -> None:
    np.testing.assert_array_equal(np.where(a < num_fixed, a, num_fixed), np.where(b < num_fixed, b, num_fixed))
    pairs = set(zip(a.ravel().tolist(), b.ravel().tolist(), strict=True))
    assert len(pairs) == len({x for x, _ in pairs}) == len({y for _, y in pairs})


def test_packs_of_every_kind_hold_their_source(written: Path, tmp_path: Path) -> None:
    for kind in ("snemi3d", "cityscapes", "folder"):
        sources = open_splits(str(written / kind), options=OPTIONS[kind])
        write_pack(sources, tmp_path / kind)
        for split, source in sources.items():
            pack = open_pack(tmp_path / kind, split=split)
            for i in range(len(source)):
                for field in ("image", "labels", "valid", "graders"):
                    np.testing.assert_array_equal(getattr(pack[i], field), getattr(source[i], field))


def test_synthetic_sets_open_by_name() -> None:
    source = open_data("synthetic:neurites", split="val", options={"num_images": 3, "size": 32})
    assert len(source) == 3
    assert source.info.kind == "synthetic-neurites"


def test_open_data_says_what_is_wrong(written: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file or folder .*synthetic:lesions"):
        detect_kind(str(tmp_path / "nothing"))
    with pytest.raises(DataError, match="not a layout we know"):
        detect_kind(str(tmp_path))
    with pytest.raises(ConfigError, match="wobble: lidc data take no such option, only size"):
        open_data(str(written / "lidc"), split="train", options={"wobble": 1})
    with pytest.raises(ConfigError, match="synthetic set 'cats'"):
        open_data("synthetic:cats", split="train")
    (tmp_path / "images").mkdir()
    with pytest.raises(DataError, match="graders/<name>/, masks/ or instances/"):
        open_splits(str(tmp_path))


def test_open_splits_does_not_hide_a_damaged_split(written: Path, tmp_path: Path) -> None:
    write_lidc_crops(tmp_path / "lidc", num_patients=1, size=16)
    stray = next((tmp_path / "lidc/val/gt").rglob("*.png"))
    stray.rename(stray.with_name("nonsense.png"))
    with pytest.raises(DataError, match=r"nonsense\.png"):
        open_splits(str(tmp_path / "lidc"))


def test_summary_counts_what_is_there(written: Path) -> None:
    source = open_data(str(written / "lidc"), split="train")
    samples = [source[i] for i in range(len(source))]
    found = summarise(source, samples)
    assert found.num_images == len(samples)
    assert found.num_patients == len({identity.patient for identity in source.identities})
    assert found.sizes == {(32, 32): len(samples)}
    labels = np.stack([sample.labels for sample in samples])
    np.testing.assert_allclose(found.grader_marked, labels.any(axis=(2, 3)).mean(axis=0))
    assert found.class_shares["lesion"] == pytest.approx((labels == 1).mean())
    assert found.num_marked_by_all == labels.any(axis=(2, 3)).all(axis=1).sum()

    stack = open_snemi3d(written / "snemi3d", split="train", patch=32)
    found = summarise(stack, (stack[i] for i in range(len(stack))))
    counts = [len(np.unique(stack[i].labels)) - 1 for i in range(len(stack))]
    assert found.instances_per_image == (pytest.approx(np.mean(counts)), max(counts))
    assert sum(found.class_shares.values()) == pytest.approx(1)


def test_contact_sheet_has_a_row_for_each_chosen_image(written: Path) -> None:
    few = contact_sheet(open_data(str(written / "lidc"), split="train"), num_images=2)
    more = contact_sheet(open_data(str(written / "lidc"), split="train"), num_images=5)
    assert more.height - few.height == 3 * (160 + 6)
    assert few.width > 5 * 160


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"size": "big"}, "size: option of synthetic data, expected int"),
        ({"num_images": 2.5}, "num_images: option of synthetic data, expected int, got 2.5"),
        ({"seed": True}, "seed: option of synthetic data, expected int, got True"),
        ({"size": [16, 16, 16]}, "size: option of synthetic data, expected int"),
    ],
)
def test_options_of_the_wrong_type_are_named(options: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_data("synthetic:lesions", split="train", options=options)
    assert expected in str(caught.value)
