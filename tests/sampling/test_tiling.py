"""Tiled sampling gives what the whole image gives, up to rounding and everywhere."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from hpunet.errors import ConfigError
from hpunet.models.blocks import upsample_linear
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet
from hpunet.sampling.sample import Samples, reconstruct, sample, stream
from hpunet.sampling.tiling import (
    DEFAULT_TILE,
    MAX_UNTILED_PIXELS,
    Padding,
    Tiled,
    Window,
    as_source,
    choose_sampler,
    receptive_margin,
    upsample_linear_window,
)


def make(kind: str, *, channels_last: bool = True) -> HPUNet | ProbUNet:
    torch.manual_seed(0)
    how = {"in_channels": 1, "num_classes": 2, "channels_last": channels_last}
    if kind == "hpu":
        model = HPUNet(**how, channels=(4, 6, 6, 8, 8), latent_dims=(1, 0, 1), blocks_per_scale=2)
    else:
        model = ProbUNet(**how, channels=(4, 6, 8, 8))
    with torch.no_grad():  # away from the initialisation, where biases, and so the effect of borders, are small
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


STRIDES = {
    "isotropic": None,
    "far-slices": ((1, 2, 2), (2, 2, 2), (2, 2, 2)),
    "flat": ((1, 2, 2),) * 3,
    "uneven": ((1, 2, 2), (2, 1, 2), (2, 2, 1)),
}


def make_of_volumes(kind: str, strides: str, *, channels_last: bool = True) -> HPUNet | ProbUNet:
    torch.manual_seed(0)
    how = {"in_channels": 1, "num_classes": 3, "ndim": 3, "strides": STRIDES[strides], "channels_last": channels_last}
    if kind == "hpu":
        model = HPUNet(**how, channels=(4, 6, 8, 8), latent_dims=(1, 0, 1), blocks_per_scale=2)
    else:
        model = ProbUNet(**how, channels=(4, 6, 8, 8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_((0.02 if kind == "hpu" else 0.1) * torch.randn_like(parameter))
    return model.eval()


def draw(model: HPUNet | ProbUNet | Tiled, image: Tensor, num_samples: int) -> Samples:
    return sample(model, image=image, num_samples=num_samples, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["hpu", "punet"])
def test_tiled_sampling_of_a_large_image_equals_the_whole(kind: str) -> None:
    model, image = make(kind), torch.rand(1, 1, 512, 512)
    whole, tiled = (draw(m, image, 2) for m in (model, Tiled(model, tile=128)))
    assert whole.logits.std() > 0.05
    assert (whole.logits - tiled.logits).abs().max() < 1e-5  # the image's borders included
    for mine, other in zip(whole.latents, tiled.latents, strict=True):
        assert torch.allclose(mine, other, atol=1e-5)


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("kind", ["hpu", "punet"])
def test_tiles_that_do_not_divide_the_image_and_odd_scales(kind: str, channels_last: bool) -> None:
    model, image = make(kind, channels_last=channels_last), torch.rand(2, 1, 80, 112)  # 5 × 7 at the coarsest
    whole = draw(model, image, 3)
    for tile in (16, 30, 100, 200):
        tiled = draw(Tiled(model, tile=tile), image, 3)
        assert (whole.logits - tiled.logits).abs().max() < 1e-5, tile


def test_margin_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the same comparison fails: the tests above can."""
    model, image = make("hpu"), torch.rand(1, 1, 64, 64)
    assert receptive_margin(model.prior.encoder[0]) == (6, 6)  # 2 blocks of three 3×3 convolutions
    monkeypatch.setattr(
        "hpunet.sampling.tiling.receptive_margin", lambda stage: tuple(n - 2 for n in receptive_margin(stage))
    )
    draws = [sample(m, image=image, num_samples=1, latents="mean") for m in (model, Tiled(model, tile=32))]
    assert (draws[0].logits - draws[1].logits).abs().max() > 1e-4


def test_tiles_decide_the_memory_at_every_scale() -> None:
    how = {"in_channels": 1, "num_classes": 2, "channels": (4, 8, 16, 32)}
    for model in (HPUNet(**how, latent_dims=(1,), blocks_per_scale=1), ProbUNet(**how)):
        inputs: list[int] = []
        for module in model.modules():
            if isinstance(module, torch.nn.Conv2d):
                module.register_forward_hook(lambda _m, args, _o, inputs=inputs: inputs.append(args[0].numel()))
        tiled, image = Tiled(model, tile=64), torch.rand(1, 1, 256, 256)
        features = tiled.encode(image=image)
        tiled.decode(features)
        assert max(inputs) <= (64 + 16) ** 2 * (4 + 8) * 1.5  # with margins, which count for more in smaller tiles
        if isinstance(model, HPUNet):
            assert features[-1].shape == image.shape  # features of the finest scale are computed again


def test_upsample_linear_window_is_a_window_of_the_whole() -> None:
    x = torch.rand(1, 2, 300, 7)
    window = Window((slice(410, 600), slice(3, 14)))
    assert torch.allclose(upsample_linear_window(x, window), window.of(upsample_linear(x)), rtol=0, atol=1e-6)


def linear_by_loops(x: np.ndarray, factors: tuple[int, ...]) -> np.ndarray:
    """The slow twin of upsampling one map with aligned corners: every output from its definition, in float64."""
    out = np.zeros([n * factor for n, factor in zip(x.shape, factors, strict=True)])
    for place in np.ndindex(*out.shape):
        places = [p * (n - 1) / max(1, m - 1) for p, n, m in zip(place, x.shape, out.shape, strict=True)]
        for corner in np.ndindex(*[2] * x.ndim):
            cells = [min(int(p) + c, n - 1) for p, c, n in zip(places, corner, x.shape, strict=True)]
            shares = [p % 1 if c else 1 - p % 1 for p, c in zip(places, corner, strict=True)]
            out[place] += np.prod(shares) * x[tuple(cells)]
    return out


@pytest.mark.parametrize("stride", [(2, 2, 2), (1, 2, 2), (2, 1, 2)])
def test_upsample_linear_window_of_a_volume_is_a_window_of_the_slow_twin(stride: tuple[int, ...]) -> None:
    x = torch.rand(1, 2, 3, 5, 4)
    whole = torch.stack([torch.from_numpy(linear_by_loops(maps.numpy(), stride)) for maps in x[0]])[None]
    torch.testing.assert_close(upsample_linear(x, stride), whole.float(), rtol=0, atol=1e-6)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        ends = [torch.randperm(n + 1, generator=generator)[:2].sort().values.tolist() for n in whole.shape[2:]]
        window = Window(tuple(slice(*of_axis) for of_axis in ends))
        found = upsample_linear_window(x, window, stride)
        torch.testing.assert_close(found, window.of(whole).float(), rtol=0, atol=1e-6)


def test_stream_yields_what_sample_returns() -> None:
    model, image = make("hpu"), torch.rand(1, 1, 256, 256)
    whole = sample(model, image=image, num_samples=3, generator=torch.Generator().manual_seed(4))
    numbers, parts = zip(
        *stream(model, image=image, num_samples=3, generator=torch.Generator().manual_seed(4)), strict=True
    )
    assert numbers == ([0], [1], [2])
    assert [part.labels.shape[1] for part in parts] == [1, 1, 1]
    assert torch.equal(torch.cat([part.labels for part in parts], dim=1), whole.labels)
    assert torch.equal(torch.cat([part.probs for part in parts], dim=1), whole.probs)
    assert not parts[0].probs.requires_grad


def test_tiled_refuses_what_it_cannot_do() -> None:
    for tile in (15, 8, 0):
        with pytest.raises(ConfigError, match="tile: expected an even number"):
            Tiled(make("hpu"), tile=tile)
    with pytest.raises(ConfigError, match="extrapolation"):
        Tiled(HPUNet(in_channels=1, num_classes=2, channels=(4, 4), latent_dims=(1,), cond_channels=2), tile=16)


@pytest.mark.parametrize("kind", ["hpu", "punet"])
def test_tiled_reconstructions_equal_those_of_the_whole(kind: str) -> None:
    model, image = make(kind), torch.rand(2, 1, 80, 112)
    labels = torch.randint(2, (2, 3, 80, 112))
    whole = reconstruct(model, image=image, labels=labels)
    for tile in (16, 30, 200):
        tiled = reconstruct(Tiled(model, tile=tile), image=image, labels=labels)
        assert (whole.logits - tiled.logits).abs().max() < 1e-5, tile
        assert torch.equal(whole.labels, tiled.labels)
        for mine, other in zip(whole.latents, tiled.latents, strict=True):
            assert mine.numel() == 0 or mine.abs().max() > 0
            assert torch.allclose(mine, other, atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(30, 33), (64, 32), (5, 1)])
def test_padding_repeats_the_border_and_is_undone(height: int, width: int) -> None:
    padding, image = Padding.of(height, width, multiples=(16, 16)), torch.rand(2, 1, height, width)
    padded = padding.add(image)
    h, w = padded.shape[2:]
    before, after = (-height % 16 // 2, -width % 16 // 2), (-(height % -16 // 2), -(width % -16 // 2))
    assert (h % 16, w % 16) == (0, 0)
    assert (h - height, w - width) == tuple(a + b for a, b in zip(before, after, strict=True))
    sides = (before[1], after[1], before[0], after[0])
    assert torch.equal(padded, pad(image, sides, mode="replicate"))
    assert torch.equal(padded[padding.inside], image)
    assert padding.add((9 * image).long()).dtype == torch.int64


@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize("kind", ["hpu", "punet"])
def test_tiled_volumes_equal_the_whole(kind: str, strides: str) -> None:
    """Sides are no multiples of the tiles, and the grid of the coarsest scale is odd."""
    model, volume = make_of_volumes(kind, strides), torch.rand(1, 1, 24, 40, 56)
    whole = draw(model, volume, 2)
    assert whole.logits.std() > 0.02
    for tile in (16, 22):
        tiled = draw(Tiled(model, tile=tile), volume, 2)
        assert (whole.logits - tiled.logits).abs().max() < 1e-5, tile  # the volume's borders included
        for mine, other in zip(whole.latents, tiled.latents, strict=True):
            assert torch.allclose(mine, other, atol=1e-5)


@pytest.mark.parametrize("kind", ["hpu", "punet"])
def test_tiled_reconstructions_of_volumes_equal_those_of_the_whole(kind: str) -> None:
    model = make_of_volumes(kind, "far-slices", channels_last=False)
    volume, labels = torch.rand(2, 1, 20, 24, 40), torch.randint(3, (2, 2, 20, 24, 40))
    whole, tiled = (reconstruct(m, image=volume, labels=labels) for m in (model, Tiled(model, tile=16)))
    assert (whole.logits - tiled.logits).abs().max() < 1e-5
    for mine, other in zip(whole.latents, tiled.latents, strict=True):
        assert torch.allclose(mine, other, atol=1e-5)


def test_tiled_volumes_in_all_orientations_equal_the_whole() -> None:
    model, volume = make_of_volumes("hpu", "far-slices"), torch.rand(1, 1, 4, 40, 40)
    model.orientations = 8
    whole, tiled = (draw(m, volume, 4) for m in (model, Tiled(model, tile=16)))
    assert torch.equal(whole.orientation_ids, tiled.orientation_ids)
    assert len(set(whole.orientation_ids.flatten().tolist())) > 2
    assert (whole.logits - tiled.logits).abs().max() < 1e-5


@pytest.mark.parametrize("axis", range(3))
def test_margins_are_needed_along_each_axis(axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, volume = make_of_volumes("hpu", "far-slices"), torch.rand(1, 1, 40, 40, 40)
    assert receptive_margin(model.prior.encoder[0]) == (0, 6, 6)  # kernels are 1×3×3
    assert receptive_margin(model.prior.encoder[1]) == (6, 6, 6)

    def less(stage: nn.Module) -> tuple[int, ...]:
        return tuple(max(0, n - 4) if i == axis else n for i, n in enumerate(receptive_margin(stage)))

    monkeypatch.setattr("hpunet.sampling.tiling.receptive_margin", less)
    draws = [sample(m, image=volume, num_samples=1, latents="mean") for m in (model, Tiled(model, tile=16))]
    assert (draws[0].logits - draws[1].logits).abs().max() > 1e-5


@pytest.mark.parametrize("kind", ["hpu", "punet"])
def test_a_stage_computes_any_window_as_the_whole_map_does(kind: str) -> None:
    model = make_of_volumes(kind, "far-slices")
    tiled, generator = Tiled(model, tile=16), torch.Generator().manual_seed(0)
    stages = model.prior.encoder if kind == "hpu" else model.encoder.stages
    size = (10, 26, 18)
    for stage in stages[:2]:
        channels = next(m.in_channels for m in stage.modules() if isinstance(m, nn.Conv3d))
        x = torch.rand(1, channels, *size)
        whole, computed = stage(x), tiled._computed(stage, as_source(x), size=size)
        for _ in range(10):
            starts = [2 * int(torch.randint(n // 2, (1,), generator=generator)) for n in size]
            sides = [2 * int(torch.randint(1, 5, (1,), generator=generator)) for _ in size]
            ends = [min(start + side, n) for start, side, n in zip(starts, sides, size, strict=True)]
            window = Window(tuple(slice(*ends_of) for ends_of in zip(starts, ends, strict=True)))
            torch.testing.assert_close(computed(window), window.of(whole), rtol=0, atol=1e-5)


def test_tiles_decide_the_memory_of_volumes() -> None:
    """In a larger volume, the largest input of a convolution is the same."""
    for kind in ("hpu", "punet"):
        model = make_of_volumes(kind, "far-slices")
        inputs: list[int] = []
        for module in model.modules():
            if isinstance(module, nn.Conv3d):
                module.register_forward_hook(lambda _m, args, _o, inputs=inputs: inputs.append(args[0].numel()))
        tiled, peaks = Tiled(model, tile=16), []
        for size in ((8, 96, 96), (8, 96, 128)):
            inputs.clear()
            features = tiled.encode(image=torch.rand(1, 1, *size))
            tiled.decode(features)
            peaks.append(max(inputs))
            if kind == "hpu":
                assert features[-1].shape == (1, 1, *size)  # features of the finest scale are computed again
        assert peaks[0] == peaks[1]


def test_voxels_decide_whether_a_volume_is_tiled() -> None:
    model = make_of_volumes("hpu", "flat")
    assert MAX_UNTILED_PIXELS == 16 * 256 * 256
    assert choose_sampler(model, size=(16, 256, 256)) is model
    tiled = choose_sampler(model, size=(17, 256, 256))
    assert isinstance(tiled, Tiled)
    assert tiled.tile == DEFAULT_TILE[3]
    assert choose_sampler(model, size=(64, 256, 256), tile="whole") is model
    assert choose_sampler(make("hpu"), size=(1040, 1024)).tile == DEFAULT_TILE[2]


@pytest.mark.parametrize("size", [(5, 30, 33), (4, 64, 32), (1, 5, 1)])
def test_padding_of_volumes_repeats_the_border_and_is_undone(size: tuple[int, ...]) -> None:
    multiples = (2, 16, 16)
    padding, volume = Padding.of(*size, multiples=multiples), torch.rand(2, 1, *size)
    padded = padding.add(volume)
    assert padding.size == padded.shape[2:] == tuple(n + -n % m for n, m in zip(size, multiples, strict=True))
    before = [-n % m // 2 for n, m in zip(size, multiples, strict=True)]
    after = [-n % m - b for n, m, b in zip(size, multiples, before, strict=True)]
    sides = [side for pair in zip(before[::-1], after[::-1], strict=True) for side in pair]
    assert torch.equal(padded, pad(volume, sides, mode="replicate"))
    assert torch.equal(padded[padding.inside], volume)
