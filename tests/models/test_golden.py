"""Our model against what the authors' own TensorFlow code computed (tests/golden, made with their versions)."""

import json

import numpy as np
import pytest
import torch
from places import TESTS
from torch import Tensor

from hpunet import GECO, HPUNet
from hpunet.errors import CheckpointError
from hpunet.models.base import TrainingOutput
from hpunet.models.gaussian import Gaussian
from hpunet.objectives.cross_entropy import masked_cross_entropy, top_k_pixels
from hpunet.objectives.loss import parameter_groups
from hpunet.sampling.sample import reconstruct, sample
from hpunet.weights.tensorflow.variables import load_tf_variables

# Their images are normal noise, which a model warns of.
pytestmark = pytest.mark.filterwarnings("ignore:.*models made by hpunet take 0 to 1:UserWarning")

GOLDEN = TESTS / "golden"
ATOL = 5e-6
NUM_LATENTS = 3


class Fixture:
    """The golden arrays, brought to our layout."""

    def __init__(self) -> None:
        self.arrays = np.load(GOLDEN / "hpu_small.npz")
        self.config = json.loads(str(self.arrays["meta.config"]))
        self.variables = {str(name): self.arrays[name] for name in self.arrays["var_names"]}
        self.image = self.map("img")
        self.labels = self.map("seg").argmax(dim=1)
        self.valid = torch.from_numpy(self.arrays["mask"]).bool()

    def map(self, key: str) -> Tensor:
        """An NHWC array as an NCHW tensor."""
        return torch.from_numpy(self.arrays[key]).permute(0, 3, 1, 2)

    def maps(self, prefix: str) -> list[Tensor]:
        return [self.map(f"{prefix}.{i}") for i in range(NUM_LATENTS)]

    def empty_model(self) -> HPUNet:
        return HPUNet(
            in_channels=self.config["cin"],
            num_classes=self.config["num_classes"],
            channels=self.config["channels_per_block"],
            latent_dims=self.config["latent_dims"],
            blocks_per_scale=self.config["blocks_per_level"],
        )


@pytest.fixture(scope="module")
def golden() -> Fixture:
    return Fixture()


@pytest.fixture
def model(golden: Fixture) -> HPUNet:
    model = golden.empty_model()
    load_tf_variables(model, golden.variables)
    return model


def assert_close(ours: Tensor, theirs: Tensor, atol: float = ATOL) -> None:
    torch.testing.assert_close(ours.detach(), theirs, rtol=0, atol=atol)


def assert_gaussians(ours: list[Gaussian], golden: Fixture, prefix: str) -> None:
    means, log_sigmas = golden.maps(f"{prefix}.mu"), golden.maps(f"{prefix}.logsigma")
    for gaussian, mean, log_sigma in zip(ours, means, log_sigmas, strict=True):
        assert_close(gaussian.mean, mean)
        assert_close(gaussian.log_sigma, log_sigma)


def test_golden_parameters_all_loaded(golden: Fixture) -> None:
    model = golden.empty_model()
    unused = load_tf_variables(model, golden.variables)
    dead = {str(name) for name in golden.arrays["grad_none_names"]}
    assert set(unused) == dead
    ours = sum(p.numel() for p in model.parameters())
    assert ours == sum(a.size for n, a in golden.variables.items() if n not in dead)


def test_golden_encoder_features(model: HPUNet, golden: Fixture) -> None:
    features = model.encode(image=golden.image)[::-1]  # theirs count from the finest scale
    for i, ours in enumerate(features):
        assert_close(ours, golden.map(f"prior_mean.encoder_features.{i}"))


def test_golden_prior_mean(model: HPUNet, golden: Fixture) -> None:
    logits, latents, gaussians = model.decode(model.encode(image=golden.image))
    assert_close(logits, golden.map("prior_mean.logits"))
    assert_gaussians(gaussians, golden, "prior_mean")
    for ours, theirs in zip(latents, golden.maps("prior_mean.z"), strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("case", ["prior_z", "prior_mix"])
def test_golden_prior_with_given_latents(model: HPUNet, golden: Fixture, case: str) -> None:
    given = golden.maps(f"{case}.z")
    logits, _, gaussians = model.decode(model.encode(image=golden.image), given=given)
    assert_close(logits, golden.map(f"{case}.logits"))
    assert_gaussians(gaussians, golden, case)


def test_golden_mixed_scales_through_sample(model: HPUNet, golden: Fixture) -> None:
    """The scales that the authors fixed to their mean are fixed by us, only the drawn one is given."""
    z = golden.maps("prior_mix.z")
    how = ["mean" if mean else z[i].unsqueeze(1) for i, mean in enumerate(golden.config["mix"])]
    samples = sample(model, image=golden.image, num_samples=1, latents=how)
    assert samples.logits is not None
    assert_close(samples.logits[:, 0], golden.map("prior_mix.logits"))


def test_golden_reconstruction_from_posterior_means(model: HPUNet, golden: Fixture) -> None:
    latents, gaussians = model.infer(image=golden.image, labels=golden.labels)
    assert_gaussians(gaussians, golden, "q_mean")
    output = model(image=golden.image, labels=golden.labels, noise=[torch.zeros_like(z) for z in latents])
    assert_gaussians(output.prior, golden, "p_given_q_mean")
    assert_close(output.logits, golden.map("rec_mean.logits"))
    assert_close(output.kl, torch.stack([torch.tensor(golden.arrays[f"kl_mean.{i}"]) for i in range(3)]))
    samples = reconstruct(model, image=golden.image, labels=golden.labels)
    assert samples.logits is not None
    assert_close(samples.logits[:, 0], golden.map("rec_mean.logits"))


def draw_output(model: HPUNet, golden: Fixture) -> TrainingOutput:
    return model(image=golden.image, labels=golden.labels, noise=golden.maps("q_draw.eps"))


def test_golden_training_pass_from_recorded_draw(model: HPUNet, golden: Fixture) -> None:
    output = draw_output(model, golden)
    assert_gaussians(output.posterior, golden, "q_draw")
    assert_gaussians(output.prior, golden, "p_given_q_draw")
    for ours, theirs in zip(output.latents, golden.maps("q_draw.z"), strict=True):
        assert_close(ours, theirs)
    assert_close(output.logits, golden.map("rec_draw.logits"))
    assert_close(output.kl, torch.stack([torch.tensor(golden.arrays[f"kl_draw.{i}"]) for i in range(3)]))


@pytest.mark.parametrize("case", ["mean", "draw"])
def test_golden_gradients_of_all_parameters(model: HPUNet, golden: Fixture, case: str) -> None:
    noise = golden.maps("q_draw.eps")
    if case == "mean":
        noise = [torch.zeros_like(n) for n in noise]
    output = model(image=golden.image, labels=golden.labels, noise=noise)
    ce = masked_cross_entropy(logits=output.logits, labels=golden.labels)
    loss = ce.sum() / len(golden.image) + output.kl.sum()
    torch.testing.assert_close(loss.detach(), torch.tensor(golden.arrays[f"loss_{case}"]), rtol=2e-6, atol=0)
    loss.backward()

    # The gradients travel through the same loader as the weights: names and layouts are checked with them.
    theirs = golden.empty_model()
    gradients = {n: golden.arrays[k] for n in golden.variables if (k := f"grad_{case}/{n}") in golden.arrays.files}
    load_tf_variables(theirs, gradients)
    worst = 0.0
    for (name, ours), expected in zip(model.named_parameters(), theirs.parameters(), strict=True):
        assert ours.grad is not None, name
        worst = max(worst, float((ours.grad - expected.detach()).norm() / expected.detach().norm()))
    assert worst < 2e-5


@pytest.mark.parametrize(
    ("case", "fraction", "mask"),
    [
        ("top02", 0.02, None),
        ("top02_mask", 0.02, "mask"),
        ("top30", 0.3, None),
        ("top30_mask", 0.3, "mask"),
        ("top02_sparse", 0.02, "mask_sparse"),
        ("gumbel02_mask", 0.02, "mask"),
        ("plain", None, None),
        ("mask", None, "mask"),
    ],
)
def test_golden_cross_entropy_and_top_k_masks(
    golden: Fixture, case: str, fraction: float | None, mask: str | None
) -> None:
    valid = torch.from_numpy(golden.arrays[mask]).bool() if mask else None
    ce = masked_cross_entropy(logits=golden.map("rec_mean.logits"), labels=golden.labels, valid=valid)
    noise = None
    if case.startswith("gumbel"):
        uniform = torch.from_numpy(golden.arrays["gumbel_u"]).view_as(ce)
        noise = -(-uniform.log()).log()
    if fraction is None:
        kept = torch.ones_like(ce, dtype=torch.bool) if valid is None else valid
    else:
        kept = top_k_pixels(ce, fraction=fraction, valid=valid, noise=noise)
    theirs = torch.from_numpy(golden.arrays[f"ce_rec_mean.{case}.mask"]).bool().view_as(kept)
    assert int((kept != theirs).sum()) == 0
    rec = float(ce[kept].sum()) / len(ce)
    assert rec == pytest.approx(float(golden.arrays[f"ce_rec_mean.{case}.sum"]), rel=2e-6)
    assert float(ce[kept].mean()) == pytest.approx(float(golden.arrays[f"ce_rec_mean.{case}.mean"]), rel=2e-6)


def test_golden_first_geco_loss(model: HPUNet, golden: Fixture) -> None:
    settings = json.loads(str(golden.arrays["meta.geco"]))
    how = {"constraint_ema_decay": settings["decay"], "lambda_gradient_scale": settings["rate"]}
    geco = GECO(kappa=settings["kappa"], **how, stochastic=False)
    terms = geco(draw_output(model, golden), labels=golden.labels, valid=golden.valid)
    expected = {
        "loss": terms.loss,
        "rec_loss_sum": terms.rec,
        "rec_loss_mean": terms.rec_per_pixel,
        "kl_sum": terms.kl.sum(),
        "num_valid_pixels": terms.num_kept / len(golden.image),
        "lagmul": terms.lambda_,
    }
    for name, value in expected.items():
        key = "geco_loss" if name == "loss" else name
        assert value.item() == pytest.approx(float(golden.arrays[f"geco_first.{key}"]), rel=2e-6), name


def test_golden_l2_penalty_is_what_the_optimiser_adds(golden: Fixture) -> None:
    """Their weight decay covers weights and biases; weight decay in Adam adds exactly its gradient."""
    total = sum(float((a.astype(np.float64) ** 2).sum()) for a in golden.variables.values())
    assert 1e-5 * total == pytest.approx(float(golden.arrays["reg_loss_sum"]), rel=1e-5)

    model = golden.empty_model()
    network, own = parameter_groups(model, GECO(kappa=0.05))
    assert own["weight_decay"] == 0
    weight_decay = 1e-5 * sum(p.double().square().sum() for p in model.parameters())
    (gradient,) = torch.autograd.grad(weight_decay, [model.logits.weight])
    torch.testing.assert_close(gradient, network["weight_decay"] * model.logits.weight)


@pytest.mark.parametrize("tag", ["adam_decay099", "adam_decay05", "adam_rate1", "sgd_decay05"])
def test_golden_geco_traces(tag: str) -> None:
    arrays = np.load(GOLDEN / "geco_steps.npz")
    setup = json.loads(str(arrays[f"{tag}.setup"]))
    geco = GECO(kappa=1.0, constraint_ema_decay=setup["decay"], lambda_gradient_scale=setup["rate"])
    # TensorFlow's epsilon stands outside the bias correction; at these gradients the difference is below 1e-6.
    optimiser = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[setup["optimizer"]](geco.parameters(), setup["lr"])
    for step, value in enumerate(arrays[f"{tag}.x"]):
        rec = torch.tensor(float(value), requires_grad=True)
        assert geco.lambda_.item() == pytest.approx(float(arrays[f"{tag}.lambda_before"][step]), abs=2e-6)
        average = geco.moving_average(rec)
        constraint = average - setup["threshold"]
        loss = geco.lambda_ * constraint + setup["kl"]
        optimiser.zero_grad()
        loss.backward()
        gradients = {"grad_var": geco.w.grad, "grad_x": rec.grad}
        for name, ours in {"ma": geco.ema, "constraint": constraint, "loss": loss, **gradients}.items():
            assert ours.item() == pytest.approx(float(arrays[f"{tag}.{name}"][step]), rel=2e-5, abs=2e-6), name
        optimiser.step()
        assert geco.w.item() == pytest.approx(float(arrays[f"{tag}.var_after"][step]), abs=2e-6)
        assert geco.lambda_.item() == pytest.approx(float(arrays[f"{tag}.lambda_after"][step]), abs=4e-6)


def test_load_tf_variables_reports_foreign_names(golden: Fixture) -> None:
    extra = {"global_step": np.zeros(()), "model/HPUNet/prior/conv_2d/w/Adam": np.zeros(1)}
    unused = load_tf_variables(golden.empty_model(), golden.variables | extra)
    assert set(extra) <= set(unused)


def test_load_tf_variables_refuses_missing_misshapen_and_surplus(golden: Fixture) -> None:
    model = golden.empty_model()
    before = [p.clone() for p in model.parameters()]
    name = "model/HPUNet/prior/conv_2d_7/w"
    without = {n: a for n, a in golden.variables.items() if n != name}
    misshapen = golden.variables | {name: np.zeros((1, 1, 1, 1), dtype=np.float32)}
    for match, variables in (
        ("missing: prior/conv_2d_7/w", without),
        (r"prior/conv_2d_7/w has \(1, 1, 1, 1\), expected", misshapen),
        ("prior/conv_2d_999", golden.variables | {"model/HPUNet/prior/conv_2d_999/w": np.zeros(1)}),
        ("two variables for one weight", golden.variables | {"other/prior/conv_2d/w": np.zeros(1)}),
    ):
        with pytest.raises(CheckpointError, match=match):
            load_tf_variables(model, variables)
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, new)  # nothing is copied unless everything fits
