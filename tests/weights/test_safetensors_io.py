"""Safetensors: restored bit for bit, never a pickle, errors that say what differs from the model."""

import os
import pickle
import struct
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hpunet.errors import CheckpointError
from hpunet.utils.files import atomic_write, read_file
from hpunet.weights import safetensors_io as weights
from hpunet.weights.safetensors_io import check_same_tensors, decode, encode

TYPES = sorted(weights._STORED_TYPES, key=str)


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def round_trip(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return decode(encode(tensors, name="w.safetensors"), name="w.safetensors")


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_weights_of_every_type_come_back_bit_for_bit(dtype: torch.dtype) -> None:
    raw = torch.randint(256, (48,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    raw = raw % 2 if dtype == torch.bool else raw  # the only type with bytes that mean nothing
    given = {
        "block": raw.view(dtype).reshape(2, -1),
        "scalar": raw.view(dtype)[0].reshape(()),
        "empty": torch.empty((0, 3), dtype=dtype),
    }
    found = round_trip(given)
    assert found.keys() == given.keys()
    for name, tensor in given.items():
        assert (found[name].dtype, found[name].shape) == (dtype, tensor.shape)
        assert bits(found[name]) == bits(tensor)


@pytest.mark.parametrize(("dtype", "whole"), [(torch.float32, torch.int32), (torch.bfloat16, torch.int16)], ids=str)
def test_weights_keep_nan_payloads_and_signed_zeros(dtype: torch.dtype, whole: torch.dtype) -> None:
    top = {torch.int32: 0x7F800000, torch.int16: 0x7F80}[whole]
    patterns = torch.tensor([top + 1, top + 0x41, top, -1, 0, torch.iinfo(whole).min], dtype=whole)
    assert patterns.view(dtype).isnan().sum() == 3
    assert torch.equal(round_trip({"a": patterns.view(dtype)})["a"].view(whole), patterns)


def test_weights_in_any_memory_layout_keep_their_contents() -> None:
    base = torch.randn(2, 3, 4, 5)
    given = {
        "channels_last": base.to(memory_format=torch.channels_last),
        "transposed": base.transpose(0, 3),
        "strided": base[:, ::2, 1:, ::3],
        "expanded": torch.randn(1, 3).expand(4, 3),
        "same": base,  # shares its memory with three others
        "parameter": torch.nn.Parameter(base),
        "negated_view": torch.view_as_complex(torch.randn(3, 2)).conj().imag,
    }
    assert given["negated_view"].is_neg()
    found = round_trip(given)
    for name, tensor in given.items():
        assert torch.equal(found[name], tensor)
        assert found[name].is_contiguous()
    found["same"].zero_()  # what was loaded can be worked on, and belongs to nothing else
    assert torch.equal(found["parameter"], base)


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": torch.ones(2, dtype=torch.complex64)},
        {"a": torch.ones(2, device="meta")},
        {"a": torch.ones(2).to_sparse()},
        {"__metadata__": torch.ones(2)},
        {"\ud800": torch.ones(2)},
    ],
    ids=["complex", "meta", "sparse", "reserved", "surrogate"],
)
def test_encode_refuses_what_would_not_come_back(tensors: dict[str, Tensor]) -> None:
    with pytest.raises(CheckpointError, match=r"w\.safetensors"):
        encode(tensors, name="w.safetensors")


def test_atomic_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "w.safetensors"
    atomic_write(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"w\.safetensors: .*disk is full"):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


class Trap:
    """A pickle of this makes a folder when it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("kind", ["zip", "pickle", "old pickle"])
def test_decode_never_opens_a_pickle(kind: str, tmp_path: Path) -> None:
    path, mark = tmp_path / "w", tmp_path / "sprung"
    if kind == "zip":
        torch.save({"a": Trap(mark)}, path)
    else:
        path.write_bytes(pickle.dumps(Trap(mark), protocol=2 if kind == "pickle" else 0))
    with pytest.raises(CheckpointError, match=r"hpunet never does|no header"):
        decode(path.read_bytes(), name="w")
    assert not mark.exists()
    pickle.loads(pickle.dumps(Trap(mark)))
    assert mark.exists()  # the trap does work


def with_header(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 64,
        b"{}",
        struct.pack("<Q", 2**63) + b"{}",
        with_header(b"{" * 100),
        with_header(b"[]"),
        with_header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', b"\x00" * 7),
        with_header(b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}', b"\x00" * 8),
        with_header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', b"\x00" * 12),
        with_header(b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}}', b"\x00" * 8),
        with_header(b'{"a":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}}', b"\x00" * 8),
        with_header(b'{"a":{"dtype":"F8_E8M0","shape":[8],"data_offsets":[0,8]}}', b"\x00" * 8),
        with_header(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}', b"\x00" * 8),
        with_header(b'{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'),
        with_header(
            b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}',
            b"\x00" * 8,
        ),
    ],
)
def test_decode_refuses_nonsense(content: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"w\.safetensors"):
        decode(content, name="w.safetensors")


def test_read_file_refuses_what_is_no_file_or_too_large(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(weights.MAX_BYTES + 1)  # takes no room on the disk
    for name, words in {"none": "does not exist", "": "plain", "pipe": "plain", "huge": "at most"}.items():
        with pytest.raises(CheckpointError, match=words):
            read_file(tmp_path / name, max_bytes=weights.MAX_BYTES)


def test_check_same_tensors_says_in_one_line_what_differs() -> None:
    live = {"conv.weight": torch.zeros(4, 3), "conv.bias": torch.zeros(4)}
    live |= {f"block.{i}": torch.zeros(1) for i in range(9)}
    check_same_tensors(live=live, saved=dict(reversed(live.items())), name="best")
    saved = {"conv.weight": torch.zeros(4, 2), "conv.bias": torch.zeros(4, dtype=torch.float64)}
    saved["head"] = torch.zeros(1)
    with pytest.raises(CheckpointError) as caught:
        check_same_tensors(live=live, saved=saved, name="best")
    assert str(caught.value) == (
        "best: belongs to another model: missing: block.0, block.1, block.2, … (9 in all); unexpected: head; "
        "of another shape or type: conv.weight (float32 (4, 2), expected float32 (4, 3)), "
        "conv.bias (float64 (4,), expected float32 (4,))"
    )
