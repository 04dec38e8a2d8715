"""Evaluation of whole sets: exact values of a perfect sampler, restarts, any batch size, unreadable images."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from older_rows import make_older
from PIL import Image
from tiny_run import untrained_model
from torch import Tensor, nn

import hpunet.evaluation.run as evaluation
from hpunet.data.batch import Batch
from hpunet.data.fingerprint import FILES_FILE
from hpunet.data.open import open_data
from hpunet.data.synthetic.source import INFO, SyntheticSource, open_synthetic
from hpunet.data.types import Source
from hpunet.errors import ConfigError, DataError
from hpunet.evaluation import summary as evaluation_summary
from hpunet.evaluation.examples import example_arrays
from hpunet.evaluation.images import read_item
from hpunet.evaluation.rows import (
    CLASS_METRICS,
    CLUSTER_METRICS,
    COLUMNS,
    EXAMPLES_FILE,
    HIDDEN_METRICS,
    IMAGE_METRICS,
    METRICS,
    NEWER_METRICS,
    REPRESENTATIVE_METRICS,
    ROWS_FILE,
    SLICE_METRICS,
    SUMMARY_FILE,
    VOLUME_METRICS,
    Row,
    columns_of,
    folder_name,
    read_evaluation,
    read_rows,
)
from hpunet.evaluation.run import chosen_images, evaluate
from hpunet.evaluation.scorer import Scorer
from hpunet.evaluation.scores import image_scores
from hpunet.evaluation.summary import ALL_METRICS, Scope, listed, metric_note, pooled, scored_part, summarise
from hpunet.metrics import average_precision, ged2, match_instances, rand_error
from hpunet.models.base import SegmentationModel
from hpunet.models.hpunet import HPUNet
from hpunet.sampling.instances import postprocess
from hpunet.sampling.sample import sample
from hpunet.utils.files import parse_json

FIRST_CODE = 100.0
"""Latents from here on are the number of a state and not a draw."""


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_summary, "NUM_BOOTSTRAPS", 100)
    monkeypatch.setattr(evaluation, "NUM_SHOWN", 2)
    monkeypatch.setattr(evaluation, "NUM_HARDEST", 3)


class PerfectSampler(nn.Module):
    """Draws from the known distribution of each image, by one number; reconstructs without a fault."""

    in_channels, num_classes, cond_channels, size_multiples, check_values = 1, 2, 0, (1, 1), True
    latent_dims, orientations = (1,), 1

    def __init__(self, source: SyntheticSource) -> None:
        super().__init__()
        keys = [self.key(torch.from_numpy(source[i].image)) for i in range(len(source))]
        self.truths = {key: source.distribution(i) for i, key in enumerate(keys)}

    @staticmethod
    def key(image: Tensor) -> bytes:
        return (image * 255).round().to(torch.uint8).numpy().tobytes()

    def latent_shapes(self, *_size: int) -> list[tuple[int, ...]]:
        return [(1, 1, 1)]

    def sampling_modules(self) -> list[nn.Module]:
        return []

    def encode(self, *, image: Tensor, cond: Tensor | None = None) -> list[Tensor]:
        assert cond is None
        return [image]

    def decode(
        self, features: Sequence[Tensor], *, noise: Any = None, given: Any = None
    ) -> tuple[Tensor, list[Tensor], list[Any]]:
        chosen = next((taken[0] for taken in (given, noise) if taken and taken[0] is not None), None)
        latents = torch.zeros(len(features[0]), 1, 1, 1) if chosen is None else chosen
        maps = []
        for image, z in zip(features[0], latents.flatten().tolist(), strict=True):
            truth = self.truths[self.key(image)]
            drawn = 0.5 * (1 + torch.erf(torch.tensor(z / 2**0.5, dtype=torch.float64)).item())
            by_chance = np.searchsorted(truth.probabilities.cumsum()[:-1], drawn, side="right")
            maps.append(truth.support[round(z - FIRST_CODE) if z >= FIRST_CODE else by_chance])
        marked = torch.from_numpy(np.stack(maps)).float()
        return torch.stack([1 - marked, marked], dim=1), [latents], []

    def infer(self, *, image: Tensor, labels: Tensor, noise: Any = None) -> tuple[list[Tensor], list[Any]]:
        assert noise is None or noise[0] is None
        states = []
        for one, wanted in zip(image, labels, strict=True):
            same = (self.truths[self.key(one)].support == wanted.numpy()).all(axis=(1, 2))
            states.append(FIRST_CODE + int(same.argmax()))
        return [torch.tensor(states).view(-1, 1, 1, 1)], []


def lesions(num_images: int, *, size: int = 32) -> SyntheticSource:
    return open_synthetic("lesions", split="test", num_images=num_images, size=size)


def small_model(kind: str = "lesions") -> HPUNet:
    return untrained_model(INFO[kind])


def scorer_of(model: SegmentationModel, kind: str = "lesions", **changes: Any) -> Scorer:
    return Scorer(**{"model": model, "info": INFO[kind], "crop": (32, 32), "num_samples": 4, **changes})


def run_it(folder: Path, source: Source, scorer: Scorer | None = None, **options: Any) -> dict[str, Any]:
    summary = evaluate(scorer or scorer_of(small_model()), source=source, folder=folder, **options)
    assert parse_json((folder / SUMMARY_FILE).read_bytes(), name="summary") == summary  # strict: no NaN
    return summary


def test_perfect_sampler_gets_the_exact_values_within_its_error_bars(tmp_path: Path) -> None:
    source = lesions(80)
    assert isinstance(PerfectSampler(source), SegmentationModel)
    summary = run_it(tmp_path, source, scorer_of(PerfectSampler(source), num_samples=16))
    truths = [source.distribution(i) for i in range(80)]
    expected = np.mean([truth.expected_ged(num_samples=16, num_graders=4) for truth in truths])
    apart = np.mean([truth.mean_distance for truth in truths])
    for name, value in {"ged2": expected, "ged2_unbiased": 0.0, "sample_diversity": apart}.items():
        found = summary[name]
        assert abs(found["mean"] - value) < 4 * found["std"] < 0.15, name
    assert (summary["iou_rec"]["mean"], summary["iou_rec"]["std"]) == (1.0, 0.0)
    assert (summary["num_images"], summary["num_samples"], summary["num_failed"]) == (80, 16, 0)
    rows = read_rows(tmp_path / ROWS_FILE)
    marked = [bool(source[i].labels.any(axis=(1, 2)).all()) for i in range(80)]
    assert [row.subset_b for row in rows] == marked
    assert summary["subset_b"]["num_images"] == sum(marked) > 5
    of_marked = np.mean([row.scores["ged2"] for row in rows if row.subset_b])
    assert summary["subset_b"]["ged2"]["mean"] == pytest.approx(of_marked, abs=0.02)


@pytest.mark.parametrize("kind", ["lesions", "neurites", "streets"])
def test_rows_do_not_depend_on_the_batch_size(kind: str, tmp_path: Path) -> None:
    source = open_synthetic(kind, split="val", num_images=5, size=(32, 32))
    contents = []
    for batch_size in (1, 3):
        folder = tmp_path / str(batch_size)
        summary = run_it(folder, source, scorer_of(small_model(kind), kind), batch_size=batch_size)
        assert summary["num_failed"] == 0
        contents.append((folder / ROWS_FILE).read_bytes())
    assert contents[0] == contents[1]
    rows = read_rows(folder / ROWS_FILE)
    assert len({row.scores["ged2"] for row in rows}) == 5
    assert all(("rand_error" in row.scores) == (kind != "lesions") for row in rows if row.subset_b)
    assert all(("background_iou" in row.scores) == (kind != "lesions") for row in rows)
    assert all((row.matches is not None) == (kind == "streets") for row in rows)


def test_interrupted_evaluation_goes_on_with_what_it_has(tmp_path: Path) -> None:
    source = lesions(10)
    run_it(tmp_path / "whole", source, batch_size=2)

    def interrupt(done: int, _total: int) -> None:
        if done >= 6:
            raise KeyboardInterrupt

    folder = tmp_path / "parts"
    with pytest.raises(KeyboardInterrupt):
        run_it(folder, source, batch_size=2, watch=interrupt)
    (part,) = folder.glob("rows-*.part.csv")
    assert len(read_rows(part)) == 6
    part.write_bytes(part.read_bytes()[:-20])  # as if killed in the middle of a line
    assert len(read_rows(part)) == 5
    heard: list[tuple[int, int]] = []
    run_it(folder, source, batch_size=2, watch=lambda done, total: heard.append((done, total)))
    assert heard[0] == (0, 5)
    assert (folder / ROWS_FILE).read_bytes() == (tmp_path / "whole" / ROWS_FILE).read_bytes()
    assert not list(folder.glob("*.part*"))
    heard.clear()
    run_it(folder, source, watch=lambda done, total: heard.append((done, total)))
    assert heard == [(0, 0)]


def test_evaluation_leaves_a_folder_alone_that_another_one_writes(tmp_path: Path) -> None:
    source = lesions(2)

    def second_writer(done: int, _total: int) -> None:
        if done == 0:
            with pytest.raises(ConfigError, match="in use"):
                run_it(tmp_path, source, replace=True)

    summary = run_it(tmp_path, source, batch_size=1, watch=second_writer)
    assert summary["num_images"] == 2
    assert not list(tmp_path.glob(".*"))


def test_evaluation_of_something_else_is_refused_unless_replaced(tmp_path: Path) -> None:
    source = lesions(3)
    run_it(tmp_path, source)
    for changed, words in (
        (scorer_of(small_model(), seed=1), "seed"),
        (scorer_of(small_model(), num_samples=2), "samples"),
        (scorer_of(PerfectSampler(source)), "weights"),
    ):
        with pytest.raises(ConfigError, match=words):
            run_it(tmp_path, source, changed)
    with pytest.raises(ConfigError, match=r"data.*--replace"):
        run_it(tmp_path, lesions(4))
    assert len(read_rows(tmp_path / ROWS_FILE)) == 3
    replaced = run_it(tmp_path, source, scorer_of(PerfectSampler(source)), replace=True)
    assert replaced["iou_rec"]["mean"] == 1


def test_a_sampler_draws_instead_of_the_model_and_its_rows_are_kept_apart(tmp_path: Path) -> None:
    source = lesions(4)
    run_it(tmp_path / "plain", source)
    fused = scorer_of(small_model(), sampler=PerfectSampler(source))
    assert run_it(tmp_path / "fused", source, fused)["iou_rec"]["mean"] == 1
    with pytest.raises(ConfigError, match="kernels"):
        evaluate(fused, source=source, folder=tmp_path / "plain")


def test_the_last_batch_of_a_sampler_is_filled_up_and_rows_are_the_same(tmp_path: Path) -> None:
    source, model = lesions(10), small_model()
    encoded: list[int] = []
    model.prior.encoder[0].register_forward_hook(lambda _module, inputs, _output: encoded.append(len(inputs[0])))
    run_it(tmp_path / "plain", source, scorer_of(model))
    assert encoded[:2] == [8, 2]
    encoded.clear()
    run_it(tmp_path / "fused", source, scorer_of(model, sampler=model))
    assert encoded[:2] == [8, 8]
    for one, other in zip(*(read_rows(tmp_path / name / ROWS_FILE) for name in ("plain", "fused")), strict=True):
        assert other.scores == pytest.approx(one.scores, abs=1e-6)


@pytest.mark.parametrize("perfect", [True, False])
def test_rows_of_several_seeds_are_the_means_of_single_evaluations(perfect: bool, tmp_path: Path) -> None:
    source = lesions(7)
    model = PerfectSampler(source) if perfect else small_model()
    singles = []
    for seed in (4, 5, 6):
        run_it(tmp_path / str(seed), source, scorer_of(model, num_samples=2, seed=seed))
        singles.append(read_rows(tmp_path / str(seed) / ROWS_FILE))
    summary = run_it(tmp_path / "all", source, scorer_of(model, num_samples=2, seed=4, num_seeds=3), batch_size=2)
    assert (summary["seed"], summary["num_seeds"], summary["num_images"]) == (4, 3, 7)
    num_partly_defined = 0
    for row, *alone in zip(read_rows(tmp_path / "all" / ROWS_FILE), *singles, strict=True):
        assert [replace(each, scores=row.scores) for each in alone] == [row] * 3
        assert row.scores.keys() == set().union(*(each.scores for each in alone))
        for name, value in row.scores.items():
            found = [each.scores[name] for each in alone if name in each.scores]
            assert value == pytest.approx(np.mean(found), rel=0, abs=1e-12), name
            num_partly_defined += len(found) < 3
        assert len({each.scores["iou_rec"] for each in alone}) == 1
    assert len({row.scores["ged2"] for rows in singles for row in rows}) > 7  # seeds do differ
    assert bool(num_partly_defined) == perfect


def test_several_seeds_encode_and_reconstruct_once_and_are_drawn_one_at_a_time(tmp_path: Path) -> None:
    source, model = lesions(2), small_model()
    calls: list[str] = []
    model.prior.encoder[0].register_forward_hook(lambda *_: calls.append("encode"))
    model.posterior.encoder[0].register_forward_hook(lambda *_: calls.append("infer"))
    model.logits.register_forward_hook(lambda *_: calls.append("decode"))
    scorer = scorer_of(model, num_seeds=3)
    drawn = scorer.draw(source, [read_item(source, i, scorer.info) for i in range(2)])
    next(drawn)
    assert (calls.count("encode"), calls.count("infer"), calls.count("decode")) == (1, 1, 2)
    assert len(list(drawn)) == 2
    assert (calls.count("encode"), calls.count("infer"), calls.count("decode")) == (1, 1, 4)

    waiting = []

    class Watched(Scorer):
        num_drawn = num_scored = 0

        def draw(self, *args: Any) -> Any:
            for each in super().draw(*args):
                waiting.append(Watched.num_drawn - Watched.num_scored)
                Watched.num_drawn += 1
                yield each

        def score(self, *args: Any) -> Any:
            time.sleep(0.01)
            found = super().score(*args)
            Watched.num_scored += 1
            return found

    watched = Watched(model=model, info=scorer.info, crop=(32, 32), num_samples=2, num_seeds=9)
    run_it(tmp_path, source, watched, batch_size=1)
    assert Watched.num_drawn == Watched.num_scored == 18
    assert 1 <= max(waiting) <= evaluation.WAITING


def test_evaluations_with_other_numbers_of_seeds_are_kept_apart(tmp_path: Path) -> None:
    source = lesions(3)
    assert run_it(tmp_path, source)["num_seeds"] == 1
    assert "seeds" not in json.loads((tmp_path / "evaluation.json").read_text())  # as before there were several
    assert read_evaluation(tmp_path)[0]["seeds"] == 1
    several = scorer_of(small_model(), num_seeds=2)
    with pytest.raises(ConfigError, match="seeds"):
        run_it(tmp_path, source, several)
    run_it(tmp_path, source, several, replace=True)
    assert read_evaluation(tmp_path)[0]["seeds"] == 2
    with pytest.raises(ConfigError, match="seeds"):
        run_it(tmp_path, source)


def test_limit_takes_the_same_images_and_more_of_them_later(tmp_path: Path) -> None:
    source = lesions(9)
    few, more = chosen_images(source, 3), chosen_images(source, 6)
    assert len(few) == 3
    assert set(few) < set(more)
    assert chosen_images(source, None) == chosen_images(source, 99) == list(range(9))
    assert run_it(tmp_path, source, limit=3)["num_images"] == 3
    heard: list[tuple[int, int]] = []
    assert run_it(tmp_path, source, limit=6, watch=lambda *told: heard.append(told))["num_images"] == 6
    assert heard[0] == (0, 3)
    summary = run_it(tmp_path, source, limit=3)  # fewer than there are rows: all speak of the same images
    identity, rows = read_evaluation(tmp_path)
    assert (summary["limit"], summary["num_images"], identity["limit"]) == (3, 3, 3)
    assert [row.image for row in rows] == few
    assert len(read_rows(tmp_path / ROWS_FILE)) == 6
    assert set(np.load(tmp_path / EXAMPLES_FILE)["keys"]) <= {row.key for row in rows}
    assert run_it(tmp_path, source, limit=9)["limit"] is None


def write_folder(folder: Path) -> None:
    """Twenty images of two graders: one unreadable, one with another class, one small, one large, one grader less."""
    rng = np.random.default_rng(0)
    for i in range(20):
        h, w = {5: (20, 24), 6: (50, 40)}.get(i, (32, 32))
        pixels = rng.integers(0, 255, (h, w)).astype(np.uint8)
        for name in ("images", "graders/a", "graders/b"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            shown = pixels if name == "images" else (pixels > 128).astype(np.uint8)
            Image.fromarray(shown).save(folder / name / f"{i:02d}.png")
    (folder / "images/03.png").write_bytes((folder / "images/03.png").read_bytes()[:60])
    Image.fromarray(np.full((32, 32), 3, dtype=np.uint8)).save(folder / "graders/a/04.png")
    (folder / "graders/b/07.png").unlink()
    table = ["file,patient,split", *(f"{i:02d},p{i // 2},val" for i in range(20))]
    (folder / "data.csv").write_text("\n".join(table) + "\n")


def test_images_that_cannot_be_read_say_why_and_the_rest_goes_on(tmp_path: Path) -> None:
    write_folder(tmp_path / "data")
    source = open_data(str(tmp_path / "data"), split="val")
    summary = run_it(tmp_path / "out", source)
    assert (summary["num_images"], summary["num_failed"]) == (18, 2)
    assert [entry["key"] for entry in summary["failed"]] == ["03", "04"]
    rows = {row.key: row for row in read_rows(tmp_path / "out" / ROWS_FILE)}
    assert len(rows) == 20
    assert "images/03.png" in rows["03"].error
    assert "04.png" in rows["04"].error
    assert not rows["03"].scores
    for key in ("05", "06", "07"):
        assert not rows[key].error
        assert {"ged2", "hm_iou", "iou_rec"} <= rows[key].scores.keys()
    assert (rows["06"].num_graders, rows["07"].num_graders) == (2, 1)
    assert "ged2_unbiased" not in rows["07"].scores
    assert summary["ged2_unbiased"]["num_images"] == 17

    several = run_it(tmp_path / "seeds", source, scorer_of(small_model(), num_seeds=2), batch_size=1)
    assert several["failed"] == summary["failed"]

    write_folder(tmp_path / "data")  # repaired but for one: those are tried again, the others kept
    Image.fromarray(np.zeros((32, 32), dtype=np.uint8)).save(tmp_path / "data/images/03.png")
    Image.fromarray(np.zeros((32, 32), dtype=np.uint8)).save(tmp_path / "data/graders/a/04.png")
    heard: list[tuple[int, int]] = []
    source = open_data(str(tmp_path / "data"), split="val")
    summary = run_it(tmp_path / "out", source, watch=lambda *told: heard.append(told))
    assert heard[0] == (0, 2)
    assert (summary["num_images"], summary["num_failed"], summary["failed"]) == (20, 0, [])


def test_scores_of_masks_that_were_changed_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "data")
    mask, out = tmp_path / "data/graders/a/00.png", tmp_path / "out"

    def run(**how: Any) -> dict[str, Any]:
        return run_it(out, open_data(str(tmp_path / "data"), split="val"), **how)

    before = run()
    status, was = mask.stat(), mask.read_bytes()
    shape = np.asarray(Image.open(mask)).shape
    Image.fromarray(np.ones(shape, dtype=np.uint8)).save(mask)
    os.utime(mask, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(ConfigError, match=r"1 image.* 00 .*data.*--replace"):
        run()
    assert read_rows(out / ROWS_FILE)[0].scores  # the refusal deleted nothing
    (out / FILES_FILE).unlink()
    with pytest.raises(ConfigError, match="18 images"):  # nobody knows what they were scored on
        run()
    after = run(replace=True)
    assert after["ged2"]["mean"] != before["ged2"]["mean"]
    assert after["data_fingerprint"] != before["data_fingerprint"]
    mask.write_bytes(was)
    assert run(replace=True)["data_fingerprint"] == before["data_fingerprint"]


def test_data_that_change_during_an_evaluation_give_no_result(tmp_path: Path) -> None:
    write_folder(tmp_path / "data")
    source = open_data(str(tmp_path / "data"), split="val")

    def meddle(done: int, _total: int) -> None:
        if done:
            Image.fromarray(np.ones((32, 32), dtype=np.uint8)).save(tmp_path / "data/graders/b/00.png")

    with pytest.raises(DataError, match=r"b/00\.png changed"):
        run_it(tmp_path / "out", source, watch=meddle)
    assert not (tmp_path / "out" / SUMMARY_FILE).exists()
    with pytest.raises(ConfigError, match="--replace"):
        run_it(tmp_path / "out", source)


def test_data_that_do_not_fit_the_model_are_refused_as_a_whole(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 classes where the model has 2; 15 random ids of instances where the"):
        run_it(tmp_path, open_synthetic("neurites", split="val", num_images=2, size=32))
    with pytest.raises(DataError, match="3 image channels where the model has 1"):
        run_it(tmp_path, open_synthetic("streets", split="val", num_images=2, size=32))
    assert not list(tmp_path.iterdir())


def test_undefined_metrics_are_null_with_a_reason(tmp_path: Path) -> None:
    one_sample = run_it(tmp_path / "one", lesions(3), scorer_of(small_model(), num_samples=1))
    assert one_sample["ged2_unbiased"] is None
    assert one_sample["reasons"]["ged2_unbiased"] == "needs at least two samples"
    assert one_sample["reasons"]["rand_error"] == "labels are classes, not instances"
    assert one_sample["ged2"]["mean"] >= 0
    neurites = open_synthetic("neurites", split="val", num_images=3, size=32)
    one_grader = run_it(tmp_path / "cells", neurites, scorer_of(small_model("neurites"), "neurites"))
    assert one_grader["reasons"]["ged2_unbiased"] == "needs at least two graders"
    assert one_grader["reasons"]["ap"] == "only for instances among other classes"
    assert 0 <= one_grader["rand_error"]["mean"] <= 1
    for summary in (one_sample, one_grader, one_sample["subset_b"]):
        assert {name for name in listed(summary) if summary[name] is None} == summary["reasons"].keys()
        absent = {*HIDDEN_METRICS, *REPRESENTATIVE_METRICS}
        absent |= {*(CLASS_METRICS if summary is one_grader else CLUSTER_METRICS), *VOLUME_METRICS}
        assert set(listed(summary)) == set(ALL_METRICS) - absent


def test_evaluation_where_every_image_fails_still_ends_with_a_summary(tmp_path: Path) -> None:
    source = lesions(3)

    class Broken(SyntheticSource):
        def __getitem__(self, index: int) -> Any:
            raise DataError(f"{index}: gone\nfor ever")

    source.__class__ = Broken
    summary = run_it(tmp_path, source)
    assert (summary["num_images"], summary["num_failed"]) == (0, 3)
    assert summary["ged2"] is None
    assert summary["reasons"]["ged2"] == "no image"
    assert read_rows(tmp_path / ROWS_FILE)[2].error == "2: gone for ever"
    assert not (tmp_path / EXAMPLES_FILE).exists()


def test_average_precision_of_perfect_samples_is_that_of_the_true_cars(tmp_path: Path) -> None:
    """The samples are the truth under random ids: clustering finds the cars again, but for the thin ones."""
    source = open_synthetic("streets", split="val", num_images=4, size=(64, 128))
    rng = np.random.default_rng(0)

    class Perfect(Scorer):
        def draw(self, source: Any, items: Any) -> Any:
            (drawn,) = super().draw(source, items)
            samples = []
            for i in drawn.maps.indices:
                labels, first = source[i].labels[0], self.info.num_fixed_classes
                ids = rng.integers(first, first + self.info.num_random_ids, (8, labels.max() + 1))
                samples.append(np.where(labels < first, labels, ids[:, labels]))
            maps = {"labels": np.stack(samples).astype(np.uint8), "rebuilt": drawn.maps.batch.labels}
            maps["confidence"] = np.ones((len(samples), 64, 128), dtype=np.float32)
            yield drawn._replace(maps=drawn.maps._replace(**maps))

    info = INFO["streets"]
    perfect = Perfect(model=small_model("streets"), info=info, crop=(64, 128), num_samples=8, alpha=4, erosion=5)
    summary = run_it(tmp_path, source, perfect)
    matches = []
    for i in range(4):
        cars = np.maximum(source[i].labels[0] - info.num_fixed_classes + 1, 0)
        found = postprocess(cars, keep_unmatched=False)
        scores = np.ones(int(found.max()) + 1)
        matches.append(match_instances(prediction=found, scores=scores, truth=cars, valid=source[i].valid))
    expected = average_precision(matches)
    assert 0.2 < expected.ap < expected.ap50 < 0.9
    # Thin cars are painted over in the order of their numbers, which clustering draws.
    assert summary["ap50"]["value"] == pytest.approx(expected.ap50, abs=0.03)
    assert summary["ap"]["value"] == pytest.approx(expected.ap, abs=0.03)
    assert 0.95 < summary["background_iou"]["mean"] < 1  # thin cars became background
    assert summary["ap"]["mean"] == pytest.approx(expected.ap, abs=3 * summary["ap"]["std"])
    assert summary["iou_rec"]["mean"] == 1


def test_examples_hold_what_the_rows_were_scored_on(tmp_path: Path) -> None:
    source = open_synthetic("neurites", split="val", num_images=10, size=32)
    scorer = scorer_of(small_model("neurites"), "neurites")
    run_it(tmp_path, source, scorer)
    with np.load(tmp_path / EXAMPLES_FILE, allow_pickle=False) as archive:
        shown = {name: archive[name] for name in archive.files}
    rows = {row.key: row for row in read_rows(tmp_path / ROWS_FILE)}
    keys = shown["keys"].tolist()
    assert len(keys) == len(set(keys)) in (3, 4, 5)
    assert str(shown["hardness_metric"]) == "rand_error"
    for key, hardness in zip(keys, shown["hardness"], strict=True):
        assert rows[key].scores["rand_error"] == hardness
    worst = sorted((row.scores["rand_error"] for row in rows.values()), reverse=True)[:3]
    assert sorted(shown["hardness"][shown["is_hardest"]], reverse=True) == worst
    assert [key for key, there in zip(keys, shown["is_spread"], strict=True) if there] == list(rows)[::9]
    found = ged2(samples=shown["samples_full"], labels=shown["labels"], num_classes=16, valid=shown["valid"])
    assert found.tolist() == [rows[key].scores["ged2"] for key in keys]  # all four samples fit in
    again = rand_error(prediction=shown["instances"], truth=shown["true_instances"], valid=shown["valid"])
    assert again.tolist() == shown["hardness"].tolist()
    found, truth = ((shown[name] == 0) & shown["valid"] for name in ("instances", "true_instances"))
    expected = (found & truth).sum(axis=(1, 2)) / (found | truth).sum(axis=(1, 2))
    assert expected.tolist() == [rows[key].scores["background_iou"] for key in keys]


def test_examples_hold_the_largest_deviation_of_a_class_by_scale(tmp_path: Path) -> None:
    source = open_synthetic("neurites", split="val", num_images=2, size=32)
    model = small_model("neurites")
    scorer = scorer_of(model, "neurites")
    shown = example_arrays(scorer, source, [0, 1])
    ways = (["sample", "sample"], ["sample", "mean"], ["mean", "sample"])
    for i in range(2):
        for way, latents in enumerate(ways):
            (generator,) = scorer.generators([source.identities[i].key], seed=0)
            image = torch.from_numpy(source[i].image)[None]
            drawn = sample(model, image=image, num_samples=4, latents=latents, generator=generator)
            expected = drawn.probs[0].numpy().std(axis=0).max(axis=0)
            assert expected.max() > 0.01
            np.testing.assert_allclose(shown["std"][i, way], expected, atol=1e-5)
    assert (shown["samples_global"] != shown["samples_local"]).any()


def test_rows_of_instances_without_the_newer_columns_can_still_be_read(tmp_path: Path) -> None:
    source = open_synthetic("neurites", split="val", num_images=3, size=32)
    scorer = scorer_of(small_model("neurites"), "neurites")
    run_it(tmp_path, source, scorer)
    path = tmp_path / ROWS_FILE
    whole = path.read_text()
    make_older(path)
    _, older = read_evaluation(tmp_path)
    summary = summarise(older, scope=scorer.scope)
    assert summary["rand_error"] is not None
    assert "older" in summary["reasons"]["background_iou"]
    run_it(tmp_path, source, scorer)  # measures them again
    assert path.read_text() == whole


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_samples": 0}, "num_samples"),
        ({"num_samples": 100_000}, "num_samples: expected 1 to 1024"),
        ({"num_seeds": 0}, "num_seeds"),
        ({"num_seeds": 10**9}, "num_seeds"),
        ({"num_seeds": 2, "kind": "neurites"}, "2 seeds: only for classes.*one --seed at a time"),
        ({"seed": -1}, "seed"),
        ({"alpha": -1}, "alpha"),
        ({"alpha": 99}, "alpha"),
    ],
)
def test_scorer_refuses_impossible_numbers(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        scorer_of(small_model(), **changes)
    with pytest.raises(ConfigError, match="limit must be at least 1"):
        evaluate(scorer_of(small_model()), source=lesions(1), folder=Path("nowhere"), limit=0)


def test_damaged_rows_are_refused_by_line(tmp_path: Path) -> None:
    run_it(tmp_path, lesions(3))
    whole = (tmp_path / ROWS_FILE).read_text()
    for damage, words in (
        (whole.replace("\n1,", "\n1,x,", 1), "row 2"),
        (whole.replace("\n1,", "\none,", 1), "row 2"),
        (whole.replace("image,key", "image,clef", 1), "columns"),
        (whole.replace(",4,1,", ",4,1,nan", 1).replace(",4,0,", ",4,0,nan", 1), "cannot be read"),
        ("", "columns"),
    ):
        (tmp_path / ROWS_FILE).write_text(damage)
        with pytest.raises(DataError, match=words):
            run_it(tmp_path, lesions(3))
    (tmp_path / ROWS_FILE).write_bytes(b"\xff\n")
    with pytest.raises(DataError, match="columns"):
        run_it(tmp_path, lesions(3))
    (tmp_path / "evaluation.json").write_text(json.dumps({"format": "another"}))
    with pytest.raises(DataError, match=r"evaluation.json"):
        run_it(tmp_path, lesions(3))


def test_rows_with_random_damage_are_read_or_refused(tmp_path: Path) -> None:
    source = open_synthetic("streets", split="val", num_images=2, size=(32, 32))
    run_it(tmp_path, source, scorer_of(small_model("streets"), "streets"))
    whole = (tmp_path / ROWS_FILE).read_bytes()
    assert sum(row.matches is not None for row in read_rows(tmp_path / ROWS_FILE)) == 2
    rng = np.random.default_rng(0)
    outcomes = set()
    for _ in range(300):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), rng.integers(1, 4)):
            damaged[place] = rng.choice(list(b'0123456789,"[]\n.-eNainf\xff\x00'))
        (tmp_path / ROWS_FILE).write_bytes(damaged)
        try:
            read_rows(tmp_path / ROWS_FILE)
            outcomes.add("read")
        except DataError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_rows_have_all_metrics_as_columns() -> None:
    always = set(METRICS) - {*NEWER_METRICS, *HIDDEN_METRICS, *CLUSTER_METRICS, *CLASS_METRICS, *VOLUME_METRICS}
    assert always - set(REPRESENTATIVE_METRICS) < set(COLUMNS)
    for kind, of_kind in (({"alpha": 4}, CLUSTER_METRICS), ({"alpha": None}, CLASS_METRICS)):
        own = {*NEWER_METRICS, *of_kind} - {*VOLUME_METRICS}
        assert set(columns_of(kind)) - set(COLUMNS) == own
        of_volumes = {*NEWER_METRICS, *of_kind, *SLICE_METRICS} - {*IMAGE_METRICS}
        assert set(columns_of({**kind, "ndim": 3})) - set(COLUMNS) == of_volumes
        assert set(columns_of({**kind, "representatives": 4})) - set(COLUMNS) == {*own, *REPRESENTATIVE_METRICS}
        assert set(columns_of({**kind, "extrapolate": True})) - set(COLUMNS) == {*NEWER_METRICS, *HIDDEN_METRICS}


def test_summary_says_which_part_of_the_images_was_scored(tmp_path: Path) -> None:
    for _ in range(2):  # the second time nothing is read
        centre = run_it(tmp_path / "centre", lesions(3, size=48))
        assert scored_part(centre) == "the centre 32×32 of each"
    other = {**centre, "crop": [64, 64]}
    assert scored_part(other) == "the centre 64×64 of each"
    assert scored_part(pooled([centre, centre])) == scored_part(centre)
    assert scored_part(pooled([centre, other])) == ""
    assert scored_part({key: value for key, value in centre.items() if key != "crop"}) == ""


def test_evaluation_says_what_it_scored_of_images_of_other_sizes(tmp_path: Path) -> None:
    said: list[str] = []
    run_it(tmp_path / "small", lesions(3, size=16), say=said.append)
    assert said.pop() == "scored the centre 32×32 of images of 16×16 pixels; pixels around smaller ones do not count"
    run_it(tmp_path / "large", lesions(3, size=64), say=said.append)
    assert said.pop() == "scored the centre 32×32 of images of 64×64 pixels"
    run_it(tmp_path / "equal", lesions(3), say=said.append)
    assert said == []
    run_it(tmp_path / "whole", lesions(3), scorer_of(small_model(), crop=None), say=said.append)
    assert said == ["scored whole images of 32×32 pixels"]


def test_evaluation_says_what_was_there_and_replaces_it_only_when_told(tmp_path: Path) -> None:
    said: list[str] = []
    run_it(tmp_path, lesions(4), limit=3, say=said.append)
    assert said == []
    run_it(tmp_path, lesions(4), say=said.append)
    run_it(tmp_path, lesions(4), say=said.append)
    run_it(tmp_path, lesions(4), say=said.append, replace=True)
    assert said == ["3 of 4 rows are done already", "all 4 rows are done already; --replace evaluates them again"]


def test_a_metric_of_fewer_images_has_a_reason() -> None:
    scope = Scope(num_samples=4, has_instances=True, has_average_precision=False)
    rows = [Row(image=i, key=f"{i}", patient=f"{i}", num_graders=1, scores={"ged2": 0.5}) for i in range(3)]
    rows[0] = replace(rows[0], scores={"ged2": 0.5, "rand_error": 0.1})
    summary = summarise(rows, scope=scope)
    assert metric_note(summary, "rand_error") == "rand_error: 1 of 3 images; the others have no true instance"
    assert metric_note(summary, "ged2") == ""


def test_images_without_any_instance_have_no_iou_rec(tmp_path: Path) -> None:
    """Classes keep it: an empty reconstruction of an empty grading is right."""
    for kind, num_defined in (("neurites", 1), ("lesions", 2)):
        source = open_synthetic(kind, split="val", num_images=2, size=32)
        maps = torch.from_numpy(np.stack([source[0].labels, np.zeros_like(source[1].labels)]))
        maps = maps.clamp(max=1)
        batch = Batch(
            image=torch.zeros(2, 1, 32, 32),
            labels=maps,
            valid=torch.ones(2, 32, 32, dtype=torch.bool),
            graders=torch.ones(maps.shape[:2], dtype=torch.bool),
        )
        scores = image_scores(samples=maps, reconstructions=maps, batch=batch, info=source.info)
        assert int(scores["iou_rec"].isfinite().sum()) == num_defined
        assert torch.equal(scores["hm_iou"], torch.ones(2, dtype=torch.float64))


def test_representatives_are_scored_apart(tmp_path: Path) -> None:
    """All other columns stay as they are; as many representatives as samples have the samples' own scores."""
    plain = run_it(tmp_path / "plain", lesions(4), scorer_of(small_model(), num_samples=6))
    summaries, rows = {}, {}
    for num in (2, 6):
        scorer = scorer_of(small_model(), num_samples=6, representatives=num)
        summaries[num] = run_it(tmp_path / f"{num}", lesions(4), scorer)
        rows[num] = read_rows(tmp_path / f"{num}" / ROWS_FILE)
    for one, few, all_of_them in zip(read_rows(tmp_path / "plain" / ROWS_FILE), rows[2], rows[6], strict=True):
        assert set(few.scores) - set(one.scores) == set(REPRESENTATIVE_METRICS)
        assert {name: few.scores[name] for name in one.scores} == one.scores
        for name in ("ged2", "hm_iou"):
            assert all_of_them.scores[f"representatives_{name}"] == pytest.approx(one.scores[name])
    assert not set(REPRESENTATIVE_METRICS) & set(listed(plain))
    assert set(REPRESENTATIVE_METRICS) < set(listed(summaries[2]))
    assert summaries[2]["area_crps"] == plain["area_crps"]
    assert folder_name(split="val", num_samples=100, representatives=4) == "val-100-k4"
    with pytest.raises(ConfigError, match="representatives"):
        run_it(tmp_path / "2", lesions(4), scorer_of(small_model(), num_samples=6, representatives=3))
    with pytest.raises(ConfigError, match="expected 1 to 6"):
        scorer_of(small_model(), num_samples=6, representatives=7)
    with pytest.raises(ConfigError, match="random ids"):
        scorer_of(small_model("neurites"), "neurites", representatives=2)


def test_rows_without_the_crps_of_areas_can_still_be_read(tmp_path: Path) -> None:
    run_it(tmp_path / "new", lesions(4))
    run_it(tmp_path / "old", lesions(4))
    make_older(tmp_path / "old" / ROWS_FILE)
    new, old = (read_evaluation(tmp_path / name)[1] for name in ("new", "old"))
    lost = {"area_crps", *NEWER_METRICS}
    assert [set(one.scores) - set(other.scores) for one, other in zip(new, old, strict=True)] == [lost] * 4
    scope = scorer_of(small_model()).scope
    assert "older" in summarise(old, scope=scope)["reasons"]["area_crps"]
    assert summarise(new, scope=scope)["area_crps"]["mean"] >= 0
