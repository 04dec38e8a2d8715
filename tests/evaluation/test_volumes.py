"""Scores of volumes: their rows, the means over their slices, counts by slice, samples in files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from tiny_run import untrained_model

from hpunet.data.batch import Batch
from hpunet.data.types import Identity, Sample, SetInfo, make_sample
from hpunet.errors import ConfigError, DataError
from hpunet.evaluation import summary as evaluation_summary
from hpunet.evaluation.compare import compare, read_evaluated
from hpunet.evaluation.counts import count_maps, of_volumes, subset_b_from_counts, volume_scores_from_counts
from hpunet.evaluation.drawn import Drawn, Maps
from hpunet.evaluation.examples import _padded, example_arrays
from hpunet.evaluation.images import Item, as_batch, centre_crop, drawn_together, fast_batch_size, true_instances
from hpunet.evaluation.rows import Row, RowStore, columns_of, read_rows
from hpunet.evaluation.sample_files import SampleFiles, write_samples
from hpunet.evaluation.score import score_samples
from hpunet.evaluation.scorer import Scorer
from hpunet.evaluation.scores import image_scores, marginal_scores, metric_arguments, slice_scores
from hpunet.evaluation.summary import counts, metric_note, scored_part, sizes_scored, summarise
from hpunet.metrics import area_crps, subset_b
from hpunet.sampling.sample import sample
from hpunet.sampling.tiling import Padding

SIZES = ((4, 6, 7), (3, 8, 5), (4, 6, 7))
SPACING = (2.5, 0.8, 0.8)


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_summary, "NUM_BOOTSTRAPS", 50)


def info_of(*, instances: bool = False, spacing: tuple[float, ...] | None = SPACING) -> SetInfo:
    if instances:
        ids = {"fixed_classes": ("membrane",), "num_random_ids": 5, "stochastic_classes": (1, 2, 3, 4, 5)}
        return SetInfo("test", 1, 1, **ids, spacing=spacing, ndim=3)
    return SetInfo("test", 1, 3, ("background", "lesion"), stochastic_classes=(1,), spacing=spacing, ndim=3)


class Volumes:
    """Three volumes in memory, of two sizes; a part of the second is invalid, and one of its graders is missing."""

    def __init__(self, info: SetInfo, *, seed: int = 0) -> None:
        self.info, self.split = info, "val"
        self.identities = [Identity(f"patient-{i}", f"case-{i}") for i in range(len(SIZES))]
        rng = np.random.default_rng(seed)
        self._labels = [self._drawn(rng, size) for size in SIZES]

    def _drawn(self, rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
        if not self.info.has_instances:
            return rng.integers(0, 2, (self.info.num_graders, *size))
        blocks = 1 + np.arange(4).reshape(1, 2, 2)
        return np.kron(blocks, np.ones((size[0], -(-size[1] // 2), -(-size[2] // 2)), int))[
            None, :, : size[1], : size[2]
        ]

    def __len__(self) -> int:
        return len(SIZES)

    def __getitem__(self, index: int) -> Sample:
        size, is_second = SIZES[index], index == 1
        valid, graders = np.ones(size, dtype=np.bool_), np.ones(self.info.num_graders, dtype=np.bool_)
        if is_second:
            valid[0], valid[1, 3:], graders[1:2] = False, False, False
        how: dict[str, Any] = {"identity": self.identities[index], "info": self.info, "where": "memory"}
        image = np.zeros((1, *size), dtype=np.uint8)
        return make_sample(image=image, labels=self._labels[index], valid=valid, graders=graders, **how)

    def files(self, index: int) -> Mapping[str, Path | bytes]:
        return {f"case-{index}": self._labels[index].tobytes()}


def samples_of(index: int, *, num: int = 6, classes: int = 2) -> np.ndarray:
    """Of one volume; the second has an empty sample."""
    found = np.random.default_rng(100 + index).integers(0, classes, (num, *SIZES[index])).astype(np.uint8)
    found[0, :, :2] = 0
    found[1] *= index != 1
    return found


def score(samples: Path, source: Volumes, folder: Path, *, pattern: str | None = None, **how: Any) -> dict[str, Any]:
    files = SampleFiles(samples, keys=[key for _, key in source.identities], pattern=pattern)
    return score_samples(files, source=source, folder=folder, **{"num_samples": 6, **how})


# Scores


def test_slice_scores_are_those_of_an_evaluation_of_the_slices() -> None:
    source = Volumes(info_of())
    for index in range(len(source)):
        batch, samples = as_batch(source[index]), torch.from_numpy(samples_of(index))[None]
        rebuilt = batch.labels.roll(1, dims=-1)
        found = slice_scores(samples=samples, reconstructions=rebuilt, batch=batch, info=source.info)
        assert found.keys() == {"slice_ged2", "slice_hm_iou", "slice_iou_rec", "slice_area_crps"}
        seen = [z for z in range(SIZES[index][0]) if batch.valid[0, z].any()]
        assert len(seen) == (2 if index == 1 else 4)
        slices = Batch(
            image=batch.image[0, :, seen].movedim(0, 1),
            labels=batch.labels[0, :, seen].movedim(0, 1),
            valid=batch.valid[0, seen],
            graders=batch.graders.expand(len(seen), -1),
        )
        images = {"samples": samples[0, :, seen].movedim(0, 1), "reconstructions": rebuilt[0, :, seen].movedim(0, 1)}
        expected = image_scores(**images, batch=slices, info=source.info)
        for name in ("ged2", "hm_iou", "iou_rec"):
            assert found[f"slice_{name}"].item() == pytest.approx(expected[name].mean().item(), abs=1e-12)
        areas = area_crps(samples=images["samples"], **metric_arguments(slices, source.info))
        assert found["slice_area_crps"].item() == pytest.approx(areas.mean().item(), abs=1e-12)


@pytest.mark.parametrize("spacing", [SPACING, None])
def test_volume_crps_takes_the_place_of_that_of_areas(spacing: tuple[float, ...] | None) -> None:
    source = Volumes(info_of(spacing=spacing))
    batch, samples = as_batch(source[0]), torch.from_numpy(samples_of(0))[None]
    found = marginal_scores(samples=samples, batch=batch, info=source.info)
    assert "area_crps" not in found
    in_voxels = area_crps(samples=samples, **metric_arguments(batch, source.info)).item()
    assert found["volume_crps"].item() == pytest.approx(in_voxels * (2.5 * 0.64 / 1000 if spacing else 1))


def test_scores_from_counts_by_slice_are_those_of_the_metrics() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        size, has_ids = (3, 5, 6), seed % 2 == 1
        num_classes = 3
        maps = [rng.integers(0, num_classes, (2, n, *size)) * (rng.random((2, n, 3, 1, 1)) < 0.7) for n in (4, 2, 2)]
        valid, graders = rng.random((2, *size)) < 0.8, np.array([[True, True], [True, seed % 3 > 0]])
        valid[0, 1] = False
        samples, labels, rebuilt = (torch.from_numpy(each) for each in maps)
        batch = Batch(torch.zeros(2, 1, *size), labels.int(), torch.from_numpy(valid), torch.from_numpy(graders))
        names = ("a", "b", "c")
        info = SetInfo("t", 1, 2, names[: 3 - has_ids], int(has_ids), (1, 2), spacing=SPACING, ndim=3)
        common = metric_arguments(batch, info)
        by_slice = count_maps(samples=samples.byte(), reconstructions=rebuilt.int(), **common)
        assert by_slice.shared.shape == (2, 3, 2, 8, 8)
        as_arrays = by_slice._make(each.numpy() for each in by_slice)
        found = volume_scores_from_counts(as_arrays, graders=graders, spacing=SPACING, skip_empty=has_ids)
        both = {"samples": samples.byte(), "reconstructions": rebuilt.int(), "batch": batch, "info": info}
        expected = image_scores(**both) | slice_scores(**both)
        expected |= marginal_scores(samples=samples.byte(), batch=batch, info=info)
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values.numpy(), rtol=0, atol=1e-12, err_msg=f"{name} {seed}")
        marked = subset_b_from_counts(of_volumes(as_arrays), graders=graders)
        assert marked.tolist() == subset_b(**common).tolist()


# Images


@pytest.mark.parametrize("crop", [(2, 4, 4), (5, 3, 8), (4, 6, 7)])
def test_centre_crop_cuts_and_pads_every_axis(crop: tuple[int, ...]) -> None:
    batch = as_batch(Volumes(info_of())[0])
    found = centre_crop(batch, crop=crop)
    assert found.valid.shape == (1, *crop)
    places = [(side, wanted, (side - wanted) // 2) for side, wanted in zip(SIZES[0], crop, strict=True)]
    for here in np.ndindex(*crop):
        there = tuple(at + start for at, (_, _, start) in zip(here, places, strict=True))
        inside = all(0 <= at < side for at, (side, _, _) in zip(there, places, strict=True))
        assert bool(found.valid[0][here]) == inside
        assert found.labels[0, :, *here].tolist() == (batch.labels[0, :, *there].tolist() if inside else [0, 0, 0])


def test_volumes_are_drawn_together_by_size_and_as_many_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Volumes(info_of())
    items = [Item(i, source[i]) for i in range(3)]

    def numbers(**how: Any) -> list[list[int]]:
        return [[item.number for item in group] for group in drawn_together(items, **how)]

    assert numbers(crop=None) == [[0, 2], [1]]
    assert numbers(crop=(4, 4, 4)) == [[0, 1, 2]]
    monkeypatch.setattr("hpunet.evaluation.images.MAX_PIXELS", 200)
    assert numbers(crop=None) == [[0], [1], [2]]
    assert numbers(crop=(4, 4, 4)) == [[0, 1, 2]]
    assert numbers(crop=(4, 5, 5)) == [[0, 1], [2]]
    monkeypatch.undo()
    sizes = {(16, 64, 64): 8, (64, 64, 64): 4, (40, 512, 512): 1}
    assert [fast_batch_size(torch.device("cpu"), volume=size) for size in sizes] == list(sizes.values())


def test_example_maps_of_volumes_of_several_sizes_are_padded_to_one() -> None:
    maps = np.ones((1, 2, 3, 4, 5), dtype=np.uint8)
    found = _padded("labels", maps, to=(4, 4, 6))
    assert found.shape == (1, 2, 4, 4, 6)
    assert found.sum() == found[:, :, :3, :, :5].sum() == maps.size
    assert _padded("labels", maps[:, :, 0], to=(5, 5)).shape == (1, 2, 5, 5)


def test_what_was_scored_is_said_of_volumes() -> None:
    assert sizes_scored({(4, 6, 7), (3, 8, 5)}, crop=None) == "scored whole volumes of 3×8×5 to 4×6×7 voxels"
    assert "voxels around smaller ones" in sizes_scored({(4, 6, 7)}, crop=(5, 6, 7))


def test_examples_hold_planes_of_what_a_model_of_volumes_draws() -> None:
    source = Volumes(info_of())
    model = untrained_model(info_of(), ndim=3)
    scorer = Scorer(model=model, info=source.info, crop=None, num_samples=3)
    found = example_arrays(scorer, source, [1, 0])  # of two sizes
    assert found["image"].shape == (2, 1, 8, 7)
    assert found["coronal_samples_full"].shape == (2, 3, 4, 7)
    assert found["sagittal_std"].shape == (2, 3, 4, 8)
    assert found["spacing"].tolist() == list(SPACING)
    z, y, x = found["position"][1]
    sample_, key = source[0], source.identities[0].key
    assert sample_.labels[:, z, y, x].any()
    (generator,) = scorer.generators([key], seed=0)
    image = Padding.of(*SIZES[0], multiples=model.size_multiples)
    drawn = sample(model, image=image.add(torch.from_numpy(sample_.image)[None]), num_samples=3, generator=generator)
    labels, probs = (each[image.inside][0].numpy() for each in (drawn.labels, drawn.probs))
    d, h, w = SIZES[0]
    shown = (found[name][1] for name in ("samples_full", "coronal_samples_full", "sagittal_samples_full"))
    for maps, expected in zip(shown, (labels[:, z], labels[:, :, y], labels[..., x]), strict=True):
        tall, wide = expected.shape[1:]
        assert (maps[:, :tall, :wide] == expected).all()
        assert not maps[:, tall:].any()
    expected = probs[:, :, :, y].std(axis=0).max(axis=0)
    assert expected.max() > 0.01
    np.testing.assert_allclose(found["coronal_std"][1, 0, :d, :w], expected, atol=1e-6)
    assert (found["sagittal_labels"][1, :, :d, :h] == sample_.labels[..., x]).all()
    assert not found["valid"][1, h:].any()


# Rows


def scorer_of(info: SetInfo, **how: Any) -> Scorer:
    flat = SetInfo("flat", 1, 1, info.fixed_classes, info.num_random_ids)
    return Scorer(model=untrained_model(flat), info=info, crop=None, num_samples=6, **how)


def drawn(source: Volumes, index: int, samples: np.ndarray, *, counted: bool, truth: bool = False) -> Drawn:
    """What a model would have drawn."""
    found, key = source[index], source.identities[index].key
    batch = as_batch(found)
    instances = true_instances(batch, source.info) if truth else None
    maps = Maps([index], [key], batch, instances, labels=samples[None], rebuilt=batch.labels)
    if counted:
        how = {"samples": torch.from_numpy(samples)[None], "reconstructions": batch.labels}
        found_there = count_maps(**how, **metric_arguments(batch, source.info))
        maps = maps._replace(counts=found_there._make(each.numpy() for each in found_there), rebuilt=None)
    return Drawn([Item(index, found)], maps)


def test_rows_of_volumes_are_the_same_wherever_voxels_are_counted() -> None:
    source, model_info = Volumes(info_of()), info_of(spacing=None)
    rows: list[list[Row]] = []
    for counted in (False, True):
        scorer = scorer_of(model_info, representatives=3)
        per_volume = [drawn(source, i, samples_of(i), counted=counted) for i in range(3)]
        rows.append([row for each in per_volume for row in scorer.score(source, each)])
    for one, other in zip(*rows, strict=True):
        assert dict(other.scores) == pytest.approx(dict(one.scores), abs=1e-12)
        assert (one.subset_b, one.num_graders) == (other.subset_b, other.num_graders)
    identity = {"alpha": None, "representatives": 3, "ndim": 3}
    wanted = set(columns_of(identity)) - {"rand_error", "instances", "error"}
    assert set(rows[0][0].scores) == wanted - {"image", "key", "patient", "num_graders", "subset_b"}
    assert rows[0][0].scores["iou_rec"] == rows[0][0].scores["slice_iou_rec"] == 1
    # In ml by the spacing of the data, which may be another one than the model's.
    in_ml = marginal_scores(
        samples=torch.from_numpy(samples_of(0))[None], batch=as_batch(source[0]), info=source.info
    )
    assert rows[0][0].scores["volume_crps"] == in_ml["volume_crps"].item()


def test_instances_of_perfect_samples_have_no_error_in_volumes_and_slices() -> None:
    source = Volumes(info_of(instances=True))
    scorer = scorer_of(source.info, erosion=3, num_seeds=1)
    truth = source[0].labels[0]
    ids = np.random.default_rng(0)
    samples = np.stack([np.append(0, ids.permutation(5)[:4] + 1)[truth] for _ in range(6)]).astype(np.uint8)
    (row,) = scorer.score(source, drawn(source, 0, samples, counted=False, truth=True))
    assert row.scores["rand_error"] == row.scores["slice_rand_error"] == 0
    assert row.scores["background_iou"] == 1
    # Ids that change from slice to slice: right in every slice, wrong in the volume.
    turned = np.stack([(samples[:, z] - 1 + z) % 5 + 1 for z in range(samples.shape[1])], axis=1).astype(np.uint8)
    (row,) = scorer.score(source, drawn(source, 0, turned, counted=False, truth=True))
    assert row.scores["slice_rand_error"] == 0
    assert row.scores["rand_error"] > 0.3
    of_classes = {"volume_crps", "slice_area_crps"}
    assert row.scores.keys() - set(columns_of({"alpha": 6, "ndim": 3})) == of_classes


def test_rows_of_volumes_are_read_back_and_summed_up(tmp_path: Path) -> None:
    source = Volumes(info_of())
    scorer = scorer_of(source.info)
    rows = [row for i in range(3) for row in scorer.score(source, drawn(source, i, samples_of(i), counted=False))]
    with RowStore(tmp_path, identity={"alpha": None, "ndim": 3}) as store:
        store.append(rows)
        assert store.finish() == read_rows(tmp_path / "rows.csv")
    summary = summarise(read_rows(tmp_path / "rows.csv"), scope=scorer.scope)
    assert {"volume_crps", "slice_ged2", "slice_area_crps"} < summary.keys()
    assert not {"area_crps", "slice_rand_error", "background_iou"} & summary.keys()
    assert summary["slice_ged2"]["num_images"] == 3
    for spacing, unit in ((None, "voxels"), ([2.5, 0.8, 0.8], "ml")):
        described = {**summary, "split": "val", "num_seeds": 1, "crop": None, "ndim": 3, "spacing": spacing}
        assert metric_note(described, "volume_crps") == f"volume_crps is in {unit}"
        assert counts(described).startswith("3 val volumes")
        assert scored_part(described) == "whole volumes"


# Samples in files


def test_sample_files_of_volumes_score_the_same_in_every_layout(tmp_path: Path) -> None:
    source = Volumes(info_of())
    (tmp_path / "stacked").mkdir()
    for i, (_, key) in enumerate(source.identities):
        write_samples(tmp_path / "npz", key, samples_of(i))
        voxels = samples_of(i).transpose(2, 3, 1, 0)  # h, w, d, s
        nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), tmp_path / f"stacked/{key}.nii.gz")
        (tmp_path / "single" / key).mkdir(parents=True)
        for n in range(6):
            nibabel.save(nibabel.Nifti1Image(voxels[..., n], np.eye(4)), tmp_path / f"single/{key}/{n}.nii")
    patterns = {"npz": None, "stacked": "{name}.nii.gz", "single": "{name}/{number}.nii"}
    crops: list[tuple[int, ...] | None] = [None, (2, 4, 6)]
    for crop in crops:
        summaries = {
            name: score(
                tmp_path / name, source, tmp_path / f"scored-{name}", pattern=pattern, crop=crop, replace_rows=True
            )
            for name, pattern in patterns.items()
        }
        rows = {name: read_rows(tmp_path / f"scored-{name}/rows.csv") for name in patterns}
        assert rows["npz"] == rows["stacked"] == rows["single"]
        scorer = scorer_of(source.info)
        if crop is None:
            for i, row in enumerate(rows["npz"]):
                (expected,) = scorer.score(source, drawn(source, i, samples_of(i), counted=False))
                without = {k: v for k, v in expected.scores.items() if k not in ("iou_rec", "slice_iou_rec")}
                assert row.scores == without
        summary = summaries["npz"]
        assert (summary["ndim"], summary["spacing"], summary["num_failed"]) == (3, [2.5, 0.8, 0.8], 0)
        assert summary["iou_rec"] is summary["slice_iou_rec"] is None
        assert "posterior" in summary["reasons"]["slice_iou_rec"]
        assert summary["volume_crps"]["mean"] > 0


def test_samples_that_are_no_volumes_are_refused(tmp_path: Path) -> None:
    source = Volumes(info_of())

    def as_npz() -> None:
        for i, (_, key) in enumerate(source.identities):
            write_samples(tmp_path / "out", key, samples_of(i))

    def refused(words: str, change: Callable[[], object], **how: Any) -> None:
        as_npz()
        change()
        with pytest.raises((DataError, ConfigError), match=words):
            score(tmp_path / "out", source, tmp_path / "scored", replace_rows=True, **how)

    refused(r"crop: expected depth", lambda: None, crop=(4, 4))
    of_slices = samples_of(0)[:, 0]
    refused(
        r"case-0\.npz: shape \(6, 6, 7\).*depth.*4×6×7", lambda: write_samples(tmp_path / "out", "case-0", of_slices)
    )
    (tmp_path / "pictures/case-0").mkdir(parents=True)
    for n in range(6):
        Image.new("L", (7, 6)).save(tmp_path / f"pictures/case-0/sample-{n}.png")
    with pytest.raises(DataError, match=r"sample-0\.png: a picture"):
        score(tmp_path / "pictures", source, tmp_path / "scored", skip_missing=True, replace_rows=True)


def test_volumes_are_not_compared_with_slices(tmp_path: Path) -> None:
    folders = {}
    for name, ndim, spacing in (("slices", None, None), ("volumes", 3, [1.0, 1.0, 1.0]), ("others", 3, None)):
        identity: dict[str, Any] = {"split": "val", "samples": 6, "crop": None, "extrapolate": False, "alpha": None}
        identity |= {"data": "x"} | ({} if ndim is None else {"ndim": ndim, "spacing": spacing})
        with RowStore(tmp_path / name, identity=identity) as store:
            store.append([Row(0, "case-0", "p", 2, True, {"ged2": 0.5})])
            store.finish()
        (tmp_path / name / "summary.json").write_text('{"limit": null}')
        folders[name] = [read_evaluated(tmp_path / name, split="val", num_samples=6, name=name)]
    for other in ("slices", "others"):
        with pytest.raises(ConfigError, match="volumes are compared with volumes") as caught:
            compare({"volumes": folders["volumes"], other: folders[other]})
        assert ("hpunet score" in str(caught.value)) is (other == "slices")  # how slices become volumes
    found = compare({"volumes": folders["volumes"], "again": folders["volumes"]})
    assert "slice_ged2" in found
    assert (found["ndim"], found["spacing"]) == (3, [1.0, 1.0, 1.0])
    assert "area_crps" not in found
