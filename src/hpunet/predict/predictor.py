"""From an image as people have it to samples: `hpunet.load(...)` gives a `Predictor`, which gives `Prediction`s."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hpunet.config.settings import MAX_SAMPLES, MAX_SEED, Settings
from hpunet.data.io.windows import Window
from hpunet.data.types import SetInfo
from hpunet.errors import ConfigError
from hpunet.kernels.dispatch import fast_sampler
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet
from hpunet.predict.crop import Box, Point, Region, check_region
from hpunet.predict.draw import SamplingOptions, encode_image, parse_scales, sample_image, sampler_for
from hpunet.predict.guarantee import Calibrated
from hpunet.predict.inputs import select_slices
from hpunet.predict.open_image import ImageLike, OpenedImage, open_image
from hpunet.predict.place import slice_name
from hpunet.predict.prediction import Origin, Prediction, stack_slices
from hpunet.predict.state import Given, read_state
from hpunet.predict.visible import MapLike, check_visible, show_part
from hpunet.sampling.orientations import Features
from hpunet.sampling.sample import temperature_per_scale
from hpunet.sampling.tiling import Tiled
from hpunet.training.build import autocast_for
from hpunet.weights.load import TrainedModel, load_trained, set_orientations


def load(
    run: str | Path,
    *,
    checkpoint: str = "latest",
    weights: str = "ema",
    device: torch.device | str | None = None,
    kernels: str = "auto",
    orientations: int | None = None,
    calibration: str | Path | None = None,
) -> "Predictor":
    """Load a model to predict with.

    Args:
        run: a run folder, or published weights by folder or name ("lidc-hpu-2026"). Folders take precedence.
        checkpoint: "latest", or a name in the run's `checkpoints` folder: "best", "step-00001000".
        weights: "ema", averaged ones if the run has them; or "raw", those of the last step.
        device: by default a GPU if there is one.
        kernels: "auto" for fast bf16 kernels on GPUs that can run them, else float32; "fused" for bf16 or an error,
            also on a CPU with bf16 instructions; "torch" for float32.
        orientations: number of image orientations to sample from; by default as in the model's settings.
        calibration: folder that `hpunet calibrate --out` wrote; see docs/guides/guarantees.md.
    """
    trained = set_orientations(load_trained(run, checkpoint=checkpoint, weights=weights, device=device), orientations)
    autocast_for("fp32", trained.device)  # no TF32: tiles give what the whole image gives
    sampler = fast_sampler(trained.model, kernels=kernels, device=trained.device)
    return Predictor(
        replace(trained, sampler=sampler), calibration=None if calibration is None else Path(calibration)
    )


class Predictor:
    """A trained model that takes images as they are: scaling, channels, padding and tiling happen inside."""

    def __init__(self, trained: TrainedModel, *, calibration: Path | None = None) -> None:
        self.trained = trained
        self.calibrated = Calibrated(trained, calibration)

    @property
    def name(self) -> str:
        """Name of the run or of the published weights."""
        return self.trained.name

    @property
    def model(self) -> HPUNet | ProbUNet:
        """The network, for `hpunet.sample` and the like."""
        return self.trained.model

    @property
    def info(self) -> SetInfo:
        """The data that the model was trained on."""
        return self.trained.info

    @property
    def settings(self) -> Settings:
        """The settings of training."""
        return self.trained.settings

    def __call__(
        self,
        image: ImageLike,
        *,
        num_samples: int = 16,
        seed: int = 0,
        scales: str | Sequence[int] = "full",
        temperature: float | Sequence[float] = 1.0,
        window: Window | None = None,
        at: Point | None = None,
        box: Box | None = None,
        spacing: float | None = None,
        slices: tuple[int, int] | None = None,
        tile: str | int = "auto",
        same_iou: float | None = None,
        visible: MapLike | None = None,
        labels: MapLike | None = None,
    ) -> Prediction:
        """Draw hypotheses of an image or volume; a model of images segments a volume slice by slice.

        Args:
            image: a path, the paths of a DICOM series, a Pillow image, an array or tensor (h, w), (h, w, c),
                (c, h, w) or (1, c, h, w), in stored values: 0 to 255 for 8 bits. For a model of volumes, arrays have
                the depth before h, (d, h, w).
            num_samples: number of samples, up to 1024. The n-th sample is the same for any number.
            seed: of the noise.
            scales: "full", "global" (the coarsest), "local" (the finest), or numbers; the others use their mean.
            temperature: factor on the prior's σ, or one per scale, coarsest first.
            window: stored values that map to 0 and 1, or a word such as "auto" or "ct-lung" (`data/io/windows.py`);
                by default as in training.
            at: a point (x, y) in the object. The crop around it that the model was trained on is cut out, with all
                slices.
            box: a box (x0, y0, x1, y1) around the object, instead of a point.
            spacing: distance of pixels of an image in mm to resample to; by default stored pixels are used.
            slices: first and end of the slices of a volume; by default all.
            tile: "auto", "whole", or the tile side in pixels. Changes the memory needed, not the result.
            same_iou: samples with at least this IoU are the same hypothesis; by default 0.5, or less where groups are
                too many.
            visible: for models trained with `data.extrapolate`: a map of the image's size, 0 where the model is to
                continue; a path, an array or a Pillow image.
            labels: the labels of the visible part, in the same form; those of the rest are not used.
        """
        sampling: dict[str, Any] = {"num_samples": num_samples, "seed": seed, "scales": scales, "tile": str(tile)}
        sampling |= {"temperature": temperature, "window": window, "same_iou": same_iou}
        options = SamplingOptions(**sampling, region=Region(at=at, box=box, spacing=spacing))
        self.check(options)
        source = self.read(image, options=options, visible=visible, labels=labels)
        numbers = select_slices(len(source.images), slices, where=source.name)
        parts = list(self.each_slice(source, options=options, numbers=numbers))
        is_stack = source.place.geometry.axes == "zyx" and self.info.ndim == 2
        return stack_slices(parts, name=source.name) if is_stack else parts[0]

    def map(self, images: Iterable[ImageLike], **how: Any) -> Iterator[Prediction]:
        """Predictions of many images, one at a time in memory; options as for a single one."""
        return (self(image, **how) for image in images)

    def replay(
        self,
        image: ImageLike,
        state: str | Path | Mapping[str, Any],
        *,
        visible: MapLike | None = None,
        labels: MapLike | None = None,
    ) -> Prediction:
        """The hypotheses that a `Prediction.state`, or a JSON file of it, holds.

        The image must be the same, and so must be `visible` and `labels` of a model that extrapolates.
        """
        kept = read_state(state)
        kept.check_model(self.trained)
        self.check(kept.options)
        source = self.read(image, options=kept.options, visible=visible, labels=labels)
        numbers = select_slices(len(source.images), kept.slices, where=source.name)
        parts = list(self.each_slice(source, options=kept.options, numbers=numbers, given=kept.given(numbers)))
        for part in parts:
            kept.check_image(part)
        is_stack = kept.axes == "zyx" and self.info.ndim == 2
        return stack_slices(parts, name=source.name) if is_stack else parts[0]

    def read(
        self,
        image: ImageLike,
        *,
        options: SamplingOptions,
        name: str | None = None,
        visible: MapLike | None = None,
        labels: MapLike | None = None,
    ) -> OpenedImage:
        """The image as the model sees it; `name` names the results, the others are as in `__call__`."""
        check_visible(self.trained, visible=visible, labels=labels)
        how: dict[str, Any] = {"window": options.window, "region": options.region}
        opened = open_image(image, name=name, info=self.info, crop=self.settings.data.crop, **how)
        if visible is None or labels is None:
            return opened
        return show_part(opened, visible=visible, labels=labels, info=self.info)

    def encode(self, source: OpenedImage, *, number: int = 0, tile: str = "auto") -> Features:
        """What all samples of a slice share, for `each_slice`; for a model of volumes, of the volume."""
        if self.info.ndim == 3:
            image, cond = source.volume(range(len(source.images)))
        else:
            image, cond = source.images[number], None if source.cond is None else source.cond[number]
        return encode_image(self.trained, image=image, cond=cond, tile=tile, name=source.name)

    def check(self, options: SamplingOptions) -> None:
        """Refuse impossible options before any work."""
        for name, least, most in (("num_samples", 1, MAX_SAMPLES), ("seed", 0, MAX_SEED)):
            if not least <= getattr(options, name) <= most:
                raise ConfigError(f"{name}: expected {least} to {most}, got {getattr(options, name)}")
        parse_scales(options.scales, latent_dims=self.model.latent_dims)
        temperature_per_scale(options.temperature, num_scales=len(self.model.latent_dims))
        check_region(options.region)
        sampler_for(self.trained, (1,) * self.info.ndim, tile=options.tile)

    def each_slice(
        self,
        source: OpenedImage,
        *,
        options: SamplingOptions,
        numbers: Sequence[int] | None = None,
        features: Mapping[int, Features] | None = None,
        given: Mapping[int, Given] | None = None,
        advance: Callable[[int], None] = lambda _: None,
    ) -> Iterator[Prediction]:
        """The slices of a volume (or these `numbers`), one at a time in memory; an image is its only slice.

        A model of volumes gives a single prediction, of all these slices together, under the number of the first.
        `features` of some slices, from `encode`, save the encoder; `given` are the latents of all of them, instead of
        new ones; `advance` is called with the number of new samples.
        """
        depth = len(source.images)
        chosen = range(depth) if numbers is None else numbers
        if self.info.ndim == 3:
            image, cond = source.volume(chosen)
            parts = iter([(chosen[0], source.name, image, cond)])
        else:
            conds = source.cond
            parts = (
                (z, slice_name(source.name, z=z, depth=depth), source.images[z], None if conds is None else conds[z])
                for z in chosen
            )
        _, top, left = source.place.offset
        trained = self.trained
        for z, name, image, cond in parts:
            kernels, size_notes = self._how_computed(image.shape[1:], tile=options.tile)
            origin = Origin(trained.name, trained.step, kernels, trained.model.orientations)
            notes = (*source.notes, *size_notes)
            known = (features or {}).get(z)
            how: dict[str, Any] = {"name": name, "features": known, "advance": advance, "cond": cond}
            if given is not None:
                how |= {"latents": given[z].latents, "orientation_ids": given[z].orientation_ids}
            drawn = sample_image(trained, image=image, options=options, **how)
            review = self.calibrated.review(image)
            yield Prediction(
                name=name,
                image=image,
                **drawn.maps(),
                axes="yx" if self.info.ndim == 2 else "zyx",
                notes=(*notes, review.note) if review is not None and review.is_unusual else notes,
                options=options,
                trained=trained,
                info=trained.info,
                origin=origin,
                place=replace(source.place, offset=(z, top, left)),
                features=known,
                cond=cond,
                review=review,
                calibrated=self.calibrated if given is None else None,
            )

    def _how_computed(self, size: tuple[int, ...], *, tile: str) -> tuple[str, list[str]]:
        """The kernels for images of this size, and notes on padding and tiles."""
        notes: list[str] = []
        sides = tuple(n + -n % multiple for n, multiple in zip(size, self.model.size_multiples, strict=True))
        dots = "pixels" if len(size) == 2 else "voxels"
        if sides != size:
            before, after = ("×".join(map(str, each)) for each in (size, sides))
            notes.append(f"Padded from {before} to {after} {dots} with border {dots}; results are cut back.")
        sampler = sampler_for(self.trained, sides, tile=tile)
        if isinstance(sampler, Tiled):
            notes.append(f"Computed in tiles of {sampler.tile} {dots}, which does not change the result.")
        return "torch" if sampler is self.model or isinstance(sampler, Tiled) else "fused", notes
