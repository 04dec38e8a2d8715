"""Builds the network that the settings describe."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from hpunet.config.settings import Extrapolate, ModelSettings, Settings
from hpunet.errors import ConfigError
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet
from hpunet.models.scales import shrink_factors
from hpunet.utils.tensors import by, in_words

MAX_PARAMETERS = 2**31


def build_model(
    settings: ModelSettings,
    *,
    in_channels: int,
    num_classes: int,
    extrapolate: Extrapolate = False,
    channels_last: bool = True,
) -> HPUNet | ProbUNet:
    """The network for images or volumes with `in_channels` and labels with `num_classes`."""
    shared: dict[str, Any] = {"in_channels": in_channels, "num_classes": num_classes, "channels_last": channels_last}
    shared |= {"channels": settings.channels, "ndim": settings.ndim, "strides": settings.strides}
    model: HPUNet | ProbUNet
    if settings.kind == "punet":
        if extrapolate:
            raise ConfigError("data.extrapolate: the Probabilistic U-Net cannot extrapolate; set model.kind to hpu")
        model = ProbUNet(**shared, latent_dim=settings.latent_dims[0])
    else:
        model = HPUNet(
            **shared,
            latent_dims=settings.latent_dims,
            blocks_per_scale=settings.blocks_per_scale,
            cond_channels=1 + num_classes + (extrapolate == "future") if extrapolate else 0,
            activation_checkpointing=settings.activation_checkpointing,
        )
    model.orientations = settings.orientations
    return model


def check_network(settings: Settings) -> None:
    """Raise a `ConfigError` for settings of an impossible network, before anyone packs data for it."""
    if settings.data.extrapolate == "future":
        if settings.model.ndim == 2:
            raise ConfigError('data.extrapolate: "future" is for series over time, with model.ndim=3')
        how = settings.augmentation
        if any((how.mirror_front_back, how.tilt, how.elastic, how.translate, how.scale_depth != (1, 1))):
            words = "mirror_front_back=false, tilt=0, elastic=0, translate=0 and scale_depth=[1,1]"
            raise ConfigError(f'augmentation: data.extrapolate="future" needs {words}: moments keep their order')
    with torch.device("meta"):
        model = build_model(settings.model, in_channels=1, num_classes=2, extrapolate=settings.data.extrapolate)
    if (count := sum(p.numel() for p in model.parameters())) > MAX_PARAMETERS:
        words = f"the network has {count:,} parameters, at most {MAX_PARAMETERS:,} are possible"
        raise ConfigError(f"model.channels, model.blocks_per_scale: {words}")
    crop, multiples, num_scales = settings.data.crop, model.size_multiples, len(settings.model.channels)
    if _fits(crop, multiples):
        return
    # With fewer and fewer scales; with only one, every crop fits.
    smaller = [*reversed(shrink_factors(model.strides)[:-1]), (1,) * len(crop)]
    too_many = 1 + next(n for n, factors in enumerate(smaller) if _fits(crop, factors))
    keys = "model.channels" if settings.model.strides is None else "model.channels and model.strides"
    fewer = "" if too_many == num_scales - 1 else f"take {too_many} off {keys}, or "
    below, above = (
        by(max(1, round_to(side / multiple)) * multiple for side, multiple in zip(crop, multiples, strict=True))
        for round_to in (math.floor, math.ceil)
    )
    raise ConfigError(
        f"data.crop: {by(crop)} cannot be halved {num_scales - 1} times, as the {num_scales} entries of "
        f"model.channels ask; {fewer}choose multiples of {in_words(multiples)}, such as "
        + (above if above == below else f"{below} or {above}")
    )


def _fits(crop: Sequence[int], multiples: Sequence[int]) -> bool:
    return not any(side % multiple for side, multiple in zip(crop, multiples, strict=True))
