"""The demonstration that `make demo` runs: build a small model, sample from it, and draw what came out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from hpunet.models.hpunet import HPUNet
from hpunet.pictures import grey_or_colour, overlay, save_picture, sheet
from hpunet.sampling import HowToTake, sample

NUM_SAMPLES = 8


def disc_picture(size: int) -> torch.Tensor:
    """A grey picture (1, 1, size, size) of three soft discs on a slope."""
    y, x = torch.meshgrid(torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij")
    image = 0.25 + 0.2 * x
    for cy, cx, radius, height in ((0.3, 0.3, 0.12, 0.5), (0.65, 0.6, 0.2, 0.3), (0.25, 0.75, 0.08, 0.4)):
        distance = ((y - cy) ** 2 + (x - cx) ** 2).sqrt()
        image = image + height * torch.sigmoid((radius - distance) * 40)
    return image.clamp(0, 1)[None, None]


@dataclass(frozen=True)
class DemoResult:
    """What there is to print: where the picture is, the model's size, and how much the hypotheses differ."""

    picture: Path
    num_parameters: int
    latent_shapes: list[tuple[int, int, int]]
    differing: dict[str, float]


def run_demo(out: Path, *, seed: int = 0) -> DemoResult:
    """Sample an untrained model at all scales, at the coarsest alone and at the finest alone, and draw it."""
    torch.manual_seed(seed)
    model = HPUNet(in_channels=1, num_classes=2, channels=(8, 16, 32, 32, 32), latent_dims=(1, 1, 1))
    image = disc_picture(64)
    mean = sample(model, image=image, num_samples=1, latents="mean")
    assert mean.logits is not None
    # An untrained model answers one class everywhere. Shifting the bias to the median of its mean prediction
    # makes the answers vary, so that the picture shows what the latents do.
    with torch.no_grad():
        difference = mean.logits[0, 0, 1] - mean.logits[0, 0, 0]
        assert model.logits.bias is not None
        model.logits.bias[1] -= difference.median()
    rest: list[HowToTake] = ["mean"] * (len(model.latent_dims) - 1)
    rows: dict[str, Literal["sample", "mean"] | list[HowToTake]] = {
        "all scales": "sample",
        "coarsest only": ["sample", *rest],
        "finest only": [*rest, "sample"],
    }
    pixels = image[0].numpy()
    tiles, differing = [], {}
    for name, latents in rows.items():
        generator = torch.Generator().manual_seed(seed)
        drawn = sample(model, image=image, num_samples=NUM_SAMPLES, latents=latents, generator=generator)
        labels = drawn.labels[0]
        differing[name] = float((labels != labels[:1]).float().mean())
        tiles.append([grey_or_colour(pixels), *(overlay(image=pixels, labels=s.numpy()) for s in labels)])
    picture = sheet(
        tiles,
        columns=["image", *(f"hypothesis {i + 1}" for i in range(NUM_SAMPLES))],
        row_titles=list(rows),
        title="An UNTRAINED HPU-Net: the hypotheses differ, but mean nothing yet",
    )
    return DemoResult(
        picture=save_picture(picture, out / "hypotheses.png"),
        num_parameters=sum(p.numel() for p in model.parameters()),
        latent_shapes=model.latent_shapes(64, 64),
        differing=differing,
    )
