import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


def says(script: str, *, timeout: int = 280, **variables: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, str(Path(__file__).with_name(script))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_kernels_agree_with_plain_torch_in_the_interpreter() -> None:
    found = says("interpreted.py", TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")
    assert found == "the kernels agree with plain torch\n"


def test_kernels_compile_for_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    assert says("compiled.py", TRITON_CACHE_DIR=str(tmp_path)) == "the kernels compile\n"


@pytest.mark.gpu
def test_kernels_agree_with_plain_torch_on_a_gpu() -> None:
    assert says("interpreted.py") == "the kernels agree with plain torch\n"


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_blocks_round_no_worse_than_plain_torch() -> None:
    assert says("numerics.py", timeout=880).endswith("rounding is no worse than plain torch's\n")


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_300_steps_stay_as_near_to_float32_as_plain_bfloat16_does() -> None:
    assert "mean deviation of the loss from float32" in says("trajectory.py", timeout=880)
