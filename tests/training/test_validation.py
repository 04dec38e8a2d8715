from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_run import tiny_settings, untrained_model, write_tiny_pack

from hpunet.config.settings import load_settings
from hpunet.data.batch import FIELDS, Batch
from hpunet.data.open import open_splits
from hpunet.data.packs import Pack, open_pack, write_pack
from hpunet.data.synthetic.source import INFO as SYNTHETIC
from hpunet.data.synthetic.source import open_synthetic
from hpunet.errors import DivergenceError
from hpunet.evaluation.drawn import Maps
from hpunet.evaluation.images import read_item, true_instances
from hpunet.evaluation.rows import ROWS_FILE, read_rows
from hpunet.evaluation.run import evaluate
from hpunet.evaluation.scorer import Scorer
from hpunet.evaluation.scores import image_scores, instances_of
from hpunet.metrics import ged2, rand_error
from hpunet.reports.saved_run import read_run
from hpunet.training.loggers import read_log
from hpunet.training.loop import train
from hpunet.training.validation import METRICS, Validation, _samples_sheet, swapped
from hpunet.weights.load import load_trained


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


def test_pictures_of_large_images_are_readable() -> None:
    arrays = {"image": np.zeros((1, 1, 400, 400)), "labels": np.zeros((1, 2, 400, 400), np.int64)}
    arrays |= {"reconstructions": arrays["labels"], "samples_full": arrays["labels"]}
    assert _samples_sheet(arrays, title="").width > 7 * 190


def test_validation_does_not_depend_on_neighbours_of_other_sizes(mixed: Pack) -> None:
    assert len(set(mixed.sizes)) > 1
    scorer = Scorer(model=untrained_model(mixed.info), info=mixed.info, crop=(8, 8), num_samples=2)

    def maps_of(indices: list[int]) -> Maps:
        (drawn,) = scorer.draw(mixed, [read_item(mixed, i, mixed.info) for i in indices])
        assert drawn.maps is not None
        return drawn.maps

    together = maps_of(list(range(len(mixed))))
    for i in range(len(mixed)):
        alone = maps_of([i])
        for name in FIELDS:
            assert torch.equal(getattr(alone.batch, name)[0], getattr(together.batch, name)[i])
    assert together.batch.valid.all()
    assert together.batch.labels.max() < mixed.info.num_classes


def test_validation_scores_like_hpunet_evaluate(tmp_path: Path) -> None:
    """Validation of all images gives the numbers of an evaluation with seed 0."""
    settings = tiny_settings("optimiser.iterations=2", "logging.validate_images=100")
    pack = write_tiny_pack(tmp_path / "pack")
    newest = train(settings, data=str(pack), run=tmp_path / "run", device=torch.device("cpu"), say=lambda _line: None)
    trained, val = load_trained(tmp_path / "run"), open_pack(pack, split="val")
    scorer = Scorer(model=trained.model, info=val.info, crop=(16, 16), num_samples=2)
    evaluate(scorer, source=val, folder=tmp_path / "evaluation")
    rows = read_rows(tmp_path / "evaluation" / ROWS_FILE)
    for name in METRICS:
        value = newest[name]
        assert np.mean([row.scores[name] for row in rows]) == pytest.approx(value, rel=1e-9), name


def test_validation_measures_how_far_graders_agree(tmp_path: Path) -> None:
    """By hand for each image; and one grader's map in place of all samples has that GED², on average."""
    val = open_pack(write_tiny_pack(tmp_path / "pack"), split="val")
    settings = tiny_settings("optimiser.iterations=1", "logging.validate_images=100")
    newest = train(settings, data=str(tmp_path / "pack"), run=tmp_path / "run", say=lambda _line: None)
    distances, ious, by_ged2 = [], [], []
    for sample in (val[i] for i in range(len(val))):
        maps = sample.labels[sample.graders]
        if len(maps) < 2:
            continue
        iou = np.array([[agreement(one, other) for other in maps] for one in maps])
        distances.append((1 - iou).mean())
        ious.append(iou[~np.eye(len(maps), dtype=bool)].mean())
        by_ged2.append(np.mean([ged2(samples=m[None, None], labels=maps[None], num_classes=2)[0] for m in maps]))
    assert newest["grader_distance"] == pytest.approx(np.mean(distances)) == pytest.approx(np.mean(by_ged2))
    assert newest["grader_iou"] == pytest.approx(np.mean(ious))


def test_validation_is_logged_when_its_examples_can_be_read(tmp_path: Path) -> None:
    """A report may be made at any moment."""

    class Reader:
        def numbers(self, step: int, values: dict[str, float]) -> None:
            if "val_ged2" in values:
                steps.append(read_run(tmp_path / "run").step)

        def picture(self, *_: object) -> None: ...

        def close(self) -> None: ...

    steps: list[int] = []
    settings = tiny_settings("optimiser.iterations=2", "logging.validate_every=1")
    how = {"data": str(write_tiny_pack(tmp_path / "pack")), "device": torch.device("cpu"), "say": lambda _line: None}
    train(settings, run=tmp_path / "run", loggers=[Reader()], **how)
    assert steps == [1, 2]


def agreement(one: np.ndarray, other: np.ndarray) -> float:
    either = ((one == 1) | (other == 1)).sum()
    return float(((one == 1) & (other == 1)).sum() / either) if either else 1.0


def test_raw_weights_are_scored_early_and_named_when_clearly_better(tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path / "pack")
    changes = ("optimiser.ema_decay=0.999999", "optimiser.iterations=10", "optimiser.learning_rates=[1e-2]")
    settings = tiny_settings(*changes, "logging.validate_every=5")
    train(settings, data=str(pack), run=tmp_path / "run", device=torch.device("cpu"), say=lambda _line: None)
    lines = [line for line in read_log(tmp_path / "run/log.jsonl") if "val_ged2" in line]
    assert [line["step"] for line in lines if "val_raw_ged2" in line] == [5]
    raw = load_trained(tmp_path / "run", checkpoint="step-00000005", weights="raw", device="cpu")
    held_out = open_pack(pack, split="val")
    validation = Validation(
        raw.model, pack=held_out, settings=settings, device=torch.device("cpu"), run=tmp_path / "x"
    )
    own = validation.run_at(40, [], averaged=[])
    for name in METRICS:
        assert lines[0][f"val_raw_{name}"] == pytest.approx(own[name], rel=1e-9)
    assert validation.raw_is_better({"ged2": 0.5, "raw_ged2": 0.49}) is None
    assert validation.raw_is_better({"ged2": 0.5}) is None
    assert "--weights raw" in (validation.raw_is_better({"ged2": 0.5, "raw_ged2": 0.4}) or "")


def test_a_sampler_draws_what_the_weights_are_at_each_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps in a CUDA graph write to the weights without a new version, by which a sampler would notice."""
    pack, settings = open_pack(write_tiny_pack(tmp_path / "pack"), split="val"), tiny_settings()
    model = untrained_model(pack.info)
    copy = untrained_model(pack.info)
    seen: list[list[int]] = []

    def encode(**how: Any) -> Any:
        versions = [p._version for p in model.parameters()]
        if not seen or versions != seen[-1]:
            seen.append(versions)
            copy.load_state_dict(model.state_dict())
        return type(copy).encode(copy, **how)

    monkeypatch.setattr(copy, "encode", encode)
    for place in ("orientations", "sample"):  # the copy samples as it is
        monkeypatch.setattr(f"hpunet.sampling.{place}.on_cpu", lambda network: network)
    how: dict[str, Any] = {"pack": pack, "settings": settings, "device": torch.device("cpu"), "run": tmp_path}
    with monkeypatch.context() as patch:
        patch.setattr("hpunet.training.validation.fast_sampler", lambda _model, **_how: copy)
        sampled = Validation(model, **how, kernels="auto")
    plain = Validation(model, **how)
    for number in range(2):
        assert sampled.run_at(100_000, [], averaged=[]) == plain.run_at(100_000, [], averaged=[])
        assert len(seen) == number + 1
        for p in model.parameters():
            p.data.mul_(1.5)


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


KINDS = {
    "neurites": ("snemi3d-hpu", 16, False),
    "streets": ("cityscapes-hpu", 23, False),
    "hidden neurites": ("snemi3d-extrapolate", 16, True),
}
"""Preset, classes, and whether a part is hidden."""


@pytest.mark.parametrize("kind", KINDS)
def test_validation_saves_the_examples_that_figures_of_its_kind_need(tmp_path: Path, kind: str) -> None:
    preset, num_classes, hidden = KINDS[kind]
    small = ["model.channels=[4,4,4,4]", "model.latent_dims=[1,1]", "model.blocks_per_scale=1", "data.num_workers=0"]
    small += [
        "data.crop=[32,32]",
        "optimiser.iterations=1",
        "optimiser.batch_size=2",
        "optimiser.accumulation_steps=1",
    ]
    small += ["data.options={num_images=3,size=32}", "logging.validate_samples=3"]
    settings = load_settings(preset, small)
    data = "synthetic:" + kind.split()[-1]
    train(settings, data=data, run=tmp_path, device=torch.device("cpu"), say=lambda _message: None)
    found = read_run(tmp_path).examples
    assert found is not None
    assert len(found.class_names) == num_classes
    assert len(found.stochastic_classes) == (5 if kind == "streets" else 15)
    assert found.image.max() > 0
    if hidden:
        assert found.visible is not None
        assert 0.5 <= found.visible.mean() <= 0.75
        assert found.image.transpose(0, 2, 3, 1)[~found.visible].any()  # the image is whole
        assert found.instances is None
    else:
        assert found.visible is None
        assert found.true_instances is not None
        assert found.instances is not None
        assert found.hardness is not None
        # One id has one instance at least; where there is none, there is no id.
        is_id = np.isin(found.labels[:, 0], found.stochastic_classes)
        assert ((found.true_instances > 0) == is_id).all()
        expected = rand_error(prediction=found.instances, truth=found.true_instances, valid=found.valid)
        np.testing.assert_allclose(found.hardness, expected)


def test_instances_of_samples_are_those_that_they_agree_on() -> None:
    """Three cars on other classes, two of which touch; the first grader is missing."""
    info = SYNTHETIC["streets"]
    cars = np.zeros((24, 32), dtype=np.int32)
    cars[4:12, 2:12], cars[4:12, 12:22], cars[14:22, 20:30] = 1, 2, 3
    other = np.arange(32) // 16 + np.zeros((24, 1), dtype=np.int32)
    labels = np.where(cars > 0, info.num_fixed_classes - 1 + cars, other)
    truth = Batch(
        image=torch.zeros(1, 3, 24, 32),
        labels=torch.from_numpy(np.stack([np.zeros_like(labels), labels]))[None],
        valid=torch.ones(1, 24, 32, dtype=torch.bool),
        graders=torch.tensor([[False, True]]),
    )
    ids = np.random.default_rng(0).integers(info.num_random_ids, size=(16, 4))  # of each car in each sample
    samples = np.where(cars > 0, info.num_fixed_classes + ids[:, cars], other)
    assert (true_instances(truth, info)[0] == cars).all()
    found = instances_of(samples, info=info, alpha=16, seed=0)
    assert ((found > 0) == (cars > 0)).all()
    assert rand_error(prediction=found[None], truth=cars[None])[0] == 0
    one_for_all = instances_of(np.full_like(samples, labels.max()), info=info, alpha=16, seed=0)
    assert rand_error(prediction=one_for_all[None], truth=cars[None])[0] > 0.2
    same_id = np.where(cars > 0, labels.max(), other)[None].repeat(16, axis=0)
    apart = instances_of(same_id, info=info, alpha=16, seed=0, connected=True)
    assert [len(np.unique(apart[cars == number])) for number in (1, 2, 3)] == [1, 1, 1]
    assert apart[4, 2] == apart[4, 21] != apart[14, 20]  # the two that touch stay one


@pytest.mark.parametrize(("side", "changes", "number"), [(64, [], 4), (64, ["data.evaluate=crop"], 6), (32, [], 5)])
def test_of_large_whole_images_fewer_are_validated(
    tmp_path: Path, side: int, changes: list[str], number: int
) -> None:
    """Twenty crops of 16×16 have as many pixels as one image of 64×64, or as five of 32×32."""
    write_pack(open_splits("synthetic:lesions", options={"num_images": 6, "size": side}), tmp_path / "pack")
    pack = open_pack(tmp_path / "pack", split="val")
    assert len(pack) == 6
    settings = tiny_settings("logging.validate_images=20", *changes)
    validation = Validation(
        untrained_model(pack.info), pack=pack, settings=settings, device=torch.device("cpu"), run=tmp_path
    )
    assert len(validation.indices) == number
    assert validation.scorer.crop == ((16, 16) if changes else None)
    assert (f"{number} whole images instead of 6" in validation.note) == (number < 6)


@pytest.mark.parametrize("averaged", [True, False])
def test_a_model_that_diverged_has_no_scores(tmp_path: Path, averaged: bool) -> None:
    """Its samples would all show nothing, and score as if that were an opinion."""
    pack, settings = open_pack(write_tiny_pack(tmp_path / "pack"), split="val"), tiny_settings()
    model = untrained_model(pack.info)
    model.check_values = False  # as in training
    shares = {"pack": pack, "settings": settings, "device": torch.device("cpu"), "run": tmp_path}
    validation = Validation(model, **shares)
    diverged = [p.detach().clone() for p in model.parameters()]
    diverged[-1].fill_(torch.nan)
    if not averaged:
        for p, value in zip(model.parameters(), diverged, strict=True):
            p.data.copy_(value)
    with pytest.raises(DivergenceError, match=f"iteration 100000: {pack.identities[0].key}: .*NaN"):
        validation.run_at(100_000, [], averaged=diverged if averaged else [])
    assert not model.check_values
