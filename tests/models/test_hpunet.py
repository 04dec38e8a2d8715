import pytest
import torch
from torch import nn

from hpunet import GECO, ConfigError, HPUNet, ProbUNet, sample
from hpunet.objectives.loss import parameter_groups

WIDE = (32, 64, 128, *[256] * 6)


def count(*modules: nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


def on_meta(kind: type[nn.Module], **settings: object) -> nn.Module:
    """The model without memory for its weights."""
    with torch.device("meta"):
        return kind(**settings)


@pytest.mark.parametrize(
    ("settings", "trainable", "sampling"),
    [
        ({"in_channels": 1, "num_classes": 2}, 20_584_302, 11_184_166),
        ({"in_channels": 1, "num_classes": 16, "channels": WIDE}, 42_614_096, 24_038_952),
        ({"in_channels": 3, "num_classes": 23, "channels": WIDE, "blocks_per_scale": 2}, 29_537_079, 16_774_287),
    ],
    ids=["lidc", "snemi3d", "cityscapes"],
)
def test_hpunet_parameter_counts_of_the_paper(settings: dict[str, object], trainable: int, sampling: int) -> None:
    model = on_meta(HPUNet, **settings)
    assert count(model) == trainable
    assert count(*model.sampling_modules()) == sampling


@pytest.mark.parametrize(
    ("settings", "trainable"),
    [
        ({"in_channels": 1, "num_classes": 2}, 9_315_162),
        ({"in_channels": 1, "num_classes": 16, "channels": (24, 48, 96, *[192] * 6), "latent_dim": 85}, 25_496_012),
    ],
    ids=["lidc", "snemi3d"],
)
def test_punet_parameter_counts_of_the_paper(settings: dict[str, object], trainable: int) -> None:
    assert count(on_meta(ProbUNet, **settings)) == trainable


def test_hpunet_latents_of_the_paper_and_its_ablations() -> None:
    def shapes(*dims: int) -> list[tuple[int, int, int]]:
        return on_meta(HPUNet, in_channels=1, num_classes=2, latent_dims=dims).latent_shapes(128, 128)

    assert shapes(1, 1, 1, 1) == [(1, 1, 1), (1, 2, 2), (1, 4, 4), (1, 8, 8)]
    assert shapes(0, 0, 0, 1) == [(0, 1, 1), (0, 2, 2), (0, 4, 4), (1, 8, 8)]
    assert shapes(85) == [(85, 1, 1)]
    assert len(shapes(1, 1, 1)) == 3
    assert len(shapes(1, 1, 1, 1, 1)) == 5


def test_hpunet_works_on_other_and_non_square_sizes() -> None:
    model = HPUNet(in_channels=1, num_classes=2, channels=(4, 4, 4), latent_dims=(1, 1), blocks_per_scale=1)
    for size in ((4, 4), (8, 20), (36, 4)):
        output = model(image=torch.rand(1, 1, *size), labels=torch.zeros(1, *size, dtype=torch.long))
        assert output.logits.shape == (1, 2, *size)
        assert [tuple(z.shape[-2:]) for z in output.latents] == [tuple(n // s for n in size) for s in (4, 2)]


def test_hpunet_initialisation_is_the_papers() -> None:
    torch.manual_seed(0)
    model = HPUNet(in_channels=1, num_classes=2, channels=(16, 32), latent_dims=(1,), blocks_per_scale=2)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            flat = module.weight.detach().flatten(start_dim=1)
            gram = flat @ flat.T if flat.shape[0] <= flat.shape[1] else flat.T @ flat
            torch.testing.assert_close(gram, torch.eye(len(gram)), rtol=0, atol=1e-5)
    biases = torch.cat([p.detach().flatten() for n, p in model.named_parameters() if n.endswith("bias")])
    assert biases.abs().max() <= 0.002
    assert biases.std() == pytest.approx(0.00088, rel=0.1)  # σ of a normal cut at two σ is 0.88 σ


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"latent_dims": (1, 1, 1)}, "latent_dims: expected 1 to 2 numbers"),
        ({"latent_dims": ()}, "latent_dims: "),
        ({"latent_dims": (0, 0)}, "latent_dims: .*not all 0"),
        ({"latent_dims": (1, -1)}, "latent_dims: "),
        ({"channels": (4,)}, "channels: "),
        ({"channels": (4, 5, 4)}, "channels: .*even"),
        ({"num_classes": 0}, "num_classes"),
        ({"in_channels": 0}, "in_channels"),
        ({"blocks_per_scale": 0}, "blocks_per_scale"),
        ({"cond_channels": -1}, "cond_channels"),
    ],
)
def test_hpunet_impossible_settings_are_named(changes: dict[str, object], match: str) -> None:
    settings = {"in_channels": 1, "num_classes": 2, "channels": (4, 4, 4), "latent_dims": (1, 1)}
    with pytest.raises(ConfigError, match=match):
        HPUNet(**settings | changes)


@pytest.mark.parametrize("changes", [{"latent_dim": 0}, {"channels": (4,)}, {"num_classes": 0}])
def test_punet_impossible_settings_are_named(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        ProbUNet(**{"in_channels": 1, "num_classes": 2} | changes)


def test_hpunet_overfits_one_image_with_two_opinions() -> None:
    """The whole point in small: one image, two graders, and samples that are the one or the other.

    Over six seeds 80 to 98 % of the samples were (the rest lies between); the bounds leave room for other machines.
    """
    torch.manual_seed(0)
    model = HPUNet(in_channels=1, num_classes=2, channels=(8, 8, 8), latent_dims=(1,), blocks_per_scale=1)
    objective = GECO(kappa=0.05, constraint_ema_decay=0.9, top_k=None)
    optimiser = torch.optim.Adam(parameter_groups(model, objective))
    image = torch.rand(1, 1, 8, 8)
    empty, full = torch.zeros(1, 8, 8, dtype=torch.long), torch.zeros(1, 8, 8, dtype=torch.long)
    full[:, 2:6, 2:6] = 1
    labels = torch.cat([empty, full] * 8)
    for rate in (5e-3, 3e-3, 1e-3):
        for group in optimiser.param_groups:
            group["lr"] = rate
        for _ in range(100):
            terms = objective(model(image=image.expand(16, -1, -1, -1), labels=labels), labels=labels)
            optimiser.zero_grad()
            terms.loss.backward()
            optimiser.step()
    drawn = sample(model, image=image, num_samples=64, generator=torch.Generator().manual_seed(0)).labels[0]
    is_empty, is_full = ((drawn == map_).float().mean(dim=(1, 2)) > 0.95 for map_ in (empty, full))
    assert (is_empty | is_full).float().mean() > 0.6
    assert is_empty.float().mean() > 0.1
    assert is_full.float().mean() > 0.1
