"""The folder of an evaluation: one row per image, saved at once, so that an interrupted evaluation can resume.

evaluation.json    what was evaluated: hashes of the weights and of the data, split, samples, seed ...
files.json         the hash of every file of the data (`data/fingerprint.py`)
rows.csv           one row per image, in the order of the data; written when the evaluation is finished
rows-<n>.part.csv  rows of process n while it runs
summary.json       means and deviations of the images chosen by its `limit`: rows.csv may hold more
examples.npz       label maps of a few images, for figures
samples/           all samples, one file per image, if asked for (`sample_files.py`)
"""

import csv
import hashlib
import io
import json
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpunet.errors import ConfigError, DataError
from hpunet.metrics import InstanceMatches
from hpunet.utils.distributed import barrier, rank
from hpunet.utils.files import (
    atomic_write,
    dump_json,
    entries,
    explain_os_errors,
    parse_json,
    read_file,
    read_live,
    remove_folder,
)
from hpunet.utils.text import UNDECODED, as_utf8, csv_text, from_csv_text, from_utf8

IDENTITY_FILE, ROWS_FILE, SUMMARY_FILE, EXAMPLES_FILE = "evaluation.json", "rows.csv", "summary.json", "examples.npz"
SAMPLES_FOLDER = "samples"
FORMAT = "hpunet-evaluation 1"
HIDDEN_METRICS = (
    *("hidden_iou_rec", "hidden_iou_samples", "hidden_accuracy_rec", "hidden_accuracy_samples"),
    *("hidden_accuracy_background", "border_agreement_samples", "border_agreement_truth"),
    "hidden_sample_disagreement",
)
"""Only for images with a hidden part (`data.extrapolate`)."""
NEWER_METRICS = ("hm_iou_best",)
"""Of all images, but not in rows that were kept earlier."""
CLUSTER_METRICS = ("background_iou", "slice_rand_error")
"""Only for images with instances and no hidden part."""
CLASS_METRICS = ("area_crps", "volume_crps", "slice_area_crps")
"""Only for images with classes and no hidden part."""
IMAGE_METRICS = ("area_crps",)
"""Not for volumes."""
SLICE_METRICS = ("slice_ged2", "slice_hm_iou", "slice_iou_rec")
VOLUME_METRICS = ("volume_crps", *SLICE_METRICS, "slice_area_crps", "slice_rand_error")
"""Only for volumes: CRPS of volumes in ml, or in voxels if the spacing is not known, and means over their slices."""
REPRESENTATIVE_METRICS = ("representatives_ged2", "representatives_hm_iou")
"""Only with a number of representatives: of those and their weights, apart from the independent samples."""
METRICS = (
    *("ged2", "ged2_unbiased", "hm_iou", *NEWER_METRICS, "iou_rec", "best_match_dice", "sample_diversity"),
    *("calibration_error", "uncertainty_error_ncc"),
    *IMAGE_METRICS,
    *("rand_error", "background_iou"),
    *HIDDEN_METRICS,
    *REPRESENTATIVE_METRICS,
    *VOLUME_METRICS,
)
_ALL_COLUMNS = ("image", "key", "patient", "num_graders", "subset_b", *METRICS, "instances", "error")
_NOT_ALWAYS = {*NEWER_METRICS, *CLUSTER_METRICS, *HIDDEN_METRICS, *CLASS_METRICS, *REPRESENTATIVE_METRICS}
_NOT_ALWAYS |= {*VOLUME_METRICS}
COLUMNS = tuple(name for name in _ALL_COLUMNS if name not in _NOT_ALWAYS)
"""Of all rows; kept rows that are older than the other metrics have only these."""
MAX_PAIRS = 2**24  # of predicted and true instances of an image that is read back
MAX_PAIRS_PER_CHARACTER = 20  # of rows; 1000 predicted and 1000 true instances are hardly 15
csv.field_size_limit(2**27)  # an image with very many instances


@dataclass(frozen=True)
class Row:
    """The scores that are defined for one image, or the error that prevented them."""

    image: int
    key: str
    patient: str
    num_graders: int = 0
    subset_b: bool = False  # every grader marked something
    scores: Mapping[str, float] = field(default_factory=dict)
    matches: InstanceMatches | None = None
    error: str = ""


def columns_of(identity: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of an evaluation's rows."""
    of_whole_images: tuple[str, ...] = CLASS_METRICS if identity.get("alpha") is None else CLUSTER_METRICS
    own: tuple[str, ...] = HIDDEN_METRICS if identity.get("extrapolate") else of_whole_images
    own += NEWER_METRICS + (REPRESENTATIVE_METRICS if identity.get("representatives") else ())
    is_volume = identity.get("ndim") == 3
    own += SLICE_METRICS if is_volume else ()
    others = IMAGE_METRICS if is_volume else VOLUME_METRICS
    return tuple(name for name in _ALL_COLUMNS if name in COLUMNS or (name in own and name not in others))


def mean_rows(by_seed: Sequence[Sequence[Row]]) -> list[Row]:
    """One row per image: the mean of each score over the seeds where it is defined."""
    means = []
    for rows in zip(*by_seed, strict=True):
        values = {name: [row.scores[name] for row in rows if name in row.scores] for name in METRICS}
        scores = {name: math.fsum(found) / len(found) for name, found in values.items() if found}
        means.append(replace(rows[0], scores=scores))
    return means


def folder_name(*, split: str, num_samples: int, num_seeds: int = 1, representatives: int | None = None) -> str:
    """The default folder in `RUN/evaluation`: val-16, val-16x3 with 3 seeds, val-16-k4 with 4 representatives."""
    name = f"{split}-{num_samples}" + (f"x{num_seeds}" if num_seeds > 1 else "")
    return name if representatives is None else f"{name}-k{representatives}"


class RowStore:
    """The rows of an evaluation in its folder, a context for appending rows; each process has its own file.

    `done` holds the rows of an earlier attempt without those with errors or other columns, which are measured again.
    `altered` are images whose files have changed since; only those without scores may.
    """

    def __init__(
        self, folder: Path, *, identity: Mapping[str, Any], altered: Container[str] = (), replace: bool = False
    ) -> None:
        self.folder = folder
        self.identity = {"format": FORMAT, **identity}
        self._columns = columns_of(identity)
        earlier = _read_identity(folder)
        if earlier is not None and not replace:
            self._refuse_others(earlier, altered)
        barrier()  # all processes have read before anything changes
        if rank() == 0:
            self._prepare(keep=earlier is not None and not replace)
        barrier()
        self.done = {row.key: row for row in self._all_rows() if not row.error}
        barrier()  # all processes have read before one appends
        with explain_os_errors(self._part(rank()), action="written"):
            self._file = self._part(rank()).open("a", encoding="utf-8", errors=UNDECODED, newline="")
            if not self._file.tell():
                self._file.write(self._as_csv(()))

    def __enter__(self) -> "RowStore":
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def _refuse_others(self, earlier: Mapping[str, Any], altered: Container[str]) -> None:
        changed = sorted(k for k in {*earlier, *self.identity} if earlier.get(k) != self.identity.get(k))
        advice = "choose another --out, or delete it with --replace"
        if changed == ["data"] and "images" in self.identity:
            if stale := sorted(row.key for row in self._all_rows() if not row.error and row.key in altered):
                images = "1 image" if len(stale) == 1 else f"{len(stale)} images"
                what = f"scores of {images} whose files have changed, the first {stale[0]} (data)"
                raise ConfigError(f"{self.folder}: holds {what}; {advice}")
        elif changed:
            raise ConfigError(f"{self.folder}: holds a different evaluation ({', '.join(changed)}); {advice}")

    def append(self, rows: Iterable[Row]) -> None:
        """Append rows and flush the file."""
        with explain_os_errors(self._part(rank()), action="written"):
            self._file.write(self._as_csv(rows, header=False))
            self._file.flush()

    def finish(self) -> list[Row]:
        """Write the rows of all processes to `rows.csv`, in the order of the data, and return them."""
        self._file.close()
        barrier()
        by_key: dict[str, Row] = {}
        for row in self._all_rows():
            if not row.error or row.key not in by_key or by_key[row.key].error:  # the newest, unless it is an error
                by_key[row.key] = row
        rows = sorted(by_key.values(), key=lambda row: (row.image, row.key))
        barrier()  # all processes have read before the parts are deleted
        if rank() == 0:
            atomic_write(self.folder / ROWS_FILE, as_utf8(self._as_csv(rows)))
            for part in self._parts():
                part.unlink()
        barrier()
        return rows

    def _prepare(self, *, keep: bool) -> None:
        """Collect the rows of earlier attempts in the first part file."""
        with explain_os_errors(self.folder, action="written"):
            self.folder.mkdir(parents=True, exist_ok=True)
            if not keep:
                for name in (ROWS_FILE, SUMMARY_FILE, EXAMPLES_FILE, *(part.name for part in self._parts())):
                    (self.folder / name).unlink(missing_ok=True)
                if (self.folder / SAMPLES_FOLDER).is_dir():
                    remove_folder(self.folder / SAMPLES_FOLDER)
            atomic_write(self.folder / IDENTITY_FILE, dump_json(self.identity, name=IDENTITY_FILE))
            rows = [row for part in self._parts() for row in self._read(part) if not row.error]
            atomic_write(self._part(0), as_utf8(self._as_csv(rows)))
            for part in self._parts():
                if part != self._part(0):
                    part.unlink()

    def _all_rows(self) -> list[Row]:
        """Finished rows first, then those of the parts."""
        finished = self.folder / ROWS_FILE
        return [row for path in [finished, *self._parts()] if path.is_file() for row in self._read(path)]

    def _read(self, path: Path) -> list[Row]:
        columns, rows = _read_table(path)
        return rows if columns == self._columns else []

    def _as_csv(self, rows: Iterable[Row], *, header: bool = True) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="", extrasaction="ignore", lineterminator="\n")
        if header:
            writer.writeheader()
        writer.writerows(_cells(row) for row in rows)
        return text.getvalue()

    def _part(self, number: int) -> Path:
        return self.folder / f"rows-{number}.part.csv"

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("rows-*.part.csv"))


def first_keys(keys: Iterable[str], limit: int | None) -> set[str]:
    """The `limit` keys with the smallest hashes, or all, so that the first 10 are among the first 20."""
    return set(sorted(keys, key=lambda key: hashlib.sha256(as_utf8(key)).digest())[:limit])


def read_evaluation(folder: Path) -> tuple[dict[str, Any], list[Row]]:
    """The identity of a finished evaluation, with its seeds and limit, and the rows that its summary uses."""
    return read_live(lambda: _read_finished(folder), seen=lambda: entries(folder))


def _read_finished(folder: Path) -> tuple[dict[str, Any], list[Row]]:
    identity = _read_identity(folder)
    if identity is None or not all((folder / name).is_file() for name in (ROWS_FILE, SUMMARY_FILE)):
        unfinished = identity is not None and any(folder.glob("rows*.csv"))
        state = "is not finished; re-run the command to resume" if unfinished else "holds no evaluation"
        raise ConfigError(f"{folder}: {state}: hpunet evaluate RUN --data DIR")
    if missing := {"split", "samples", "crop", "extrapolate", "alpha", "data"} - identity.keys():
        raise DataError(f"{folder / IDENTITY_FILE}: lacks {', '.join(sorted(missing))}; evaluate again")
    summary = parse_json(read_file(folder / SUMMARY_FILE, error=DataError), name=str(folder / SUMMARY_FILE))
    limit = summary.get("limit", 0) if isinstance(summary, dict) else 0
    if limit is not None and (type(limit) is not int or limit < 1):
        raise DataError(f"{folder / SUMMARY_FILE}: limit: expected a number of images; evaluate again")
    rows = read_rows(folder / ROWS_FILE)
    chosen = first_keys((row.key for row in rows), limit)
    return {"seeds": 1, **identity, "limit": limit}, [row for row in rows if row.key in chosen]


def _read_identity(folder: Path) -> dict[str, Any] | None:
    path = folder / IDENTITY_FILE
    if not path.is_file():
        return None
    found = parse_json(read_file(path, error=DataError), name=str(path))
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DataError(f"{path}: not an evaluation of this format ({FORMAT})")
    return found


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, without a last one that a crash cut off."""
    return _read_table(path)[1]


def _read_table(path: Path) -> tuple[Sequence[str], list[Row]]:
    try:
        text = from_utf8(read_file(path, error=DataError))
        lines = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
    except csv.Error as error:
        raise DataError(f"{path}: not rows of an evaluation ({error})") from None
    if not lines and path.name != ROWS_FILE:  # a part that a crash cut off in its header
        return COLUMNS, []
    columns = tuple(lines.pop(0)) if lines else ()
    if columns != tuple(name for name in _ALL_COLUMNS if name in columns or name in COLUMNS):
        raise DataError(f"{path}: expected the columns {', '.join(COLUMNS)}")
    if lines and len(lines[-1]) != len(columns):
        lines.pop()
    rows, pairs = [], 0
    for number, cells in enumerate(lines, start=1):
        rows.append(row := _row(cells, columns=columns, where=f"{path}: row {number}"))
        pairs += 0 if row.matches is None else row.matches.iou.size
        if pairs > MAX_PAIRS + MAX_PAIRS_PER_CHARACTER * len(text):
            raise DataError(f"{path}: {pairs} pairs of instances in {len(text)} characters; damaged or malicious")
    return columns, rows


def _row(cells: Sequence[str], *, columns: Sequence[str], where: str) -> Row:
    if len(cells) != len(columns):
        raise DataError(f"{where} has {len(cells)} cells, expected {len(columns)}; remove it, or evaluate again")
    named = dict(zip(columns, cells, strict=True))
    try:
        scores = {name: float(named[name]) for name in METRICS if named.get(name)}
        if not all(math.isfinite(value) for value in scores.values()):
            raise ValueError("a score is not finite")
        return Row(
            image=int(named["image"]),
            key=from_csv_text(named["key"]),
            patient=from_csv_text(named["patient"]),
            num_graders=int(named["num_graders"]),
            subset_b={"0": False, "1": True}[named["subset_b"]],
            scores=scores,
            matches=_matches_from(named["instances"]) if named["instances"] else None,
            error=from_csv_text(named["error"]),
        )
    except (ValueError, KeyError, TypeError, IndexError, ArithmeticError, RecursionError) as error:
        raise DataError(f"{where} cannot be read ({error}); remove it, or evaluate again") from None


def _cells(row: Row) -> dict[str, object]:
    """The values of a row by column."""
    return {
        **{name: getattr(row, name) for name in ("image", "num_graders")},
        **{name: csv_text(getattr(row, name)) for name in ("key", "patient")},
        "subset_b": int(row.subset_b),
        **{name: repr(float(value)) for name, value in row.scores.items()},
        "instances": "" if row.matches is None else _matches_text(row.matches),
        "error": csv_text(" ".join(row.error.split())),
    }


def _matches_text(matches: InstanceMatches) -> str:
    """JSON: scores, shares of ignored pixels, the number of true instances, and the overlaps above 0."""
    overlaps = [[int(i), int(j), float(matches.iou[i, j])] for i, j in zip(*matches.iou.nonzero(), strict=True)]
    return json.dumps([matches.scores.tolist(), matches.ignored_share.tolist(), matches.iou.shape[1], overlaps])


def _matches_from(text: str) -> InstanceMatches:
    scores, ignored, num_true, overlaps = json.loads(text)
    if not 0 <= num_true * len(scores) <= MAX_PAIRS or num_true > MAX_PAIRS or len(ignored) != len(scores):
        raise ValueError("the numbers of instances differ")
    iou = np.zeros((len(scores), num_true))
    for i, j, value in overlaps:
        iou[i, j] = value
    confidence, shares = (np.array(values, dtype=np.float64) for values in (scores, ignored))
    if not all(array.ndim == 1 and np.isfinite(array).all() for array in (iou.ravel(), confidence, shares)):
        raise ValueError("instances are not finite numbers")
    return InstanceMatches(iou=iou, scores=confidence, ignored_share=shares)
