import multiprocessing
from pathlib import Path

import pytest
import torch

from hpunet.config.settings import AugmentationSettings
from hpunet.data.augment import augment
from hpunet.data.batch import Batch
from hpunet.data.loader import TrainingSteps, images_at
from hpunet.data.packs import Pack, open_pack, write_pack
from hpunet.data.synthetic.source import open_synthetic
from hpunet.errors import ConfigError, DataError

FIELDS = ("image", "labels", "valid", "graders")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    folder: Path = tmp_path_factory.mktemp("pack") / "lesions"
    write_pack({"train": open_synthetic("lesions", split="train", num_images=11, size=16)}, folder)
    return open_pack(folder, split="train")


def test_images_at_shows_every_image_once_an_epoch_in_a_new_order() -> None:
    seen = torch.cat([images_at(seed=3, step=s, batch_size=4, num_images=10) for s in range(10)])
    epochs = seen.view(4, 10)
    assert all(sorted(epoch.tolist()) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 4
    assert not torch.equal(seen[:4], images_at(seed=4, step=0, batch_size=4, num_images=10))


def test_images_at_handles_batches_larger_than_the_set() -> None:
    assert sorted(images_at(seed=0, step=0, batch_size=6, num_images=2).tolist()) == [0, 0, 0, 1, 1, 1]


def augmented(batch: Batch, step: int) -> Batch:
    index = torch.arange(len(batch.image))
    return augment(batch, settings=AugmentationSettings(), crop_size=(16, 16), seed=1, step=step, index=index)


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_training_batches_do_not_depend_on_the_number_of_workers(pack: Pack, num_workers: int) -> None:
    steps = TrainingSteps(pack, batch_size=4, seed=5)
    alone = list(steps.iterate(3, 11))
    shared = list(steps.iterate(3, 11, num_workers=num_workers))
    assert len(alone) == 8
    for step, (one, other) in enumerate(zip(alone, shared, strict=True)):
        for field in FIELDS:
            assert torch.equal(getattr(one, field), getattr(other, field))
            warped = (getattr(augmented(b, step), field) for b in (one, other))
            assert torch.equal(*warped)


def test_killed_reader_of_batches_is_an_error_with_a_cure(pack: Pack) -> None:
    batches = TrainingSteps(pack, batch_size=4, seed=5).iterate(0, 10**6, num_workers=1)
    next(batches)
    multiprocessing.active_children()[0].kill()
    with pytest.raises(DataError, match=r"data\.num_workers"):
        list(batches)


def test_training_batches_are_shared_out_over_processes(pack: Pack) -> None:
    whole = TrainingSteps(pack, batch_size=6, seed=5)[2]
    parts = [TrainingSteps(pack, batch_size=6, seed=5, rank=r, world_size=3)[2] for r in range(3)]
    for field in FIELDS:
        assert torch.equal(getattr(whole, field), torch.cat([getattr(part, field) for part in parts]))
    with pytest.raises(ConfigError, match="does not divide over 4 processes"):
        TrainingSteps(pack, batch_size=6, seed=5, world_size=4)
