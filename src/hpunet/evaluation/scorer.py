"""How a model scores on single images: samples and reconstructions drawn, all metrics taken, one row an image.

Noise belongs to the image's key, the seed and the hypothesis, so that neither the batch size nor the number of
processes, nor an interruption, changes what is drawn for an image.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int32, UInt8
from torch import Tensor, nn

from hpunet.data.batch import Batch
from hpunet.data.types import Sample, SetInfo, Source, refuse_other_data
from hpunet.errors import ConfigError, DataError, HPUNetError
from hpunet.evaluation.rows import Row, mean_rows
from hpunet.evaluation.scoring import (
    as_batch,
    centre_crop,
    hidden_scores,
    image_scores,
    instances_of,
    metric_arguments,
    prior_inputs,
    shown_arrays,
    true_instances,
    with_evaluation_ids,
)
from hpunet.evaluation.summary import Scope
from hpunet.metrics import (
    best_match_dice,
    calibration_error,
    iou,
    match_instances,
    rand_error,
    subset_b,
    uncertainty_error_ncc,
)
from hpunet.models.base import SegmentationModel
from hpunet.sampling.instances import clustering_threshold, instance_scores
from hpunet.sampling.orientations import encode_orientations
from hpunet.sampling.sample import reconstruct, sample

LOGITS_AT_ONCE = 2**25
"""Logits of an image that are held at once, where their softmax is needed."""


class Item(NamedTuple):
    """An image of the set as it was read, or why it could not be."""

    number: int
    sample: Sample | None
    error: str = ""


class _Maps(NamedTuple):
    """What was drawn for images with one seed, and what it is compared with."""

    indices: Sequence[int]
    keys: Sequence[str]
    batch: Batch
    truth: Int32[np.ndarray, "b h w"] | None
    labels: UInt8[np.ndarray, "b s h w"]
    confidence: Float[np.ndarray, "b h w"] | None
    rebuilt: Int[Tensor, "b r h w"]
    visible: Bool[Tensor, "b h w"] | None = None
    """What the prior saw, where a part was hidden from it."""


_Drawing = tuple[
    UInt8[np.ndarray, "b s h w"],
    Float[np.ndarray, "b h w"] | None,
    Int[Tensor, "b r h w"],
    Bool[Tensor, "b h w"] | None,
]
"""The last fields of `_Maps`."""


class Drawn(NamedTuple):
    """Images of a set, and what was drawn with one seed for those that could be read."""

    items: Sequence[Item]
    maps: _Maps | None


@dataclass(frozen=True)
class Scorer:
    """A model, and how it is scored on an image."""

    model: SegmentationModel
    info: SetInfo
    """What the model was trained on: its classes, and which of them metrics look at."""
    crop: tuple[int, int]
    num_samples: int = 16
    seed: int = 0
    num_seeds: int = 1
    """Seeds from `seed` on that an image is scored with; its scores are the means over them."""
    alpha: int | None = None
    """Threshold of the clustering to instances; by default the number of samples, as in the paper (App. G)."""
    connected: bool = False
    """Whether parts of a cluster that do not touch are instances of their own."""
    extrapolate: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    sampler: SegmentationModel | None = None
    """What computes instead of the model itself: the same model on fused kernels, which round differently."""

    def __post_init__(self) -> None:
        for name in ("num_samples", "num_seeds", "seed"):
            if getattr(self, name) < (least := 0 if name == "seed" else 1):
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.num_seeds > 1 and self.info.has_instances:
            raise ConfigError(
                f"{self.num_seeds} seeds: only for classes, since ids and clustering of instances depend on the seed "
                "too; evaluate with one --seed at a time, each with its own --out"
            )
        clustering_threshold(self.alpha, num_samples=self.num_samples)

    @property
    def scope(self) -> Scope:
        """Which metrics there can be. Average precision is for instances among other classes: street scenes."""
        among_others = self.finds_instances and self.info.num_fixed_classes > 1
        return Scope(self.num_samples, self.info.has_instances, among_others, self.extrapolate)

    @property
    def finds_instances(self) -> bool:
        """Whether samples are clustered: not where they are given the ids of a part and are to vary in the rest."""
        return self.info.has_instances and not self.extrapolate

    def identity(self, source: Source, *, options: Mapping[str, Any]) -> dict[str, Any]:
        """All that decides the rows."""
        return {
            "weights": weights_sum(self.model),
            "data": data_sum(source, options=options),
            "split": source.split,
            "samples": self.num_samples,
            "seed": self.seed,
            **({} if self.num_seeds == 1 else {"seeds": self.num_seeds}),
            "alpha": self._alpha if self.info.has_instances else None,
            **({"connected": True} if self.connected else {}),
            "crop": list(self.crop),
            "extrapolate": self.extrapolate,
            **({} if self.model.orientations == 1 else {"orientations": self.model.orientations}),
            **({} if self.sampler is None else {"kernels": "fused"}),
        }

    @property
    def _network(self) -> SegmentationModel:
        return self.sampler or self.model

    @property
    def _alpha(self) -> int:
        return clustering_threshold(self.alpha, num_samples=self.num_samples)

    def check(self, source: Source) -> None:
        """Refuse data that the model was not made for, as a whole."""
        refuse_other_data(source, info=self.info)

    def rows(self, source: Source, items: Sequence[Item]) -> list[Row]:
        """What the model scores on these images, in their order."""
        return mean_rows([self.score(source, drawn) for drawn in self.draw(source, items)])

    def draw(self, source: Source, items: Sequence[Item]) -> Iterator["Drawn"]:
        """The model's part of `rows`: what is drawn with each seed, one after the other."""
        read = [(item.number, item.sample) for item in items if item.sample is not None]
        if not read:
            yield from [Drawn(items, None)] * self.num_seeds
            return
        indices, samples = [index for index, _ in read], [found for _, found in read]
        keys = [source.identities[i].key for i in indices]
        batch, truth = self._batch(samples, keys)
        for drawn in self._draw(batch, indices=indices, keys=keys):
            yield Drawn(items, _Maps(indices, keys, batch, truth, *drawn))

    def score(self, source: Source, drawn: "Drawn") -> list[Row]:
        """The metrics' part of `rows`, for one seed: on the CPU, and possible beside other work."""
        named = {item.number: _without_scores(source, item) for item in drawn.items}
        if drawn.maps is not None:
            named |= self._scored(source, drawn.maps)
        return [named[item.number] for item in drawn.items]

    def _scored(self, source: Source, drawn: "_Maps") -> dict[int, Row]:
        indices, keys, batch, truth, labels, confidence, rebuilt, visible = drawn
        maps, common = torch.from_numpy(labels), metric_arguments(batch, self.info)
        all_classes = {name: value for name, value in common.items() if name != "classes"}
        scores = {
            **image_scores(samples=maps, reconstructions=rebuilt, batch=batch, info=self.info),
            "best_match_dice": best_match_dice(samples=maps, **common),
            "calibration_error": calibration_error(samples=maps, **common),
            "uncertainty_error_ncc": uncertainty_error_ncc(samples=maps, **all_classes),
        }
        if visible is not None:
            scores |= hidden_scores(
                samples=maps, reconstructions=rebuilt, visible=visible, batch=batch, info=self.info
            )
        marked = subset_b(**common)
        found = {}
        for i, index in enumerate(indices):
            values = {name: float(value[i]) for name, value in scores.items()}
            matches = None
            if truth is not None:
                valid = batch.valid[i].numpy()
                predicted = instances_of(
                    labels[i], info=self.info, alpha=self._alpha, connected=self.connected, seed=self.seed
                )
                values["rand_error"] = float(
                    rand_error(prediction=predicted[None], truth=truth[i][None], valid=valid[None])[0]
                )
                # Whether membranes, or gaps, are found: the Rand error does not look at them.
                taken = [(maps > 0).astype(np.uint8)[None] for maps in (predicted, truth[i])]
                values["background_iou"] = float(iou(*taken, num_classes=2, classes=[0], valid=valid[None])[0])
                if confidence is not None:
                    matches = match_instances(
                        prediction=predicted,
                        scores=instance_scores(predicted, stochastic_probs=confidence[i][None]),
                        truth=truth[i],
                        valid=valid,
                    )
            found[index] = Row(
                image=index,
                key=keys[i],
                patient=source.identities[index].patient,
                num_graders=int(batch.graders[i].sum()),
                subset_b=bool(marked[i]),
                scores={name: value for name, value in values.items() if np.isfinite(value)},
                matches=matches,
            )
        return found

    def _batch(
        self, samples: Sequence[Sample], keys: Sequence[str]
    ) -> tuple[Batch, Int32[np.ndarray, "b h w"] | None]:
        """Images as evaluation sees them, each at its own centre; and true instances, 0 where there is none."""
        singles = [centre_crop(as_batch(found), crop=self.crop) for found in samples]
        batch = Batch(**{name: torch.cat([getattr(s, name) for s in singles]) for name in vars(singles[0])})
        truth = None
        if self.finds_instances:
            truth = true_instances(batch, self.info)
        return with_evaluation_ids(batch, keys=keys, info=self.info, seed=self.seed), truth

    def _draw(self, batch: Batch, *, indices: Sequence[int], keys: Sequence[str]) -> Iterator[_Drawing]:
        """For each seed what `_sampled` gives; reconstructions and what was visible, which are the same for all."""
        image, cond = self._prior_inputs(batch, indices)
        with torch.no_grad():  # not around a `yield`, where it would reach the caller
            features = encode_orientations(self._network, image=image, cond=cond)
        labels = batch.labels.to(self.device).long()
        rebuilt = reconstruct(
            self._network, image=image, labels=labels, return_logits=False, features=features
        ).labels.cpu()
        visible = None if cond is None else cond[:, 0].cpu() > 0
        for seed in range(self.seed, self.seed + self.num_seeds):
            generators = self._generators(keys, seed=seed)
            yield *self._sampled(image, features=features, generators=generators), rebuilt, visible

    def _sampled(
        self, image: Float[Tensor, "b c h w"], *, features: Sequence[Tensor], generators: Sequence[torch.Generator]
    ) -> tuple[UInt8[np.ndarray, "b s h w"], Float[np.ndarray, "b h w"] | None]:
        """Samples, and the mean softmax of the stochastic classes where that is needed."""
        wants_scores = self.scope.has_average_precision
        at_once = self.num_samples
        if wants_scores:
            at_once = max(1, LOGITS_AT_ONCE // (self.info.num_classes * self.crop[0] * self.crop[1]))
        drawn, total = [], torch.zeros(len(image), *self.crop, device=self.device)
        for start in range(0, self.num_samples, at_once):  # the generators go on where they were
            part = sample(
                self._network,
                image=image,
                num_samples=min(at_once, self.num_samples - start),
                generator=generators,
                return_logits=wants_scores,
                features=features,
            )
            drawn.append(part.labels.to(torch.uint8).cpu())
            if wants_scores:
                total += part.probs[:, :, list(self.info.stochastic_classes)].sum(dim=(1, 2))
        confidence = (total / self.num_samples).cpu().numpy() if wants_scores else None
        return torch.cat(drawn, dim=1).numpy(), confidence

    def _prior_inputs(self, batch: Batch, indices: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        on_device = Batch(**{name: value.to(self.device) for name, value in vars(batch).items()})
        return prior_inputs(
            on_device, places=indices, extrapolate=self.extrapolate, num_classes=self.info.num_classes
        )

    def _generators(self, keys: Sequence[str], *, seed: int) -> list[torch.Generator]:
        digests = [hashlib.sha256(f"{seed}\0{key}".encode()).digest() for key in keys]
        return [torch.Generator().manual_seed(int.from_bytes(digest[:7])) for digest in digests]

    def examples(self, source: Source, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """Maps of these images where they can be read, as in `shown_arrays`, drawn as with the first seed."""
        collected: dict[str, list[np.ndarray]] = {}
        for row in rows:  # one at a time: their logits would not all fit
            item = read_item(source, row.image, self.info)
            if item.sample is None:  # it was readable when it was scored
                continue
            batch, truth = self._batch([item.sample], [row.key])
            image, cond = self._prior_inputs(batch, [row.image])
            on_device = Batch(**{name: value.to(self.device) for name, value in vars(batch).items()})
            arrays = shown_arrays(
                self._network,
                batch=on_device,
                image=image,
                cond=cond,
                keys=[row.key],
                info=self.info,
                num_samples=self.num_samples,
                generators=lambda key=row.key: self._generators([key], seed=self.seed),  # type: ignore[misc]
                truth=truth,
                alpha=self._alpha,
                connected=self.connected,
                seed=self.seed,
            )
            for name, value in arrays.items():
                collected.setdefault(name, []).append(value)
        return {name: np.concatenate(values) for name, values in collected.items()}


def read_item(source: Source, index: int, info: SetInfo) -> Item:
    """An image with its labels, checked against what the model takes, or why it cannot be had."""
    try:
        found = source[index]
        if found.image.shape[0] != info.in_channels:
            raise DataError(f"{found.identity.key}: {found.image.shape[0]} channels, expected {info.in_channels}")
        highest = int(found.labels.max(initial=0))
        if highest >= info.num_classes and not info.has_instances:
            raise DataError(
                f"{found.identity.key}: label {highest}, the model has classes 0...{info.num_classes - 1}"
            )
    except (HPUNetError, OSError) as error:
        return Item(index, None, str(error) or type(error).__name__)
    return Item(index, found)


def _without_scores(source: Source, item: Item) -> Row:
    patient, key = source.identities[item.number]
    return Row(image=item.number, key=key, patient=patient, error=item.error)


def weights_sum(model: SegmentationModel) -> str:
    """One name for the values of all weights."""
    total = hashlib.sha256()
    if isinstance(model, nn.Module):
        for name, tensor in sorted(model.state_dict().items()):
            total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            total.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return total.hexdigest()


def data_sum(source: Source, *, options: Mapping[str, Any]) -> str:
    """One name for a set: a pack's own, else the sum of its description and of the names of its images.

    So a changed image in a folder is not noticed, a changed pack is.
    """
    own = getattr(source, "fingerprint", None)
    if isinstance(own, str):
        return own
    described = [source.info.as_json(), source.split, [list(i) for i in source.identities], dict(options)]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
