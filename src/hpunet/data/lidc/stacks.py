"""LIDC nodules as volumes: the crops of one nodule (`_c` of a patient), stacked by the z of their names.

z as whole numbers counts slices; with a decimal point it is mm. A gap, where slices that no grader marked are not
there, ends a stack: its parts are volumes of their own, and nothing is invented between them. So every stack ends
where the gradings of all graders end, and has no empty slice above or below.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from hpunet.data.io.limits import parse_decimal
from hpunet.data.lidc.scan import SPACING, Z_TOLERANCE
from hpunet.data.types import Identity, Sample, Source, make_sample
from hpunet.errors import DataError

_KEY = re.compile(r"(?P<patient>.*)/z-(?P<z>-?\d+(?:\.\d+)?)_c(?P<nodule>\d+)")
_FARTHEST = 1e6  # z in a name
_GAP = 1.5  # times the usual distance of slices


class LidcNodules:
    """The nodules of a split of crops as volumes; see `crops.open_lidc_crops`.

    `all_keys` are those of the crops of all splits: their median distance is that of the set.
    """

    def __init__(self, crops: Source, *, all_keys: Iterable[str]) -> None:
        self.split, self._crops = crops.split, crops
        keys = [identity.key for identity in crops.identities]
        is_mm, found = _counts_mm(keys), _nodules(keys, where=crops.info.kind)
        self._stacks = [stack for nodule in _stacks(found, is_mm=is_mm) for stack in nodule]
        self.identities = [_identity(crops.identities[stack[0]]) for stack in self._stacks]
        steps = _steps(_nodules(all_keys, where=crops.info.kind).values()) if is_mm else []
        distance = float(np.median(steps)) if steps else None
        spacing = None if distance is None else (distance, SPACING, SPACING)
        self.info = replace(crops.info, ndim=3, spacing=spacing)

    def __len__(self) -> int:
        return len(self.identities)

    def __getitem__(self, index: int) -> Sample:
        """One nodule. A grader without a file for one of its slices is missing for all of it."""
        slices = [self._crops[place] for place in self._stacks[index]]
        size = slices[0].valid.shape
        for place, sample in zip(self._stacks[index], slices, strict=True):
            if sample.valid.shape != size:
                names = [next(iter(self._crops.files(each))) for each in (place, self._stacks[index][0])]
                raise DataError(f"{names[0]}: {sample.valid.shape} pixels, {names[1]} of the same nodule has {size}")
        return make_sample(
            image=np.stack([sample.pixels for sample in slices], axis=1),
            labels=np.stack([sample.labels for sample in slices], axis=1),
            graders=np.all([sample.graders for sample in slices], axis=0),
            identity=self.identities[index],
            info=self.info,
            where=self.identities[index].key,
        )

    def files(self, index: int) -> dict[str, Path | bytes]:
        """The images and gradings of all slices."""
        return {name: file for place in self._stacks[index] for name, file in self._crops.files(place).items()}


_Nodules = Mapping[tuple[str, str], list[tuple[float, int]]]
"""By patient and number, the z and the place of each crop, by rising z."""


def _counts_mm(keys: Iterable[str]) -> bool:
    return any("." in match["z"] for match in map(_KEY.fullmatch, keys) if match)


def _nodules(keys: Iterable[str], *, where: str) -> _Nodules:
    keys = list(keys)
    found: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for place, key in enumerate(keys):
        if match := _KEY.fullmatch(key):
            z = parse_decimal(match["z"], limit=_FARTHEST, where=f"{where}: z of {key}")
            found[match["patient"], match["nodule"]].append((z, place))
    for slices in found.values():
        slices.sort()
        for (z, place), (above, other) in pairwise(slices):
            if above - z < Z_TOLERANCE:
                raise DataError(f"{where}: {keys[place]} and {keys[other]} are the same slice of one nodule")
    return found


def _steps(nodules: Iterable[Sequence[tuple[float, int]]]) -> list[float]:
    """Distances of slices within nodules."""
    return [above - z for slices in nodules for (z, _), (above, _) in pairwise(slices)]


def _stacks(nodules: _Nodules, *, is_mm: bool) -> Iterator[list[list[int]]]:
    """Of each nodule, the runs of places whose slices follow each other.

    The usual distance in mm is that of the nodule, or of its patient if it has fewer than three slices.
    """
    by_patient: dict[str, list[Sequence[tuple[float, int]]]] = defaultdict(list)
    for (patient, _), slices in nodules.items():
        by_patient[patient].append(slices)
    usual_of = {patient: _usual(_steps(found)) for patient, found in by_patient.items()}
    for (patient, _), slices in nodules.items():
        usual = (_usual(_steps([slices])) if len(slices) > 2 else usual_of[patient]) if is_mm else 1.0
        runs = [[slices[0][1]]]
        for (z, _), (above, place) in pairwise(slices):
            if above - z > _GAP * usual:
                runs.append([])
            runs[-1].append(place)
        yield runs


def _usual(steps: Sequence[float]) -> float:
    return float(np.quantile(steps, 0.5, method="lower")) if steps else 1.0


def _identity(first: Identity) -> Identity:
    """Named by the nodule and its first slice: 'LIDC-IDRI-0001/c0_z-057'."""
    start, _, nodule = first.key.rpartition("_")
    patient, _, z = start.rpartition("/")
    return Identity(patient=first.patient, key=f"{patient}/{nodule}_{z}")
