import math
from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from loss_inputs import cross_entropy_by_loops, output_of, random_batch

from hpunet import GECO
from hpunet.objectives.cross_entropy import masked_cross_entropy


def geco_step(geco: GECO, rec: float, optimiser: torch.optim.Optimizer) -> None:
    """One step on a reconstruction term given by hand, with one kept pixel an image."""
    constraint = geco.moving_average(torch.tensor(rec)) - geco.kappa
    optimiser.zero_grad()
    (geco.lambda_ * constraint).backward()
    optimiser.step()


def test_geco_lambda_rises_while_violated_and_falls_when_met() -> None:
    geco = GECO(kappa=0.5, constraint_ema_decay=0.5)
    optimiser = torch.optim.Adam(geco.parameters(), lr=0.01)
    assert geco.lambda_.item() == pytest.approx(1.0, abs=1e-6)
    path = []
    for rec in [2.0] * 30 + [0.1] * 60:
        geco_step(geco, rec, optimiser)
        path.append(geco.lambda_.item())
    assert all(after > before for before, after in pairwise(path[:30]))
    assert all(after < before for before, after in pairwise(path[60:]))


def test_geco_speed_is_a_factor_on_the_learning_rate_of_its_own_variable() -> None:
    paths = []
    for speed, learning_rate in ((1.0, 0.02), (4.0, 0.005)):
        geco = GECO(kappa=0.5, constraint_ema_decay=0.5, lambda_speed=speed).double()
        optimiser = torch.optim.Adam(geco.parameters(), lr=learning_rate)
        assert geco.lambda_.item() == pytest.approx(1.0, abs=1e-6)
        path = []
        for rec in [2.0] * 30 + [0.1] * 60:
            geco_step(geco, rec, optimiser)
            path.append(geco.lambda_.item())
        paths.append(path)
    assert paths[1] == pytest.approx(paths[0], rel=1e-4)
    assert max(paths[0]) > 2


def test_geco_lambda_stops_at_its_bound_and_leaves_it_again() -> None:
    make = partial(GECO, kappa=0.5, constraint_ema_decay=0.5)
    free, bounded = (make(lambda_max=bound).double() for bound in (math.inf, 1.5))
    paths: list[list[float]] = [[], []]
    for geco, path in zip((free, bounded), paths, strict=True):
        optimiser = torch.optim.Adam(geco.parameters(), lr=0.02)
        for rec in [2.0] * 200 + [0.1] * 100:
            geco_step(geco, rec, optimiser)
            path.append(geco.lambda_.item())
    below = next(number for number, value in enumerate(paths[0]) if value > 1.5)
    assert paths[1][:below] == paths[0][:below]
    assert max(paths[0]) > 2
    assert max(paths[1]) == 1.5
    assert paths[1][-1] < 1  # though κ was out of reach for so many steps that the other one is far above
    assert paths[0][-1] > 2


def test_geco_gradient_is_the_plain_one_times_lambda() -> None:
    logits, labels, valid = random_batch()
    geco = GECO(kappa=0.05, top_k=None, constraint_ema_decay=0.9).double()
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
    assert torch.equal(copy.lambda_, geco.lambda_)
    assert torch.equal(copy.moving_average(torch.tensor(1.0)), geco.moving_average(torch.tensor(1.0)))
    assert {"w", "ema", "num_updates"} <= geco.state_dict().keys()
