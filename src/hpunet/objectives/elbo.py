"""The evidence lower bound."""

from jaxtyping import Float, Int
from torch import Tensor

from hpunet.errors import ConfigError
from hpunet.objectives.base import Objective


class ELBO(Objective):
    """rec + β · Σ KL (Eq. 5). Other arguments are those of `GECO`."""

    def __init__(
        self,
        *,
        beta: float = 1.0,
        prior_gradient_scale: float = 1.0,
        top_k: float | None = None,
        stochastic: bool = True,
    ) -> None:
        super().__init__(prior_gradient_scale=prior_gradient_scale, top_k=top_k, stochastic=stochastic)
        if not beta >= 0:
            raise ConfigError(f"expected beta >= 0, got {beta}")
        self.beta = beta

    def combine(
        self, *, rec: Float[Tensor, ""], kl: Float[Tensor, " scales"], num_kept: Int[Tensor, ""], batch_size: int
    ) -> dict[str, Tensor]:
        """`loss` alone."""
        return {"loss": rec + self.beta * kl.sum()}
