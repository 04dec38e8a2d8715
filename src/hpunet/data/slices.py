"""Which samples are the slices of one volume, by their keys."""

import re
from collections.abc import Sequence

from hpunet.data.types import Identity
from hpunet.errors import DataError

_SLICE = re.compile(r"(?P<volume>.+)/z-(?P<z>\d+)")


def slices_of_volumes(identities: Sequence[Identity]) -> dict[str, list[int]]:
    """The samples that make up each volume, in the order of their slices, by the volume's key.

    Keys of slices are '<volume>/z-<number>', as volumes read in slices have them; each number from the first to the
    last must be there once.
    """
    found: dict[str, dict[int, int]] = {}
    for index, identity in enumerate(identities):
        match = _SLICE.fullmatch(identity.key)
        if match is None:
            raise DataError(f"{identity.key}: not a slice of a volume, whose key ends in /z-<number>")
        slices = found.setdefault(match["volume"], {})
        if slices.setdefault(int(match["z"]), index) != index:
            raise DataError(f"{identity.key}: there are two of this slice")
    for volume, slices in found.items():
        if max(slices) - min(slices) >= len(slices):
            missing = next(z for z in range(min(slices), max(slices)) if z not in slices)
            raise DataError(f"{volume}: slice {missing} is missing")
    return {volume: [slices[z] for z in sorted(slices)] for volume, slices in found.items()}
