"""The state of a run in memory: model, loss, optimiser and data, built from settings; runs the steps."""

import math
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hpunet.config.settings import Settings
from hpunet.data.field_of_view import measured
from hpunet.data.loader import TrainingSteps
from hpunet.data.packs import Pack, open_pack
from hpunet.errors import ConfigError, DivergenceError
from hpunet.kernels.dispatch import fused_draw, fused_network, reason_against_fused, use_fused_loss
from hpunet.models.build import build_model
from hpunet.objectives.base import Terms
from hpunet.training.ahead import ExamplesAhead
from hpunet.training.build import autocast_for, build_example_builder, build_loss, build_optimiser, learning_rate_at
from hpunet.training.capture import Captured
from hpunet.training.step import TrainingStep
from hpunet.utils.distributed import all_reduce, copy_from_first, rank, world_size
from hpunet.weights.run_state import optimiser_tensors, seed_generators


class Training:
    """A run in memory; `train` drives it and keeps count in `step`."""

    def __init__(self, settings: Settings, *, pack_path: Path, run: Path, device: torch.device) -> None:
        self.settings, self.run, self.device = settings, run, device
        seed_generators(settings.seed)  # initial weights; everything later is keyed by step
        self.pack = _on_device(open_pack(pack_path, split="train"), device)
        info = self.pack.info
        self.trained_on = measured(self.pack)
        data: dict[str, Any] = {"in_channels": info.in_channels, "num_classes": info.num_classes}
        self.model = build_model(settings.model, **data, extrapolate=settings.data.extrapolate).to(device)
        copy_from_first(list(self.model.parameters()))  # other processors may draw other bits
        self.model.check_values = False  # packing has checked the data
        adam, num_pieces = settings.optimiser, settings.optimiser.accumulation_steps
        self.loss = build_loss(settings.objective, info=info, num_pieces=num_pieces).to(device)
        share = adam.batch_size // world_size()
        if share % num_pieces:
            what = f"the {share} images of each of {world_size()} processes"
            raise ConfigError(f"optimiser.accumulation_steps: {num_pieces} does not divide {what}")
        fused = self._try_fused(images=share // num_pieces)
        if fused is not None:
            use_fused_loss(self.loss.objective)
        network: nn.Module = self.model if fused is None else fused
        self.optimiser = build_optimiser(adam, model=self.model, loss=self.loss, device=device, network=network)
        if adam.compile:
            network = torch.compile(network)  # type: ignore[assignment]
        self.train_step = TrainingStep(
            model=self.model,
            loss=self.loss,
            optimiser=self.optimiser,
            example_builder=build_example_builder(settings, info=info),
            num_pieces=num_pieces,
            autocast=autocast_for(adam.precision, device),
            grad_clip=adam.grad_clip,
            ema_decay=adam.ema_decay,
            network=network,
            draw=fused_draw() if self.why_not_fused is None else None,
        )
        self.steps = TrainingSteps(
            self.pack,
            batch_size=adam.batch_size,
            seed=settings.seed,
            rank=rank(),
            world_size=world_size(),
            crop=settings.data.crop,
            augmentation=settings.augmentation,
        )
        self.positions = torch.arange(rank() * share, (rank() + 1) * share, device=device)
        self.train_step.create_moments()
        self.step = 0
        self.best: float | None = None
        self.started_from: dict[str, Any] | None = None  # name and iteration of the trained model

    def _try_fused(self, *, images: int) -> nn.Module | None:
        """The network on fused kernels, or None; sets `why_not_fused`, and `fell_back` if kernels failed.

        Processes agree: if one cannot use fused kernels, none does.
        """
        settings, network = self.settings, None
        self.why_not_fused, self.fell_back = _why_not_fused(settings, model=self.model, device=self.device), False
        if self.why_not_fused is None:
            samples = settings.objective.energy_samples if settings.objective.energy > 0 else 0
            try:
                network = fused_network(self.model, size=settings.data.crop, images=images, prior_samples=samples)
            except ConfigError as error:
                if settings.optimiser.kernels == "fused":
                    raise ConfigError(f"optimiser.kernels: {error}; use auto or torch") from error
                self.why_not_fused, self.fell_back = str(error), True
        if all_reduce(torch.tensor(float(network is None))) and network is not None:
            self.why_not_fused, self.fell_back = "another process cannot use fused kernels", True
        return None if self.fell_back else network

    def state_tensors(self) -> dict[str, dict[str, Tensor]]:
        """The tensors of a checkpoint; the step and its counters complete the state."""
        averaged = zip((name for name, _ in self.model.named_parameters()), self.train_step.averaged, strict=False)
        return {
            "model": dict(self.model.state_dict()),
            "loss": dict(self.loss.state_dict()),
            "optimiser": optimiser_tensors(self.optimiser)[0],
            "averaged": dict(averaged),
        }

    def run_steps(self) -> Generator[tuple[Terms, Tensor], None, None]:
        """Train from the current step to the last; yields terms and gradient norm of each step."""
        objective, end = self.settings.objective, self.settings.optimiser.iterations
        for last in (min(objective.energy_start, end), end):  # without the energy distance, then with it
            self.loss.use_energy = objective.energy > 0 and last > objective.energy_start
            if self.step < last:
                yield from self._steps_to(last)

    def _steps_to(self, end: int) -> Iterator[tuple[Terms, Tensor]]:
        if self.settings.optimiser.cuda_graph and self.can_be_captured():
            yield from self._graph_steps(end)
            return
        for batch in self.steps.iterate(self.step, end, num_workers=self.settings.data.num_workers):
            self._set_learning_rate()
            yield self.train_step(batch.to(self.device), step=self.step, positions=self.positions)

    def can_be_captured(self) -> bool:
        """Whether a step needs nothing from the host, in all processes: data on the GPU, images of one size."""
        can = self.pack.device.type == "cuda" and len(set(self.pack.sizes)) == 1
        return not all_reduce(torch.tensor(float(not can)))

    def _graph_steps(self, end: int) -> Iterator[tuple[Terms, Tensor]]:
        """The same with the step captured: only examples, step and learning rate change.

        The examples of a step are made beside the step before.
        """
        step = torch.tensor(self.step, device=self.device)
        ahead = ExamplesAhead(self.train_step, self.steps, positions=self.positions, first=self.step)
        example = ahead.example

        def run() -> tuple[Terms, Tensor]:
            return self.train_step.train_on(example, step=step, positions=self.positions)

        if hasattr(self.optimiser, "flatten_moments"):
            self.optimiser.flatten_moments()
        state = [t for group in self.state_tensors().values() for t in group.values()]
        captured = Captured(run, state=[*state, self.train_step.skipped, self.train_step.skipped_in_a_row])
        while self.step < end:
            step.fill_(self.step)
            ahead.take(self.step)
            self._set_learning_rate()
            captured.replay()
            yield captured.result

    def _set_learning_rate(self) -> None:
        rate = learning_rate_at(self.settings.optimiser, self.step)
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def numbers(self, terms: Terms, norm: Tensor) -> dict[str, float]:
        """The numbers to log for the last step; reads from the device."""
        values = {"loss": float(terms.loss), "rec": float(terms.rec_per_pixel), "kl": float(terms.kl.sum())}
        values |= {f"kl_{i}": float(value) for i, value in enumerate(terms.kl)}
        values["lr"] = learning_rate_at(self.settings.optimiser, self.step - 1)
        values |= {"gradient_norm": float(norm), "skipped": float(self.train_step.skipped)}
        if terms.energy is not None:
            values["energy"] = float(terms.energy)
        if terms.lambda_ is not None and terms.constraint is not None:
            values |= {"lambda": float(terms.lambda_), "constraint": float(terms.constraint)}
        in_a_row = int(self.train_step.skipped_in_a_row)
        if in_a_row >= self.settings.optimiser.max_consecutive_skips:
            what = [name for name, value in values.items() if not math.isfinite(value)]
            gradients = ((name, p.grad) for name, p in self.model.named_parameters() if p.grad is not None)
            what += [f"gradient of {name}" for name, gradient in gradients if not gradient.isfinite().all()][:1]
            raise DivergenceError(
                f"{in_a_row} consecutive steps were not finite, the last at iteration {self.step} "
                f"({', '.join(what)}); they left the weights unchanged. Try optimiser.grad_clip slightly above the "
                "earlier gradient_norm in log.jsonl, or a lower learning rate"
            )
        return values


def _on_device(pack: Pack, device: torch.device) -> Pack:
    """The pack on the GPU if it takes at most half of the free memory there."""
    fits = device.type == "cuda" and pack.nbytes < torch.cuda.mem_get_info(device)[0] // 2
    return pack.to(device) if fits else pack


def _why_not_fused(settings: Settings, *, model: nn.Module, device: torch.device) -> str | None:
    """Why steps run on plain torch; None if they run on fused kernels."""
    wish = settings.optimiser.kernels
    if wish == "torch":
        return "as requested"
    reason = reason_against_fused(
        model,
        device=device,
        precision=settings.optimiser.precision,
        activation_checkpointing=settings.model.activation_checkpointing,
        compiled=settings.optimiser.compile,
        prior_draws=settings.objective.energy > 0,
    )
    if wish == "fused" and reason is not None:
        raise ConfigError(f"optimiser.kernels: {reason}; use auto or torch")
    return reason
