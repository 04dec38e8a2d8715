"""Volumes: what strides mean, and their model against that of images, which is tested against the authors' own."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpunet import ConfigError, HPUNet, ProbUNet, reconstruct, sample
from hpunet.models.base import TrainingOutput
from hpunet.models.blocks import downsample, upsample_linear, upsample_nearest
from hpunet.models.scales import checked_strides, kernel_sizes, shrink_factors
from hpunet.objectives.geco import GECO

IN_SLICES = (1, 2, 2)


def make(kind: type[nn.Module], *, channels: tuple[int, ...] = (4, 6, 8, 8), **changes: Any) -> Any:
    torch.manual_seed(0)
    how: dict[str, Any] = {"latent_dims": (1, 0, 2), "blocks_per_scale": 2} if kind is HPUNet else {"latent_dim": 3}
    model = kind(**{"in_channels": 1, "num_classes": 3, "channels": channels} | how | changes)
    with torch.no_grad():  # away from the initialisation, where biases, and so the effect of borders, are small
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def pair(kind: type[nn.Module]) -> tuple[Any, Any]:
    """A model of images, and one of volumes with the same weights, whose kernels are 1×3×3."""
    images, volumes = make(kind), make(kind, ndim=3, strides=(IN_SLICES,) * 3)
    weights = {name: w.unsqueeze(2) if w.ndim == 4 else w for name, w in images.state_dict().items()}
    volumes.load_state_dict(weights)
    return images, volumes


def batch(depth: int) -> tuple[Tensor, Tensor]:
    """Volumes (2, 1, d, h, w) and labels of two graders (2, 2, d, h, w)."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(3, (2, 2, depth, 24, 40), generator=generator)
    return torch.rand(2, 1, depth, 24, 40, generator=generator), labels


def noise_for(model: Any, *size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(2, *shape, generator=generator) for shape in model.latent_shapes(*size)]


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    """But for rounding, which grows with the numbers that are summed up: 1e-6 of the largest value in float32."""
    assert ours.dtype == theirs.dtype
    share = 1e-6 if theirs.dtype == torch.float32 else 1e-12
    atol = share * float(theirs.detach().abs().max().clamp(min=1)) if theirs.numel() else 0.0
    torch.testing.assert_close(ours.squeeze(-3), theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [HPUNet, ProbUNet])
def test_a_volume_of_one_slice_is_an_image_with_the_same_weights(kind: type[nn.Module], dtype: torch.dtype) -> None:
    (images, volumes), (volume, labels) = pair(kind), batch(1)
    images, volumes, volume = images.to(dtype), volumes.to(dtype), volume.to(dtype)
    image, maps = volume[:, :, 0], labels[:, :, 0]
    noise = noise_for(images, 24, 40)
    expected: TrainingOutput = images(image=image, labels=maps[:, 0], noise=noise)
    assert expected.logits.std() > 0.05
    output = volumes(image=volume, labels=labels[:, 0], noise=[each.unsqueeze(2) for each in noise])
    assert_same(output.logits, expected.logits)
    torch.testing.assert_close(output.kl, expected.kl, rtol=1e-5, atol=1e-6)
    for mine, other in zip((*output.prior, *output.posterior), (*expected.prior, *expected.posterior), strict=True):
        assert_same(mine.mean, other.mean)
        assert_same(mine.log_sigma, other.log_sigma)
    for orientations in (1, 8):  # the same random numbers, too
        images.orientations = volumes.orientations = orientations
        square, flat = volume[..., :24], image[..., :24]
        mine, other = (
            sample(model, image=x, num_samples=3, generator=torch.Generator().manual_seed(3))
            for model, x in ((volumes, square), (images, flat))
        )
        assert_same(mine.logits, other.logits)
        for z, expected_z in zip(mine.latents, other.latents, strict=True):
            assert_same(z, expected_z)
        assert orientations == 1 or torch.equal(mine.orientation_ids, other.orientation_ids)
    mine, other = (
        reconstruct(model, image=x, labels=y) for model, x, y in ((volumes, volume, labels), (images, image, maps))
    )
    assert_same(mine.logits, other.logits)


def test_slices_that_no_kernel_joins_are_images_by_themselves() -> None:
    (images, volumes), (volume, labels) = pair(HPUNet), batch(3)
    noise = noise_for(volumes, 3, 24, 40)
    output = volumes(image=volume, labels=labels[:, 0], noise=noise)
    total = torch.zeros(3)
    for z in range(3):
        own = [each[:, :, z] for each in noise]
        expected = images(image=volume[:, :, z], labels=labels[:, 0, z], noise=own)
        assert_same(output.logits[:, :, z], expected.logits)
        total += expected.kl
    torch.testing.assert_close(output.kl, total, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [HPUNet, ProbUNet])
def test_all_axes_are_treated_alike(kind: type[nn.Module]) -> None:
    """Axes, strides and kernels in another order give the maps in this order: depth works as height does."""
    strides = ((1, 2, 2), (2, 1, 2), (2, 2, 2))
    model, order = make(kind, ndim=3, strides=strides).double(), (1, 2, 0)
    turned = make(kind, ndim=3, strides=[tuple(stride[axis] for axis in order) for stride in strides]).double()
    axes = (0, 1, *(2 + axis for axis in order))
    turned.load_state_dict({n: w.permute(axes) if w.ndim == 5 else w for n, w in model.state_dict().items()})
    volume = torch.rand(2, 1, 8, 12, 16, dtype=torch.float64)
    labels = torch.randint(3, (2, 8, 12, 16))
    noise = noise_for(model, 8, 12, 16)
    output = model(image=volume, labels=labels, noise=noise)
    same = turned(
        image=volume.permute(axes),
        labels=labels.permute(0, *(1 + axis for axis in order)),
        noise=[each.permute(axes) for each in noise],
    )
    torch.testing.assert_close(same.logits, output.logits.permute(axes), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(same.kl, output.kl, rtol=1e-9, atol=1e-9)


def test_gradients_reach_what_lies_in_other_slices() -> None:
    """A label's loss depends on neighbouring slices of the image and, through the latents, of the labels."""
    model = make(HPUNet, ndim=3, strides=(IN_SLICES, (2, 2, 2), (2, 2, 2)))
    image, labels = torch.rand(1, 1, 8, 16, 16, requires_grad=True), torch.randint(3, (1, 8, 16, 16))
    valid = torch.zeros(1, 8, 16, 16, dtype=torch.bool)
    valid[:, 4] = True
    output = model(image=image, labels=labels)
    terms = GECO(kappa=0.05)(output, labels=labels, valid=valid)
    terms.loss.backward()
    assert int(terms.num_kept) == 8 * 16 * 16 * 2 // 100
    assert (image.grad.abs().amax(dim=(0, 1, 3, 4)) > 0).all()


def test_hpunet_parameters_of_slices_far_apart_counted_by_hand() -> None:
    """Kernels are 1×3×3 (9 weights) at the finest scale and 3×3×3 (27) at the others."""
    encoder = {
        "4 of 1": (9 * 1 * 2 + 2) + 2 * (9 * 2 * 2 + 2) + (2 * 4 + 4) + (1 * 4 + 4),
        "6 of 4": (27 * 4 * 3 + 3) + 2 * (27 * 3 * 3 + 3) + (3 * 6 + 6) + (4 * 6 + 6),
        "8 of 6": (27 * 6 * 4 + 4) + 2 * (27 * 4 * 4 + 4) + (4 * 8 + 8) + (6 * 8 + 8),
    }
    assert list(encoder.values()) == [116, 873, 1620]
    heads = (8 * 2 + 2) + (6 * 4 + 4)  # mean and log σ of 1 channel, and of 2
    upper = (27 * 15 * 3 + 3) + 2 * (27 * 3 * 3 + 3) + (3 * 6 + 6) + (15 * 6 + 6)  # of 1 latent, 8 and 6 channels
    finest = (9 * 12 * 2 + 2) + 2 * (9 * 2 * 2 + 2) + (2 * 4 + 4) + (12 * 4 + 4)  # of 2 latents, 6 and 4 channels
    prior = 116 + 873 + 1620 + heads + upper + finest
    sees_labels = (9 * 3 * 2 + 2) + 2 * (9 * 2 * 2 + 2) + (2 * 4 + 4) + (3 * 4 + 4)
    posterior = sees_labels + 873 + 1620 + heads + upper
    assert (prior, posterior) == (4843, 4529)
    how: dict[str, Any] = {"in_channels": 1, "num_classes": 2, "channels": (4, 6, 8), "latent_dims": (1, 2)}
    model = HPUNet(**how, blocks_per_scale=1, ndim=3, strides=((1, 2, 2), (2, 2, 2)))
    assert sum(p.numel() for p in model.parameters()) == prior + posterior + (4 * 2 + 2) == 9382


def test_punet_parameters_of_volumes_counted_by_hand() -> None:
    stages = {
        "4 of 1": (27 * 1 * 4 + 4) + 2 * (27 * 4 * 4 + 4),
        "4 of 3": (27 * 3 * 4 + 4) + 2 * (27 * 4 * 4 + 4),  # of the posterior, which sees image and labels
        "8 of 4": (27 * 4 * 8 + 8) + 2 * (27 * 8 * 8 + 8),
        "4 of 12": (27 * 12 * 4 + 4) + 2 * (27 * 4 * 4 + 4),  # the decoder
    }
    assert list(stages.values()) == [984, 1200, 4344, 2172]
    head, combine, logits = 8 * 6 + 6, (7 * 4 + 4) + 2 * (4 * 4 + 4), 4 * 2 + 2
    expected = (984 + 4344) + 2172 + (984 + 4344 + head) + (1200 + 4344 + head) + combine + logits
    model = ProbUNet(in_channels=1, num_classes=2, channels=(4, 8), latent_dim=3, ndim=3)
    assert sum(p.numel() for p in model.parameters()) == expected == 18562


@pytest.mark.parametrize(
    ("strides", "kernels", "multiples"),
    [
        (None, [(3, 3, 3)] * 4, (8, 8, 8)),
        ((IN_SLICES,) * 3, [(1, 3, 3)] * 4, (1, 8, 8)),
        (((1, 2, 2), (2, 2, 2), (1, 2, 2)), [(1, 3, 3), (3, 3, 3), (3, 3, 3), (3, 3, 3)], (2, 8, 8)),
        (((1, 2, 2), (1, 2, 2), (2, 2, 2)), [(1, 3, 3), (1, 3, 3), (3, 3, 3), (3, 3, 3)], (2, 8, 8)),
        (((2, 1, 1), (1, 2, 1), (2, 2, 1)), [(3, 1, 1), (3, 3, 1), (3, 3, 1), (3, 3, 1)], (4, 4, 1)),
    ],
)
def test_kernels_and_sizes_follow_from_strides(
    strides: tuple[tuple[int, ...], ...] | None, kernels: list[tuple[int, ...]], multiples: tuple[int, ...]
) -> None:
    checked = checked_strides(strides, ndim=3, num_scales=4)
    assert kernel_sizes(checked) == kernels
    assert shrink_factors(checked)[-1] == multiples
    for kind in (HPUNet, ProbUNet):
        model = make(kind, ndim=3, strides=strides)
        assert model.size_multiples == multiples
        net = model.prior.encoder
        stages = net if kind is HPUNet else net.stages
        found = [next(m for m in stage.modules() if isinstance(m, nn.Conv3d)).kernel_size for stage in stages]
        assert found == kernels
        decoder = model.prior.decoder if kind is HPUNet else model.decoder
        found = [next(m for m in stage.modules() if isinstance(m, nn.Conv3d)).kernel_size for stage in decoder]
        assert found == kernels[-2::-1]


def test_latents_of_volumes_are_grids() -> None:
    model = make(HPUNet, ndim=3, strides=((1, 2, 2), (2, 2, 2), (1, 2, 2)))
    assert model.latent_shapes(12, 64, 32) == [(1, 6, 8, 4), (0, 6, 16, 8), (2, 12, 32, 16)]
    assert make(ProbUNet, ndim=3).latent_shapes(16, 64, 32) == [(3, 1, 1, 1)]


@pytest.mark.parametrize("kind", [HPUNet, ProbUNet])
@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"ndim": 4}, "ndim: expected 2 for images or 3 for volumes, got 4"),
        ({"strides": ((2, 2),) * 3}, "strides: only with ndim=3"),
        ({"ndim": 3, "strides": ((2, 2, 2),) * 2}, "strides: expected 3 times 3 numbers"),
        ({"ndim": 3, "strides": ((2, 2),) * 3}, "strides: expected 3 times 3 numbers"),
        ({"ndim": 3, "strides": ((1, 1, 1),) * 3}, "not all of them 1"),
        ({"ndim": 3, "strides": ((3, 2, 2),) * 3}, "each 1 or 2"),
    ],
)
def test_impossible_strides_are_named(kind: type[nn.Module], changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make(kind, **changes)


@pytest.mark.parametrize("stride", [(1, 2, 2), (2, 2, 2), (2, 1, 2), (2, 1, 1)])
@pytest.mark.parametrize("channels_last", [True, False])
def test_resampling_is_that_of_torch(stride: tuple[int, ...], channels_last: bool) -> None:
    x = torch.rand(2, 3, 4, 6, 8)
    x = x.contiguous(memory_format=torch.channels_last_3d if channels_last else torch.contiguous_format)
    interpolate = nn.functional.interpolate
    for found, expected in (
        (downsample(x, stride), nn.functional.avg_pool3d(x, stride)),
        (upsample_nearest(x, stride), interpolate(x, scale_factor=stride, mode="nearest")),
        (upsample_linear(x, stride), interpolate(x, scale_factor=stride, mode="trilinear", align_corners=True)),
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        assert found.is_contiguous(memory_format=torch.channels_last_3d) == channels_last
