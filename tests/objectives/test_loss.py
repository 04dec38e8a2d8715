import math
from collections import Counter
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hpunet import ELBO, GECO, ConfigError, HPUNet
from hpunet.models.base import TrainingOutput
from hpunet.models.gaussian import Gaussian, kl_divergence
from hpunet.objectives.loss import (
    EnergyDistance,
    PairAgreement,
    Reconstruction,
    gumbel_noise,
    masked_cross_entropy,
    parameter_groups,
    top_k_pixels,
)


def random_batch(seed: int = 0, b: int = 2, k: int = 3, h: int = 6, w: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(b, k, h, w, generator=generator, dtype=torch.float64)
    labels = torch.randint(k, (b, h, w), generator=generator)
    return logits, labels, torch.rand(b, h, w, generator=generator) > 0.3


def output_of(logits: Tensor, kl: Tensor | None = None) -> TrainingOutput:
    kl = torch.tensor([1.0, 2.0]).to(logits.dtype) if kl is None else kl
    return TrainingOutput(logits=logits, latents=[], prior=[], posterior=[], kl=kl)


def cross_entropy_by_loops(logits: Tensor, labels: Tensor, valid: Tensor) -> np.ndarray:
    """The slow twin, pixel by pixel from the definition."""
    scores, truth = logits.numpy(), labels.numpy()
    ce = np.zeros(truth.shape)
    for b, y, x in np.ndindex(*truth.shape):
        if valid[b, y, x]:
            p = np.exp(scores[b, :, y, x])
            ce[b, y, x] = -np.log(p[truth[b, y, x]] / p.sum())
    return ce


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


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("case", ["all-masked", "all-zero", "tiny", "one-pixel-image"])
def test_objectives_stay_finite_in_degenerate_cases(case: str, stochastic: bool) -> None:
    logits, labels, valid = random_batch()
    logits = logits.float()
    if case == "all-masked":
        valid = torch.zeros_like(valid)
    elif case == "all-zero":  # cross-entropy of exactly 0 everywhere
        logits = F.one_hot(labels, 3).permute(0, 3, 1, 2).float() * 1e4
        assert masked_cross_entropy(logits=logits, labels=labels).max() == 0
    elif case == "tiny":  # so few pixels that k is 0
        logits, labels, valid = logits[:, :, :2, :2], labels[:, :2, :2], torch.ones(2, 2, 2, dtype=torch.bool)
    else:
        logits, labels, valid = logits[:1, :, :1, :1], labels[:1, :1, :1], None
    logits = logits.clone().requires_grad_()
    for objective in (GECO(kappa=0.05, stochastic=stochastic), ELBO(top_k=0.02, stochastic=stochastic), ELBO()):
        kl = torch.tensor([0.5], requires_grad=True)
        terms = objective(output_of(logits, kl), labels=labels, valid=valid)
        terms.loss.backward()
        assert torch.isfinite(terms.loss)
        assert torch.isfinite(terms.rec_per_pixel)
        assert logits.grad is not None
        assert torch.isfinite(logits.grad).all()


def test_gumbel_noise_is_finite_and_standard() -> None:
    noise = gumbel_noise(torch.zeros(400, 500), torch.Generator().manual_seed(0))
    assert torch.isfinite(noise).all()
    assert noise.mean() == pytest.approx(0.5772, abs=0.02)
    assert noise.var() == pytest.approx(np.pi**2 / 6, rel=0.02)


def test_elbo_is_rec_plus_weighted_kl() -> None:
    logits, labels, valid = random_batch()
    terms = ELBO(beta=0.3)(output_of(logits), labels=labels, valid=valid)
    rec = cross_entropy_by_loops(logits, labels, valid).sum() / 2
    assert float(terms.rec) == pytest.approx(rec, rel=1e-12)
    assert float(terms.loss) == pytest.approx(rec + 0.3 * 3, rel=1e-12)
    assert terms.num_kept == valid.sum()
    assert float(terms.rec_per_pixel) == pytest.approx(rec * 2 / int(valid.sum()), rel=1e-12)


@pytest.mark.parametrize("make", [partial(GECO, kappa=0.05), partial(ELBO, beta=0.3)], ids=["geco", "elbo"])
def test_prior_pull_is_a_factor_on_the_gradient_of_the_prior_alone(make: Any) -> None:
    logits, labels, valid = random_batch()
    gradients, losses = [], []
    for prior_pull in (1.0, 3.0):
        torch.manual_seed(0)
        raw = [torch.randn(2, 2, 2, 1, s, s, dtype=torch.float64, requires_grad=True) for s in (1, 2)]
        prior, posterior = ([Gaussian(mean=r[net][0], log_sigma=r[net][1]) for r in raw] for net in (0, 1))
        kl = [kl_divergence(posterior=q, prior=p).mean() for q, p in zip(posterior, prior, strict=True)]
        output = TrainingOutput(logits=logits, latents=[], prior=prior, posterior=posterior, kl=torch.stack(kl))
        terms = make(prior_pull=prior_pull, top_k=None).double()(output, labels=labels, valid=valid)
        losses.append((terms.loss.item(), terms.kl.tolist()))
        gradients.append(torch.cat([g.flatten(1) for g in torch.autograd.grad(terms.loss, raw)], dim=1))
    assert losses[0] == losses[1]
    torch.testing.assert_close(gradients[1], gradients[0] * torch.tensor([[3.0], [1.0]], dtype=torch.float64))


def geco_step(geco: GECO, rec: float, optimiser: torch.optim.Optimizer) -> None:
    """One step on a reconstruction term given by hand, with one kept pixel an image."""
    constraint = geco.moving_average(torch.tensor(rec)) - geco.kappa
    optimiser.zero_grad()
    (geco.multiplier * constraint).backward()
    optimiser.step()


def test_geco_multiplier_rises_while_violated_and_falls_when_met() -> None:
    geco = GECO(kappa=0.5, decay=0.5)
    optimiser = torch.optim.Adam(geco.parameters(), lr=0.01)
    assert geco.multiplier.item() == pytest.approx(1.0, abs=1e-6)
    path = []
    for rec in [2.0] * 30 + [0.1] * 60:
        geco_step(geco, rec, optimiser)
        path.append(geco.multiplier.item())
    assert all(after > before for before, after in pairwise(path[:30]))
    assert all(after < before for before, after in pairwise(path[60:]))


def test_geco_speed_is_a_factor_on_the_learning_rate_of_its_own_variable() -> None:
    paths = []
    for speed, learning_rate in ((1.0, 0.02), (4.0, 0.005)):
        geco = GECO(kappa=0.5, decay=0.5, speed=speed).double()
        optimiser = torch.optim.Adam(geco.parameters(), lr=learning_rate)
        assert geco.multiplier.item() == pytest.approx(1.0, abs=1e-6)
        path = []
        for rec in [2.0] * 30 + [0.1] * 60:
            geco_step(geco, rec, optimiser)
            path.append(geco.multiplier.item())
        paths.append(path)
    assert paths[1] == pytest.approx(paths[0], rel=1e-4)
    assert max(paths[0]) > 2


def test_geco_lambda_stops_at_its_bound_and_leaves_it_again() -> None:
    free, bounded = (GECO(kappa=0.5, decay=0.5, lambda_max=bound).double() for bound in (math.inf, 1.5))
    paths: list[list[float]] = [[], []]
    for geco, path in zip((free, bounded), paths, strict=True):
        optimiser = torch.optim.Adam(geco.parameters(), lr=0.02)
        for rec in [2.0] * 200 + [0.1] * 100:
            geco_step(geco, rec, optimiser)
            path.append(geco.multiplier.item())
    below = next(number for number, value in enumerate(paths[0]) if value > 1.5)
    assert paths[1][:below] == paths[0][:below]
    assert max(paths[0]) > 2
    assert max(paths[1]) == 1.5
    assert paths[1][-1] < 1  # though κ was out of reach for so many steps that the other one is far above
    assert paths[0][-1] > 2


def test_geco_gradient_is_the_plain_one_times_lambda() -> None:
    logits, labels, valid = random_batch()
    geco = GECO(kappa=0.05, top_k=None, decay=0.9).double()
    with torch.no_grad():
        geco.w.fill_(1.3)
        geco.ema.fill_(123.0)  # an average far from this batch's value
        geco.num_updates.fill_(5)
    lam = F.softplus(torch.tensor(1.3, dtype=torch.float64)) ** 2
    plain = logits.clone().requires_grad_()
    (masked_cross_entropy(logits=plain, labels=labels, valid=valid).sum() / 2).backward()
    ours = logits.clone().requires_grad_()
    terms = geco(output_of(ours), labels=labels, valid=valid)
    terms.loss.backward()
    assert plain.grad is not None
    torch.testing.assert_close(ours.grad, lam * plain.grad)
    rec = cross_entropy_by_loops(logits, labels, valid).sum() / 2
    constraint = 0.9 * 123 + 0.1 * rec - 0.05 * int(valid.sum()) / 2
    assert terms.constraint is not None
    assert float(terms.constraint) == pytest.approx(constraint, rel=1e-12)
    assert float(terms.loss.detach()) == pytest.approx(float(lam) * constraint + 3, rel=1e-12)
    assert geco.w.grad is not None
    slope = 2 * F.softplus(torch.tensor(1.3)) * torch.sigmoid(torch.tensor(1.3))
    assert geco.w.grad.item() == pytest.approx(-0.01 * constraint * float(slope), rel=1e-5)


def test_geco_kl_of_a_scale_that_warms_up_counts_little_by_little() -> None:
    logits, labels, _ = random_batch()
    plain, warming = (GECO(kappa=0.05, top_k=None, kl_warm_up=ends).double() for ends in ((), (4, 0, 2)))
    for update, counts in enumerate(([1 / 4, 1, 1 / 2, 1], [1 / 2, 1, 1, 1], [3 / 4, 1, 1, 1], [1] * 4, [1] * 4), 1):
        kl = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64, requires_grad=True)
        output = output_of(logits, kl)
        found, full = (geco(output, labels=labels) for geco in (warming, plain))
        (slopes,) = torch.autograd.grad(found.loss, kl)
        assert warming.num_updates == update
        assert slopes.tolist() == counts
        difference = sum((1 - count) * value for count, value in zip(counts, kl.tolist(), strict=True))
        assert float((full.loss - found.loss).detach()) == pytest.approx(difference)
        assert found.kl.tolist() == kl.tolist()  # what is logged is the whole KL


def test_geco_average_is_remembered_in_training_only() -> None:
    logits, labels, _ = random_batch()
    geco = GECO(kappa=0.05)
    geco.eval()
    geco(output_of(logits), labels=labels)
    assert geco.num_updates == 0
    geco.train()
    geco(output_of(logits), labels=labels)
    assert geco.num_updates == 1


def test_geco_state_survives_save_and_load() -> None:
    geco = GECO(kappa=0.5)
    optimiser = torch.optim.Adam(geco.parameters(), lr=0.1)
    for rec in (3.0, 2.0, 5.0):
        geco_step(geco, rec, optimiser)
    copy = GECO(kappa=0.5)
    copy.load_state_dict(geco.state_dict())
    assert torch.equal(copy.multiplier, geco.multiplier)
    assert torch.equal(copy.moving_average(torch.tensor(1.0)), geco.moving_average(torch.tensor(1.0)))
    assert {"w", "ema", "num_updates"} <= geco.state_dict().keys()


def test_parameter_groups_cover_everything_once() -> None:
    model = HPUNet(in_channels=1, num_classes=2, channels=(4, 4), latent_dims=(1,), blocks_per_scale=1)
    geco = GECO(kappa=0.05)
    groups = parameter_groups(model, geco)
    ids = [id(p) for group in groups for p in group["params"]]
    assert sorted(ids) == sorted(id(p) for p in (*model.parameters(), *geco.parameters()))
    assert [g["weight_decay"] for g in groups] == [2e-5, 0.0]
    assert len(parameter_groups(model, ELBO())) == 1


def test_objectives_name_what_is_wrong() -> None:
    for bad in (0.0, 1.5, -0.1):
        with pytest.raises(ConfigError, match="top_k"):
            ELBO(top_k=bad)
    with pytest.raises(ConfigError, match="kappa"):
        GECO(kappa=0.0)
    with pytest.raises(ConfigError, match="decay"):
        GECO(kappa=1.0, decay=1.0)
    with pytest.raises(ConfigError, match="beta"):
        ELBO(beta=-1.0)


def energy_by_loops(logits: Tensor, gradings: Tensor, graders: Tensor, valid: Tensor, classes: list[int]) -> float:
    """The slow twin: pair by pair, pixel by pixel, from the definition."""
    probs = (logits.exp() / logits.exp().sum(dim=2, keepdim=True)).numpy()
    b, s, _, h, w = probs.shape

    def distance(one: np.ndarray, other: np.ndarray, image: int) -> float:
        common = either = 1.0
        for y, x in np.ndindex(h, w):
            if valid[image, y, x]:
                common += min(one[y, x], other[y, x])
                either += max(one[y, x], other[y, x])
        return 1 - common / either

    images = []
    for i in range(b):
        there = [r for r in range(graders.shape[1]) if graders[i, r]]
        for c in classes:
            maps = [(gradings[i, r] == c).double().numpy() for r in there]
            cross = [distance(probs[i, n, c], map_, i) for n in range(s) for map_ in maps]
            apart = [distance(probs[i, n, c], probs[i, m, c], i) for n in range(s) for m in range(n)]
            images.append(2 * np.mean(cross) - np.mean(apart))
    return float(np.mean(images))


def test_energy_distance_equals_the_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, 3, 5, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    gradings = torch.randint(3, (3, 2, 5, 6), generator=generator)
    graders = torch.tensor([[True, True], [True, False], [False, True]])
    valid = torch.rand(3, 5, 6, generator=generator) > 0.3
    found = EnergyDistance(classes=[1, 2])(sample_logits=logits, gradings=gradings, graders=graders, valid=valid)
    expected = energy_by_loops(logits.detach(), gradings, graders, valid, [1, 2])
    assert found.item() == pytest.approx(expected, rel=1e-12)
    found.backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad.abs().sum(dim=(1, 2)) > 0, valid)


def test_energy_distance_is_least_for_samples_as_various_as_the_graders() -> None:
    """Of two graders one marks a square, the other one nothing: better one sample of each than two of a kind."""
    square = torch.zeros(8, 8, dtype=torch.long)
    square[2:6, 2:6] = 1
    empty = torch.zeros_like(square)
    grey = torch.full((8, 8), 0.5)

    def energy(*maps: Tensor) -> float:
        probs = torch.stack([m.double() for m in maps]).clamp(1e-9, 1 - 1e-9)
        logits = torch.stack([(1 - probs).log(), probs.log()], dim=1).unsqueeze(0)
        gradings, graders = torch.stack([square, empty]).unsqueeze(0), torch.ones(1, 2, dtype=torch.bool)
        valid = torch.ones(1, 8, 8, dtype=torch.bool)
        found = EnergyDistance(classes=[1])(sample_logits=logits, gradings=gradings, graders=graders, valid=valid)
        return float(found)

    apart = 1 - 1 / 17  # 16 pixels, and the one that is added
    assert energy(square, empty) == pytest.approx(0, abs=1e-6)
    assert energy(square, square) == pytest.approx(apart, abs=1e-6)
    assert energy(empty, empty) == pytest.approx(apart, abs=1e-6)
    assert energy(square * grey, square * grey) > apart  # and a grey one is no way out


@pytest.mark.parametrize("background", [0.0, 0.5])
@pytest.mark.parametrize("alike", ["pixels", "instances"])
def test_pair_agreement_equals_the_definition(alike: str, background: float) -> None:
    """The slow twin: pixel pair by pixel pair, sample pair by sample pair."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 3, 5, 3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    gradings = torch.randint(7, (3, 2, 3, 4), generator=generator)  # 2 fixed classes, instances 0 to 4
    graders = torch.tensor([[True, True], [True, False], [False, True]])
    valid = torch.rand(3, 3, 4, generator=generator) > 0.3
    images, counted = [], torch.zeros(3, 3, 4, dtype=torch.bool)
    for i in range(3):
        probs = logits[i].detach().softmax(dim=1)[:, 2:].flatten(2).numpy()  # (s, ids, n)
        of_graders = []
        for grader in graders[i].nonzero().flatten().tolist():
            labels = gradings[i, grader].flatten().tolist()
            pixels = [n for n in range(12) if valid[i].flatten()[n] and labels[n] >= 2]
            others = [n for n in range(12) if valid[i].flatten()[n] and labels[n] < 2 and background]
            counted[i] |= valid[i] & ((gradings[i, grader] >= 2) | (background > 0))
            # Of 3 instances that are told apart, 3 is 0 again and 4 is 1.
            numbers = {n: (labels[n] - 2) % 3 for n in pixels}
            areas = Counter(numbers.values())
            weight = {n: 1.0 if alike == "pixels" else 1 / areas[numbers[n]] for n in pixels}
            whole = sum(weight.values())
            weight |= {n: background * whole / len(others) for n in others}
            total = 0.0
            for one, other in product(weight, weight):
                inside = one in numbers and other in numbers
                expected = 0.0 if not inside else 1.0 if numbers[one] == numbers[other] else 1 / 3
                off = [float(probs[n, :, one] @ probs[n, :, other]) - expected for n in range(3)]
                products = [off[n] * off[m] for n in range(3) for m in range(3) if n != m]
                total += weight[one] * weight[other] * float(np.mean(products))
            of_graders.append(total / whole**2)
        images.append(np.mean(of_graders))
    objective = PairAgreement(
        num_fixed_classes=2, num_random_ids=3, num_instances=3, alike=alike, background=background
    )
    found = objective(sample_logits=logits, gradings=gradings, graders=graders, valid=valid)
    assert found.item() == pytest.approx(float(np.mean(images)), rel=1e-12)
    found.backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad.abs().sum(dim=(1, 2)) > 0, counted)


def test_pair_agreement_is_least_for_instances_that_keep_together_and_change_apart() -> None:
    """Two instances of 8 pixels on 16 of background, 2 ids: each whole and on its own, whatever their ids."""
    truth = torch.tensor([0, 0, 1, 2]).repeat_interleave(8).view(1, 1, 4, 8)

    def energy(*ids: tuple[int, ...]) -> float:
        """Of samples, each the id of the first instance's halves and of the second."""
        maps = torch.stack([torch.tensor([0, 0, 0, 0, *x]).repeat_interleave(4) for x in ids]).view(-1, 4, 8)
        logits = 50.0 * F.one_hot(maps, 3).permute(0, 3, 1, 2).double()
        return float(
            PairAgreement(num_fixed_classes=1, num_random_ids=2, num_instances=4)(
                sample_logits=logits.unsqueeze(0),
                gradings=truth,
                graders=torch.ones(1, 1, dtype=torch.bool),
                valid=torch.ones(1, 4, 8, dtype=torch.bool),
            )
        )

    every = list(product((1, 2), (1, 2)))
    independent = energy(*[(a, a, b, b) for a, b in every] * 50)
    assert independent == pytest.approx(0, abs=1e-2)  # but for the finite number of samples
    assert energy((1, 1, 1, 1), (2, 2, 2, 2)) > independent + 0.01  # never apart
    assert energy((1, 1, 2, 2), (2, 2, 1, 1)) > independent + 0.01  # always apart
    assert energy((1, 2, 1, 1), (2, 1, 2, 2)) > energy((1, 1, 1, 1), (2, 2, 2, 2))  # and one is cut
    assert energy((0, 0, 0, 0), (0, 0, 0, 0)) > independent + 0.3


def test_pair_agreement_of_an_image_without_instances_is_nothing() -> None:
    logits = torch.randn(1, 2, 3, 4, 4, requires_grad=True)
    found = PairAgreement(num_fixed_classes=1, num_random_ids=2, num_instances=4, alike="instances")(
        sample_logits=logits,
        gradings=torch.zeros(1, 1, 4, 4, dtype=torch.long),
        graders=torch.ones(1, 1, dtype=torch.bool),
        valid=torch.ones(1, 4, 4, dtype=torch.bool),
    )
    found.backward()
    assert found.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()
