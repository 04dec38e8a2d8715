"""Cores that a process may use, from control groups as files, of both versions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpunet.utils import cores
from hpunet.utils.cores import limit_threads, usable_cores

V1 = "sys/fs/cgroup/cpu"  # systemd links it to cpu,cpuacct
HYBRID = "12:pids:/\n4:cpu,cpuacct:/docker/ab\n1:name=systemd:/x\n0::/docker/ab\n"


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "250000 100000\n"}, 3),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "10000 100000\n"}, 1),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "6400000 100000\n"}, 8),
        ("0::/a.slice/b\n", {"sys/fs/cgroup/a.slice/b/cpu.max": "300000 50000"}, 6),
        (
            "0::/a.slice/b\n",
            {"sys/fs/cgroup/a.slice/b/cpu.max": "max 100000", "sys/fs/cgroup/a.slice/cpu.max": "400000 100000"},
            4,
        ),
        (HYBRID, {f"{V1}/docker/ab/cpu.cfs_quota_us": "150000", f"{V1}/docker/ab/cpu.cfs_period_us": "50000"}, 3),
        (HYBRID, {f"{V1}/cpu.cfs_quota_us": "500000\n", f"{V1}/cpu.cfs_period_us": "100000\n"}, 5),
        (HYBRID, {f"{V1}/cpu.cfs_quota_us": "-1\n", f"{V1}/cpu.cfs_period_us": "100000\n"}, 8),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "damaged"}, 8),
        ("0::/\n", {}, 8),
        (None, {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 8),
    ],
)
def test_usable_cores_are_at_most_the_quota_of_any_group(
    groups: str | None, files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "allowed_cores", lambda: 8)
    for name, content in {**files, **({} if groups is None else {"proc/self/cgroup": groups})}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert usable_cores(tmp_path) == expected


@pytest.mark.parametrize(("usable", "chosen", "expected"), [(2, None, "2"), (2, "5", "5"), (8, None, None)])
def test_threads_are_limited_by_a_quota_unless_chosen(
    usable: int, chosen: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "allowed_cores", lambda: 8)
    monkeypatch.setattr(cores, "usable_cores", lambda: usable)
    monkeypatch.setenv("OMP_NUM_THREADS", chosen or "")
    if chosen is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    limit_threads()
    assert os.environ.get("OMP_NUM_THREADS") == expected


COMMAND = """
import sys
from hpunet.utils import cores
cores.allowed_cores, cores.usable_cores = lambda: 64, lambda: 1
sys.argv = ["hpunet", "--version"]
from hpunet.cli.start import main
try:
    main()
except SystemExit:
    import torch
    print(torch.get_num_threads())
"""


def test_the_command_starts_torch_with_the_threads_of_a_quota() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[-1] == "1"  # not those of the machine
