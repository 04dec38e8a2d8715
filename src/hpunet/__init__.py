"""hpunet: segmentation of ambiguous images as a distribution over hypotheses.

Public names are imported on first use, so `import hpunet` and `hpunet --help` do not load torch.
"""

TYPE_CHECKING = False  # imports nothing, not even typing: Ctrl-C is handled from `cli/start.py` on
if TYPE_CHECKING:
    from hpunet.config.settings import load_settings
    from hpunet.data.examples.load import example
    from hpunet.errors import CheckpointError, ConfigError, DataError, DivergenceError, HPUNetError
    from hpunet.models.hpunet import HPUNet
    from hpunet.models.punet import ProbUNet
    from hpunet.objectives.elbo import ELBO
    from hpunet.objectives.geco import GECO
    from hpunet.objectives.loss import parameter_groups
    from hpunet.predict.prediction import Prediction
    from hpunet.predict.predictor import Predictor, load
    from hpunet.sampling.hypotheses import distinct_hypotheses
    from hpunet.sampling.sample import reconstruct, sample
    from hpunet.training.loop import train

__version__ = "0.1.0"

_MODULES = {
    "load_settings": "hpunet.config.settings",
    "example": "hpunet.data.examples.load",
    "CheckpointError": "hpunet.errors",
    "ConfigError": "hpunet.errors",
    "DataError": "hpunet.errors",
    "DivergenceError": "hpunet.errors",
    "HPUNetError": "hpunet.errors",
    "HPUNet": "hpunet.models.hpunet",
    "ProbUNet": "hpunet.models.punet",
    "ELBO": "hpunet.objectives.elbo",
    "GECO": "hpunet.objectives.geco",
    "parameter_groups": "hpunet.objectives.loss",
    "Prediction": "hpunet.predict.prediction",
    "Predictor": "hpunet.predict.predictor",
    "load": "hpunet.predict.predictor",
    "distinct_hypotheses": "hpunet.sampling.hypotheses",
    "reconstruct": "hpunet.sampling.sample",
    "sample": "hpunet.sampling.sample",
    "train": "hpunet.training.loop",
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
    "Prediction",
    "Predictor",
    "ProbUNet",
    "distinct_hypotheses",
    "example",
    "load",
    "load_settings",
    "parameter_groups",
    "reconstruct",
    "sample",
    "train",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'hpunet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
