import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
SCRIPT = Path(__file__).with_name("interpreted.py")


def agree(**variables: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, str(SCRIPT)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)
    assert result.stdout == "the kernels agree with plain torch\n", result.stderr


def test_kernels_agree_with_plain_torch_in_the_interpreter() -> None:
    agree(TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


def test_kernels_agree_with_plain_torch_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    agree()
