"""One contract for every model: what `SegmentationModel` promises, on tiny networks of each kind, 2D and 3D."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hpunet import ConfigError, DataError, HPUNet, ProbUNet
from hpunet.models.base import SegmentationModel
from hpunet.models.blocks import is_channels_last
from hpunet.objectives.elbo import ELBO
from hpunet.utils.tensors import by, check_image, check_labels, in_words

SIZES = {2: (32, 64), 3: (4, 16, 24)}
FAR_SLICES = ((1, 2, 2), (2, 2, 2), (1, 2, 2))


def hpu(**changes: object) -> HPUNet:
    settings = {"in_channels": 1, "num_classes": 3, "channels": (8, 16, 16, 16), "latent_dims": (1, 1)}
    return HPUNet(**settings | {"blocks_per_scale": 2} | changes)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "hpu": hpu,
    "hpu-one-block-colour": lambda: hpu(in_channels=3, blocks_per_scale=1),
    "hpu-local": lambda: hpu(latent_dims=(0, 0, 1)),
    "hpu-global": lambda: hpu(latent_dims=(7,)),
    "hpu-wide-latents": lambda: hpu(latent_dims=(3, 2)),
    "hpu-five-latent-scales": lambda: hpu(channels=(8,) * 6, latent_dims=(1, 1, 1, 1, 1)),
    "hpu-checkpointing": lambda: hpu(activation_checkpointing=True),
    "punet": lambda: ProbUNet(in_channels=1, num_classes=3, channels=(4, 8, 8), latent_dim=3),
    "hpu-volume": lambda: hpu(ndim=3, channels=(8, 16, 16)),
    "hpu-far-slices": lambda: hpu(ndim=3, strides=FAR_SLICES, latent_dims=(1, 0, 2)),
    "hpu-volume-checkpointing": lambda: hpu(ndim=3, channels=(8, 16, 16), activation_checkpointing=True),
    "punet-volume": lambda: ProbUNet(in_channels=1, num_classes=3, channels=(4, 8, 8), latent_dim=3, ndim=3),
    "punet-far-slices": lambda: ProbUNet(
        in_channels=2, num_classes=3, channels=(4, 8, 8), latent_dim=3, ndim=3, strides=FAR_SLICES[:2]
    ),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[request.param]()
    # Positive biases keep every ReLU alive: in nets this narrow a dead one would silence a whole weight tensor.
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.uniform_(parameter, 0.05, 0.2)
    return model


def batch_for(model: nn.Module) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    image = torch.rand(2, model.in_channels, *SIZES[model.ndim], generator=generator)
    return image, torch.randint(model.num_classes, (2, *SIZES[model.ndim]), generator=generator)


def latent_shapes(model: nn.Module) -> list[tuple[int, ...]]:
    return model.latent_shapes(*SIZES[model.ndim])


def silent(module: nn.Module) -> list[str]:
    """Parameters without a gradient."""
    return [n for n, p in module.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]


def test_training_pass_shapes_and_consistency(model: nn.Module) -> None:
    assert isinstance(model, SegmentationModel)
    image, labels = batch_for(model)
    output = model(image=image, labels=labels)
    assert output.logits.shape == (2, 3, *SIZES[model.ndim])
    shapes = latent_shapes(model)
    means = ([g.mean for g in gaussians] for gaussians in (output.prior, output.posterior))
    for maps in (output.latents, *means):
        assert [tuple(z.shape[1:]) for z in maps] == shapes
    assert output.kl.shape == (len(shapes),)
    assert (output.kl >= 0).all()


def test_kl_and_logits_come_from_the_same_draw(model: nn.Module) -> None:
    image, labels = batch_for(model)
    output = model(image=image, labels=labels)
    logits, latents, prior = model.decode(model.encode(image=image), given=output.latents)
    torch.testing.assert_close(logits, output.logits)
    for mine, theirs in zip(latents, output.latents, strict=True):
        assert torch.equal(mine, theirs)
    for mine, theirs in zip(prior, output.prior, strict=True):
        torch.testing.assert_close(mine.mean, theirs.mean)
        torch.testing.assert_close(mine.log_sigma, theirs.log_sigma)


def test_the_priors_own_hypotheses_are_those_of_sampling_with_their_noise(model: nn.Module) -> None:
    image, labels = batch_for(model)
    noise = [torch.randn(2, 3, *shape) for shape in latent_shapes(model)]
    output = model(image=image, labels=labels, prior_noise=noise)
    features = model.encode(image=image)
    for i in range(3):
        logits, _, _ = model.decode(features, noise=[scale[:, i] for scale in noise])
        torch.testing.assert_close(output.sample_logits[:, i], logits)
    output.sample_logits.logsumexp(dim=2).sum().backward()
    touched = [name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0]
    assert not any(name.startswith("posterior") for name in touched)
    assert any(name.startswith("prior") for name in touched)


def test_reconstruction_loss_alone_reaches_every_posterior_parameter(model: nn.Module) -> None:
    image, labels = batch_for(model)
    model(image=image, labels=labels).logits.logsumexp(dim=1).sum().backward()
    assert not silent(model.posterior)


def test_every_parameter_gets_a_gradient(model: nn.Module) -> None:
    image, labels = batch_for(model)
    ELBO()(model(image=image, labels=labels), labels=labels).loss.backward()
    assert not silent(model)


def test_loss_depends_on_the_labels_twice(model: nn.Module) -> None:
    """Through the target and, with the target held fixed, through the posterior."""
    image, labels = batch_for(model)
    other = torch.full_like(labels, 2)
    noise = [torch.zeros(2, *shape) for shape in latent_shapes(model)]
    output, changed = (model(image=image, labels=seen, noise=noise) for seen in (labels, other))
    objective = ELBO()
    loss = objective(output, labels=labels).loss
    assert not torch.isclose(loss, objective(output, labels=other).loss)
    assert not torch.isclose(loss, objective(changed, labels=labels).loss, rtol=1e-6)
    assert torch.equal(loss, objective(output, labels=labels).loss)


def test_no_state_is_created_by_a_forward_pass(model: nn.Module) -> None:
    image, labels = batch_for(model)
    noise = [torch.ones(2, *shape) for shape in latent_shapes(model)]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = model(image=image, labels=labels, noise=noise).logits
    second = model(image=image, labels=labels, noise=noise).logits
    assert torch.equal(first, second)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_images_of_a_batch_do_not_mix(model: nn.Module) -> None:
    image, labels = batch_for(model)
    noise = [torch.randn(2, *shape) for shape in latent_shapes(model)]
    model, image = model.double(), image.double()
    both = model(image=image, labels=labels, noise=noise).logits
    alone = model(image=image[1:], labels=labels[1:], noise=[n[1:] for n in noise]).logits
    torch.testing.assert_close(both[1:], alone, rtol=1e-9, atol=1e-9)


def test_reduced_precision_keeps_latents_in_float32(model: nn.Module) -> None:
    image, labels = batch_for(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(image=image, labels=labels)
    assert output.logits.dtype == torch.bfloat16
    assert output.kl.dtype == torch.float32
    for gaussian in (*output.prior, *output.posterior):
        assert gaussian.mean.dtype == gaussian.log_sigma.dtype == torch.float32


@pytest.mark.parametrize("log_sigma", [-1e3, 1e3])
def test_extreme_log_sigma_stays_finite(model: nn.Module, log_sigma: float) -> None:
    """Prior and posterior pushed apart as far as they go: loss and gradients are finite all the same."""
    image, labels = batch_for(model)
    with torch.no_grad():
        for name, head in model.named_modules():
            if hasattr(head, "latent_dim") and head.conv is not None:
                head.conv.bias[head.latent_dim :] = log_sigma if name.startswith("prior") else -log_sigma
    terms = ELBO()(model(image=image, labels=labels), labels=labels)
    terms.loss.backward()
    gradients = (p.grad for p in model.parameters() if p.grad is not None)
    assert all(torch.isfinite(t).all() for t in (terms.loss, terms.kl, *gradients))


def test_swapped_and_positional_arguments_are_refused(model: nn.Module) -> None:
    image, labels = batch_for(model)
    with pytest.raises(TypeError):
        model(image, labels)
    with pytest.raises(Exception, match="image"):  # the annotations refuse it here, the checks in production
        model(image=labels, labels=image)


@pytest.mark.parametrize("ndim", [2, 3])
def test_activation_checkpointing_changes_nothing_but_memory(ndim: int) -> None:
    torch.manual_seed(0)
    how = {"ndim": ndim, "channels": (8, 16, 16)}
    plain, saving = hpu(**how), hpu(**how, activation_checkpointing=True)
    saving.load_state_dict(plain.state_dict())
    image, labels = batch_for(plain)
    noise = [torch.ones(2, *shape) for shape in latent_shapes(plain)]
    for model in (plain, saving):
        ELBO()(model(image=image, labels=labels, noise=noise), labels=labels).loss.backward()
    for ours, theirs in zip(plain.parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_memory_format_changes_nothing_but_speed(model: nn.Module) -> None:
    image, labels = batch_for(model)
    noise = [torch.ones(2, *shape) for shape in latent_shapes(model)]
    model, image = model.double(), image.double()
    fast = model(image=image, labels=labels, noise=noise).logits
    assert is_channels_last(fast) or model.ndim == 3  # torch has no such convolutions of volumes in float64
    model.to(memory_format=torch.contiguous_format)
    model.channels_last = False
    plain = model(image=image, labels=labels, noise=noise).logits
    assert plain.is_contiguous()
    torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ndim", [2, 3])
def test_cond_channels_reach_the_prior_only(ndim: int) -> None:
    torch.manual_seed(0)
    how = {"ndim": ndim, "channels": (4, 8, 8)}
    model = hpu(**how, cond_channels=2)
    image, labels = batch_for(model)
    cond = torch.rand(2, 2, *SIZES[ndim])
    punet = ProbUNet(**how, in_channels=1, num_classes=3)
    noise = [torch.zeros(2, *shape) for shape in latent_shapes(model)]
    one = model(image=image, labels=labels, cond=cond, noise=noise)
    two = model(image=image, labels=labels, cond=1 - cond, noise=noise)
    assert not torch.allclose(one.logits, two.logits)
    for a, b in zip(one.posterior, two.posterior, strict=True):
        assert torch.equal(a.mean, b.mean)
    for network, error, wrong, match in (
        (model, DataError, None, f"cond: .* {re.escape(str((2, 2, *SIZES[ndim])))}, got none"),
        (model, DataError, cond[:, :1], f"cond: .* got shape {re.escape(str((2, 1, *SIZES[ndim])))}"),
        (hpu(**how), DataError, cond, "cond: "),
        (punet, ConfigError, cond, "cond: "),
    ):
        with pytest.raises(error, match=match):
            network(image=image, labels=labels, cond=wrong)


def test_bad_input_is_named(model: nn.Module) -> None:
    image, labels = batch_for(model)
    channels, multiples, (first, *rest) = model.in_channels, in_words(model.size_multiples), SIZES[model.ndim]

    def changed(values: Tensor, value: float) -> Tensor:
        values = values.clone()
        values[1, ..., 3, 4].view(-1)[0] = value
        return values

    model(image=changed(image, 3.0), labels=labels)
    for bad_image, bad_labels, match in (
        (changed(image, torch.nan), labels, f"image: 1 of {image.numel()} values are NaN or infinite"),
        (
            changed(image, -101.0),
            labels,
            r"image: expected values from 0 to 1, got -101 to [0-9.]+; divide bytes by 255.* Hounsfield",
        ),
        (torch.cat([image, image[:, :1]], dim=1), labels, f"image: expected {channels} channels, got {channels + 1}"),
        (image[:, :, 1:], labels[:, 1:], f"multiples of {multiples}, got {by([first - 1, *rest])}; pad to "),
        (image[:0], labels[:0], "image: the batch is empty"),
        (image, changed(labels, -1), r"labels: values must lie in 0\.\.\.2, found"),
        (image, changed(labels, 3), r"labels: values must lie in 0\.\.\.2, found"),
    ):
        with pytest.raises(DataError, match=match):
            model(image=bad_image, labels=bad_labels)


def test_tensors_of_another_shape_or_type_are_named() -> None:
    """The checks themselves: in the tests above the annotations would refuse these first."""
    image = torch.rand(2, 1, 8, 8)
    for wrong in (image[0], image.to(torch.uint8)):
        with pytest.raises(DataError, match=r"image: expected a float tensor"):
            check_image(wrong, channels=1)
    with pytest.raises(DataError, match=r"expected a float tensor \(batch, channels, depth, height, width\)"):
        check_image(image, channels=1, multiples=(1, 2, 2))
    with pytest.raises(
        DataError, match="depth, height and width must be multiples of 2x4x4, got 5x8x8; pad to 6x8x8"
    ):
        check_image(torch.rand(1, 1, 5, 8, 8), channels=1, multiples=(2, 4, 4))
    with pytest.raises(DataError, match=r"labels: expected an integer tensor of shape \(2, 8, 8\).*\(2, 8, 4\)"):
        check_labels(torch.zeros(2, 8, 4, dtype=torch.long), image=image, num_classes=2)
    with pytest.raises(DataError, match=r"labels: expected an integer tensor .* got torch.float32"):
        check_labels(torch.zeros(2, 8, 8), image=image, num_classes=2)
