"""The review score: known distances and margins, and features that do not depend on the batch."""

import dataclasses

import pytest
import torch
from untrained import make_trained

from hpunet.errors import DataError
from hpunet.sampling.review import fit_review, pooled_features


def gaussian(n: int, *, shift: float = 0, seed: int = 0) -> torch.Tensor:
    """Eight features, two of which are copies."""
    drawn = torch.randn(n, 6, generator=torch.Generator().manual_seed(seed)) + shift * torch.eye(6)[0]
    return torch.cat([drawn, drawn[:, :2]], dim=1)


def test_training_images_have_median_zero_or_more_and_others_more_the_further_they_are() -> None:
    statistic = fit_review(features=gaussian(2000), altered=gaussian(500, shift=4, seed=1), num_directions=6)
    scores = [statistic.score(gaussian(400, shift=shift, seed=2)).median().item() for shift in (0, 2, 4, 8)]
    assert -0.5 < scores[0] < 1
    assert scores == sorted(scores)
    assert (statistic.score(gaussian(400, shift=6, seed=3)) > 1).double().mean() > 0.99
    # What no altered image was like: far away in a direction that the margin ignores.
    far = gaussian(400, seed=4)
    far[:, 5] += 12
    assert (statistic.score(far) > 1).double().mean() > 0.99


def test_distance_is_that_of_mahalanobis() -> None:
    own = gaussian(3000)
    statistic = fit_review(features=own, altered=gaussian(100, shift=3, seed=1), num_directions=6)
    x = gaussian(50, seed=7)
    distance = statistic._parts(x)[:, 0].expm1()
    coordinates = statistic._coordinates(own)
    offset = statistic._coordinates(x) - coordinates.mean(dim=0)
    covariance = torch.cov(coordinates.T)
    ridge = 1e-3 * torch.linalg.eigvalsh(covariance).mean() * torch.eye(len(covariance)).double()
    expected = torch.einsum("bi,ij,bj->b", offset, torch.linalg.inv(covariance + ridge), offset)
    torch.testing.assert_close(distance, expected, rtol=2e-3, atol=1e-3)


def test_features_depend_on_the_image_alone_and_sizes_are_padded() -> None:
    model = make_trained().model
    images = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    together = pooled_features(model, image=images)
    torch.testing.assert_close(together[1:2], pooled_features(model, image=images[1:2]))
    assert pooled_features(model, image=torch.rand(1, 1, 13, 18)).shape == together[:1].shape


def test_too_few_images_and_features_of_another_model_are_refused() -> None:
    with pytest.raises(DataError, match="20"):
        fit_review(features=gaussian(19), altered=gaussian(19))
    statistic = fit_review(features=gaussian(40), altered=gaussian(40, shift=2))
    with pytest.raises(DataError, match="7 features"):
        statistic.score(gaussian(3)[:, :7])
    assert all(getattr(statistic, field.name).isfinite().all() for field in dataclasses.fields(statistic))
