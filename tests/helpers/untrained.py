"""Untrained networks whose samples differ, as `hpunet.load` would give them."""

from dataclasses import replace
from typing import Any

import torch
from tiny_run import tiny_settings

from hpunet.data.synthetic.source import INFO
from hpunet.data.types import SetInfo
from hpunet.models.hpunet import HPUNet
from hpunet.predict.predictor import Predictor
from hpunet.weights.load import TrainedModel

CELLS = SetInfo(
    kind="folder",
    in_channels=1,
    num_graders=1,
    fixed_classes=("background",),
    num_random_ids=5,
    stochastic_classes=(1, 2, 3, 4, 5),
)
VOLUMES = replace(INFO["nodules3d"], image_size=(6, 24, 24))


def make_trained(info: SetInfo = INFO["lesions"], **changes: Any) -> TrainedModel:
    """A network that has learnt nothing, but whose samples differ."""
    torch.manual_seed(0)
    arguments: dict[str, Any] = {"channels": (4, 6, 6), "latent_dims": (1, 1), "blocks_per_scale": 1} | changes
    model = HPUNet(in_channels=info.in_channels, num_classes=info.num_classes, **arguments).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
        model.logits.weight.mul_(10)
    return TrainedModel("run", model, tiny_settings(), info, 7, torch.device("cpu"))


def make_predictor(info: SetInfo = INFO["lesions"], **changes: Any) -> Predictor:
    return Predictor(make_trained(info, **changes))


def make_instance_predictor() -> Predictor:
    """Its samples of `write_cells` cluster into a few instances."""
    return make_predictor(CELLS, latent_dims=(2, 2))


def make_volume_predictor(info: SetInfo = VOLUMES, **changes: Any) -> Predictor:
    """A model of volumes; sizes must be multiples of (2, 4, 4)."""
    network: dict[str, Any] = {"ndim": 3, "strides": ((1, 2, 2), (2, 2, 2)), "latent_dims": (1, 1)} | changes
    strides = str([list(each) for each in network["strides"]])
    settings = tiny_settings(
        "model.ndim=3", f"model.strides={strides}", "model.channels=[4,6,6]",
        f"model.latent_dims={list(network['latent_dims'])}",
        "data.crop=[4,16,16]", "data.options={}",
    )  # fmt: skip
    return Predictor(replace(make_trained(info, **network), settings=settings))
