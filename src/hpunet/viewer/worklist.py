"""A work list on disk: what was done to each case, and the accepted cases as a data set to train on.

worklist.json                              format, model, patients by case (as salted hashes)
log.jsonl                                  one line per batch of events, only ever appended to: the truth
uploads/NAME.png                           what was uploaded, without the metadata of its file
images/NAME.png, graders/reviewer/NAME.png the accepted cases (.nii.gz: volumes and other precisions)
images/NAME.png, instances/NAME.png        those of a model that was trained on instances
data.csv                                   their files and patients

A batch is acknowledged once its line is on the disk. A kill leaves at most a torn last line, which was not
acknowledged and is dropped. The files of a case are written before its accept is logged, and those of cases that are
not accepted are deleted when the list is opened: so they are there if and only if the log says so.
"""

import csv
import hashlib
import io
import json
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from PIL import Image

from hpunet.data.folder.names import GRADERS, IMAGES, INSTANCES, TABLE, ending
from hpunet.data.io.inputs import Stored
from hpunet.data.io.limits import need
from hpunet.data.io.volumes import encode_nifti
from hpunet.errors import ConfigError, DataError, HPUNetError
from hpunet.utils.files import TEMPORARY, atomic_write, dump_hashed_json, explain_os_errors, read_hashed_json
from hpunet.utils.locks import lock_folder
from hpunet.viewer.bounded import Bounded
from hpunet.viewer.cases import Case, safe_name, unique_names
from hpunet.viewer.events import EVENTS, EventError, Fold

DESCRIPTION, LOG, UPLOADS, REVIEWER = "worklist.json", "log.jsonl", "uploads", f"{GRADERS}/reviewer"
_FORMAT, _VERSION = "hpunet-work-list", 1
_MAX_BYTES = 2**24
_FOLD_BYTES = 2**26  # of parsed events in memory


class ConflictError(HPUNetError):
    """Somebody else was faster."""

    def __init__(self, version: int) -> None:
        super().__init__("the case was changed elsewhere; load it again")
        self.version = version


class DiskError(HPUNetError):
    """The work list cannot be written."""


@dataclass
class _Entry:
    """Where the events of a case are in the log, and their short summary."""

    lines: list[tuple[int, int]] = field(default_factory=list)
    version: int = 0
    is_accepted: bool = False
    has_note: bool = False
    shape: list[int] | None = None

    def add(self, line: dict[str, Any], place: tuple[int, int]) -> None:
        self.lines.append(place)
        self.shape = line["shape"]
        for event in line["events"]:
            self.version += 1
            if event["kind"] in ("accept", "reopen"):
                self.is_accepted = event["kind"] == "accept"
            elif event["kind"] == "note":
                self.has_note = bool(event["text"].strip())


class WorkList:
    """The cases and their events; see `open_work_list`. Methods may be called from any thread."""

    def __init__(self, folder: Path, cases: Sequence[Case], *, model: str) -> None:
        self.folder, self.model = folder, model
        self._about = _read_about(folder)
        self._lock = threading.RLock()
        self._folds: Bounded[Fold] = Bounded(_FOLD_BYTES)
        uploads = sorted((folder / UPLOADS).glob("*"), key=lambda file: (file.stat().st_mtime_ns, file.name))
        uploads = [file for file in uploads if ending(file.name) and not file.name.startswith(".")]
        self.cases = unique_names(
            [*cases, *(Case(file.name.removesuffix(ending(file.name)), file) for file in uploads)]
        )
        for case in self.cases:
            self._about["patients"].setdefault(case.name, self._patient(case))
        with explain_os_errors(folder, action="written", error=DiskError):
            content = dump_hashed_json(self._about | {"model": model}, name=DESCRIPTION)
            atomic_write(folder / DESCRIPTION, content, error=DiskError)
            self._file = open(folder / LOG, "a+b", buffering=0)  # noqa: SIM115 - closed by close()
        self._entries: dict[str, _Entry] = {}
        try:
            self._read_log()
            self._remove_unaccepted()
        except BaseException:
            self.close()
            raise

    def _patient(self, case: Case) -> str:
        """The name of the case, or, if a table names patients, a hash that only this work list makes."""
        if case.patient is None:
            return case.name
        return "patient-" + hashlib.sha256(f"{self._about['salt']}\0{case.patient}".encode()).hexdigest()[:8]

    def _read_log(self) -> None:
        self._file.seek(0)
        place = 0
        with os.fdopen(os.dup(self._file.fileno()), "rb") as reader:
            for number, content in enumerate(reader, start=1):
                try:
                    if not content.endswith(b"\n"):
                        raise ValueError("torn")
                    line = json.loads(content)
                    self._entry(line["case"]).add(line, (place, len(content)))
                except (ValueError, KeyError, TypeError):
                    if reader.read(1):
                        raise DataError(
                            f"{self.folder / LOG}, line {number}: damaged; restore it from a copy, or choose another "
                            "--worklist"
                        ) from None
                    break
                place += len(content)
        os.ftruncate(self._file.fileno(), place)
        self._size = place

    def _entry(self, name: str) -> _Entry:
        return self._entries.setdefault(name, _Entry())

    def summary(self) -> list[dict[str, Any]]:
        """Name, status and whether there is a note, of every case."""
        with self._lock:
            entries = [(case.name, self._entry(case.name)) for case in self.cases]
            return [
                {"name": name, "status": "accepted" if entry.is_accepted else "open", "note": entry.has_note}
                for name, entry in entries
            ]

    def fold(self, case: Case) -> Fold:
        """The state of a case; not to be changed."""
        with self._lock:
            found = self._folds.get(case.name)
            if found is None:
                found = Fold()
                for event in EVENTS.validate_python(self._events(case.name), strict=False):
                    found.apply(event)
                self._keep(case.name, found)
            return found

    def _keep(self, name: str, fold: Fold) -> None:
        size = sum(10 * length for _, length in self._entry(name).lines)  # of parsed events, roughly
        self._folds.put(name, fold, size)

    def _events(self, name: str) -> list[Any]:
        with self._lock:
            lines = []
            for place, length in self._entry(name).lines:
                self._file.seek(place)
                lines.append(self._file.read(length))
        return [event for line in lines for event in json.loads(line)["events"]]

    def events(self, case: Case) -> tuple[int, list[Any]]:
        """The version of a case, and its events."""
        with self._lock:
            return self._entry(case.name).version, self._events(case.name)

    def check_shape(self, case: Case, shape: Sequence[int]) -> None:
        """Refuse an image of another size than the one of this name that events are about."""
        known = self._entry(case.name).shape
        if known is not None and known != list(shape):
            raise DataError(f"{case.name}: the work list has another image of this name; choose another --worklist")

    def append(
        self,
        case: Case,
        events: Sequence[Any],
        *,
        version: int,
        shape: Sequence[int],
        read: Callable[[], Stored],
        has_instances: bool = False,
    ) -> Fold:
        """Add events to a case of this `version`, all or none, and wait until they are on the disk.

        `read` gives the image, which accepted cases are saved with; with `has_instances` their values are ids.
        A `ConflictError` if the version is another one.
        """
        with self._lock:
            before = self.fold(case)
            if before.version != version:
                raise ConflictError(before.version)
            after = before.copy()
            for event in events:
                after.apply(event)
            if not events:
                return before
            if before.status == "accepted" and any(event.kind == "accept" for event in events):
                raise EventError("accept: send reopen, and wait for its answer, before the case is accepted again")
            if after.status == "accepted" and before.status == "open":
                self._save_accepted(case, after, read(), shape, INSTANCES if has_instances else REVIEWER)
            line = {"case": case.name, "shape": list(shape), "model": self.model, "time": round(time.time(), 3)}
            line["events"] = [event.model_dump() for event in events]
            place = self._append_line((json.dumps(line, separators=(",", ":")) + "\n").encode())
            self._entry(case.name).add(line, place)
            self._keep(case.name, after)
            if after.status == "open" and before.status == "accepted":
                self._remove_files(case.name)
                self._write_table()
            return after

    def _append_line(self, content: bytes) -> tuple[int, int]:
        before = self._size
        with explain_os_errors(self.folder / LOG, action="written", error=DiskError):
            if os.fstat(self._file.fileno()).st_size != before:  # what an earlier failure could not take back
                os.ftruncate(self._file.fileno(), before)
            try:
                left = memoryview(content)
                while left:
                    left = left[os.write(self._file.fileno(), left) :]
                os.fsync(self._file.fileno())
            except BaseException:
                os.ftruncate(self._file.fileno(), before)
                raise
        self._size += len(content)
        return before, len(content)

    def _save_accepted(self, case: Case, fold: Fold, stored: Stored, shape: Sequence[int], place: str) -> None:
        for other in {REVIEWER, INSTANCES} - {place}:  # one data set cannot hold both
            if any(ending(file.name) for file in (self.folder / other).glob("*")):
                what = "classes" if other == REVIEWER else "instances"
                raise EventError(
                    f"accept: the accepted cases of this work list hold {what}; choose another --worklist"
                )
        suffix, content = encode_image(stored)
        mask = np.stack([fold.mask(z, shape=(shape[1], shape[2])) for z in range(shape[0])])
        labels = encode_mask(mask, stored, suffix=suffix)
        atomic_write(self.folder / IMAGES / f"{case.name}{suffix}", content, error=DiskError)
        atomic_write(self.folder / place / f"{case.name}{suffix}", labels, error=DiskError)
        self._write_table(also=case.name)

    def _write_table(self, *, also: str | None = None) -> None:
        images = self.folder / IMAGES
        files = sorted(file.name for file in images.iterdir() if ending(file.name)) if images.is_dir() else []
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["file", "patient"])
        for file in files:
            name = file.removesuffix(ending(file))
            if name == also or self._entry(name).is_accepted:
                writer.writerow([file, self._about["patients"].get(name, name)])
        atomic_write(self.folder / TABLE, table.getvalue().encode(), error=DiskError)

    def _remove_files(self, name: str) -> None:
        for place in (IMAGES, REVIEWER, INSTANCES):
            for suffix in (".png", ".nii.gz"):
                (self.folder / place / f"{name}{suffix}").unlink(missing_ok=True)

    def _remove_unaccepted(self) -> None:
        """What a kill between the files of an accept and its line in the log has left."""
        names = set()
        for place in (IMAGES, REVIEWER, INSTANCES):
            for file in (self.folder / place).glob("*"):
                if file.name.startswith(TEMPORARY):
                    file.unlink()
                elif not self._entry(file.name.removesuffix(ending(file.name))).is_accepted:
                    names.add(file.name.removesuffix(ending(file.name)))
        for name in names:
            self._remove_files(name)
        if (self.folder / TABLE).exists() or names:
            self._write_table()

    def upload(self, name: str, content: Path) -> int:
        """Add an image from a file that was uploaded under this name; the number of the new case."""
        safe = safe_name(name.replace("\\", "/").rsplit("/", 1)[-1] or "upload")
        stored = Case(safe, content).read()
        suffix, encoded = encode_image(stored)
        with self._lock:
            taken = [*(case.name for case in self.cases), *self._entries]
            (case,) = unique_names([Case(safe, content)], taken=taken)
            path = self.folder / UPLOADS / f"{case.name}{suffix}"
            atomic_write(path, encoded, error=DiskError)
            self.cases.append(Case(case.name, path))
            return len(self.cases) - 1

    def temporary(self) -> "tempfile.TemporaryDirectory[str]":
        """A folder on the same disk for what is being uploaded; deleted at the end."""
        return tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=self.folder)

    def close(self) -> None:
        """Close the log."""
        self._file.close()


def _read_about(folder: Path) -> dict[str, Any]:
    if (folder / DESCRIPTION).exists():
        what = "the description of a work list"
        where = folder / DESCRIPTION
        return read_hashed_json(where, kind=_FORMAT, version=_VERSION, what=what, max_bytes=_MAX_BYTES)
    if (folder / LOG).exists() or any((folder / each).exists() for each in (IMAGES, GRADERS, INSTANCES, TABLE)):
        raise ConfigError(f"{folder}: is a folder with other data, not a work list; choose another --worklist")
    return {"format": _FORMAT, "version": _VERSION, "salt": secrets.token_hex(8), "patients": {}}


def default_folder(inputs: Sequence[str]) -> Path:
    """The work list of these inputs, in the user's data folder; its name does not tell theirs."""
    key = "\0".join(inputs)
    home = os.environ.get("HPUNET_HOME") or platformdirs.user_data_path("hpunet", appauthor=False)
    return Path(home) / "worklists" / hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:12]


@contextmanager
def open_work_list(folder: Path, cases: Sequence[Case], *, model: str) -> Iterator[WorkList]:
    """The work list in this folder, made if necessary; a `ConfigError` if another process has it open."""
    with lock_folder(folder):
        for left in folder.glob(f"{TEMPORARY}*"):
            with suppress(OSError):
                for file in left.iterdir():
                    file.unlink()
                left.rmdir()
        found = WorkList(folder, cases, model=model)
        try:
            yield found
        finally:
            found.close()


def encode_image(stored: Stored) -> tuple[str, bytes]:
    """The ending and content of a file with these values: PNG of 8 or 16 bits, NIfTI for everything else."""
    values = stored.values
    if len(values) == 1 and stored.header is None and values.dtype in (np.uint8, np.uint16):
        picture = values[0]
        if picture.dtype == np.uint16 and picture.ndim == 3:
            return ".png", bytes(need("imagecodecs").png_encode(picture))
        return ".png", _png(picture)
    if values.ndim != 3:
        raise DataError("colour volumes and colours as floats cannot be saved; convert them to grey, or to 8 bits")
    return ".nii.gz", encode_nifti(values, header=_header(stored))


def encode_mask(mask: np.ndarray, stored: Stored, *, suffix: str) -> bytes:
    """A label map (z, h, w) of 8 or 16 bits as a file of this ending."""
    return _png(mask[0]) if suffix == ".png" else encode_nifti(mask, header=_header(stored))


def _header(stored: Stored) -> Any:
    if stored.header is not None:
        return stored.header
    depth, height, width = stored.values.shape[:3]
    return stored.geometry.nifti_header((depth, height, width))


def _png(picture: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(picture).save(content, format="PNG")
    return content.getvalue()
