"""Evaluations of several models side by side: their metrics, and paired bootstrap differences to the first model."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpunet.errors import ConfigError
from hpunet.evaluation.rows import IDENTITY_FILE, Row, folder_name, read_evaluation
from hpunet.evaluation.summary import Scope, is_defined, listed, metric_entries, metric_groups, pooled, resampled
from hpunet.utils.text import csv_text

_OPTIONS = ("split", "samples", "seeds", "limit", "representatives")
_RUN_SETTINGS = ("crop", "extrapolate", "ndim", "spacing")
"""Options of an evaluation, and settings of its run and data, that must be equal."""
_NUM_KEYS_SHOWN = 3
_VOLUMES_ADVICE = (
    "volumes are compared with volumes. To score a model of images on volumes, sample them slice by slice and score "
    "the files: hpunet sample RUN VOLUMES --out DIR; hpunet score --samples DIR --labels DATA --set volumes=true "
    "--pattern '{name}/sample-{number}.nii.gz'. Of an evaluation of slices only the means of ged2, hm_iou, iou_rec "
    "have a counterpart: slice_ged2, slice_hm_iou and slice_iou_rec"
)
_Rows = Sequence[Sequence[Row]]  # of one model: the rows of each run, for the same images
_CSV_VALUES = ("num_images", "mean", "std", "patient_std")
_CSV_DIFFERENCES = ("num_images", "mean", "low", "high", "patient_mean", "patient_low", "patient_high")


@dataclass(frozen=True)
class Evaluated:
    """A finished evaluation, read back; rows by the image's key."""

    name: str
    folder: Path
    identity: Mapping[str, Any]
    rows: Mapping[str, Row]


def read_evaluated(run: Path, *, split: str, num_samples: int | None, name: str, num_seeds: int = 1) -> Evaluated:
    """Read the evaluation of a run; `run` may also be the folder of an evaluation.

    Without `num_samples` it is that of 16 samples, or, where there is none, that of 32, as `hpunet evaluate` draws.
    """
    if num_samples is None:
        names = {number: folder_name(split=split, num_samples=number, num_seeds=num_seeds) for number in (16, 32)}
        num_samples = next((number for number, name in names.items() if (run / "evaluation" / name).is_dir()), 16)
    wanted = folder_name(split=split, num_samples=num_samples, num_seeds=num_seeds)
    folder = run if (run / IDENTITY_FILE).is_file() else run / "evaluation" / wanted
    if not run.is_dir():
        raise ConfigError(f"{run}: no such folder; expected an evaluated run, or the folder of an evaluation")
    if not folder.is_dir():
        there = ", ".join(sorted(path.parent.name for path in run.glob(f"evaluation/*/{IDENTITY_FILE}")))
        raise ConfigError(
            f"{folder}: no such evaluation (there: {there or 'none'}); make it first: "
            f"hpunet evaluate {run} --data DIR --split {split} --samples {num_samples}"
            + (f" --seeds {num_seeds}" if num_seeds > 1 else "")
        )
    identity, rows = read_evaluation(folder)
    return Evaluated(name=name, folder=folder, identity=identity, rows={row.key: row for row in rows})


def compare(models: Mapping[str, Sequence[Evaluated]]) -> dict[str, Any]:
    """Every metric of each model, by its name, and the differences of the others to the first on the same images.

    A model is one run, or several with different training seeds: its numbers pool the bootstraps of all its runs, and
    a difference pools all pairs of runs, so that the interval includes the effect of the training seed. Each draw of
    images (or patients) is the same for both models, so the difficulty of an image cancels. `low` and `high` are the
    2.5 and 97.5 % points of the resampled differences.
    """
    if len(models) < 2:
        raise ConfigError("compare needs at least two runs")
    first, *others = (run for runs in models.values() for run in runs)
    for other in others:
        _refuse_different_images(first, other)
    failed = {key for run in (first, *others) for key, row in run.rows.items() if row.error}
    keys = [key for key in first.rows if key not in failed]
    rows = [[[run.rows[key] for key in keys] for run in runs] for runs in models.values()]
    subset = [[[row for row in mine if row.subset_b] for mine in runs] for runs in rows]
    scope = Scope(
        num_samples=first.identity["samples"],
        has_instances=first.identity["alpha"] is not None,
        has_average_precision=any(row.matches is not None for row in rows[0][0]),
        extrapolates=first.identity["extrapolate"],
        has_representatives=first.identity.get("representatives") is not None,
        has_volumes=first.identity.get("ndim") == 3,
    )
    return {
        "runs": [{"name": name, "folders": [str(run.folder) for run in runs]} for name, runs in models.items()],
        "split": first.identity["split"],
        "num_samples": first.identity["samples"],
        "num_seeds": first.identity["seeds"],
        "num_images": len(keys),
        **({key: first.identity.get(key) for key in ("ndim", "spacing")} if scope.has_volumes else {}),
        "num_failed": len(failed),
        "same_data": len({run.identity["data"] for run in (first, *others)}) == 1,
        **_side_by_side(rows, scope=scope),
        "subset_b": {"num_images": len(subset[0][0]), **_side_by_side(subset, scope=scope)},
    }


def _refuse_different_images(first: Evaluated, other: Evaluated) -> None:
    both, one, two = f"{other.name} and {first.name}", other.identity, first.identity
    if different := [key for key in (*_OPTIONS, *_RUN_SETTINGS) if one.get(key) != two.get(key)]:
        details = [f"{key} {_shown(one.get(key))} and {_shown(two.get(key))}" for key in different]
        details += ["other data"] if one["data"] != two["data"] else []
        advice = "evaluate both with the same " + ", ".join(f"--{key}" for key in different)
        if "crop" in different:
            advice = "evaluate both with --whole, or with --crop if both were trained on crops of one size"
        if "spacing" in different:
            advice = "volumes are compared with volumes of one spacing; score both on the same --data"
        if "ndim" in different:
            advice = _VOLUMES_ADVICE
        if "extrapolate" in different:
            advice = "the runs' settings decide extrapolate, so these runs cannot be compared"
        raise ConfigError(f"{both} were evaluated differently: {', '.join(details)}; {advice}")
    found = []
    for mine, others in ((first, other), (other, first)):
        if keys := [key for key in mine.rows if key not in others.rows]:
            more = ", …" if len(keys) > _NUM_KEYS_SHOWN else ""
            found.append(f"{len(keys)} only in {mine.name} ({', '.join(keys[:_NUM_KEYS_SHOWN])}{more})")
    if found:
        raise ConfigError(f"{both} were evaluated on different images: {'; '.join(found)}; use the same --data")


def _shown(value: Any) -> str:
    return "none" if value is None else "×".join(map(str, value)) if isinstance(value, list) else str(value)


def _side_by_side(rows: Sequence[_Rows], *, scope: Scope) -> dict[str, Any]:
    """For each metric the entries of all models, and the differences of the others to the first."""
    entries = [pooled([metric_entries(mine, scope=scope) for mine in runs]) for runs in rows]
    result: dict[str, Any] = {}
    for names in metric_groups(scope):
        gaps = [_differences(rows[0], other, names) for other in rows[1:]]
        for name in names:
            result[name] = {"runs": [mine[name] for mine in entries], "differences": [gap[name] for gap in gaps]}
    result["reasons"] = {name: reason for mine in reversed(entries) for name, reason in mine["reasons"].items()}
    return result


def _differences(first: _Rows, other: _Rows, names: Sequence[str]) -> dict[str, Any]:
    images = enumerate(zip(*first, *other, strict=True))
    defined = [number for number, rows in images if all(is_defined(row, names[0]) for row in rows)]
    pairs = [([mine[i] for i in defined], [base[i] for i in defined]) for mine in other for base in first]
    found: dict[str, Any] = {name: {"num_images": len(defined)} for name in names}
    for prefix in ("", "patient_"):
        drawn = [resampled(mine, names, less=base, by_patient=bool(prefix)) for mine, base in pairs]
        for name in names:
            values = np.concatenate([each[name] for each in drawn])
            if found[name] is None or not values.size:
                found[name] = None
                continue
            low, high = np.percentile(values, (2.5, 97.5))
            numbers = {"mean": values.mean(), "std": values.std(), "low": low, "high": high}
            found[name] |= {prefix + key: float(value) for key, value in numbers.items()}
    return found


def comparison_csv(comparison: Mapping[str, Any]) -> str:
    """The comparison as CSV: one line per run, metric and subset (all or b), without undefined metrics."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", "metric", "subset", *_CSV_VALUES, *(f"difference_{key}" for key in _CSV_DIFFERENCES)])
    for subset, part in (("all", comparison), ("b", comparison["subset_b"])):
        for name in listed(part):
            gaps = [None, *part[name]["differences"]]
            for run, entry, gap in zip(comparison["runs"], part[name]["runs"], gaps, strict=True):
                if entry is not None:
                    numbers = [entry[key] for key in _CSV_VALUES]
                    numbers += [gap[key] if gap else "" for key in _CSV_DIFFERENCES]
                    writer.writerow([csv_text(run["name"]), name, subset, *numbers])
    return text.getvalue()
