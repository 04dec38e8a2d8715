"""The loss of a training step: ELBO or GECO, and optionally an energy distance of samples from the prior."""

from dataclasses import replace

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hpunet.models.base import TrainingOutput
from hpunet.objectives.base import Terms
from hpunet.objectives.elbo import ELBO
from hpunet.objectives.energy import EnergyDistance, PairAgreement
from hpunet.objectives.geco import GECO


class Loss(nn.Module):
    """`objective` plus `energy_weight` · `energy`, for which the prior draws `energy_samples` samples per image."""

    def __init__(
        self,
        objective: ELBO | GECO,
        *,
        energy: EnergyDistance | PairAgreement | None = None,
        energy_weight: float = 0.0,
        energy_samples: int = 4,
    ) -> None:
        super().__init__()
        self.objective, self.energy = objective, energy
        self.energy_weight, self.energy_samples = energy_weight, energy_samples
        self.use_energy = energy is not None  # off before the energy distance starts

    @property
    def num_prior_samples(self) -> int:
        """Samples per image that the model must draw from the prior; with any, `forward` needs all gradings."""
        return self.energy_samples if self.use_energy else 0

    def forward(
        self,
        output: TrainingOutput,
        *,
        labels: Int[Tensor, " b *s"],
        valid: Bool[Tensor, " b *s"],
        uniform: Float[Tensor, " b *s"] | None = None,
        gradings: Int[Tensor, "b r *s"] | None = None,
        graders: Bool[Tensor, "b r"] | None = None,
    ) -> Terms:
        """The loss of a batch and its parts; `gradings` are the maps of all graders, `graders` which exist."""
        terms: Terms = self.objective(output, labels=labels, valid=valid, uniform=uniform)
        if self.energy is None or not self.use_energy:
            return terms
        energy = self.energy(sample_logits=output.sample_logits, gradings=gradings, graders=graders, valid=valid)
        return replace(terms, loss=terms.loss + self.energy_weight * energy, energy=energy.detach())


def parameter_groups(model: nn.Module, loss: nn.Module, *, weight_decay: float = 1e-5) -> list[dict[str, object]]:
    """Optimiser groups: the network with the paper's weight decay · Σ w² (App. D), the loss's own parameter without.

    This penalty is part of the loss: `torch.optim.Adam` (not AdamW) adds its gradient, 2 · weight_decay · w.
    """
    groups: list[dict[str, object]] = [{"params": list(model.parameters()), "weight_decay": 2 * weight_decay}]
    own = list(loss.parameters())
    return [*groups, {"params": own, "weight_decay": 0.0}] if own else groups
