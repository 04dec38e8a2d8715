from pathlib import Path

import pytest
import torch
from random_sources import random_source
from tiny_run import open_tiny, tiny_batch, tiny_settings, write_tiny_pack

from hpunet.config.settings import AugmentationSettings
from hpunet.data.augment import augment
from hpunet.data.batch import Batch
from hpunet.data.loader import TrainingSteps
from hpunet.data.packs import open_pack, write_pack
from hpunet.data.synthetic.source import INFO
from hpunet.training.build import build_example_builder
from hpunet.training.examples import ExampleBuilder, one_grader
from hpunet.utils.keyed_random import Stream, keyed_uniform


def test_one_grader_draws_only_those_that_exist_and_each_as_often() -> None:
    labels = torch.arange(3).view(1, 3, 1, 1).expand(6000, 3, 1, 1)
    graders = torch.tensor([[True, False, True]]).expand(6000, 3)
    batch = Batch(
        image=torch.zeros(6000, 1, 1, 1),
        labels=labels,
        valid=torch.ones(6000, 1, 1, dtype=torch.bool),
        graders=graders,
    )
    chosen = one_grader(batch, torch.arange(6000) / 6000)[:, 0, 0]
    assert torch.bincount(chosen, minlength=3).tolist() == [3000, 0, 3000]


def test_example_builder_warps_the_chosen_grader_alone_as_it_would_all_of_them() -> None:
    random = torch.Generator().manual_seed(0)
    graders = torch.rand(16, 4, generator=random) < 0.6
    graders[:, 3] |= ~graders.any(dim=1)
    valid = torch.rand(16, 40, 40, generator=random) < 0.95
    shown = graders[:, :, None, None] & valid[:, None]
    batch = Batch(
        image=torch.rand(16, 1, 40, 40, generator=random),
        labels=torch.randint(0, 2, (16, 4, 40, 40), generator=random) * shown,
        valid=valid,
        graders=graders,
    )
    example_builder = ExampleBuilder(
        info=INFO["lesions"], crop=(32, 32), augmentation=AugmentationSettings(), extrapolate=False, seed=3
    )
    index = torch.arange(16)
    warped = augment(
        batch, settings=example_builder.augmentation, crop_size=example_builder.crop, seed=3, step=5, index=index
    )
    uniform = keyed_uniform(seed=3, step=5, index=index, stream=Stream.GRADER, count=1)[:, 0]
    example = example_builder(batch, step=5, positions=index)
    assert torch.equal(example.labels, one_grader(warped, uniform))
    assert torch.equal(example.valid, warped.valid)
    assert torch.equal(example.image, warped.image)


def test_example_builder_does_not_depend_on_the_rest_of_the_batch(tmp_path: Path) -> None:
    pack, positions = open_tiny(write_tiny_pack(tmp_path / "pack")), torch.arange(4)
    example_builder = build_example_builder(tiny_settings(), info=pack.info)
    whole = example_builder(tiny_batch(pack, [0, 1, 2, 3]), step=7, positions=positions)
    part = example_builder(tiny_batch(pack, [2, 3]), step=7, positions=positions[2:])
    assert torch.equal(whole.image[2:], part.image)
    assert torch.equal(whole.labels[2:], part.labels)
    other = example_builder(tiny_batch(pack, [2, 3]), step=8, positions=positions[2:])
    assert not torch.equal(part.image, other.image)


@pytest.mark.parametrize("instances", [0, 700])
def test_example_builder_makes_examples_of_volumes(instances: int, tmp_path: Path) -> None:
    """One warped grader per volume; each instance has one random id; the same part of all slices is hidden."""
    source = random_source(num_classes=2, sizes=[(7, 24, 20)] * 5, instances=instances, spacing=(5.0, 0.7, 0.7))
    pack = open_pack(write_pack({"train": source}, tmp_path / "pack"), split="train")
    how = {"crop": (4, 16, 16), "augmentation": AugmentationSettings()}
    builder = ExampleBuilder(info=pack.info, extrapolate=True, seed=3, **how)
    steps = TrainingSteps(pack, batch_size=4, seed=3, **how)
    index = torch.arange(4)
    example = builder(steps[5], step=5, positions=index)
    assert example.image.shape == (4, 2, 4, 16, 16)
    warped = augment(
        steps[5],
        settings=how["augmentation"],
        crop_size=how["crop"],
        spacing=pack.info.spacing,
        seed=3,
        step=5,
        index=index,
    )
    assert torch.equal(example.valid, warped.valid)
    uniform = keyed_uniform(seed=3, step=5, index=index, stream=Stream.GRADER, count=1)[:, 0]
    stored = one_grader(warped, uniform)
    if instances:
        assert example.labels.max() < pack.info.num_classes
        for i in range(4):
            ids = {int(n): example.labels[i][stored[i] == n].unique().tolist() for n in stored[i].unique()}
            assert len(ids) > 50
            assert all(found == [n] if n < 2 else len(found) == 1 and found[0] >= 2 for n, found in ids.items())
    else:
        assert torch.equal(example.labels, stored)
    assert example.cond is not None
    assert example.cond.shape == (4, 1 + pack.info.num_classes, 4, 16, 16)
    visible = example.cond[:, 0].bool()
    assert torch.equal(visible, visible[:, :1].expand_as(visible))
    assert ((~visible).double().mean((1, 2, 3)) - 0.375).abs().max() <= 0.125
    assert torch.equal(example.image, warped.image * visible.unsqueeze(1))
    assert torch.equal(example.cond[:, 1:].argmax(1)[visible], example.labels[visible].long())
    again = builder(TrainingSteps(pack, batch_size=4, seed=3)[5], step=5, positions=index)
    assert torch.equal(again.image, example.image)
    assert torch.equal(again.labels, example.labels)
