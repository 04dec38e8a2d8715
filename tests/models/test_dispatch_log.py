"""A training pass dispatches exactly the recorded operations, in the recorded order.

If a change adds, removes or reorders operations on purpose, record the new sums (the failure shows them).
"""

import hashlib
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet
from hpunet.objectives.elbo import ELBO
from hpunet.objectives.geco import GECO

RECORDED_WITH = "2.13.0"
TINY: dict[str, Any] = {"in_channels": 1, "num_classes": 3, "channels": (4, 6, 8)}
MODELS: dict[str, Any] = {
    "hpunet": lambda: HPUNet(**TINY, latent_dims=(2, 1), blocks_per_scale=2),
    "hpunet-nchw-cond-prior-draws": lambda: HPUNet(
        **TINY, latent_dims=(0, 1), blocks_per_scale=1, cond_channels=2, channels_last=False
    ),
    "punet": lambda: ProbUNet(**TINY, latent_dim=2),
}
SHA256 = {
    "hpunet": "5c3623f922df7c6290ba1358e5f648f10cf6f2a0ab71a85594c3418ba85e5d5d",
    "hpunet-nchw-cond-prior-draws": "adcaf4d4afa3ed987004c80d4366200b2c67cfe080886afef5bfcc0315d4a815",
    "punet": "1363b815e1b87a2b005167a85aeeb9bb50d774830e43e95585ad1e459e3d2200",
}


class DispatchLog(TorchDispatchMode):
    """Records the name and the output shapes and dtypes of each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves(outputs) if isinstance(t, Tensor)]
        self.lines.append(" ".join([str(func), *(f"{tuple(t.shape)} {t.dtype}" for t in tensors)]))
        return outputs


def training_pass_log(model: Any, objective: Any, *, prior_draws: int = 0, size: int = 64) -> list[str]:
    inputs: dict[str, Any] = {"image": torch.rand(2, 1, size, size), "labels": torch.randint(3, (2, size, size))}
    if model.cond_channels:
        inputs["cond"] = torch.rand(2, model.cond_channels, size, size)
    if prior_draws:
        inputs["prior_noise"] = [torch.randn(2, prior_draws, *shape) for shape in model.latent_shapes(size, size)]
    with DispatchLog() as log:
        output = model(**inputs)
        loss = objective(output, labels=inputs["labels"]).loss
        if output.sample_logits is not None:
            loss = loss + output.sample_logits.square().mean()
        loss.backward()
    return log.lines


@pytest.mark.skipif(not torch.__version__.startswith(RECORDED_WITH), reason=f"recorded with torch {RECORDED_WITH}")
@pytest.mark.parametrize("name", MODELS)
def test_training_pass_dispatches_the_recorded_operations(name: str) -> None:
    objective = GECO(kappa=0.05) if name == "hpunet" else ELBO()
    model = MODELS[name]()
    model.check_values = False  # as in training
    lines = training_pass_log(model, objective, prior_draws=3 if "prior-draws" in name else 0)
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == SHA256[name]
