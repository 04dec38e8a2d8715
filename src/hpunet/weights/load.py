"""Load a trained model from a run folder or by the name of published weights, and publish one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from hpunet.config.settings import Settings, check_settings, merged
from hpunet.data.types import SetInfo
from hpunet.errors import CheckpointError, ConfigError
from hpunet.models.base import SegmentationModel
from hpunet.models.blocks import CHANNELS_LAST
from hpunet.models.build import build_model
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet
from hpunet.sampling.sample import MAX_TEMPERATURE
from hpunet.utils.files import real_path
from hpunet.weights.checkpoints import Checkpoint, latest_checkpoint, load_checkpoint
from hpunet.weights.hub import read_hub, write_hub
from hpunet.weights.published import (
    POSTERIOR,
    find_published,
    is_hub,
    is_published,
    is_valid_name,
    read_published,
    unknown_name_message,
    write_published,
)
from hpunet.weights.safetensors_io import check_finite, check_same_tensors


@dataclass(frozen=True)
class TrainedModel:
    """A network in evaluation mode, with its averaged weights if available, unless the raw ones were asked for."""

    name: str
    model: HPUNet | ProbUNet
    settings: Settings
    info: SetInfo
    step: int
    device: torch.device
    sampler: SegmentationModel | None = None
    """The same model on fused kernels, to sample with."""
    has_posterior: bool = True
    """False if published weights are for sampling only."""
    credit: str = ""
    """Attribution and licence of published weights."""
    folder: Path | None = None
    """The run's folder, or that of the published weights."""


class _MissingPosterior(nn.Module):
    """Placeholder for a posterior without weights; a random one would reconstruct nonsense."""

    def __init__(self, where: Path) -> None:
        super().__init__()
        self.where = where

    def forward(self, x: Tensor) -> NoReturn:
        """Raise an error that names the missing file."""
        raise CheckpointError(_missing_posterior(self.where))

    encode = forward


def _missing_posterior(where: Path) -> str:
    missing = "the posterior's weights, which it has not" if is_hub(where) else f"{POSTERIOR}, which is missing"
    needs = f"reconstruction, and so evaluation (IoU_rec), needs {missing}"
    return f"{where}: these published weights are for sampling only; {needs}"


def load_trained(
    run: str | Path,
    *,
    checkpoint: str = "latest",
    weights: str = "ema",
    device: torch.device | str | None = None,
    name: str | None = None,
) -> TrainedModel:
    """Load the model of a run, or published weights, to train or evaluate; `hpunet.load` gives a `Predictor`.

    Args:
        run: a run folder, or published weights by folder (also of a model hub) or name ("lidc-hpu-2026"). Folders
            take precedence.
        checkpoint: "latest", or a name in the run's `checkpoints` folder: "best", "step-00001000".
        weights: "ema", averaged ones if the run has them; or "raw", those of the last step.
        device: by default a GPU if there is one.
        name: name in tables; by default that of the folder or of the published weights.
    """
    if weights not in ("ema", "raw"):
        raise ConfigError(f"weights: expected ema or raw, got {weights!r}")
    folder = Path(run)
    chosen = {"checkpoint": checkpoint, "weights": weights}
    where = _device(device)
    if folder.is_file():
        expected = "a run folder written by `hpunet train`, or the name of published weights"
        raise CheckpointError(f"{folder}: is a file; expected {expected}. On the command line, images come after it")
    if not folder.is_dir():
        known = find_published(str(run))
        if known is None:
            words = f"{folder}: no such folder; expected one that `hpunet train` wrote"
            raise CheckpointError(unknown_name_message(str(run)) if is_valid_name(str(run).lower()) else words)
        return _load_published(known, called=str(run), **chosen, device=where, name=name)
    if not any((folder / name).exists() for name in ("settings.json", "checkpoints")):
        if is_published(folder):
            return _load_published(folder, called=None, **chosen, device=where, name=name)
        words = f"{folder}: not a run's folder (no settings.json); expected one that `hpunet train` wrote"
        if hidden := find_published(str(run)):
            words += f". It hides the published weights of this name in {hidden}: folders take precedence"
        raise CheckpointError(words)
    found = _find(folder / "checkpoints", checkpoint)
    if missing := {"settings", "info"} - found.state.keys():
        raise CheckpointError(f"{found.path}: not a training run's checkpoint ({', '.join(sorted(missing))} missing)")
    settings = check_settings(found.state["settings"], where=str(found.path))
    info = SetInfo.from_json(found.state["info"], where=str(found.path))
    model = _model_without_values(settings, info, name=str(found.path))
    averaged = found.tensors.get("averaged", {}) if weights == "ema" else {}
    _fill(model, {**found.tensors.get("model", {}), **averaged}, name=str(found.path))
    return TrainedModel(
        name or real_path(folder).name, model.to(where).eval(), settings, info, found.step, where, folder=folder
    )


def _device(wanted: torch.device | str | None) -> torch.device:
    try:
        device = torch.device(wanted or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ConfigError(f"device: expected cpu, cuda or cuda:0, got {wanted!r}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device: {device}, but torch {torch.__version__} finds no GPU; omit it to use the CPU")
    return device


def _load_published(
    folder: Path, *, called: str | None, checkpoint: str, weights: str, device: torch.device, name: str | None
) -> TrainedModel:
    if weights != "ema":
        raise ConfigError(f"weights: published weights have one set, no {weights!r} ones; omit this option")
    if checkpoint != "latest":
        raise ConfigError(f"checkpoint: published weights have no {checkpoint!r}; omit this option")
    found = (read_hub if is_hub(folder) else read_published)(folder, name=called)
    settings = check_settings(found.settings, where=str(folder))
    info = SetInfo.from_json(found.info, where=str(folder))
    model = _model_without_values(settings, info, name=str(folder))
    if found.posterior is None:
        model.posterior = _MissingPosterior(folder)  # type: ignore[assignment]
    _fill(model, {**found.sampling, **(found.posterior or {})}, name=str(folder))
    about: dict[str, Any] = {"has_posterior": found.posterior is not None, "credit": found.credit, "folder": folder}
    return TrainedModel(name or found.name, model.to(device).eval(), settings, info, found.step, device, **about)


def _model_without_values(settings: Settings, info: SetInfo, *, name: str) -> HPUNet | ProbUNet:
    """The network without values: initialising them would take longer than the rest of loading."""
    sizes: dict[str, Any] = {"in_channels": info.in_channels, "num_classes": info.num_classes}
    try:
        with torch.device("meta"):
            return build_model(settings.model, **sizes, extrapolate=settings.data.extrapolate)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def _fill(model: HPUNet | ProbUNet, weights: Mapping[str, Tensor], *, name: str) -> None:
    check_same_tensors(live=model.state_dict(), saved=weights, name=name)
    check_finite(weights, name=name)
    if model.channels_last:
        weights = {k: t.to(memory_format=CHANNELS_LAST[t.ndim]) if t.ndim > 3 else t for k, t in weights.items()}
    model.load_state_dict(weights, assign=True)


def set_temperature(trained: TrainedModel, temperature: Sequence[float]) -> None:
    """Multiply the prior's standard deviations in place by one factor, or by one per scale."""
    heads = trained.model.prior_heads()
    factors = list(temperature) * (len(heads) if len(temperature) == 1 else 1)
    if len(factors) != len(heads) or not all(0 < factor <= MAX_TEMPERATURE for factor in factors):
        given = ",".join(f"{factor:g}" for factor in temperature)
        expected = f"a number above 0 and up to {MAX_TEMPERATURE:g}, or one per scale ({len(heads)}), coarsest first"
        raise ConfigError(f"temperature: expected {expected}, got {given}")
    for head, factor in zip(heads, factors, strict=True):
        if factor != 1:
            head.scale_sigma(factor)


def set_orientations(trained: TrainedModel, number: int | None) -> TrainedModel:
    """The model, sampling from this number of image orientations; None keeps its own."""
    if number is None:
        return trained
    changed = merged(trained.settings.model_dump(), {"model": {"orientations": number}})
    settings = check_settings(changed, where="--orientations")
    trained.model.orientations = settings.model.orientations
    return replace(trained, settings=settings)


def require_posterior(trained: TrainedModel, *, where: Path) -> None:
    """Raise a `CheckpointError` if the posterior is missing, before long work begins."""
    if not trained.has_posterior:
        raise CheckpointError(_missing_posterior(where))


def publish(
    trained: TrainedModel,
    *,
    out: Path,
    name: str,
    credit: str = "",
    posterior: bool = True,
    hub_license: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Write a folder of published weights (see `published.py`); returns SHA-256 and size of its files.

    With a `hub_license` it has the layout of a model hub (see `hub.py`).
    """
    if posterior and not trained.has_posterior:
        raise ConfigError(f"{trained.name}: has no posterior to export; export it without (--without-posterior)")
    needed = [part for part, module in trained.model.named_children() if module in trained.model.sampling_modules()]
    weights: Mapping[str, Tensor] = trained.model.state_dict()
    sampling = {key: tensor for key, tensor in weights.items() if key.partition(".")[0] in needed}
    rest = {key: tensor for key, tensor in weights.items() if key not in sampling}
    about = {"name": name, "step": trained.step, "credit": credit, "info": trained.info.as_json()}
    about["settings"] = trained.settings.model_dump(mode="json")
    if hub_license is not None:
        return write_hub(out, about=about, weights={**sampling, **(rest if posterior else {})}, license=hub_license)
    return write_published(out, about=about, sampling=sampling, posterior=rest if posterior else None)


def _find(folder: Path, checkpoint: str) -> Checkpoint:
    if checkpoint != "latest":
        if checkpoint != Path(checkpoint).name:
            raise ConfigError(f"checkpoint: expected latest, best or a name (step-00001000), got {checkpoint!r}")
        try:
            return load_checkpoint(folder / checkpoint)
        except CheckpointError as error:
            if (folder / checkpoint).exists() or not folder.is_dir():
                raise
            there = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
            raise CheckpointError(f"{error}; there are {', '.join(['latest', *there])}") from None
    if (found := latest_checkpoint(folder)) is None:
        raise CheckpointError(f"{folder}: has no checkpoint yet; `hpunet train` writes them")
    return found
