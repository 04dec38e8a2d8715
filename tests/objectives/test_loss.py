from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loss_inputs import output_of, random_batch

from hpunet import ELBO, GECO, ConfigError, HPUNet
from hpunet.models.base import TrainingOutput
from hpunet.models.gaussian import Gaussian, kl_divergence
from hpunet.objectives.base import Terms
from hpunet.objectives.cross_entropy import masked_cross_entropy
from hpunet.objectives.energy import EnergyDistance, PairAgreement
from hpunet.objectives.loss import Loss, parameter_groups


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


@pytest.mark.parametrize("make", [partial(GECO, kappa=0.05), partial(ELBO, beta=0.3)], ids=["geco", "elbo"])
def test_prior_gradient_scale_is_a_factor_on_the_gradient_of_the_prior_alone(make: Any) -> None:
    logits, labels, valid = random_batch()
    gradients, losses = [], []
    for scale in (1.0, 3.0):
        torch.manual_seed(0)
        raw = [torch.randn(2, 2, 2, 1, s, s, dtype=torch.float64, requires_grad=True) for s in (1, 2)]
        prior, posterior = ([Gaussian(mean=r[net][0], log_sigma=r[net][1]) for r in raw] for net in (0, 1))
        kl = [kl_divergence(posterior=q, prior=p).mean() for q, p in zip(posterior, prior, strict=True)]
        output = TrainingOutput(logits=logits, latents=[], prior=prior, posterior=posterior, kl=torch.stack(kl))
        terms = make(prior_gradient_scale=scale, top_k=None).double()(output, labels=labels, valid=valid)
        losses.append((terms.loss.item(), terms.kl.tolist()))
        gradients.append(torch.cat([g.flatten(1) for g in torch.autograd.grad(terms.loss, raw)], dim=1))
    assert losses[0] == losses[1]
    torch.testing.assert_close(gradients[1], gradients[0] * torch.tensor([[3.0], [1.0]], dtype=torch.float64))


@pytest.mark.parametrize("weighting", ["pixels", "instances"])
def test_losses_of_a_volume_are_those_of_its_voxels_laid_out_in_a_plane(weighting: str) -> None:
    """No term depends on where a voxel lies."""
    generator = torch.Generator().manual_seed(0)
    b, s, r, k, size = 2, 3, 2, 4, (3, 4, 5)
    drawn = torch.randn(b, s, k, *size, generator=generator, dtype=torch.float64)
    gradings = torch.randint(k, (b, r, *size), generator=generator)
    valid, uniform = (torch.rand(b, *size, generator=generator) for _ in range(2))
    graders = torch.tensor([[True, True], [True, False]])
    pairs = {"num_fixed_classes": 1, "num_random_ids": 3, "num_instances": 2, "background_weight": 0.5}
    losses = [
        Loss(GECO(kappa=0.05, top_k=0.2).double(), energy=EnergyDistance(classes=[1, 2]), energy_weight=2.0),
        Loss(
            ELBO(top_k=0.2, stochastic=False), energy=PairAgreement(**pairs, weighting=weighting), energy_weight=2.0
        ),
    ]

    def terms_of(loss: Loss, *positions: int) -> Terms:
        def laid_out(maps: torch.Tensor) -> torch.Tensor:
            return maps.reshape(*maps.shape[:-3], *positions)

        output = replace(output_of(laid_out(drawn[:, 0])), sample_logits=laid_out(drawn))
        how = {"labels": laid_out(gradings[:, 0]), "valid": laid_out(valid) > 0.2, "uniform": laid_out(uniform)}
        return loss(output, **how, gradings=laid_out(gradings), graders=graders)

    for loss in losses:
        volume, plane = terms_of(loss, *size), terms_of(loss, 12, 5)
        assert volume.num_kept == plane.num_kept == 24
        for name in ("loss", "rec", "energy"):
            torch.testing.assert_close(getattr(volume, name), getattr(plane, name), rtol=1e-12, atol=1e-12)


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
        GECO(kappa=1.0, constraint_ema_decay=1.0)
    with pytest.raises(ConfigError, match="beta"):
        ELBO(beta=-1.0)
