"""Futures from files: dated images in, days and sizes out, and nothing of the future seen."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from untrained import make_predictor, make_trained

from hpunet.config.settings import load_settings
from hpunet.data.io.volumes import decode_nifti
from hpunet.data.synthetic.source import INFO, open_synthetic
from hpunet.errors import ConfigError, DataError
from hpunet.predict.future import Future, Moment, summarise_future
from hpunet.predict.predictor import Predictor
from hpunet.predict.series import Series

DAYS = ("2025-01-10", "2025-07-27", "2026-05-05", "2026-10-12")
FUTURES = ("2027-09-29", "2028-12-07", "2029-01-01")


def make_forecaster() -> Predictor:
    """An untrained model of the future."""
    strides = [(1, 2, 2), (2, 2, 2)]
    trained = make_trained(INFO["growth"], cond_channels=4, ndim=3, strides=strides)
    return Predictor(replace(trained, settings=load_settings("growth-demo")))


def series_arrays() -> tuple[np.ndarray, np.ndarray]:
    sample = open_synthetic("growth", split="test", size=(6, 16, 16))[0]
    return sample.pixels[0, :4], sample.labels[0, :4].astype(np.uint8)


def write_series(folder: Path) -> tuple[Path, Path]:
    for name, values in zip(("images", "labels"), series_arrays(), strict=True):
        (folder / name).mkdir(parents=True)
        for number, day in reversed(list(enumerate(DAYS))):
            Image.fromarray(values[number]).save(folder / name / f"{'zyxw'[number]}_{day}_v2.png")
    return folder / "images", folder / "labels"


def test_folder_array_and_nifti_give_the_same_futures(tmp_path: Path) -> None:
    predictor, (images, labels) = make_forecaster(), write_series(tmp_path)
    pixels, masks = series_arrays()
    from_folder = predictor(images, labels=labels, futures=FUTURES, num_samples=3)
    from_array = predictor(
        pixels, labels=torch.from_numpy(masks), futures=[date.fromisoformat(day) for day in FUTURES], dates=DAYS,
        num_samples=3,
    )  # fmt: skip
    for name, values in (("i.nii", pixels), ("l.nii.gz", masks)):  # (x, y, 1, t)
        nibabel.save(nibabel.Nifti1Image(values.transpose(1, 2, 0)[:, :, None], np.eye(4)), tmp_path / name)
    flat = np.moveaxis(decode_nifti((tmp_path / "i.nii").read_bytes(), name="i", num_raters=4).slices[0], -1, 0)
    assert np.array_equal(flat, pixels)
    from_nifti = predictor(
        tmp_path / "i.nii", labels=tmp_path / "l.nii.gz", futures=FUTURES, dates=DAYS, num_samples=3
    )
    assert from_folder.samples.shape == (3, 7, 16, 16)
    for other in (from_array, from_nifti):
        assert np.array_equal(other.cond, from_folder.cond)
        assert np.array_equal(other.samples, from_folder.samples)


def test_prior_sees_the_past_and_the_days_of_the_future_only() -> None:
    pixels, masks = series_arrays()
    found = make_forecaster()(pixels, labels=masks, futures=FUTURES, dates=DAYS, num_samples=2)
    assert np.array_equal(found.image[0, :4], pixels / np.float32(255))
    assert not found.image[:, 4:].any()
    assert np.array_equal(found.cond[0, :, 0, 0], [1, 1, 1, 1, 0, 0, 0])
    assert np.array_equal(found.cond[2, :4], masks)
    assert not found.cond[1:3, 4:].any()
    since = [(date.fromisoformat(day) - date(2026, 10, 12)).days / 365.25 for day in (*DAYS, *FUTURES)]
    np.testing.assert_allclose(found.cond[3, :, 5, 5], since, atol=1e-6)


def test_summary_counts_pixels_day_by_day() -> None:
    days = tuple(date(2025, month, 1) for month in (1, 2, 3, 4))
    labels = np.zeros((2, 4, 4), np.int32)
    labels[1, 0] = 1  # 4 pixels at present
    samples = np.zeros((4, 4, 4, 4), np.uint8)
    for sample, sizes in enumerate([(4, 8), (5, 8), (6, 0), (6, 16)]):
        for moment, size in enumerate(sizes):
            samples[sample, 2 + moment].ravel()[:size] = 1
    found = summarise_future(samples, series=Series(days, 2, labels), info=INFO["growth"], name="x")
    first, last = Moment(days[2], (4, 5, 6, 6), 0.5), Moment(days[3], (8, 8, 0, 16), 0.75)
    assert found == Future("x", days[1], 4, 0.25, (first, last))
    assert first.quantiles[0.5] == 5.5


def test_results_have_the_future_in_place_of_sizes_over_all_moments(tmp_path: Path) -> None:
    pixels, masks = series_arrays()
    found = make_forecaster()(pixels, labels=masks, futures=FUTURES, dates=DAYS, num_samples=5)
    found.save(tmp_path / "out")
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"future.json", "sheet.png", "hypotheses.json", "sample-01.nii.gz"} <= names
    assert not any(name.startswith("measurements") for name in names)
    content = json.loads((tmp_path / "out" / "future.json").read_text())
    assert (content["present"], content["area"]) == ("2026-10-12", int(masks[3].sum()))
    assert [each["day"] for each in content["moments"]] == list(FUTURES)
    areas = (found.samples[:, 6] > 0).sum(axis=(1, 2))
    assert content["moments"][2]["areas"] == areas.tolist()
    assert content["moments"][2]["quantiles"]["0.5"] == np.median(areas)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"futures": ("2026-10-12",)}, ConfigError, "after the last image, 2026-10-12"),
        ({"futures": ("2027-02-01", "2027-01-01")}, ConfigError, "rising"),
        ({"futures": ("soon",)}, ConfigError, "2027-01-01"),
        ({"futures": None}, ConfigError, "futures"),
        ({"labels": None}, ConfigError, "labels"),
        ({"dates": DAYS[::-1]}, ConfigError, "dates.*rising"),
        ({"dates": DAYS[:3]}, DataError, "4 images, but 3 dates"),
        ({"dates": None}, ConfigError, "dates"),
        ({"labels": np.zeros((4, 8, 8), np.uint8)}, DataError, "4×8×8"),
        ({"labels": np.full((4, 16, 16), 3)}, DataError, "value 3"),
        ({"at": (3, 3)}, ConfigError, "without at"),
    ],
)
def test_series_says_what_is_wrong(change: dict, error: type[Exception], message: str) -> None:
    pixels, masks = series_arrays()
    given = {"labels": masks, "futures": FUTURES, "dates": DAYS} | change
    with pytest.raises(error, match=message):
        make_forecaster()(pixels, num_samples=1, **given)


def test_folder_says_what_is_wrong(tmp_path: Path) -> None:
    predictor, (images, labels) = make_forecaster(), write_series(tmp_path)
    how = {"labels": labels, "futures": FUTURES}
    (images / "z_2025-01-11.png").write_bytes(next(images.glob("z*")).read_bytes())
    with pytest.raises(DataError, match="labels: of 2025-01-10"):
        predictor(images, **how)
    (images / "z_2025-01-11.png").rename(images / "notes.txt")
    with pytest.raises(DataError, match=r"notes.txt.*one date"):
        predictor(images, **how)
    (images / "notes.txt").rename(images / "other_2025-01-10.png")
    with pytest.raises(DataError, match="same day"):
        predictor(images, **how)
    (images / "other_2025-01-10.png").unlink()
    Image.new("L", (16, 12)).save(images / f"x_{DAYS[2]}_v2.png")
    with pytest.raises(DataError, match=r"16 ?×12|12×16"):
        predictor(images, **how)
    (images / f"x_{DAYS[2]}_v2.png").rename(images / "x_2026-13-01.png")
    with pytest.raises(ConfigError, match="2026-13-01"):
        predictor(images, **how)
    with pytest.raises(DataError, match="no images"):
        predictor(tmp_path, **how)


def test_other_models_refuse_futures() -> None:
    pixels, masks = series_arrays()
    with pytest.raises(ConfigError, match="futures"):
        make_predictor()(pixels[0], futures=FUTURES, labels=masks)
