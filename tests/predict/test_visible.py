"""Models that continue the visible part of an image: from arrays and files, replayed and edited, by the command."""

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from tiny_run import tiny_settings
from untrained import CELLS, make_predictor

import hpunet
from hpunet.cli.edit import edit_command
from hpunet.cli.sample import sample_command
from hpunet.data.extrapolation import NUM_UNIFORMS, hide
from hpunet.data.synthetic.source import INFO
from hpunet.data.types import SetInfo
from hpunet.errors import ConfigError, DataError
from hpunet.predict.predictor import Predictor, load
from hpunet.sampling.tiling import Padding
from hpunet.training.loop import train


def continuing(info: SetInfo = INFO["lesions"], **changes: Any) -> Predictor:
    return make_predictor(info, cond_channels=1 + info.num_classes, **changes)


def scene(size: tuple[int, int] = (24, 20), *, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pixels, what is visible of them, and classes."""
    rng = np.random.default_rng(seed)
    visible = np.ones(size, dtype=bool)
    visible[:, : size[1] // 3] = False
    return rng.integers(0, 256, size).astype(np.uint8), visible, (rng.random(size) > 0.6).astype(np.uint8)


@pytest.mark.parametrize("size", [(24, 20), (23, 18)])  # also where the image is padded
@pytest.mark.parametrize("orientations", [1, 4])
def test_samples_are_those_of_the_network_that_sees_the_same(size: tuple[int, int], orientations: int) -> None:
    predictor = continuing()
    predictor.model.orientations = orientations
    pixels, visible, labels = scene(size)
    found = predictor(pixels, num_samples=5, seed=3, visible=visible, labels=labels)
    image = torch.from_numpy(np.where(visible, pixels / 255, 0)).float()[None, None]
    cond = torch.from_numpy(np.stack([visible, visible & (labels == 0), visible & (labels == 1)])).float()[None]
    padding = Padding.of(*size, multiples=predictor.model.size_multiples)
    how: dict[str, Any] = {"num_samples": 5, "generator": torch.Generator().manual_seed(3)}
    expected = hpunet.sample(predictor.model, image=padding.add(image), cond=padding.add(cond), **how)
    np.testing.assert_array_equal(found.samples, expected.labels[padding.inside][0].numpy())
    np.testing.assert_allclose(found.image, image[0].numpy(), atol=1e-7)
    np.testing.assert_array_equal(found.cond, cond[0].numpy())
    assert any("Padded" in note for note in found.notes) == (size != (24, 20))
    assert len(np.unique(found.samples)) == 2


def test_conditioning_is_that_of_training() -> None:
    pixels, _, labels = scene()
    image, given = torch.from_numpy(pixels / 255).float()[None, None], torch.from_numpy(labels)[None].int()
    uniform = torch.full((1, NUM_UNIFORMS), 0.3)
    hidden = hide(image=image, labels=given, uniform=uniform, num_classes=2)
    found = continuing()(pixels, num_samples=1, visible=hidden.visible[0].numpy(), labels=labels)
    np.testing.assert_array_equal(found.cond, hidden.cond[0].numpy())
    np.testing.assert_allclose(found.image, hidden.image[0].numpy(), atol=1e-7)


def test_nothing_of_the_hidden_part_counts_and_all_of_the_visible_one_does() -> None:
    predictor = continuing()
    pixels, visible, labels = scene()
    how: dict[str, Any] = {"num_samples": 4, "visible": 255 * visible.astype(np.uint8)}
    found = predictor(pixels, labels=labels, **how)
    other_pixels, other_labels = (np.where(visible, each, 1 - each).astype(np.uint8) for each in (pixels, labels))
    same = predictor(other_pixels, labels=255 * other_labels, **how)  # 0 and 255 are two classes
    np.testing.assert_array_equal(found.samples, same.samples)
    changed = predictor(pixels, labels=1 - labels, **how)
    assert (found.samples != changed.samples).any()
    assert any("67% of the pixels are visible" in note or "70% of" in note for note in found.notes)
    few = predictor(pixels, num_samples=1, labels=labels, visible=np.eye(24, 20))
    assert any(note.startswith("Warning: 4% of the pixels") for note in few.notes)


def test_instances_get_random_ids_of_their_own() -> None:
    predictor = continuing(CELLS)
    pixels, visible, _ = scene()
    labels = np.zeros((24, 20), dtype=np.uint16)
    labels[2:9, 9:14], labels[12:20, 9:18], labels[21:, 15:] = 7, 40_000, 123
    found = predictor(pixels, num_samples=2, visible=visible, labels=labels)
    ids = found.cond[1:].argmax(axis=0)
    assert [len(np.unique(ids[labels == value])) for value in (7, 123, 40_000)] == [1, 1, 1]
    assert (ids[labels > 0] > 0).all()
    assert (ids[visible & (labels == 0)] == 0).all()
    assert not found.cond[:, ~visible].any()
    renamed = np.searchsorted([0, 7, 123, 40_000], labels).astype(np.uint8)  # in the same order
    np.testing.assert_array_equal(
        found.samples, predictor(pixels, num_samples=2, visible=visible, labels=renamed).samples
    )
    assert found.hypotheses == []


def test_parts_are_cut_with_their_maps() -> None:
    predictor = continuing()
    pixels, visible, labels = scene((60, 50))
    found = predictor(pixels, num_samples=2, at=(30, 31), visible=visible, labels=labels)
    h, w = found.samples.shape[1:]
    _, y, x = found.place.offset
    assert (h, w) == (16, 16)
    part = (slice(y, y + h), slice(x, x + w))
    np.testing.assert_array_equal(found.cond[0], visible[part])
    np.testing.assert_array_equal(found.cond[2], visible[part] & (labels[part] == 1))
    cut = predictor(pixels, num_samples=2, at=(30, 31), visible=visible[part], labels=labels[part])
    np.testing.assert_array_equal(cut.samples, found.samples)


def test_volumes_take_one_map_or_one_per_slice(tmp_path: Path) -> None:
    info = SetInfo("folder", 1, 1, ("background", "lesion"), stochastic_classes=(1,), image_bits=32)
    predictor = continuing(info)
    voxels = np.random.default_rng(0).random((24, 20, 3)).astype(np.float32)
    _, visible, labels = scene()
    for name, array in (
        ("v", voxels),
        ("shown", visible[..., None].repeat(3, 2)),
        ("labels", labels[..., None].repeat(3, 2)),
    ):
        kind = np.float32 if name == "v" else np.uint8
        nibabel.save(nibabel.Nifti1Image(array.astype(kind), np.eye(4)), tmp_path / f"{name}.nii.gz")
    flat = predictor(tmp_path / "v.nii.gz", num_samples=2, visible=visible, labels=labels)
    whole = predictor(
        tmp_path / "v.nii.gz", num_samples=2, visible=tmp_path / "shown.nii.gz", labels=tmp_path / "labels.nii.gz"
    )
    assert flat.samples.shape == (2, 3, 24, 20)
    assert flat.cond.shape == (3, 3, 24, 20)
    np.testing.assert_array_equal(flat.samples, whole.samples)
    again = predictor.replay(tmp_path / "v.nii.gz", whole.state(), visible=visible, labels=labels)
    np.testing.assert_array_equal(again.samples, whole.samples)
    np.testing.assert_array_equal(whole.slices[1].cond, whole.cond[:, 1])


def test_replay_and_edits_keep_what_is_visible() -> None:
    predictor = continuing()
    pixels, visible, labels = scene()
    found = predictor(pixels, num_samples=3, visible=visible, labels=labels)
    again = predictor.replay(pixels, json.loads(json.dumps(found.state())), visible=visible, labels=labels)
    np.testing.assert_array_equal(again.samples, found.samples)
    np.testing.assert_array_equal(found.redraw(scales=()).samples, found.samples)
    np.testing.assert_array_equal(found.pick(2, 0).samples, found.samples[[2, 0]])
    redrawn = found.redraw(seed=9)
    expected = predictor(pixels, num_samples=3, seed=9, visible=visible, labels=labels)
    np.testing.assert_array_equal(redrawn.samples, expected.samples)
    np.testing.assert_array_equal(
        predictor.replay(pixels, redrawn.state(), visible=visible, labels=labels).samples, redrawn.samples
    )
    assert all(each.sigma.isfinite().all() for each in found.prior)
    with pytest.raises(DataError, match="another image or visible part"):
        predictor.replay(pixels, found.state(), visible=visible, labels=1 - labels)
    with pytest.raises(DataError, match="another image or visible part"):
        predictor.replay(pixels, found.state(), visible=np.fliplr(visible), labels=labels)
    other = predictor(pixels, num_samples=3, visible=visible, labels=1 - labels)
    with pytest.raises(DataError, match="combine: expected hypotheses of the same image"):
        found.combine(other, region=(3, 3))
    with pytest.raises(ConfigError, match="needs it: give a map"):
        predictor.replay(pixels, found.state())


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    predictor, plain = continuing(), make_predictor()
    pixels, visible, labels = scene()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "small.png")
    (tmp_path / "text.png").write_text("no picture")
    np.save(tmp_path / "three.npy", np.zeros((24, 20, 3), np.uint8))
    both: dict[str, Any] = {"visible": visible, "labels": labels}
    for given, error, words in (
        ({}, ConfigError, "run: continues the visible part of an image .*--visible, --labels"),
        ({"visible": visible}, ConfigError, "continues the visible part"),
        (both | {"labels": labels[1:]}, DataError, r"labels: shape \(23, 20\), the image has 24×20 pixels"),
        (both | {"visible": visible.T}, DataError, r"visible: shape \(20, 24\)"),
        (both | {"visible": tmp_path / "small.png"}, DataError, r"small\.png: 8x8 pixels, its image image has 24x20"),
        (both | {"labels": tmp_path / "text.png"}, DataError, r"text\.png"),
        (both | {"labels": tmp_path / "three.npy"}, DataError, r"labels: shape \(24, 20, 3\)"),
        (both | {"labels": tmp_path / "none.png"}, DataError, r"none\.png: .*does not exist"),
        (both | {"labels": 5 * np.ones((24, 20), np.uint8)}, DataError, "labels: value 5 is not a class"),
        (both | {"labels": np.full((24, 20), 0.5)}, DataError, "labels: .*fractions"),
        (both | {"labels": np.array([["a"]])}, DataError, "labels: expected a path"),
        (both | {"tile": 16}, ConfigError, "tile"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            predictor(pixels, num_samples=1, **given)
    with pytest.raises(ConfigError, match=r"run: was not trained with data\.extrapolate; omit visible"):
        plain(pixels, num_samples=1, **both)


def test_commands_sample_replay_and_edit_a_trained_run(tmp_path: Path) -> None:
    settings = tiny_settings("data.extrapolate=true", "optimiser.iterations=1")
    run = tmp_path / "run"
    train(settings, data="synthetic:lesions", run=run, device=torch.device("cpu"), say=lambda _: None)
    pixels, visible, labels = scene((16, 16))
    files = {name: tmp_path / f"{name}.png" for name in ("image", "visible", "labels")}
    for file, array in zip(files.values(), (pixels, visible, labels), strict=True):
        Image.fromarray(array.astype(np.uint8)).save(file)
    shown: dict[str, Any] = {"visible": files["visible"], "labels": files["labels"], "quiet": True}
    sample_command(run, [files["image"]], tmp_path / "out", samples=3, **shown)
    folder = tmp_path / "out/image"
    expected = load(run)(files["image"], num_samples=3, visible=visible, labels=labels).samples
    drawn = np.stack([np.asarray(Image.open(folder / f"sample-0{n}.png")) for n in (1, 2, 3)])
    np.testing.assert_array_equal(drawn, expected)
    sample_command(run, [files["image"]], tmp_path / "again", state=folder / "state.json", **shown)
    for n in (1, 2, 3):
        name = f"image/sample-0{n}.png"
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    edit_command(run, files["image"], folder / "state.json", tmp_path / "edited", pick="2", **shown)
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "edited/sample-01.png")), expected[1])
    with pytest.raises(ConfigError, match="--visible, --labels"):
        sample_command(run, [files["image"]], tmp_path / "none", quiet=True)
    with pytest.raises(ConfigError, match="--visible: is of one image, got 2"):
        sample_command(run, [files["image"], files["labels"]], tmp_path / "none", **shown)
