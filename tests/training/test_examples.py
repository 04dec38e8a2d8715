from pathlib import Path

import torch
from tiny_run import open_tiny, tiny_batch, tiny_settings, write_tiny_pack

from hpunet.config.settings import AugmentationSettings
from hpunet.data.augment import augment
from hpunet.data.batch import Batch
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
