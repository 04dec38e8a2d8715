"""The only way in and out for saved weights: safetensors, never a pickle.

A safetensors file holds a JSON header and plain bytes, so that opening one runs no code. Contents come back bit for
bit, NaN payloads included; the memory format does not: whatever was channels-last or strided comes back contiguous
(`load_state_dict` copies into the model's own layout anyway).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from hpunet.errors import CheckpointError
from hpunet.utils.files import atomic_write, parse_json, read_file

MAX_BYTES = 2**35
"""Largest file of tensors that is read (32 GiB)."""
_MAX_HEADER_BYTES = 100_000_000  # as in the format's own reader
_STORED_TYPES = frozenset(
    {torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32}
    | {torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64}
    | {torch.float8_e4m3fn, torch.float8_e5m2}
)
_PICKLES = {
    b"PK": "a zip archive, as torch.save writes it, with a pickle inside",
    b"\x80": "a pickle",
}
_NAMES_SHOWN = 3


def encode(tensors: Mapping[str, Tensor], *, name: str, metadata: Mapping[str, str] | None = None) -> bytes:
    """The tensors as the content of a safetensors file. `name` is for errors. Changes no tensor, copies all."""
    copies = {key: _plain_copy(tensor, name=f"{name}: {key}") for key, tensor in tensors.items()}
    if "__metadata__" in copies:
        raise CheckpointError(f"{name}: a tensor cannot be called __metadata__, the format's own word")
    try:
        return safetensors.torch.save(copies, metadata=dict(metadata) if metadata else None)
    except Exception as error:  # the format's own error, and encoding errors of odd names
        raise CheckpointError(f"{name}: cannot be written as safetensors ({error})") from error


def _plain_copy(tensor: Tensor, *, name: str) -> Tensor:
    """A contiguous copy on the CPU that shares memory with nothing."""
    if not isinstance(tensor, Tensor):
        raise CheckpointError(f"{name}: expected a tensor, got {type(tensor).__name__}")
    if tensor.dtype not in _STORED_TYPES or tensor.layout != torch.strided or tensor.is_meta:
        kind = "without values" if tensor.is_meta else f"of {tensor.dtype} ({tensor.layout})"
        raise CheckpointError(f"{name}: a tensor {kind} cannot be stored; convert it to a dense float or integer one")
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def decode(content: bytes, *, name: str) -> dict[str, Tensor]:
    """The tensors in the content of a safetensors file, on the CPU. `name` is for errors."""
    _header(content, name=name)
    try:
        return safetensors.torch.load(content)
    except Exception as error:  # the format's own error, and KeyError for types torch does not have
        raise CheckpointError(f"{name}: not valid safetensors ({error})") from None


def _header(content: bytes, *, name: str) -> dict[str, object]:
    """The JSON header: eight bytes of length, then an object. Anything else is refused by what it looks like."""
    size = int.from_bytes(content[:8], "little")
    if content[8:9] == b"{" and size <= min(_MAX_HEADER_BYTES, len(content) - 8):
        header: dict[str, object] = parse_json(content[8 : 8 + size], name=f"{name} (header)")
        return header
    for start, kind in _PICKLES.items():
        if content.startswith(start):
            raise CheckpointError(
                f"{name}: {kind}, not safetensors. Opening a pickle can run any code, so hpunet never does. If you "
                "trust its origin, convert it: safetensors.torch.save_file(torch.load(file, weights_only=True), new)"
            )
    raise CheckpointError(f"{name}: not a safetensors file (no header), or damaged")


def save_weights(path: Path, *, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors (say, a `state_dict`) to `path`, which ends in .safetensors, atomically."""
    if path.suffix != ".safetensors":
        raise CheckpointError(f"{path}: weights are saved as .safetensors, got {path.suffix or 'no ending'}")
    atomic_write(path, encode(tensors, name=str(path), metadata=metadata))


def load_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file; anything else, a pickle above all, is refused."""
    content = read_file(path, max_bytes=MAX_BYTES)
    tensors = decode(content, name=str(path))
    metadata = _header(content, name=str(path)).get("__metadata__")
    return tensors, {key: str(value) for key, value in metadata.items()} if isinstance(metadata, dict) else {}


def check_same_tensors(*, live: Mapping[str, Tensor], saved: Mapping[str, Tensor], name: str) -> None:
    """Raise a `CheckpointError`, in one line, unless both hold the same names, shapes and types.

    `live` is what is to be filled (a model's `state_dict()`), `saved` what was read from `name`.
    """
    misfits = [
        f"{key} ({_kind(saved[key])}, expected {_kind(live[key])})"
        for key in live
        if key in saved and _kind(live[key]) != _kind(saved[key])
    ]
    problems = [
        _first_names("missing", [key for key in live if key not in saved]),
        _first_names("unexpected", [key for key in saved if key not in live]),
        _first_names("of another shape or type", misfits),
    ]
    if any(problems):
        raise CheckpointError(f"{name}: belongs to another model: {'; '.join(filter(None, problems))}")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _first_names(what: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f", … ({len(names)} in all)" if len(names) > _NAMES_SHOWN else ""
    return f"{what}: {', '.join(names[:_NAMES_SHOWN])}{more}"
