"""Patients and splits of a set of images, from its `data.csv`, from lists of patients or by a seeded split."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hpunet.data.io.inputs import without_uids
from hpunet.data.types import SPLITS, Identity, check_disjoint, check_split, split_by_patient
from hpunet.errors import ConfigError, DataError
from hpunet.utils.files import read_file
from hpunet.utils.limits import MAX_TABLE_BYTES

FRACTIONS = {"train": 0.8, "val": 0.1, "test": 0.1}  # default shares of the patients

_SHOWN = 200  # characters of what is wrong


class Entry(NamedTuple):
    """Patient and split of a file; the split is None until it is drawn."""

    patient: str
    split: str | None


def read_table(content: bytes, *, name: str) -> dict[str, Entry]:
    """A CSV file with columns file and optionally patient, split. A file without patient is its own patient."""
    try:
        rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{name}: not readable as CSV in UTF-8 ({error})") from None
    header = [column.strip() for column in rows[0]] if rows else []
    if "file" not in header or not set(header) <= {"file", "patient", "split"} or len(set(header)) != len(header):
        raise DataError(f"{name}: expected a header of file and any of patient, split; got {str(header)[:_SHOWN]}")
    entries: dict[str, Entry] = {}
    for number, cells in enumerate(rows[1:], start=2):
        if not cells:
            continue
        row = dict(zip(header, (cell.strip() for cell in cells), strict=False))
        if len(cells) != len(header) or not all(row.values()):
            raise DataError(
                f"{name}, line {number}: expected a value for each of {header}, got {str(cells)[:_SHOWN]}"
            )
        if row["file"] in entries:
            raise DataError(f"{name}, line {number}: {row['file'][:_SHOWN]} is listed twice")
        if row.get("split", SPLITS[0]) not in SPLITS:
            raise DataError(f"{name}, line {number}: split {row['split'][:_SHOWN]!r} is not one of {SPLITS}")
        entries[row["file"]] = Entry(row.get("patient", row["file"]), row.get("split"))
    return entries


def split_by_lists(entries: Mapping[str, Entry], *, lists: Mapping[str, str]) -> dict[str, str]:
    """The split of the files that are in text files of one patient or file per line, which `lists` names by split.

    What is in none of them is for training; if there is a list for training, too, it is left out.
    """
    split_of: dict[str, str] = {}
    images: dict[str, list[Identity]] = {}
    by_patient: dict[str, list[str]] = {}
    for file, entry in entries.items():
        by_patient.setdefault(entry.patient, []).append(file)
    for split, path in lists.items():
        check_split(split)
        for number, line in enumerate(_lines(Path(path)), start=1):
            if not line or line.startswith("#"):
                continue
            name = without_uids(line)
            named = [name] if name in entries else by_patient.get(name)
            if named is None:
                raise DataError(f"{path}, line {number}: there is no patient or image {name[:_SHOWN]}")
            for file in named:
                if split_of.setdefault(file, split) != split:
                    raise DataError(
                        f"{path}, line {number}: {name[:_SHOWN]} is in the list for {split_of[file]}, too"
                    )
    if "train" not in lists:
        split_of = dict.fromkeys(entries, "train") | split_of
    for file, split in split_of.items():
        images.setdefault(split, []).append(Identity(entries[file].patient, file))
    check_disjoint(images, where=", ".join(lists.values()))
    return split_of


def _lines(path: Path) -> list[str]:
    try:
        content = read_file(path, max_bytes=MAX_TABLE_BYTES, error=DataError).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a list in UTF-8 ({error})") from None
    return [line.strip() for line in content.split("\n")]


def assign_splits(
    entries: Mapping[str, Entry],
    *,
    val_every: int | None,
    seed: int,
    name: str,
    lists: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The split of every file, from the table, by `lists`, or drawn for whole patients; `name` is for errors.

    With two or more patients, at least one is for validation, taken from test or else from training if necessary.
    """
    if val_every is not None and val_every < 2:
        raise ConfigError(f"val_every: expected 2 or more, got {val_every}")
    patients = sorted({entry.patient for entry in entries.values()})
    has_splits = any(entry.split for entry in entries.values())
    if lists:
        if has_splits or val_every is not None:
            raise ConfigError(
                f"lists: {name if has_splits else 'val_every'} names splits already; leave one of them out"
            )
        return split_by_lists(entries, lists=lists)
    if has_splits:
        if val_every is not None:
            raise ConfigError(f"val_every: {name} names splits already")
        images = {s: [Identity(e.patient, file) for file, e in entries.items() if e.split == s] for s in SPLITS}
        check_disjoint(images, where=name)
        return {file: str(entry.split) for file, entry in entries.items()}
    if val_every is not None:
        chosen = {"val": patients[::val_every]}
    else:
        chosen = split_by_patient(patients, fractions=FRACTIONS, seed=seed)
        if not chosen["val"] and len(patients) > 1:
            chosen["val"] = [(chosen["test"] or chosen["train"]).pop()]
    split_of = {patient: split for split, members in chosen.items() for patient in members}
    return {file: split_of.get(entry.patient, "train") for file, entry in entries.items()}
