"""Compiles CUDA C++ at run time with the compiler that comes with PyTorch (NVRTC), and launches it.

Machine code is kept in the user's cache folder: the kernels of a model take some 20 seconds to compile.
"""

import ctypes
import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import platformdirs
import torch
from torch import Tensor

from hpunet.errors import HPUNetError
from hpunet.utils.files import atomic_write

_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # the driver's name of the attribute
_PROGRAMMATIC_STREAM_SERIALIZATION = 6


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (
        ("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60),
    )  # fmt: skip


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid_and_block", ctypes.c_uint * 6), ("shared_bytes", ctypes.c_uint), ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)), ("num_attributes", ctypes.c_uint),
    )  # fmt: skip


@cache
def _compiler() -> ctypes.CDLL:
    major = str(torch.version.cuda).split(".")[0]
    for name in (f"libnvrtc.so.{major}", "libnvrtc.so", f"nvrtc64_{major}0_0.dll"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise RuntimeError("NVRTC, the compiler of PyTorch's CUDA, was not found")


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ctypes.CDLL("nvcuda.dll")


@cache
def is_available(architecture: str) -> bool:
    """Whether there are a compiler for this architecture and a driver that launches kernels early."""
    try:
        compile_source('extern "C" __global__ void nothing() {}', architecture=architecture)
        return hasattr(_driver(), "cuLaunchKernelEx")
    except (OSError, RuntimeError):
        return False


def compile_source(source: str, *, architecture: str) -> bytes:
    """The machine code (a cubin) of CUDA C++ without includes; a `RuntimeError` has the compiler's messages.

    It is read from the cache folder if it has been compiled before, and written there otherwise, if that can be done.
    """
    version = ctypes.c_int(), ctypes.c_int()
    _compiler().nvrtcVersion(*(ctypes.byref(part) for part in version))
    key = hashlib.sha256(repr((*(part.value for part in version), architecture, source)).encode()).hexdigest()
    home = os.environ.get("HPUNET_HOME") or platformdirs.user_cache_path("hpunet", appauthor=False, opinion=False)
    file = Path(home, "kernels", f"{key}.cubin")
    with suppress(OSError):
        return file.read_bytes()
    code = _compile(source, architecture=architecture)
    with suppress(OSError, HPUNetError):
        atomic_write(file, code)
    return code


def _compile(source: str, *, architecture: str) -> bytes:
    nvrtc, program = _compiler(), ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    text = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
    if failed:
        raise RuntimeError(
            f"CUDA C++ does not compile for {architecture}: {text.decode(errors='replace').rstrip(chr(0))}"
        )
    code = _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code


def _read(size_of: Any, copy: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    copy(program, buffer)
    return buffer.raw


class Kernel:
    """A compiled kernel of the current device."""

    def __init__(self, code: bytes, *, name: str, shared_bytes: int) -> None:
        self.shared_bytes = shared_bytes
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(_driver().cuModuleLoadData(ctypes.byref(module), code))
        _check(_driver().cuModuleGetFunction(ctypes.byref(self._function), module, name.encode()))
        _check(_driver().cuFuncSetAttribute(self._function, _MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes))

    def max_programs(self, threads: int) -> int:
        """How many programs run at once on the GPU."""
        count, shared = ctypes.c_int(), ctypes.c_size_t(self.shared_bytes)
        occupancy = _driver().cuOccupancyMaxActiveBlocksPerMultiprocessor
        _check(occupancy(ctypes.byref(count), self._function, threads, shared))
        return count.value * torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count

    def __call__(self, grid: Sequence[int], threads: int, *arguments: Tensor | int | None, early: bool) -> None:
        """Run on a grid of programs in the current stream.

        With `early`, programs may start before earlier kernels are done, which the source must wait for.
        """
        values = [
            ctypes.c_int(a) if isinstance(a, int) else ctypes.c_void_p(None if a is None else a.data_ptr())
            for a in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        attribute = _Attribute(id=_PROGRAMMATIC_STREAM_SERIALIZATION, value=1)
        sizes = (ctypes.c_uint * 6)(*grid, threads, 1, 1)
        stream = torch.cuda.current_stream().cuda_stream
        config = _Config(sizes, self.shared_bytes, stream, ctypes.pointer(attribute), int(early))
        _check(_driver().cuLaunchKernelEx(ctypes.byref(config), self._function, pointers, None))


def _check(status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"CUDA driver: {(text.value or b'unknown error').decode()}")
