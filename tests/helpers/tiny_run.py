"""A run so small that a step takes milliseconds: settings, a pack of synthetic lesions, steps in float64, a model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hpunet.config.settings import Settings, check_settings, merged, parse_assignments
from hpunet.data.batch import Batch
from hpunet.data.open import open_splits
from hpunet.data.packs import Pack, open_pack, write_pack
from hpunet.data.types import SetInfo
from hpunet.models.build import build_model
from hpunet.models.hpunet import HPUNet
from hpunet.training.build import build_example_builder, build_loss, build_optimiser
from hpunet.training.examples import Example, ExampleBuilder
from hpunet.training.step import TrainingStep

OPTIONS = {"num_images": 12, "size": 16}
BASE: dict[str, Any] = {
    "model": {"channels": [4, 6], "latent_dims": [1], "blocks_per_scale": 1},
    "data": {"crop": [16, 16], "options": OPTIONS},
    "objective": {"top_k": 0.1},
    "optimiser": {"iterations": 12, "batch_size": 4, "learning_rates": [1e-3]},
    "logging": {"log_every": 1, "checkpoint_every": 5, "keep_checkpoints": 100}
    | {"validate_every": 6, "validate_images": 2, "validate_samples": 2},
}
WITHOUT_GECO = ("objective.kind=elbo", "objective.top_k=all")
PUNET = ("model.kind=punet", "model.latent_dims=[2]", *WITHOUT_GECO)


def untrained_model(info: SetInfo, *, extrapolate: bool = False, ndim: int = 2) -> HPUNet:
    torch.manual_seed(1)
    model = HPUNet(
        in_channels=info.in_channels,
        num_classes=info.num_classes,
        channels=(4, 8, 8),
        latent_dims=(1, 1),
        blocks_per_scale=1,
        cond_channels=1 + info.num_classes if extrapolate else 0,
        ndim=ndim,
    )
    with torch.no_grad():  # untrained, most classes would never show
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return model.eval()


def tiny_settings(*changes: str) -> Settings:
    return check_settings(merged(BASE, parse_assignments(changes)), where="tiny")


def write_tiny_pack(path: Path) -> Path:
    return write_pack(open_splits("synthetic:lesions", options=OPTIONS), path)


class DoubleExampleBuilder(ExampleBuilder):
    def __call__(self, batch: Batch, **how: Any) -> Example:
        example = super().__call__(batch, **how)
        return replace(example, image=example.image.double())


def tiny_step(settings: Settings, pack: Pack, *, double: bool) -> TrainingStep:
    """The step that training would take."""
    torch.manual_seed(settings.seed)
    model: Any = build_model(settings.model, in_channels=pack.info.in_channels, num_classes=pack.info.num_classes)
    num_pieces = settings.optimiser.accumulation_steps
    loss = build_loss(settings.objective, info=pack.info, num_pieces=num_pieces)
    if double:
        model, loss = model.double(), loss.double()
    model.check_values = False
    example_builder = build_example_builder(settings, info=pack.info)
    step = TrainingStep(
        model=model,
        loss=loss,
        optimiser=build_optimiser(settings.optimiser, model=model, loss=loss, device=torch.device("cpu")),
        example_builder=DoubleExampleBuilder(**vars(example_builder)) if double else example_builder,
        num_pieces=num_pieces,
        grad_clip=settings.optimiser.grad_clip,
        ema_decay=settings.optimiser.ema_decay,
    )
    step.create_moments()
    return step


def tiny_batch(pack: Pack, indices: Sequence[int]) -> Batch:
    return pack.batch(torch.tensor(indices))


def open_tiny(path: Path) -> Pack:
    return open_pack(path, split="train")
