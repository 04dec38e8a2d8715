"""Evaluation of a model on a whole split: one row per image, then a summary, and maps of a few images."""

import io
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hpunet.data.fingerprint import FILES_FILE, FileHashes, changed_files, read_contents
from hpunet.data.types import SetInfo, Source
from hpunet.data.workers import workers
from hpunet.errors import ConfigError, DataError
from hpunet.evaluation.drawn import Drawn
from hpunet.evaluation.examples import MAX_SIDE, example_arrays
from hpunet.evaluation.images import MAX_PIXELS, Item, fast_batch_size, read_item
from hpunet.evaluation.instance_scores import start_worker
from hpunet.evaluation.rows import EXAMPLES_FILE, SUMMARY_FILE, Row, RowStore, first_keys, mean_rows
from hpunet.evaluation.sample_files import sample_path
from hpunet.evaluation.scorer import Scorer
from hpunet.evaluation.scores import volume_identity
from hpunet.evaluation.summary import sizes_scored, summarise
from hpunet.utils.cores import usable_cores
from hpunet.utils.distributed import rank, shared_lock, world_size
from hpunet.utils.files import atomic_write, dump_json
from hpunet.utils.pictures import spread

NUM_SHOWN, NUM_HARDEST = 12, 12  # images whose maps are kept: spread over the set, and with the worst scores
MAX_PROCESSES = 16  # that score instances, by default: each takes some 300 MB
WAITING = 3  # drawn batches that may wait for their scores, the latest one included
Callback = Callable[[int, int], None]  # receives the number of images done, and of all


def evaluate(
    scorer: Scorer,
    *,
    source: Source,
    folder: Path,
    options: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    limit: int | None = None,
    batch_size: int | None = None,
    replace: bool = False,
    processes: int = 1,
    watch: Callback | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Score a model on a split, resuming an earlier attempt; returns the summary, saved in `folder`.

    Args:
        scorer: the model and how it is scored.
        source: the split.
        folder: where rows, summary and examples go; see `rows.py`.
        options: options that the data were opened with; part of their identity.
        about: further entries of the summary.
        limit: size of a fixed random subset to score; smaller subsets are part of larger ones.
        batch_size: images per forward pass.
        replace: replace another evaluation in the folder.
        processes: number of processes that score instances; with 1 it is done here.
        watch: receives the progress of this process.
        say: receives messages.
    """
    start = time.perf_counter()
    for name, value in (("limit", limit), ("batch", batch_size)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    scorer.check(source)
    chosen = chosen_images(source, limit)
    watch = watch or (lambda _done, _total: None)
    with shared_lock(folder), ExitStack() as stack:
        hashes = FileHashes(folder / FILES_FILE)
        before, contents = hashes.remembered, read_contents(source, options=options or {}, hashes=hashes)
        identity, changed = scorer.identity(source, contents=contents), changed_files(before, contents.files)
        altered = {
            source.identities[i].key
            for i in (range(len(source)) if changed else ())
            if any(before.get(name) != contents.files[name] for name in source.files(i))
        }
        store = stack.enter_context(RowStore(folder, identity=identity, altered=altered, replace=replace))
        if rank() == 0:
            hashes.save()
        # Which images go together depends neither on the processes nor, but for the last one, on an interruption.
        known = source.info.image_size or scorer.info.image_size or (MAX_PIXELS,)
        volume = known if source.info.ndim == 3 else None
        size = batch_size or fast_batch_size(scorer.device, volume=volume)
        every = [chosen[i : i + size] for i in range(0, len(chosen), size)]
        left = [[i for i in batch if not _is_done(source.identities[i].key, store, scorer)] for batch in every]
        if there := len(chosen) - sum(map(len, left)):
            finished = f"all {there} rows are done already; --replace evaluates them again"
            say(f"{there} of {len(chosen)} rows are done already" if there < len(chosen) else finished)
        mine = [batch for batch in left if batch][rank() :: world_size()]
        done, total = 0, sum(map(len, mine))
        watch(done, total)
        sizes: set[tuple[int, ...]] = set()
        batches = _noting(sizes, read_ahead(source, mine, scorer.info))
        for rows in scored(scorer, source, batches, processes=max(1, min(processes, total))):
            store.append(rows)
            done += len(rows)
            watch(done, total)
        if sizes - {scorer.crop}:
            say(sizes_scored(sizes, crop=scorer.crop))
        now = read_contents(source, options=options or {}, hashes=hashes).files
        if words := changed_files(contents.files, now):
            raise DataError(f"{words} changed during the evaluation; evaluate again with --replace")
        wanted = {source.identities[i].key for i in chosen}
        rows = [row for row in store.finish() if row.key in wanted]
        summary = {
            **(about or {}),
            "split": source.split,
            "limit": limit if len(chosen) < len(source) else None,
            "seed": scorer.seed,
            "num_seeds": scorer.num_seeds,
            "data_fingerprint": identity["data"],
            "crop": identity["crop"],
            **volume_identity(source.info),
            **summarise(rows, scope=scorer.scope),
            "duration_s": round(time.perf_counter() - start, 3),
        }
        if rank() == 0:
            atomic_write(folder / SUMMARY_FILE, dump_json(summary, name=SUMMARY_FILE))
            _save_examples(scorer, source, rows, folder)
    return summary


def _is_done(key: str, store: RowStore, scorer: Scorer) -> bool:
    has_samples = scorer.samples_folder is None or sample_path(scorer.samples_folder, key).is_file()
    return key in store.done and has_samples


def default_processes(scorer: Scorer) -> int:
    """One per core to score instances beside a GPU; on a CPU the network needs the cores."""
    if not scorer.finds_instances or scorer.device.type == "cpu":
        return 1
    return max(1, min(MAX_PROCESSES, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def chosen_images(source: Source, limit: int | None) -> list[int]:
    """Indices of the images to evaluate, in order: all, or a fixed random subset."""
    chosen = first_keys((identity.key for identity in source.identities), limit)
    return [i for i, identity in enumerate(source.identities) if identity.key in chosen]


def scored(
    scorer: Scorer, source: Source, batches: Iterable[Sequence[Item]], *, processes: int = 1
) -> Iterator[list[Row]]:
    """The rows of each batch; metrics are computed while the network draws the next batch."""
    drawn = (each for items in batches for each in scorer.draw(source, items))
    with_one_seed = _scored_beside(scorer, source, drawn, processes=processes)
    for by_seed in zip(*[with_one_seed] * scorer.num_seeds, strict=True):
        yield mean_rows(by_seed)


def _scored_beside(scorer: Scorer, source: Source, drawn: Iterable[Drawn], *, processes: int) -> Iterator[list[Row]]:
    coming: deque[Future[list[Row]]] = deque()
    with workers(processes) as run, ThreadPoolExecutor(1) as pool:
        if processes > 1:  # their start takes seconds, and so does the first batch
            pool.submit(lambda: deque(run(start_worker, range(processes)), maxlen=0))
        try:
            for each in _arrived(drawn):
                coming.append(pool.submit(scorer.score, source, each, run))
                if len(coming) >= WAITING:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for future in coming:
                future.cancel()


def _arrived(drawn: Iterable[Drawn]) -> Iterator[Drawn]:
    """Each as soon as its maps are on the CPU and the device has the work for the next.

    Waiting is done here, not where they are scored: while this thread captures a CUDA graph no other one may ask.
    """
    latest: Drawn | None = None
    for each in chain(drawn, (None,)):
        if latest is not None and latest.maps is not None:
            latest.maps.wait()
        if latest is not None:
            yield latest
        latest = each


def read_ahead(source: Source, batches: Sequence[Sequence[int]], info: SetInfo) -> Iterator[list[Item]]:
    """The images of each batch; the next batch is read in the background."""

    def read(indices: Sequence[int]) -> list[Item]:
        return [read_item(source, index, info) for index in indices]

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(read, batches[0]) if batches else None
        for number in range(len(batches)):
            assert coming is not None
            items = coming.result()
            coming = pool.submit(read, batches[number + 1]) if number + 1 < len(batches) else None
            yield items


def _noting(sizes: set[tuple[int, ...]], batches: Iterable[list[Item]]) -> Iterator[list[Item]]:
    """Pass batches through and collect the sizes of their images."""
    for items in batches:
        sizes |= {item.sample.valid.shape for item in items if item.sample is not None}
        yield items


def _save_examples(scorer: Scorer, source: Source, rows: Sequence[Row], folder: Path) -> None:
    """Write `examples.npz`: `example_arrays` of images spread over the set, then of the hardest, each once.

    Also hardness (b,), the metric named by `hardness_metric`, and is_hardest and is_spread (b,): why it is shown.
    """
    metric = "rand_error" if scorer.finds_instances else "ged2"
    good = [row for row in rows if not row.error]
    if not good:
        return
    share = 1.0  # fewer of large whole images and of volumes, which take as long as many small ones
    if scorer.crop is None and (first := read_item(source, good[0].image, scorer.info).sample) is not None:
        share = min(1.0, MAX_SIDE**2 / first.valid.size)
    if scorer.info.ndim == 3:
        share = min(0.5, share if scorer.crop is None else MAX_SIDE**2 / math.prod(scorer.crop))
    num_shown, num_hardest = (max(1, int(share * number)) for number in (NUM_SHOWN, NUM_HARDEST))
    over_set = [good[i].key for i in spread(num_shown, of=len(good))]
    by_key = {row.key: row for row in good}
    by_hardness = sorted((row for row in good if metric in row.scores), key=lambda row: -row.scores[metric])
    hardest = [row.key for row in by_hardness[:num_hardest]]
    arrays = example_arrays(scorer, source, [by_key[key].image for key in dict.fromkeys([*over_set, *hardest])])
    if not arrays:
        return
    shown = [by_key[key] for key in arrays["keys"].tolist()]
    arrays["hardness"] = np.array([row.scores.get(metric, np.nan) for row in shown])
    arrays["hardness_metric"] = np.array(metric)
    arrays["is_hardest"] = np.array([row.key in hardest for row in shown], dtype=np.bool_)
    arrays["is_spread"] = np.array([row.key in over_set for row in shown], dtype=np.bool_)
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    atomic_write(folder / EXAMPLES_FILE, content.getvalue())
