"""Test files that need a process of their own: Triton chooses its interpreter when it is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
CAPABILITIES = ["80", "86", "89", "90", "100", "120"]  # A100, A10 and RTX 30, RTX 40, H100 and H200, B200, RTX 50
AGAINST_TORCH = ("against_torch.py", "sampling_against_torch.py", "loss_against_torch.py")
INTERPRETED = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


def run_tests(file: str, *options: str, timeout: int = 290, **variables: str) -> None:
    """Run a file of this folder under pytest; all of its tests must run and pass."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"tests/kernels/{file}", *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT, env=env)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("file", AGAINST_TORCH)
def test_kernels_equal_plain_torch_in_the_interpreter(file: str) -> None:
    run_tests(file, **INTERPRETED)


@pytest.mark.parametrize("capability", CAPABILITIES if "HPUNET_ALL_KERNELS" in os.environ else ["90"])
def test_kernels_compile_without_a_gpu(capability: str, tmp_path: Path) -> None:
    run_tests("compiled.py", TRITON_CACHE_DIR=str(tmp_path), HPUNET_CAPABILITY=capability)


@pytest.mark.gpu
@pytest.mark.parametrize("file", AGAINST_TORCH)
def test_kernels_equal_plain_torch_on_a_gpu(file: str) -> None:
    run_tests(file)


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", ["numerics.py", "trajectory.py"])
def test_rounding_is_no_worse_than_that_of_plain_torch(file: str) -> None:
    run_tests(file, "--timeout=880", timeout=880)
