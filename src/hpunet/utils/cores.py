"""The processor cores that this process may use: fewer than the machine has, within a container or a batch system."""

import os
from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path, PurePosixPath


def usable_cores(root: Path = Path("/")) -> int:
    """Cores by affinity and by the quotas of Linux's cgroups, of which a part counts as one; `root` is for tests."""
    return min([allowed_cores(), *(max(1, ceil(quota)) for quota in _quotas(root))])


def allowed_cores() -> int:
    """Cores that the scheduler may choose for this process, whatever its quota."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limit_threads() -> None:
    """Have libraries that are loaded later use the cores of a quota, instead of all, unless the user has chosen.

    More threads than that are stopped together, again and again, and those that wait for others burn the quota.
    """
    if (cores := usable_cores()) < allowed_cores():
        os.environ.setdefault("OMP_NUM_THREADS", str(cores))


def _quotas(root: Path) -> Iterator[float]:
    """In cores, of the process' control groups and of those that they are in."""
    groups: list[Path] = []
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", maxsplit=2)
            if not controllers or "cpu" in controllers.split(","):
                mounted = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
                # In a container, the path may be that on the host: its own group is then the mounted folder.
                groups += [mounted / str(part).lstrip("/") for part in (path, *PurePosixPath(path).parents)]
    for group in groups:
        with suppress(OSError, ValueError):
            yield _quota(group)


def _quota(group: Path) -> float:
    """A `ValueError` if the group has none."""
    if (whole := group / "cpu.max").exists():  # version 2
        quota, period = map(int, whole.read_text().split())  # or "max 100000"
    else:
        quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    if min(quota, period) <= 0:  # -1: no quota
        raise ValueError(f"{group}: no quota")
    return quota / period
