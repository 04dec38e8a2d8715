"""What a `Predictor` gives: samples of one image or volume, their summary, and where they lie in its file."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64, Integer
from PIL import Image
from torch import Tensor

from hpunet.data.io.geometry import Geometry
from hpunet.data.types import SetInfo
from hpunet.errors import ConfigError, HPUNetError
from hpunet.metrics import Measurements
from hpunet.models.gaussian import Gaussian
from hpunet.predict import edit
from hpunet.predict.contact_sheet import sample_sheet
from hpunet.predict.crop import Number
from hpunet.predict.draw import SamplingOptions
from hpunet.predict.guarantee import Calibrated, Guarantee, Review
from hpunet.predict.measurements import known_spacing, measure_prediction, require_classes
from hpunet.predict.place import Place, slice_name
from hpunet.predict.state import state_of
from hpunet.predict.volume_sheet import volume_sheet
from hpunet.sampling.hypotheses import Hypothesis, distinct_hypotheses, representatives
from hpunet.sampling.orientations import Features
from hpunet.weights.load import TrainedModel


@dataclass(frozen=True)
class Origin:
    """The model of a prediction."""

    run: str
    iteration: int
    kernels: str
    orientations: int


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Samples of one image or volume. Maps have the size of what was sampled, along `axes`.

    `save` writes a folder. `pick`, `redraw`, `combine` and `nudge` edit hypotheses in latent space, and `state` keeps
    them for `Predictor.replay`.
    """

    name: str
    image: Float32[np.ndarray, "c ..."]
    """What the model saw, in [0, 1]."""
    samples: Integer[np.ndarray, "s ..."]
    """The class of every pixel in every sample; uint8 up to 256 classes."""
    mean: Float32[np.ndarray, "..."]
    """Mean over samples of the summed probability of the stochastic classes."""
    std: Float32[np.ndarray, "..."]
    """Its standard deviation."""
    axes: str
    """The axes of maps: "yx", or "zyx" for volumes."""
    latents: tuple[Tensor, ...]
    """For each scale, coarsest first, (z, s, channels, h_i, w_i) of the padded slices; z is 1 for an image.

    Of a model of volumes (1, s, channels, d_i, h_i, w_i).
    """
    orientation_ids: Integer[Tensor, "z s"] | None
    notes: tuple[str, ...]
    """What was done to the image, and how it differs from those of training, in plain sentences."""
    options: SamplingOptions
    trained: TrainedModel
    info: SetInfo
    """The data that the model was trained on, with the names of classes."""
    origin: Origin
    place: Place
    features: Features | None = None
    """What the caller of `Predictor.each_slice` gave: edits then need no encoder."""
    cond: Float32[np.ndarray, "e ..."] | None = None
    """Of a model that extrapolates: what is visible, and its labels as one plane per class."""
    review: Review | None = None
    """How unlike the training images this is (of a stack, the most unusual slice); None if not known."""
    calibrated: Calibrated | None = None
    """For guarantees; None if samples were edited."""

    def __repr__(self) -> str:
        size = "×".join(map(str, self.mean.shape))
        return f"<Prediction {self.name}: {len(self.samples)} samples of {size} ({self.axes}) by {self.origin.run}>"

    @property
    def geometry(self) -> Geometry:
        """Spacing and orientation of the maps."""
        z, y, x = self.place.offset
        moved = self.place.geometry.crop(z=z, y=y, x=x)
        return replace(moved, axes=self.axes, spacing=self.spacing)  # type: ignore[arg-type]

    @property
    def spacing(self) -> tuple[float, ...] | None:
        """Distance of neighbouring pixels in mm along `axes`; None if the file does not say."""
        spacing = self.place.geometry.spacing
        return None if spacing is None else spacing[-len(self.axes) :]

    @property
    def affine(self) -> Float64[np.ndarray, "4 4"] | None:
        """From (row, column, slice, 1) of the maps to millimetres in the patient; None if the file does not say."""
        return self.geometry.affine

    @cached_property
    def hypotheses(self) -> list[Hypothesis]:
        """Distinct hypotheses with maps and shares, the most frequent first; none where classes are instance ids."""
        if self.info.has_instances:
            return []
        how: dict[str, Any] = {"num_classes": self.info.num_classes, "classes": self.info.foreground}
        return distinct_hypotheses(self.samples, **how, same_iou=self.options.same_iou)

    def representatives(self, num: int) -> list[Hypothesis]:
        """The `num` samples that, with their shares as weights, stand best for all; fewer where fewer differ."""
        require_classes(self.info, what="representatives")
        how: dict[str, Any] = {"num_classes": self.info.num_classes, "classes": self.info.foreground}
        return representatives(self.samples, num=num, **how)

    @cached_property
    def measurements(self) -> Measurements:
        """Sizes in every sample, by class; in mm and ml if the file says the spacing.

        Of an image, a slice, or a volume by a model of volumes; no stack of slices that were sampled one by one.
        """
        return measure_prediction(self)

    def growth(
        self,
        after: "Prediction",
        *,
        more_than: float = 0.25,
        quantity: str | None = None,
        class_name: str | None = None,
    ) -> float:
        """The probability that what a later image of the patient shows is larger by more than this share.

        `quantity` is "area" ("volume" of volumes; the default), "longest_diameter", "perpendicular_diameter" or
        "num_parts", compared in all pairs of samples. `class_name` is optional if there is only one class.
        """
        how: dict[str, Any] = {"more_than": more_than, "quantity": quantity, "class_name": class_name}
        return self.measurements.growth(after.measurements, **how)

    @cached_property
    def prior(self) -> list[Gaussian]:
        """Of what was sampled at once: the prior at each scale, given the coarser latents, as the samples lie."""
        return edit.prior(self)

    def guarantee(self, level: float = 0.9) -> Guarantee:
        """Inner and outer mask and an interval of sizes that hold with this probability (`hpunet calibrate`).

        Of what was sampled at once; samples must have been drawn as in the calibration, and not edited.
        """
        if self.calibrated is None:
            raise ConfigError(f"{self.name}: samples were edited; guarantees are for samples as they are drawn")
        if self.is_stack:
            raise ConfigError(f"{self.name}: was sampled slice by slice; guarantees are for its `slices`")
        how: dict[str, Any] = {"mean": self.mean, "info": self.info, "options": self.options}
        how |= {"kernels": self.origin.kernels, "spacing": known_spacing(self)}
        found = self.calibrated.guarantee(self.samples, **how, level=level)
        return replace(found, is_unusual=self.review is not None and self.review.is_unusual)

    @property
    def statements(self) -> list[str]:
        """What is guaranteed with 90 %, or why nothing is; nothing without a calibration, or if edited."""
        if self.calibrated is None or self.is_stack or not self.calibrated.exists:
            return []
        try:
            return [self.guarantee().note]
        except HPUNetError as error:
            return [f"No guarantees: {error}"]

    @property
    def is_stack(self) -> bool:
        """Whether this is a volume whose slices were sampled one by one, so that they do not belong together."""
        return self.axes == "zyx" and self.info.ndim == 2

    @property
    def slices(self) -> list["Prediction"]:
        """The slices of a volume, each as a prediction of its own; an image is its only slice."""
        if self.info.ndim == 3:
            words = f"{self.name}: was sampled as a volume, whose slices are no predictions"
            raise ConfigError(f"{words}; .samples[:, z] and .mean[z] are those of slice z")
        return self.parts

    @property
    def parts(self) -> list["Prediction"]:
        """What was sampled at once: the slices of a stack, otherwise the image or volume."""
        return [self._slice(z) for z in range(len(self.mean))] if self.is_stack else [self]

    def _slice(self, z: int) -> "Prediction":
        first, y, x = self.place.offset
        ids = self.orientation_ids
        return replace(
            self,
            name=slice_name(self.name, z=first + z, depth=self.place.shape[0]),
            image=self.image[:, z],
            cond=None if self.cond is None else self.cond[:, z],
            samples=self.samples[:, z],
            mean=self.mean[z],
            std=self.std[z],
            axes="yx",
            latents=tuple(scale[z : z + 1] for scale in self.latents),
            orientation_ids=None if ids is None else ids[z : z + 1],
            place=replace(self.place, offset=(first + z, y, x)),
        )

    def pick(self, *samples: int) -> "Prediction":
        """Only these samples, counted from 0, in this order; a number may be given several times."""
        return edit.pick(self, samples)

    def redraw(
        self,
        *,
        scales: str | Sequence[int] | None = None,
        region: edit.Where | None = None,
        seed: int | None = None,
        temperature: float | Sequence[float] | None = None,
    ) -> "Prediction":
        """Redraw these scales, everywhere or under a region, and keep all other latents bit for bit.

        With `scales=()` it replays the prediction, or what you made of it: `replace(prediction, latents=edited)`.

        Args:
            scales: as for drawing; by default all, or, with a region, those whose cells are not much larger than it.
            region: a map of the image's size, a point (x, y), or a box (x0, y0, x1, y1), of all slices; of a volume
                also a point (x, y, z) or a box (x0, y0, z0, x1, y1, z1).
            seed: of the new noise; by default the next one.
            temperature: factor on the prior's σ; 0 sets the scales to their mean. By default as before.
        """
        return edit.redraw(self, scales=scales, region=region, seed=seed, temperature=temperature)

    def combine(
        self, other: "Prediction", *, region: edit.Where, scales: str | Sequence[int] | None = None
    ) -> "Prediction":
        """Hypotheses whose latents under a region are those of another prediction of the image, sample by sample.

        `other` may have a single sample, for all. `region` and `scales` are as for `redraw`.
        """
        return edit.combine(self, other, region=region, scales=scales)

    def nudge(
        self, *, scale: int, at: Sequence[Number], by: Number, channel: int = 0, slice: int = 0
    ) -> "Prediction":
        """Move the latent of a scale at a point (x, y) of a slice by so many prior σ, in all samples."""
        return edit.nudge(self, scale=scale, at=at, by=by, channel=channel, slice=slice)

    def state(self, *samples: int) -> dict[str, Any]:
        """What `Predictor.replay` needs besides image and model to make these samples (or all) again, as JSON."""
        return state_of(self, samples)

    def save(
        self,
        folder: str | Path,
        *,
        formats: str | Sequence[str] | None = None,
        colour: str | None = None,
        representatives: int | None = None,
        replace: bool = False,
    ) -> None:
        """Write what `hpunet sample` writes: samples, mean, spread, hypotheses and a sheet (see `samples.py`).

        `formats` are names as of --format: "png", "nifti", "dicom-seg", "rtstruct", "geojson", "imagej"; by default
        PNG, and NIfTI of volumes.
        """
        from hpunet.predict.export.registry import parse_formats
        from hpunet.predict.export.writer import export

        how: dict[str, Any] = {
            "formats": parse_formats(formats),
            "colour": colour,
            "representatives": representatives,
        }
        export(self, Path(folder), **how, replace=replace)

    def sheet(self, *, colour: str | None = None) -> Image.Image:
        """Image, mean, spread, distinct hypotheses and samples on one page.

        Of a stack, the slice in which samples differ most; of a volume, three planes through what is marked. `colour`
        is that of outlines, a CSS name or #rrggbb; by default the one that differs most from the image.
        """
        most = max(self.parts, key=lambda part: float(part.std.sum()))
        options, origin = self.options, self.origin
        title = f"{most.name}: {len(most.samples)} samples of {origin.run}, iteration {origin.iteration}"
        title += f", scales {options.scales}, seed {options.seed}"
        maps: dict[str, Any] = {"image": most.image, "labels": most.samples, "mean": most.mean, "std": most.std}
        maps |= {"hypotheses": most.hypotheses, "title": title, "colour": colour}
        if most.axes == "zyx":
            return volume_sheet(**maps, spacing=most.spacing, first_slice=most.place.offset[0])
        return sample_sheet(**maps)

    def show(self) -> None:
        """Open the sheet in a picture viewer."""
        self.sheet().show()

    def _repr_png_(self) -> bytes:
        """The sheet, in notebooks."""
        content = io.BytesIO()
        self.sheet().save(content, format="PNG")
        return content.getvalue()


def stack_slices(parts: list[Prediction], *, name: str) -> Prediction:
    """One prediction of a volume, from those of its slices."""
    ids = [part.orientation_ids for part in parts if part.orientation_ids is not None]
    conds = [part.cond for part in parts if part.cond is not None]
    return replace(
        parts[0],
        name=name,
        image=np.stack([part.image for part in parts], axis=1),
        samples=np.stack([part.samples for part in parts], axis=1),
        mean=np.stack([part.mean for part in parts]),
        std=np.stack([part.std for part in parts]),
        axes="zyx",
        features=None,
        cond=np.stack(conds, axis=1) if conds else None,
        review=max((part.review for part in parts if part.review), key=lambda found: found.score, default=None),
        latents=tuple(torch.cat(scale) for scale in zip(*(part.latents for part in parts), strict=True)),
        orientation_ids=torch.cat(ids) if ids else None,
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )
