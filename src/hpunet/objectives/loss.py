"""What training minimises: masked cross-entropy, its hardest pixels, and the ELBO or GECO around them.

Everything is computed in float32 (or float64 when the network is). No value is read back from the device and all
shapes depend only on the input's shape, so a whole training step can be captured in a CUDA graph. When several
processes train together (`distributed.py`), the batch is all of theirs: the hardest pixels are found among all, and
GECO's constraint is that of all. Every process returns the terms of the whole batch in value, so that all of them see
a loss that went wrong in one; in gradient it returns its share times their number, so that the mean of their
gradients, which is what they exchange, is the gradient of the whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hpunet.errors import ConfigError, DataError
from hpunet.models.base import TrainingOutput
from hpunet.models.gaussian import Gaussian, at_least_float32, kl_divergence
from hpunet.models.gradients import clamp_with_inward_gradient, scale_gradient, straight_through
from hpunet.utils.distributed import all_gather, all_reduce, rank, world_size


@dataclass(frozen=True)
class Terms:
    """The parts of a training loss; all but `loss` are detached, for logging."""

    loss: Float[Tensor, ""]
    rec: Float[Tensor, ""]
    """Cross-entropy summed over the kept pixels, divided by the batch size."""
    kl: Float[Tensor, " scales"]
    num_kept: Int[Tensor, ""]
    """Pixels of the batch that the reconstruction term counts."""
    batch_size: int
    constraint: Float[Tensor, ""] | None = None
    """GECO: moving average of rec minus what κ allows; negative when the reconstruction is good enough."""
    multiplier: Float[Tensor, ""] | None = None
    """GECO: λ."""
    energy: Float[Tensor, ""] | None = None
    """How far the prior's hypotheses are from the labels: `EnergyDistance` or, with instances, `PairAgreement`."""

    @property
    def rec_per_pixel(self) -> Float[Tensor, ""]:
        """Mean cross-entropy of the kept pixels of this batch: the number to compare with κ."""
        return self.rec * self.batch_size / self.num_kept.clamp(min=1)


def masked_cross_entropy(
    *,
    logits: Float[Tensor, "b k h w"],
    labels: Int[Tensor, "b h w"],
    valid: Bool[Tensor, "b h w"] | None = None,
) -> Float[Tensor, "b h w"]:
    """Cross-entropy of every pixel, exactly 0 (and without gradient) where `valid` is false."""
    with torch.autocast(logits.device.type, enabled=False):
        ce = F.cross_entropy(at_least_float32(logits), labels.long(), reduction="none")
        return ce if valid is None else torch.where(valid, ce, 0.0)


def gumbel_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard Gumbel noise of a tensor's shape; finite by construction."""
    exponential = torch.empty_like(like).exponential_(generator=generator)
    return -exponential.clamp(min=torch.finfo(like.dtype).tiny).log()


def top_k_pixels(
    ce: Float[Tensor, "b h w"],
    *,
    fraction: float,
    valid: Bool[Tensor, "b h w"] | None = None,
    noise: Float[Tensor, "b h w"] | None = None,
) -> Bool[Tensor, "b h w"]:
    """Which pixels are among the k worst of the whole batch, k = ⌊fraction · all pixels⌋, invalid ones counted.

    With Gumbel `noise` the k pixels are a draw without replacement with probabilities proportional to their
    cross-entropy; without noise they are the k largest. Invalid pixels are never kept: with fewer valid pixels
    than k, those are all that is kept.
    """
    # log of the smallest positive number instead of −∞: a valid pixel with ce = 0 stays ahead of invalid ones.
    scores = ce.detach().clamp(min=torch.finfo(ce.dtype).tiny).log()
    if noise is not None:
        scores = scores + noise
    if valid is not None:
        scores = scores.masked_fill(~valid, -torch.inf)
    scores = all_gather(scores.flatten())
    # The small addition undoes a product like 0.29 · 100 that falls just short of the whole number.
    k = min(floor(fraction * scores.numel() + 1e-6), scores.numel())
    chosen = scores.topk(k, sorted=False).indices
    kept = torch.zeros(scores.numel(), dtype=torch.bool, device=ce.device).index_fill_(0, chosen, True)
    kept = kept.view(-1, *ce.shape)[rank()]
    return kept if valid is None else kept & valid


def global_mean(own: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The mean over all processes in value, this process's own in gradient."""
    return own if world_size() == 1 else straight_through(own, all_reduce(own) / world_size())


class Reconstruction(nn.Module):
    """The reconstruction term: cross-entropy summed over the kept pixels, divided by the batch size.

    `top_k` is the fraction of pixels to keep (Sec. 2; None keeps all valid ones), picked stochastically or not.
    """

    def __init__(self, *, top_k: float | None = 0.02, stochastic: bool = True) -> None:
        super().__init__()
        if top_k is not None and not 0 < top_k <= 1:
            raise ConfigError(f"top_k: expected a fraction of the pixels in (0, 1], or none, got {top_k}")
        self.top_k = top_k
        self.stochastic = stochastic

    def forward(
        self,
        *,
        logits: Float[Tensor, "b k h w"],
        labels: Int[Tensor, "b h w"],
        valid: Bool[Tensor, "b h w"] | None = None,
        gumbel: Float[Tensor, "b h w"] | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        """The term of the whole batch in value, of this process in gradient; and how many pixels it counts.

        `gumbel` replaces the noise drawn for the stochastic top-k.
        """
        b, _, h, w = logits.shape
        for name, tensor in (("labels", labels), ("valid", valid)):
            if tensor is not None and tuple(tensor.shape) != (b, h, w):
                raise DataError(
                    f"{name}: expected shape {(b, h, w)} to go with the logits, got {tuple(tensor.shape)}"
                )
        ce = masked_cross_entropy(logits=logits, labels=labels, valid=valid)
        if self.top_k is None:
            kept = torch.ones_like(ce, dtype=torch.bool) if valid is None else valid
        else:
            if self.stochastic and gumbel is None:
                gumbel = gumbel_noise(ce, generator)
            kept = top_k_pixels(ce, fraction=self.top_k, valid=valid, noise=gumbel if self.stochastic else None)
        own = torch.where(kept, ce, 0.0).sum() / b  # of the whole: a share of 1/n, times n
        return global_mean(own), all_reduce(kept.sum())


def divergence(output: TrainingOutput, *, prior_pull: float) -> Float[Tensor, " scales"]:
    """The KL of each scale; in gradient the prior is moved `prior_pull` times as strongly as KL alone would."""
    if prior_pull == 1:
        return output.kl
    pulled = [
        Gaussian(mean=scale_gradient(p.mean, prior_pull), log_sigma=scale_gradient(p.log_sigma, prior_pull))
        for p in output.prior
    ]
    return torch.stack(
        [kl_divergence(posterior=q, prior=p).mean() for q, p in zip(output.posterior, pulled, strict=True)]
    )


class ELBO(nn.Module):
    """rec + β · Σ KL (Eq. 5). `prior_pull` as in `GECO`."""

    def __init__(
        self, *, beta: float = 1.0, prior_pull: float = 1.0, top_k: float | None = None, stochastic: bool = True
    ) -> None:
        super().__init__()
        if not beta >= 0 or not prior_pull > 0:
            raise ConfigError(f"expected beta of at least 0 and prior_pull > 0, got {beta=}, {prior_pull=}")
        self.beta = beta
        self.prior_pull = prior_pull
        self.reconstruction = Reconstruction(top_k=top_k, stochastic=stochastic)

    def forward(
        self,
        output: TrainingOutput,
        *,
        labels: Int[Tensor, "b h w"],
        valid: Bool[Tensor, "b h w"] | None = None,
        gumbel: Float[Tensor, "b h w"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Terms:
        """The loss of a batch and its parts."""
        rec, num_kept = self.reconstruction(
            logits=output.logits, labels=labels, valid=valid, gumbel=gumbel, generator=generator
        )
        kl = global_mean(divergence(output, prior_pull=self.prior_pull))
        return Terms(
            loss=rec + self.beta * kl.sum(),
            rec=rec.detach(),
            kl=kl.detach(),
            num_kept=num_kept,
            batch_size=labels.shape[0] * world_size(),
        )


class GECO(nn.Module):
    """λ · (EMA(rec) − κ · kept pixels an image) + Σ KL (Eq. 6): the KL is minimised under a constraint on rec.

    λ = softplus(w)² with w trained by the same optimiser as the network, but uphill: λ rises while the
    reconstruction is worse than κ and falls when it is better. The value of the constraint is a moving average;
    its gradient goes to the current batch alone. `w` and the moving average live on the device and are part of
    the state dict. Give `w` to the optimiser without weight decay (`parameter_groups` does).

    Args:
        kappa: the cross-entropy a kept pixel may have.
        decay: of the moving average, which starts at the first value.
        rate: factor on the gradient of w. Under Adam it has next to no effect.
        speed: w is the trained number times this, so under Adam λ moves so many times as fast; the authors' is 1.
        lambda_max: what λ may rise to. It rises while the network is young and κ out of reach, at the samples' cost;
            the authors have no bound.
        prior_pull: how many times as strongly as in the plain KL the prior is moved towards the posterior. 1 is the
            paper's; with more, what λ does to the reconstruction leaves the prior's match less behind.
        kl_warm_up: for each scale, coarsest first, the number of updates over which its KL comes to count in full,
            starting from nothing; scales not named count in full from the start, as in the paper. A coarse scale
            that costs nothing at first is taken up by the posterior before finer ones have learnt its part.
        top_k: fraction of pixels the reconstruction term keeps, or None.
        stochastic: whether the top-k is drawn (Gumbel) or strict.
    """

    ema: Tensor
    num_updates: Tensor

    def __init__(
        self,
        *,
        kappa: float,
        decay: float = 0.99,
        rate: float = 0.01,
        speed: float = 1.0,
        lambda_max: float = inf,
        prior_pull: float = 1.0,
        kl_warm_up: Sequence[int] = (),
        top_k: float | None = 0.02,
        stochastic: bool = True,
    ) -> None:
        super().__init__()
        if not min(kappa, rate, speed, lambda_max, prior_pull) > 0 or not 0 <= decay < 1:
            raise ConfigError(
                "expected kappa, rate, speed, lambda_max and prior_pull > 0 and 0 <= decay < 1, got "
                f"{kappa=}, {rate=}, {speed=}, {lambda_max=}, {prior_pull=}, {decay=}"
            )
        self.kappa = kappa
        self.decay = decay
        self.rate = rate
        self.speed = speed
        self.lambda_max = lambda_max
        self.prior_pull = prior_pull
        self.kl_warm_up = list(kl_warm_up)
        self.reconstruction = Reconstruction(top_k=top_k, stochastic=stochastic)
        one = torch.tensor(1.0)
        self.w = nn.Parameter(one.expm1().log() / speed)  # softplus⁻¹(1), so that λ starts at 1
        self.register_buffer("ema", torch.tensor(0.0))
        self.register_buffer("num_updates", torch.tensor(0))

    @property
    def multiplier(self) -> Float[Tensor, ""]:
        """λ; its gradient is scaled by −rate, so that descent on the loss is ascent on w."""
        multiplier = clamp_with_inward_gradient(
            F.softplus(self.speed * self.w).square(), low=0.0, high=self.lambda_max
        )
        return scale_gradient(multiplier, -self.rate)

    def moving_average(self, rec: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """The average with this batch's value in it; its gradient with respect to `rec` is 1.

        Only in training mode is the value remembered.
        """
        with torch.no_grad():
            value = rec.detach().to(self.ema.dtype)
            updated = torch.where(self.num_updates == 0, value, self.decay * self.ema + (1 - self.decay) * value)
            if self.training:
                finite = value.isfinite()  # a batch that went wrong must not stay in the average
                self.ema.copy_(torch.where(finite, updated, self.ema))
                self.num_updates.add_(finite)
        return straight_through(rec, updated.to(rec.dtype))

    def counted(self, kl: Float[Tensor, " scales"]) -> Float[Tensor, ""]:
        """Σ KL, less of the scales that are warming up."""
        total = kl.sum()
        for scale, end in enumerate(self.kl_warm_up):
            if end:
                total = total - kl[scale] * (1 - self.num_updates / end).clamp(min=0)
        return total

    def forward(
        self,
        output: TrainingOutput,
        *,
        labels: Int[Tensor, "b h w"],
        valid: Bool[Tensor, "b h w"] | None = None,
        gumbel: Float[Tensor, "b h w"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Terms:
        """The loss of a batch and its parts; in training mode the moving average takes the batch in."""
        rec, num_kept = self.reconstruction(
            logits=output.logits, labels=labels, valid=valid, gumbel=gumbel, generator=generator
        )
        batch_size = labels.shape[0] * world_size()
        constraint = self.moving_average(rec) - self.kappa * num_kept.to(rec.dtype) / batch_size
        multiplier, kl = self.multiplier, global_mean(divergence(output, prior_pull=self.prior_pull))
        return Terms(
            loss=multiplier * constraint + self.counted(kl),
            rec=rec.detach(),
            kl=kl.detach(),
            num_kept=num_kept,
            constraint=constraint.detach(),
            multiplier=multiplier.detach(),
            batch_size=batch_size,
        )


class EnergyDistance(nn.Module):
    """2·E d(sample, grader) − E d(sample, other sample): what of GED² depends on the samples, made differentiable.

    d is 1 − Σ min(p, q) / Σ max(p, q) of two maps of probabilities: 1 − IoU where these are 0 and 1. Nothing is
    won by a grey map between two that are black and white. A pixel is added to both sums, so that two empty maps are
    alike and a nearly empty one is nearly so. The expectation is least for samples that are distributed as the
    graders' maps are: samples are drawn to graders, and away from each other.

    Args:
        classes: those whose maps are compared; d is the mean over them.
    """

    def __init__(self, *, classes: Sequence[int]) -> None:
        super().__init__()
        self.classes = list(classes)

    def forward(
        self,
        *,
        sample_logits: Float[Tensor, "b s k h w"],
        gradings: Int[Tensor, "b r h w"],
        graders: Bool[Tensor, "b r"],
        valid: Bool[Tensor, "b h w"],
    ) -> Float[Tensor, ""]:
        """The mean over images of the whole batch in value, of this process's in gradient."""
        with torch.autocast(sample_logits.device.type, enabled=False):
            probs = at_least_float32(sample_logits).softmax(dim=2)
        first, second = torch.triu_indices(probs.shape[1], probs.shape[1], offset=1, device=probs.device)
        shares = graders / graders.sum(dim=1, keepdim=True)
        total = probs.new_zeros(len(probs))
        for c in self.classes:
            samples = torch.where(valid.unsqueeze(1), probs[:, :, c], 0.0)
            marked = ((gradings == c) & valid.unsqueeze(1)).to(probs.dtype)
            to_graders = soft_distance(samples.unsqueeze(2), marked.unsqueeze(1)).mean(dim=1)
            apart = soft_distance(samples[:, first], samples[:, second]).mean(dim=1)
            total = total + 2 * (to_graders * shares).sum(dim=1) - apart
        return global_mean(total.mean() / len(self.classes))


class PairAgreement(nn.Module):
    """How often two pixels of instances have the same id in samples, against how often they should.

    Two pixels of one instance always have the same id, those of two instances in one of `num_random_ids` draws. This
    is the mean over pairs of pixels of instances of (P − that)², with P the probability that both have the same id
    when each pixel's is drawn from the softmax of one sample of the prior: from two or more samples, without bias.
    Clustering goes by agreement too: it joins pixels that agree in half of the samples. Which ids instances have is
    not compared, nor what more than two of them do together; a pixel that samples give to no instance agrees with
    none.

    Args:
        num_fixed_classes: labels from this number on are instances.
        num_random_ids: ids that an instance has one of.
        num_instances: instances that are told apart; instances i and i + num_instances count as one.
        alike: what counts alike, "pixels" as in the Rand error, where large instances have most pairs, or
            "instances" as in AP, however large they are.
        background: what pixels of other classes weigh, all together, for each unit that those of instances do. They
            should agree with none; without them (0) samples may give background the id of an instance beside it.
    """

    def __init__(
        self,
        *,
        num_fixed_classes: int,
        num_random_ids: int,
        num_instances: int,
        alike: str = "pixels",
        background: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_fixed_classes = num_fixed_classes
        self.num_random_ids = num_random_ids
        self.num_instances = num_instances
        self.alike = alike
        self.background = background

    def forward(
        self,
        *,
        sample_logits: Float[Tensor, "b s k h w"],
        gradings: Int[Tensor, "b r h w"],
        graders: Bool[Tensor, "b r"],
        valid: Bool[Tensor, "b h w"],
    ) -> Float[Tensor, ""]:
        """The mean over images of the whole batch in value, of this process's in gradient; labels are as stored."""
        with torch.autocast(sample_logits.device.type, enabled=False):
            probs = at_least_float32(sample_logits).softmax(dim=2)[:, :, self.num_fixed_classes :]
            by_grader = torch.stack([self._of_grader(probs, each, valid) for each in gradings.unbind(dim=1)], dim=1)
        shares = graders / graders.sum(dim=1, keepdim=True)
        return global_mean((by_grader * shares).sum(dim=1).mean())

    def _of_grader(
        self, probs: Float[Tensor, "b s k h w"], labels: Int[Tensor, "b h w"], valid: Bool[Tensor, "b h w"]
    ) -> Float[Tensor, " b"]:
        b, s, k, h, _ = probs.shape
        instance = (labels.long() - self.num_fixed_classes).flatten(1)
        number = instance.clamp(min=0) % self.num_instances  # (b, n)
        inside = ((instance >= 0) & valid.flatten(1)).to(probs.dtype)
        zeros = inside.new_zeros(b, self.num_instances)
        weight = inside
        if self.alike == "instances":
            weight = inside / zeros.scatter_add(1, number, inside).gather(1, number).clamp(min=1)
        total = weight.sum(dim=1).clamp(min=1e-9)
        weighted = probs.flatten(3) * weight[:, None, None]  # (b, s, k, n)
        in_pairs = weighted
        if self.background:
            outside = ((instance < 0) & valid.flatten(1)).to(probs.dtype)
            share = self.background * total[:, None] / outside.sum(dim=1, keepdim=True).clamp(min=1)
            in_pairs = weighted + probs.flatten(3) * (share * outside)[:, None, None]
        # Σ over pairs of pixels of (Σ_k p_ik p_jk) · (Σ_l q_il q_jl) is Σ_kl (Σ_i p_ik q_il)². Row by row: many small
        # products instead of one with a long sum for each image. Divided after it, since TF32 rounds.
        rows = [maps.reshape(b, s * k, h, -1).transpose(1, 2) for maps in (in_pairs, probs)]
        pairs = (rows[0] @ rows[1].transpose(2, 3)).sum(dim=1) / total[:, None, None]
        twice = pairs.view(b, s, k, s, k).square().sum(dim=(2, 4))
        in_two = (twice.sum(dim=(1, 2)) - twice.diagonal(dim1=1, dim2=2).sum(dim=1)) / (s * (s - 1))
        sums = zeros[:, None, None].expand(b, s, k, -1)
        sums = sums.scatter_add(3, number[:, None, None].expand_as(weighted), weighted) / total[:, None, None, None]
        within = sums.square().sum(dim=(1, 2, 3)) / s
        everywhere = sums.sum(dim=3).square().sum(dim=(1, 2)) / s
        whole = zeros.scatter_add(1, number, weight) / total[:, None]
        true_within = whole.square().sum(dim=1)
        true_apart = whole.sum(dim=1).square() - true_within
        expected = within + (everywhere - within) / self.num_random_ids
        return in_two - 2 * expected + true_within + true_apart / self.num_random_ids**2


def soft_distance(a: Float[Tensor, "*n h w"], b: Float[Tensor, "*m h w"]) -> Float[Tensor, "*nm"]:
    """1 − Σ min(a, b) / Σ max(a, b), with a pixel added to both sums; what comes before pixels is broadcast."""
    common = torch.minimum(a, b).sum(dim=(-2, -1))
    either = a.sum(dim=(-2, -1)) + b.sum(dim=(-2, -1)) - common
    return 1 - (common + 1) / (either + 1)


def parameter_groups(
    model: nn.Module, objective: nn.Module, *, weight_decay: float = 1e-5
) -> list[dict[str, object]]:
    """Optimiser groups: the network with the paper's weight decay · Σ w², the objective's own variable without.

    The penalty is part of the loss (App. D), so it goes through Adam: its gradient is 2 · weight_decay · w, which is
    what `weight_decay` of `torch.optim.Adam` (not AdamW) adds.
    """
    groups: list[dict[str, object]] = [{"params": list(model.parameters()), "weight_decay": 2 * weight_decay}]
    own = list(objective.parameters())
    return [*groups, {"params": own, "weight_decay": 0.0}] if own else groups
