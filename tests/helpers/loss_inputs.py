"""Random inputs of objectives, and cross-entropy from its definition."""

import numpy as np
import torch
from torch import Tensor

from hpunet.models.base import TrainingOutput


def random_batch(seed: int = 0, b: int = 2, k: int = 3, h: int = 6, w: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(b, k, h, w, generator=generator, dtype=torch.float64)
    labels = torch.randint(k, (b, h, w), generator=generator)
    return logits, labels, torch.rand(b, h, w, generator=generator) > 0.3


def output_of(logits: Tensor, kl: Tensor | None = None) -> TrainingOutput:
    kl = torch.tensor([1.0, 2.0]).to(logits.dtype) if kl is None else kl
    return TrainingOutput(logits=logits, latents=[], prior=[], posterior=[], kl=kl)


def cross_entropy_by_loops(logits: Tensor, labels: Tensor, valid: Tensor) -> np.ndarray:
    """The slow twin, pixel by pixel from the definition."""
    scores, truth = logits.numpy(), labels.numpy()
    ce = np.zeros(truth.shape)
    for b, y, x in np.ndindex(*truth.shape):
        if valid[b, y, x]:
            p = np.exp(scores[b, :, y, x])
            ce[b, y, x] = -np.log(p[truth[b, y, x]] / p.sum())
    return ce
