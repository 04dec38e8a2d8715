from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hpunet.batch import Batch
from hpunet.data.packs import Pack, open_pack, write_pack
from hpunet.data.sources import open_splits
from hpunet.data.synthetic import open_synthetic
from hpunet.validation import evaluation_batch, image_scores, swapped


@pytest.fixture
def mixed(tmp_path: Path) -> Pack:
    """Images of three sizes with instance maps."""
    rng = np.random.default_rng(0)
    for i, (h, w) in enumerate([(8, 8), (12, 20), (9, 8), (12, 20), (8, 10), (16, 8)] * 2):
        for folder in ("images", "instances"):
            (tmp_path / "data" / folder).mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 9, (h, w)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / folder / f"{i:02d}.png")
    write_pack(open_splits(str(tmp_path / "data"), options={"val_every": 2}), tmp_path / "pack")
    return open_pack(tmp_path / "pack", split="val")


def test_evaluation_batch_does_not_depend_on_neighbours_of_other_sizes(mixed: Pack) -> None:
    assert len(set(mixed.sizes)) > 1
    indices = list(range(len(mixed)))
    together = evaluation_batch(mixed, indices, crop=(8, 8), seed=0)
    for i in indices:
        alone = evaluation_batch(mixed, [i], crop=(8, 8), seed=0)
        for name, value in vars(alone).items():
            assert torch.equal(value[0], getattr(together, name)[i])
    assert together.valid.all()
    assert together.labels.max() < mixed.info.num_classes


def test_image_scores_of_the_graders_themselves_are_perfect() -> None:
    source = open_synthetic("lesions", split="val", num_images=4, size=32)
    samples = [source[i] for i in range(4)]
    batch = Batch(
        image=torch.stack([torch.from_numpy(s.image) for s in samples]),
        labels=torch.stack([torch.from_numpy(s.labels) for s in samples]),
        valid=torch.stack([torch.from_numpy(s.valid) for s in samples]),
        graders=torch.stack([torch.from_numpy(s.graders) for s in samples]),
    )
    scores = image_scores(samples=batch.labels, reconstructions=batch.labels, batch=batch, info=source.info)
    torch.testing.assert_close(scores["ged2"], torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(scores["hm_iou"], torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(scores["iou_rec"], torch.ones(4, dtype=torch.float64))


def test_swapped_puts_the_live_weights_back_whatever_happens() -> None:
    model = torch.nn.Linear(2, 2)
    live = [p.detach().clone() for p in model.parameters()]

    def fail() -> None:
        with swapped(model, [torch.zeros_like(p) for p in live]):
            assert all((p == 0).all() for p in model.parameters())
            raise RuntimeError("in between")

    with pytest.raises(RuntimeError, match="in between"):
        fail()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), live, strict=True))
