"""`hpunet calibrate` and what it is for: guarantees and the review flag of a tiny run, and what is refused."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_run import tiny_settings
from typer.testing import CliRunner

import hpunet
from hpunet.cli.main import app
from hpunet.data.open import open_data
from hpunet.data.packs import is_pack, write_pack
from hpunet.data.types import Identity
from hpunet.errors import CheckpointError, ConfigError, DataError
from hpunet.metrics.conformal import coverage, patient_quantile
from hpunet.models.cpu_sampler import CPUSampler
from hpunet.predict.calibrate import (
    area_groups,
    collect_scores,
    patients_needed,
    refuse_training_patients,
    review_statistic,
    spread_over_patients,
)
from hpunet.predict.draw import SamplingOptions
from hpunet.predict.predictor import Predictor
from hpunet.training.loop import train
from hpunet.utils.files import dump_hashed_json, parse_json
from hpunet.weights import calibration as files
from hpunet.weights.load import load_trained
from hpunet.weights.safetensors_io import decode, encode

DATA = "synthetic:lesions"
OPTIONS = {"num_images": 96, "size": 16}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated run of 24 training patients."""
    run = tmp_path_factory.mktemp("guarantees") / "run"
    settings = tiny_settings("optimiser.iterations=2", "data.options.num_images=96", "logging.validate_every=2")
    train(settings, data=DATA, run=run, device=torch.device("cpu"), say=lambda _: None)
    result = command("calibrate", run, "--data", DATA, "--guarantee", "0.8", "--guarantee", "0.9", "--samples", "4")
    assert result.exit_code == 0, result.output
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it; work happens beside it."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(made, tmp_path / "run"))


def command(*words: object) -> Any:
    """Run a command; the exception in the result is what main() would print."""
    return CliRunner().invoke(app, [str(word) for word in words])


def test_thresholds_are_the_quantiles_of_the_scores(made: Path) -> None:
    calibration = files.read_calibration(made / files.CALIBRATION)
    trained = load_trained(made, device="cpu")
    source = open_data(DATA, split="val", options=OPTIONS)
    scores, _ = collect_scores(
        trained, source, levels=[0.8, 0.9], miss_rate=0.05, num_samples=4, crop=trained.settings.data.crop
    )
    weights = scores.weights()
    assert calibration.num_patients == weights.sum() == 24
    for level in calibration.levels:
        for name, found in (
            ("outer", scores.outer),
            ("inner", scores.inner),
            ("area", scores.ranges[level.guarantee]),
        ):
            threshold = getattr(level, name)
            if threshold is None:
                continue
            threshold = -threshold if name == "inner" else threshold
            used, theirs = weights[weights > 0], np.array(found)[weights > 0]
            needed = level.guarantee * 25 / 24
            assert coverage(theirs, weights=used, threshold=threshold + 1e-9) >= needed - 1e-9
            assert coverage(theirs, weights=used, threshold=threshold - 1e-9) < needed
    for name in ("outer", "area"):
        assert any(getattr(level, name) is not None for level in calibration.levels), name
    assert calibration.weights_sha256 == files.weights_sum(trained)
    assert any("validation" in note for note in calibration.notes)


def test_prediction_gives_what_the_thresholds_say(made: Path) -> None:
    predictor = hpunet.load(made, device="cpu")
    image = open_data(DATA, split="test", options=OPTIONS)[0].image
    prediction = predictor(image, num_samples=4, window=(0.0, 1.0))
    found = {level: prediction.guarantee(level) for level in (0.8, 0.9)}
    assert (found[0.9].outer | ~found[0.8].outer).all()  # nested
    assert (found[0.8].inner | ~found[0.9].inner).all()
    assert found[0.9].area.low <= found[0.8].area.low <= found[0.8].area.high <= found[0.9].area.high
    assert "90%" in found[0.9].note
    assert prediction.review is not None
    assert prediction.statements == [found[0.9].note]
    (reason,) = predictor(image, num_samples=5, window=(0.0, 1.0)).statements
    assert reason.startswith("No guarantees: ")
    assert "4 samples, not 5" in reason
    assert prediction.redraw(seed=3).statements == []
    with pytest.raises(ConfigError, match=r"0\.8, 0\.9"):
        prediction.guarantee(0.95)
    with pytest.raises(ConfigError, match="4 samples"):
        predictor(image, num_samples=5, window=(0.0, 1.0)).guarantee(0.9)
    with pytest.raises(ConfigError, match="temperature"):
        predictor(image, num_samples=4, temperature=0.5, window=(0.0, 1.0)).guarantee(0.9)
    with pytest.raises(ConfigError, match="edited"):
        prediction.redraw(seed=3).guarantee(0.9)


def test_sample_writes_masks_and_statement_and_warns_of_noise(run: Path) -> None:
    rng = np.random.default_rng(0)
    source = open_data(DATA, split="test", options=OPTIONS)
    Image.fromarray(source[0].pixels[0]).save("good.png")
    Image.fromarray(rng.integers(0, 256, (16, 16)).astype(np.uint8)).save("noise.png")
    result = command("sample", run, "good.png", "noise.png", "--out", "o", "--samples", "4", "--guarantee", "0.9")
    assert result.exit_code == 0, result.output
    about = json.loads(Path("o/good/guarantee.json").read_text())
    assert about["guarantee"] == 0.9
    assert about["calibrated_on"]["patients"] == 24
    outer, inner = (np.asarray(Image.open(f"o/good/{name}.png")) for name in ("outer", "inner"))
    assert set(np.unique(outer)) | set(np.unique(inner)) <= {0, 1}
    assert "unlike" in result.output
    notes = [json.loads(Path(f"o/{name}/hypotheses.json").read_text())["notes"] for name in ("good", "noise")]
    assert [any(note.startswith("Warning") for note in each) for each in notes] == [False, True]
    unusual = json.loads(Path("o/noise/guarantee.json").read_text())
    assert [about["image_is_unusual"], unusual["image_is_unusual"]] == [False, True]
    assert ["not hold" in each["statement"] for each in (about, unusual)] == [False, True]


@pytest.mark.parametrize(("level", "needed"), [(0.5, 1), (0.8, 4), (0.9, 9), (0.95, 19), (0.99, 99)])
def test_number_of_patients_that_a_guarantee_needs(level: float, needed: int) -> None:
    assert patients_needed(level) == needed
    for count, is_enough in ((needed, True), (needed - 1, False)):
        found = patient_quantile(np.zeros(count), weights=np.ones(count), level=level)
        assert np.isfinite(found) == is_enough


def test_too_few_patients_are_said(run: Path) -> None:
    how = ("--set", "num_images=16", "--samples", "2", "--guarantee", "0.9", "--out", "c")
    result = command("calibrate", run, "--data", DATA, *how)
    assert result.exit_code == 0, result.output
    calibration = files.read_calibration(Path("c/calibration.json"))
    assert calibration.levels[0].outer is None
    assert calibration.review_threshold is None
    assert "4 of at least 9 patients" in " ".join(calibration.notes)
    predictor = hpunet.load(run, device="cpu", calibration="c")
    prediction = predictor(np.zeros((16, 16), dtype=np.uint8), num_samples=2)
    assert prediction.review is None
    assert prediction.guarantee(0.9).outer.all()
    assert prediction.guarantee(0.9).area == (0, 256)


def test_groups_have_their_own_thresholds(run: Path) -> None:
    assert area_groups((5.0, 9.0)) == [(0.0, 5.0), (5.0, 9.0), (9.0, None)]
    how = ["--samples", "2", "--guarantee", "0.5", "--groups", "20", "--out", "c", "--miss-rate", "0.2"]
    result = command("calibrate", run, "--data", DATA, *how)
    assert result.exit_code == 0, result.output
    calibration = files.read_calibration(Path("c/calibration.json"))
    assert [level.areas for level in calibration.levels] == [(0.0, 20), (20, None)]
    assert sum(level.num_images for level in calibration.levels) <= 96
    predictor = hpunet.load(run, device="cpu", calibration="c")
    image = open_data(DATA, split="test", options=OPTIONS)[0].image
    assert predictor(image, num_samples=2, window=(0.0, 1.0)).guarantee(0.5).miss_rate == 0.2


def test_training_patients_are_refused(run: Path) -> None:
    result = command("calibrate", run, "--data", DATA, "--split", "train", "--out", "c")
    assert isinstance(result.exception, ConfigError)
    source = open_data(DATA, split="train", options=OPTIONS)
    _, hashes, weights = files.read_review(run / files.REVIEW)
    assert len(hashes) == 24
    with pytest.raises(DataError, match="96 of 96 images") as refused:
        refuse_training_patients(source, hashes=hashes, weights=weights)
    assert f"{source.identities[0].patient}," not in str(refused.value)
    refuse_training_patients(open_data(DATA, split="val", options=OPTIONS), hashes=hashes, weights=weights)


def test_a_failed_calibration_leaves_nothing_behind(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise DataError("a damaged image")

    monkeypatch.setattr("hpunet.predict.calibrate.collect_scores", fail)
    result = command("calibrate", run, "--data", DATA, "--samples", "2", "--out", "c")
    assert isinstance(result.exception, DataError)
    assert not list(Path("c").glob("*"))


def test_nothing_is_overwritten_silently(run: Path) -> None:
    before = (run / files.CALIBRATION).read_bytes()
    result = command("calibrate", run, "--data", DATA, "--samples", "2")
    assert isinstance(result.exception, ConfigError)
    assert (run / files.CALIBRATION).read_bytes() == before


def reseal(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a calibration, and seal it again."""
    found = parse_json(path.read_bytes(), name=path.name)
    del found["sha256"]
    change(found)
    path.write_bytes(dump_hashed_json(found, name=path.name))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda found: found.update(weights_sha256="0" * 64), "other weights"),
        (lambda found: found.update(orientations=8), "orientations"),
        (lambda found: found.update(levels=[]), "levels"),
        (lambda found: found.update(levels=3), "levels"),
        (lambda found: found["levels"][0].pop("outer"), "expected"),
        (lambda found: found["levels"][0].update(outer="1"), "outer"),
        (lambda found: found["levels"][0].update(areas=[5, 4]), "areas"),
        (lambda found: found["levels"][0].update(guarantee=2), "guarantee"),
        (lambda found: found.update(notes=[1]), "notes"),
        (lambda found: found.update(more=1), "expected"),
        (lambda found: found.update(version=9), "version"),
        (lambda found: found.update(num_samples=True), "num_samples"),
    ],
)
def test_foreign_and_damaged_calibrations_are_refused(run: Path, change: Any, word: str) -> None:
    reseal(run / files.CALIBRATION, change)
    with pytest.raises(CheckpointError, match=word):
        hpunet.load(run, device="cpu").calibrated.calibration("torch")


def test_every_changed_byte_is_seen(run: Path) -> None:
    path = run / files.CALIBRATION
    content = path.read_bytes()
    for place in range(0, len(content), 37):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(CheckpointError):
            files.read_calibration(path)


def test_damaged_statistics_are_refused_and_foreign_ones_ignored(run: Path) -> None:
    path, image = run / files.REVIEW, np.zeros((16, 16), dtype=np.uint8)
    statistic, hashes, weights = files.read_review(path)
    files.write_review(run, statistic, patients=hashes, weights="ab" * 32)
    assert hpunet.load(run, device="cpu")(image, num_samples=1).review is None
    files.write_review(run, statistic, patients=hashes, weights=weights)
    whole = decode(path.read_bytes(), name="review")
    broken = {"scale": statistic.scale * 0, "units": statistic.units * torch.nan, "mean": statistic.mean[1:]}
    for name, tensor in {**broken, "directions": statistic.centre, "more": statistic.mean}.items():
        path.write_bytes(encode({**whole, name: tensor}, name="review"))
        with pytest.raises(CheckpointError, match=r"review\.safetensors"):
            hpunet.load(run, device="cpu")(image, num_samples=1)
    path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"review\.safetensors"):
        files.read_review(path)


def test_without_a_calibration_there_is_no_review_and_guarantees_say_what_to_do(run: Path) -> None:
    (run / files.CALIBRATION).unlink()
    prediction = hpunet.load(run, device="cpu")(np.zeros((16, 16), dtype=np.uint8), num_samples=2)
    assert prediction.review is None
    assert prediction.statements == []
    with pytest.raises(ConfigError, match="hpunet calibrate"):
        prediction.guarantee()
    with pytest.raises(CheckpointError, match="calibration"):
        hpunet.load(run, device="cpu", calibration="nowhere")(np.zeros((16, 16), dtype=np.uint8), num_samples=2)


def test_a_folder_without_a_statistic_gives_guarantees_but_no_review(run: Path) -> None:
    Path("c").mkdir()
    shutil.copy(run / files.CALIBRATION, "c")
    prediction = hpunet.load(run, device="cpu", calibration="c")(np.zeros((16, 16), dtype=np.uint8), num_samples=4)
    assert prediction.review is None
    assert prediction.guarantee(0.9).level == 0.9


def test_calibrating_without_training_images_gives_guarantees_but_no_review(run: Path) -> None:
    write_pack({"val": open_data(DATA, split="val", options=OPTIONS)}, Path("pack"), options=OPTIONS)
    (run / files.REVIEW).unlink()
    for path in [path for path in run.iterdir() if is_pack(path)]:
        shutil.rmtree(path)
    result = command("calibrate", run, "--data", "pack", "--samples", "4", "--guarantee", "0.9", "--out", "c")
    assert result.exit_code == 0, result.output
    assert "no split train" in result.output
    assert sorted(path.name for path in Path("c").iterdir()) == [files.CALIBRATION]
    image = np.zeros((16, 16), dtype=np.uint8)
    prediction = hpunet.load(run, device="cpu", calibration="c")(image, num_samples=4)
    assert prediction.review is None
    assert prediction.guarantee(0.9).level == 0.9


def test_a_foreign_statistic_does_not_hide_that_of_the_weights(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = load_trained(run, device="cpu")
    statistic, hashes, _ = files.read_review(run / files.REVIEW)
    files.write_review(tmp_path / "cache", statistic, patients=hashes, weights="ab" * 32)
    monkeypatch.setattr(files, "own_folder", lambda _: tmp_path / "cache")
    source = open_data(DATA, split="val", options=OPTIONS)
    found, patients = review_statistic(trained, source, data="nowhere", options={}, crop=None)
    assert found is not None
    assert torch.equal(found.centre, statistic.centre)
    assert torch.equal(patients, hashes)


def test_other_kernels_are_refused_with_what_to_do(run: Path) -> None:
    reseal(run / files.CALIBRATION, lambda found: found.update(kernels="fused"))
    prediction = hpunet.load(run, device="cpu")(np.zeros((16, 16), dtype=np.uint8), num_samples=4)
    with pytest.raises(CheckpointError, match=r'--kernels fused`.*kernels="fused".*DATA --kernels torch'):
        prediction.guarantee(0.9)
    (reason,) = prediction.statements
    assert "--kernels fused" in reason


def test_kernels_are_those_of_the_prediction(run: Path) -> None:
    """On fused kernels, tiles are plain torch."""
    trained = load_trained(run, device="cpu")
    predictor = Predictor(replace(trained, sampler=CPUSampler(trained.model)))
    image = np.zeros((16, 16), dtype=np.uint8)
    options = SamplingOptions(num_samples=4)
    with pytest.raises(CheckpointError, match="kernels"):
        predictor(image, num_samples=4).guarantee(0.9)
    with pytest.raises(CheckpointError, match="kernels"):
        predictor.calibrated.check(options, level=0.9)
    assert predictor(image, num_samples=4, tile="16").guarantee(0.9).level == 0.9
    assert predictor.calibrated.check(replace(options, tile="16"), level=0.9).kernels == "torch"


@pytest.mark.parametrize("change", [{"weights_sha256": "0" * 64}, {"kernels": "fused"}, {"orientations": 8}])
def test_the_first_calibration_that_fits_is_used(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """One in the cache that does not fit hides neither that of the weights nor their statistic."""
    cache = tmp_path / "cache"
    cache.mkdir()
    shutil.copy(run / files.CALIBRATION, cache)
    reseal(cache / files.CALIBRATION, lambda found: found.update(change))
    statistic, hashes, _ = files.read_review(run / files.REVIEW)
    files.write_review(cache, statistic, patients=hashes, weights="ab" * 32)
    monkeypatch.setattr(files, "own_folder", lambda _: cache)
    prediction = hpunet.load(run, device="cpu")(np.zeros((16, 16), dtype=np.uint8), num_samples=4)
    assert prediction.guarantee(0.9).level == 0.9
    assert prediction.review is not None
    (run / files.CALIBRATION).unlink()
    with pytest.raises(CheckpointError, match=str(cache)):
        hpunet.load(run, device="cpu").calibrated.calibration("torch")


@pytest.mark.parametrize(
    "words",
    [("--guarantee", "1"), ("--guarantee", "0.3"), ("--miss-rate", "1"), ("--groups", "9,4"), ("--groups", "x")],
)
def test_impossible_options_are_refused(run: Path, words: tuple[str, ...]) -> None:
    result = command("calibrate", run, "--data", DATA, "--out", "c", *words)
    assert isinstance(result.exception, ConfigError)
    assert not Path("c").exists()


def test_images_are_spread_over_patients() -> None:
    identities = [
        Identity(patient, f"{patient}{i}") for patient, n in (("a", 50), ("b", 2), ("c", 5)) for i in range(n)
    ]
    chosen = spread_over_patients(identities, limit=9, rng=np.random.default_rng(0))
    counts = [sum(identities[i].patient == patient for i in chosen) for patient in "abc"]
    assert (len(set(chosen)), counts[1]) == (9, 2)
    assert sorted(counts) in ([2, 3, 4],)


def test_published_weights_are_calibrated_and_say_on_whom(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HPUNET_HOME", str(tmp_path))
    predictor = hpunet.load("lidc-hpu-2026", device="cpu", orientations=8)
    calibration = predictor.calibrated.calibration("torch")
    assert (calibration.split, calibration.num_patients, calibration.num_images) == ("val", 125, 2399)
    assert "used for selecting lidc-hpu-2026" in calibration.notes[0]
    assert predictor.trained.folder is not None
    path = predictor.trained.folder / files.REVIEW
    assert path.stat().st_size <= 300_000
    assert len(files.read_review(path)[1]) == 625
    image = np.array(hpunet.example("lidc-2").image)
    usual, inverted, noise = (
        predictor.calibrated.review((values / np.float32(255))[None].astype(np.float32))
        for values in (image, 255 - image, np.random.default_rng(0).integers(0, 256, image.shape))
    )
    assert usual is not None
    assert inverted is not None
    assert noise is not None
    assert [found.is_unusual for found in (usual, inverted, noise)] == [False, True, True]
    # A calibration made later, for published weights, is found first.
    assert files.own_folder(predictor.trained) == tmp_path / "calibration" / "lidc-hpu-2026"


def test_a_changed_statistic_is_read_or_refused(run: Path) -> None:
    path = run / files.REVIEW
    content, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(150):
        changed = bytearray(content)
        for place in rng.integers(len(content), size=rng.integers(1, 4)):
            changed[place] = rng.integers(256)
        path.write_bytes(bytes(changed[: rng.integers(len(content))] if rng.random() < 0.3 else changed))
        with suppress(CheckpointError):
            files.read_review(path)
