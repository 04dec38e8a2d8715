"""Compiles kernels in CUDA C++ for the CPU, with the GPU's part in `emulation.h`."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from torch import Tensor

KERNELS = Path(__file__).parents[1] / "kernels"


def compile_emulated(text: str, folder: Path, *, name: str = "kernel", late_copies: bool = False) -> ctypes.CDLL:
    """A library of the kernel; copies are done at once, or as late as they may."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    file, library = folder / "kernel.cpp", folder / f"{name}.so"
    file.write_text(f'#include "emulation.h"\n{text}')
    options = ["-std=c++20", "-O1", "-pthread", "-shared", "-fPIC", "-Wno-unknown-pragmas", f"-I{KERNELS}"]
    options += ["-DLATE_COPIES"] if late_copies else []
    subprocess.run([compiler, *options, str(file), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def pointer(x: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if x is None else x.data_ptr())


def distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())
