"""Build loss, optimiser and examples from settings: the one place where the settings tree meets the modules."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from hpunet.config.settings import ObjectiveSettings, OptimiserSettings, Settings
from hpunet.data.types import SetInfo
from hpunet.errors import ConfigError
from hpunet.objectives.elbo import ELBO
from hpunet.objectives.energy import EnergyDistance, PairAgreement
from hpunet.objectives.geco import GECO
from hpunet.objectives.loss import Loss, parameter_groups
from hpunet.training.examples import NUM_TABLE_IDS, ExampleBuilder


def build_loss(settings: ObjectiveSettings, *, info: SetInfo, num_pieces: int) -> Loss:
    """The loss, with the energy distance that fits the data where its weight is not 0."""
    energy = build_energy(settings, info=info) if settings.energy else None
    objective = build_objective(settings, num_pieces=num_pieces)
    return Loss(objective, energy=energy, energy_weight=settings.energy, energy_samples=settings.energy_samples)


def build_objective(settings: ObjectiveSettings, *, num_pieces: int) -> ELBO | GECO:
    """ELBO or GECO. With a batch in pieces, GECO updates once per piece, at the same total speed."""
    common: dict[str, Any] = {
        "prior_gradient_scale": settings.prior_gradient_scale,
        "top_k": None if settings.top_k == "all" else settings.top_k,
        "stochastic": settings.stochastic,
    }
    if settings.kind == "elbo":
        return ELBO(beta=settings.beta, **common)
    return GECO(
        kappa=settings.kappa,
        constraint_ema_decay=settings.constraint_ema_decay ** (1 / num_pieces),
        lambda_gradient_scale=settings.lambda_gradient_scale,
        lambda_speed=settings.lambda_speed,
        lambda_max=math.inf if settings.lambda_max is None else settings.lambda_max,
        kl_warm_up=[num_pieces * end for end in settings.kl_warm_up],
        **common,
    )


def build_energy(settings: ObjectiveSettings, *, info: SetInfo) -> EnergyDistance | PairAgreement:
    """The energy distance of classes, or of instances where the data have them."""
    if info.has_instances:
        return PairAgreement(
            num_fixed_classes=info.num_fixed_classes,
            num_random_ids=info.num_random_ids,
            num_instances=NUM_TABLE_IDS,
            weighting=settings.energy_weighting,
            background_weight=settings.energy_background,
        )
    # By default all but background: the data do not say which classes graders differ in.
    return EnergyDistance(classes=info.stochastic_classes or range(1, info.num_classes))


def build_optimiser(
    settings: OptimiserSettings, *, model: nn.Module, loss: nn.Module, device: torch.device, network: Any = None
) -> torch.optim.Adam:
    """Adam with the paper's weight decay; a `network` on fused kernels brings its own Adam."""
    groups = parameter_groups(model, loss, weight_decay=settings.weight_decay)
    lr, on_gpu = settings.learning_rates[0], device.type == "cuda"
    make: Callable[..., torch.optim.Adam] = getattr(network, "adam", torch.optim.Adam)
    # On a GPU the learning rate is a tensor, for CUDA graphs.
    return make(groups, lr=torch.tensor(lr, device=device) if on_gpu else lr, fused=True, capturable=on_gpu)


def build_example_builder(settings: Settings, *, info: SetInfo) -> ExampleBuilder:
    """The `ExampleBuilder` of a run."""
    if settings.objective.energy and info.has_instances and settings.data.extrapolate:
        raise ConfigError("objective.energy: with instances not for data.extrapolate, where ids are given")
    if settings.data.extrapolate == "future" and info.axis0 != "time":
        raise ConfigError(f'data.extrapolate: "future" is for series over time; {info.kind} data have none')
    return ExampleBuilder(
        info=info,
        crop=settings.data.crop,
        augmentation=settings.augmentation,
        extrapolate=settings.data.extrapolate,
        seed=settings.seed,
    )


def learning_rate_at(settings: OptimiserSettings, step: int) -> float:
    """The learning rate of a step: piecewise constant."""
    return settings.learning_rates[sum(step >= boundary for boundary in learning_rate_boundaries(settings))]


def learning_rate_boundaries(settings: OptimiserSettings) -> list[int]:
    """The steps at which the next learning rate starts; by default all have an equal share."""
    num_rates = len(settings.learning_rates)
    return settings.boundaries or [settings.iterations * i // num_rates for i in range(1, num_rates)]


def autocast_for(precision: str, device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """The context for the network's forward pass; also sets TF32 for the process."""
    if device.type != "cuda":
        return nullcontext
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    return partial(torch.autocast, "cuda", dtype=torch.bfloat16) if precision == "bf16" else nullcontext
