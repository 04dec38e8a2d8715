"""Scores from counts that a device makes, against the metrics, which look at every pixel on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_run import untrained_model

from hpunet.data.batch import Batch
from hpunet.data.synthetic.source import INFO, open_synthetic
from hpunet.data.types import SetInfo
from hpunet.evaluation import counts as counting
from hpunet.evaluation.counts import count_maps, scores_from_counts, subset_b_from_counts
from hpunet.evaluation.rows import ROWS_FILE, read_rows
from hpunet.evaluation.run import MAX_PROCESSES, default_processes, evaluate
from hpunet.evaluation.scorer import Scorer
from hpunet.evaluation.scores import image_scores, marginal_scores, metric_arguments
from hpunet.metrics import subset_b
from hpunet.training.build import autocast_for
from hpunet.utils.host_copies import copied_to_cpu

EXACT = (
    *(
        "ged2",
        "ged2_unbiased",
        "hm_iou",
        "hm_iou_best",
        "sample_diversity",
        "iou_rec",
        "best_match_dice",
        "area_crps",
    ),
    *("representatives_ged2", "representatives_hm_iou"),
)
"""Same operations on the same whole numbers; the others sum up in another order."""


def random_maps(seed: int, *, shape: tuple[int, int] = (5, 7)) -> tuple[dict[str, torch.Tensor], Batch, SetInfo]:
    """Three images with every complication: invalid pixels, missing graders, empty and equal maps, unknown labels."""
    rng = np.random.default_rng(seed)
    s, r, num_classes = int(rng.integers(1, 6)), int(rng.integers(1, 4)), int(rng.integers(2, 6))
    stochastic = tuple(range(int(rng.integers(1, num_classes)), num_classes))
    graders = rng.random((3, r)) < 0.6
    graders[range(3), rng.integers(r, size=3)] = True
    share = rng.choice([0, 0.3, 0.9])
    maps = [rng.integers(0, num_classes, (3, n, *shape)) * (rng.random((3, n, 1, 1)) < share) for n in (s, r, r)]
    maps[1][~graders] = 255
    valid = rng.random((3, *shape)) < 0.8
    valid[0] &= seed % 5 > 0
    samples, labels, rebuilt = (torch.from_numpy(each).to(torch.int32) for each in maps)
    labels *= torch.from_numpy(valid)[:, None]
    batch = Batch(torch.zeros(3, 1, *shape), labels, torch.from_numpy(valid), torch.from_numpy(graders))
    names = tuple(map(str, range(num_classes)))
    num_random_ids = len(stochastic) * (seed % 2)  # images without an instance are left out then
    info = SetInfo("test", 1, r, names[: num_classes - num_random_ids], num_random_ids, stochastic_classes=stochastic)
    return {"samples": samples.byte(), "reconstructions": rebuilt}, batch, info


@pytest.mark.parametrize("at_once", [1, 2**25])
def test_scores_from_counts_are_those_of_the_metrics(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_NUMBERS_AT_ONCE", at_once)
    num_defined = dict.fromkeys((*EXACT, "calibration_error", "uncertainty_error_ncc"), 0)
    for seed in range(60):
        maps, batch, info = random_maps(seed)
        common = metric_arguments(batch, info)
        counts = count_maps(**maps, **common)
        as_arrays = counts._make(each.numpy() for each in counts)
        graders = batch.graders.numpy()
        few = {"representatives": 1 + seed % maps["samples"].shape[1]}
        found = scores_from_counts(as_arrays, graders=graders, skip_empty=seed % 2 == 1, **few)
        expected = {
            **image_scores(**maps, batch=batch, info=info, **few),
            **marginal_scores(samples=maps["samples"], batch=batch, info=info),
        }
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            close = {"rtol": 0, "atol": 0 if name in EXACT else 1e-12, "equal_nan": True}
            np.testing.assert_allclose(found[name], values.numpy(), **close, err_msg=f"{name} {seed}")
            num_defined[name] += int(values.isfinite().sum())
        assert subset_b_from_counts(as_arrays, graders=graders).tolist() == subset_b(**common).tolist()
    assert min(num_defined.values()) > 30


def test_counts_are_whole_numbers_beyond_those_of_float32() -> None:
    # A sum of squares of 2^8 · 2^8 at 2^15 pixels is 2^31; of s² · s² of 1,024 samples it would not fit 2^53.
    samples = torch.zeros(1, 16, 128, 256, dtype=torch.uint8)
    samples[:, 8:, :, 1:] = 1
    labels = torch.zeros(1, 1, 128, 256, dtype=torch.int32)
    valid = torch.ones(1, 128, 256, dtype=torch.bool)
    graders = torch.ones(1, 1, dtype=torch.bool)
    how: dict[str, Any] = {"valid": valid, "graders": graders, "num_classes": 2, "classes": (1,)}
    counts = count_maps(samples=samples, labels=labels, reconstructions=labels + 1, **how)
    pixels = 128 * 255  # there half of the samples differ: u = 16² - 8² - 8² = 128, e = 8
    assert counts.moments.tolist() == [[[128 * pixels, 128**2 * pixels, 8 * pixels, 64 * pixels, 1024 * pixels]]]
    assert counts.shared[0, 0, 8, 8:].tolist() == [pixels] * 8 + [0, pixels]
    assert counts.agreement[0].nonzero().tolist() == [[0, 0], [8, 0]]
    found = scores_from_counts(
        counts._make(each.numpy() for each in counts), graders=graders.numpy(), skip_empty=False
    )
    assert found["uncertainty_error_ncc"] == pytest.approx([1])
    assert found["calibration_error"] == pytest.approx([0.5 * 255 / 256])


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("lesions", {}),
        ("lesions", {"num_seeds": 2}),
        ("neurites", {}),
        ("streets", {}),
        ("lesions", {"extrapolate": True}),
    ],
)
def test_rows_are_the_same_wherever_pixels_are_counted(
    kind: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_synthetic(kind, split="val", num_images=5, size=(32, 32))
    model = untrained_model(INFO[kind], extrapolate=changes.get("extrapolate", False))
    scorer = Scorer(model=model, info=INFO[kind], crop=(32, 32), num_samples=4, **changes)
    rows = {}
    for counted in (False, True):
        monkeypatch.setattr(Scorer, "counts_on_device", counted)
        evaluate(scorer, source=source, folder=tmp_path / str(counted), batch_size=3)
        rows[counted] = read_rows(tmp_path / str(counted) / ROWS_FILE)
    for one, other in zip(rows[False], rows[True], strict=True):
        assert one.scores.keys() == other.scores.keys()
        assert dict(other.scores) == pytest.approx(dict(one.scores), abs=1e-12)
        assert (one.subset_b, one.num_graders) == (other.subset_b, other.num_graders)
        if one.matches is not None:
            assert other.matches is not None
            assert np.array_equal(one.matches.iou, other.matches.iou)


def test_instances_scored_by_other_processes_give_the_same_rows(tmp_path: Path) -> None:
    source = open_synthetic("streets", split="val", num_images=5, size=(32, 32))
    scorer = Scorer(model=untrained_model(INFO["streets"]), info=INFO["streets"], crop=(32, 32), num_samples=4)
    for processes in (1, 2):
        evaluate(scorer, source=source, folder=tmp_path / str(processes), batch_size=2, processes=processes)
    here, there = ((tmp_path / str(processes) / ROWS_FILE).read_bytes() for processes in (1, 2))
    assert here == there
    assert all("rand_error" in row.scores for row in read_rows(tmp_path / "2" / ROWS_FILE) if row.matches.iou.size)


def test_all_cores_score_instances_beside_a_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: range(12), raising=False)

    def processes(kind: str, device: str, **changes: Any) -> int:
        model = untrained_model(INFO[kind], extrapolate=changes.get("extrapolate", False))
        how: dict[str, Any] = {"info": INFO[kind], "crop": None, "device": torch.device(device), **changes}
        return default_processes(Scorer(model=model, **how))

    assert processes("streets", "cuda") == 12
    assert processes("streets", "cpu") == processes("lesions", "cuda") == 1
    assert processes("neurites", "cuda", extrapolate=True) == 1  # samples are not clustered
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert processes("streets", "cuda") == 1
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: range(1000), raising=False)
    assert processes("streets", "cuda") == MAX_PROCESSES


@pytest.mark.gpu
@pytest.mark.parametrize("tf32", [False, True])
def test_counts_of_a_gpu_are_those_of_a_cpu(tf32: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", tf32)
    for seed in range(5):
        maps, batch, info = random_maps(seed, shape=(128, 131))
        expected = count_maps(**maps, **metric_arguments(batch, info))
        there = {name: value.cuda() for name, value in maps.items()}
        counts = count_maps(**there, **metric_arguments(batch.to(torch.device("cuda")), info))
        copies, wait = copied_to_cpu(counts._asdict())
        wait()
        assert all(copies[name].equal(wanted) for name, wanted in expected._asdict().items())


@pytest.mark.gpu
def test_rows_of_a_gpu_are_those_of_a_cpu(tmp_path: Path) -> None:
    source, model = (
        open_synthetic("streets", split="val", num_images=5, size=(32, 64)),
        untrained_model(INFO["streets"]),
    )
    rows = {}
    for name in ("cpu", "cuda"):
        device = torch.device(name)
        autocast_for("fp32", device)
        scorer = Scorer(model=model.to(device), info=INFO["streets"], crop=None, num_samples=4, device=device)
        evaluate(scorer, source=source, folder=tmp_path / name, processes=1 if name == "cpu" else 2)
        rows[name] = read_rows(tmp_path / name / ROWS_FILE)
    for one, other in zip(rows["cpu"], rows["cuda"], strict=True):
        assert other.scores.keys() == one.scores.keys()
        for metric in ("ged2", "hm_iou", "iou_rec", "calibration_error"):
            assert other.scores[metric] == pytest.approx(
                one.scores[metric], abs=0.02
            )  # labels may change by rounding
