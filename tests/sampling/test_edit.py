"""What edits need of latents, for images and volumes: by loops over pixels, and against the networks themselves."""

import numpy as np
import pytest
import torch
from torch import Tensor

from hpunet import HPUNet, sample
from hpunet.sampling.edit import cells_under, prior_of, turned
from hpunet.sampling.orientations import encode_orientations, orient

SIZES = {2: (8, 8), 3: (4, 8, 8)}


def make(ndim: int) -> tuple[HPUNet, Tensor]:
    torch.manual_seed(0)
    how = {"in_channels": 1, "num_classes": 2, "channels": (4, 4, 4), "latent_dims": (1, 2), "blocks_per_scale": 1}
    model = HPUNet(**how, ndim=ndim)
    model.orientations = 8
    return model, torch.rand(1, 1, *SIZES[ndim])


@pytest.mark.parametrize("ndim", [2, 3])
def test_cells_under_a_region_are_those_that_hold_one_of_its_pixels(ndim: int) -> None:
    model, image = make(ndim)
    drawn = sample(model, image=image, num_samples=8, generator=torch.Generator().manual_seed(0))
    ids, latents = drawn.orientation_ids[0], [scale[0] for scale in drawn.latents]
    assert len(set(ids.tolist())) > 3
    region = torch.zeros(SIZES[ndim], dtype=torch.bool)
    region[(..., 1, slice(2, 5))] = ndim == 2
    if ndim == 3:
        region[1, 1, 2:5] = True
    for found, scale in zip(cells_under(region, ids, latents=latents), latents, strict=True):
        expected = np.zeros((len(ids), 1, *scale.shape[2:]), dtype=bool)
        for number, orientation in enumerate(ids.tolist()):
            for place in orient(region, orientation).nonzero().tolist():
                cell = [p * n // m for p, n, m in zip(place, scale.shape[2:], SIZES[ndim], strict=True)]
                expected[(number, 0, *cell)] = True
        assert np.array_equal(found.numpy(), expected)


@pytest.mark.parametrize("ndim", [2, 3])
def test_prior_of_a_hypothesis_is_what_it_was_drawn_from(ndim: int) -> None:
    """By hand, hypothesis by hypothesis; and latents can be turned upright and back."""
    model, image = make(ndim)
    drawn = sample(model, image=image, num_samples=4, generator=torch.Generator().manual_seed(0))
    ids, latents = drawn.orientation_ids[0], [scale[0] for scale in drawn.latents]
    found = prior_of(encode_orientations(model, image=image), latents, ids)
    for number, orientation in enumerate(ids.tolist()):
        features = model.encode(image=orient(image, orientation))
        _, _, expected = model.decode(features, given=[scale[number : number + 1] for scale in latents])
        for mine, other in zip(found, expected, strict=True):
            torch.testing.assert_close(mine.mean[number : number + 1], other.mean)
            torch.testing.assert_close(mine.log_sigma[number : number + 1], other.log_sigma)
    upright = turned(latents, ids, torch.zeros_like(ids))
    for mine, other in zip(turned(upright, torch.zeros_like(ids), ids), latents, strict=True):
        assert torch.equal(mine, other)
