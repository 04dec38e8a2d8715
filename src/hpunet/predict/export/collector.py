"""Maps of slices or of a volume, collected on disk while it is sampled."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from hpunet.predict.export.results import Results, hypothesis_regions, label_regions
from hpunet.predict.prediction import Prediction
from hpunet.sampling.hypotheses import distinct_hypotheses

INSTANCES = "instances"


def sample_name(number: int) -> str:
    """File name of a sample; counts from 1."""
    return f"sample-{number + 1:02d}"


class Collector:
    """Maps of the size of the whole volume or image. Where nothing was sampled, labels are 0 and floats NaN."""

    def __init__(self, folder: Path, first: Prediction) -> None:
        self.folder, self.place = folder, first.place
        self._info, self._origin, self._options = first.info, first.origin, first.options
        self._size = first.mean.shape[-2:]
        self._maps: dict[str, np.ndarray] = {}
        self._slices: list[int] = []

    def add(self, part: Prediction, maps: Mapping[str, Shaped[np.ndarray, "*s"]]) -> None:
        """Store the maps of a slice, or of a volume, by name."""
        z, y, x = part.place.offset
        depth = len(part.mean) if part.axes == "zyx" else 1
        self._slices += range(z, z + depth)
        for name, values in maps.items():
            if name not in self._maps:
                how: dict[str, Any] = {"dtype": values.dtype, "mode": "w+", "shape": self.place.shape}
                self._maps[name] = np.memmap(self.folder / f".{name}.voxels", **how)
                if values.dtype.kind == "f":
                    self._maps[name][:] = np.nan
            h, w = values.shape[-2:]
            self._maps[name][z : z + depth, y : y + h, x : x + w] = values

    def whole(self) -> Iterator[tuple[str, np.ndarray]]:
        """All maps by name, of the size of the whole."""
        for name, values in self._maps.items():
            yield name, np.asarray(values)

    def results(self) -> Results:
        """What was sampled. Hypotheses are of the whole volume, and sample n of it is sample n of every slice."""
        info, origin, options, (h, w) = self._info, self._origin, self._options, self._size
        (first, last), (_, y, x) = (min(self._slices), max(self._slices)), self.place.offset
        inside = np.s_[first : last + 1, y : y + h, x : x + w]
        maps = {name: np.asarray(values[inside]) for name, values in self._maps.items()}
        given: dict[str, Any] = {"place": self.place, "start": (first, y, x), "model": origin.run}
        given["iteration"] = origin.iteration
        if INSTANCES in maps:
            regions = label_regions(maps[INSTANCES], description=f"clustered from {options.num_samples} samples")
            return Results(regions=regions, title="instances", **given)
        samples = np.stack([values for name, values in maps.items() if name.startswith("sample-")])
        how: dict[str, Any] = {"num_classes": info.num_classes, "classes": info.foreground}
        hypotheses = distinct_hypotheses(samples, **how, same_iou=options.same_iou)
        names = ", ".join(info.fixed_classes[c] for c in info.foreground)
        given |= {"mean": maps["mean"], "mean_of": names, "title": "hypotheses"}
        return Results(regions=hypothesis_regions(hypotheses, info=info), **given)

    def close(self) -> None:
        """Delete the files on disk."""
        for name in list(self._maps):
            del self._maps[name]
            (self.folder / f".{name}.voxels").unlink()
