"""Changes to pickles and to the samples of a method."""

import os
import pickle
import pickletools
import struct
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from mutate import Mutation, content, copy_over, of_bytes, swap_files

CANARY = Path(tempfile.gettempdir(), "hpunet-fuzz-canary")
"""A file that only a pickle that ran would make."""


class _Call:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


def _places(data: bytes) -> list[int]:
    return [place or 0 for _, _, place in pickletools.genops(data)]


def other_instruction(data: bytes, rng: Random) -> bytes:
    """One instruction is another one."""
    place = rng.choice(_places(data))
    return data[:place] + rng.choice(pickletools.opcodes).code.encode("latin-1") + data[place + 1 :]


def more_instructions(data: bytes, rng: Random) -> bytes:
    place = rng.choice(_places(data))
    some = b"".join(rng.choice(pickletools.opcodes).code.encode("latin-1") for _ in range(rng.choice((1, 3, 20))))
    return data[:place] + some + data[place:]


def without_an_instruction(data: bytes, rng: Random) -> bytes:
    places = _places(data)
    number = rng.randrange(len(places) - 1)
    return data[: places[number]] + data[places[number + 1] :]


def code_inside(data: bytes, rng: Random) -> bytes:
    """A call in front of, behind or within what is there."""
    crops = pickle.loads(data)
    calls = (_Call(os.system, f"touch {CANARY}"), _Call(eval, f"open('{CANARY}', 'w')"))
    calls += (_Call(exec, f"open('{CANARY}', 'w')"), _Call(getattr, [], "append"))
    crop = crops[rng.choice(sorted(crops))]
    crop[rng.choice((*crop, "more"))] = rng.choice((rng.choice(calls), [rng.choice(calls)], {"a": rng.choice(calls)}))
    return pickle.dumps(crops, rng.randrange(6))


def large_claims(data: bytes, rng: Random) -> bytes:
    """A length, a frame or a place in memory that is gigabytes."""
    place = rng.choice(_places(data))
    huge = rng.choice((2**62, 2**40, 2**31))
    some = rng.choice((b"\x95", b"\x8e", b"\x8d", b"\x96")) + struct.pack("<Q", huge)
    some = rng.choice((some, rng.choice((b"r", b"B", b"X", b"j", b"\x8b")) + struct.pack("<I", min(huge, 2**32 - 1))))
    return data[:place] + some + data[place:]


def pickle_mutations() -> list[Mutation]:
    ending = ".pickle"
    changes = (other_instruction, more_instructions, without_an_instruction, large_claims)
    return [
        *of_bytes(ending),
        *(content(change, ending=ending) for change in (*changes, *changes)),
        content(code_inside, ending=ending, refused=True),
        content(code_inside, ending=ending, refused=True),
    ]


def samples_mutations(ending: str) -> list[Mutation]:
    return [*of_bytes(ending), swap_files, copy_over]
