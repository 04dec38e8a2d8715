"""Import of the original LIDC-IDRI download (DICOM series, one XML per scan) as crops for `crops.py` (App. C).

Or as volumes, one folder per lesion, with the patients and splits in `data.csv`, for `folder/source.py`:

    <patient>_c<lesion>/image.nii.gz             Hounsfield units; see `nodules.py`
    <patient>_c<lesion>/annotation_<1-4>.nii.gz  the mask of each reader; without a file there was no reading

A patient is one unit of work: crops are moved into place when complete, then a record is written to `.import/`. A
re-run skips patients whose record names no failures.
"""

import hashlib
import json
import os
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from hpunet.data.io.limits import need
from hpunet.data.io.volumes import encode_nifti
from hpunet.data.lidc.annotations import Annotations, read_annotations
from hpunet.data.lidc.crops import NUM_GRADERS
from hpunet.data.lidc.dicom import SliceHeader, read_header
from hpunet.data.lidc.nodules import NoduleVolume, ScanNodules, cut_nodules
from hpunet.data.lidc.scan import ScanCrops, crop_scan, order_slices
from hpunet.data.types import split_by_patient
from hpunet.data.workers import workers
from hpunet.errors import DataError
from hpunet.utils.files import atomic_write, explain_os_errors, read_file
from hpunet.utils.limits import MAX_XML_BYTES
from hpunet.utils.locks import is_vacant, lock_folder

FRACTIONS = {"train": 722 / 1010, "val": 144 / 1010, "test": 144 / 1010}  # of the patients, as in the paper
_TABLE = "data.csv"
_PATIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass
class ImportSummary:
    """What an import found, wrote and left out; also in `summary.json`."""

    seed: int
    patients: dict[str, int] = field(default_factory=dict)  # by split, including those without crops
    images: dict[str, int] = field(default_factory=dict)  # by split: crops, or volumes
    num_scans: int = 0
    num_lesions: int = 0
    num_patients_done_before: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # how often a rule left something out, by reason
    unused: list[str] = field(default_factory=list)  # whole files and series that a rule left out, with the reason
    noted: Counter[str] = field(default_factory=Counter)  # used, but worth knowing
    failures: list[str] = field(default_factory=list)  # unusable files and scans, with the reason

    def leave_out(self, path: Path, reason: str) -> None:
        """Count and name what a rule left out."""
        self.dropped[reason] += 1
        self.unused.append(f"{path}: {reason}")


class _Scan(NamedTuple):
    series_uid: str
    headers: list[SliceHeader]
    annotations: Annotations
    xml: Path


@dataclass
class _Record:
    """Record of a finished patient. A re-run compares `inputs` to see whether the files are the same."""

    inputs: list[list[Any]]
    num_images: int = 0
    num_lesions: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    noted: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def import_lidc(
    source: Path,
    out: Path,
    *,
    seed: int = 0,
    processes: int | None = None,
    progress: bool = True,
    volumes: bool = False,
) -> ImportSummary:
    """Crop every lesion below `source` into `out`, with train/val/test by a seeded shuffle of the patients.

    With `volumes`, a lesion is one volume, else one image per slice.

    DICOM files (`*.dcm`) and XML files may lie anywhere below `source`; they are matched by their identifiers.
    `processes` is the number of worker processes, by default one per core. A re-run with the same `out` resumes and
    retries failures; it must find the same patients and use the same `seed`.
    """
    for package in ("pydicom", "defusedxml", *(("nibabel",) if volumes else ())):
        need(package)
    source, out, summary = Path(source), Path(out), ImportSummary(seed=seed)
    with lock_folder(out), workers(processes, out) as run:
        headers, annotations = _read_source(source, run=run, progress=progress, summary=summary)
        scans = _match(headers, annotations, summary=summary)
        splits = split_by_patient({h.patient for h in headers}, fractions=FRACTIONS, seed=seed)
        _begin_or_resume(out, plan={"seed": seed, "splits": splits, **({"volumes": True} if volumes else {})})
        split_of = {patient: split for split, patients in splits.items() for patient in patients}
        records, jobs = dict[str, _Record](), []
        for patient in sorted(split_of):
            found = sorted(scans.get(patient, []), key=lambda scan: scan.series_uid)
            before = _earlier_record(out, patient)
            if before is not None and before.inputs == _inputs(found) and not before.failures:
                records[patient] = before
            else:
                jobs.append((patient, split_of[patient], found, volumes))
        if volumes and jobs:
            _write_table(out, {})  # until all is there, the folder is not read: patients would be unknown
        summary.num_patients_done_before = len(records)
        done = run(_import_patient, jobs)
        for (patient, *_), record in zip(jobs, _with_progress(done, len(jobs), "patients", progress), strict=True):
            records[patient] = record
        summary.patients = {split: len(patients) for split, patients in splits.items()}
        summary.images = dict.fromkeys(splits, 0)
        for patient, record in sorted(records.items()):
            summary.images[split_of[patient]] += record.num_images
            summary.num_scans += len(record.inputs)
            summary.num_lesions += record.num_lesions
            summary.dropped.update(record.dropped)
            summary.noted.update(record.noted)
            summary.failures += record.failures
        summary.dropped, summary.noted = +summary.dropped, +summary.noted  # drops zero counts
        if volumes:
            _write_table(out, split_of)
        _write_json(out / "summary.json", vars(summary))
    return summary


def _read_source(
    source: Path, *, run: Callable[..., Iterator[Any]], progress: bool, summary: ImportSummary
) -> tuple[list[SliceHeader], list[tuple[Path, Annotations]]]:
    """All CT headers and readings below `source`; an unreadable file is a failure."""
    if not source.is_dir():
        raise DataError(f"{source}: not a folder")

    def name_unreadable(error: OSError) -> None:
        summary.failures.append(f"{error.filename}: cannot be read ({error.strerror})")

    dicom, xml = [], []
    for folder, folders, names in os.walk(source, onerror=name_unreadable):
        folders.sort()
        paths = [Path(folder, name) for name in sorted(names) if not name.startswith(".")]
        dicom += [path for path in paths if path.suffix.lower() == ".dcm"]
        xml += [path for path in paths if path.suffix.lower() == ".xml"]
    if not dicom or not xml:
        raise DataError(f"{source}: found {len(dicom)} DICOM files (*.dcm) and {len(xml)} XML files below it")
    found: list[tuple[Path, SliceHeader | Annotations]] = []
    for paths, what, other in ((dicom, "DICOM headers", "not a CT slice"), (xml, "XML", "XML that is no CT reading")):
        results = _with_progress(run(_read, paths), len(paths), what, progress)
        for path, (content, error) in zip(paths, results, strict=True):
            if error:
                summary.failures.append(error)
            elif content is None:
                summary.leave_out(path, f"file: {other}")
            else:
                found.append((path, content))
    headers = [content for _, content in found if isinstance(content, SliceHeader)]
    return headers, [(path, content) for path, content in found if isinstance(content, Annotations)]


def _read(_: Path, path: Path) -> tuple[SliceHeader | Annotations | None, str]:
    """A slice's header or a scan's readings; None for other files; or the reason why the file is unusable."""
    try:
        content = read_header(path) if path.suffix.lower() == ".dcm" else read_annotations(path)
        if isinstance(content, SliceHeader) and not _PATIENT_NAME.fullmatch(content.patient):
            raise DataError(f"{path}: its PatientID cannot be the name of a folder")
        if isinstance(content, Annotations) and len(content.readings) > NUM_GRADERS:
            raise DataError(f"{path}: {len(content.readings)} reading sessions, expected up to {NUM_GRADERS}")
    except DataError as error:
        return None, str(error)
    return content, ""


def _match(
    headers: list[SliceHeader], annotations: list[tuple[Path, Annotations]], *, summary: ImportSummary
) -> dict[str, list[_Scan]]:
    """The scans of every patient that have one reading file; series and files without the other are counted."""
    series: dict[str, list[SliceHeader]] = defaultdict(list)
    for header in headers:
        series[header.series_uid].append(header)
    readings: dict[str, list[tuple[Path, Annotations]]] = defaultdict(list)
    for path, read in annotations:
        readings[read.series_uid].append((path, read))
    for uid in sorted(readings.keys() - series.keys()):
        for path, _ in readings[uid]:
            summary.leave_out(path, "XML: its series is not there")
    for uid in sorted(series.keys() - readings.keys()):
        summary.leave_out(series[uid][0].path.parent, "series: no XML for it")
    scans: dict[str, list[_Scan]] = defaultdict(list)
    for uid in sorted(series.keys() & readings.keys()):
        patient, found = _of_one_patient(series[uid], summary=summary)
        path, read = readings[uid][0]
        others = [other for other, _ in readings[uid][1:]]
        content = read_file(path, error=DataError)
        different = [other for other in others if read_file(other, error=DataError) != content]
        if different:
            summary.failures.append(f"{different[0]}: readings of the same series as {path}, but different ones")
        elif not read.readings:
            summary.failures.append(f"{path}: no reading session")
        else:
            for other in others:
                summary.leave_out(other, "XML: a copy")
            scans[patient].append(_Scan(uid, found, read, path))
    return scans


def _of_one_patient(headers: list[SliceHeader], *, summary: ImportSummary) -> tuple[str, list[SliceHeader]]:
    """The patient named by most slices of a series, and these slices; the others are failures."""
    counts = Counter(header.patient for header in headers)
    patient = min(counts, key=lambda name: (-counts[name], name))
    for header in headers:
        if header.patient != patient:
            summary.failures.append(f"{header.path}: of another patient than most of its series")
    return patient, [header for header in headers if header.patient == patient]


def _write_table(out: Path, split_of: Mapping[str, str]) -> None:
    """The patient and split of every volume of these patients."""
    rows = [
        f"{folder.name},{patient},{split}\n"
        for patient, split in sorted(split_of.items())
        for folder in _volumes_of(out, patient)
    ]
    atomic_write(out / _TABLE, "".join(["file,patient,split\n", *rows]).encode(), error=DataError)


def _volumes_of(out: Path, patient: str) -> list[Path]:
    """The folders of a patient's lesions."""
    return sorted(path for path in out.glob(f"{patient}_c*") if path.name.removeprefix(f"{patient}_c").isdigit())


def _import_patient(out: Path, job: tuple[str, str, list[_Scan], bool]) -> _Record:
    """Crop all scans of a patient, with consecutive numbers, and move the crops into place."""
    patient, split, scans, volumes = job
    record = _Record(inputs=_inputs(scans))
    staging = out / ".import" / "staging" / patient
    targets = [] if volumes else [out / split / kind / patient for kind in ("images", "gt")]
    try:
        for folder in (staging, *targets, *(_volumes_of(out, patient) if volumes else ())):
            if folder.exists():
                shutil.rmtree(folder)
        for scan in scans:
            _import_scan(scan, patient=patient, staging=staging, record=record, volumes=volumes)
        for folder in sorted(staging.iterdir()) if staging.exists() else ():
            target = out / folder.name if volumes else out / split / folder.name / patient
            target.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(target)
        _write_json(out / ".import" / "done" / f"{patient}.json", vars(record))
    except OSError as error:
        raise DataError(f"{error.filename or out}: cannot be written ({error.strerror or error})") from None
    return record


def _import_scan(scan: _Scan, *, patient: str, staging: Path, record: _Record, volumes: bool) -> None:
    wanted = {c.sop_uid for r in scan.annotations.readings for nodule in r.nodules for c in nodule.contours}
    dropped, noted = Counter[str](), Counter[str]()
    found: ScanCrops | ScanNodules
    try:
        slices = order_slices(scan.headers, wanted=wanted, dropped=dropped, noted=noted)
        cut = cut_nodules if volumes else crop_scan
        found = cut(slices, scan.annotations, dropped=dropped, noted=noted)
    except DataError as error:
        record.failures.append(f"{scan.xml}: this scan was left out: {error}")
        return
    record.dropped += dropped
    record.noted += noted
    record.failures += found.failures
    if isinstance(found, ScanNodules):
        record.num_images += len(found.nodules)
        for nodule in found.nodules:
            _write_nodule(nodule, staging / f"{patient}_c{record.num_lesions + nodule.lesion}")
    else:
        record.num_images += len(found.crops)
        for crop in found.crops:
            name = f"z-{crop.slice_number:03d}_c{record.num_lesions + crop.lesion}"
            gradings = {f"gt/{name}_l{r}": labels * 255 for r, labels in enumerate(crop.labels.astype("uint8"))}
            for path, pixels in {f"images/{name}": crop.image, **gradings}.items():
                target = staging / f"{path}.png"
                target.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(target)
    record.num_lesions += found.num_lesions


def _write_nodule(nodule: NoduleVolume, folder: Path) -> None:
    folder.mkdir(parents=True)
    depth, height, width = nodule.image.shape
    header = nodule.geometry.nifti_header((depth, height, width))
    maps = {f"annotation_{r}": labels.astype("uint8") for r, labels in enumerate(nodule.labels, start=1)}
    for name, values in {"image": nodule.image, **maps}.items():
        (folder / f"{name}.nii.gz").write_bytes(encode_nifti(values, header=header))


def _inputs(scans: list[_Scan]) -> list[list[Any]]:
    """What tells whether the files are the same: readings by content, slices by size and time; no UIDs."""
    found = []
    for scan in scans:
        slices = sorted([header.sop_uid, *_size_and_time(header.path)] for header in scan.headers)
        files = [read_file(scan.xml, max_bytes=MAX_XML_BYTES, error=DataError), json.dumps(slices).encode()]
        sums = [hashlib.sha256(content).hexdigest() for content in (scan.series_uid.encode(), *files)]
        found.append([*sums, len(slices)])
    return found


def _size_and_time(path: Path) -> tuple[int, int]:
    with explain_os_errors(path, action="read", error=DataError):
        status = path.stat()
    return status.st_size, status.st_mtime_ns


def _begin_or_resume(out: Path, *, plan: Mapping[str, Any]) -> None:
    """Start in an empty folder, or resume in one begun with the same plan."""
    path = out / ".import" / "plan.json"
    if path.exists():
        if _read_json(path) != plan:
            raise DataError(f"{out}: begun with another seed or other patients; use an empty folder")
    elif not is_vacant(out):
        raise DataError(f"{out}: not empty and not begun by this importer; use an empty folder")
    else:
        _write_json(path, plan)
    shutil.rmtree(out / ".import" / "staging", ignore_errors=True)


def _earlier_record(out: Path, patient: str) -> _Record | None:
    path = out / ".import" / "done" / f"{patient}.json"
    if not path.exists():
        return None
    content = _read_json(path)
    try:
        return _Record(**{**content, **{name: Counter(content[name]) for name in ("dropped", "noted")}})
    except (TypeError, KeyError):
        raise DataError(f"{path}: not a record of this importer; delete it to import the patient again") from None


def _read_json(path: Path) -> Any:
    try:
        return json.loads(read_file(path, error=DataError))
    except (ValueError, RecursionError):
        raise DataError(f"{path}: not readable as JSON; delete it, or use an empty folder") from None


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    atomic_write(path, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode(), error=DataError)


def _with_progress(items: Iterable[Any], total: int, what: str, progress: bool) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(items, description=what, total=total, console=console, disable=not progress, transient=True)
