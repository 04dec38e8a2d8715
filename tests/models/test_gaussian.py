import pytest
import torch
from torch.distributions import Normal
from torch.distributions import kl_divergence as reference_kl

from hpunet.models.gaussian import LOG_SIGMA_RANGE, Gaussian, GaussianHead, kl_divergence


def random_gaussian(seed: int, shape: tuple[int, ...] = (3, 2, 4, 5)) -> Gaussian:
    generator = torch.Generator().manual_seed(seed)
    mean, log_sigma = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return Gaussian(mean=mean, log_sigma=log_sigma)


def test_kl_equals_torch_distributions() -> None:
    q, p = random_gaussian(0), random_gaussian(1)
    reference = reference_kl(Normal(q.mean, q.sigma), Normal(p.mean, p.sigma)).flatten(1).sum(dim=1)
    torch.testing.assert_close(kl_divergence(posterior=q, prior=p), reference, rtol=1e-12, atol=0)
    single = [Gaussian(mean=g.mean.float(), log_sigma=g.log_sigma.float()) for g in (q, p)]
    ours = kl_divergence(posterior=single[0], prior=single[1]).double()
    torch.testing.assert_close(ours, reference, rtol=1e-6, atol=0)


def test_kl_equals_a_monte_carlo_estimate_over_our_own_draws() -> None:
    q, p = random_gaussian(2, (1, 1, 2, 2)), random_gaussian(3, (1, 1, 2, 2))
    n = 200_000
    noise = torch.randn(n, 1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    wide = Gaussian(mean=q.mean.expand(n, -1, -1, -1), log_sigma=q.log_sigma.expand(n, -1, -1, -1))
    z = wide.latent(noise=noise, given=None)
    log_ratio = (Normal(q.mean, q.sigma).log_prob(z) - Normal(p.mean, p.sigma).log_prob(z)).flatten(1).sum(dim=1)
    error = log_ratio.std() / n**0.5
    assert abs(log_ratio.mean() - kl_divergence(posterior=q, prior=p)) < 4 * error


def test_kl_of_equal_gaussians_is_zero_and_grows_with_distance() -> None:
    q = random_gaussian(5)
    assert torch.equal(kl_divergence(posterior=q, prior=q), torch.zeros(3, dtype=torch.float64))
    moved = Gaussian(mean=q.mean + 1, log_sigma=q.log_sigma)
    assert (kl_divergence(posterior=moved, prior=q) > 0).all()


def test_latent_is_given_or_drawn_or_the_mean() -> None:
    q = random_gaussian(6)
    q.mean.requires_grad_()
    q.log_sigma.requires_grad_()
    noise = torch.full_like(q.mean, 2.0)
    z = q.latent(noise=noise, given=None)
    torch.testing.assert_close(z, q.mean + 2 * q.sigma)
    mean_grad, sigma_grad = torch.autograd.grad(z.sum(), [q.mean, q.log_sigma])
    assert torch.equal(mean_grad, torch.ones_like(mean_grad))
    torch.testing.assert_close(sigma_grad, 2 * q.sigma)
    assert q.latent(noise=None, given=None) is q.mean
    assert torch.equal(q.latent(noise=noise, given=noise), noise)


def test_head_computes_in_float32_under_autocast_and_clamps_log_sigma() -> None:
    head = GaussianHead(4, 2)
    features = torch.randn(1, 4, 3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = head(features.bfloat16())
    full = head(features.bfloat16().float())
    assert torch.equal(half.mean, full.mean)
    assert head.conv is not None
    for extreme, bound in zip((-1e3, 1e3), LOG_SIGMA_RANGE, strict=True):
        with torch.no_grad():
            head.conv.bias[2:] = extreme
        assert torch.equal(head(features).log_sigma, torch.full((1, 2, 3, 3), bound))


def test_log_sigma_out_of_its_range_finds_back() -> None:
    """A clamp's gradient is 0 out there: the KL of such Gaussians stayed what it was."""
    heads = [GaussianHead(4, 1) for _ in range(2)]
    features = torch.randn(3, 4, 2, 2)
    optimiser = torch.optim.Adam([p for head in heads for p in head.parameters()], lr=0.1)
    for head, extreme in zip(heads, (-12.0, 12.0), strict=True):
        assert head.conv is not None
        with torch.no_grad():
            head.conv.bias[1] = extreme
    for step in range(300):
        posterior, prior = (head(features) for head in heads)
        kl = kl_divergence(posterior=posterior, prior=prior).mean()
        if step == 0:
            assert kl.item() > 75
            (out,) = torch.autograd.grad(-prior.log_sigma.sum(), [heads[1].conv.bias], retain_graph=True)
            assert not out.any()  # what leads further out is still held back
        optimiser.zero_grad()
        kl.backward()
        optimiser.step()
    assert kl.item() < 1


def test_head_without_latent_gives_empty_gaussians() -> None:
    head = GaussianHead(4, 0)
    gaussian = head(torch.randn(2, 4, 3, 3))
    assert gaussian.mean.shape == (2, 0, 3, 3)
    assert torch.equal(kl_divergence(posterior=gaussian, prior=gaussian), torch.zeros(2))
    assert not list(head.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_head_keeps_the_precision_of_the_network(dtype: torch.dtype) -> None:
    assert GaussianHead(4, 1).to(dtype)(torch.randn(1, 4, 2, 2, dtype=dtype)).mean.dtype == dtype
