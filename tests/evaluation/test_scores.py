"""Images as evaluation sees them: what the prior is given of several graders, and what its completions score."""

import numpy as np
import pytest
import torch
from tiny_run import untrained_model

from hpunet.data.augment import apply_warp
from hpunet.data.batch import FIELDS, Batch
from hpunet.data.fingerprint import Contents
from hpunet.data.synthetic.source import INFO, open_synthetic
from hpunet.data.types import SetInfo
from hpunet.data.warps import NO_AUGMENTATION, draw_warp
from hpunet.errors import ConfigError
from hpunet.evaluation.images import centre_crop, prior_inputs
from hpunet.evaluation.rows import HIDDEN_METRICS
from hpunet.evaluation.scorer import Scorer
from hpunet.evaluation.scores import default_erosion, hidden_scores, instances_of


def graded_differently() -> Batch:
    """Two images whose graders each see another class everywhere; one lacks its first grader, one its last."""
    labels = torch.zeros(2, 3, 8, 8, dtype=torch.int32)
    labels[:, 1], labels[1, 0], labels[:, 2] = 1, 2, 3
    return Batch(
        image=torch.rand(2, 1, 8, 8),
        labels=labels,
        valid=torch.ones(2, 8, 8, dtype=torch.bool),
        graders=torch.tensor([[False, True, True], [True, True, False]]),
    )


@pytest.mark.parametrize("size", [(7, 10), (8, 4), (5, 3), (6, 6), (1, 12)])
def test_centre_crop_is_the_warp_without_augmentation(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    batch = Batch(
        image=torch.rand(2, 3, *size),
        labels=torch.randint(5, (2, 2, *size), dtype=torch.int32),
        valid=torch.rand(2, *size) < 0.7,
        graders=torch.tensor([[True, False], [True, True]]),
    )
    for crop in ((6, 6), (3, 8), (9, 5)):
        how = {"seed": 0, "step": 0, "index": torch.arange(2), "source_size": size, "crop_size": crop}
        expected = apply_warp(batch, draw_warp(NO_AUGMENTATION, **how), crop_size=crop)
        for name in FIELDS:
            found = getattr(centre_crop(batch, crop=crop), name)
            assert found.dtype == getattr(expected, name).dtype
            assert found.equal(getattr(expected, name))


def test_prior_is_given_the_visible_labels_of_the_first_grader_there_is() -> None:
    """The map that stands in a missing grader's place is no empty grading."""
    batch = graded_differently()
    image, cond = prior_inputs(batch, places=[5, 6], extrapolate=True, num_classes=4)
    assert cond is not None
    visible, shown = cond[:, 0] > 0, cond[:, 1:]
    for i, given in enumerate((1, 2)):
        assert shown[i, given].equal(visible[i].float())
        assert not shown[i, [k for k in range(4) if k != given]].any()
    assert image[:, 0].equal(torch.where(visible, batch.image[:, 0], 0))


def test_completions_are_held_against_the_grader_whose_labels_were_given() -> None:
    batch = graded_differently()
    visible = torch.ones(2, 8, 8, dtype=torch.bool)
    visible[:, :, 4:] = False
    info = SetInfo("test", 1, 3, ("background", "a", "b", "c"), stochastic_classes=(1, 2, 3))
    given = torch.tensor([1, 2])
    samples = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    samples[:, 0] = given.view(2, 1, 1)  # one goes on as this grader, one with nothing, one half
    samples[:, 1, :, :6] = given.view(2, 1, 1)
    found = hidden_scores(samples=samples, reconstructions=batch.labels, visible=visible, batch=batch, info=info)
    assert set(found) == set(HIDDEN_METRICS)
    expected = {
        "hidden_iou_rec": 1,
        "hidden_iou_samples": (1 + 1 / 2 + 0) / 3,
        "hidden_accuracy_rec": 1,
        "hidden_accuracy_samples": (1 + 1 / 2 + 0) / 3,
        "hidden_accuracy_background": 0,
        "border_agreement_samples": 2 / 3,
        "border_agreement_truth": 1,
        "hidden_sample_disagreement": (1 / 2 + 1 / 2 + 1) / 3,
    }
    for name, value in expected.items():
        assert found[name].tolist() == pytest.approx([value, value]), name


@pytest.mark.parametrize(("height", "side"), [(512, 5), (1024, 10), (384, 4), (256, 3), (128, 1), (16, 1)])
def test_default_erosion_follows_the_height_of_street_scenes(height: int, side: int) -> None:
    assert default_erosion(INFO["streets"], height=height) == side
    assert default_erosion(INFO["neurites"], height=height) == 5


def test_instances_of_keep_far_cars_of_small_street_scenes() -> None:
    info = INFO["streets"]
    samples = np.zeros((16, 256, 8), np.int32)
    samples[:, 20:23, 2:5] = np.random.default_rng(0).integers(18, 23, (16, 1, 1))  # a car of 3×3 pixels
    for how, kept in (({}, 9), ({"erosion": 3}, 9), ({"erosion": 4}, 0), ({"erosion": 5}, 0)):
        assert (instances_of(samples, info=info, alpha=16, seed=0, **how) > 0).sum() == kept
    large = np.concatenate(
        [samples, samples[:, :1].repeat(256, axis=1)], axis=1
    )  # of a scene as large as the paper's
    assert not instances_of(large, info=info, alpha=16, seed=0).any()


def test_scorer_records_the_erosion_of_street_scenes() -> None:
    source = open_synthetic("streets", split="val", num_images=1, size=32)
    how = {"model": untrained_model(source.info), "info": source.info, "crop": None, "num_samples": 2}
    contents = Contents("sum", "", {})
    assert Scorer(**how).identity(source, contents=contents)["erosion"] == "scaled"
    assert Scorer(**how, erosion=5).identity(source, contents=contents)["erosion"] == 5
    with pytest.raises(ConfigError, match="erosion"):
        Scorer(**how, erosion=0)
