"""The package as a whole: import time, public names, which module may import which."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from production import check_refused

import hpunet

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "hpunet"

PACKAGES = (
    "errors", "utils", "config", "metrics", "models", "kernels", "objectives", "sampling", "data", "weights",
    "deploy", "evaluation", "training", "predict", "reports", "viewer", "bench", "demo", "cli",
)  # fmt: skip
"""A package imports from those before it, and from itself."""


def imports_of(code: str) -> set[str]:
    """The packages of ours that code imports, at the top or inside a function; a public name stands for itself."""
    names = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            start = "hpunet." * bool(node.level) + (node.module or "")
            names += [f"{start}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    ours = {name for name in names if name.split(".")[0] == "hpunet" and name != "hpunet.__version__"}
    return {name.removeprefix("hpunet.").split(".")[0] for name in ours}


@pytest.mark.parametrize(
    "code",
    [
        "from hpunet.cli.main import app",
        "def later():\n    import hpunet.cli.main",
        "from hpunet import cli",
        "from hpunet import load",
        "import hpunet",
        "from ..cli import main",
    ],
)
def test_imports_of_packages_further_down_are_seen_in_every_form(code: str) -> None:
    assert not imports_of(code) <= set(PACKAGES[:-1])


def test_package_imports_point_one_way() -> None:
    backwards = []
    for path in sorted(SOURCE.rglob("*.py")):
        package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if not package.startswith("__"):
            allowed = PACKAGES[: PACKAGES.index(package) + 1]
            found = imports_of(path.read_text()) - set(allowed)
            backwards += [f"{path.relative_to(SOURCE)} -> {name}" for name in found]
    assert not backwards


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_import_is_quick_and_leaves_torch_alone() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import hpunet; "
        "print(time.perf_counter() - start, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    seconds, torch, numpy = min(run_python(code).stdout.split() for _ in range(3))
    assert (torch, numpy) == ("False", "False")
    assert float(seconds) < 0.3


def test_public_names_are_all_there() -> None:
    for name in hpunet.__all__:
        assert getattr(hpunet, name).__name__ == name
    assert callable(hpunet.sample)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = hpunet.nonsense


REFUSED = {
    "model(image=labels, labels=image)": "DataError: image: expected a float tensor",
    "model(image, labels)": "TypeError",
    "model(image=image, labels=labels[:, 1:])": "DataError: labels: expected an integer tensor of shape",
    "model(image=image, labels=image[:, 0])": "DataError: labels: expected an integer tensor",
    "hpunet.sample(model, image=image[0], num_samples=1)": "DataError: image: expected a float tensor",
    "model(image=image.numpy(), labels=labels)": "DataError: image: expected a torch tensor, got numpy.ndarray",
    "hpunet.sample(model, image=image.numpy())": "got numpy.ndarray; convert it by torch.as_tensor, or hpunet.load",
    "hpunet.sample(turning, image=image.numpy())": "DataError: image: expected a torch tensor, got numpy.ndarray",
    "hpunet.sample(model, image='scan.png')": "DataError: image: expected a torch tensor, got str",
    "hpunet.reconstruct(model, image=image, labels=labels.numpy())": "DataError: labels: expected a torch tensor",
    "hpunet.reconstruct(model, image=image.numpy(), labels=labels)": "DataError: image: expected a torch tensor",
    "hpunet.sample(model, image=image.double())": "torch.float64, but the model computes in torch.float32",
    "hpunet.reconstruct(model, image=image.double(), labels=labels)": "DataError: image: torch.float64, but",
    "model(image=image.double(), labels=labels)": "DataError: image: torch.float64, but",
    "hpunet.sample(model, image=2000 * image.round() - 1000)": "got -1000 to 1000; divide bytes by 255, scale Houn",
    "hpunet.sample(turning, image=image * torch.nan)": "DataError: image: 32 of 32 values are NaN or infinite",
    "hpunet.sample(turning, image=image[..., 1:])": "must be multiples of 2, got 4x3; pad to 4x4, or hpunet.load",
    "hpunet.sample(model, image=image, num_samples=1, latents=['mode'])": "ConfigError: latents[0]: expected",
    "hpunet.ELBO()(model(image=image, labels=labels), labels=labels[:1])": "DataError: labels: expected shape",
}


def test_production_refuses_bad_arguments_without_the_annotations() -> None:
    setup = """
import copy, torch, hpunet
model = hpunet.HPUNet(in_channels=1, num_classes=2, channels=(4, 4), latent_dims=(1,), blocks_per_scale=1)
image, labels = torch.rand(2, 1, 4, 4), torch.zeros(2, 4, 4, dtype=torch.long)
turning = copy.deepcopy(model)
turning.orientations = 8
model(image=image, labels=labels)
"""
    check_refused(setup, REFUSED)
