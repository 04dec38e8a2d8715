"""Opening data of every kind by their layout, and the whole way from files to a pack."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from retina import GRADERS, write_retina

from hpunet.data.open import (
    adapt_options,
    check_data_options,
    detect_kind,
    open_data,
    open_splits,
    pack_data,
    with_pack_options,
)
from hpunet.data.packs import open_pack, pack_origin, write_pack
from hpunet.data.snemi3d import open_snemi3d
from hpunet.data.summary import contact_sheet, summarise
from hpunet.data.synthetic.source import open_synthetic
from hpunet.data.synthetic.writers import write_cityscapes_scenes, write_lidc_crops, write_snemi3d_stack
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
            for expected in (made[i] for i in range(len(made))):
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
    with pytest.raises(DataError, match="unknown layout; expected"):
        detect_kind(str(tmp_path))
    with pytest.raises(DataError, match=rf"unknown layout \(did you mean {written}/cityscapes or .*\?\); expected"):
        detect_kind(str(written))
    with pytest.raises(ConfigError, match="wobble: unknown option of lidc data, expected one of size"):
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
    source = open_data(str(written / "lidc"), split="train")
    few, more = (contact_sheet(source, num_images=n) for n in (2, 5))
    assert more.height - few.height == 3 * (160 + 6)
    assert few.width > 5 * 160


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (
            "synthetic",
            {"size": "big"},
            "size: .* synthetic data, .* a whole number or one per axis, for instance",
        ),
        ("synthetic", {"num_images": 2.5}, "num_images: .* a whole number, for instance num_images"),
        ("synthetic", {"seed": True}, "seed: .* a whole number, for instance seed=10; got true"),
        ("synthetic", {"size": [16, 16.5]}, r"for instance size=\[64,128\]; got \[16,16.5\]"),
        ("cityscapes", {"size": 64}, "size: .* cityscapes data, expected two whole numbers, for instance size="),
        ("folder", {"val_every": "ten"}, "a whole number, for instance val_every=10; got ten"),
        ("folder", {"window": 3}, r"two numbers, for instance window=\[-1000,400\]; got 3"),
        ("folder", {"graders": "{name}_1.png"}, r'a list of patterns, for instance graders=\["\{name\}_1.png"'),
        ("folder", {"patient": 3}, r"regular expression with one group"),
        ("folder", {"classes": "cells"}, r'a list of names, for instance classes=\["background","lesion"\]'),
        ("snemi3d", {"slices": 3}, r"instance slices.train=\[0,16\] slices.val=\[16,18\]; got 3"),
        ("snemi3d", {"allow_remainder": 1}, "expected true or false; got 1"),
    ],
)
def test_open_data_names_options_of_the_wrong_type(
    kind: str, options: dict[str, object], expected: str, written: Path
) -> None:
    where = "synthetic:lesions" if kind == "synthetic" else str(written / kind)
    with pytest.raises(ConfigError, match=expected):
        open_data(where, split="train", options=options)


@pytest.fixture(scope="module")
def nuclei(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty images with instance maps."""
    folder = tmp_path_factory.mktemp("own") / "nuclei"
    for top in ("images", "instances"):
        (folder / top).mkdir(parents=True)
        for i in range(20):
            Image.fromarray(np.eye(16, dtype=np.uint8) * (i + 1)).save(folder / top / f"n{i:02d}.png")
    return folder


def keys_of(where: Path, *, split: str, options: dict[str, object] | None = None) -> list[str]:
    return [identity.key for identity in open_data(str(where), split=split, options=options).identities]


def test_pack_refuses_options_that_it_was_not_made_with(nuclei: Path, tmp_path: Path) -> None:
    plain, every = tmp_path / "plain", tmp_path / "every"
    pack_data(str(nuclei), plain, options={})
    pack_data(str(nuclei), every, options={"val_every": 10, "num_random_ids": 15})
    assert keys_of(every, split="val") == ["n00", "n10"]
    same = ({}, {"val_every": 10}, {"num_random_ids": 15, "seed": 0}, {"classes": ["background", "foreground"]})
    for options in same:
        assert keys_of(every, split="val", options=options) == ["n00", "n10"]
        check_data_options(str(every), options)
    for options in ({"num_random_ids": 5}, {"window": "none"}, {"val_every": "none"}):
        check_data_options(str(plain), options)
    message = (
        rf"data.options.val_every: 10 .* {plain} .* none; .*--set val_every=10\).*\(--set data.options.val_every=none"
    )
    with pytest.raises(ConfigError, match=message):
        check_data_options(str(plain), {"val_every": 10})
    with pytest.raises(ConfigError, match=r"^num_random_ids: 5 .* made with 15; .*num_random_ids=15\)"):
        open_splits(str(every), options={"num_random_ids": 5})
    with pytest.raises(ConfigError) as caught:
        check_data_options(str(every), {"val_every": 5, "num_random_ids": 15, "window": [0.0, 4.0]})
    assert "val_every: 5 is requested" in str(caught.value)
    assert "data.options.window: [0.0,4.0] is requested" in str(caught.value)
    assert "WHERE OUT --set num_random_ids=15 --set window=[0.0,4.0] --set val_every=5), or" in str(caught.value)
    assert "(--set data.options.val_every=10 --set data.options.window=none)" in str(caught.value)
    with pytest.raises(ConfigError, match=r"data.options.patch: set by the preset.* snemi3d data, .*kind folder and"):
        check_data_options(str(every), {"patch": 64})
    with pytest.raises(ConfigError, match="val_every: option of pack data, expected a whole number"):
        check_data_options(str(every), {"val_every": "ten"})


def test_pack_of_a_pack_remembers_the_options_of_the_first(nuclei: Path, tmp_path: Path) -> None:
    pack_data(str(nuclei), tmp_path / "one", options={"val_every": 10})
    pack_data(str(tmp_path / "one"), tmp_path / "two", options={})
    assert pack_origin(tmp_path / "two") == pack_origin(tmp_path / "one")
    with pytest.raises(ConfigError, match="val_every: 5 is requested"):
        open_data(str(tmp_path / "two"), split="val", options={"val_every": 5})


def test_pack_without_recorded_options_is_read_and_checked_as_before(nuclei: Path, tmp_path: Path) -> None:
    write_pack(open_splits(str(nuclei), options={"val_every": 10}), tmp_path / "old")
    pack_data(str(nuclei), tmp_path / "new", options={"val_every": 10})
    old, new = (open_pack(tmp_path / name, split="val") for name in ("old", "new"))
    assert old.fingerprint == new.fingerprint  # the same content
    check_data_options(str(tmp_path / "old"), {"val_every": 5})
    run = {"kind": "folder", "options": {"val_every": 5}}
    assert adapt_options(str(tmp_path / "old"), **run) == {}
    assert with_pack_options(str(tmp_path / "old"), {"val_every": 5}) == {"val_every": 5}


def test_options_of_a_run_go_to_other_data_as_far_as_they_have_them(nuclei: Path, tmp_path: Path) -> None:
    plain, every = str(tmp_path / "plain"), str(tmp_path / "every")
    pack_data(str(nuclei), Path(plain), options={})
    pack_data(str(nuclei), Path(every), options={"val_every": 10})
    options = {"val_every": 10, "patch": 64}
    assert adapt_options(str(nuclei), kind="snemi3d", options=options) == {"val_every": 10}
    for where in (str(nuclei), every):
        assert adapt_options(where, kind="folder", options=options) == {"val_every": 10}
    assert adapt_options(plain, kind="snemi3d", options=options) == {}
    with pytest.raises(ConfigError, match=r"val_every: the run was trained with 10, but the pack .*made with none; "):
        adapt_options(plain, kind="folder", options=options)
    with pytest.raises(ConfigError, match=r"trained with none, .*made with 10; .*\(--set val_every=10\)"):
        adapt_options(every, kind="folder", options={})
    unseen = adapt_options(plain, kind="folder", options=options, changes={"val_every": "none"})
    assert keys_of(Path(plain), split="val", options=unseen) == keys_of(nuclei, split="val")


def test_with_pack_options_are_those_of_the_pack_that_are_not_usual(nuclei: Path, tmp_path: Path) -> None:
    pack_data(str(nuclei), tmp_path / "pack", options={"val_every": 10, "num_random_ids": 5})
    assert with_pack_options(str(tmp_path / "pack"), {}) == {"val_every": 10}
    assert with_pack_options(str(tmp_path / "pack"), {"seed": 0}) == {"val_every": 10, "seed": 0}
    assert with_pack_options(str(nuclei), {"seed": 1}) == {"seed": 1}


@pytest.mark.parametrize(("kind", "most"), [("folder", 255), ("snemi3d", 255), ("cityscapes", 238)])
@pytest.mark.parametrize("wrong", [0, 1, 300])
def test_num_random_ids_out_of_range_is_refused(kind: str, most: int, wrong: int, written: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^num_random_ids: expected 2 to {most}, got {wrong};"):
        open_data(str(written / kind), split="train", options={**OPTIONS[kind], "num_random_ids": wrong})


def test_contact_sheet_paints_no_more_pixels_than_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    painted: list[int] = []
    monkeypatch.setattr("hpunet.data.summary.stretched", lambda image: painted.append(image.size) or image)
    write_retina(tmp_path, num_patients=1, size=(960, 999))
    contact_sheet(open_data(str(tmp_path), split="train", options={"graders": GRADERS}))
    assert max(painted) <= 3 * 400**2


def test_summary_compares_graders(tmp_path: Path) -> None:
    write_retina(tmp_path, num_patients=2)
    (tmp_path / "Image_01L_2ndHO.png").unlink()
    options = {"graders": GRADERS, "classes": ["background", "vessel", "lesion"]}
    for mask in tmp_path.glob("*.png"):
        Image.fromarray(np.asarray(Image.open(mask)) // 255).save(mask)
    (tmp_path / "data.csv").write_text("file,split\n" + "".join(f"{p.name},train\n" for p in tmp_path.glob("*.jpg")))
    source = open_data(str(tmp_path), split="train", options=options)
    found = summarise(source, (source[i] for i in range(len(source))))
    assert found.agreement == {(0, 1): (pytest.approx(2 * 64 / (64 + 72)), pytest.approx(64 / 72), 3)}
    assert found.images_with == {"vessel": 4, "lesion": 0}
    assert found.rare_classes == {"lesion": 0}


def test_summary_agreement_leaves_out_what_nobody_marked(tmp_path: Path) -> None:
    write_retina(tmp_path, num_patients=1)
    for mask in tmp_path.glob("*L_*.png"):
        Image.fromarray(np.zeros((24, 32), np.uint8)).save(mask)
    (tmp_path / "data.csv").write_text("file,split\nImage_01L,train\nImage_01R,train\n")
    source = open_data(str(tmp_path), split="train", options={"graders": GRADERS})
    assert summarise(source, (source[i] for i in range(2))).agreement[0, 1].num_images == 1
