from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hpunet.objectives.energy import EnergyDistance, PairAgreement


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
@pytest.mark.parametrize("weighting", ["pixels", "instances"])
def test_pair_agreement_equals_the_definition(weighting: str, background: float) -> None:
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
            weight = {n: 1.0 if weighting == "pixels" else 1 / areas[numbers[n]] for n in pixels}
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
        num_fixed_classes=2, num_random_ids=3, num_instances=3, weighting=weighting, background_weight=background
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
    found = PairAgreement(num_fixed_classes=1, num_random_ids=2, num_instances=4, weighting="instances")(
        sample_logits=logits,
        gradings=torch.zeros(1, 1, 4, 4, dtype=torch.long),
        graders=torch.ones(1, 1, dtype=torch.bool),
        valid=torch.ones(1, 4, 4, dtype=torch.bool),
    )
    found.backward()
    assert found.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()
