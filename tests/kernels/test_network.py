from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from hpunet.errors import ConfigError
from hpunet.kernels import triton_convolution, triton_heads, triton_maps
from hpunet.kernels.network import FusedNetwork, FusedSampler
from hpunet.models.base import SegmentationModel
from hpunet.models.hpunet import HPUNet


def tiny_model() -> HPUNet:
    return HPUNet(in_channels=1, num_classes=2, channels=(12, 16), latent_dims=(1,), blocks_per_scale=1)


def test_parameters_move_to_one_buffer_and_keep_their_values() -> None:
    model = tiny_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    FusedNetwork(model, dtype=torch.float32, size=(8, 8))
    storages = {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert len(storages) == 1
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
        assert p.stride() == before[name].stride()
    other = tiny_model()
    other.load_state_dict(model.state_dict())
    model.load_state_dict(other.state_dict())  # in place
    assert {p.untyped_storage().data_ptr() for p in model.parameters()} == storages


def test_a_sampler_leaves_the_parameters_where_they_are() -> None:
    model = tiny_model()
    places = [p.data_ptr() for p in model.parameters()]
    sampler = FusedSampler(model, dtype=torch.float32)
    assert isinstance(sampler, SegmentationModel)
    sampler.check_values = False
    assert not model.check_values
    assert [p.data_ptr() for p in model.parameters()] == places


def test_a_batch_too_large_for_32_bit_indices_is_refused() -> None:
    network = FusedNetwork(tiny_model(), dtype=torch.bfloat16, size=(8, 8))
    plan = network._plan(8, 8)
    widest = 8 * 8 * (16 + 16 + 8)  # the decoder's input: features from below, of the encoder, latents
    assert plan.max_images == (2**31 - 1) // widest
    plan.max_images = 1
    with pytest.raises(ConfigError, match="at most 1 images of 8x8 at once, got 2"):
        network(image=torch.zeros(2, 1, 8, 8), labels=torch.zeros(2, 8, 8, dtype=torch.long))


def test_a_backward_pass_after_another_forward_pass_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (triton_convolution, triton_heads, triton_maps):
        monkeypatch.setattr(module, "launch", lambda *_args, **_options: None)  # what they compute does not matter
    network = FusedNetwork(tiny_model(), dtype=torch.float32)

    def loss() -> Any:
        return network(image=torch.zeros(1, 1, 8, 8), labels=torch.zeros(1, 8, 8, dtype=torch.long)).logits.sum()

    for _ in range(2):  # accumulation
        loss().backward()
    first, second = loss(), loss()
    with pytest.raises(RuntimeError, match="another forward pass"):
        first.backward()
    second.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="call backward after each forward pass"):
        second.backward()
