"""A model of volumes: one volume is one sample, in Python and from files of every kind."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pytest
import tifffile
import torch
from dicom_series import write_series
from PIL import Image
from untrained import make_predictor, make_volume_predictor

from hpunet.data.synthetic.source import open_synthetic
from hpunet.errors import ConfigError, DataError
from hpunet.predict.calibrate import collect_scores, make_calibration, review_statistic
from hpunet.predict.prediction import Prediction
from hpunet.predict.predictor import Predictor
from hpunet.sampling.sample import sample
from hpunet.sampling.tiling import Padding
from hpunet.weights import calibration as files

VOLUME = np.random.default_rng(0).integers(0, 256, (5, 14, 18), dtype=np.uint8)
AFFINE = np.array([[0, 0.8, 0, 3], [-0.8, 0, 0, 4], [0, 0, 2.0, 5], [0, 0, 0, 1]])


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return make_volume_predictor()


@pytest.fixture(scope="module")
def drawn(predictor: Predictor) -> Prediction:
    return predictor(VOLUME, num_samples=3)


def as_nifti(path: Path) -> Path:
    nibabel.save(nibabel.Nifti1Image(np.moveaxis(VOLUME, 0, 2), AFFINE), path)
    return path


def test_samples_are_those_of_the_padded_volume(predictor: Predictor, drawn: Prediction) -> None:
    """Padded along all axes; latents are shared by all slices."""
    padding = Padding.of(5, 14, 18, multiples=(2, 4, 4))
    image = padding.add(torch.from_numpy(VOLUME / np.float32(255))[None, None])
    assert image.shape[2:] == (6, 16, 20)
    how = {"num_samples": 3, "generator": torch.Generator().manual_seed(0)}
    found = sample(predictor.model, image=image, **how)
    np.testing.assert_array_equal(drawn.samples, found.labels[0][padding.inside].numpy())
    marked = found.probs[0, :, 1][padding.inside].numpy()
    np.testing.assert_allclose(drawn.mean, marked.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(drawn.std, marked.std(axis=0), atol=1e-6)
    assert [scale.shape for scale in drawn.latents] == [(1, 3, 1, 3, 4, 5), (1, 3, 1, 6, 8, 10)]
    assert drawn.axes == "zyx"
    assert drawn.samples.dtype == np.uint8
    assert len(np.unique(drawn.samples)) == 2
    assert any("5×14×18 to 6×16×20 voxels" in note for note in drawn.notes)
    np.testing.assert_array_equal(predictor(VOLUME, num_samples=2).samples, drawn.samples[:2])
    with pytest.raises(ConfigError, match="samples\\[:, z\\]"):
        _ = drawn.slices


def test_tiles_do_not_change_samples(predictor: Predictor) -> None:
    volume = np.random.default_rng(1).integers(0, 256, (8, 40, 36), dtype=np.uint8)
    whole, tiled = (predictor(volume, num_samples=2, tile=tile) for tile in ("whole", 16))
    assert (whole.samples != tiled.samples).mean() < 1e-3
    np.testing.assert_allclose(tiled.mean, whole.mean, atol=1e-4)
    assert any("tiles of 16 voxels" in note for note in tiled.notes)


def test_few_slices_are_padded(predictor: Predictor) -> None:
    found = predictor(VOLUME[:1], num_samples=1)
    assert found.samples.shape == (1, 1, 14, 18)
    assert any("1×14×18 to 2×16×20" in note for note in found.notes)


WRITERS: dict[str, Callable[[Path], object]] = {
    "v.nii.gz": as_nifti,
    "v.tif": lambda path: tifffile.imwrite(path, VOLUME),
    "v.npy": lambda path: np.save(path, VOLUME),
    "c.npy": lambda path: np.save(path, VOLUME[..., None]),
    "v.h5": lambda path: h5py.File(path, "w").create_dataset("volume", data=VOLUME).file.close(),
}


@pytest.mark.parametrize("name", WRITERS)
def test_files_of_all_kinds_give_the_same(predictor: Predictor, drawn: Prediction, tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    found = predictor(tmp_path / name, num_samples=3)
    assert found.name == name.partition(".")[0]
    np.testing.assert_array_equal(found.samples, drawn.samples)
    if name == "v.nii.gz":
        np.testing.assert_allclose(found.affine, AFFINE)
        np.testing.assert_allclose(found.spacing, (2.0, 0.8, 0.8))


@pytest.mark.parametrize("given", [VOLUME[None], VOLUME[None, None], VOLUME[..., None], torch.from_numpy(VOLUME)])
def test_arrays_with_channels(predictor: Predictor, drawn: Prediction, given: object) -> None:
    np.testing.assert_array_equal(predictor(given, num_samples=3).samples, drawn.samples)


def test_a_dicom_series_is_one_volume(predictor: Predictor, tmp_path: Path) -> None:
    source = write_series(tmp_path, "reversed")
    found = predictor(source, num_samples=2, window=(-100.0, 200.0))
    stored = found.image[0] * 300 - 100
    same = predictor(stored, num_samples=2, window=(-100.0, 200.0))
    np.testing.assert_array_equal(found.samples, same.samples)
    assert found.samples.shape == (2, 4, 28, 20)
    assert found.spacing == pytest.approx((2.5, 0.9, 0.6))
    part = predictor(source, num_samples=2, window=(-100.0, 200.0), slices=(1, 3), at=(8, 15))
    _, top, left = part.place.offset
    np.testing.assert_allclose(part.image[0], found.image[0, 1:3, top : top + 24, left : left + 20])
    np.testing.assert_allclose(part.affine @ [0, 0, 0, 1], found.affine @ [top, left, 1, 1])


def test_the_window_auto_is_that_of_the_volume(predictor: Predictor) -> None:
    dim = VOLUME.astype(np.int16)
    dim[0] //= 4
    found = predictor(dim, num_samples=1, window="auto")
    low, high = int(dim.min()), int(dim.max())
    np.testing.assert_allclose(found.image[0], (dim - low) / (high - low), atol=1e-6)


def test_images_are_refused_with_advice(predictor: Predictor, tmp_path: Path) -> None:
    Image.fromarray(VOLUME[0]).save(tmp_path / "slice.png")
    tifffile.imwrite(tmp_path / "slice.tif", VOLUME[0])
    series = sorted(write_series(tmp_path / "series", "axial").iterdir())
    for image in (tmp_path / "slice.png", tmp_path / "slice.tif", Image.fromarray(VOLUME[0]), series[0]):
        with pytest.raises(DataError, match="folder of a DICOM series"):
            predictor(image)
    with pytest.raises(DataError, match=r"trained on volumes: expected \(d, h, w\)"):
        predictor(VOLUME[0])
    with pytest.raises(ConfigError, match="resample the volume in its file"):
        predictor(VOLUME, spacing=1.0)


@pytest.mark.parametrize(("factor", "is_told"), [(1.4, False), (1.6, True), (1 / 1.6, True)])
def test_another_spacing_than_that_of_training_is_told(
    predictor: Predictor, tmp_path: Path, factor: float, is_told: bool
) -> None:
    scaled = AFFINE @ np.diag([1, 1, factor, 1])
    nibabel.save(nibabel.Nifti1Image(np.moveaxis(VOLUME, 0, 2), scaled), tmp_path / "v.nii")
    found = predictor(tmp_path / "v.nii", num_samples=1)
    assert any("mm apart" in note and note.startswith("Warning") for note in found.notes) == is_told


def test_volumes_are_measured_in_ml(predictor: Predictor, tmp_path: Path) -> None:
    found = predictor(as_nifti(tmp_path / "v.nii"), num_samples=8)
    sizes = found.measurements.of()
    counts = (found.samples == 1).reshape(8, -1).sum(axis=1)
    np.testing.assert_allclose(sizes.values, counts * 2.0 * 0.8 * 0.8 / 1000)
    assert sizes.unit == "ml"
    assert sizes.interval() == pytest.approx(np.quantile(sizes.values, [0.05, 0.95]))
    smaller = replace(found, samples=found.samples * (np.arange(5) < 3)[:, None, None].astype(np.uint8))
    assert smaller.growth(found) == 1.0
    assert found.growth(smaller, quantity="volume") == 0.0
    assert sum(each.share for each in found.hypotheses) == pytest.approx(1)
    assert {each.description.split()[1] for each in found.hypotheses} == {"voxels"}


def test_edits_and_states(predictor: Predictor, drawn: Prediction) -> None:
    before = [scale[0].clone() for scale in drawn.latents]
    redrawn = drawn.redraw(scales="local", region=(4, 6, 1, 8, 10, 3))
    inside = np.zeros(before[1].shape[2:], dtype=bool)
    inside[1:3, 3:6, 2:5] = True  # padded by 0, 1 and 1 voxels in front; cells are 1×2×2 voxels
    changed = (redrawn.latents[1][0] != before[1]).numpy()
    assert changed[:, 0][:, inside].all()
    assert not changed[:, 0][:, ~inside].any()
    assert torch.equal(redrawn.latents[0][0], before[0])
    moved = drawn.nudge(scale=1, at=(4, 6), slice=2, by=2.0)
    (places,) = {tuple(place) for place in np.argwhere((moved.latents[1][0] != before[1]).numpy())[:, 2:]}
    assert places == (2, 3, 2)
    both = drawn.combine(redrawn, region=(9, 7, 2), scales=[1])
    assert torch.equal(both.latents[1], drawn.latents[1])
    picked = redrawn.pick(2, 0)
    np.testing.assert_array_equal(picked.samples, redrawn.samples[[2, 0]])
    for edited in (redrawn, moved, picked):
        again = predictor.replay(VOLUME, edited.state())
        np.testing.assert_array_equal(again.samples, edited.samples)
    with pytest.raises(DataError, match="another image"):
        predictor.replay(VOLUME[:, ::-1].copy(), drawn.state())
    with pytest.raises(ConfigError, match="x0, y0, z0"):
        drawn.redraw(region=(1, 2, 3, 4, 5))


def test_a_part_of_the_slices_is_replayed(predictor: Predictor, tmp_path: Path) -> None:
    path = as_nifti(tmp_path / "v.nii")
    found = predictor(path, num_samples=2, slices=(1, 4))
    state = found.state()
    assert state["slices"] == (1, 4) or state["slices"] == [1, 4]
    np.testing.assert_array_equal(predictor.replay(path, state).samples, found.samples)


def test_guarantees_of_volumes(tmp_path: Path) -> None:
    """Calibrated and asked about on the same kind of volumes: masks nest, and sizes are in voxels and ml."""
    predictor = make_volume_predictor()
    trained = predictor.trained
    source = open_synthetic("nodules3d", split="val", num_images=6, size=(4, 16, 16))
    statistic, _ = review_statistic(trained, source, data="synthetic:nodules3d", options={}, crop=None)
    assert statistic is None
    scores, _ = collect_scores(trained, source, levels=[0.8], miss_rate=0.05, num_samples=4)
    how = {"levels": [0.8], "groups": (), "miss_rate": 0.05, "num_samples": 4, "options": {}, "hashes_known": False}
    made = make_calibration(trained, source, scores, None, **how)
    assert any("No review flag" in note for note in made.notes)
    files.write_calibration(tmp_path, made)
    found = Predictor(trained, calibration=tmp_path)(as_nifti(tmp_path / "v.nii"), num_samples=4)
    held = found.guarantee(0.8)
    assert held.outer.shape == held.inner.shape == found.mean.shape
    assert (held.inner <= held.outer).all()
    assert held.volume == pytest.approx([end * 2.0 * 0.8 * 0.8 / 1000 for end in held.area])
    assert "voxels" in held.note
    assert "ml" in held.note
    assert found.review is None


def test_saved_volumes(predictor: Predictor, tmp_path: Path) -> None:
    found = predictor(as_nifti(tmp_path / "v.nii"), num_samples=3, slices=(1, 4))
    found.save(tmp_path / "out")
    for number, hypothesis in enumerate(found.hypotheses):
        image = nibabel.load(tmp_path / "out" / f"hypothesis-{'ABC'[number]}.nii.gz")
        np.testing.assert_allclose(image.affine, AFFINE)
        stored = np.moveaxis(np.asarray(image.dataobj), 2, 0)
        np.testing.assert_array_equal(stored[1:4], hypothesis.labels)
        assert not stored[[0, 4]].any()
    mean = np.moveaxis(nibabel.load(tmp_path / "out" / "mean.nii.gz").get_fdata(), 2, 0)
    np.testing.assert_allclose(mean[1:4], found.mean)
    assert np.isnan(mean[[0, 4]]).all()
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"sample-03.nii.gz", "std.nii.gz", "sheet.png", "state.json", "measurements.json"} <= names
    assert not any(name.startswith((".", "z-")) or (name.endswith(".png") and name != "sheet.png") for name in names)


def test_a_model_of_images_still_takes_volumes_slice_by_slice(tmp_path: Path) -> None:
    found = make_predictor()(as_nifti(tmp_path / "v.nii"), num_samples=2)
    assert found.is_stack
    assert len(found.slices) == 5
    assert found.slices[2].axes == "yx"
    with pytest.raises(ConfigError, match="slices"):
        _ = found.measurements
