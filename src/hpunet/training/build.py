"""From settings to the things they describe: the one place where the settings tree meets the modules."""

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
from hpunet.objectives.loss import ELBO, GECO, parameter_groups
from hpunet.training.step import ExampleBuilder


def build_objective(settings: ObjectiveSettings, *, num_pieces: int) -> ELBO | GECO:
    """The objective. A batch in pieces moves GECO on piece by piece, at the same speed altogether."""
    top_k = None if settings.top_k == "all" else settings.top_k
    if settings.kind == "elbo":
        return ELBO(beta=settings.beta, prior_pull=settings.prior_pull, top_k=top_k, stochastic=settings.stochastic)
    return GECO(
        kappa=settings.kappa,
        decay=settings.decay ** (1 / num_pieces),
        rate=settings.rate,
        speed=settings.speed,
        lambda_max=math.inf if settings.lambda_max is None else settings.lambda_max,
        prior_pull=settings.prior_pull,
        kl_warm_up=[num_pieces * end for end in settings.kl_warm_up],
        top_k=top_k,
        stochastic=settings.stochastic,
    )


def build_optimiser(
    settings: OptimiserSettings, *, model: nn.Module, objective: nn.Module, device: torch.device, network: Any = None
) -> torch.optim.Adam:
    """Adam with the paper's weight decay; on a GPU its learning rate is a tensor there, for CUDA graphs.

    `network` is what computes the model; one on fused kernels has an Adam of its own.
    """
    first = settings.learning_rates[0]
    on_gpu = device.type == "cuda"
    make: Callable[..., torch.optim.Adam] = getattr(network, "adam", torch.optim.Adam)
    return make(
        parameter_groups(model, objective, weight_decay=settings.weight_decay),
        lr=torch.tensor(first, device=device) if on_gpu else first,
        fused=True,
        capturable=on_gpu,
    )


def build_example_builder(settings: Settings, *, info: SetInfo) -> ExampleBuilder:
    """How batches become examples."""
    if settings.objective.energy and info.has_instances and settings.data.extrapolate:
        raise ConfigError("objective.energy: with instances not for data.extrapolate, where ids are given")
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
    """What to run the network in; sets TF32 for the process as asked."""
    if device.type != "cuda":
        return nullcontext
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    return partial(torch.autocast, "cuda", dtype=torch.bfloat16) if precision == "bf16" else nullcontext
