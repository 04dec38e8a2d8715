"""Settings become networks, and impossible crops are named with possible ones beside them."""

from typing import Any

import pytest
from tiny_run import tiny_settings

from hpunet.errors import ConfigError
from hpunet.models.build import build_model, check_network
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet

STRIDES = "model.strides=[[1,2,2],[1,2,2],[2,2,2],[2,2,2]]"
VOLUMES = ["model.ndim=3", "model.channels=[4,4,4,4,4]"]


@pytest.mark.parametrize(("kind", "network"), [("hpu", HPUNet), ("punet", ProbUNet)])
def test_settings_of_volumes_reach_the_network(kind: str, network: type[Any]) -> None:
    settings = tiny_settings(f"model.kind={kind}", *VOLUMES, STRIDES, "data.crop=[4,16,32]", "model.latent_dims=[1]")
    model = build_model(settings.model, in_channels=1, num_classes=2)
    assert type(model) is network
    assert (model.ndim, model.size_multiples) == (3, (4, 16, 16))
    assert model.strides == ((1, 2, 2), (1, 2, 2), (2, 2, 2), (2, 2, 2))
    check_network(settings)


@pytest.mark.parametrize(
    ("crop", "more", "advice"),
    [
        ("[16,16,24]", [], "16x16x24 cannot be halved 4 times, as the 5 entries of model.channels ask; take 1 off "
         "model.channels, or choose multiples of 16, such as 16x16x16 or 16x16x32$"),
        ("[2,16,32]", [STRIDES], "take 1 off model.channels and model.strides, or choose multiples of 4x16x16, "
         "such as 4x16x32$"),
        ("[6,20,32]", [STRIDES], "take 2 off model.channels and model.strides, .* such as 4x16x32 or 8x32x32$"),
        ("[3,15,15]", [], "of model.channels ask; choose multiples of 16, such as 16x16x16$"),
    ],
)  # fmt: skip
def test_crops_of_volumes_that_do_not_fit_are_named_per_axis(crop: str, more: list[str], advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        check_network(tiny_settings(*VOLUMES, f"data.crop={crop}", *more))
