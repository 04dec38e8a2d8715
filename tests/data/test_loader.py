import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from random_sources import random_source
from warping import EVERYTHING_3D, assert_same

from hpunet.config.settings import AugmentationSettings
from hpunet.data.augment import augment
from hpunet.data.batch import FIELDS, Batch
from hpunet.data.loader import TrainingSteps, images_at
from hpunet.data.packs import Pack, open_pack, write_pack
from hpunet.data.synthetic.source import open_synthetic
from hpunet.errors import ConfigError, DataError


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


SPACING, CROP = (5.0, 0.7, 0.8), (4, 10, 8)
OF_VOLUMES: dict[str, Any] = {"batch_size": 4, "seed": 5, "crop": CROP, "augmentation": EVERYTHING_3D}


def pack_of_volumes(folder: Path, *sizes: tuple[int, ...]) -> Pack:
    source = random_source(num_classes=2, sizes=list(sizes), spacing=SPACING)
    return open_pack(write_pack({"train": source}, folder / "pack"), split="train")


def cropped(batch: Batch, step: int, *, index: torch.Tensor | None = None) -> Batch:
    index = torch.arange(len(batch.image)) if index is None else index
    how: dict[str, Any] = {"settings": EVERYTHING_3D, "crop_size": CROP, "seed": 5, "spacing": SPACING}
    return augment(batch, **how, step=step, index=index)


def test_windows_of_volumes_are_augmented_as_whole_volumes_are(tmp_path: Path) -> None:
    pack = pack_of_volumes(tmp_path, *[(9, 40, 36)] * 7)
    steps, whole = TrainingSteps(pack, **OF_VOLUMES), TrainingSteps(pack, batch_size=4, seed=5)
    smaller = 0
    for step in range(6):
        assert whole[step].window is None
        assert_same(cropped(steps[step], step), cropped(whole[step], step))
        smaller += steps[step].valid.numel() < whole[step].valid.numel() / 2
    assert smaller == 6


def test_windows_of_volumes_of_different_sizes_depend_on_their_own_alone(tmp_path: Path) -> None:
    pack = pack_of_volumes(tmp_path, (9, 40, 36), (3, 18, 50), (20, 9, 12), (4, 10, 8), (1, 30, 30))
    steps = TrainingSteps(pack, **OF_VOLUMES)
    for step in range(8):
        together = cropped(steps[step], step)
        for i, image in enumerate(steps.images(step).tolist()):
            alone = cropped(pack.batch(torch.tensor([image])), step, index=torch.tensor([i]))
            for field in ("labels", "valid", "graders"):
                assert torch.equal(getattr(alone, field)[0], getattr(together, field)[i])
            torch.testing.assert_close(alone.image[0], together.image[i], rtol=0, atol=1e-6)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_windows_of_volumes_do_not_depend_on_workers_and_processes(num_workers: int, tmp_path: Path) -> None:
    pack = pack_of_volumes(tmp_path, (9, 40, 36), (3, 18, 50), (20, 9, 12))
    alone = list(TrainingSteps(pack, **OF_VOLUMES).iterate(3, 8))
    shared = list(TrainingSteps(pack, **OF_VOLUMES).iterate(3, 8, num_workers=num_workers))
    for step, (one, other) in enumerate(zip(alone, shared, strict=True), start=3):
        assert_same(one, other)
        assert one.window is not None
        assert other.window is not None
        assert all(map(torch.equal, one.window, other.window))
        halves = [TrainingSteps(pack, **OF_VOLUMES, rank=r, world_size=2)[step] for r in range(2)]
        warped = cropped(one, step)
        for r, half in enumerate(halves):
            part = cropped(half, step, index=torch.arange(2 * r, 2 * r + 2))
            assert torch.equal(part.labels, warped.labels[2 * r : 2 * r + 2])
            torch.testing.assert_close(part.image, warped.image[2 * r : 2 * r + 2], rtol=0, atol=1e-6)
