"""How a model scores on single images: draw samples and reconstructions, compute all metrics, one row per image.

Noise is keyed by the image's key, the seed and the hypothesis, so batch size, number of processes and interruptions
do not change what is drawn for an image. Validation during training uses the same scorer.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int32, UInt8
from torch import Tensor, nn

from hpunet.config.settings import MAX_EROSION, MAX_SAMPLES, MAX_SEED, MAX_SEEDS, Extrapolate
from hpunet.data.batch import Batch
from hpunet.data.fingerprint import Contents
from hpunet.data.types import Sample, SetInfo, Source, refuse_other_data
from hpunet.errors import ConfigError, DataError
from hpunet.evaluation.counts import (
    Counts,
    count_maps,
    of_volumes,
    scores_from_counts,
    subset_b_from_counts,
    volume_scores_from_counts,
)
from hpunet.evaluation.drawn import Drawn, Inputs, Maps
from hpunet.evaluation.images import (
    Item,
    as_batch,
    centre_crop,
    drawn_together,
    fast_batch_size,
    prior_inputs,
    true_instances,
    with_evaluation_ids,
)
from hpunet.evaluation.instance_scores import Clustering, InstanceMaps, score_instances
from hpunet.evaluation.rows import Row
from hpunet.evaluation.sample_files import write_samples
from hpunet.evaluation.scores import (
    PAPER_HEIGHT,
    default_erosion,
    hidden_scores,
    image_scores,
    marginal_scores,
    metric_arguments,
    slice_scores,
    volume_identity,
)
from hpunet.evaluation.summary import Scope
from hpunet.metrics import subset_b
from hpunet.models.base import SegmentationModel
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet
from hpunet.sampling.instances import EROSION, clustering_threshold
from hpunet.sampling.orientations import Features, encode_orientations
from hpunet.sampling.sample import Samples, reconstruct, sample
from hpunet.sampling.tiling import Padding, choose_sampler
from hpunet.utils.host_copies import copied_to_cpu
from hpunet.utils.tensors import hash_tensors
from hpunet.utils.text import as_utf8

Run = Callable[..., Iterable[Any]]
"""`map`, or one of its kind that works in several processes."""
LOGITS_AT_ONCE = 2**25  # logits per image held at once if their softmax is needed
LABELS_AT_ONCE = 2**26  # labels per image held at once, before they shrink to bytes


@dataclass(frozen=True)
class Scorer:
    """A model and how it is scored."""

    model: SegmentationModel
    info: SetInfo  # of the model's training data: classes, and which of them metrics consider
    crop: tuple[int, ...] | None  # None: whole images
    num_samples: int = 16
    seed: int = 0
    num_seeds: int = 1  # seeds from `seed` on; scores are means over them
    alpha: int | None = None  # clustering threshold; by default the number of samples, as in the paper (App. G)
    connected: bool = False  # whether disconnected parts of a cluster are separate instances
    erosion: int | None = None  # side of the square that an instance contains; by default that of `default_erosion`
    extrapolate: Extrapolate = False
    representatives: int | None = None  # samples are also reduced to so many
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    sampler: SegmentationModel | None = None  # computes in place of the model: the same on fused kernels
    samples_folder: Path | None = None  # where the samples of each image are saved (`sample_files.py`)

    def __post_init__(self) -> None:
        bounds = {"num_samples": (1, MAX_SAMPLES), "num_seeds": (1, MAX_SEEDS), "seed": (0, MAX_SEED)}
        for name, (least, most) in bounds.items():
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name}: expected {least} to {most}, got {getattr(self, name)}")
        if self.representatives is not None and self.info.has_instances:
            raise ConfigError("representatives: only for classes, since random ids make all samples differ")
        if not 1 <= (self.representatives or 1) <= self.num_samples:
            raise ConfigError(f"representatives: expected 1 to {self.num_samples}, got {self.representatives}")
        if self.num_seeds > 1 and self.info.has_instances:
            why = "only for classes, since ids and clusters of instances depend on the seed"
            raise ConfigError(
                f"{self.num_seeds} seeds: {why}; evaluate one --seed at a time, each with its own --out"
            )
        if self.num_seeds > 1 and self.samples_folder is not None:
            raise ConfigError(f"{self.num_seeds} seeds: samples are saved of one; evaluate one --seed at a time")
        clustering_threshold(self.alpha, num_samples=self.num_samples)
        if self.erosion is not None and not 1 <= self.erosion <= MAX_EROSION:
            raise ConfigError(f"erosion: expected 1 to {MAX_EROSION} pixels, got {self.erosion}")

    @property
    def scope(self) -> Scope:
        """Which metrics apply. Average precision is for instances among other classes (street scenes)."""
        among_others = self.finds_instances and self.info.num_fixed_classes > 1
        few = self.representatives is not None
        few_seen = (among_others, bool(self.extrapolate), few)
        return Scope(self.num_samples, self.info.has_instances, *few_seen, has_volumes=self.info.ndim == 3)

    @property
    def finds_instances(self) -> bool:
        """Whether samples are clustered: not when extrapolating, where samples are meant to differ."""
        return self.info.has_instances and not self.extrapolate

    def identity(self, source: Source, *, contents: Contents) -> dict[str, Any]:
        """Everything that the rows depend on."""
        return {
            "weights": weights_sum(self.model),
            "data": contents.fingerprint,
            **({"images": contents.description} if contents.files else {}),
            "split": source.split,
            "samples": self.num_samples,
            "seed": self.seed,
            **({} if self.num_seeds == 1 else {"seeds": self.num_seeds}),
            "alpha": self.threshold if self.info.has_instances else None,
            **({"connected": True} if self.connected else {}),
            **self._erosion(),
            "crop": None if self.crop is None else list(self.crop),
            "extrapolate": self.extrapolate,
            **({} if self.representatives is None else {"representatives": self.representatives}),
            **({} if self.model.orientations == 1 else {"orientations": self.model.orientations}),
            **({} if self.sampler is None else {"kernels": "fused"}),
            **volume_identity(source.info),
        }

    @property
    def clustering(self) -> Clustering:
        """How instances are found."""
        return Clustering(
            self.info, alpha=self.threshold, seed=self.seed, connected=self.connected, erosion=self.erosion
        )

    def _erosion(self) -> dict[str, Any]:
        """As a part of the identity: rows without it are of 5 pixels at any height."""
        if self.erosion is not None:
            return {"erosion": self.erosion}
        scaled = default_erosion(self.info, height=2 * PAPER_HEIGHT) != EROSION
        return {"erosion": "scaled"} if scaled and self.info.has_instances else {}

    @property
    def threshold(self) -> int:
        """α of the clustering."""
        return clustering_threshold(self.alpha, num_samples=self.num_samples)

    def check(self, source: Source) -> None:
        """Refuse data that the model was not made for."""
        refuse_other_data(source, info=self.info)

    def draw(self, source: Source, items: Sequence[Item]) -> Iterator[Drawn]:
        """Draw samples and reconstructions, one seed after the other for images of one size."""
        for group in drawn_together(items, crop=self.crop):
            yield from self._drawn(source, group)

    def _drawn(self, source: Source, items: Sequence[Item]) -> Iterator[Drawn]:
        read = [(item.number, item.sample) for item in items if item.sample is not None]
        if not read:
            yield from [Drawn(items, None)] * self.num_seeds
            return
        indices, samples = [index for index, _ in read], [found for _, found in read]
        keys = [source.identities[i].key for i in indices]
        batch, truth = self.prepare(samples, keys)
        try:
            there = batch.to(self.device)
            inputs, n = self.inputs(there, indices), len(keys)
            names = [*keys, *[keys[-1]] * (self._images_at_once(n) - n)]
            inputs = inputs.filled_up(len(names))
            features = encode_orientations(inputs.network, image=inputs.image, cond=inputs.cond, names=names)
            how: dict[str, Any] = {"image": inputs.image, "labels": inputs.labels, "features": features}
            rebuilt = reconstruct(inputs.network, **how, return_logits=False).labels[inputs.padding.inside][:n]
            visible = None if inputs.cond is None else inputs.cond[:n, 0][inputs.padding.inside].cpu() > 0
            for seed in range(self.seed, self.seed + self.num_seeds):
                generators = self.generators(names, seed=seed)
                labels, confidence = self._sampled(inputs, features=features, generators=generators)
                confidence = confidence if confidence is None else confidence[:n]
                scored = self._on_cpu(there, labels=labels[:n], confidence=confidence, rebuilt=rebuilt)
                yield Drawn(items, Maps(indices, keys, batch, truth, visible=visible, **scored))
        except torch.OutOfMemoryError:
            size = "x".join(map(str, batch.valid.shape[1:]))
            words = f"{keys[0]}: {size} pixels do not fit the device's memory; score the centre with --crop"
            raise DataError(words) from None

    def _images_at_once(self, number: int) -> int:
        """How many crops to draw: on fused kernels the last batch is as large as others, a new size takes seconds."""
        return number if self.sampler is None or self.crop is None else max(number, fast_batch_size(self.device))

    @property
    def counts_on_device(self) -> bool:
        """Whether pixels are counted where the samples are drawn: on a CPU the metrics are faster."""
        return self.device.type != "cpu"

    def _on_cpu(
        self,
        batch: Batch,
        *,
        labels: UInt8[Tensor, "b n *s"],
        confidence: Float[Tensor, " b *s"] | None,
        rebuilt: Int[Tensor, "b r *s"],
    ) -> dict[str, Any]:
        """The entries of `Maps` that come from the device; nothing waits for it here."""
        found = {} if confidence is None else {"confidence": confidence}
        if is_counted := self.counts_on_device:
            found |= count_maps(
                samples=labels, reconstructions=rebuilt, **metric_arguments(batch, self.info)
            )._asdict()
        if not is_counted or self.info.has_instances or self.extrapolate or self.samples_folder is not None:
            found["labels"] = labels
        if not is_counted or self.extrapolate:
            found["rebuilt"] = rebuilt
        copies, wait = copied_to_cpu(found)
        counts = Counts(*(copies.pop(name).numpy() for name in Counts._fields)) if is_counted else None
        arrays: dict[str, Any] = {name: copies[name].numpy() for name in ("labels", "confidence") if name in copies}
        return {**copies, **arrays, "counts": counts, "wait": wait}

    def distribution_scores(
        self, maps: Maps, *, spacing: Sequence[float] | None = None
    ) -> dict[str, Float64[Tensor, " b"]]:
        """GED², HM-IoU and their relatives, and reconstruction IoU per image; the maps must have arrived."""
        if maps.counts is not None:
            how: dict[str, Any] = {"graders": maps.batch.graders.numpy(), "skip_empty": self.info.has_instances}
            how |= {"representatives": self.representatives}
            if self.info.ndim == 3:
                found = volume_scores_from_counts(maps.counts, spacing=spacing, **how)
            else:
                found = scores_from_counts(maps.counts, **how)
            return {name: torch.from_numpy(values) for name, values in found.items()}
        predicted = {"samples": maps.samples, "reconstructions": maps.reconstructions}
        return image_scores(**predicted, batch=maps.batch, info=self.info, representatives=self.representatives)

    def score(self, source: Source, drawn: Drawn, run: Run = map) -> list[Row]:
        """All metrics for one seed, whose maps have arrived, on the CPU beside drawing; `run` maps over images."""
        named = {}
        for item in drawn.items:
            patient, key = source.identities[item.number]
            named[item.number] = Row(image=item.number, key=key, patient=patient, error=item.error)
        if drawn.maps is not None:
            if self.samples_folder is not None and drawn.maps.labels is not None:
                for key, labels in zip(drawn.maps.keys, drawn.maps.labels, strict=True):
                    write_samples(self.samples_folder, key, labels)
            named |= self._scored(source, drawn.maps, run)
        return [named[item.number] for item in drawn.items]

    def _scored(self, source: Source, drawn: Maps, run: Run) -> dict[int, Row]:
        info = replace(self.info, spacing=source.info.spacing)
        scores, marked = self._image_scores(drawn, info)
        columns = {name: values.tolist() for name, values in scores.items()}
        num_graders, in_subset = drawn.batch.graders.sum(dim=1).tolist(), marked.tolist()
        clustered: Iterable[Any] = [({}, None)] * len(drawn.indices)
        if drawn.truth is not None:
            clustered = run(score_instances, self._instance_maps(drawn, info))
        found = {}
        for i, (index, (of_instances, matches)) in enumerate(zip(drawn.indices, clustered, strict=True)):
            values = {**{name: column[i] for name, column in columns.items()}, **of_instances}
            found[index] = Row(
                image=index,
                key=drawn.keys[i],
                patient=source.identities[index].patient,
                num_graders=num_graders[i],
                subset_b=in_subset[i],
                scores={name: value for name, value in values.items() if math.isfinite(value)},
                matches=matches,
            )
        return found

    def _image_scores(self, drawn: Maps, info: SetInfo) -> tuple[dict[str, Tensor], Tensor]:
        """All scores but those of instances, and which images are in subset B; `info` has the data's spacing."""
        scores, batch = self.distribution_scores(drawn, spacing=info.spacing), drawn.batch
        common = metric_arguments(batch, info)
        if drawn.counts is not None:
            counts = of_volumes(drawn.counts) if info.ndim == 3 else drawn.counts
            marked = torch.from_numpy(subset_b_from_counts(counts, graders=batch.graders.numpy()))
        else:
            marked = torch.as_tensor(subset_b(**common))
            scores |= marginal_scores(samples=drawn.samples, batch=batch, info=info)
            if info.ndim == 3:
                predicted = {"samples": drawn.samples, "reconstructions": drawn.reconstructions}
                scores |= slice_scores(**predicted, batch=batch, info=info)
        if drawn.visible is not None:
            predicted = {"samples": drawn.samples, "reconstructions": drawn.reconstructions}
            scores |= hidden_scores(**predicted, visible=drawn.visible, batch=batch, info=self.info)
        return scores, marked

    def _instance_maps(self, drawn: Maps, info: SetInfo) -> list[InstanceMaps]:
        """What each image's instances are scored on."""
        assert drawn.labels is not None
        assert drawn.truth is not None
        confidence = drawn.confidence if drawn.confidence is not None else [None] * len(drawn.labels)
        maps = zip(drawn.labels, drawn.truth, drawn.batch.valid.numpy(), confidence, strict=True)
        clustering = self.clustering._replace(info=info)
        return [InstanceMaps(clustering, *each) for each in maps]

    def prepare(
        self, samples: Sequence[Sample], keys: Sequence[str]
    ) -> tuple[Batch, Int32[np.ndarray, " b *s"] | None]:
        """Images as evaluation sees them, whole or their centre; and true instances, 0 for none."""
        singles = [as_batch(found) for found in samples]
        if self.crop is not None and len({single.valid.shape for single in singles}) > 1:
            singles = [centre_crop(single, crop=self.crop) for single in singles]
        batch = Batch.cat(singles)
        batch = batch if self.crop is None else centre_crop(batch, crop=self.crop)
        truth = true_instances(batch, self.info) if self.finds_instances else None
        return with_evaluation_ids(batch, keys=keys, info=self.info, seed=self.seed), truth

    def _sampled(
        self, inputs: Inputs, *, features: Features, generators: Sequence[torch.Generator]
    ) -> tuple[UInt8[Tensor, "b n *s"], Float[Tensor, " b *s"] | None]:
        """Samples, and the mean softmax of the stochastic classes if average precision needs it, on the device."""
        wants_scores, inside = self.scope.has_average_precision, inputs.padding.inside
        drawn, total = [], None
        how: dict[str, Any] = {"generator": generators, "return_logits": wants_scores, "features": features}
        for part in self.in_parts(inputs, **how):
            drawn.append(part.labels[inside].to(torch.uint8))
            if wants_scores:
                sums = part.probs[inside][:, :, list(self.info.stochastic_classes)].sum(dim=(1, 2))
                total = sums if total is None else total + sums
        return torch.cat(drawn, dim=1), None if total is None else total / self.num_samples

    def in_parts(
        self, inputs: Inputs, *, generator: Sequence[torch.Generator], return_logits: bool, **how: Any
    ) -> Iterator[Samples]:
        """The samples of the images, as many at a time as memory should hold; further arguments as for `sample`."""
        pixels = math.prod(inputs.image.shape[2:])
        at_once = LOGITS_AT_ONCE // (self.info.num_classes * pixels) if return_logits else LABELS_AT_ONCE // pixels
        how |= {"image": inputs.image, "cond": inputs.cond, "generator": generator, "return_logits": return_logits}
        for start in range(0, self.num_samples, max(1, at_once)):  # the generators continue
            number = min(max(1, at_once), self.num_samples - start)
            yield sample(inputs.network, num_samples=number, **how)

    def inputs(self, batch: Batch, indices: Sequence[int]) -> Inputs:
        """What the network sees of these images, on the device."""
        batch = batch.to(self.device)
        how: dict[str, Any] = {"extrapolate": self.extrapolate, "num_classes": self.info.num_classes}
        image, cond = prior_inputs(batch, places=indices, **how)
        padding = Padding.of(*image.shape[2:], multiples=self.model.size_multiples)
        image, labels = padding.add(image), padding.add(batch.labels).long()
        network = self.sampler or self.model
        if isinstance(self.model, (HPUNet, ProbUNet)) and cond is None:
            network = choose_sampler(self.model, size=tuple(image.shape[2:]), sampler=self.sampler)
        return Inputs(network, image, None if cond is None else padding.add(cond), labels, padding)

    def generators(self, keys: Sequence[str], *, seed: int) -> list[torch.Generator]:
        """One generator per image, keyed by seed and image."""
        return [torch.Generator().manual_seed(image_seed(key, seed=seed)) for key in keys]


def image_seed(key: str, *, seed: int) -> int:
    """The seed of the noise of the image with this key."""
    return int.from_bytes(hashlib.sha256(as_utf8(f"{seed}\0{key}")).digest()[:7])


def weights_sum(model: SegmentationModel) -> str:
    """A hash of all weights."""
    return hash_tensors(sorted(model.state_dict().items()) if isinstance(model, nn.Module) else ())
