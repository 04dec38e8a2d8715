"""One optimisation step, from stored pixels to new weights, all of it on the device.

Every random number is keyed by (seed, step, position in the batch), so that a step is a pure function of the weights
and its number: the same after a resume, and the same when several processes share the batch. Nothing is read back
from the device, so on a GPU the whole step can be one CUDA graph.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hpunet.config.settings import AugmentationSettings
from hpunet.data.augment import augment
from hpunet.data.batch import Batch
from hpunet.data.extrapolation import NUM_UNIFORMS, hide
from hpunet.data.instance_ids import assign_ids, draw_id_table
from hpunet.data.types import SetInfo
from hpunet.objectives.loss import EnergyDistance, PairAgreement, Terms
from hpunet.utils.keyed_random import Draw, Stream, drawing_by, keyed_normal, keyed_uniform

NUM_TABLE_IDS = 512
"""Instances of an image that get an id of their own draw; further ones share."""


@dataclass(frozen=True)
class Example:
    """What the network is shown: one grader's map an image."""

    image: Float[Tensor, "b c h w"]
    labels: Int[Tensor, "b h w"]
    valid: Bool[Tensor, "b h w"]
    cond: Float[Tensor, "b e h w"] | None
    gradings: Int[Tensor, "b r h w"] | None = None
    """All graders' maps as stored (instances, not ids), and which of them exist; only if they were asked for."""
    graders: Bool[Tensor, "b r"] | None = None


@dataclass(frozen=True)
class ExampleBuilder:
    """How a batch becomes examples: augmentation, choice of a grader, random ids, hidden parts."""

    info: SetInfo
    crop: tuple[int, int]
    augmentation: AugmentationSettings
    extrapolate: bool
    seed: int

    def __call__(
        self,
        batch: Batch,
        *,
        step: int | Int[Tensor, ""],
        positions: Int[Tensor, " b"],
        all_gradings: bool = False,
    ) -> Example:
        """The examples of a batch at a step; `positions` are the images' places in the whole batch.

        With `all_gradings` they have the maps of all graders besides the chosen one's.
        """

        def uniform(stream: Stream, count: int) -> Tensor:
            return keyed_uniform(seed=self.seed, step=step, index=positions, stream=stream, count=count)

        choice = uniform(Stream.GRADER, 1)[:, 0]
        if not all_gradings:  # chosen first, so that the others' maps need no warping
            chosen = one_grader(batch, choice).unsqueeze(1)
            batch = replace(batch, labels=chosen, graders=batch.graders.any(dim=1, keepdim=True))
        batch = augment(
            batch,
            settings=self.augmentation,
            crop_size=self.crop,
            seed=self.seed,
            step=step,
            index=positions,
        )
        labels = one_grader(batch, choice) if all_gradings else batch.labels[:, 0]
        every = {"gradings": batch.labels, "graders": batch.graders} if all_gradings else {}
        if self.info.has_instances:
            table = draw_id_table(uniform(Stream.IDS, NUM_TABLE_IDS), self.info.num_random_ids)
            labels = assign_ids(
                labels.unsqueeze(1),
                num_fixed_classes=self.info.num_fixed_classes,
                num_random_ids=self.info.num_random_ids,
                table=table,
            ).squeeze(1)
        if not self.extrapolate:
            return Example(image=batch.image, labels=labels, valid=batch.valid, cond=None, **every)
        hidden = hide(
            image=batch.image,
            labels=labels,
            uniform=uniform(Stream.HIDE, NUM_UNIFORMS),
            num_classes=self.info.num_classes,
        )
        return Example(image=hidden.image, labels=labels, valid=batch.valid, cond=hidden.cond, **every)


def one_grader(batch: Batch, uniform: Float[Tensor, " b"]) -> Int[Tensor, "b h w"]:
    """The labels of one of the graders that exist, each as likely as the others."""
    number = (uniform * batch.graders.sum(dim=1)).long()  # which of the existing ones
    reached = batch.graders.cumsum(dim=1) > number.unsqueeze(1)
    chosen = reached.int().argmax(dim=1)
    return batch.labels[torch.arange(len(chosen), device=chosen.device), chosen]


class TrainingStep:
    """Forward, backward, guard, Adam, averaging; its counters live on the device.

    A step whose loss or gradient is not finite leaves weights, moments, averaged weights and the objective's state
    as they are (Adam by its `found_inf`, which fused ones honour), and is counted. Losses and gradients are those of
    all processes, so all of them skip the same steps.
    """

    def __init__(
        self,
        *,
        model: Any,
        objective: nn.Module,
        optimiser: torch.optim.Optimizer,
        example_builder: ExampleBuilder,
        num_pieces: int = 1,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
        grad_clip: float | None = None,
        ema_decay: float | None = None,
        energy: float = 0.0,
        energy_samples: int = 4,
        energy_weighting: str = "pixels",
        energy_background: float = 0.0,
        network: Any = None,
        draw: Draw | None = None,
    ) -> None:
        self.model, self.objective, self.optimiser, self.example_builder = (
            model,
            objective,
            optimiser,
            example_builder,
        )
        self.network = network or model
        """What is called: the model itself, compiled, or wrapped for several processes."""
        self.draw = draw
        """What draws random numbers on a GPU, if not tensor operations."""
        self.num_pieces, self.autocast, self.grad_clip, self.decay = num_pieces, autocast, grad_clip, ema_decay
        self.energy, self.energy_samples = energy, energy_samples
        self.uses_energy = energy > 0
        """Whether steps draw samples from the prior for it; it may begin later."""
        self.energy_distance = energy_distance(
            example_builder.info, alike=energy_weighting, background=energy_background
        )
        self.parameters = [p for group in optimiser.param_groups for p in group["params"]]
        device = self.parameters[0].device
        self.averaged = [p.detach().clone() for p in model.parameters()] if ema_decay else []
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        self.skipped_in_a_row = torch.zeros((), dtype=torch.int64, device=device)

    def __call__(
        self, batch: Batch, *, step: int | Int[Tensor, ""], positions: Int[Tensor, " b"]
    ) -> tuple[Terms, Float[Tensor, ""]]:
        """Train on a batch; returns its terms and the norm of the gradient, before any clipping."""
        with drawing_by(self.draw):
            return self._train(batch, step=step, positions=positions)

    def _train(
        self, batch: Batch, *, step: int | Int[Tensor, ""], positions: Int[Tensor, " b"]
    ) -> tuple[Terms, Float[Tensor, ""]]:
        example = self.example_builder(batch, step=step, positions=positions, all_gradings=self.uses_energy)
        self.optimiser.zero_grad(set_to_none=True)
        objective_before = [buffer.clone() for buffer in self.objective.buffers()]
        pieces = [
            slice(i * len(positions) // self.num_pieces, (i + 1) * len(positions) // self.num_pieces)
            for i in range(self.num_pieces)
        ]
        terms_of_pieces = []
        for piece in pieces:
            # Processes exchange gradients once a step, with the last piece.
            wait = isinstance(self.network, DistributedDataParallel) and piece is not pieces[-1]
            with self.network.no_sync() if wait else nullcontext():
                terms_of_pieces.append(self._backward(example, piece, step=step, places=positions[piece]))
        terms = combine_pieces(terms_of_pieces)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        # In float64 also the squares of gradients that no float32 could hold: such a step is clipped, not skipped.
        norms = torch._foreach_norm(gradients, dtype=torch.float64 if self.grad_clip else None)
        norm = torch.stack(norms).norm()
        if self.grad_clip:
            torch._foreach_mul_(gradients, (self.grad_clip / (norm + 1e-6)).clamp(max=1).float())
        finite = terms.loss.isfinite() & norm.isfinite()
        self.optimiser.found_inf = (~finite).to(torch.float32)  # type: ignore[attr-defined]
        self.optimiser.step()
        self.skipped += ~finite
        self.skipped_in_a_row.copy_(torch.where(finite, 0, self.skipped_in_a_row + 1))
        for buffer, before in zip(self.objective.buffers(), objective_before, strict=True):
            buffer.copy_(torch.where(finite, buffer, before))
        if self.decay is not None:
            change = torch._foreach_sub([p.detach() for p in self.model.parameters()], self.averaged)
            torch._foreach_mul_(change, finite.to(change[0].dtype) * (1 - self.decay))
            torch._foreach_add_(self.averaged, change)
        return terms, norm

    def create_moments(self) -> None:
        """Have Adam create its moments, as zeros, by a step that is skipped: then there is a state to save."""
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimiser.found_inf = torch.ones((), device=self.skipped.device)  # type: ignore[attr-defined]
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def _backward(
        self, example: Example, piece: slice, *, step: int | Int[Tensor, ""], places: Int[Tensor, " b"]
    ) -> Terms:
        """Gradients of a piece of the batch, added to those that are there."""
        labels = example.labels[piece].long()
        key: dict[str, Any] = {"seed": self.example_builder.seed, "step": step, "index": places}
        h, w = labels.shape[1:]
        uniform = keyed_uniform(**key, stream=Stream.GUMBEL, count=h * w)
        prior_noise = None
        if self.uses_energy:
            prior_noise = self._noise(key, h, w, stream=Stream.PRIOR, draws=self.energy_samples)
        with self.autocast():
            output = self.network(
                image=example.image[piece],
                labels=labels,
                cond=None if example.cond is None else example.cond[piece],
                noise=[scale.squeeze(1) for scale in self._noise(key, h, w, stream=Stream.POSTERIOR)],
                prior_noise=prior_noise,
            )
        terms: Terms = self.objective(
            output, labels=labels, valid=example.valid[piece], gumbel=gumbel_from_uniform(uniform).view(-1, h, w)
        )
        if self.uses_energy:
            assert example.gradings is not None
            assert example.graders is not None
            energy = self.energy_distance(
                sample_logits=output.sample_logits,
                gradings=example.gradings[piece],
                graders=example.graders[piece],
                valid=example.valid[piece],
            )
            terms = replace(terms, loss=terms.loss + self.energy * energy, energy=energy.detach())
        (terms.loss / self.num_pieces).backward()
        return terms

    def _noise(self, key: dict[str, Any], h: int, w: int, *, stream: Stream, draws: int = 1) -> list[Tensor]:
        """Normal noise (b, draws, z, h_i, w_i) for each scale."""
        shapes = self.model.latent_shapes(h, w)
        sizes = [prod(shape) for shape in shapes]
        flat = keyed_normal(**key, stream=stream, count=draws * sum(sizes)).unflatten(1, (draws, sum(sizes)))
        return [part.unflatten(2, shape) for part, shape in zip(flat.split(sizes, dim=2), shapes, strict=True)]


def energy_distance(info: SetInfo, *, alike: str, background: float) -> EnergyDistance | PairAgreement:
    """How far samples are from the labels: by classes, or by pairs of pixels where there are instances."""
    if info.has_instances:
        return PairAgreement(
            num_fixed_classes=info.num_fixed_classes,
            num_random_ids=info.num_random_ids,
            num_instances=NUM_TABLE_IDS,
            alike=alike,
            background=background,
        )
    everything = range(1, info.num_classes)  # where the data do not say what graders differ in
    return EnergyDistance(classes=info.stochastic_classes or everything)


def combine_pieces(pieces: Sequence[Terms]) -> Terms:
    """The terms of a batch from those of its equal pieces; GECO's constraint and λ are those of the last one."""
    energies = [terms.energy for terms in pieces if terms.energy is not None]
    return replace(
        pieces[-1],
        loss=torch.stack([terms.loss.detach() for terms in pieces]).mean(),
        rec=torch.stack([terms.rec for terms in pieces]).mean(),
        kl=torch.stack([terms.kl for terms in pieces]).mean(dim=0),
        num_kept=torch.stack([terms.num_kept for terms in pieces]).sum(),
        energy=None if not energies else torch.stack(energies).mean(),
        batch_size=sum(terms.batch_size for terms in pieces),
    )


def gumbel_from_uniform(uniform: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    """Standard Gumbel noise from multiples of 2^-24 in [0, 1), taken half a step higher, so that it is finite."""
    exponential = -(uniform + 2.0**-25).log()
    return -exponential.clamp(min=2.0**-25).log()  # the last of them would be rounded up to 1
