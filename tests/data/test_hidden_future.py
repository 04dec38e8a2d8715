"""The future of a series is hidden: neither prior nor sampling sees anything of it but its dates."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hpunet
from hpunet.config.settings import AugmentationSettings, load_settings
from hpunet.data.batch import Batch
from hpunet.data.extrapolation import NUM_UNIFORMS, hide_future, num_future
from hpunet.data.loader import TrainingSteps
from hpunet.data.packs import open_pack, write_pack
from hpunet.data.synthetic.source import INFO, open_synthetic
from hpunet.data.warps import NO_AUGMENTATION
from hpunet.errors import ConfigError, DataError
from hpunet.evaluation.images import prior_inputs
from hpunet.models.build import check_network
from hpunet.models.hpunet import HPUNet
from hpunet.training.build import build_example_builder
from hpunet.training.examples import ExampleBuilder

SIZE = (6, 16, 16)
_STILL: dict[str, Any] = {"elastic": 0, "mirror_front_back": False}


def batch_of(number: int = 8) -> Batch:
    """A batch of series."""
    source = open_synthetic("growth", split="train", num_images=number, size=SIZE)
    samples = [source[i] for i in range(number)]
    names = ("image", "labels", "valid", "graders", "times")
    return Batch(**{name: torch.from_numpy(np.stack([getattr(s, name) for s in samples])) for name in names})


def planted(batch: Batch, visible: torch.Tensor) -> Batch:
    """The same with a marker in images and labels of all moments that are not visible (b, d)."""
    shown = visible[:, None, :, None, None]
    image = torch.where(shown, batch.image, torch.nan)
    return replace(batch, image=image, labels=torch.where(shown, batch.labels, 1 - batch.labels))


@pytest.mark.parametrize("augmentation", [NO_AUGMENTATION, AugmentationSettings(**_STILL, gain=(0.8, 1.2))])
def test_training_does_not_see_a_marker_in_the_future(augmentation: AugmentationSettings) -> None:
    batch, index = batch_of(), torch.arange(8)
    build = ExampleBuilder(info=INFO["growth"], crop=SIZE, augmentation=augmentation, extrapolate="future", seed=5)
    example = build(batch, step=3, positions=index)
    visible = example.cond[:, 0].bool()[:, :, 0, 0]
    assert visible[:, 0].all()
    assert not visible[:, -1].any()
    marked = build(planted(batch, visible), step=3, positions=index)
    assert not torch.equal(marked.labels, example.labels)  # the truth of the future is what training is about
    assert torch.equal(marked.image, example.image)
    assert torch.equal(marked.cond, example.cond)


def test_sampling_does_not_see_a_marker_in_the_future() -> None:
    batch = batch_of(2)
    visible = torch.arange(6).expand(2, -1) < 6 - num_future(6)
    how: dict[str, Any] = {"places": [0, 1], "extrapolate": "future", "num_classes": 2}
    seen, marked = (prior_inputs(each, **how) for each in (batch, planted(batch, visible)))
    strides = [(1, 2, 2), (2, 2, 2)]
    model = HPUNet(
        in_channels=1, num_classes=2, channels=(2, 4, 4), latent_dims=(1, 1), blocks_per_scale=1, cond_channels=4,
        ndim=3, strides=strides,
    )  # fmt: skip
    draws = []
    for image, cond in (seen, marked):
        drawn = hpunet.sample(
            model, image=image, cond=cond, num_samples=3, generator=torch.Generator().manual_seed(0)
        )
        draws.append(drawn.logits)
    assert torch.equal(seen[0], marked[0])
    assert torch.equal(seen[1], marked[1])
    assert torch.equal(*draws)
    assert seen[0].count_nonzero() == batch.image[:, :, :4].count_nonzero()


def test_future_begins_at_every_moment_equally_often_and_the_prior_knows_all_dates() -> None:
    n = 5000
    uniform = torch.rand(n, NUM_UNIFORMS, generator=torch.Generator().manual_seed(0))
    uniform[0], uniform[1] = 0, 1 - 2**-24
    times = torch.tensor([0.0, 0.5, 2.0, 2.25]).expand(n, -1)
    shown = hide_future(
        image=torch.ones(n, 1, 4, 1, 1), labels=torch.ones(n, 4, 1, 1).long(), times=times, num_classes=2,
        uniform=uniform,
    )  # fmt: skip
    seen = shown.visible[:, :, 0, 0]
    counts = torch.bincount(seen.sum(dim=1), minlength=4)
    assert counts[0] == 0
    assert (counts[1:] / n - 1 / 3).abs().max() < 4 * 0.471 / n**0.5
    assert torch.equal(seen, seen.cummin(dim=1).values)
    row = shown.cond[seen.sum(dim=1).tolist().index(2), :, :, 0, 0]
    assert row.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0], [-0.5, 0, 1.5, 1.75]]


def test_evaluation_hides_the_last_third_and_moments_without_dates_are_a_year_apart() -> None:
    assert [num_future(n) for n in (2, 3, 5, 6, 7, 9)] == [1, 1, 1, 2, 2, 3]
    image, labels = torch.ones(1, 1, 6, 2, 2), torch.zeros(1, 6, 2, 2).long()
    shown = hide_future(image=image, labels=labels, times=None, num_classes=2)
    assert shown.cond[0, -1, :, 0, 0].tolist() == [-3, -2, -1, 0, 1, 2]
    assert shown.visible[0, :, 0, 0].tolist() == [True] * 4 + [False] * 2
    with pytest.raises(DataError, match="two moments"):
        hide_future(image=image[:, :, :1], labels=labels[:, :1], times=None, num_classes=2)
    with pytest.raises(DataError, match="times: 5 moments"):
        hide_future(image=image, labels=labels, times=torch.zeros(1, 5), num_classes=2)


def test_pack_keeps_times_and_loader_passes_them_on(tmp_path: Path) -> None:
    source = open_synthetic("growth", split="train", num_images=6, size=SIZE)
    pack = open_pack(write_pack({"train": source}, tmp_path / "pack"), split="train")
    assert pack.info == source.info
    for i in range(6):
        assert np.array_equal(pack[i].times, source[i].times)
    steps = TrainingSteps(pack, batch_size=4, seed=0, crop=SIZE, augmentation=AugmentationSettings(**_STILL))
    batch, images = steps[2], steps.images(2).tolist()
    assert batch.window is not None
    assert np.array_equal(batch.times, np.stack([source[i].times for i in images]))


def test_settings_refuse_a_future_where_time_has_no_order(tmp_path: Path) -> None:
    settings = load_settings("growth-demo")
    assert build_example_builder(settings, info=INFO["growth"]).extrapolate == "future"
    with pytest.raises(ConfigError, match=r"future.*nodules3d"):
        build_example_builder(settings, info=INFO["nodules3d"])
    for change in ("augmentation.mirror_front_back=true", "augmentation.elastic=0.1", "augmentation.translate=0.1"):
        with pytest.raises(ConfigError, match="mirror_front_back"):
            check_network(load_settings("growth-demo", [change]))
    with pytest.raises(ConfigError, match="ndim=3"):
        check_network(load_settings("demo", ["data.extrapolate=future"]))
    with pytest.raises(ConfigError, match="true or false or 'future'"):
        load_settings("demo", ["data.extrapolate=past"])
