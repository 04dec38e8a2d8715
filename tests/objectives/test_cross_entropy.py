import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from loss_inputs import cross_entropy_by_loops, random_batch
from torch import Tensor

from hpunet.objectives.cross_entropy import (
    Reconstruction,
    gumbel_from_uniform,
    gumbel_noise,
    masked_cross_entropy,
    top_k_pixels,
)


def test_cross_entropy_equals_the_definition_and_skips_invalid_pixels() -> None:
    logits, labels, valid = random_batch()
    logits.requires_grad_()
    ce = masked_cross_entropy(logits=logits, labels=labels, valid=valid)
    np.testing.assert_allclose(
        ce.detach().numpy(), cross_entropy_by_loops(logits.detach(), labels, valid), rtol=1e-12
    )
    ce.sum().backward()
    assert logits.grad is not None
    touched = logits.grad.abs().sum(dim=1) > 0
    assert torch.equal(touched, valid)


def test_cross_entropy_of_half_precision_logits_is_float32() -> None:
    logits, labels, _ = random_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ce = masked_cross_entropy(logits=logits.bfloat16(), labels=labels)
    assert ce.dtype == torch.float32
    torch.testing.assert_close(ce, F.cross_entropy(logits.bfloat16().float(), labels, reduction="none"))


def test_invalid_pixels_may_hold_anything_without_harm() -> None:
    logits, labels, valid = random_batch()
    rec = Reconstruction(top_k=0.1, stochastic=False)
    clean, kept = rec(logits=logits, labels=labels, valid=valid)
    wild = torch.where(valid.unsqueeze(1), logits, 1e30)
    dirty, also_kept = rec(logits=wild, labels=labels, valid=valid)
    assert torch.equal(clean, dirty)
    assert torch.equal(kept, also_kept)


def test_top_k_without_noise_keeps_the_largest_of_the_whole_batch() -> None:
    ce = torch.tensor([[[5.0, 1.0], [2.0, 0.5]], [[4.0, 3.0], [0.1, 0.2]]])
    kept = top_k_pixels(ce, fraction=0.5)
    assert ce[kept].sort().values.tolist() == [2.0, 3.0, 4.0, 5.0]


def test_top_k_counts_invalid_pixels_towards_k_but_never_keeps_them() -> None:
    ce = torch.arange(20.0).view(1, 4, 5)
    valid = ce < 8  # the 12 hardest pixels are invalid
    kept = top_k_pixels(ce, fraction=0.25, valid=valid)  # k = 5 of 20
    assert ce[kept].tolist() == [3.0, 4.0, 5.0, 6.0, 7.0]
    sparse = ce < 3
    kept = top_k_pixels(ce, fraction=0.25, valid=sparse)  # only 3 valid ones are there
    assert torch.equal(kept, sparse)


@pytest.mark.parametrize("noise", [False, True])
def test_top_k_prefers_valid_pixels_without_loss_to_invalid_ones(noise: bool) -> None:
    ce = torch.zeros(1, 4, 5)
    valid = torch.zeros(1, 4, 5, dtype=torch.bool)
    valid[0, 3] = True
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        kept = top_k_pixels(ce, fraction=0.25, valid=valid, noise=gumbel_noise(ce, generator) if noise else None)
        assert torch.equal(kept, valid)


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 9), st.floats(0.001, 1.0), st.integers(0, 2**31))
def test_top_k_keeps_exactly_k_or_all_valid(b: int, h: int, w: int, fraction: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ce = torch.rand(b, h, w, generator=generator)
    valid = torch.rand(b, h, w, generator=generator) > 0.5
    kept = top_k_pixels(ce, fraction=fraction, valid=valid, noise=gumbel_noise(ce, generator))
    k = int(fraction * ce.numel() + 1e-6)
    assert kept.sum() == min(k, int(valid.sum()))
    assert not (kept & ~valid).any()


def test_top_k_of_whole_numbers_is_not_cut_short_by_rounding() -> None:
    assert 0.29 * 100 < 29
    assert top_k_pixels(torch.rand(1, 10, 10), fraction=0.29).sum() == 29


def test_gumbel_top_k_inclusion_frequencies_equal_sequential_draws() -> None:
    """Gumbel top-k is a draw without replacement in proportion to ce; simulated here one pixel after another."""
    ce = torch.tensor([0.05, 0.2, 0.4, 0.6, 1.0, 2.0, 3.0, 0.0, 5.0, 0.3]).view(1, 2, 5)
    valid = torch.ones_like(ce, dtype=torch.bool)
    valid[0, 1, 3] = False  # the hardest pixel
    trials, k = 20_000, 3
    generator = torch.Generator().manual_seed(0)
    ours = torch.zeros(10)
    for _ in range(trials):
        kept = top_k_pixels(ce, fraction=0.3, valid=valid, noise=gumbel_noise(ce, generator))
        ours += kept.flatten()
    weights = torch.where(valid, ce, 0.0).flatten().double().numpy()
    rng = np.random.default_rng(0)
    theirs: Counter[int] = Counter()
    for _ in range(trials):
        left = weights.copy()
        for _ in range(k):
            pick = int(rng.choice(10, p=left / left.sum()))
            theirs[pick] += 1
            left[pick] = 0
    expected = np.array([theirs[i] for i in range(10)]) / trials
    error = np.sqrt(2 * expected * (1 - expected) / trials)
    assert ours[8] == 0
    assert ours[7] == 0  # ce = 0 has probability 0 while others are left
    np.testing.assert_array_less(np.abs(ours.numpy() / trials - expected), 4.5 * error + 1e-12)


def test_gumbel_from_uniform_is_finite_at_both_ends_and_standard() -> None:
    ends = gumbel_from_uniform(torch.tensor([[0.0, 1 - 2.0**-24]]))
    assert ends.isfinite().all()
    uniform = (torch.arange(2**16) * 2.0**-16).unsqueeze(0)
    gumbel = gumbel_from_uniform(uniform)
    assert gumbel.mean().item() == pytest.approx(0.5772, abs=2e-3)
    assert gumbel.var().item() == pytest.approx(math.pi**2 / 6, rel=1e-2)


def test_a_kernel_replaces_the_torch_operations_for_float32_logits() -> None:
    calls: list[dict[str, Any]] = []

    def kernel(logits: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        calls.append(how)
        return logits.sum(), torch.tensor(7)

    logits, labels, valid = random_batch()
    given = {"labels": labels, "valid": valid, "uniform": torch.rand(labels.shape)}
    for settings in ({"top_k": 0.1}, {"top_k": 0.1, "stochastic": False}, {"top_k": None}):
        of = Reconstruction(**settings)  # type: ignore[arg-type]
        of.kernel = kernel
        term, num_kept = of(logits=logits.float(), **given)
        assert (float(term), int(num_kept)) == (float(logits.float().sum()), 7)
        assert of(logits=logits, **given)[0].dtype == torch.float64  # without the kernel
    assert [call["k"] for call in calls] == [8, 8, None]  # of 2 images of 6 × 7 pixels
    assert [call["uniform"] is given["uniform"] for call in calls] == [True, False, False]
    assert [call["uniform"] is None for call in calls] == [False, True, True]
    of = Reconstruction(top_k=0.1)
    of.kernel = kernel
    of(logits=logits.float(), labels=labels)
    assert calls[-1]["uniform"].shape == labels.shape
