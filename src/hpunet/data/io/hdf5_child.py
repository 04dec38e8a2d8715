"""The process that reads HDF5 files for `hdf5.py`. It imports numpy and h5py only, so that it starts in 0.1 s.

It answers lines of JSON: the shape and type of the only stack of a file and, if asked for, its voxels, or an error.
"""

import json
import math
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np

try:
    import resource
except ImportError:  # Windows: the parent ends what takes too long
    resource = None  # type: ignore[assignment]

_SLAB_BYTES = 2**24


class _RefusedError(Exception):
    """What the library could read, and this does not."""


def _limit(*, memory: int, seconds: float) -> None:
    """Set the limits, beyond what was used so far, below those that the process began with."""
    if resource is None:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    limits = {resource.RLIMIT_CPU: math.ceil(used.ru_utime + used.ru_stime + seconds)}
    with suppress(OSError):  # Linux has this file
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limits[resource.RLIMIT_AS] = pages * resource.getpagesize() + memory
    for kind, soft in limits.items():
        hard = resource.getrlimit(kind)[1]
        with suppress(OSError, ValueError):  # not every system knows both
            resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _only_stack(file: Any) -> Any:
    """The only three-dimensional dataset; links and storage in other files are not followed."""
    found: list[Any] = []
    file.visititems(lambda _, node: found.append(node) if getattr(node, "ndim", 0) == 3 else None)
    if len(found) != 1:
        names = ", ".join(node.name for node in found[:5]) or "none"
        raise _RefusedError(f"expected a single three-dimensional dataset, found {names}")
    if found[0].is_virtual or found[0].external:
        raise _RefusedError(f"dataset {found[0].name} keeps its voxels in other files")
    if found[0].dtype.kind not in "biufc":
        raise _RefusedError(f"dataset {found[0].name} holds no numbers, but {found[0].dtype}")
    return found[0]


def _check_stored(dataset: Any) -> None:
    """HDF5 reads zeros where nothing was written, and unpacks chunks of any claimed size."""
    if dataset.chunks is None:
        whole = dataset.id.get_storage_size() >= dataset.nbytes
    else:
        sides = zip(dataset.shape, dataset.chunks, strict=True)
        whole = dataset.id.get_num_chunks() == math.prod(-(-side // chunk) for side, chunk in sides)
        if math.prod(dataset.chunks) > 2 * dataset.size:
            raise _RefusedError(f"chunks {dataset.chunks} are larger than dataset {dataset.name} itself")
    if not whole:
        raise _RefusedError(f"dataset {dataset.name} is incomplete, some of its voxels are missing")


def _answer(line: bytes, out: Any) -> None:
    """A line of JSON; the voxels follow, in pieces, each after a line of its own."""
    request = json.loads(line)
    _limit(memory=request["memory"], seconds=request["seconds"])
    try:
        with h5py.File(os.fsencode(request["path"]), "r") as file:
            dataset = _only_stack(file)
            _send(out, shape=dataset.shape, dtype=dataset.dtype.str)
            if request["voxels"]:
                _check_stored(dataset)
                depth = dataset.chunks[0] if dataset.chunks else max(1, _SLAB_BYTES // (dataset[:1].nbytes or 1))
                for first in range(0, dataset.shape[0], depth):
                    slab = np.ascontiguousarray(dataset[first : first + depth])
                    _send(out, bytes=slab.nbytes)
                    out.write(slab.data)
                _send(out, bytes=0)
    except _RefusedError as error:
        _send(out, error=str(error)[:500])
    except Exception as error:  # of many kinds
        _send(out, error=f"not a readable stack ({' '.join(str(error).split())[:500]})")
    out.flush()


def _send(out: Any, **answer: Any) -> None:
    out.write(json.dumps(answer).encode() + b"\n")


def main() -> None:
    """Answer until the parent closes the pipe, or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    for line in sys.stdin.buffer:
        _answer(line, sys.stdout.buffer)


if __name__ == "__main__":
    main()
