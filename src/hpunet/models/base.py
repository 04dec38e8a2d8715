"""What every model here can do, and the training pass written once for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hpunet.models.gaussian import Gaussian, kl_divergence
from hpunet.utils.tensors import check_image, check_labels, one_hot

PerScale = Sequence[Tensor | None]
"""For each latent scale, coarsest first, a tensor (b, z, h_i, w_i) or None."""


@dataclass(frozen=True)
class TrainingOutput:
    """What a model returns for a training batch: everything from one posterior draw and one prior pass.

    `prior` and `posterior` hold the Gaussians of each latent scale, coarsest first; `kl` is the divergence of
    each scale, summed over its positions and channels and averaged over the batch (App. A). Where they were asked
    for, `sample_logits` are hypotheses from the prior, with gradients.
    """

    logits: Float[Tensor, "b k h w"]
    latents: Sequence[Float[Tensor, "b _ _ _"]]
    prior: Sequence[Gaussian]
    posterior: Sequence[Gaussian]
    kl: Float[Tensor, " scales"]
    sample_logits: Float[Tensor, "b s k h w"] | None = None


@runtime_checkable
class SegmentationModel(Protocol):
    """A conditional model p(segmentation | image) with Gaussian latents at one or more scales.

    `encode` computes once what all hypotheses of an image share, as tensors with a leading batch dimension;
    `decode` turns that and latents into logits; `infer` gives the latents that explain a segmentation.
    """

    in_channels: int
    num_classes: int
    cond_channels: int
    latent_dims: tuple[int, ...]
    size_multiple: int
    check_values: bool

    @property
    def orientations(self) -> int:
        """Of an image, that hypotheses are drawn from: 1, 2, 4 or 8 (`sampling.orient`)."""

    def latent_shapes(self, height: int, width: int) -> list[tuple[int, int, int]]:
        """Shape (z, h_i, w_i) of each latent scale for images of this size, coarsest first."""

    def sampling_modules(self) -> list[nn.Module]:
        """The parts that sampling needs; the rest is for training and reconstruction."""

    def encode(self, *, image: Tensor, cond: Tensor | None = None) -> list[Tensor]:
        """What all hypotheses of an image share."""

    def decode(
        self, features: Sequence[Tensor], *, noise: PerScale | None = None, given: PerScale | None = None
    ) -> tuple[Tensor, list[Tensor], list[Gaussian]]:
        """Logits of one hypothesis an entry, the latents taken, and the prior's Gaussians."""

    def infer(
        self, *, image: Tensor, labels: Tensor, noise: PerScale | None = None
    ) -> tuple[list[Tensor], list[Gaussian]]:
        """The posterior's latents (its means without `noise`) and Gaussians."""


ModelT = TypeVar("ModelT", bound=SegmentationModel)


class SamplerWrapper(Generic[ModelT]):
    """What samples in a model's place: `encode` and `decode` are its own, all else is the model's."""

    def __init__(self, model: ModelT) -> None:
        self.in_channels, self.num_classes, self.cond_channels = (
            model.in_channels,
            model.num_classes,
            model.cond_channels,
        )
        self.latent_dims, self.size_multiple = model.latent_dims, model.size_multiple
        self.model = model

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

    def latent_shapes(self, height: int, width: int) -> list[tuple[int, int, int]]:
        """The model's."""
        return self.model.latent_shapes(height, width)

    def sampling_modules(self) -> list[nn.Module]:
        """The model's."""
        return self.model.sampling_modules()

    def infer(
        self, *, image: Tensor, labels: Tensor, noise: PerScale | None = None
    ) -> tuple[list[Tensor], list[Gaussian]]:
        """The model's: reconstruction is for training-sized images, in the model's own precision."""
        return self.model.infer(image=image, labels=labels, noise=noise)


def check_pair(model: SegmentationModel, *, image: Float[Tensor, "b c h w"], labels: Int[Tensor, "b h w"]) -> None:
    """Raise an error that names what is wrong, if these are not an image and a segmentation of it for this model."""
    check_image(image, channels=model.in_channels, multiple=model.size_multiple, values=model.check_values)
    check_labels(labels, image=image, num_classes=model.num_classes, values=model.check_values)


def posterior_input(
    model: SegmentationModel, *, image: Float[Tensor, "b c h w"], labels: Int[Tensor, "b h w"]
) -> Float[Tensor, "b kc h w"]:
    """Both tensors checked, and joined as the posterior sees them: [one-hot segmentation, image]."""
    check_pair(model, image=image, labels=labels)
    return torch.cat([one_hot(labels, model.num_classes).to(image.dtype), image], dim=1)


def training_pass(
    model: SegmentationModel,
    *,
    image: Float[Tensor, "b c h w"],
    labels: Int[Tensor, "b h w"],
    cond: Float[Tensor, "b e h w"] | None = None,
    noise: PerScale | None = None,
    prior_noise: Sequence[Tensor] | None = None,
) -> TrainingOutput:
    """One posterior draw (from `noise`, or fresh) and one prior pass that is fed those latents (Fig. 1b).

    Logits and KL therefore belong to the same draw, and through it the reconstruction reaches the posterior. With
    `prior_noise`, (b, s, z, h_i, w_i) for each scale, the prior draws s hypotheses of each image besides.
    """
    if noise is None:
        shapes = model.latent_shapes(*image.shape[-2:])
        noise = [torch.randn(image.shape[0], *shape, device=image.device) for shape in shapes]
    latents, posterior = model.infer(image=image, labels=labels, noise=noise)
    features = model.encode(image=image, cond=cond)
    logits, _, prior = model.decode(features, given=latents)
    kl = [kl_divergence(posterior=q, prior=p).mean() for q, p in zip(posterior, prior, strict=True)]
    sample_logits = None
    if prior_noise is not None:
        b, s = prior_noise[0].shape[:2]
        drawn, _, _ = model.decode(
            [repeated(f, s) for f in features], noise=[scale.flatten(0, 1) for scale in prior_noise]
        )
        sample_logits = drawn.unflatten(0, (b, s))
    return TrainingOutput(
        logits=logits,
        latents=latents,
        prior=prior,
        posterior=posterior,
        kl=torch.stack(kl),
        sample_logits=sample_logits,
    )


def repeated(features: Float[Tensor, "b f h w"], times: int) -> Float[Tensor, "n f h w"]:
    """Every image's features so many times, one after the other, in their memory format."""
    if not features.is_contiguous(memory_format=torch.channels_last):
        return features.repeat_interleave(times, dim=0)
    return features.permute(0, 2, 3, 1).repeat_interleave(times, dim=0).permute(0, 3, 1, 2)
