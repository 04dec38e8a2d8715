"""One step: by hand, in pieces, with averages and clipping; and what a step that went wrong leaves behind."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_run import WITHOUT_GECO, open_tiny, tiny_batch, tiny_settings, tiny_step, write_tiny_pack
from torch import Tensor

from hpunet.data.batch import Batch
from hpunet.data.packs import Pack
from hpunet.data.synthetic.source import INFO
from hpunet.data.warps import NO_AUGMENTATION
from hpunet.objectives.base import Terms
from hpunet.objectives.cross_entropy import gumbel_from_uniform
from hpunet.objectives.elbo import ELBO
from hpunet.objectives.loss import Loss
from hpunet.training.build import build_energy
from hpunet.training.examples import ExampleBuilder
from hpunet.training.step import TrainingStep, share_in_average
from hpunet.utils.keyed_random import Stream, keyed_normal, keyed_uniform

POSITIONS = torch.arange(4)
NOTHING: dict[str, Any] = {"augmentation": NO_AUGMENTATION, "extrapolate": False}


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return open_tiny(write_tiny_pack(tmp_path_factory.mktemp("pack") / "pack"))


def take(step: TrainingStep, pack: Pack, number: int) -> tuple[Terms, Tensor]:
    indices = [(4 * number + i) % len(pack) for i in range(4)]
    return step(tiny_batch(pack, indices), step=number, positions=POSITIONS)


def state_of(step: TrainingStep) -> dict[str, Tensor]:
    """Everything that a step may change, but the counters."""
    state = {f"model.{name}": value for name, value in step.model.state_dict().items()}
    state |= {f"loss.{name}": value for name, value in step.loss.state_dict().items()}
    for i, parameter in enumerate(step.parameters):
        state |= {f"adam.{i}.{name}": value for name, value in step.optimiser.state[parameter].items()}
    state |= {f"averaged.{i}": value for i, value in enumerate(step.averaged)}
    return {name: value.clone() for name, value in state.items()}


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(one[n].numpy().tobytes() == other[n].numpy().tobytes() for n in one)


def test_step_is_what_one_computes_by_hand(pack: Pack) -> None:
    """GECO with top-k, one step from the start: terms, gradient norm and Adam's first update from their formulas."""
    settings = tiny_settings("objective.top_k=0.25", "optimiser.weight_decay=0.01")
    step = tiny_step(settings, pack, double=True)
    twin = tiny_step(settings, pack, double=True)
    key: dict[str, Any] = {"seed": settings.seed, "step": 0, "index": POSITIONS}
    example = twin.example_builder(tiny_batch(pack, [0, 1, 2, 3]), step=0, positions=POSITIONS)
    labels = example.labels.long()
    shape = twin.model.latent_shapes(16, 16)[0]
    noise = keyed_normal(**key, stream=Stream.POSTERIOR, count=math.prod(shape)).view(4, *shape)
    output = twin.model(image=example.image, labels=labels, noise=[noise])
    ce = torch.nn.functional.cross_entropy(output.logits, labels, reduction="none")
    gumbel = gumbel_from_uniform(keyed_uniform(**key, stream=Stream.GUMBEL, count=256)).view(4, 16, 16)
    scores = torch.where(example.valid, ce.log() + gumbel, -torch.inf)
    kept = torch.zeros(4 * 256, dtype=torch.bool)
    kept[scores.flatten().topk(256).indices] = True
    rec = ce.flatten()[kept & example.valid.flatten()].sum() / 4
    constraint = rec - settings.objective.kappa * int((kept & example.valid.flatten()).sum()) / 4
    w = twin.loss.objective.w.detach()
    lambda_ = (1 + w.exp()).log() ** 2
    loss = lambda_ * constraint + output.kl.sum()
    loss.backward()
    gradients = {name: p.grad for name, p in twin.model.named_parameters()}
    scale = settings.objective.lambda_gradient_scale
    w_gradient = -scale * constraint.detach() * 2 * lambda_.sqrt() / (1 + (-w).exp())

    before = {name: p.detach().clone() for name, p in step.model.named_parameters()}
    terms, norm = step(tiny_batch(pack, [0, 1, 2, 3]), step=0, positions=POSITIONS)
    assert terms.rec.item() == pytest.approx(rec.item(), rel=1e-12)
    assert terms.kl.tolist() == pytest.approx(output.kl.tolist(), rel=1e-12)
    assert terms.loss.item() == pytest.approx(loss.item(), rel=1e-12)
    assert terms.rec_per_pixel.item() == pytest.approx(rec.item() * 4 / int(terms.num_kept), rel=1e-12)
    assert lambda_.item() == pytest.approx(1, abs=1e-6)  # at the start
    squares = sum(float(g.square().sum()) for g in [*gradients.values(), w_gradient])
    assert norm.item() == pytest.approx(math.sqrt(squares), rel=1e-12)
    assert step.loss.objective.w.item() == pytest.approx(w.item() + 1e-3, abs=1e-9)  # uphill, by one learning rate
    for name, parameter in step.model.named_parameters():
        gradient = gradients[name] + 2 * 0.01 * before[name]
        expected = before[name] - 1e-3 * gradient / (gradient.abs() + 1e-8)
        torch.testing.assert_close(parameter.detach(), expected, rtol=0, atol=1e-9)


class VolumeNetwork(torch.nn.Module):
    """Of volumes, with latents of two scales; remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.given: dict[str, Any] = {}

    def latent_shapes(self, *size: int) -> list[tuple[int, ...]]:
        return [(2, *(side // 4 for side in size)), (1, *(side // 2 for side in size))]

    def forward(self, **given: Any) -> Tensor:
        self.given = given
        return self.weight * given["image"].mean()


class VolumeLoss(Loss):
    num_prior_samples = 3

    def forward(self, output: Tensor, **given: Any) -> Terms:
        self.given = given
        count = torch.tensor(1)
        return Terms(loss=output, rec=output.detach(), kl=torch.zeros(2), num_kept=count, batch_size=4)


def test_step_draws_noise_for_volumes() -> None:
    network, loss, size = VolumeNetwork(), VolumeLoss(ELBO(beta=1.0)), (4, 8, 12)
    step = TrainingStep(
        model=network,
        loss=loss,
        optimiser=torch.optim.Adam(network.parameters(), fused=True),
        example_builder=ExampleBuilder(info=INFO["lesions"], crop=size, seed=7, **NOTHING),
    )
    batch = Batch(
        image=torch.rand(4, 1, *size),
        labels=torch.zeros(4, 2, *size, dtype=torch.int32),
        valid=torch.ones(4, *size, dtype=torch.bool),
        graders=torch.ones(4, 2, dtype=torch.bool),
    )
    step(batch, step=5, positions=POSITIONS)
    key: dict[str, Any] = {"seed": 7, "step": 5, "index": POSITIONS}
    sizes = [2 * 1 * 2 * 3, 1 * 2 * 4 * 6]
    posterior = keyed_normal(**key, stream=Stream.POSTERIOR, count=sum(sizes)).split(sizes, dim=1)
    prior = keyed_normal(**key, stream=Stream.PRIOR, count=3 * sum(sizes)).view(4, 3, -1).split(sizes, dim=2)
    for i, shape in enumerate([(2, 1, 2, 3), (1, 2, 4, 6)]):
        assert torch.equal(network.given["noise"][i], posterior[i].view(4, *shape))
        assert torch.equal(network.given["prior_noise"][i], prior[i].reshape(4, 3, *shape))
    uniform = keyed_uniform(**key, stream=Stream.GUMBEL, count=4 * 8 * 12).view(4, *size)
    assert torch.equal(loss.given["uniform"], uniform)
    assert loss.given["gradings"].shape == (4, 2, *size)


def test_create_moments_changes_nothing_else(pack: Pack) -> None:
    step = tiny_step(tiny_settings("optimiser.ema_decay=0.9"), pack, double=False)
    before = state_of(step)
    assert all(not value.any() for name, value in before.items() if name.startswith("adam"))
    step.create_moments()
    assert same_bits(before, state_of(step))


def poison(step: TrainingStep, pack: Pack, number: int, *, where: str) -> None:
    """Take a step whose loss or whose gradient of one weight is NaN."""
    indices = [(4 * number + i) % len(pack) for i in range(4)]
    batch = tiny_batch(pack, indices)
    if where == "loss":
        image = batch.image.clone()
        image[1, 0, 3:9, 3:9] = torch.nan
        step(replace(batch, image=image), step=number, positions=POSITIONS)
        return
    victim = step.parameters[3 if where == "gradient" else -1]
    bad = torch.inf if where == "gradient" else torch.nan
    handle = victim.register_hook(lambda gradient: torch.full_like(gradient, bad))
    terms, _ = step(batch, step=number, positions=POSITIONS)
    handle.remove()
    assert terms.loss.isfinite()  # only the gradient was not


@pytest.mark.parametrize(
    "changes", [(), WITHOUT_GECO, ("optimiser.accumulation_steps=2",), ("optimiser.grad_clip=1.0",)]
)
@pytest.mark.parametrize("where", ["loss", "gradient", "last parameter"])
def test_step_that_is_not_finite_leaves_every_bit_as_it_was(where: str, changes: tuple[str, ...], pack: Pack) -> None:
    step = tiny_step(tiny_settings("optimiser.ema_decay=0.9", *changes), pack, double=False)
    take(step, pack, 0)
    before = state_of(step)
    poison(step, pack, 1, where=where)
    poison(step, pack, 2, where=where)
    assert same_bits(before, state_of(step))
    assert (int(step.skipped), int(step.skipped_in_a_row)) == (2, 2)
    take(step, pack, 3)
    assert (int(step.skipped), int(step.skipped_in_a_row)) == (2, 0)
    after = state_of(step)
    assert all(value.isfinite().all() for value in after.values())
    assert not same_bits(before, after)
    untouched = tiny_step(tiny_settings("optimiser.ema_decay=0.9", *changes), pack, double=False)
    take(untouched, pack, 0)
    take(untouched, pack, 3)
    assert same_bits(after, state_of(untouched))  # as if the two steps had never been


@pytest.mark.parametrize("energy", [0.0, 5.0])
def test_pieces_equal_the_whole_batch(pack: Pack, energy: float) -> None:
    states, terms = [], []
    for pieces in (1, 4):
        changes = (f"objective.energy={energy}", f"optimiser.accumulation_steps={pieces}")
        step = tiny_step(tiny_settings(*WITHOUT_GECO, *changes), pack, double=True)
        for number in range(3):
            newest, norm = take(step, pack, number)
        states.append(state_of(step))
        terms.append((newest, norm))
    for name, whole in states[0].items():
        torch.testing.assert_close(states[1][name], whole, rtol=1e-9, atol=1e-12)
    (whole, whole_norm), (pieces_, norm) = terms
    assert pieces_.loss.item() == pytest.approx(whole.loss.item(), rel=1e-12)
    assert pieces_.rec_per_pixel.item() == pytest.approx(whole.rec_per_pixel.item(), rel=1e-12)
    assert pieces_.kl.tolist() == pytest.approx(whole.kl.tolist(), rel=1e-12)
    assert int(pieces_.num_kept) == int(whole.num_kept)
    assert norm.item() == pytest.approx(whole_norm.item(), rel=1e-12)


def test_energy_is_added_to_the_loss_with_all_graders_and_the_priors_own_draws(pack: Pack) -> None:
    plain, with_energy = (
        tiny_step(tiny_settings(*changes), pack, double=True)
        for changes in ((), ("objective.energy=7.0", "objective.energy_samples=3"))
    )
    batch = tiny_batch(pack, [0, 1, 2, 3])
    example = with_energy.example_builder(batch, step=0, positions=POSITIONS, all_gradings=True)
    assert torch.equal(example.labels, plain.example_builder(batch, step=0, positions=POSITIONS).labels)
    assert example.gradings is not None
    assert example.gradings.shape[1] == 4
    model, shapes = with_energy.model, with_energy.model.latent_shapes(16, 16)
    count = sum(math.prod(shape) for shape in shapes)
    drawn = keyed_normal(
        seed=with_energy.example_builder.seed, step=0, index=POSITIONS, stream=Stream.PRIOR, count=3 * count
    )
    noise = drawn.view(4, 3, count).split([math.prod(shape) for shape in shapes], dim=2)
    features = model.encode(image=example.image)
    samples = [
        model.decode(features, noise=[n[:, i].reshape(4, *s) for n, s in zip(noise, shapes, strict=True)])[0]
        for i in range(3)
    ]
    energy = with_energy.loss.energy(
        sample_logits=torch.stack(samples, dim=1),
        gradings=example.gradings,
        graders=example.graders,
        valid=example.valid,
    )
    without, _ = take(plain, pack, 0)
    terms, _ = take(with_energy, pack, 0)
    assert terms.energy is not None
    assert terms.energy.item() == pytest.approx(energy.item(), rel=1e-12)
    assert terms.loss.item() == pytest.approx(without.loss.item() + 7 * energy.item(), rel=1e-12)
    assert terms.rec.item() == pytest.approx(without.rec.item(), rel=1e-12)


def test_energy_is_of_all_classes_but_the_background_where_nothing_is_said(pack: Pack) -> None:
    settings = tiny_settings("objective.energy=1.0").objective
    unknown = replace(pack.info, stochastic_classes=(), fixed_classes=("a", "b", "c"))
    energies = [build_energy(settings, info=info) for info in (pack.info, unknown)]
    assert [energy.classes for energy in energies] == [[1], [1, 2]]


@pytest.mark.parametrize("on_device", [False, True])
def test_averaged_weights_are_those_of_a_slow_twin(pack: Pack, on_device: bool) -> None:
    """The decay is 0 for ten steps, then 1 - 10 / (step + 1), at most `ema_decay`; also with `step` as a tensor."""
    step = tiny_step(tiny_settings("optimiser.ema_decay=0.8"), pack, double=True)
    expected = [p.detach().clone() for p in step.model.parameters()]
    for number, decay in {0: 0, 9: 0, 15: 1 - 10 / 16, 29: 1 - 10 / 30, 60: 0.8, 5000: 0.8}.items():
        batch = tiny_batch(pack, [(4 * number + i) % len(pack) for i in range(4)])
        step(batch, step=torch.tensor(number) if on_device else number, positions=POSITIONS)
        live = [p.detach() for p in step.model.parameters()]
        expected = [decay * e + (1 - decay) * p for e, p in zip(expected, live, strict=True)]
        for averaged, value in zip(step.averaged, expected, strict=True):
            torch.testing.assert_close(averaged, value, rtol=0, atol=1e-14)


def weights_in_average(shares: Sequence[float]) -> np.ndarray:
    """The weight of the initial value, then of each step, in the average after all of them."""
    weights = np.zeros(len(shares) + 1)
    weights[0] = 1
    for number, share in enumerate(shares, start=1):
        weights *= 1 - share
        weights[number] = share
    return weights


@pytest.mark.parametrize("iterations", [30, 300, 1000, 12_000])
def test_average_forgets_its_start_and_spares_long_runs(iterations: int) -> None:
    new = weights_in_average([share_in_average(t, 0.999) for t in range(iterations)])  # type: ignore[misc]
    old = weights_in_average([1 - 0.999] * iterations)
    assert new.sum() == pytest.approx(1)
    assert new[0] == 0  # with a decay of 0.999 throughout, 37 % after 1,000 iterations
    assert new @ np.arange(iterations, -1, -1) <= iterations / 10  # mean age in steps
    if iterations >= 12_000:
        assert np.abs(new - old).sum() / 2 < 0.005
        assert share_in_average(iterations - 1, 0.999) == 1 - 0.999


def test_clip_norm_scales_the_gradient_and_reports_the_norm_before(pack: Pack) -> None:
    free, clipped, loose = (
        tiny_step(tiny_settings(*changes), pack, double=True)
        for changes in ((), ("optimiser.grad_clip=0.5",), ("optimiser.grad_clip=1e6",))
    )
    norms = [take(step, pack, 0)[1].item() for step in (free, clipped, loose)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-12)
    assert norms[0] > 0.5
    gradients = [[p.grad for p in step.parameters] for step in (free, clipped, loose)]
    for whole, scaled, same in zip(*gradients, strict=True):
        torch.testing.assert_close(scaled, whole * 0.5 / norms[0], rtol=1e-5, atol=0)
        assert torch.equal(same, whole)


@pytest.mark.parametrize("clip", [True, False])
def test_gradients_too_large_for_a_norm_in_float32_are_clipped_or_else_skipped(pack: Pack, clip: bool) -> None:
    step = tiny_step(tiny_settings(*["optimiser.grad_clip=0.5"][:clip]), pack, double=False)
    weight = next(step.model.parameters())
    before = weight.detach().clone()
    weight.register_hook(lambda gradient: gradient * 1e25)
    norm = take(step, pack, 0)[1].item()
    assert norm > 1e20
    assert math.isfinite(norm) == clip
    assert torch.equal(weight, before) != clip
    assert int(step.skipped) == (not clip)
    assert weight.isfinite().all()
