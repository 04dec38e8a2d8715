from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpunet import ConfigError, DataError, HPUNet, ProbUNet, reconstruct, sample
from hpunet.errors import DivergenceError
from hpunet.models.cpu_sampler import on_cpu
from hpunet.sampling.orientations import Features, encode_orientations, orient, undo_orientation
from hpunet.sampling.sample import Samples, stream
from hpunet.sampling.tiling import Tiled

KINDS = ["hpu", "hpu-local", "punet", "hpu-orient", "punet-orient", "hpu-volume-orient", "punet-volume"]


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    how: dict[str, Any] = {"in_channels": 1, "num_classes": 3, "ndim": 3 if "volume" in request.param else 2}
    if request.param.startswith("punet"):
        model: nn.Module = ProbUNet(**how, channels=(8, 8, 8), latent_dim=3)
    else:
        how["strides"] = ((1, 2, 2), (2, 2, 2), (2, 2, 2)) if "volume" in request.param else None
        dims = (0, 0, 1) if request.param == "hpu-local" else (1, 2, 1)
        model = HPUNet(**how, channels=(8, 8, 8, 8), latent_dims=dims, blocks_per_scale=1)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.3)
    if request.param.endswith("orient"):
        model.orientations = 8
    return model


SIZES = {2: (16, 24), 3: (4, 16, 24)}
IMAGES = {ndim: torch.rand(2, 1, *size, generator=torch.Generator().manual_seed(1)) for ndim, size in SIZES.items()}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logits(samples: Samples) -> Tensor:
    assert samples.logits is not None
    return samples.logits


def test_sample_shapes_and_consistency(model: nn.Module) -> None:
    samples = sample(model, image=IMAGES[model.ndim], num_samples=5, generator=seeded())
    assert logits(samples).shape == (2, 5, 3, *SIZES[model.ndim])
    assert torch.equal(samples.labels, logits(samples).argmax(dim=2))
    torch.testing.assert_close(samples.probs.sum(dim=2), torch.ones(2, 5, *SIZES[model.ndim]))
    assert [tuple(z.shape) for z in samples.latents] == [
        (2, 5, *shape) for shape in model.latent_shapes(*SIZES[model.ndim])
    ]
    assert not logits(samples).requires_grad


def test_sample_does_not_depend_on_chunks_or_how_many_follow(model: nn.Module) -> None:
    whole = sample(model, image=IMAGES[model.ndim], num_samples=7, generator=seeded(), chunk_size=14)
    assert not torch.allclose(logits(whole)[:, 0], logits(whole)[:, 1], atol=1e-3)
    for chunk_size in (1, 3, 5, 100):
        chunked = sample(model, image=IMAGES[model.ndim], num_samples=7, generator=seeded(), chunk_size=chunk_size)
        torch.testing.assert_close(logits(chunked), logits(whole), rtol=0, atol=1e-5)
    fewer = sample(model, image=IMAGES[model.ndim], num_samples=3, generator=seeded())
    torch.testing.assert_close(logits(fewer), logits(whole)[:, :3], rtol=0, atol=1e-5)


def test_sample_one_by_one_equals_one_batch(model: nn.Module) -> None:
    """With one generator, the hypotheses come in the same order, drawn one by one or together."""
    together = sample(model, image=IMAGES[model.ndim], num_samples=4, generator=seeded())
    generator = seeded()
    alone = [logits(sample(model, image=IMAGES[model.ndim], num_samples=1, generator=generator)) for _ in range(4)]
    torch.testing.assert_close(torch.cat(alone, dim=1), logits(together), rtol=0, atol=1e-5)


def test_sample_with_one_generator_per_image_does_not_depend_on_the_batch(model: nn.Module) -> None:
    image = torch.rand(3, 1, *SIZES[model.ndim][:-1], 16, generator=seeded())
    together = sample(model, image=image, num_samples=4, generator=[seeded(i) for i in range(3)])
    for i in range(3):
        alone = sample(model, image=image[i : i + 1], num_samples=4, generator=seeded(i))
        for one, several in zip(alone.latents, together.latents, strict=True):
            torch.testing.assert_close(one[0], several[i])
        torch.testing.assert_close(logits(alone)[0], logits(together)[i])
    generators = [seeded(i) for i in range(3)]
    halves = [sample(model, image=image, num_samples=2, generator=generators) for _ in range(2)]
    assert torch.equal(torch.cat([half.labels for half in halves], dim=1), together.labels)
    with pytest.raises(ConfigError, match="one for each of the 3 images, got 2"):
        sample(model, image=image, num_samples=1, generator=generators[:2])


def test_sample_is_reproducible_by_seed_only(model: nn.Module) -> None:
    one, same, other = (
        sample(model, image=IMAGES[model.ndim], num_samples=2, generator=seeded(s)) for s in (0, 0, 1)
    )
    assert torch.equal(logits(one), logits(same))
    assert not torch.allclose(logits(one), logits(other))


def test_sample_of_means_gives_identical_hypotheses(model: nn.Module) -> None:
    samples = sample(model, image=IMAGES[model.ndim], num_samples=4, latents="mean")
    for i in range(1, 4):
        torch.testing.assert_close(logits(samples)[:, i], logits(samples)[:, 0], rtol=0, atol=1e-6)
    expected, _, _ = model.decode(model.encode(image=IMAGES[model.ndim]))
    torch.testing.assert_close(logits(samples)[:, 0], expected.detach(), rtol=0, atol=1e-5)


def test_sample_at_temperature_zero_is_the_mean(model: nn.Module) -> None:
    cold = sample(model, image=IMAGES[model.ndim], num_samples=2, temperature=0.0)
    mean = sample(
        model, image=IMAGES[model.ndim], num_samples=2, latents="mean", orientation_ids=cold.orientation_ids
    )
    torch.testing.assert_close(logits(cold), logits(mean), rtol=0, atol=1e-6)


def test_sample_temperature_scales_the_spread_of_its_scale(model: nn.Module) -> None:
    scales = len(model.latent_dims)
    last = ["mean"] * (scales - 1) + ["sample"]
    once, thrice = (
        sample(model, image=IMAGES[model.ndim], num_samples=3, latents=last, temperature=factors, generator=seeded())
        for factors in (1.0, [1.0] * (scales - 1) + [3.0])
    )
    mean = sample(
        model, image=IMAGES[model.ndim], num_samples=3, latents="mean", orientation_ids=once.orientation_ids
    ).latents[-1]
    spread, wide = (drawn.latents[-1] - mean for drawn in (once, thrice))
    torch.testing.assert_close(wide, 3 * spread, rtol=1e-4, atol=1e-5)


def test_sample_replays_and_edits_returned_latents(model: nn.Module) -> None:
    first = sample(model, image=IMAGES[model.ndim], num_samples=3, generator=seeded())
    replay = sample(
        model, image=IMAGES[model.ndim], num_samples=3, latents=first.latents, orientation_ids=first.orientation_ids
    )
    torch.testing.assert_close(logits(replay), logits(first), rtol=0, atol=1e-6)
    edited = [*first.latents[:-1], first.latents[-1] + 1]
    other = sample(
        model, image=IMAGES[model.ndim], num_samples=3, latents=edited, orientation_ids=first.orientation_ids
    )
    assert not torch.allclose(logits(other), logits(first))
    shared = [z[:, :1] for z in first.latents]  # one value for all hypotheses
    orientation_ids = None if first.orientation_ids is None else first.orientation_ids[:, :1].expand(-1, 3)
    spread = sample(model, image=IMAGES[model.ndim], num_samples=3, latents=shared, orientation_ids=orientation_ids)
    torch.testing.assert_close(logits(spread)[:, 2], logits(first)[:, 0], rtol=0, atol=1e-5)


def test_orient_gives_eight_maps_and_can_be_undone() -> None:
    maps = torch.arange(6).view(1, 2, 3)
    found = [orient(maps, orientation) for orientation in range(8)]
    assert len({str(each.tolist()) for each in found}) == 8
    assert [each.shape for each in found] == [(1, 2, 3)] * 4 + [(1, 3, 2)] * 4
    for orientation, each in enumerate(found):
        assert torch.equal(undo_orientation(each, orientation), maps)


@pytest.mark.parametrize(("orientations", "size", "expected"), [(8, 16, 8), (4, 16, 4), (2, 16, 2), (8, 24, 4)])
def test_hypotheses_are_those_of_the_image_in_a_random_orientation(
    model: nn.Module, orientations: int, size: int, expected: int
) -> None:
    model.orientations = orientations
    image = torch.rand(2, 1, *SIZES[model.ndim][:-1], size, generator=seeded())
    drawn = sample(model, image=image, num_samples=40, generator=seeded())
    assert drawn.orientation_ids is not None
    assert sorted(set(drawn.orientation_ids.flatten().tolist())) == list(range(expected))
    for i, s in ((0, 0), (1, 0), (0, 1), (0, 2), (1, 3), (1, 39)):  # by hand, one at a time
        orientation = int(drawn.orientation_ids[i, s])
        with torch.no_grad():
            features = model.encode(image=orient(image[i : i + 1], orientation))
            alone, _, _ = model.decode(features, given=[scale[i, s].unsqueeze(0) for scale in drawn.latents])
        torch.testing.assert_close(logits(drawn)[i, s], undo_orientation(alone[0], orientation), rtol=0, atol=1e-5)
    mean = sample(model, image=image, num_samples=2, latents="mean")
    upright, _, _ = model.decode(model.encode(image=image))
    torch.testing.assert_close(logits(mean)[:, 1], upright.detach(), rtol=0, atol=1e-5)


def test_all_orientations_are_equally_likely() -> None:
    model = HPUNet(in_channels=1, num_classes=2, channels=(2, 2), latent_dims=(1,), blocks_per_scale=1)
    model.orientations = 8
    orientation_ids = sample(
        model, image=torch.rand(1, 1, 2, 2), num_samples=4000, generator=seeded()
    ).orientation_ids
    assert orientation_ids is not None
    counts = torch.bincount(orientation_ids.flatten(), minlength=8)
    assert (counts - 500).abs().max() < 4.5 * (4000 * 7 / 64) ** 0.5


def test_impossible_orientation_ids_are_refused(model: nn.Module) -> None:
    model.orientations = 8
    for orientation_ids in (
        torch.full((2, 3), 4),
        torch.full((2, 3), -1),
        torch.zeros(2, 2, dtype=torch.long),
    ):  # not square
        with pytest.raises(DataError, match=r"orientation_ids: .* 0 to 3 of shape \(2, 3\)"):
            sample(model, image=IMAGES[model.ndim], num_samples=3, orientation_ids=orientation_ids)
    model.orientations = 3
    with pytest.raises(ConfigError, match="orientations: expected 1, 2, 4 or 8, got 3"):
        sample(model, image=torch.rand(1, 1, *SIZES[model.ndim][:-1], 16), num_samples=2)
    model.orientations = 1
    with pytest.raises(DataError, match=r"orientation_ids: .* 0 to 0"):
        sample(model, image=IMAGES[model.ndim], num_samples=3, orientation_ids=torch.full((2, 3), 1))


def test_sample_runs_the_encoder_once_and_the_decoder_for_each_hypothesis() -> None:
    model = HPUNet(in_channels=1, num_classes=2, channels=(4, 4, 4), latent_dims=(1, 1), blocks_per_scale=1)
    images, hypotheses = [], []
    model.prior.encoder[0].register_forward_hook(lambda _m, args, _o: images.append(len(args[0])))
    model.logits.register_forward_hook(lambda _m, args, _o: hypotheses.append(len(args[0])))
    sample(model, image=IMAGES[model.ndim], num_samples=16, chunk_size=6)
    assert images == [2]
    assert sum(hypotheses) == 32
    assert max(hypotheses) == 6


def test_large_images_are_encoded_one_orientation_at_a_time_with_the_same_result(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = torch.zeros(2, 2, *SIZES[model.ndim], dtype=torch.long)
    encoded: list[int] = []
    model.orientations = 4

    def run() -> tuple[Samples, Samples]:
        features = encode_orientations(model, image=IMAGES[model.ndim])
        drawn = sample(
            model, image=IMAGES[model.ndim], num_samples=9, generator=seeded(), features=features, chunk_size=2
        )
        return drawn, reconstruct(model, image=IMAGES[model.ndim], labels=labels, features=features)

    together = run()
    monkeypatch.setattr("hpunet.sampling.orientations.PIXELS_ENCODED_AT_ONCE_CPU", 4 * IMAGES[model.ndim].numel() - 1)

    def counting(model: Any) -> Any:
        network = on_cpu(model)
        encode = network.encode
        network.encode = lambda **how: encoded.append(len(how["image"])) or encode(**how)
        return network

    monkeypatch.setattr("hpunet.sampling.orientations.on_cpu", counting)
    for one_by_one, expected in zip(run(), together, strict=True):
        assert torch.equal(one_by_one.labels, expected.labels)
        torch.testing.assert_close(logits(one_by_one), logits(expected), rtol=0, atol=1e-5)
        for mine, other in zip(one_by_one.latents, expected.latents, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)
    assert encoded == [2] * 5  # each orientation of both images once, and the first again


def test_given_features_replace_the_encoder(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.zeros(2, 1, *SIZES[model.ndim], dtype=torch.long)

    def run(features: Features | None = None) -> tuple[Tensor, Tensor]:
        drawn = sample(model, image=IMAGES[model.ndim], num_samples=3, generator=seeded(), features=features)
        return logits(drawn), logits(reconstruct(model, image=IMAGES[model.ndim], labels=labels, features=features))

    expected = run()
    features = encode_orientations(model, image=IMAGES[model.ndim])
    monkeypatch.setattr(type(features.model), "encode", lambda *_, **__: pytest.fail("encoded again"))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(run(features), expected, strict=True))


def test_sample_without_logits_keeps_labels_and_says_what_is_missing(model: nn.Module) -> None:
    small = sample(model, image=IMAGES[model.ndim], num_samples=2, generator=seeded(), return_logits=False)
    full = sample(model, image=IMAGES[model.ndim], num_samples=2, generator=seeded())
    assert small.logits is None
    assert torch.equal(small.labels, full.labels)
    with pytest.raises(ConfigError, match="return_logits"):
        _ = small.probs


def test_sample_passes_cond_to_the_prior() -> None:
    model = HPUNet(in_channels=1, num_classes=2, channels=(4, 4), latent_dims=(1,), cond_channels=1)
    samples = sample(model, image=IMAGES[model.ndim], cond=torch.ones(2, 1, *SIZES[model.ndim]), num_samples=2)
    assert samples.labels.shape == (2, 2, *SIZES[model.ndim])
    with pytest.raises(DataError, match="cond"):
        sample(model, image=IMAGES[model.ndim], num_samples=2)


def test_reconstruct_of_several_graders_equals_one_by_one(model: nn.Module) -> None:
    labels = torch.randint(3, (2, 4, *SIZES[model.ndim]), generator=seeded())
    together = reconstruct(model, image=IMAGES[model.ndim], labels=labels)
    for grader in range(4):
        alone = reconstruct(model, image=IMAGES[model.ndim], labels=labels[:, grader])
        torch.testing.assert_close(logits(alone)[:, 0], logits(together)[:, grader], rtol=0, atol=1e-5)
        noise = [torch.zeros(2, *shape) for shape in model.latent_shapes(*SIZES[model.ndim])]
        output = model(image=IMAGES[model.ndim], labels=labels[:, grader], noise=noise)
        torch.testing.assert_close(logits(alone)[:, 0], output.logits.detach(), rtol=0, atol=1e-5)


def test_reconstruct_draws_when_asked(model: nn.Module) -> None:
    labels = torch.randint(3, (2, *SIZES[model.ndim]), generator=seeded())
    mean = reconstruct(model, image=IMAGES[model.ndim], labels=labels)
    drawn, again = (
        reconstruct(model, image=IMAGES[model.ndim], labels=labels, draw=True, generator=seeded(3)) for _ in range(2)
    )
    assert not torch.allclose(logits(mean), logits(drawn))
    assert torch.equal(logits(drawn), logits(again))


def test_sampling_names_what_is_wrong(model: nn.Module) -> None:
    scales = len(model.latent_dims)
    wrong = ["mean"] * (scales - 1) + [torch.zeros(2, 1, 1, 99, 99)]
    for error, match, run, how in (
        (ConfigError, "num_samples", sample, {"num_samples": 0}),
        (ConfigError, "chunk_size", sample, {"chunk_size": 0}),
        (ConfigError, f"latents: .* one entry .* {scales} scales", sample, {"latents": ["mean"] * (scales + 1)}),
        (ConfigError, "temperature: ", sample, {"temperature": -1.0}),
        (ConfigError, "temperature: expected one entry", sample, {"temperature": [1.0] * (scales + 1)}),
        (DataError, rf"latents\[{scales - 1}\]: expected shape", sample, {"latents": wrong}),
        (DataError, r"image: .*NaN", sample, {"image": IMAGES[model.ndim] * torch.nan}),
        (
            DataError,
            "labels: expected",
            reconstruct,
            {"labels": torch.zeros(2, 0, *SIZES[model.ndim], dtype=torch.long)},
        ),
        (DataError, "labels: values must lie in", reconstruct, {"labels": torch.full((2, 1, *SIZES[model.ndim]), 3)}),
    ):
        with pytest.raises(error, match=match):
            run(model, **{"image": IMAGES[model.ndim], **how})


@pytest.mark.parametrize("shape", [(1, 3, 16, 16), (1, 1, 15, 16)])
def test_an_image_that_does_not_fit_is_named_with_its_own_shape_for_any_orientations(shape: tuple[int, ...]) -> None:
    model = HPUNet(in_channels=1, num_classes=2, channels=(4, 8, 8), latent_dims=(1, 1))
    said = []
    for number in (1, 8):
        model.orientations = number
        with pytest.raises(DataError) as error:
            sample(model, image=torch.rand(*shape), num_samples=2)
        said.append(str(error.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_are_refused_with_the_name_of_the_image(model: nn.Module, value: float) -> None:
    """Their label would be 0: nothing marked."""
    with torch.no_grad():
        model.logits.bias[2] = value
    labels = torch.zeros(2, 2, *SIZES[model.ndim], dtype=torch.long)
    for name, names in (("image 0", []), ("left.png", ["left.png", "right.png"])):
        features = encode_orientations(model, image=IMAGES[model.ndim], names=names)
        for draw in (
            lambda features=features: sample(
                model, image=IMAGES[model.ndim], num_samples=3, features=features, return_logits=False
            ),
            lambda features=features: reconstruct(model, image=IMAGES[model.ndim], labels=labels, features=features),
        ):
            with pytest.raises(DivergenceError, match=f"^{name}: .* NaN or infinite"):
                draw()
    with pytest.raises(DivergenceError, match=r"^right\.png: .*temperature"):
        list(stream(model, image=IMAGES[model.ndim][1:], name="right.png"))


def test_given_latents_that_are_too_large_are_refused_for_their_image(model: nn.Module) -> None:
    latents = sample(model, image=IMAGES[model.ndim], num_samples=2).latents
    latents[-1][1, 1] = 1e38
    with pytest.raises(DivergenceError, match="image 1: "):
        sample(model, image=IMAGES[model.ndim], num_samples=2, latents=latents)
    model.check_values = False
    sample(model, image=IMAGES[model.ndim], num_samples=2, latents=latents)


@pytest.mark.parametrize("temperature", [1e38, float("inf"), -1.0, [1.0, 101.0, 1.0]])
def test_a_temperature_out_of_range_is_refused(temperature: float | list[float]) -> None:
    model = HPUNet(in_channels=1, num_classes=2, channels=(4, 4, 4, 4), latent_dims=(1, 1, 1), blocks_per_scale=1)
    with pytest.raises(ConfigError, match="temperature: expected numbers from 0 to 100"):
        sample(model, image=torch.rand(1, 1, 8, 8), temperature=temperature)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_models_of_other_precisions_sample_images_of_their_own(model: nn.Module, dtype: torch.dtype) -> None:
    model.to(dtype)
    labels = torch.ones(2, *SIZES[model.ndim], dtype=torch.long)
    for network in (model, Tiled(model, tile=16)):
        drawn = sample(network, image=IMAGES[model.ndim].to(dtype), num_samples=2, generator=seeded())
        assert logits(drawn).dtype == dtype
        assert reconstruct(network, image=IMAGES[model.ndim].to(dtype), labels=labels).labels.shape == (
            2,
            1,
            *SIZES[model.ndim],
        )
        with pytest.raises(DataError, match="the model computes in"):
            sample(network, image=IMAGES[model.ndim])
    assert model(image=IMAGES[model.ndim].to(dtype), labels=labels).kl.isfinite().all()
    with pytest.raises(DataError, match="the model computes in"):
        model(image=IMAGES[model.ndim], labels=labels)


def test_an_image_from_minus_one_to_one_is_noticed(model: nn.Module) -> None:
    with pytest.warns(UserWarning, match="values from -[01].* take 0 to 1"):
        sample(model, image=2 * IMAGES[model.ndim] - 1, num_samples=1)
