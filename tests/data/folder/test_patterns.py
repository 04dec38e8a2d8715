"""Graders by pattern: masks beside the images or in a folder, and errors that name pattern and files."""

import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from retina import GRADERS, PATIENT, write_retina

from hpunet.data.folder.patterns import grader_names, propose_patterns
from hpunet.data.folder.source import open_folder
from hpunet.data.open import detect_kind, open_splits
from hpunet.errors import ConfigError, DataError


@pytest.fixture
def retina(tmp_path: Path) -> Path:
    return write_retina(tmp_path / "retina")


def test_masks_beside_images_are_graders(retina: Path) -> None:
    (retina / "README.txt").write_text("about")
    (retina / "Image_01L_2ndHO.png").unlink()
    assert detect_kind(str(retina)) == "folder"
    sources = open_splits(str(retina), options={"graders": GRADERS, "val_every": 4})
    assert sum(map(len, sources.values())) == 8
    info = sources["train"].info
    assert (info.num_graders, info.grader_names, info.in_channels) == (2, ("1stHO", "2ndHO"), 3)
    samples = {s.identity.key: s for source in sources.values() for s in (source[i] for i in range(len(source)))}
    assert samples["Image_01L"].graders.tolist() == [True, False]
    assert samples["Image_01R"].labels.sum(axis=(1, 2)).tolist() == [64, 72]


@pytest.mark.parametrize(
    ("place", "pattern"),
    [
        ("masks", "masks/{name}_1stHO.png"),
        ("labels/first", "labels/first/{name}_1stHO.png"),
        ("images", "{name}_1stHO.png"),
    ],
)
def test_masks_may_lie_in_a_folder(retina: Path, place: str, pattern: str) -> None:
    (retina / place).mkdir(parents=True)
    (retina / "images").mkdir(exist_ok=True)
    for file in [*retina.glob("*_2ndHO.png")]:
        file.unlink()
    for file in [*retina.glob("*_1stHO.png")]:
        shutil.move(file, retina / place / file.name)
    for file in [*retina.glob("*.jpg")]:
        shutil.move(file, retina / "images" / file.name)
    source = open_folder(retina, split="train", graders=[pattern])
    assert source[0].labels.sum() == 64
    with pytest.raises(DataError) as error:
        open_folder(retina, split="train")
    if place in ("masks", "images"):
        assert f"--graders '{pattern}'" in str(error.value)


def test_masks_may_be_gif_or_palette_pictures(retina: Path) -> None:
    for file in retina.glob("*_1stHO.png"):
        Image.open(file).save(file.with_suffix(".gif"))
        file.unlink()
    for file in retina.glob("*_2ndHO.png"):
        marked = Image.fromarray(np.asarray(Image.open(file)) // 255).convert("P")
        marked.putpalette([0, 0, 0, 200, 30, 10])
        marked.save(file)
    source = open_folder(retina, split="train", graders=["{name}_1stHO.gif", GRADERS[1]])
    assert source[0].labels.sum(axis=(1, 2)).tolist() == [64, 72]


def test_images_may_share_a_suffix_of_their_own(tmp_path: Path) -> None:
    """As in DRIVE: images/21_training.tif, 1st_manual/21_manual1.gif."""
    root = write_retina(tmp_path / "drive", num_patients=2)
    for folder in ("images", "1st_manual", "mask"):
        (root / folder).mkdir()
    for file in root.glob("*.jpg"):
        file.rename(root / f"images/{file.stem}_training.jpg")
    for file in root.glob("*_1stHO.png"):
        name = file.name.removesuffix("_1stHO.png")
        Image.open(file).save(root / f"1st_manual/{name}_manual1.gif")
        file.unlink()
    for file in root.glob("*_2ndHO.png"):
        file.rename(root / "mask" / file.name)
    graders = ["1st_manual/{name}_manual1.gif"]
    sources = open_splits(str(root), options={"graders": graders, "val_every": 2})
    keys = {identity.key for source in sources.values() for identity in source.identities}
    assert keys == {f"Image_{number}{eye}_training" for number in ("01", "02") for eye in "LR"}
    assert sources["train"][0].labels.sum() == 64
    (root / "images/Image_01L_training.jpg").rename(root / "images/Image_01L_test.jpg")
    with pytest.raises(DataError, match="there is no image images/Image_01L"):
        open_folder(root, split="train", graders=graders)


def test_an_archive_is_the_folder(retina: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        archive.add(retina, "retina")
    plain, packed = (open_folder(path, split="train", graders=GRADERS) for path in (retina, tmp_path / "set.tar"))
    assert plain.identities == packed.identities
    np.testing.assert_array_equal(plain[3].labels, packed[3].labels)


def test_patients_by_pattern_keep_both_eyes_together(retina: Path) -> None:
    sources = open_splits(str(retina), options={"graders": GRADERS, "patient": PATIENT})
    patients = [identity.patient for source in sources.values() for identity in source.identities]
    assert sorted(patients) == sorted(2 * ["01", "02", "03", "04"])
    (retina / "data.csv").write_text("file,split\n" + "".join(f"{p.name},train\n" for p in retina.glob("*.jpg")))
    source = open_folder(retina, split="train", graders=GRADERS, patient=PATIENT)
    assert {identity.patient for identity in source.identities} == {"01", "02", "03", "04"}


def test_suffixes_without_graders_propose_the_option(retina: Path) -> None:
    with pytest.raises(DataError, match=r"--graders '\{name\}_1stHO\.png' '\{name\}_2ndHO\.png'$") as error:
        open_splits(str(retina))
    assert str(error.value).count(str(retina)) == 1
    assert propose_patterns([f"case_{i}.png" for i in range(20)]) is None


def test_errors_name_pattern_and_files(retina: Path) -> None:
    def refused(kind: type[Exception] = DataError, **options: object) -> str:
        with pytest.raises(kind) as error:
            open_folder(retina, split="train", **options)  # type: ignore[arg-type]
        return str(error.value)

    message = refused(graders=["{name}_3rdHO.png"])
    assert "{name}_3rdHO.png" in message
    assert "Image_01L.jpg" in message
    message = refused(graders=GRADERS[:1])
    assert "Image_01L_2ndHO.png: has no label map" in message
    assert "if it is a mask itself" in message
    for wrong in ("masks.png", "{name}_1stHO", "../{name}.png", "/{name}.png"):
        assert repr(wrong) in refused(ConfigError, graders=[wrong])
    assert "twice" in refused(ConfigError, graders=GRADERS[:1] * 2)
    assert "Image_01L" in refused(graders=GRADERS, patient=r"Eye_(\d+)")
    for wrong in ("Image_", r"(a)(b)", "("):
        assert repr(wrong) in refused(ConfigError, graders=GRADERS, patient=wrong)
    (retina / "Image_01L.jpg").unlink()
    assert "Image_01L_1stHO.png: fits --graders '{name}_1stHO.png', but there is no image" in refused(graders=GRADERS)
    rows = "".join(f"{path.name},a\n" for path in retina.glob("*.jpg"))
    for file in retina.glob("Image_01L_*"):
        file.unlink()
    (retina / "data.csv").write_text("file,patient\n" + rows)
    assert "data.csv" in refused(ConfigError, graders=GRADERS, patient=PATIENT)


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (GRADERS, ("1stHO", "2ndHO")),
        (["labels-ah/{name}.png", "labels-vk/{name}.png"], ("labels-ah", "labels-vk")),
        (["masks/{name}_a.nii.gz"], ("a",)),
        (["a/{name}_x.png", "b/{name}_x.png"], ("a/{name}_x.png", "b/{name}_x.png")),
    ],
)
def test_grader_names_are_what_differs(patterns: list[str], names: tuple[str, ...]) -> None:
    assert grader_names(patterns) == names
