"""hpunet: segmentation of ambiguous images as a distribution over hypotheses.

The public names below are imported when first used, so that `import hpunet` (and `hpunet --help`) does not
wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpunet.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        DivergenceError,
        HPUNetError,
    )
    from hpunet.models.hpunet import HPUNet
    from hpunet.models.punet import ProbUNet
    from hpunet.objectives import ELBO, GECO
    from hpunet.sampling import reconstruct, sample
    from hpunet.trained import load

__version__ = "0.1.0"

_HOME = {
    "HPUNet": "hpunet.models.hpunet",
    "ProbUNet": "hpunet.models.punet",
    "sample": "hpunet.sampling",
    "reconstruct": "hpunet.sampling",
    "load": "hpunet.trained",
    "ELBO": "hpunet.objectives",
    "GECO": "hpunet.objectives",
    "HPUNetError": "hpunet.errors",
    "ConfigError": "hpunet.errors",
    "DataError": "hpunet.errors",
    "CheckpointError": "hpunet.errors",
    "DivergenceError": "hpunet.errors",
}

__all__ = [
    "ELBO",
    "GECO",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DivergenceError",
    "HPUNet",
    "HPUNetError",
    "ProbUNet",
    "load",
    "reconstruct",
    "sample",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'hpunet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
