import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton.runtime._async_compile import active_mode

from hpunet.errors import ConfigError
from hpunet.kernels import (
    launch,
    triton_convolution,
    triton_heads,
    triton_kl,
    triton_maps,
    triton_random,
    triton_sampling,
)
from hpunet.kernels.failures import failures_named
from hpunet.kernels.network import FusedNetwork
from hpunet.kernels.sampler import FusedSampler
from hpunet.kernels.sampling_tiles import smaller_tiles
from hpunet.kernels.triton_convolution import ConvTiling
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
    assert plan.max_images == (2**31 - 2**16) // widest
    plan.max_images = 1
    with pytest.raises(ConfigError, match=r"at most 1 images of 8x8 at once, got 2; .*accumulation_steps"):
        network(image=torch.zeros(2, 1, 8, 8), labels=torch.zeros(2, 8, 8, dtype=torch.long))


@pytest.mark.parametrize(
    ("pixels", "outputs", "tile"),
    [
        (64 * 64, 96, (128, 64)),  # 32 × 2 programs
        (32 * 32, 96, (32, 32)),  # 32 × 3; with 64 × 32 there are 48
        (16 * 16, 96, (16, 32)),  # 16 × 3, and no smaller
        (256 * 256, 24, (128, 128)),  # 512 already
    ],
)
def test_tiles_for_few_images_are_halved(pixels: int, outputs: int, tile: tuple[int, int]) -> None:
    usual = ConvTiling(py=1, px=1, patches=128, columns=128, chunk=64)
    assert smaller_tiles(usual, pixels, outputs) == replace(usual, patches=tile[0], columns=tile[1])


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> FusedNetwork:
    """A network whose kernels do not run: what they compute does not matter."""
    for module in (triton_convolution, triton_heads, triton_kl, triton_maps, triton_sampling):
        monkeypatch.setattr(module, "launch", lambda *_args, **_options: None)
    return FusedNetwork(tiny_model(), dtype=torch.float32)


def loss_of(network: FusedNetwork, *, side: int = 8) -> Any:
    labels = torch.zeros(1, side, side, dtype=torch.long)
    return network(image=torch.zeros(1, 1, side, side), labels=labels).logits.sum()


def test_a_backward_pass_after_another_forward_pass_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    network = without_kernels(monkeypatch)
    for _ in range(2):  # accumulation
        loss_of(network).backward()
    first, second = loss_of(network), loss_of(network)
    with pytest.raises(RuntimeError, match="another forward pass"):
        first.backward()
    second.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="call backward after each forward pass"):
        second.backward()


def test_logits_of_many_classes_and_heads_count_for_32_bit_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    without_kernels(monkeypatch)
    model = HPUNet(in_channels=1, num_classes=50, channels=(12, 16), latent_dims=(1,), blocks_per_scale=1)
    sampler = FusedSampler(model, dtype=torch.bfloat16)
    plan = sampler._plan("prior", 8, 8)
    assert plan.max_images == (2**31 - 2**16) // (50 * 8 * 8)
    plan.latent_shapes = [(100, 8, 8)]
    assert plan.limit_images([], groups=2, num_classes=50) == (2**31 - 2**16) // (2 * 2 * 100 * 8 * 8)


@pytest.mark.parametrize(("advice", "make"), [("data.crop", FusedNetwork), ("tiles", FusedSampler)])
def test_an_image_too_large_by_itself_is_refused_with_advice_that_helps(
    monkeypatch: pytest.MonkeyPatch, advice: str, make: Any
) -> None:
    without_kernels(monkeypatch)
    network = make(tiny_model(), dtype=torch.bfloat16)
    plan = network._plan("prior", 8, 8) if make is FusedSampler else network._plan(8, 8)
    plan.max_images = 0
    with pytest.raises(ConfigError, match=rf"one image of 8x8; use .*{advice}"):
        network.encode(image=torch.zeros(1, 1, 8, 8)) if make is FusedSampler else loss_of(network)


def test_trying_a_pass_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    without_kernels(monkeypatch)
    monkeypatch.setattr(triton_random, "launch", lambda *_args, **_options: None)
    model = tiny_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    random = torch.get_rng_state()
    network = FusedNetwork(model, dtype=torch.float32, size=(8, 8))
    network.try_pass(3, prior_samples=2)
    assert torch.equal(torch.get_rng_state(), random)
    for name, p in model.named_parameters():
        assert p.grad is None
        assert torch.equal(p, before[name])
    loss_of(network).backward()


def test_compiling_ahead_is_of_its_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Kernel:
        def warmup(self, *_args: Any, **_options: Any) -> None:
            done.append("compiled")

        def __getitem__(self, _grid: object) -> Any:
            return lambda: done.append("launched")

    with launch.compiling_ahead():
        launch.launch(Kernel(), (1,))
        thread = threading.Thread(target=launch.launch, args=(Kernel(), (1,)))
        thread.start()
        thread.join()
    launch.launch(Kernel(), (1,))
    assert done == ["compiled", "launched", "launched"]


def test_a_kernel_that_does_not_compile_raises_when_it_is_launched_not_ahead() -> None:
    def fail() -> None:
        raise RuntimeError("does not compile")

    for _ in range(2):  # Triton would refuse the second time if it were left in its asynchronous mode
        with launch.compiling_ahead():
            active_mode.get().submit("kernel", fail, lambda _kernel: None)
        assert active_mode.get() is None


def test_what_a_compiler_raises_is_named_and_lack_of_memory_is_not_hidden() -> None:
    with pytest.raises(ConfigError, match=r"OSError: no C compiler$"), failures_named():
        raise OSError("no C compiler\nmore")
    with pytest.raises(torch.cuda.OutOfMemoryError), failures_named():
        raise torch.cuda.OutOfMemoryError
    with pytest.raises(ConfigError, match=r"^as it is$"), failures_named():
        raise ConfigError("as it is")


def one_step(model: HPUNet) -> None:
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    torch.optim.SGD(model.parameters(), lr=1.0).step()


def copied(model: HPUNet) -> None:
    with torch.no_grad():
        next(model.parameters()).mul_(2)


@pytest.mark.parametrize(
    "change",
    [copied, one_step, lambda model: model.load_state_dict(tiny_model().state_dict())],
    ids=["copied", "step", "loaded"],
)
def test_a_backward_pass_after_a_change_of_weights_is_refused(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    network = without_kernels(monkeypatch)
    for _ in range(2):  # the first one moves the parameters
        loss = loss_of(network)
        change(network.model)
        with pytest.raises(RuntimeError, match="weights were changed"):
            loss.backward()
        loss_of(network).backward()


def test_a_backward_pass_after_a_flat_adam_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    without_kernels(monkeypatch)
    model = tiny_model()
    network = FusedNetwork(model, dtype=torch.float32, size=(8, 8))
    adam = network.adam([{"params": list(model.parameters())}], fused=True)
    for _ in range(2):  # the first step is torch's, which makes the moments
        loss_of(network).backward()
        gradients = [p.grad for p in model.parameters()]
        late = loss_of(network)
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.grad = gradient
        adam.step()
        with pytest.raises(RuntimeError, match="weights were changed"):
            late.backward()


def test_passes_of_two_sizes_may_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    network = without_kernels(monkeypatch)
    first, second = loss_of(network), loss_of(network, side=16)  # which moves the parameters to its own buffer
    first.backward()
    second.backward()


def test_replaced_parameters_are_refused_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    network = without_kernels(monkeypatch)
    loss_of(network).backward()
    network.model.load_state_dict(tiny_model().state_dict(), assign=True)
    with pytest.raises(RuntimeError, match="other parameters"):
        loss_of(network)


def test_a_sampler_keeps_the_weights_of_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    without_kernels(monkeypatch)
    sampler = FusedSampler(tiny_model(), dtype=torch.float32)
    for side in range(2, 2 * (FusedSampler.MAX_PLANS + 2), 2):
        sampler.encode(image=torch.zeros(1, 1, side, side))
        assert ("prior", side, side) in sampler._plans
    assert len(sampler._plans) == 1


@pytest.mark.parametrize("assign", [False, True])
def test_a_sampler_follows_changes_of_the_weights(monkeypatch: pytest.MonkeyPatch, assign: bool) -> None:
    without_kernels(monkeypatch)
    model = tiny_model()
    sampler = FusedSampler(model, dtype=torch.float32)

    def encoded_with() -> torch.Tensor:
        sampler.encode(image=torch.zeros(1, 1, 8, 8))
        weights = sampler._plan("prior", 8, 8).weights
        return weights.flat[: weights.num_elements].sort().values

    before = encoded_with()
    assert torch.equal(encoded_with(), before)
    model.load_state_dict(tiny_model().state_dict(), assign=assign)
    assert not torch.equal(encoded_with(), before)
