"""Tensors as safetensors: a JSON header and plain bytes, so that reading runs no code. Never a pickle.

Contents are restored bit for bit, NaN payloads included; the memory layout is not: tensors come back contiguous.
"""

from collections.abc import Mapping, Sequence

import safetensors.torch
import torch
from torch import Tensor

from hpunet.errors import CheckpointError
from hpunet.utils.files import parse_json

MAX_BYTES = 2**35
"""Largest file of tensors that is read (32 GiB)."""
_MAX_HEADER_BYTES = 100_000_000  # as in the format's own reader
_STORED_TYPES = frozenset(
    {torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32}
    | {torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64}
    | {torch.float8_e4m3fn, torch.float8_e5m2}
)
_PICKLES = {b"PK": "a zip archive, as torch.save writes it, with a pickle inside", b"\x80": "a pickle"}
_NAMES_SHOWN = 3
_CURE = "use another checkpoint, or a new copy of these weights"


def encode(tensors: Mapping[str, Tensor], *, name: str) -> bytes:
    """The tensors, copied, as the content of a safetensors file. `name` is for errors."""
    copies = {key: _plain_copy(tensor, name=f"{name}: {key}") for key, tensor in tensors.items()}
    if "__metadata__" in copies:
        raise CheckpointError(f"{name}: a tensor cannot be called __metadata__, the format's own word")
    try:
        return safetensors.torch.save(copies)
    except Exception as error:  # the format's own error, and encoding errors of odd names
        raise CheckpointError(f"{name}: cannot be written as safetensors ({error})") from error


def _plain_copy(tensor: Tensor, *, name: str) -> Tensor:
    """A contiguous copy on the CPU."""
    if not isinstance(tensor, Tensor):
        raise CheckpointError(f"{name}: expected a tensor, got {type(tensor).__name__}")
    if tensor.dtype not in _STORED_TYPES or tensor.layout != torch.strided or tensor.is_meta:
        kind = "without values" if tensor.is_meta else f"of {tensor.dtype} ({tensor.layout})"
        raise CheckpointError(f"{name}: a tensor {kind} cannot be stored; convert it to a dense float or integer one")
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def decode(content: bytes, *, name: str) -> dict[str, Tensor]:
    """The tensors in the content of a safetensors file, on the CPU. `name` is for errors."""
    _check_header(content, name=name)
    try:
        return safetensors.torch.load(content)
    except Exception as error:  # the format's own error, and KeyError for types torch does not have
        raise CheckpointError(f"{name}: not valid safetensors ({error})") from None


def _check_header(content: bytes, *, name: str) -> None:
    """Check the JSON header: eight bytes of length, then an object. Errors say what the content looks like."""
    size = int.from_bytes(content[:8], "little")
    if content[8:9] == b"{" and size <= min(_MAX_HEADER_BYTES, len(content) - 8):
        parse_json(content[8 : 8 + size], name=f"{name} (header)")
        return
    for start, kind in _PICKLES.items():
        if content.startswith(start):
            raise CheckpointError(
                f"{name}: {kind}, not safetensors. Opening a pickle can run any code, so hpunet never does. If you "
                "trust its origin, convert it: safetensors.torch.save_file(torch.load(file, weights_only=True), new)"
            )
    raise CheckpointError(f"{name}: not a safetensors file (no header), or damaged")


def check_same_tensors(*, live: Mapping[str, Tensor], saved: Mapping[str, Tensor], name: str) -> None:
    """Raise a `CheckpointError` unless both hold the same names, shapes and types; `saved` comes from `name`."""
    found, expected = ({key: _kind(tensor) for key, tensor in each.items()} for each in (saved, live))
    both = [key for key in live if key in saved and found[key] != expected[key]]
    problems = [
        _first_names("missing", [key for key in live if key not in saved]),
        _first_names("unexpected", [key for key in saved if key not in live]),
        _first_names("of another shape or type", [f"{key} ({found[key]}, expected {expected[key]})" for key in both]),
    ]
    if any(problems):
        raise CheckpointError(f"{name}: belongs to another model: {'; '.join(filter(None, problems))}")


def check_finite(tensors: Mapping[str, Tensor], *, name: str) -> None:
    """Raise a `CheckpointError` if weights from `name` are NaN or infinite: samples would show nothing."""
    floats = {key: tensor for key, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel()}
    if not floats or torch.stack(torch._foreach_norm(list(floats.values()))).isfinite().all():
        return  # which is faster than to look at each value
    for key, tensor in floats.items():
        if count := int((~tensor.isfinite()).sum()):
            raise CheckpointError(f"{name}: {key}: {count} of {tensor.numel()} values are NaN or infinite; {_CURE}")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _first_names(what: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f", … ({len(names)} in all)" if len(names) > _NAMES_SHOWN else ""
    return f"{what}: {', '.join(names[:_NAMES_SHOWN])}{more}"
