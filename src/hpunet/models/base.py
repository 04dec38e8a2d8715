"""What all models have in common: the protocol that sampling relies on, and the training pass (Fig. 1b)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hpunet.errors import DataError
from hpunet.models.blocks import is_channels_last
from hpunet.models.gaussian import Gaussian, kl_divergence
from hpunet.utils.tensors import check_image, check_labels, one_hot

PerScale = Sequence[Tensor | None]  # for each latent scale, coarsest first, a tensor (b, z, *s_i) or None


@dataclass(frozen=True)
class TrainingOutput:
    """Logits of one posterior draw, and per latent scale, coarsest first, its latents, Gaussians and KL.

    The KL is summed over positions and channels and averaged over the batch (App. A). `sample_logits` are hypotheses
    drawn from the prior, if the caller gave noise for them.
    """

    logits: Float[Tensor, "b k *s"]
    latents: Sequence[Float[Tensor, "b _ ..."]]
    prior: Sequence[Gaussian]
    posterior: Sequence[Gaussian]
    kl: Float[Tensor, " scales"]
    sample_logits: Float[Tensor, "b s k *s"] | None = None


@runtime_checkable
class SegmentationModel(Protocol):
    """A conditional model p(segmentation | image) with Gaussian latents at one or more scales."""

    in_channels: int
    num_classes: int
    cond_channels: int
    latent_dims: tuple[int, ...]
    size_multiples: tuple[int, ...]
    check_values: bool

    @property
    def orientations(self) -> int:
        """Number of image orientations to sample from (1, 2, 4 or 8), see `sampling.orientations`."""

    def latent_shapes(self, *size: int) -> list[tuple[int, ...]]:
        """Shape (z, *s_i) of each latent scale for images or volumes of this size, coarsest first."""

    def sampling_modules(self) -> list[nn.Module]:
        """The modules that sampling needs. The others serve training and reconstruction."""

    def encode(self, *, image: Tensor, cond: Tensor | None = None) -> list[Tensor]:
        """What all hypotheses of an image share, as tensors with a leading batch dimension."""

    def decode(
        self, features: Sequence[Tensor], *, noise: PerScale | None = None, given: PerScale | None = None
    ) -> tuple[Tensor, list[Tensor], list[Gaussian]]:
        """One hypothesis per entry of `features`: logits, the latents used, the prior's Gaussians."""

    def infer(
        self, *, image: Tensor, labels: Tensor, noise: PerScale | None = None
    ) -> tuple[list[Tensor], list[Gaussian]]:
        """The posterior's latents for a segmentation (its means without `noise`) and its Gaussians."""


class Hypotheses(NamedTuple):
    """Upright labels and logits (if kept) of hypotheses, and the latents of each scale, in their own orientation."""

    labels: Int[Tensor, " n *s"]
    logits: Float[Tensor, "n k *s"] | None
    latents: list[Tensor]
    sums: Float[Tensor, "n parts"]
    """Of the logits: finite only if all of them are."""


@runtime_checkable
class HypothesisDecoder(Protocol):
    """A model that decodes to labels at once, and reads the features of an image for all of its hypotheses."""

    def decode_hypotheses(
        self, features: Sequence[Tensor], *, entries: Int[Tensor, " n"], noise: PerScale, given: PerScale,
        orientation_ids: Int[Tensor, " n"] | None, keep_logits: bool,
    ) -> Hypotheses:  # fmt: skip
        """Hypothesis i is of entry `entries[i]` of the features; it is turned back from its orientation, if any."""

    def draw(
        self, *, image: Tensor, cond: Tensor | None, count: int, entries: Int[Tensor, " n"], noise: PerScale,
        given: PerScale, orientation_ids: Int[Tensor, " n"] | None, keep_logits: bool,
    ) -> Hypotheses:  # fmt: skip
        """Encode the first `count` orientations of each image and `decode_hypotheses`, in one go."""


ModelT = TypeVar("ModelT", bound=SegmentationModel)


class SamplingProxy(Generic[ModelT]):
    """Base of samplers that replace a model's `encode` and `decode`; everything else is the model's."""

    def __init__(self, model: ModelT) -> None:
        self.model, self.in_channels, self.num_classes = model, model.in_channels, model.num_classes
        self.cond_channels, self.latent_dims = model.cond_channels, model.latent_dims
        self.size_multiples, self.latent_shapes = model.size_multiples, model.latent_shapes
        self.sampling_modules, self.infer = model.sampling_modules, model.infer

    @property
    def check_values(self) -> bool:
        """The model's."""
        return self.model.check_values

    @check_values.setter
    def check_values(self, value: bool) -> None:
        self.model.check_values = value

    @property
    def orientations(self) -> int:
        """The model's."""
        return self.model.orientations


class ConditionalVAE(nn.Module):
    """Base of the networks: its `forward` is the training pass, for any `SegmentationModel`."""

    def forward(
        self: SegmentationModel,
        *,
        image: Float[Tensor, "b c *s"],
        labels: Int[Tensor, " b *s"],
        cond: Float[Tensor, "b e *s"] | None = None,
        noise: PerScale | None = None,
        prior_noise: Sequence[Tensor] | None = None,
    ) -> TrainingOutput:
        """Draw latents from the posterior (with `noise` or fresh noise) and decode them with the prior (Fig. 1b).

        With `prior_noise`, (b, s, z, *s_i) per scale, the prior also draws s hypotheses per image.
        """
        if noise is None:
            shapes = self.latent_shapes(*image.shape[-len(self.size_multiples) :])
            noise = [torch.randn(image.shape[0], *shape, device=image.device) for shape in shapes]
        latents, posterior = self.infer(image=image, labels=labels, noise=noise)
        features = self.encode(image=image, cond=cond)
        logits, _, prior = self.decode(features, given=latents)
        kl = [kl_divergence(posterior=q, prior=p).mean() for q, p in zip(posterior, prior, strict=True)]
        sample_logits = None
        if prior_noise is not None:
            b, s = prior_noise[0].shape[:2]
            repeated = [_repeat_images(f, s) for f in features]
            drawn, _, _ = self.decode(repeated, noise=[scale.flatten(0, 1) for scale in prior_noise])
            sample_logits = drawn.unflatten(0, (b, s))
        return TrainingOutput(logits, latents, prior, posterior, torch.stack(kl), sample_logits)


def compute_type(model: SegmentationModel) -> torch.dtype:
    """The type of the model's weights, which its images have too."""
    return next(model.sampling_modules()[0].parameters()).dtype


def check_model_image(model: SegmentationModel, image: Float[Tensor, "b c *s"]) -> None:
    """Raise a `DataError` unless this is an image for this model, of the type that it computes in."""
    check_image(image, channels=model.in_channels, multiples=model.size_multiples, values=model.check_values)
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(image.device.type):
        return
    if image.dtype != (dtype := compute_type(model)):
        raise DataError(f"image: {image.dtype}, but the model computes in {dtype}; use image.to({dtype})")


def check_inputs(model: SegmentationModel, *, image: Float[Tensor, "b c *s"], labels: Int[Tensor, " b *s"]) -> None:
    """Raise a `DataError` unless these are images for this model and segmentations of them."""
    check_model_image(model, image)
    check_labels(labels, image=image, num_classes=model.num_classes, values=model.check_values)


def posterior_input(
    model: SegmentationModel, *, image: Float[Tensor, "b c *s"], labels: Int[Tensor, " b *s"]
) -> Float[Tensor, "b kc *s"]:
    """What the posterior sees, checked: [one-hot labels, image]."""
    check_inputs(model, image=image, labels=labels)
    return torch.cat([one_hot(labels, model.num_classes).to(image.dtype), image], dim=1)


def _repeat_images(features: Float[Tensor, "b f *s"], times: int) -> Float[Tensor, "n f *s"]:
    """`repeat_interleave` over the batch, in the features' memory format."""
    if not is_channels_last(features):
        return features.repeat_interleave(times, dim=0)
    return features.movedim(1, -1).repeat_interleave(times, dim=0).movedim(-1, 1)
