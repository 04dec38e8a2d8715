import sys
from pathlib import Path

import numpy as np
import pytest
from tf_files import (
    HEADER,
    entries,
    entry,
    field,
    golden_variables,
    index_file,
    write_checkpoint,
    write_golden_checkpoint,
)

from hpunet.errors import CheckpointError
from hpunet.weights.tensorflow.bundle import masked_crc32c, read_bundle


def read_all(prefix: Path) -> dict[str, np.ndarray]:
    return read_bundle(prefix, wanted=lambda _name: True)[0]


def test_masked_crc32c_is_tensorflows() -> None:
    assert masked_crc32c(bytes(32)) == 0x0FD7FFFA  # from 0x8A9136AA, RFC 3720, B.4


def test_read_bundle_without_the_checksum_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(CheckpointError, match=r"pip install google-crc32c"):
        read_all(write_golden_checkpoint(tmp_path / "authors"))


def test_read_bundle_reads_what_tensorflow_wrote(tmp_path: Path) -> None:
    found = read_all(write_golden_checkpoint(tmp_path / "authors"))
    expected = golden_variables()
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_read_bundle_reads_only_what_is_wanted(tmp_path: Path) -> None:
    variables = {"a/w": np.ones((2, 3), np.float32), "b/w/Adam": np.ones(5), "step": np.array(7, dtype=np.int64)}
    prefix = write_checkpoint(tmp_path / "model.ckpt-7", variables)
    found, others = read_bundle(prefix, wanted=lambda name: name != "b/w/Adam")
    assert others == ["b/w/Adam"]
    assert int(found["step"]) == 7
    assert found["a/w"].shape == (2, 3)
    pairs = [HEADER, (b"text", entry(np.ones(2), offset=0, dtype=7))]  # only refused if it is asked for
    prefix.with_name("model.ckpt-7.index").write_bytes(index_file(entries(pairs)))
    assert read_bundle(prefix, wanted=lambda _name: False) == ({}, ["text"])
    with pytest.raises(CheckpointError, match="text: of TensorFlow's type 7, expected one of float32"):
        read_all(prefix)


def test_read_bundle_refuses_every_cut_of_the_index(tmp_path: Path) -> None:
    prefix = write_golden_checkpoint(tmp_path / "authors")
    index = prefix.with_name(prefix.name + ".index")
    content = index.read_bytes()
    for size in [0, 1, 47, 48, 100, *range(200, len(content), 997), len(content) - 1]:
        index.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match=r"ckpt\.index: not the index of a TensorFlow checkpoint, or dam"):
            read_all(prefix)


def test_read_bundle_refuses_flipped_bits_wherever_they_are(tmp_path: Path) -> None:
    variables = {"one/w": np.arange(6, dtype=np.float32), "two/w": np.arange(4, dtype=np.float32)}
    prefix = write_checkpoint(tmp_path / "model.ckpt", variables)
    for ending in (".index", ".data-00000-of-00001"):
        path = prefix.with_name(prefix.name + ending)
        content = path.read_bytes()
        # All but the footer: its padding and its first handle mean nothing.
        for place in range(len(content) - (48 if ending == ".index" else 0)):
            path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            with pytest.raises(CheckpointError, match=str(path)):
                read_all(prefix)
        path.write_bytes(content)
    assert len(read_all(prefix)) == 2


def test_read_bundle_names_what_is_wrong_with_the_data(tmp_path: Path) -> None:
    prefix = write_golden_checkpoint(tmp_path / "authors")
    data = prefix.with_name(prefix.name + ".data-00000-of-00001")
    content = data.read_bytes()
    data.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=r"data-00000-of-00001: model/HPUNet/prior/\S+: lies beyond"):
        read_all(prefix)
    data.write_bytes(content[:1000] + b"\xff" + content[1001:])
    with pytest.raises(CheckpointError, match="model/HPUNet/f_comb/conv_2d/w: damaged"):
        read_all(prefix)
    data.unlink()
    with pytest.raises(CheckpointError, match="data-00000-of-00001: cannot be read: it does not exist"):
        read_all(prefix)
    data.mkdir()
    with pytest.raises(CheckpointError, match="not a plain file"):
        read_all(prefix)


@pytest.mark.parametrize(
    ("pairs", "compression", "words"),
    [
        ([HEADER], 1, r"m\.index: compressed, which is not supported"),
        ([(b"", field(1, 1) + field(2, 1))], 0, "big-endian"),
        ([(b"a", entry(np.ones(2), offset=0))], 0, "does not say how many data files"),
        ([HEADER, (b"a", b"\x0b")], 0, "a field of an unknown kind"),
        ([HEADER, (b"a", field(1, 1) + b"\x12\x7f")], 0, "an entry is cut off"),
        ([HEADER, (b"a", b"\xff" * 12)], 0, "a number has no end"),
        ([HEADER, (b"\xff", entry(np.ones(2), offset=0))], 0, "utf-8"),
        ([HEADER, (b"a", field(1, b"text"))], 0, "field 1 of an entry is not a number"),
        ([HEADER, (b"a", entry(np.ones(2), offset=2**64 - 1))], 0, "a: lies beyond"),
        ([HEADER, (b"a", entry(np.ones((0, 2)), offset=0))], 0, "a: 0 bytes do not hold"),
        ([HEADER, (b"a", entry(np.ones((1,) * 30), offset=0))], 0, "a: 8 bytes do not hold"),
        ([HEADER, (b"a", entry(np.ones(2), offset=0, more=field(7, b"x")))], 0, "a: stored in slices"),
        ([HEADER, (b"a", entry(np.ones(2), offset=0, more=field(5, 2**40)))], 0, "1099511627776 bytes do not hold"),
    ],
)
def test_read_bundle_refuses_odd_tables(
    tmp_path: Path, pairs: list[tuple[bytes, bytes]], compression: int, words: str
) -> None:
    (tmp_path / "m.index").write_bytes(index_file(entries(pairs), compression=compression))
    (tmp_path / "m.data-00000-of-00001").write_bytes(np.ones(2).tobytes())
    with pytest.raises(CheckpointError, match=words):
        read_all(tmp_path / "m")


def test_read_bundle_only_ever_says_what_is_wrong(tmp_path: Path) -> None:
    """Nonsense under right checksums, as someone may make it on purpose."""
    random = np.random.default_rng(0)
    array = np.ones((2, 1), np.float32)
    (tmp_path / "m.data-00000-of-00001").write_bytes(array.tobytes() * 2)
    content = entries([HEADER, *((f"scope/{i}/w".encode(), entry(array, offset=4 * i)) for i in range(3))])
    refused = []
    for _ in range(400):
        changed = np.frombuffer(content, np.uint8).copy()
        places = random.integers(len(changed), size=random.integers(1, 4))
        changed[places] = random.integers(256, size=len(places))
        (tmp_path / "m.index").write_bytes(index_file(changed.tobytes()[: len(content) - random.integers(2)]))
        try:
            read_all(tmp_path / "m")
        except CheckpointError as error:
            refused.append(str(error))
    assert len(refused) > 300
    assert all(str(tmp_path / "m") in words for words in refused)
