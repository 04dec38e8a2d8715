"""A changed set must be read completely, or an error must name the file; anything else is a fault."""

import functools
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import nibabel
import numpy as np
from corpus import Corpus, write_files
from mutate import Change
from PIL import Image

from hpunet.config.settings import load_settings
from hpunet.data.cityscapes.scenes import read_instance_ids
from hpunet.data.folder.source import open_folder
from hpunet.data.folder.table import read_table
from hpunet.data.io.archives import read_tar
from hpunet.data.io.inputs import read_stored
from hpunet.data.io.limits import ImageSize
from hpunet.data.io.volumes import read_stack
from hpunet.data.lidc.importer import ImportSummary, import_lidc
from hpunet.data.lidc.pickled import open_lidc_pickle
from hpunet.data.packs import open_pack
from hpunet.data.snemi3d import open_snemi3d
from hpunet.data.types import Sample, SetInfo, Source
from hpunet.errors import DataError, HPUNetError
from hpunet.evaluation.rows import read_rows
from hpunet.evaluation.sample_files import SampleFiles
from hpunet.reports.examples import read_examples
from hpunet.training.loggers import read_log
from hpunet.weights.load import load_trained
from hpunet.weights.tensorflow.convert import read_variables

_MOST_CHARACTERS = 2000  # of an error


class FaultError(AssertionError):
    """A reader broke the rule above."""


@dataclass(frozen=True)
class Reading:
    """All samples by their keys, or the errors in their place."""

    info: SetInfo
    samples: dict[str, Sample | DataError]


@dataclass(frozen=True)
class Import:
    summary: ImportSummary
    pictures: dict[str, np.ndarray]
    """By name below the split: 'images/P1/z-001_c0.png'; of volumes 'image/P1/c0'."""
    volumes: bool = False


def judge(corpus: Corpus, valid: "Reading | Import", change: Change, root: Path) -> str:
    """'read', 'refused' or 'counted' (left out by a rule of the importer, and counted in its summary)."""
    if isinstance(valid, Import):
        return _judge_import(valid, change, root)
    return _judge_reading(corpus, valid, change, root)


def read_valid(corpus: Corpus) -> "Reading | Import":
    """The content of the unchanged set."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(corpus.files, Path(folder) / "in")
        if corpus.open is None:
            return run_import(Path(folder), volumes=corpus.volumes)
        return read_set(corpus, Path(folder) / "in")


def read_set(corpus: Corpus, root: Path) -> Reading:
    assert corpus.open is not None
    sources = corpus.open(root)
    samples = {
        identity.key: _read_or_error(source, index)
        for source in sources
        for index, identity in enumerate(source.identities)
    }
    return Reading(sources[0].info, samples)


def _read_or_error(source: Source, index: int) -> Sample | DataError:
    try:
        return source[index]
    except DataError as error:
        return error


def run_import(root: Path, *, volumes: bool) -> Import:
    summary = import_lidc(root / "in", root / "out", processes=1, progress=False, volumes=volumes)
    if volumes:
        found = {}
        for file in sorted((root / "out").glob("*/*.nii.gz")):
            patient, _, lesion = file.parent.name.rpartition("_")
            found[f"{file.name.split('.')[0]}/{patient}/{lesion}"] = np.asarray(nibabel.load(file).dataobj)
        return Import(summary, found, volumes=True)
    files = sorted((root / "out").rglob("*.png"))
    names = [file.relative_to(root / "out").as_posix().split("/", 1)[1] for file in files]
    return Import(summary, {name: np.asarray(Image.open(file)) for name, file in zip(names, files, strict=True)})


def _check_named(error: str, culprits: Iterable[str]) -> None:
    if not any(PurePosixPath(name).name in error for name in culprits):
        raise FaultError(f"the error does not name {' or '.join(culprits)}: {error[:300]}")


def _judge_reading(corpus: Corpus, valid: Reading, change: Change, root: Path) -> str:
    try:
        found = read_set(corpus, root / "in")
    except DataError as error:
        _check_named(str(error), change.culprits)
        return "refused"
    if list(found.samples) != list(valid.samples):
        raise FaultError(f"samples {list(found.samples)} instead of {list(valid.samples)}")
    for key, sample in found.samples.items():
        before = valid.samples[key]
        assert isinstance(before, Sample)
        if isinstance(sample, DataError):
            _check_named(str(sample), change.culprits)
        elif any(corpus.belongs(key, name) for name in change.culprits):
            _check_contract(sample, before, found.info)
        elif any(
            not np.array_equal(getattr(sample, n), getattr(before, n))
            for n in ("image", "labels", "valid", "graders")
        ):
            raise FaultError(f"{key} changed, though none of its files did")
    if any(isinstance(sample, DataError) for sample in found.samples.values()):
        return "refused"
    if change.refused or not _is_same(found.info, valid.info):
        raise FaultError("read, but must be refused")
    return "read"


def _is_same(info: SetInfo, valid: SetInfo) -> bool:
    """A spacing may differ as little as the affines of an image and its masks may."""
    spacings = (info.spacing or (), valid.spacing or ())
    alike = len(spacings[0]) == len(spacings[1]) and np.allclose(*spacings, rtol=0, atol=1e-3)
    return alike and replace(info, spacing=None) == replace(valid, spacing=None)


def _check_contract(sample: Sample, before: Sample, info: SetInfo) -> None:
    counted = sample.valid & sample.graders.reshape(-1, *[1] * info.ndim)
    checks = {
        "image shape": sample.image.shape == (info.in_channels, *before.image.shape[1:]),
        "labels shape": sample.labels.shape == before.labels.shape,
        "types": (sample.image.dtype, sample.labels.dtype, sample.valid.dtype) == (np.float32, np.int32, np.bool_),
        "pixels": bool(np.isfinite(sample.image).all()) and 0 <= sample.image.min() <= sample.image.max() <= 1,
        "graders": np.array_equal(sample.graders, before.graders),
        "labels": sample.labels.min() >= 0 and (info.has_instances or sample.labels.max() < info.num_classes),
        "labels where nothing counts": not sample.labels[~counted].any(),
    }
    for what, holds in checks.items():
        if not holds:
            raise FaultError(f"{sample.identity.key}: wrong {what}")


def _judge_import(valid: Import, change: Change, root: Path) -> str:
    found = run_import(root, volumes=valid.volumes)
    touched = {name.split("/")[0] for name in change.culprits}
    for failure in found.summary.failures:
        _check_named(failure, change.culprits)
    for unused in found.summary.unused:
        _check_named(unused, [*change.culprits, *touched])
    for name, picture in valid.pictures.items():
        if name.split("/")[1] not in touched and not np.array_equal(found.pictures.get(name), picture):
            raise FaultError(f"{name} of another patient is missing or another one")
    for name, picture in found.pictures.items():
        wanted = np.int16 if name.startswith("image/") else np.uint8
        if picture.shape[:2] != (180, 180) or picture.ndim != 2 + valid.volumes or picture.dtype != wanted:
            raise FaultError(f"{name}: {picture.dtype} of shape {picture.shape}")
    if found.summary.failures:
        return "refused"
    if change.refused:
        raise FaultError(f"not among the failures: {found.summary}")
    if (found.summary.dropped, found.summary.noted) != (valid.summary.dropped, valid.summary.noted):
        return "counted"
    if _counts(found) != _counts(valid):
        raise FaultError(f"{_counts(found)} images instead of {_counts(valid)}, without a message")
    return "read"


def judge_bomb(path: Path, root: Path, *, is_read: bool) -> str:
    """'refused': by an error of ours, of a single line of bearable length, that names the file; or 'read'."""
    try:
        _read_bomb(path, root)
    except HPUNetError as error:
        _check_named(str(error), [path.name])
        if "\n" in str(error) or len(str(error)) > _MOST_CHARACTERS:
            raise FaultError(f"an error of {len(str(error))} characters: {str(error)[:300]}") from None
        if is_read:
            raise FaultError(f"refused, but must be read: {error}") from None
        return "refused"
    if not is_read:
        raise FaultError("read, but must be refused")
    return "read"


def _read_bomb(path: Path, root: Path) -> None:
    """Read a file by its name, or a folder by the files in it, as the commands do."""
    if (path / "model.json").is_file() or (path / "config.json").is_file():
        load_trained(path, device="cpu")
    elif (path / "pack.json").is_file():
        open_pack(path, split="train")
    elif (path / "model.index").is_file() or path.suffix == ".index":
        read_variables(path)
    elif (path / "train-input.h5").is_file():
        open_snemi3d(path, split="train")
    elif (path / "images").is_dir():
        open_folder(path, split="val", val_every=2, volumes=path.name.startswith("volumes"))[0]
    elif list(path.glob("*.xml")):
        if failures := import_lidc(path, root / "out", processes=1, progress=False).failures:
            raise DataError(failures[0])
    elif path.name.endswith("_polygons.json"):
        read_instance_ids(path, size=ImageSize(1, 4096, 8192, "an image"))
    elif path.name == "data.csv":
        read_table(path.read_bytes(), name=str(path))
    elif path.name == "rows.csv":
        read_rows(path)
    elif path.name == "examples.npz":
        read_examples(path)
    elif path.name == "samples.npz":
        given = SampleFiles(path.parent, keys=["samples"])
        given.read("samples", sizes=[(64, 64)], count=4, num_classes=2)
    else:
        readers: dict[str, Callable[[Path], object]] = {
            ".h5": read_stack,
            ".tar": read_tar,
            ".gz": read_tar,
            ".npz": read_variables,
            ".pickle": lambda path: open_lidc_pickle(path, split="train"),
            ".jsonl": lambda path: read_log(path, strict=True),
            ".toml": lambda path: load_settings(str(path)),
        }
        read = read_stored if path.name.endswith(".nii.gz") else readers.get(path.suffix, read_stored)
        read(path)


def _counts(made: Import) -> Counter[str]:
    """Pictures by kind, patient and grader. Their slices are counted from the lowest, so a lost one renames them."""
    return Counter("/".join(re.split("[/_]", name)[i] for i in (0, 1, -1)) for name in made.pictures)


@functools.cache
def valid_reading(make: "functools._lru_cache_wrapper[Corpus]") -> "Reading | Import":
    return read_valid(make())
