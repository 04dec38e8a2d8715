"""`Predictor` and `Prediction`: any image in, samples with their geometry out."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from untrained import make_predictor

import hpunet
from hpunet.data.open import open_splits
from hpunet.data.synthetic.source import INFO
from hpunet.errors import ConfigError, DataError, DivergenceError
from hpunet.predict.crop import check_numbers
from hpunet.predict.draw import SamplingOptions
from hpunet.predict.prediction import Prediction
from hpunet.predict.predictor import Predictor


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    found = make_predictor()
    found.model.orientations = 8
    return found


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def volume(tmp_path: Path) -> Path:
    image = nibabel.Nifti1Image(pixels(20, 12, 3), np.diag([0.5, 0.7, 2.5, 1]))
    nibabel.save(image, tmp_path / "v.nii.gz")
    return tmp_path / "v.nii.gz"


def same(a: Prediction, b: Prediction) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("samples", "mean", "std"))


def test_load_gives_a_predictor() -> None:
    predictor = hpunet.load("lidc-hpu-2026", device="cpu", orientations=1)
    assert (predictor.name, predictor.info.kind) == ("lidc-hpu-2026", "lidc")
    assert predictor.settings.data.crop == (128, 128)
    assert predictor.model.orientations == 1
    assert predictor(pixels(64, 64), num_samples=1).samples.shape == (1, 64, 64)


def test_a_large_image_gives_the_same_prediction_orientation_by_orientation(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = predictor(pixels(16, 16), num_samples=12)
    monkeypatch.setattr("hpunet.sampling.orientations.PIXELS_ENCODED_AT_ONCE_CPU", 100)
    alone = predictor(pixels(16, 16), num_samples=12)
    np.testing.assert_array_equal(alone.samples, together.samples)
    assert alone.orientation_ids is not None
    assert torch.equal(alone.orientation_ids, together.orientation_ids)
    np.testing.assert_allclose(alone.mean, together.mean, atol=1e-4)
    np.testing.assert_allclose(alone.std, together.std, atol=1e-4)
    assert same(alone.redraw(scales=()), alone)


def test_prediction_holds_what_sample_gives(predictor: Predictor) -> None:
    image = pixels(16, 16)
    prediction = predictor(image, num_samples=6, seed=3, temperature=0.9)
    given: dict[str, Any] = {"image": torch.from_numpy(image / np.float32(255))[None, None], "temperature": 0.9}
    drawn = hpunet.sample(predictor.model, **given, num_samples=6, generator=torch.Generator().manual_seed(3))
    np.testing.assert_array_equal(prediction.samples, drawn.labels[0])
    assert prediction.samples.dtype == np.uint8
    np.testing.assert_allclose(prediction.mean, drawn.probs[0, :, 1].mean(dim=0), atol=1e-6)
    for mine, theirs in zip(prediction.latents, drawn.latents, strict=True):
        assert torch.equal(mine, theirs)
    assert prediction.orientation_ids is not None
    assert drawn.orientation_ids is not None
    assert torch.equal(prediction.orientation_ids, drawn.orientation_ids)
    assert (prediction.axes, prediction.spacing, prediction.affine) == ("yx", None, None)
    expected = hpunet.distinct_hypotheses(prediction.samples, num_classes=2)
    assert prediction.hypotheses == expected
    for hypothesis in prediction.hypotheses:
        np.testing.assert_array_equal(hypothesis.labels, prediction.samples[hypothesis.representative])
    assert prediction.notes == ()


def test_notes_say_what_was_done(predictor: Predictor) -> None:
    (padded,) = predictor(pixels(18, 16), num_samples=1).notes
    assert padded.startswith("Padded from 18×16 to 20×16")
    (tiled,) = predictor(pixels(32, 32), num_samples=1, tile="16").notes
    assert "tiles of 16" in tiled


def test_a_volume_is_one_prediction_with_its_geometry(predictor: Predictor, tmp_path: Path) -> None:
    prediction = predictor(volume(tmp_path), num_samples=4)
    assert prediction.axes == "zyx"
    assert prediction.samples.shape == (4, 3, 20, 12)
    assert prediction.mean.shape == prediction.std.shape == (3, 20, 12)
    assert prediction.image.shape == (1, 3, 20, 12)
    assert prediction.spacing == pytest.approx((2.5, 0.5, 0.7))
    parts = prediction.slices
    assert [part.name for part in parts] == ["v/z-000", "v/z-001", "v/z-002"]
    alone = predictor(prediction.image[0, 1], num_samples=4, window=(0.0, 1.0))
    assert same(parts[1], alone)
    assert parts[1].spacing == pytest.approx((0.5, 0.7))
    assert parts[1].affine is not None
    assert parts[1].affine[2, 3] == 2.5
    shares = sum(hypothesis.share for hypothesis in prediction.hypotheses)
    assert (shares, prediction.hypotheses[0].labels.shape) == (pytest.approx(1), (3, 20, 12))


@pytest.mark.parametrize("source", ["image", "volume"])
def test_redraw_keeps_the_other_scales(predictor: Predictor, tmp_path: Path, source: str) -> None:
    first = predictor(pixels(18, 16) if source == "image" else volume(tmp_path), num_samples=5)
    assert same(first.redraw(scales=()), first)
    fine = first.redraw(scales=[1], seed=9)
    assert torch.equal(fine.latents[0], first.latents[0])
    assert not torch.equal(fine.latents[1], first.latents[1])
    assert not same(fine, first)
    assert fine.notes[-1].startswith("Scales 1 are redrawn with seed 9")
    assert same(first.redraw(scales="local", seed=9), fine)
    edited = replace(first, latents=(torch.zeros_like(first.latents[0]), first.latents[1]))
    assert not same(edited.redraw(scales=()), first)
    with pytest.raises(ConfigError, match="scales: expected"):
        first.redraw(scales=[2])


@pytest.mark.parametrize("wrong", ["3,4", (3,), (1, 2, 3), (1, "2"), 5])
def test_a_point_is_two_numbers(wrong: object) -> None:
    for given in (None, (1, 2.5), [np.float32(3), 4]):
        check_numbers("at", given, expected="x, y")
    with pytest.raises(ConfigError, match="at: expected the numbers x, y"):
        check_numbers("at", wrong, expected="x, y")


def test_tiles_are_words_or_numbers(predictor: Predictor) -> None:
    assert same(
        predictor(pixels(32, 32), num_samples=2, tile=16), predictor(pixels(32, 32), num_samples=2, tile="16")
    )


@pytest.mark.parametrize("device", ["gpu", "cuda"])
def test_devices_that_are_not_there_are_named(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device"):
        hpunet.load("lidc-hpu-2026", device=device)


def test_redraw_names_missing_latents(predictor: Predictor) -> None:
    first = predictor(pixels(16, 16), num_samples=1)
    with pytest.raises(DataError, match="latents: expected one tensor per scale, 2, got 1"):
        replace(first, latents=first.latents[:1]).redraw(scales=())


def test_map_reads_one_image_at_a_time(predictor: Predictor) -> None:
    asked = []

    def images() -> Any:
        for seed in range(3):
            asked.append(seed)
            yield pixels(16, 16, seed=seed)

    found = predictor.map(images(), num_samples=2)
    assert same(next(found), predictor(pixels(16, 16), num_samples=2))
    assert asked == [0]
    assert len(list(found)) == 2


def test_save_writes_what_the_command_writes(predictor: Predictor, tmp_path: Path) -> None:
    predictor(volume(tmp_path), num_samples=2).save(tmp_path / "out")
    written = nibabel.load(tmp_path / "out" / "sample-01.nii.gz")
    np.testing.assert_allclose(written.affine, np.diag([0.5, 0.7, 2.5, 1]))
    assert (tmp_path / "out" / "z-002" / "hypotheses.json").is_file()
    image = predictor(pixels(16, 16), num_samples=2)
    image.save(tmp_path / "image")
    image.save(tmp_path / "image", replace=True, formats="png,nifti")
    assert {"sheet.png", "mean.nii.gz"} < {path.name for path in (tmp_path / "image").iterdir()}


def test_a_prediction_is_a_picture_in_notebooks(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for prediction in (predictor(pixels(16, 16), num_samples=2), predictor(volume(tmp_path), num_samples=2)):
        with Image.open(io.BytesIO(prediction._repr_png_())) as page:
            assert page.size == prediction.sheet().size
        shown: list[Image.Image] = []
        monkeypatch.setattr(Image.Image, "show", lambda page, shown=shown: shown.append(page))
        prediction.show()
        assert len(shown) == 1
        assert "2 samples" in repr(prediction)


def test_instance_ids_have_no_hypotheses() -> None:
    assert make_predictor(INFO["neurites"])(pixels(16, 16), num_samples=2).hypotheses == []


def test_an_image_that_a_model_cannot_compute_is_named(tmp_path: Path) -> None:
    predictor = make_predictor()
    with torch.no_grad():
        predictor.model.prior.decoder[0][0].project.bias[0] = torch.inf
    Image.fromarray(pixels(16, 16)).save(tmp_path / "left.png")
    for image, name in ((pixels(16, 16), "image"), (tmp_path / "left.png", "left")):
        with pytest.raises(DivergenceError, match=f"^{name}: .* NaN or infinite"):
            predictor(image, num_samples=2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_of_another_precision_predicts(dtype: torch.dtype) -> None:
    predictor = make_predictor()
    usual = predictor(pixels(16, 16), num_samples=8)
    predictor.model.to(dtype)
    assert np.abs(predictor(pixels(16, 16), num_samples=8).mean - usual.mean).mean() < 0.05


def test_numbers_without_end_are_refused(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    for how, words in (
        ({"num_samples": 100_000}, "num_samples: expected 1 to 1024"),
        ({"seed": 10**30}, "seed: expected 0 to"),
        ({"temperature": 1e38}, "temperature: expected numbers from 0 to 100"),
    ):
        with pytest.raises(ConfigError, match=words):
            predictor(pixels(8, 8), **how)
    monkeypatch.setattr("hpunet.predict.draw.MAX_SAMPLED_PIXELS", 16 * 16 * 3)
    assert len(predictor(pixels(16, 16), num_samples=3).samples) == 3
    with pytest.raises(ConfigError, match="draw fewer samples"):
        predictor(pixels(16, 16), num_samples=4)


def test_floats_from_minus_one_to_one_are_noticed(predictor: Predictor, tmp_path: Path) -> None:
    image = pixels(16, 16) / np.float32(127.5) - 1
    for window, noticed in (((0.0, 1.0), True), ((-1.0, 1.0), False)):
        notes = predictor(image, window=window).notes
        assert any(note.startswith("Warning: ") and "negative" in note for note in notes) == noticed
    for folder, values in (("images", image), ("masks", (image > 0).astype(np.uint8))):
        (tmp_path / folder).mkdir()
        Image.fromarray(values).save(tmp_path / folder / "a.tif")
    open_splits(str(tmp_path), options={"window": [-1.0, 1.0]})
    with pytest.raises(DataError, match=r"a\.tif: window: .*use window=\[-1,1\]"):
        open_splits(str(tmp_path), options={"window": [0.0, 1.0]})


@pytest.mark.parametrize("side", [16, 40])
def test_features_encoded_once_give_the_same_samples(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch, side: int
) -> None:
    """Also where orientations are encoded one by one."""
    monkeypatch.setattr("hpunet.sampling.orientations.PIXELS_ENCODED_AT_ONCE_CPU", 8 * 16 * 16)
    options = SamplingOptions(num_samples=5, seed=3)
    source = predictor.read(pixels(side, side), options=options)
    (expected,) = predictor.each_slice(source, options=options)
    features = predictor.encode(source)
    assert (features.together is None) == (side == 40)

    def refuse(*_: Any, **how: Any) -> None:
        raise AssertionError("the encoder runs again")

    with monkeypatch.context() as patch:
        if side == 16:
            patch.setattr(type(predictor.model), "encode", refuse)
        for _ in range(2):
            (found,) = predictor.each_slice(source, options=options, features={0: features})
            assert same(found, expected)
