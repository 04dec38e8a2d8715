"""Tiled sampling gives what the whole image gives, up to rounding and everywhere."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from hpunet.errors import ConfigError
from hpunet.models.blocks import upsample_linear
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet
from hpunet.sampling.sample import Samples, reconstruct, sample, stream
from hpunet.sampling.tiling import Padding, Tiled, Window, receptive_margin, upsample_linear_window


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
