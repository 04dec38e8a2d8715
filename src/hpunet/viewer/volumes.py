"""Samples of a whole volume, kept as label bytes; the page gets single planes of them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Shaped, UInt, UInt8

from hpunet.errors import DataError
from hpunet.viewer.answers import latent_grid
from hpunet.viewer.events import MAX_RUNS
from hpunet.viewer.instances import count_instances, instances_in

if TYPE_CHECKING:  # torch is imported by the model's thread
    from hpunet.predict.draw import SamplingOptions
    from hpunet.predict.guarantee import Review
    from hpunet.predict.open_image import OpenedImage
    from hpunet.predict.prediction import Prediction
    from hpunet.predict.predictor import Predictor

VOLUME_BYTES = 2**29
"""Of all volumes in memory."""
MAX_VOLUME_BYTES = 2**28
"""Of the samples of one."""
Plane = Literal["axial", "coronal", "sagittal"]
PLANES: tuple[Plane, ...] = ("axial", "coronal", "sagittal")
"""Planes of one slice, one row and one column."""
MapKind = Literal["hypotheses", "samples", "mean", "std"]


@dataclass(frozen=True)
class VolumeWish:
    """What to draw: equal wishes give equal samples."""

    case: str
    num_samples: int = 16
    seed: int = 0
    at: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class DrawnVolume:
    """Samples of a volume, or of the part of it around a point."""

    name: str
    wish: VolumeWish
    shape: tuple[int, int, int]
    """Of the whole, (z, y, x)."""
    offset: tuple[int, int, int]
    """Where the maps begin in it."""
    samples: UInt8[np.ndarray, "s d h w"]
    hypotheses: tuple[int, ...]
    """The samples that stand for them."""
    instances: UInt[np.ndarray, "1 d h w"] | None
    """Samples of a model of instances, clustered: the only hypothesis."""
    mean: UInt8[np.ndarray, "d h w"]
    std: UInt8[np.ndarray, "d h w"]
    """255 is the largest possible value, 0.5."""
    answer: dict[str, Any]

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        clustered = 0 if self.instances is None else self.instances.nbytes
        return self.samples.nbytes + self.mean.nbytes + self.std.nbytes + clustered

    def plane(self, kind: MapKind, plane: Plane, index: int) -> UInt[np.ndarray, "k a b"]:
        """Maps on a plane of the whole volume, zero outside of the part that was sampled."""
        axis = PLANES.index(plane)
        if index >= self.shape[axis]:
            raise DataError(f"slice: there are {self.shape[axis]}")
        maps = self._maps(kind, axis, index - self.offset[axis])
        a, b = (side for i, side in enumerate(self.shape) if i != axis)
        top, left = (first for i, first in enumerate(self.offset) if i != axis)
        if maps.shape[1:] == (a, b):
            return maps
        # The part may reach beyond the volume.
        whole = np.zeros((len(maps), a, b), dtype=maps.dtype)
        part = maps[:, max(0, -top) : a - top, max(0, -left) : b - left]
        top, left = max(0, top), max(0, left)
        whole[:, top : top + part.shape[1], left : left + part.shape[2]] = part
        return whole

    def _maps(self, kind: MapKind, axis: int, index: int) -> UInt[np.ndarray, "k a b"]:
        if kind == "hypotheses" and self.instances is None:
            found = [cut_plane(self.samples[number], axis, index) for number in self.hypotheses]
        elif kind == "hypotheses":
            assert self.instances is not None
            found = [cut_plane(self.instances[0], axis, index)]
        elif kind == "samples":
            found = [cut_plane(sample, axis, index) for sample in self.samples]
        else:
            found = [cut_plane(self.mean if kind == "mean" else self.std, axis, index)]
        return np.stack(found)

    def runs(self, hypothesis: int) -> list[tuple[int, int, int]]:
        """What a hypothesis marks: start, length and value, slice after slice; none goes on in the next slice."""
        if hypothesis >= len(self.answer["hypotheses"]):
            raise DataError(f"hypothesis: there are {len(self.answer['hypotheses'])}")
        found: list[tuple[int, int, int]] = []
        pixels = self.shape[1] * self.shape[2]
        for z in range(self.shape[0]):
            flat = self.plane("hypotheses", "axial", z)[hypothesis].ravel()
            if flat.any():
                bounds = np.concatenate(([0], np.flatnonzero(np.diff(flat)) + 1, [flat.size]))
                runs = np.stack([bounds[:-1] + z * pixels, np.diff(bounds), flat[bounds[:-1]]], axis=1)
                found += map(tuple, runs[runs[:, 2] > 0].tolist())
            if len(found) > MAX_RUNS:
                why = "choose slice by slice, or draw other samples"
                raise DataError(f"the map has more than {MAX_RUNS} runs of voxels, too many for one step; {why}")
        return found


def cut_plane(values: Shaped[np.ndarray, "z h w *c"], axis: int, index: int) -> Shaped[np.ndarray, "a b *c"]:
    """A plane across an axis; zeros if it lies outside."""
    if not 0 <= index < values.shape[axis]:
        return np.zeros(values.shape[:axis] + values.shape[axis + 1 :], dtype=values.dtype)
    return np.ascontiguousarray(values[(slice(None),) * axis + (index,)])


def draw_volume(
    predictor: "Predictor",
    source: "OpenedImage",
    wish: VolumeWish,
    options: "SamplingOptions",
    *,
    name: str,
    advance: Callable[[int], None],
) -> DrawnVolume:
    """Draw samples of all slices, together or, by a 2D model, one by one; only their bytes are kept."""
    start, info = time.perf_counter(), predictor.info
    if info.has_instances and predictor.model.ndim == 2:
        raise DataError("a model of images gives instances of each slice ids of their own; look at slices one by one")
    depth, _, h, w = source.images.shape
    if wish.num_samples * depth * h * w > MAX_VOLUME_BYTES:
        most = MAX_VOLUME_BYTES // (depth * h * w)
        rest = f"at most {most} of a volume this large" if most else "a smaller volume; cut a part of it out"
        raise DataError(f"num_samples: expected {rest}")
    samples = np.zeros((wish.num_samples, depth, h, w), dtype=np.uint8)
    mean, std = (np.zeros((depth, h, w), dtype=np.uint8) for _ in range(2))
    notes: dict[str, None] = {}
    reviews: list[Review] = []
    z, grid = 0, {}
    for part in predictor.each_slice(source, options=options, advance=advance):
        many = len(part.mean) if part.axes == "zyx" else 1
        samples[:, z : z + many] = part.samples.reshape(-1, many, h, w)
        for kept, found in ((mean, part.mean), (std, 2 * part.std)):
            kept[z : z + many] = np.rint(255 * np.clip(found, 0, 1)).reshape(many, h, w)
        review = part.review
        notes |= dict.fromkeys(note for note in part.notes if review is None or note != review.note)
        if review is not None and review.is_unusual:
            reviews.append(review)
        z += many
        grid = latent_grid(part) if part.axes == "yx" else {}
        advance(0)
    unusual = [max(reviews, key=lambda review: review.score).note] if reviews else []  # of the most unusual slice
    answer = _answer(samples, part, wish) | {"notes": [*notes, *unusual]} | grid
    instances = instances_in(samples, info=info, seed=wish.seed)
    answer["num_instances"] = None if instances is None else count_instances(instances)
    answer["prediction"], answer["seconds"] = name, round(time.perf_counter() - start, 3)
    hypotheses = tuple(each["representative"] for each in answer["hypotheses"])
    where = {"shape": source.place.shape, "offset": source.place.offset}
    clustered = None if instances is None else instances[None]
    return DrawnVolume(
        name,
        wish,
        **where,
        samples=samples,
        hypotheses=hypotheses,
        instances=clustered,
        mean=mean,
        std=std,
        answer=answer,
    )


def _answer(samples: UInt8[np.ndarray, "s d h w"], part: "Prediction", wish: VolumeWish) -> dict[str, Any]:
    """What the page is told; `part` is any of the volume."""
    from hpunet.metrics.shapes import voxel_size
    from hpunet.sampling.hypotheses import distinct_hypotheses

    info, spacing = part.info, part.place.geometry.spacing
    ml = voxel_size(spacing)
    table = np.isin(np.arange(256), info.foreground)
    sizes, shadow = [], np.zeros(samples.shape[2:], dtype=np.bool_)
    for sample in samples:
        marked = table[sample]
        sizes.append(round(float(np.count_nonzero(marked)) * ml, 6))
        shadow |= marked.any(axis=0)
    hypotheses = []
    if not info.has_instances:
        how: dict[str, Any] = {"num_classes": info.num_classes, "classes": info.foreground}
        for each in distinct_hypotheses(samples, **how, same_iou=part.options.same_iou):
            size = sizes[each.representative]
            words = f"{size:.3g} ml" if spacing is not None else f"{size:.0f} voxel{'' if size == 1 else 's'}"
            parts = f" in {each.num_parts} part{'' if each.num_parts == 1 else 's'}"
            hypotheses.append(
                {
                    "share": each.share,
                    "representative": each.representative,
                    "members": list(each.members),
                    "description": "nothing marked" if each.area == 0 else words + parts,
                    "same_iou": each.same_iou,
                    "state": None,
                    "volume": size,
                }
            )
    _, h, w = part.place.shape
    return {
        "seed": wish.seed,
        "num_samples": wish.num_samples,
        "place": {"y": 0, "x": 0, "height": h, "width": w},
        "box": _box(shadow, part.place.offset),
        "hypotheses": hypotheses,
        "volumes": sizes,
        "samples": [],
        "units": "px" if spacing is None else "mm",
        "grid": {"y": 0, "x": 0, "height": h, "width": w},
        "scales": [],
    }


def _box(marked: np.ndarray, offset: tuple[int, int, int]) -> dict[str, int] | None:
    """The part of a slice in which any sample marks something."""
    rows, columns = (np.flatnonzero(marked.any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        return None
    y, x = int(rows[0]), int(columns[0])
    size = {"height": int(rows[-1]) - y + 1, "width": int(columns[-1]) - x + 1}
    return {"y": y + offset[1], "x": x + offset[2], **size}
