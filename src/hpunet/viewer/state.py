"""What the routes of the server work with: cases, the work list and the model, put together."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Shaped, UInt, UInt8

from hpunet import __version__
from hpunet.data.io.inputs import Stored
from hpunet.errors import HPUNetError
from hpunet.viewer.answers import measured
from hpunet.viewer.bounded import Bounded
from hpunet.viewer.cases import Case, Images, describe, without_paths
from hpunet.viewer.drawing import OPENED_BYTES, Drawing
from hpunet.viewer.events import Choose, ChooseVolume, Fold, Paint, Relabel, check_events
from hpunet.viewer.export import Decided, File, export, formats_of
from hpunet.viewer.instances import MAX_INSTANCES, count_instances
from hpunet.viewer.volumes import PLANES, Plane, cut_plane
from hpunet.viewer.worklist import WorkList

if TYPE_CHECKING:
    from hpunet.data.types import SetInfo

_LABEL_BYTES = 2**27  # of graders
DISCLAIMER = "Research software, not a medical device."


class MissingError(HPUNetError):
    """There is no such slice or grader."""


class Viewer:
    """All that one server has; methods may be called from any thread."""

    def __init__(self, drawing: Drawing, work_list: WorkList, *, say: Callable[[str], None] = print) -> None:
        self.drawing, self.work_list, self.say = drawing, work_list, say
        self.images = Images(OPENED_BYTES)
        self._labels: Bounded[np.ndarray] = Bounded(_LABEL_BYTES)

    @property
    def cases(self) -> list[Case]:
        """In the order of the work list."""
        return self.work_list.cases

    async def loaded(self) -> None:
        """Wait until the model is loaded."""
        if not self.drawing.predictor.done():
            await asyncio.shield(asyncio.wrap_future(self.drawing.predictor))

    def session(self) -> dict[str, Any]:
        """What holds for all cases."""
        predictor = self.drawing.predictor.result()
        return {
            "version": __version__,
            "model": self.model(),
            "num_cases": len(self.cases),
            "disclaimer": DISCLAIMER,
            "credit": predictor.trained.credit,
        }

    def model(self) -> dict[str, Any]:
        """The record of the model."""
        from hpunet.evaluation.scores import default_num_samples

        predictor = self.drawing.predictor.result()
        info = predictor.info
        return {
            "name": predictor.name,
            "iteration": predictor.trained.step,
            "classes": [{"index": number, "name": name} for number, name in enumerate(class_names(info))],
            "foreground": list(info.foreground),
            "has_instances": info.has_instances,
            "num_samples": default_num_samples(info),
            "num_scales": len(predictor.model.latent_dims),
            "ndim": predictor.model.ndim,
            "crop": list(info.image_size or predictor.settings.data.crop),
        }

    def about(self, case: Case) -> dict[str, Any]:
        """What the page must know of a case, and its state."""
        from hpunet.data.field_of_view import is_larger

        stored = self.read(case)
        size = stored.values.shape[1], stored.values.shape[2]
        fold, predictor = self.work_list.fold(case), self.drawing.predictor.result()
        return {
            "name": case.name,
            **describe(stored),
            "graders": list(case.grader_names),
            "formats": formats_of(stored),
            "notes": list(stored.notes),
            "needs_point": predictor.model.ndim == 2 and is_larger(size, info=predictor.info),
            "version": fold.version,
            "state": self.state(fold, stored),
        }

    def read(self, case: Case) -> Stored:
        """The stored values of a case."""
        stored = self.images.read(case)
        self.work_list.check_shape(case, stored.values.shape[:3])
        return stored

    def plane(self, case: Case, number: int, plane: Plane = "axial") -> Shaped[np.ndarray, "a b *c"]:
        """One slice as stored, or another plane."""
        stored, axis = self.read(case), PLANES.index(plane)
        if number >= stored.values.shape[axis]:
            raise MissingError(f"slice: there are {stored.values.shape[axis]}")
        return cut_plane(stored.values, axis, number)

    def grader(self, case: Case, grader: int, number: int, plane: Plane = "axial") -> UInt8[np.ndarray, "a b"]:
        """What a grader drew on a slice, or on another plane."""
        if not 0 <= grader < len(case.graders) or case.graders[grader] is None:
            raise MissingError("this grader did not look at this image")
        shape = self.read(case).values.shape
        self.plane(case, number, plane)

        def read() -> UInt8[np.ndarray, "z h w"]:
            labels = case.labels(grader, (shape[0], shape[1], shape[2]))
            assert labels is not None
            return labels

        labels = self._labels.get_or((case.name, grader), read, lambda found: found.nbytes)
        return cut_plane(labels, PLANES.index(plane), number)

    def mask(self, case: Case, number: int) -> UInt[np.ndarray, "h w"]:
        """The mask of a slice as it is now."""
        h, w = self.plane(case, number).shape[:2]
        return self.work_list.fold(case).mask(number, shape=(h, w))

    def add_events(self, case: Case, events: Sequence[Any], *, version: int) -> dict[str, Any]:
        """Check events and add them to the log; the new version and state."""
        stored = self.read(case)
        shape = stored.values.shape[:3]
        info = self.drawing.predictor.result().info
        check_events(events, shape=shape, num_values=MAX_INSTANCES + 1 if info.has_instances else info.num_classes)
        how: dict[str, Any] = {"version": version, "shape": shape, "read": lambda: stored}
        how["has_instances"] = info.has_instances
        fold = self.work_list.append(case, events, **how)
        return {"version": fold.version, "state": self.state(fold, stored)}

    def state(self, fold: Fold, stored: Stored) -> dict[str, Any]:
        """What the page shows of a fold."""
        depth, h, w = stored.values.shape[:3]
        slices: dict[str, Any] = {}
        for number in fold.slices(num_pixels=h * w):
            if number not in fold.sizes:
                fold.sizes[number] = self._measured(fold.mask(number, shape=(h, w)), stored)
            steps = fold.steps_of(number)
            source = next(
                (step.source.model_dump() for step in steps if isinstance(step, Choose | ChooseVolume)), None
            )
            slices[str(number)] = {
                **fold.sizes[number],
                "source": source,
                "is_edited": any(isinstance(step, Paint | Relabel) for step in steps),
            }
        return {
            "status": fold.status,
            "note": fold.note,
            "steps_done": fold.done,
            "steps_undone": len(fold.steps) - fold.done,
            "slices": slices,
            **({"volume": self._volume(slices, stored)} if depth > 1 else {}),
        }

    def _volume(self, slices: dict[str, Any], stored: Stored) -> dict[str, Any]:
        """What all slices mark together: in ml, or in voxels where the spacing is not known."""
        from hpunet.metrics.shapes import MM3_PER_ML

        spacing = stored.geometry.spacing
        known = spacing is not None and len(spacing) == 3
        ml = spacing[0] / MM3_PER_ML if known and spacing is not None else 1.0
        size = sum(each["area"] for each in slices.values()) * ml
        return {"size": round(size, 6), "units": "ml" if known else "voxels"}

    def _measured(self, mask: UInt[np.ndarray, "h w"], stored: Stored) -> dict[str, Any]:
        info, spacing = self.drawing.predictor.result().info, stored.geometry.spacing
        if not info.has_instances:
            return measured(mask, foreground=info.foreground, spacing=spacing)
        marked = measured((mask > 0).astype(np.uint8), foreground=(1,), spacing=spacing)
        return {**marked, "num_instances": count_instances(mask)}

    def decided(self, case: Case) -> Decided:
        """A case as it is now, to export."""
        stored, fold = self.read(case), self.work_list.fold(case)
        depth, h, w = stored.values.shape[:3]
        mask = np.stack([fold.mask(number, shape=(h, w)) for number in range(depth)])
        shape = {name: value for name, value in describe(stored).items() if name not in ("range", "window")}
        about = {
            "format": "hpunet-case",
            "name": case.name,
            "image": shape,
            "units": "px" if stored.geometry.spacing is None else "mm",
            "state": self.state(fold, stored),
            "version": fold.version,
            "model": self.model(),
            "hpunet": __version__,
            "disclaimer": DISCLAIMER,
        }
        return Decided(case.name, stored, mask, about)

    def export(self, case: Case, *, kind: str, number: int) -> File:
        """The case in a format; errors name no file."""
        decided = self.decided(case)
        with without_paths(case):
            return export(decided, kind=kind, number=number)

    def without_paths(self, words: str) -> str:
        """A message without the place of the work list and of cases."""
        words = words.replace(str(self.work_list.folder), "the work list")
        for case in self.cases:
            words = words.replace(str(case.path), case.name)
        return words.replace(str(Path.home()), "~")


def class_names(info: "SetInfo") -> list[str]:
    """A name for every class of the model."""
    return [*info.fixed_classes, *(f"instance {number + 1}" for number in range(info.num_random_ids))]
