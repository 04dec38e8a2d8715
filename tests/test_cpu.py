import subprocess
import sys

import pytest

CODE = """
import resource, torch
from hpunet.cpu import keep_freed_memory
assert keep_freed_memory()
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work():
    for _ in range(20):
        torch.ones(4 * 2**20)  # 16 MiB, freed at once
work()
before = faults()
work()
print(faults() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library's own setting")
def test_keep_freed_memory_saves_page_faults() -> None:
    """Twenty tensors of 16 MiB would be 81,920 pages; kept memory is not asked for again."""
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=120)
    assert int(result.stdout) < 2000
