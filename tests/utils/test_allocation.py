import subprocess
import sys

import pytest

from hpunet.utils.allocation import keep_freed_memory

FAULTS_OF_A_SECOND_BLOCK = """
import resource
from hpunet.utils.allocation import keep_freed_memory
{setting}
faults = []
for _ in range(3):
    bytearray(2**26)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[-2])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_freed_memory_is_kept_for_the_next_block() -> None:
    def faults(setting: str) -> int:
        code = FAULTS_OF_A_SECOND_BLOCK.format(setting=setting)
        return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)

    assert faults("assert keep_freed_memory()") < faults("") / 2


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _name: object())
    assert not keep_freed_memory()
