"""Energy distances between the distributions of samples from the prior and of all graders' maps. Not in the paper."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hpunet.models.gaussian import at_least_float32
from hpunet.models.gradients import global_mean


class EnergyDistance(nn.Module):
    """2·E d(sample, grader) − E d(sample, other sample): the part of GED² that depends on samples, differentiable.

    d(p, q) is 1 − Σ min(p, q) / Σ max(p, q) of two probability maps, 1 − IoU of binary ones, averaged over `classes`.
    Averaging two binary maps gains nothing. The expectation is smallest when samples are distributed like graders.
    """

    def __init__(self, *, classes: Sequence[int]) -> None:
        super().__init__()
        self.classes = list(classes)

    def forward(
        self,
        *,
        sample_logits: Float[Tensor, "b s k *s"],
        gradings: Int[Tensor, "b r *s"],
        graders: Bool[Tensor, "b r"],
        valid: Bool[Tensor, " b *s"],
    ) -> Float[Tensor, ""]:
        """The mean over images (see `global_mean`)."""
        with torch.autocast(sample_logits.device.type, enabled=False):
            probs = at_least_float32(sample_logits).softmax(dim=2)
        first, second = torch.triu_indices(probs.shape[1], probs.shape[1], offset=1, device=probs.device)
        shares = graders / graders.sum(dim=1, keepdim=True)
        total = probs.new_zeros(len(probs))
        for c in self.classes:
            samples = torch.where(valid.unsqueeze(1), probs[:, :, c], 0.0)
            marked = ((gradings == c) & valid.unsqueeze(1)).to(probs.dtype)
            ndim = marked.ndim - 2
            to_graders = soft_distance(samples.unsqueeze(2), marked.unsqueeze(1), ndim=ndim).mean(dim=1)
            apart = soft_distance(samples[:, first], samples[:, second], ndim=ndim).mean(dim=1)
            total = total + 2 * (to_graders * shares).sum(dim=1) - apart
        return global_mean(total.mean() / len(self.classes))


def soft_distance(a: Float[Tensor, "..."], b: Float[Tensor, "..."], *, ndim: int) -> Float[Tensor, "..."]:
    """1 − Σ min(a, b) / Σ max(a, b) over the last `ndim` axes, the positions; other axes are broadcast.

    One pixel is added to both sums, so two empty maps have distance 0.
    """
    positions = tuple(range(-ndim, 0))
    common = torch.minimum(a, b).sum(dim=positions)
    either = a.sum(dim=positions) + b.sum(dim=positions) - common
    return 1 - (common + 1) / (either + 1)


class PairAgreement(nn.Module):
    """The energy distance of instances: the mean over pairs of instance pixels of (P − expected)².

    P is the probability that both pixels share an id when each id is drawn from the softmax of one sample; it is
    estimated without bias from two or more samples. Expected is 1 within an instance and 1 / num_random_ids between
    two. A pixel without an instance id agrees with none. Clustering also uses agreement.

    Args:
        num_fixed_classes: labels from this number on are instances.
        num_random_ids: number of ids that an instance's id is drawn from.
        num_instances: instances that are told apart; instances i and i + num_instances count as one.
        weighting: same weight for each of the "pixels" (as in the Rand error) or each of the "instances" (as in AP).
        background_weight: total weight of pixels of other classes, relative to all instance pixels. They should agree
            with none; with 0, samples may give background the id of an adjacent instance.
    """

    def __init__(
        self,
        *,
        num_fixed_classes: int,
        num_random_ids: int,
        num_instances: int,
        weighting: str = "pixels",
        background_weight: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_fixed_classes, self.num_random_ids = num_fixed_classes, num_random_ids
        self.num_instances, self.weighting, self.background_weight = num_instances, weighting, background_weight

    def forward(
        self,
        *,
        sample_logits: Float[Tensor, "b s k *s"],
        gradings: Int[Tensor, "b r *s"],
        graders: Bool[Tensor, "b r"],
        valid: Bool[Tensor, " b *s"],
    ) -> Float[Tensor, ""]:
        """The mean over images; labels are as stored, instances without their random ids."""
        with torch.autocast(sample_logits.device.type, enabled=False):
            probs = at_least_float32(sample_logits).softmax(dim=2)[:, :, self.num_fixed_classes :]
            by_grader = torch.stack([self._of_grader(probs, each, valid) for each in gradings.unbind(dim=1)], dim=1)
        shares = graders / graders.sum(dim=1, keepdim=True)
        return global_mean((by_grader * shares).sum(dim=1).mean())

    def _of_grader(
        self, probs: Float[Tensor, "b s k *s"], labels: Int[Tensor, " b *s"], valid: Bool[Tensor, " b *s"]
    ) -> Float[Tensor, " b"]:
        b, s, k, *_, w = probs.shape
        instance = (labels.long() - self.num_fixed_classes).flatten(1)
        number = instance.clamp(min=0) % self.num_instances  # (b, n)
        inside = ((instance >= 0) & valid.flatten(1)).to(probs.dtype)
        zeros = inside.new_zeros(b, self.num_instances)
        weight = inside
        if self.weighting == "instances":
            weight = inside / zeros.scatter_add(1, number, inside).gather(1, number).clamp(min=1)
        total = weight.sum(dim=1).clamp(min=1e-9)
        weighted = probs.flatten(3) * weight[:, None, None]  # (b, s, k, n)
        in_pairs = weighted
        if self.background_weight:
            outside = ((instance < 0) & valid.flatten(1)).to(probs.dtype)
            share = self.background_weight * total[:, None] / outside.sum(dim=1, keepdim=True).clamp(min=1)
            in_pairs = weighted + probs.flatten(3) * (share * outside)[:, None, None]
        # Σ over pairs of pixels of (Σ_k p_ik p_jk) · (Σ_l q_il q_jl) is Σ_kl (Σ_i p_ik q_il)². Row by row: many small
        # products instead of one with a long sum per image. Division comes last, since TF32 rounds.
        rows = [maps.reshape(b, s * k, -1, w).transpose(1, 2) for maps in (in_pairs, probs)]
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
