"""Field of view: images unlike those of training are said to be so, and the crop around an object is cut out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner
from untrained import make_predictor

import hpunet
from hpunet.cli.main import app
from hpunet.data.field_of_view import differences, measured
from hpunet.data.synthetic.source import INFO, open_synthetic
from hpunet.data.types import SetInfo
from hpunet.errors import ConfigError, DataError
from hpunet.predict.predictor import Predictor

TRAINED_ON = replace(INFO["lesions"], image_size=(16, 16), value_range=(0.0, 1.0))
ROW, COLUMN = 20, 33  # of the crop in `slice_with`


def slice_with(crop: np.ndarray, *, size: int) -> np.ndarray:
    """Lung-like noise around a crop."""
    rows, columns = np.mgrid[:size, :size]
    lung = 40 + 20 * np.sin(rows / 9) * np.cos(columns / 7)
    picture = (lung + np.random.default_rng(0).normal(0, 8, (size, size))).clip(0, 255).astype(np.uint8)
    picture[ROW : ROW + crop.shape[0], COLUMN : COLUMN + crop.shape[1]] = crop
    return picture


@pytest.fixture
def predictor() -> Predictor:
    return make_predictor(TRAINED_ON)


@pytest.fixture
def crop() -> np.ndarray:
    found = np.random.default_rng(1).integers(0, 256, (16, 16)).astype(np.uint8)
    found[0, :2] = 0, 255
    return found


def warnings_of(prediction: Any) -> list[str]:
    return [note for note in prediction.notes if note.startswith("Warning: ")]


def test_a_whole_slice_is_warned_of_and_its_crop_is_that_of_training(tmp_path: Path) -> None:
    """The published model, a shipped crop in a CT slice, through Python and the command."""
    predictor, crop = hpunet.load("lidc-hpu-2026", device="cpu"), hpunet.example("lidc-2").image
    picture = slice_with(crop, size=512)
    alone = predictor(crop, num_samples=4)
    assert warnings_of(alone) == []
    source = predictor.read(picture, options=alone.options)
    assert any("512×512 pixels, training images had 128×128" in note for note in source.notes)
    found = predictor(picture, num_samples=4, at=(COLUMN + 64, ROW + 64))
    assert warnings_of(found) == []
    assert found.hypotheses == alone.hypotheses
    np.testing.assert_array_equal(found.samples, alone.samples)
    assert found.place.offset == (0, ROW, COLUMN)
    assert any("Cut 128×128 pixels" in note for note in found.notes)

    Image.fromarray(picture).save(tmp_path / "slice.png")
    words = ["sample", "lidc-hpu-2026", str(tmp_path / "slice.png"), "--samples", "4", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, [*words, "--at", f"{COLUMN + 64},{ROW + 64}"])
    assert result.exit_code == 0, result.output
    for number, labels in enumerate(alone.samples, start=1):
        with Image.open(tmp_path / "slice" / f"sample-{number:02d}.png") as written:
            np.testing.assert_array_equal(np.asarray(written), labels)


def test_ct_numbers_are_scaled_crop_by_crop(predictor: Predictor, crop: np.ndarray) -> None:
    picture = slice_with(crop, size=64).astype(np.int16) * 3 - 1000
    found = predictor(picture, num_samples=3, at=(COLUMN + 8, ROW + 8))
    np.testing.assert_array_equal(found.samples, predictor(crop, num_samples=3).samples)
    assert any("values from -1000 to -235" in note for note in found.notes)


@pytest.mark.parametrize(
    ("region", "offset", "shape"),
    [
        ({"at": (41.0, 28.0)}, (20, 33), (16, 16)),
        ({"at": (0.0, 63.0)}, (48, 0), (16, 16)),  # moved inside
        ({"box": (36.0, 24.0, 46.0, 32.0)}, (20, 33), (16, 16)),
        ({"box": (10.0, 2.0, 40.0, 22.0)}, (2, 10), (20, 30)),  # larger than the crop of training
    ],
)
def test_a_region_becomes_a_crop(
    predictor: Predictor, crop: np.ndarray, region: dict[str, Any], offset: tuple[int, int], shape: tuple[int, int]
) -> None:
    picture = slice_with(crop, size=64)
    found = predictor(picture, num_samples=1, **region)
    assert found.place.offset[1:] == offset
    assert found.samples.shape[1:] == shape


def test_impossible_regions_are_named(predictor: Predictor, crop: np.ndarray) -> None:
    picture = slice_with(crop, size=64)
    for region, words in (
        ({"at": (64.5, 3.0)}, "x 64.5 is outside of the image, which has 64 columns"),
        ({"box": (-1.0, 3.0, 5.0, 9.0)}, "x from -1 to 5 is outside"),
        ({"spacing": 0.7}, "does not say the spacing"),
    ):
        with pytest.raises(DataError, match=words):
            predictor(picture, num_samples=1, **region)  # type: ignore[arg-type]
    for region, words in (
        ({"box": (5.0, 3.0, 5.0, 9.0)}, "box: expected x0 < x1"),
        ({"at": (5.0, 3.0), "box": (1.0, 1.0, 2.0, 2.0)}, "not both"),
        ({"spacing": -1.0}, "spacing: expected"),
    ):
        with pytest.raises(ConfigError, match=words):
            predictor(picture, num_samples=1, **region)  # type: ignore[arg-type]
    for words_given, words in ((("--at", "3"), "--at: expected numbers"), (("--box", "1,2,x,4"), "--box: expected")):
        result = CliRunner().invoke(app, ["sample", "lidc-hpu-2026", "a.png", "--out", "out", *words_given])
        assert words in str(result.exception)


def test_nifti_results_of_a_crop_align_with_the_source(
    predictor: Predictor, crop: np.ndarray, tmp_path: Path
) -> None:
    picture = slice_with(crop, size=64)
    voxels = np.stack([picture.T, picture.T[::-1]], axis=2)
    nibabel.save(nibabel.Nifti1Image(voxels, np.diag([0.5, 0.5, 2.0, 1])), tmp_path / "v.nii.gz")
    found = predictor(tmp_path / "v.nii.gz", num_samples=1, at=(ROW + 8.0, COLUMN + 8.0), slices=(0, 1))
    found.save(tmp_path / "out")
    written = nibabel.load(tmp_path / "out" / "sample-01.nii.gz")
    assert written.shape == (64, 64, 2)
    np.testing.assert_array_equal(written.affine, np.diag([0.5, 0.5, 2.0, 1]))
    z, top, left = found.place.offset
    part = np.s_[top : top + 16, left : left + 16, 0]
    np.testing.assert_array_equal(np.asarray(written.dataobj)[part], found.samples[0, 0])
    mean = nibabel.load(tmp_path / "out" / "mean.nii.gz").get_fdata()
    assert np.isfinite(mean).sum() == 16 * 16
    assert found.affine is not None
    np.testing.assert_allclose(found.affine[:3, 3], (top * 0.5, left * 0.5, z))

    coarse = predictor(tmp_path / "v.nii.gz", num_samples=1, at=(32.0, 32.0), spacing=1.0)
    assert coarse.samples.shape == (1, 2, 16, 16)
    assert coarse.spacing == (2.0, 1.0, 1.0)
    coarse.save(tmp_path / "coarse")
    written = nibabel.load(tmp_path / "coarse" / "sample-01.nii.gz")
    assert written.shape == (16, 16, 2)
    # The centre of its first pixel is that of the first 2×2 stored ones; the crop begins at pixel 16.
    np.testing.assert_allclose(written.affine[:3, 3], (16.5 * 0.5, 16.5 * 0.5, 0))


def test_what_training_saw_is_measured() -> None:
    info = measured(open_synthetic("lesions", split="train", num_images=4, size=24))
    assert info.image_size == (24, 24)
    assert info.value_range is not None
    assert 0 <= info.value_range[0] < info.value_range[1] <= 1
    stored = info.as_json()
    assert SetInfo.from_json(stored, where="") == info
    old = {key: value for key, value in stored.items() if key not in ("image_size", "value_range", "spacing")}
    assert SetInfo.from_json(old, where="").image_size is None


@pytest.mark.parametrize(
    ("shape", "values", "spacing", "words"),
    [
        ((128, 128), (0, 1), None, ""),
        ((190, 128), (0, 0.9), (5.0, 0.7, 0.7), ""),
        ((128, 200), (0, 1), None, "128×200 pixels"),
        ((40, 128), (0, 1), None, "surroundings"),
        ((90, 90), (0, 1), None, ""),  # the crop of training is smaller
        ((128, 128), (0.2, 0.6), None, "from 0.20 to 0.60"),
        ((128, 128), (0, 1), (1.4, 1.4), "1.4×1.4 mm apart"),
    ],
)
def test_differences_from_training_are_sentences(
    shape: tuple[int, int], values: tuple[float, float], spacing: tuple[float, ...] | None, words: str
) -> None:
    info = replace(INFO["lesions"], image_size=(128, 128), value_range=(0.0, 1.0), spacing=(0.7, 0.7))
    image = np.full((1, *shape), values[0], dtype=np.float32)
    image[0, 0, 0] = values[1]
    found = differences(image, info=info, crop=(96, 96), spacing=spacing)
    assert len(found) == bool(words)
    assert words in "".join(found)
    assert differences(image, info=INFO["lesions"], crop=(96, 96), spacing=spacing) == []


def test_torch_is_not_seeded_by_predictions(predictor: Predictor, crop: np.ndarray) -> None:
    torch.manual_seed(3)
    before = torch.rand(1)
    torch.manual_seed(3)
    predictor(crop, num_samples=1)
    assert torch.equal(torch.rand(1), before)
