"""Evaluations of several models beside each other: paired bootstrap differences to the first, as table and figure."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpunet.errors import ConfigError
from hpunet.evaluation.rows import IDENTITY_FILE, Row, folder_name, read_evaluation
from hpunet.evaluation.summary import (
    Scope,
    is_defined,
    listed,
    metric_entries,
    metric_groups,
    pooled,
    resampled,
)

_CHOSEN, _OF_THE_RUN = ("split", "samples", "seeds", "limit"), ("crop", "extrapolate")
"""What must agree: what an evaluation is asked for, and what training has decided."""
_NUM_KEYS_SHOWN = 3
_Rows = Sequence[Sequence[Row]]
"""Of one model: for each of its runs those of the same images."""
_CSV_VALUES = ("num_images", "mean", "std", "patient_std")
_CSV_DIFFERENCES = ("num_images", "mean", "low", "high", "patient_mean", "patient_low", "patient_high")


@dataclass(frozen=True)
class Evaluated:
    """A finished evaluation, read back."""

    name: str
    folder: Path
    identity: Mapping[str, Any]
    rows: Mapping[str, Row]
    """By the image's key."""


def read_evaluated(run: Path, *, split: str, num_samples: int, name: str, num_seeds: int = 1) -> Evaluated:
    """The evaluation of a run, or that in the folder itself."""
    wanted = folder_name(split=split, num_samples=num_samples, num_seeds=num_seeds)
    folder = run if (run / IDENTITY_FILE).is_file() else run / "evaluation" / wanted
    if not run.is_dir():
        raise ConfigError(f"{run}: no such folder; expected a run that was evaluated, or an evaluation's folder")
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
    """Every metric of each model, by its name, and how the others differ from the first on the same images.

    A model is one run, or several that were trained with other seeds: then its numbers are of the bootstraps of all
    its runs, and a difference is of those of every run of the one and every run of the other, so that what the seeds
    of training do is in the interval. The bootstrap draws images (or patients) and takes the difference on those:
    what makes an image hard for both cancels. `low` and `high` are the 2.5 and 97.5 % points of the resampled
    differences.
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
    )
    return {
        "runs": [{"name": name, "folders": [str(run.folder) for run in runs]} for name, runs in models.items()],
        "split": first.identity["split"],
        "num_samples": first.identity["samples"],
        "num_seeds": first.identity["seeds"],
        "num_images": len(keys),
        "num_failed": len(failed),
        "same_data": len({run.identity["data"] for run in (first, *others)}) == 1,
        **_side_by_side(rows, scope=scope),
        "subset_b": {"num_images": len(subset[0][0]), **_side_by_side(subset, scope=scope)},
    }


def _refuse_different_images(first: Evaluated, other: Evaluated) -> None:
    pairs = {key: (other.identity[key], first.identity[key]) for key in (*_CHOSEN, *_OF_THE_RUN)}
    different = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    if different:
        said = [f"{key} {_shown(two)} and {_shown(one)}" for key, (two, one) in different.items()]
        said += ["other data"] if other.identity["data"] != first.identity["data"] else []
        if fixed := [key for key in _OF_THE_RUN if key in different]:
            advice = f"the runs' settings decide {' and '.join(fixed)}, so these runs cannot be compared"
        else:
            advice = "evaluate both with the same " + ", ".join(f"--{key}" for key in different)
        raise ConfigError(f"{other.name} and {first.name} were evaluated differently: {', '.join(said)}; {advice}")
    only = {one.name: [k for k in one.rows if k not in two.rows] for one, two in ((first, other), (other, first))}
    found = [
        f"{len(keys)} only in {name} ({', '.join(keys[:_NUM_KEYS_SHOWN])}{', …' * (len(keys) > _NUM_KEYS_SHOWN)})"
        for name, keys in only.items()
        if keys
    ]
    if found:
        raise ConfigError(
            f"{other.name} and {first.name} were evaluated on different images: {'; '.join(found)}; use the same "
            "--data"
        )


def _shown(value: Any) -> str:
    return "none" if value is None else "×".join(map(str, value)) if isinstance(value, list) else str(value)


def _side_by_side(rows: Sequence[_Rows], *, scope: Scope) -> dict[str, Any]:
    """For each metric the entry of each model, and the difference of each but the first to the first."""
    entries = [pooled([metric_entries(mine, scope=scope) for mine in runs]) for runs in rows]
    result: dict[str, Any] = {}
    for names in metric_groups(scope):
        gaps = [_differences(rows[0], other, names) for other in rows[1:]]
        for name in names:
            result[name] = {
                "runs": [mine[name] for mine in entries],
                "differences": [gap[name] for gap in gaps],
            }
    result["reasons"] = {name: reason for mine in reversed(entries) for name, reason in mine["reasons"].items()}
    return result


def _differences(first: _Rows, other: _Rows, names: Sequence[str]) -> dict[str, Any]:
    defined = [
        number
        for number, rows in enumerate(zip(*first, *other, strict=True))
        if all(is_defined(row, names[0]) for row in rows)
    ]
    pairs = [([mine[i] for i in defined], [base[i] for i in defined]) for mine in other for base in first]
    drawn = {
        prefix: [resampled(mine, names, less=base, by_patient=bool(prefix)) for mine, base in pairs]
        for prefix in ("", "patient_")
    }
    return {
        name: _difference(
            {prefix: np.concatenate([values[name] for values in found]) for prefix, found in drawn.items()},
            num_images=len(defined),
        )
        for name in names
    }


def _difference(drawn: Mapping[str, np.ndarray], *, num_images: int) -> dict[str, Any] | None:
    """Numbers of resampled differences, over images ("") and over patients ("patient_")."""
    if not all(values.size for values in drawn.values()):
        return None
    entry: dict[str, Any] = {"num_images": num_images}
    for prefix, values in drawn.items():
        low, high = np.percentile(values, (2.5, 97.5))
        numbers = {"mean": values.mean(), "std": values.std(), "low": low, "high": high}
        entry |= {prefix + key: float(value) for key, value in numbers.items()}
    return entry


def comparison_csv(comparison: Mapping[str, Any]) -> str:
    """The comparison as CSV: one line a run, metric and subset (all or b) where it is defined, for spreadsheets.

    Numbers are those of the JSON; those of the difference to the first run are named `difference_…`.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", "metric", "subset", *_CSV_VALUES, *(f"difference_{key}" for key in _CSV_DIFFERENCES)])
    for subset, part in (("all", comparison), ("b", comparison["subset_b"])):
        for name in listed(part):
            gaps = [None, *part[name]["differences"]]
            for run, entry, gap in zip(comparison["runs"], part[name]["runs"], gaps, strict=True):
                if entry is not None:
                    numbers = [
                        *(entry[key] for key in _CSV_VALUES),
                        *(gap[key] if gap else "" for key in _CSV_DIFFERENCES),
                    ]
                    writer.writerow([run["name"], name, subset, *numbers])
    return text.getvalue()
