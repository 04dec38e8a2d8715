"""A trained model, ready to use: from a run's folder to a network with its weights, its settings and its classes."""

from dataclasses import dataclass
from pathlib import Path

import torch

from hpunet.build import build_model
from hpunet.checkpoint import Checkpoint, latest_checkpoint, load_checkpoint
from hpunet.config import Settings, check_settings
from hpunet.data.base import SetInfo
from hpunet.errors import CheckpointError
from hpunet.models.hpunet import HPUNet
from hpunet.models.protocol import SegmentationModel
from hpunet.models.punet import ProbUNet
from hpunet.weights import check_fits


@dataclass(frozen=True)
class TrainedModel:
    """A network with its averaged weights, where it has any, in evaluation mode."""

    name: str
    model: HPUNet | ProbUNet
    settings: Settings
    info: SetInfo
    """What the training data were: classes, which of them are stochastic, image channels."""
    step: int
    device: torch.device
    sampler: SegmentationModel | None = None
    """What draws hypotheses instead of the model itself: the same model on fused kernels."""


def load(
    run: str | Path, *, checkpoint: str = "latest", device: torch.device | str | None = None, name: str | None = None
) -> TrainedModel:
    """The model that a run has trained.

    Args:
        run: the folder that `hpunet train` wrote.
        checkpoint: "latest", or a name in the run's `checkpoints` folder: "best", "step-00001000".
        device: where to put it; a GPU if there is one.
        name: what to call it in tables; the folder's name by default.
    """
    folder = Path(run)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; expected one that `hpunet train` wrote")
    if not any((folder / name).exists() for name in ("settings.json", "checkpoints")):
        raise CheckpointError(f"{folder}: not a run's folder (no settings.json); expected one `hpunet train` wrote")
    found = _find(folder / "checkpoints", checkpoint)
    if missing := {"settings", "info"} - found.state.keys():
        raise CheckpointError(f"{found.path}: not a training run's checkpoint ({', '.join(sorted(missing))} missing)")
    settings = check_settings(found.state["settings"], where=str(found.path))
    info = SetInfo.from_json(found.state["info"], where=str(found.path))
    model = build_model(settings.model, info=info, extrapolate=settings.data.extrapolate)
    weights = {**found.tensors.get("model", {}), **found.tensors.get("averaged", {})}
    check_fits(live=model.state_dict(), saved=weights, name=str(found.path))
    model.load_state_dict(weights)
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return TrainedModel(
        name=name or folder.resolve().name,
        model=model.to(where).eval(),
        settings=settings,
        info=info,
        step=found.step,
        device=where,
    )


def _find(folder: Path, checkpoint: str) -> Checkpoint:
    if checkpoint != "latest":
        try:
            return load_checkpoint(folder / checkpoint)
        except CheckpointError as error:
            if (folder / checkpoint).exists() or not folder.is_dir():
                raise
            there = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
            raise CheckpointError(f"{error}; there are {', '.join(['latest', *there])}") from None
    found = latest_checkpoint(folder)
    if found is None:
        raise CheckpointError(f"{folder}: has no checkpoint yet; `hpunet train` writes them")
    return found
