"""Edits in latent space: what is not edited keeps its bits, in every orientation, and states give the same maps."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from torch import nn
from untrained import make_predictor, make_trained

import hpunet
from hpunet.errors import ConfigError, DataError, HPUNetError
from hpunet.models.hpunet import HPUNet
from hpunet.predict.prediction import Prediction
from hpunet.predict.predictor import Predictor
from hpunet.sampling.orientations import orient
from hpunet.weights.load import TrainedModel

H, W = 30, 26  # padded to 32×28: two rows above and below, one column left and right


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return make_predictor()


@pytest.fixture(scope="module")
def first(predictor: Predictor) -> Prediction:
    return predictor(pixels(H, W), num_samples=4)


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def same(a: Prediction, b: Prediction) -> bool:
    maps = all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("samples", "mean", "std"))
    return maps and all(torch.equal(x, y) for x, y in zip(a.latents, b.latents, strict=True))


def one_of_each_orientation() -> Prediction:
    """Eight hypotheses of a square image, the n-th in orientation n."""
    predictor = make_predictor()
    predictor.model.orientations = 8
    drawn = predictor(pixels(30, 30), num_samples=64)
    assert drawn.orientation_ids is not None
    ids = drawn.orientation_ids[0].tolist()
    return drawn.pick(*(ids.index(orientation) for orientation in range(8)))


def under(region: np.ndarray, *, orientation: int, side: int) -> torch.Tensor:
    """The cells of a 32×32 image that a region of the 30×30 one in its middle touches, cell by cell."""
    padded = np.zeros((32, 32), dtype=bool)
    padded[1:31, 1:31] = region
    turned = orient(torch.from_numpy(padded), orientation).numpy()
    size = 32 // side
    cells = [[turned[y : y + size, x : x + size].any() for x in range(0, 32, size)] for y in range(0, 32, size)]
    return torch.tensor(cells)


@pytest.mark.parametrize("edit", ["redraw", "combine"])
def test_latents_outside_the_region_keep_their_bits_in_all_orientations(edit: str) -> None:
    before = one_of_each_orientation()
    region = np.zeros((30, 30), dtype=bool)
    region[3:9, 17:28] = True
    other = before.redraw(seed=7)
    how: dict[str, Any] = {"region": region, "scales": "full"}
    after = before.redraw(**how) if edit == "redraw" else before.combine(other, **how)
    assert before.orientation_ids is not None
    assert before.orientation_ids.tolist() == [list(range(8))]
    for old, new, theirs in zip(before.latents, after.latents, other.latents, strict=True):
        for n in range(8):
            inside = under(region, orientation=n, side=old.shape[-1])
            assert 0 < inside.sum() < inside.numel() or old.shape[-1] == 1
            changed = old[0, n, 0] != new[0, n, 0]
            assert torch.equal(changed, inside)
            if edit == "combine":
                assert torch.equal(new[0, n, 0][inside], theirs[0, n, 0][inside])


def test_what_lies_on_the_image_is_taken_from_the_other_hypothesis_however_it_lies() -> None:
    """All latents of a hypothesis in orientation 0, taken over by the other seven, lie on the same pixels."""
    before = one_of_each_orientation()
    found = before.combine(before.pick(0), region=np.ones((30, 30), dtype=bool), scales="full")
    for scale in found.latents:
        for n in range(8):
            assert torch.equal(scale[0, n], orient(scale[0, 0], n))


def convolutions(model: nn.Module) -> int:
    return sum(isinstance(part, nn.Conv2d) and part.kernel_size == (3, 3) for part in model.modules())


def test_labels_far_from_the_region_stay_in_a_shallow_model() -> None:
    trained = make_trained(channels=(4, 6), latent_dims=(1,))
    assert isinstance(trained.model, HPUNet)
    reach = 2 + convolutions(trained.model.prior.decoder[-1])  # a cell of two pixels, and one for each convolution
    before = Predictor(trained)(pixels(64, 64), num_samples=12)
    region = np.zeros((64, 64), dtype=bool)
    region[20:26, 20:26] = True
    after = before.redraw(region=region)
    changed = (after.samples != before.samples).any(axis=0)
    assert changed.any()
    rows, columns = np.nonzero(changed)
    for found in (rows, columns):
        assert 20 - reach <= found.min()
        assert found.max() < 26 + reach
    assert reach < 20


def test_redraw_of_nothing_replays_and_seeds_count_on(first: Prediction) -> None:
    assert same(first.redraw(scales=()), first)
    again = first.redraw(region=(4, 4, 12, 12))
    assert same(again, first.redraw(region=(4, 4, 12, 12), seed=1))
    assert not same(again, first.redraw(region=(4, 4, 12, 12), seed=2))
    assert again.redraw().options.seed == 2
    assert "64 pixels" in again.notes[-1]
    whole = first.redraw(region=np.ones((H, W), dtype=bool), scales="full", seed=5)
    assert same(whole, first.redraw(seed=5))


def test_temperature_zero_sets_scales_to_their_mean(first: Prediction, predictor: Predictor) -> None:
    mean = first.redraw(scales=[1], temperature=0.0)
    assert same(mean, first.redraw(scales=[1], temperature=0.0, seed=9))
    alone = predictor(pixels(H, W), num_samples=4, scales=[0])
    np.testing.assert_array_equal(mean.samples, alone.samples)


def test_regions_choose_scales_that_are_not_much_larger(first: Prediction) -> None:
    assert first.redraw(region=(5, 5)).notes[-1].startswith("Scales 1, under 1 pixels,")
    assert first.redraw(region=(4, 4, 12, 12)).notes[-1].startswith("Scales 0, 1, under")


def test_pick_takes_samples_in_any_order(first: Prediction) -> None:
    found = first.pick(2, 0, 2)
    np.testing.assert_array_equal(found.samples, first.samples[[2, 0, 2]])
    assert found.options.num_samples == 3


def test_nudge_moves_one_latent_by_prior_sigmas(first: Prediction) -> None:
    alone = first.pick(1)
    moved, back = alone.nudge(scale=1, at=(13, 9.5), by=2), None
    changed = [(new != old).nonzero() for old, new in zip(alone.latents, moved.latents, strict=True)]
    assert [len(each) for each in changed] == [0, 1]
    cell = moved.latents[1].shape[-1] * (13 + 1) // 28
    assert changed[1].tolist() == [[0, 0, 0, 11 // 2 // (16 // moved.latents[1].shape[-2]), cell]]
    back = moved.nudge(scale=1, at=(13, 9.5), by=-2)
    torch.testing.assert_close(back.latents[1], alone.latents[1])
    step = (moved.latents[1] - alone.latents[1]).sum()
    twice = alone.nudge(scale=1, at=(13, 9.5), by=4).latents[1] - alone.latents[1]
    torch.testing.assert_close(twice.sum(), 2 * step)


def test_volumes_are_edited_slice_by_slice(predictor: Predictor, tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(pixels(W, H, 3), np.eye(4)), tmp_path / "v.nii.gz")
    before = predictor(tmp_path / "v.nii.gz", num_samples=2)
    shape = before.mean.shape
    region = np.zeros(shape, dtype=bool)
    region[1, 4:12, 4:12] = True
    after = before.redraw(region=region)
    kept = [torch.equal(a[z], b[z]) for z in range(3) for a, b in zip(before.latents, after.latents, strict=True)]
    assert kept == [True, True, False, False, True, True]
    moved = before.nudge(scale=0, at=(5, 5), by=1, slice=2)
    assert [torch.equal(moved.latents[0][z], before.latents[0][z]) for z in range(3)] == [True, True, False]
    state = json.loads(json.dumps(after.state()))
    assert same(predictor.replay(tmp_path / "v.nii.gz", state), after)
    one = predictor.replay(tmp_path / "v.nii.gz", after.slices[1].state())
    assert one.axes == "yx"
    assert same(one, after.slices[1])


def test_states_replay_from_a_file_with_the_crop_that_was_cut(predictor: Predictor, tmp_path: Path) -> None:
    image = pixels(80, 70)
    edited = predictor(image, num_samples=3, at=(30, 40), window=(10.0, 200.0), temperature=[0.5, 1.5]).redraw(seed=3)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(edited.state()))
    found = predictor.replay(image, path)
    assert same(found, edited)
    assert found.options == edited.options
    assert same(found.redraw(), edited.redraw())
    assert same(predictor.replay(image, edited.pick(1).state()), edited.pick(1))
    with pytest.raises(DataError, match="another image"):
        predictor.replay(pixels(80, 70, seed=1), path)
    with pytest.raises(DataError, match="by other"):
        Predictor(replace(predictor.trained, name="other")).replay(image, path)


NAN = base64.b64encode(np.full(4 * 8 * 7, np.nan, np.float32).tobytes()).decode()
"""As many as the coarsest scale has."""


def break_latents(state: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    change(state["latents"][0])
    return state


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s | {"format": "x"}, "not a state"),
        (lambda s: s | {"version": 2}, "not a state"),
        (lambda s: s | {"more": 1}, "not a state"),
        (lambda s: {}, "not a state"),
        (lambda s: s | {"options": s["options"] | {"num_samples": 3}}, "hypotheses each"),
        (lambda s: s | {"options": s["options"] | {"num_samples": 10**9}}, "num_samples"),
        (lambda s: s | {"orientation_ids": [[0]]}, "hypotheses each"),
        (lambda s: s | {"latents": s["latents"][:1]}, "latents"),
        (lambda s: break_latents(s, lambda z: z.update(base64="%")), "base64"),
        (lambda s: break_latents(s, lambda z: z.update(base64="AAAA")), "do not fill"),
        (lambda s: break_latents(s, lambda z: z.update(shape=[1, 4, 1, 10**9, 1])), "not a state"),
        (lambda s: break_latents(s, lambda z: z.update(base64=NAN)), "NaN"),
    ],
)  # fmt: skip
def test_damaged_states_are_named(predictor: Predictor, first: Prediction, change: Any, words: str) -> None:
    with pytest.raises(HPUNetError, match=words):
        predictor.replay(pixels(H, W), change(first.state()))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda p: p.pick(), "samples: expected numbers from 0 to 3"),
        (lambda p: p.pick(4), "samples: expected"),
        (lambda p: p.redraw(region=(1, 2, 3)), "a point"),
        (lambda p: p.redraw(region=(0, 0, 99, 9)), "30 image"),
        (lambda p: p.redraw(region=(26, 0)), "30 image"),
        (lambda p: p.redraw(region=np.zeros((H, W), dtype=bool)), "empty"),
        (lambda p: p.redraw(region=np.ones((3, 3), dtype=bool)), "got shape"),
        (lambda p: p.redraw(scales=[5]), "scales: expected"),
        (lambda p: p.redraw(temperature=-1.0), "temperature"),
        (lambda p: p.nudge(scale=2, at=(3, 3), by=1), "1 at scale 0, 1 at scale 1"),
        (lambda p: p.nudge(scale=0, at=(3, 3), by=1, channel=1), "channel"),
        (lambda p: p.nudge(scale=0, at=(3, 3), by=float("nan")), "by: expected"),
        (lambda p: p.nudge(scale=0, at=(3, 3, 9, 9), by=1), "at: expected"),
        (lambda p: p.nudge(scale=0, at=(3, 3), by=1, slice=1), "slice"),
        (lambda p: p.combine(p.pick(0, 1), region=(3, 3)), "expected 1 or 4"),
        (lambda p: p.combine(replace(p, image=p.image + 1), region=(3, 3)), "same image"),
    ],
)  # fmt: skip
def test_impossible_edits_are_named(first: Prediction, edit: Any, words: str) -> None:
    with pytest.raises(HPUNetError, match=words):
        edit(first)


def test_models_without_latents_at_some_scales_are_edited() -> None:
    trained: TrainedModel = make_trained(channels=(4, 4, 6, 6), latent_dims=(2, 0, 1))
    before = Predictor(trained)(pixels(16, 16), num_samples=3)
    after = before.redraw(region=(2, 2, 6, 6))
    assert same(after.redraw(scales=()), after)
    assert same(Predictor(trained).replay(pixels(16, 16), after.state()), after)
    with pytest.raises(ConfigError, match="0 at scale 1"):
        before.nudge(scale=1, at=(3, 3), by=1)


def test_the_published_model_is_edited_and_replayed() -> None:
    predictor, image = hpunet.load("lidc-hpu-2026", device="cpu"), hpunet.example("lidc-2").image
    before = predictor(image, num_samples=3)
    assert same(
        predictor.replay(image, before.nudge(scale=3, at=(64, 64), by=2).state()),
        before.nudge(scale=3, at=(64, 64), by=2),
    )
