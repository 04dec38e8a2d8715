"""The loss's kernels against plain torch: reconstruction term, GECO's constraint and KL, with their gradients.

Run by `test_kernels.py`. By hand: TRITON_INTERPRET=1 pytest tests/kernels/loss_against_torch.py, or on a GPU without
that variable.
"""

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import pytest
import torch
from loss_inputs import output_of
from torch import Tensor

from hpunet.kernels.dispatch import use_fused_loss
from hpunet.kernels.triton_geco import penalty
from hpunet.kernels.triton_kl import kl_per_scale
from hpunet.kernels.triton_loss import BLOCK, reconstruction
from hpunet.models.gaussian import LOG_SIGMA_RANGE, elementwise_kl
from hpunet.models.gradients import straight_through
from hpunet.objectives.cross_entropy import Reconstruction
from hpunet.objectives.elbo import ELBO
from hpunet.objectives.geco import GECO

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SEVERAL_BLOCKS = (3, 40, 40)
SIZES = [(2, *SEVERAL_BLOCKS), (3, 1, 5, 7), (16, 2, 9, 6)]  # classes, images, height, width
KEEPING: dict[str, tuple[float | None, bool]] = {
    "all": (None, True), "strict": (0.1, False), "stochastic": (0.1, True), "none": (0.0002, True),
    "as many as there are": (1.0, True),
}  # fmt: skip


def inputs(k: int, b: int, h: int, w: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(k)
    tensors = {
        "logits": 3 * torch.randn(b, k, h, w, generator=generator),
        "labels": torch.randint(k, (b, h, w), generator=generator),
        "valid": torch.rand(b, h, w, generator=generator) > 0.3,
        "uniform": torch.randint(2**24, (b, h, w), generator=generator) * 2.0**-24,
    }
    tensors["valid"][0] = False  # an image without valid pixels
    return {name: t.to(DEVICE) for name, t in tensors.items()}


Found = tuple[Tensor, Tensor, Tensor]


def by_both(of: Reconstruction, tensors: dict[str, Tensor]) -> tuple[Found, Found]:
    """Term, number of pixels and gradient of the logits: by the kernels, and by torch."""
    found = []
    for kernel in (reconstruction, None):
        of.kernel = kernel
        logits = tensors["logits"].detach().clone().requires_grad_()
        term, num_kept = of(**{**tensors, "logits": logits})
        (0.37 * term).backward()
        assert logits.grad is not None
        found.append((term.detach(), num_kept, logits.grad))
    return found[0], found[1]


def check(found: Found, expected: Found) -> None:
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=0)
    assert found[1].dtype == expected[1].dtype
    assert int(found[1]) == int(expected[1])
    assert torch.equal((found[2] != 0).any(dim=1), (expected[2] != 0).any(dim=1))  # the same pixels
    torch.testing.assert_close(found[2], expected[2], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("keeping", KEEPING)
@pytest.mark.parametrize("size", SIZES)
def test_reconstruction_equals_torch(size: tuple[int, int, int, int], keeping: str) -> None:
    top_k, stochastic = KEEPING[keeping]
    tensors = inputs(*size)
    if size[1] == 1:
        tensors["valid"][:] = True
    found, expected = by_both(Reconstruction(top_k=top_k, stochastic=stochastic), tensors)
    check(found, expected)
    if size[1] > 1:  # all gradients of the first image are exactly 0
        assert not found[2][0].any()


def test_without_valid_pixels_nothing_is_kept() -> None:
    tensors = inputs(2, 1, 4, 4)
    for of in (Reconstruction(top_k=0.5), Reconstruction(top_k=None)):
        term, num_kept, gradient = by_both(of, tensors)[0]
        assert float(term) == int(num_kept) == 0
        assert not gradient.any()


def test_a_missing_mask_means_that_all_pixels_are_valid() -> None:
    tensors = {**inputs(3, 2, 4, 8), "valid": None}
    check(*by_both(Reconstruction(top_k=0.25), tensors))  # type: ignore[arg-type]


def test_of_equal_scores_the_first_pixels_are_kept() -> None:
    """Half of the pixels have the same cross-entropy, so the k-th largest key lies in several blocks."""
    b, h, w = SEVERAL_BLOCKS
    logits = torch.zeros(b, 2, h, w, device=DEVICE, requires_grad=True)
    labels = torch.zeros(b, h, w, dtype=torch.long, device=DEVICE)
    harder = torch.arange(b * h * w, device=DEVICE).view(b, h, w) % 2 == 1
    valid = torch.arange(b * h * w, device=DEVICE).view(b, h, w) >= 4
    with torch.no_grad():
        logits[:, 1] = torch.where(harder, 1.0, 0.5)
    num_harder = int((harder & valid).sum())
    assert b * h * w > 2 * BLOCK
    for beyond in (0, 1, 7, BLOCK // 2, BLOCK + 1):
        logits.grad = None
        k = num_harder + beyond
        term, num_kept = reconstruction(logits, labels=labels, valid=valid, uniform=None, k=k)
        term.backward()
        easier = (valid & ~harder).flatten().nonzero().flatten()[:beyond]
        expected = (harder & valid).flatten().index_fill(0, easier, True)
        assert torch.equal((logits.grad != 0).any(dim=1).flatten(), expected)
        assert int(num_kept) == k


@pytest.mark.parametrize("wrong", ["logits", "label"])
def test_what_cannot_be_scored_makes_the_term_nan(wrong: str) -> None:
    """The training step skips it; at invalid pixels it does no harm."""
    tensors = inputs(3, 2, 4, 8)
    tensors["valid"][:] = True
    if wrong == "logits":
        tensors["logits"][1, 2, 0, 3] = torch.nan
    else:
        tensors["labels"][1, 0, 3] = 3
    how: dict[str, Any] = {"labels": tensors["labels"], "uniform": tensors["uniform"], "k": 1}
    assert reconstruction(tensors["logits"], valid=tensors["valid"], **how)[0].isnan()
    tensors["valid"][1, 0, 3] = False
    logits = tensors["logits"].requires_grad_()
    term, _ = reconstruction(logits, valid=tensors["valid"], **how)
    term.backward()
    assert term.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


MAKE = {
    "geco": lambda: GECO(kappa=0.05, top_k=0.1),
    "geco, KL warms up": lambda: GECO(kappa=0.05, top_k=0.1, kl_warm_up=[4, 0]),
    "elbo": lambda: ELBO(beta=0.5, top_k=0.1),
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_objectives_equal_those_of_torch(make: Callable[[], GECO | ELBO]) -> None:
    """Two steps, so that GECO's moving average has a past."""
    tensors = inputs(3, 2, 8, 8)
    runs = []
    for kernel in (reconstruction, None):
        objective = make().to(DEVICE)
        if kernel:
            use_fused_loss(objective)
        found = {}
        for step in range(2):
            logits = (tensors["logits"] / (step + 1)).requires_grad_()
            others = {name: tensors[name] for name in ("labels", "valid", "uniform")}
            kl = torch.tensor([1.0, 2.0], device=DEVICE, requires_grad=True)
            terms = objective(output_of(logits, kl), **others)
            terms.loss.backward()
            found |= {f"{step} {name}": value for name, value in vars(terms).items() if isinstance(value, Tensor)}
            found |= {f"{step} logits": logits.grad, f"{step} kl": kl.grad}
        found |= {name: p.grad for name, p in objective.named_parameters()} | dict(objective.named_buffers())
        runs.append(found)
    assert runs[0].keys() == runs[1].keys()
    for name, value in runs[1].items():
        torch.testing.assert_close(runs[0][name], value, rtol=2e-6, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's, of 0 · ∞
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("rec", [3.0, 0.001, torch.inf, torch.nan])
@pytest.mark.parametrize(("speed", "lambda_max"), [(1.0, torch.inf), (3.0, 2.0)])
def test_penalty_equals_torch(rec: float, speed: float, lambda_max: float, training: bool) -> None:
    """Of constraints violated or met, and λ small, large or at its bound; infinite values change no state."""
    for w, num_updates in product((-20.0, -2.0, 0.5, 1.0, 30.0), (0, 5)):
        runs = []
        for kernel in (penalty, None):
            geco = GECO(kappa=0.05, constraint_ema_decay=0.9, lambda_speed=speed, lambda_max=lambda_max).to(DEVICE)
            geco.train(training)
            with torch.no_grad():
                geco.w.fill_(w)
                geco.ema.fill_(2.0)
                geco.num_updates.fill_(num_updates)
            geco.kernel = kernel
            value = torch.tensor(rec, device=DEVICE, requires_grad=True)
            kl, num_kept = torch.ones(2, device=DEVICE), torch.tensor(37, device=DEVICE)
            found = geco.combine(rec=value, kl=kl, num_kept=num_kept, batch_size=3)
            (0.37 * found["loss"]).backward()
            runs.append({**found, "rec": value.grad, "w": geco.w.grad, **dict(geco.named_buffers())})
        assert runs[0].keys() == runs[1].keys()
        for name, expected in runs[1].items():
            what = f"{name}, w = {w}, {num_updates} updates"
            how: dict[str, Any] = {"rtol": 1e-6, "atol": 0, "equal_nan": True}
            torch.testing.assert_close(runs[0][name], expected, **how, msg=lambda m, n=what: f"{n}: {m}")


def test_kl_equals_torch_in_float64() -> None:
    """Of several programs, and scales with one, many and no latents; some log σ are out of range."""
    shapes = [(1, 1, 1), (2, 4, 8), (0, 8, 16), (3, 16, 32)]
    n, b = sum(prod(shape) for shape in shapes), 3
    raw = torch.randn(2, 2, b, n, generator=torch.Generator().manual_seed(0))
    raw[:, 1, 0, :7] = 11.0
    raw[0, 1, 1, :7] = -10.5
    weights = torch.tensor([1.0, -2.0, 5.0, 3.0])
    exact, mine = raw.double().requires_grad_(), raw.to(DEVICE).requires_grad_()
    found = kl_per_scale(mine, shapes)
    (found @ weights.to(DEVICE)).backward()
    prior_log_sigma, log_sigma = straight_through(exact[:, 1], exact[:, 1].detach().clamp(*LOG_SIGMA_RANGE))
    prior_mean, mean = exact[:, 0]
    kl = elementwise_kl(mean=mean, log_sigma=log_sigma, prior_mean=prior_mean, prior_log_sigma=prior_log_sigma)
    expected = torch.stack([part.sum() for part in kl.mean(dim=0).split([prod(shape) for shape in shapes])])
    (expected @ weights.double()).backward()
    torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-5, atol=0)
    assert mine.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(mine.grad.double().cpu(), exact.grad, rtol=2e-5, atol=1e-7)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="only a GPU has graphs")
def test_a_cuda_graph_gives_the_same() -> None:
    tensors = inputs(3, *SEVERAL_BLOCKS)
    logits = tensors.pop("logits").requires_grad_()

    def run() -> tuple[Tensor, ...]:
        logits.grad = None
        term, num_kept = reconstruction(logits, **tensors, k=480)
        term.backward()
        assert logits.grad is not None
        return term.detach(), num_kept, logits.grad

    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # a gradient first computed on the default stream would break the capture
        expected = [t.clone() for t in run()]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            found = run()
        for _ in range(3):
            graph.replay()
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
