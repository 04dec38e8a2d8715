"""Sampling and the posterior on fused kernels against the plain model, on tiny shapes; run as `against_torch.py`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from interpreted import DEVICE, distance, on_fresh_stack, small_programs

from hpunet.errors import DivergenceError
from hpunet.kernels import flat_parameters, sampling_plan
from hpunet.kernels.sampler import FusedSampler
from hpunet.kernels.tile_sizes import convolution_tiling
from hpunet.models.hpunet import HPUNet
from hpunet.sampling.orientations import encode_orientations
from hpunet.sampling.sample import Samples, reconstruct, sample

__all__ = ["small_programs"]  # a fixture of every test

SAMPLED: dict[str, dict[str, Any]] = {  # the model
    "plain": {"channels": (8, 16, 16), "latent_dims": (2, 1)},
    "padded": {"channels": (12, 16), "latent_dims": (3,), "cond_channels": 2, "channels_last": False},
    "no-latent-at-scale-0": {"channels": (8, 8, 16), "latent_dims": (0, 1)},
    "no-latent-at-scale-1": {"channels": (8, 8, 16), "latent_dims": (1, 0), "blocks_per_scale": 2},
}


def sampled(name: str, *, orientations: int = 1) -> tuple[HPUNet, dict[str, Any]]:
    model = HPUNet(in_channels=1, num_classes=3, **{"blocks_per_scale": 1, **SAMPLED[name]}).to(DEVICE)
    model.orientations = orientations
    inputs = {"image": torch.rand(2, 1, 4, 4, device=DEVICE), "num_samples": 3}
    return model, inputs | ({"cond": torch.rand(2, 2, 4, 4, device=DEVICE)} if model.cond_channels else {})


@on_fresh_stack
def check_sampler(
    model: HPUNet, function: Callable[..., Samples], *, dtype: torch.dtype = torch.float32, tolerance: float = 1e-5,
    **how: Any,
) -> None:  # fmt: skip
    plain, fused = (
        function(network, **how, generator=torch.Generator().manual_seed(1))
        for network in (model, FusedSampler(model, dtype=dtype))
    )
    assert plain.logits is not None
    assert fused.logits is not None
    assert distance(fused.logits, plain.logits) < tolerance
    assert torch.equal(fused.labels, fused.logits.argmax(dim=2))
    for one, other in zip(fused.latents, plain.latents, strict=True):
        assert one.shape == other.shape
        assert other.numel() == 0 or distance(one, other) < tolerance
    assert (fused.orientation_ids is None) == (plain.orientation_ids is None)


@pytest.mark.parametrize("name", SAMPLED)
def test_fused_sampler_equals_the_model(name: str) -> None:
    model, inputs = sampled(name)
    check_sampler(model, sample, **inputs, chunk_size=2)


def test_tiles_of_half_precision_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float16: the interpreter multiplies bfloat16 wrongly. Its tiles are those of bfloat16."""
    monkeypatch.setattr(flat_parameters, "convolution_tiling", convolution_tiling)
    model, inputs = sampled("plain", orientations=2)
    check_sampler(model, sample, dtype=torch.float16, tolerance=2e-3, **inputs)


@pytest.mark.parametrize("orientations", [1, 2])
def test_fused_sampler_computes_fine_scales_in_parts(monkeypatch: pytest.MonkeyPatch, orientations: int) -> None:
    monkeypatch.setattr(sampling_plan, "PIXELS_AT_ONCE", 20)  # five hypotheses of 2×2, then one of 4×4
    model, inputs = sampled("no-latent-at-scale-0", orientations=orientations)
    check_sampler(model, sample, **inputs)


@pytest.mark.parametrize("partly", [False, True])
def test_fused_sampler_draws_where_given_latents_are_nan(partly: bool) -> None:
    model, inputs = sampled("plain")
    given = torch.randn(2, 3, 1, 2, 2, device=DEVICE)
    if partly:
        given[0, 1, 0, 1] = torch.nan
    check_sampler(model, sample, **inputs, latents=["mean", given], temperature=2.0)


@pytest.mark.parametrize("orientations", [4, 8])
def test_fused_sampler_turns_labels_back(orientations: int) -> None:
    model, inputs = sampled("plain", orientations=orientations)
    if orientations == 4:
        inputs["image"] = inputs["image"].repeat(1, 1, 1, 2)
    check_sampler(model, sample, **inputs)


@pytest.mark.parametrize(
    ("name", "draw"), [("plain", True), *((name, False) for name in SAMPLED if name != "no-latent-at-scale-1")]
)
def test_fused_reconstruction_equals_the_model(name: str, draw: bool) -> None:
    model, inputs = sampled(name)
    del inputs["num_samples"]
    labels = torch.randint(3, (2, 2, 4, 4), device=DEVICE)
    check_sampler(model, reconstruct, **inputs, labels=labels, draw=draw)
    found, expected = (
        network.infer(image=inputs["image"], labels=labels[:, 0])[1]
        for network in (FusedSampler(model, dtype=torch.float32), model)
    )
    for one, other in zip(found, expected, strict=True):
        assert other.mean.numel() == 0 or distance(one.mean, other.mean) < 1e-5
        assert other.mean.numel() == 0 or distance(one.log_sigma, other.log_sigma) < 1e-5


@on_fresh_stack
def test_given_latents_replay_hypotheses() -> None:
    """To the bit, so what an edit leaves alone stays as it was; on a GPU also alone and in other chunks."""
    model, inputs = sampled("plain", orientations=2)
    sampler = FusedSampler(model, dtype=torch.float32)
    drawn = sample(sampler, **inputs, generator=torch.Generator().manual_seed(1))
    latents, ids = drawn.latents, drawn.orientation_ids
    assert ids is not None
    again = sample(sampler, **inputs, latents=latents, orientation_ids=ids)
    some = {"latents": [z[:, 1:2] for z in latents], "orientation_ids": ids[:, 1:2], "num_samples": 1}
    one = sample(sampler, **{**inputs, **some}, chunk_size=1)
    assert drawn.logits is not None
    assert one.logits is not None
    assert again.logits is not None
    assert torch.equal(again.logits, drawn.logits)
    assert distance(one.logits, drawn.logits[:, 1:2]) < 1e-6
    assert DEVICE.type == "cpu" or torch.equal(one.logits, drawn.logits[:, 1:2])
    for before, after in zip(latents, again.latents, strict=True):
        assert torch.equal(before, after)


@on_fresh_stack
def test_fused_reconstruction_takes_features_of_several_orientations() -> None:
    model, inputs = sampled("plain", orientations=2)
    how = {"image": inputs["image"], "labels": torch.randint(3, (2, 2, 4, 4), device=DEVICE)}
    sampler = FusedSampler(model, dtype=torch.float32)
    found = reconstruct(sampler, **how, features=encode_orientations(sampler, image=how["image"]))
    expected = reconstruct(model, **how)
    assert found.logits is not None
    assert expected.logits is not None
    assert distance(found.logits, expected.logits) < 1e-5


@on_fresh_stack
def test_labels_without_logits_are_the_same() -> None:
    model, inputs = sampled("plain", orientations=8)
    sampler = FusedSampler(model, dtype=torch.float32)
    one, other = (
        sample(sampler, **inputs, return_logits=keep, generator=torch.Generator().manual_seed(1))
        for keep in (False, True)
    )
    assert one.logits is None
    assert torch.equal(one.labels, other.labels)


@on_fresh_stack
def test_fused_sampler_finds_logits_that_are_not_finite() -> None:
    model, inputs = sampled("plain")
    with torch.no_grad():
        model.logits.bias[1] = torch.inf  # type: ignore[index]
    with pytest.raises(DivergenceError, match="image 0"):
        sample(FusedSampler(model, dtype=torch.float32), **inputs)
