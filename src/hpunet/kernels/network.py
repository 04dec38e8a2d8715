"""A stand-in for the whole model on fused kernels: the interface, computed by plain torch."""

from typing import Any

import torch
from torch import nn

from hpunet.batch import TrainingOutput
from hpunet.models.hpunet import HPUNet


class FusedNetwork(nn.Module):
    """The training pass of a model; its parameters are the model's."""

    def __init__(self, model: HPUNet, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, **tensors: Any) -> TrainingOutput:
        """As the model's."""
        output: TrainingOutput = self.model(**tensors)
        return output


class FusedSampler:
    """A model for `hpunet.sample`; everything that is not here is the model's."""

    def __init__(self, model: HPUNet, *, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.model, name)
        if name not in ("encode", "decode", "infer"):
            return found
        return torch.autocast(next(self.model.parameters()).device.type, dtype=self.dtype)(found)
