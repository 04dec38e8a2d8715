"""Sampling on a CPU against the plain model: shared features, fused convolutions, bfloat16."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpunet import ConfigError, HPUNet, ProbUNet, reconstruct, sample
from hpunet.kernels.dispatch import fast_sampler
from hpunet.models import cpu_sampler, fused_conv
from hpunet.models.cpu_sampler import CPUSampler, bfloat16_speed, on_cpu
from hpunet.models.fused_conv import FusedConv
from hpunet.sampling.orientations import encode_orientations

CPU = torch.device("cpu")
NEEDS_BFLOAT16 = pytest.mark.skipif(bfloat16_speed() == 0, reason="the CPU has no bf16 instructions")


def model_of(seed: int = 0, **changes: Any) -> HPUNet:
    torch.manual_seed(seed)
    how = {"in_channels": 2, "num_classes": 3, "channels": (8, 6, 12, 12), "latent_dims": (1, 0, 2)} | changes
    model = HPUNet(**how)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.3)
    return model


def inputs(model: HPUNet, *, batch: int = 3) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    noise = [torch.randn(batch, *shape, generator=generator) for shape in model.latent_shapes(16, 40)]
    return {"image": torch.rand(batch, model.in_channels, 16, 40, generator=generator), "noise": noise}


def decoded(model: Any, image: Tensor, noise: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    with torch.no_grad():
        logits, latents, gaussians = model.decode(model.encode(image=image), noise=noise)
    assert len(gaussians) == len(latents)
    return logits, latents


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "changes", [{}, {"blocks_per_scale": 1}, {"in_channels": 8}, {"latent_dims": (1,)}, {"channels": (4, 4)}]
)
def test_cpu_sampler_computes_what_the_model_does(
    changes: dict[str, Any], fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if changes.get("channels") == (4, 4):
        changes = changes | {"latent_dims": (2,)}
    model = model_of(**changes)
    given = inputs(model)
    exact = decoded(model_of(**changes).double(), given["image"].double(), [n.double() for n in given["noise"]])[0]
    before = given["image"].clone()
    expected = decoded(model, **given)
    monkeypatch.setattr(fused_conv, "_works", lambda: fused)
    found = decoded(CPUSampler(model), **given)
    assert torch.equal(given["image"], before)
    error, plain = ((logits - exact).abs().max() for logits in (found[0], expected[0]))
    assert error < 2 * plain + 1e-6
    for mine, theirs in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_sampling_and_reconstructing_are_those_of_the_plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, labels = model_of(), torch.zeros(2, 2, 16, 24, dtype=torch.long)
    model.orientations = 4
    image = torch.rand(2, 2, 16, 24)

    def run() -> list[Any]:
        drawn = sample(model, image=image, num_samples=9, generator=torch.Generator().manual_seed(3))
        return [drawn, reconstruct(model, image=image, labels=labels)]

    assert isinstance(encode_orientations(model, image=image).model, CPUSampler)
    shared = run()
    for place in ("orientations", "sample"):
        monkeypatch.setattr(f"hpunet.sampling.{place}.on_cpu", lambda model: model)
    for found, expected in zip(shared, run(), strict=True):
        assert not torch.equal(found.logits, expected.logits)  # else it was not used
        assert (found.logits - expected.logits).abs().max() < 1e-5 * expected.logits.abs().max()
        assert torch.equal(found.labels, expected.labels)


def test_one_hypothesis_leaves_the_features_as_they_are() -> None:
    model, image = model_of(), torch.rand(1, 2, 16, 16)
    features = encode_orientations(model, image=image)
    assert features.together is not None
    before = [map_.clone() for map_ in features.together]
    drawn = [sample(model, image=image, num_samples=1, latents="mean", features=features).logits for _ in range(2)]
    assert torch.equal(*drawn)  # type: ignore[arg-type]
    assert all(map(torch.equal, features.together, before))


def test_what_hypotheses_share_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, plain = [], F.conv2d
    monkeypatch.setattr(fused_conv, "_works", lambda: False)
    monkeypatch.setattr(F, "conv2d", lambda x, *a, **how: counts.append(len(x)) or plain(x, *a, **how))
    model = model_of(blocks_per_scale=1)
    sample(model, image=torch.rand(1, 2, 16, 16), num_samples=6, chunk_size=3)
    # Encoder: four blocks of four layers, skips where the width changes, and what three scales of the decoder share.
    # Decoder: for each of three scales a skip and the block's other layers, two heads, and the logits.
    assert counts == [1] * (4 * 4 + 3 + 3 * 2) + 2 * [3] * (3 * (1 + 3) + 2 + 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.prior.encoder[0].register_forward_hook(lambda *_: None),
        lambda model: model.prior.decoder[0][0].convs[1].register_forward_pre_hook(lambda *_: None),
        lambda model: setattr(
            model.prior.decoder[0][0], "skip", nn.Sequential(model.prior.decoder[0][0].skip, nn.ReLU())
        ),
        lambda model: torch.nn.utils.parametrizations.weight_norm(model.logits),
        lambda model: model.double(),
        lambda model: setattr(model, "channels_last", False),
    ],
)
def test_models_that_were_changed_sample_as_they_are(change: Any) -> None:
    model = model_of()
    assert isinstance(on_cpu(model), CPUSampler)
    change(model)
    assert on_cpu(model) is model


def test_other_models_and_contexts_sample_as_they_are() -> None:
    punet, model = ProbUNet(in_channels=1, num_classes=2, channels=(4, 6)), model_of()
    assert on_cpu(punet) is punet
    sampler = CPUSampler(model)
    assert on_cpu(sampler) is sampler
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert on_cpu(model) is model


def test_weights_that_change_are_seen_by_the_next_sample() -> None:
    model, image = model_of(), torch.rand(1, 2, 16, 16)

    def draw() -> Tensor:
        return sample(model, image=image, num_samples=2, latents="mean").labels

    draw()
    with torch.no_grad():
        model.logits.weight.zero_()
        model.logits.bias.copy_(torch.tensor([0.0, 0.0, 1.0]))
    assert (draw() == 2).all()


@NEEDS_BFLOAT16
def test_bfloat16_is_as_close_to_float32_as_the_plain_model_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_sampler, "bfloat16_speed", lambda: 2.0)
    model = model_of()
    sampler, given = fast_sampler(model, kernels="fused", device=CPU), inputs(model)
    assert sampler.encode(image=given["image"])[1].dtype == torch.bfloat16
    expected, found = (decoded(each, **given)[0] for each in (model, sampler))
    assert found.dtype == model.logits.weight.dtype == torch.float32
    plain = decoded(model.bfloat16(), given["image"].bfloat16(), given["noise"])[0]
    error, usual = ((logits - expected).square().mean().sqrt() for logits in (found, plain))
    assert 0.1 * usual < error < 1.5 * usual


@pytest.mark.parametrize(
    ("speed", "words"),
    [
        (0.0, "need a CUDA GPU or a CPU with bf16 instructions"),
        (0.6, "bf16, 0.6 times as fast as float32 on this CPU;"),
    ],
)
def test_fused_kernels_are_refused_where_bfloat16_is_not_faster(
    speed: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_sampler, "bfloat16_speed", lambda: speed)
    with pytest.raises(ConfigError, match=words):
        fast_sampler(model_of(), kernels="fused", device=CPU)
    assert fast_sampler(model_of(), kernels="auto", device=CPU) is None
    monkeypatch.setattr(cpu_sampler, "bfloat16_speed", lambda: 2.0)
    with pytest.raises(ConfigError, match="HPU-Net only, this is a ProbUNet"):
        fast_sampler(ProbUNet(in_channels=1, num_classes=2, channels=(4, 6)), kernels="fused", device=CPU)


def test_bfloat16_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = bfloat16_speed()
    monkeypatch.setattr(cpu_sampler, "thread_time", lambda: pytest.fail("measured again"))
    assert bfloat16_speed() == first


def test_bfloat16_is_compared_by_the_shortest_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    monkeypatch.setattr(FusedConv, "__call__", lambda _conv, x: x)
    seconds = [9, *[4] * 7, 3, *[2] * 7]  # of eight calls in float32, then in bfloat16
    clock = iter([tick for taken in seconds for tick in (0, taken)])
    monkeypatch.setattr(cpu_sampler, "thread_time", lambda: next(clock))
    threads = torch.get_num_threads()
    assert bfloat16_speed.__wrapped__() == 2
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("size", [1, 3])
def test_convolutions_include_what_follows(size: int, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_conv, "_works", lambda: fused)
    layer = nn.Conv2d(3, 5, kernel_size=size, padding=size // 2).requires_grad_(False)
    assert layer.bias is not None
    conv = FusedConv(layer.weight, layer.bias)
    for shape in ((2, 3, 7, 9), (1, 3, 4, 4)):  # the second with weights as the first needs them
        x = torch.randn(shape)
        expected = layer(x)
        total = torch.randn_like(expected)
        torch.testing.assert_close(conv(x), expected)
        torch.testing.assert_close(conv(x, relu=True), expected.clamp(min=0))
        torch.testing.assert_close(FusedConv(layer.weight, None)(x), expected - layer.bias.view(-1, 1, 1))
        added = conv.add_to(given := total.clone(), x)
        torch.testing.assert_close(added, expected + total)
        assert added.data_ptr() == given.data_ptr()


def test_plain_convolutions_run_where_torch_lacks_the_fused_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Tensor:
        raise AttributeError

    for broken in (missing, lambda _self, x, *, relu: x):  # missing, or it does something else
        monkeypatch.setattr(FusedConv, "_fused", broken)
        assert not fused_conv._works.__wrapped__()  # type: ignore[attr-defined]
