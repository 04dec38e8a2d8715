"""Changes that know nothing of formats, and how a change is written down.

A mutation takes the files of a valid set and a seeded random generator and gives back the changed files, which of
them are to blame, and whether they must be refused: a flipped bit may be readable, a bomb is not.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from corpus import Files


class Change(NamedTuple):
    files: Files
    culprits: tuple[str, ...]  # one of these names must be in the error
    refused: bool = False  # whether it must be an error


Mutation = Callable[[Files, Random], Change]
ContentMutation = Callable[[bytes, Random], bytes]


def content(change: ContentMutation, *, ending: str = "", part: str = "", refused: bool = False) -> Mutation:
    """Changes one file, drawn from those whose name has this ending and holds this part."""

    def mutation(files: Files, rng: Random) -> Change:
        name = rng.choice([name for name in sorted(files) if name.endswith(ending) and part in name])
        return Change(files | {name: change(files[name], rng)}, (name,), refused)

    mutation.__name__ = f"{change.__name__}{'/' * bool(part)}{part}"
    return mutation


def flip_bits(data: bytes, rng: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def flip_bits_of_the_head(data: bytes, rng: Random) -> bytes:
    """Headers are small and matter most."""
    return flip_bits(data[:512], rng) + data[512:]


def overwrite(data: bytes, rng: Random) -> bytes:
    length = min(len(data), rng.choice((1, 4, 64)))
    start = rng.randrange(len(data) - length + 1)
    return data[:start] + rng.randbytes(length) + data[start + length :]


def truncate(data: bytes, rng: Random) -> bytes:
    return data[: rng.choice((0, 1, rng.randrange(len(data)), rng.randrange(len(data)), len(data) - 1))]


def cut_out(data: bytes, rng: Random) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.choice((1, 2, 16, 512)) :]


def insert(data: bytes, rng: Random) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + rng.choice((b"\0", b"\xff" * 4, rng.randbytes(16), bytes(512))) + data[start:]


def zero_block(data: bytes, rng: Random) -> bytes:
    length = min(len(data), rng.choice((1, 4, 16, 64, 512)))
    start = rng.randrange(len(data) - length + 1)
    return data[:start] + bytes(length) + data[start + length :]


def repeat_block(data: bytes, rng: Random) -> bytes:
    start = rng.randrange(len(data))
    end = start + rng.choice((4, 16, 512))
    return data[:end] + data[start:end] + data[end:]


def nonsense(data: bytes, rng: Random) -> bytes:
    return rng.choice((b"", b"\n", b"hello", rng.randbytes(len(data)), bytes(len(data)), b"\xff" * len(data)))


BYTES = (flip_bits, flip_bits_of_the_head, overwrite, truncate, cut_out, insert, zero_block, repeat_block, nonsense)


def of_bytes(ending: str) -> list[Mutation]:
    return [content(change, ending=ending) for change in BYTES]


def swap_files(files: Files, rng: Random) -> Change:
    """Two files change places, as after a careless copy."""
    first, second = rng.sample(sorted(files), 2)
    return Change(files | {first: files[second], second: files[first]}, (first, second))


def copy_over(files: Files, rng: Random) -> Change:
    """One file has the content of another; either may be taken for the wrong one."""
    first, second = rng.sample(sorted(files), 2)
    return Change(files | {first: files[second]}, (first, second))
