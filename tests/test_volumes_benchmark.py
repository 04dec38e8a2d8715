"""What benchmarks/volumes.py scores: the expected values of samplers that know the truth, and slices of models."""

import sys

import numpy as np
import pytest
import torch
from places import ROOT
from untrained import make_predictor

import hpunet
from hpunet.data.synthetic.independent_slices import IndependentSlices
from hpunet.data.synthetic.source import open_synthetic

sys.path.insert(0, str(ROOT / "benchmarks"))
import volumes

SIZE = (6, 32, 32)


@pytest.mark.parametrize("sampler", [lambda truth: truth, IndependentSlices])
def test_volume_scores_are_the_expected_ones_on_average(sampler) -> None:
    source, rng = open_synthetic("nodules3d", split="val", num_images=1, size=SIZE), np.random.default_rng(0)
    truth, labels = source.distribution(0), source[0].labels
    drawn = sampler(truth)
    rows = [volumes.volume_scores((drawn.sample(rng, 6), labels), source, 0) for _ in range(60)]
    scores = np.array(rows)
    errors = 3 * scores.std(axis=0) / np.sqrt(len(rows))
    expected = drawn.expected_ged(num_samples=6, num_graders=None)
    assert scores[:, 0].mean() == pytest.approx(expected, abs=errors[0])
    assert (scores[:, 2] == 1).all()  # its reconstructions are the gradings
    voxels = scores[:, 3].mean() / (2.0 * 0.8 * 0.8 / 1000)
    assert voxels == pytest.approx(drawn.expected_crps, abs=errors[3] / 0.00128)
    by_slice = np.mean([k.expected_ged(num_samples=6, num_graders=None) for k in IndependentSlices(truth).slices])
    assert scores[:, 4].mean() == pytest.approx(by_slice, abs=errors[4])


def test_slices_of_a_model_are_stacked_in_order() -> None:
    source = open_synthetic("nodules3d", split="val", num_images=2, size=SIZE, volumes=False)
    run = make_predictor(source.info)
    samples, rebuilt = volumes.from_slices(1, source=source, run=run, num_samples=3, same_noise=False)
    again, _ = volumes.from_slices(1, source=source, run=run, num_samples=3, same_noise=True)
    assert samples.shape == (3, *SIZE)
    assert rebuilt is not None
    assert rebuilt.shape == (4, *SIZE)
    for z in range(SIZE[0]):
        image = torch.from_numpy(source[6 + z].image)[None]
        for found, seed in ((samples, len(source) + 6 + z), (again, 1)):
            generator = [torch.Generator().manual_seed(seed)]
            labels = hpunet.sample(run.model, image=image, num_samples=3, generator=generator).labels[0]
            np.testing.assert_array_equal(found[:, z], labels.numpy())
