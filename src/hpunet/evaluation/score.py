"""Scores of samples that are given in files, by whatever method: the rows and the summary of an evaluation."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hpunet.config.settings import MAX_SAMPLES
from hpunet.data.fingerprint import FILES_FILE, FileHashes, changed_files, read_contents
from hpunet.data.types import Source
from hpunet.errors import ConfigError, DataError
from hpunet.evaluation.images import Item, as_batch, centre_crop, centred
from hpunet.evaluation.rows import SUMMARY_FILE, Row, RowStore
from hpunet.evaluation.run import Callback, chosen_images, read_ahead
from hpunet.evaluation.sample_files import SampleFiles
from hpunet.evaluation.scores import image_scores, marginal_scores, metric_arguments, slice_scores, volume_identity
from hpunet.evaluation.summary import Scope, plural, sizes_scored, summarise
from hpunet.metrics import subset_b
from hpunet.utils.distributed import shared_lock
from hpunet.utils.files import atomic_write, dump_json, real_path

_IMAGES_AT_ONCE = 16  # rows that are saved together; volumes one by one


def score_samples(
    samples: SampleFiles,
    *,
    source: Source,
    folder: Path,
    num_samples: int,
    crop: tuple[int, ...] | None = None,
    options: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    limit: int | None = None,
    skip_missing: bool = False,
    replace_rows: bool = False,
    watch: Callback = lambda _done, _total: None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Score the first `num_samples` samples of each image; returns the summary, saved in `folder` as by `evaluate`.

    Labels, `crop`, `limit`, rows and digits are those of an evaluation on a CPU, so that both can be compared. What
    needs a posterior is left out. A sample that cannot be read, or does not fit its image, ends it with an error;
    images without samples are refused, or left out and counted with `skip_missing`.
    """
    start = time.perf_counter()
    if source.info.has_instances:
        raise ConfigError(f"{source.info.kind} data: labels are instances; score takes samples of class maps")
    if crop is not None and len(crop) != source.info.ndim:
        what = "depth, height and width" if source.info.ndim == 3 else "height and width"
        raise ConfigError(f"crop: expected {what}, got {crop}")
    if not 1 <= num_samples <= MAX_SAMPLES:
        raise ConfigError(f"samples-per-image: expected 1 to {MAX_SAMPLES}, got {num_samples}")
    if real_path(samples.tree.path).is_relative_to(real_path(folder)):
        words = f"{samples.tree.path}: these samples lie in the output folder {folder}, whose files may be replaced"
        raise ConfigError(f"{words}; choose another --out")
    chosen = chosen_images(source, limit)
    keys = [source.identities[i].key for i in chosen]
    if (missing := set(samples.missing(keys))) and (not skip_missing or len(missing) == len(keys)):
        first = next(key for key in keys if key in missing)
        words = f"{samples.expected(first)}: there is no such file; {plural(len(missing), 'image')} of {len(keys)}"
        raise DataError(f"{words} lack samples; add them, or leave these images out with --skip-missing")
    chosen = [i for i, key in zip(chosen, keys, strict=True) if key not in missing]
    if missing:
        say(f"{plural(len(missing), 'image')} of {len(keys)} without samples are left out")
    with shared_lock(folder), ExitStack() as stack:
        hashes = FileHashes(folder / FILES_FILE)
        how: dict[str, Any] = {"options": options or {}, "hashes": hashes}
        contents = read_contents(source, **how)
        whole = chosen if missing else range(len(source))  # so that another `limit` extends the rows
        given = samples.files(source.identities[i].key for i in whole)
        drawn = hashes.of({f"{samples.tree.path.name}/{name}": file for name, file in given.items()})
        identity = {
            "predictions": hashlib.sha256(json.dumps([samples.pattern, sorted(drawn.items())]).encode()).hexdigest(),
            "data": contents.fingerprint,
            "split": source.split,
            "samples": num_samples,
            "alpha": None,
            "crop": None if crop is None else list(crop),
            "extrapolate": False,
            **volume_identity(source.info),
        }
        store = stack.enter_context(RowStore(folder, identity=identity, replace=replace_rows))
        hashes.save()
        left = [i for i in chosen if source.identities[i].key not in store.done]
        if there := len(chosen) - len(left):
            say(f"{there} of {len(chosen)} rows are done already")
        sizes: set[tuple[int, ...]] = set()
        at_once = _IMAGES_AT_ONCE if source.info.ndim == 2 else 1
        batches = [left[i : i + at_once] for i in range(0, len(left), at_once)]
        for number, items in enumerate(read_ahead(source, batches, source.info)):
            sizes |= {item.sample.valid.shape for item in items if item.sample is not None}
            store.append([_row(item, samples, source=source, num_samples=num_samples, crop=crop) for item in items])
            watch(min(len(left), (number + 1) * at_once), len(left))
        if sizes - {crop}:
            say(sizes_scored(sizes, crop=crop))
        if words := changed_files(contents.files, read_contents(source, **how).files):
            raise DataError(f"{words} changed while they were scored; score again with --replace")
        wanted = {source.identities[i].key for i in chosen}
        rows = [row for row in store.finish() if row.key in wanted]
        scope = Scope(num_samples, False, has_average_precision=False, has_volumes=source.info.ndim == 3)
        summary = {
            **(about or {}),
            "split": source.split,
            "limit": limit if limit is not None and limit < len(source) else None,
            "num_seeds": 1,
            "num_missing": len(missing),
            "data_fingerprint": identity["data"],
            "crop": identity["crop"],
            **volume_identity(source.info),
            **summarise(rows, scope=scope),
            "duration_s": round(time.perf_counter() - start, 3),
        }
        atomic_write(folder / SUMMARY_FILE, dump_json(summary, name=SUMMARY_FILE))
    return summary


def _row(item: Item, samples: SampleFiles, *, source: Source, num_samples: int, crop: tuple[int, ...] | None) -> Row:
    patient, key = source.identities[item.number]
    if item.sample is None:
        return Row(image=item.number, key=key, patient=patient, error=item.error)
    info, batch = source.info, as_batch(item.sample)
    whole = tuple(batch.valid.shape[1:])
    sizes = list(dict.fromkeys([whole] if crop is None else [whole, crop]))
    maps = samples.read(key, sizes=sizes, count=num_samples, num_classes=info.num_classes)
    drawn: Tensor = torch.from_numpy(maps)[None]
    if crop is not None:
        drawn, batch = centred(drawn, crop=crop), centre_crop(batch, crop=crop)
    scores = image_scores(samples=drawn, reconstructions=None, batch=batch, info=info)
    scores |= marginal_scores(samples=drawn, batch=batch, info=info)
    if info.ndim == 3:
        scores |= slice_scores(samples=drawn, reconstructions=None, batch=batch, info=info)
    values = {name: float(value[0]) for name, value in scores.items()}
    return Row(
        image=item.number,
        key=key,
        patient=patient,
        num_graders=int(batch.graders.sum()),
        subset_b=bool(subset_b(**metric_arguments(batch, info))[0]),
        scores={name: value for name, value in values.items() if value == value},  # not NaN
        matches=None,
    )
