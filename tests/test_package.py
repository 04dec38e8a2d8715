"""The package as a whole: import time, public names, which module may import which, documentation that runs."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import hpunet

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "hpunet"

# Nothing points backwards: models know no data, metrics no model, pictures no torch.
ALLOWED = {
    "__init__": {"*"},
    "__main__": {"cli"},
    "cli": {"*"},
    "bench_timing": {"errors"},
    "bench": {
        *("errors", "batch", "bench_timing", "build", "config", "data", "evaluate", "kernels.choice", "models"),
        *("run_state", "sampling", "scorer", "scoring", "train"),
    },
    "cli_bench": {"bench", "storage", "train"},
    "cli_data": {"errors", "config", "data", "pictures", "storage"},
    "config": {"errors"},
    "noise": {"errors"},
    "demo": {
        *("errors", "config", "data", "demo_scores", "metrics", "report", "train", "trained"),
    },
    "demo_scores": {"data", "metrics", "models", "sampling"},
    "examples": {"errors", "data.files"},
    "saved_run": {"errors", "config", "data.files", "examples", "logs"},
    "report_sheets": {"errors"},
    "report_paint": {"pictures"},
    "report_figures": {"pictures", "report_sheets", "saved_run"},
    "report_examples": {"examples", "pictures", "report_paint", "report_sheets"},
    "report_contents": {"examples", "report_examples", "report_figures", "saved_run"},
    "report": {"errors", "report_contents", "report_sheets", "saved_run"},
    "errors": set(),
    "allocation": set(),
    "batch": {"errors", "models.gaussian"},
    "pictures": {"errors"},
    "convert": {"errors", "models"},
    "convert_files": {
        *("errors", "build", "checkpoint", "config", "convert", "data.base", "data.lidc", "models", "storage"),
        "tf_bundle",
    },
    "cli_weights": {"errors", "config", "convert_files", "published", "storage", "trained"},
    "crc32c": set(),
    "tf_bundle": {"errors", "crc32c", "storage"},
    "distributed": set(),
    "objectives": {"errors", "batch", "distributed", "models.gaussian", "models.gradients"},
    "sampling": {"errors", "batch", "models"},
    "tiling": {"errors", "batch", "models"},
    "hypotheses": {"errors", "metrics"},
    "sample_sheet": {"hypotheses", "pictures"},
    "sample_files": {
        *("errors", "data", "hypotheses", "models", "pictures", "sample_sheet", "sampling", "tiling", "trained"),
    },
    "instance_files": {"errors", "data", "metrics", "pictures", "report_paint", "sample_files", "scoring", "trained"},
    "cli_progress": set(),
    "cli_sample": {
        "errors",
        "build",
        "cli_progress",
        "cli_weights",
        "data",
        "hypotheses",
        "kernels.choice",
        "sample_files",
        "sampling",
        "trained",
    },
    "cli_instances": {
        *("errors", "build", "config", "cli_sample", "data", "instance_files", "instances", "sample_files"),
        *("scoring", "trained"),
    },
    "storage": {"errors"},
    "weights": {"errors", "storage"},
    "checkpoint": {"errors", "storage", "weights"},
    "run_state": {"errors", "__init__"},
    "build": {"errors", "config", "data", "models", "objectives", "training_step"},
    "logs": {"storage"},
    "training_step": {"batch", "noise", "data", "objectives"},
    "validation": {"batch", "config", "data", "distributed", "logs", "metrics", "pictures", "sampling", "scoring"},
    "scoring": {"batch", "noise", "data", "instances", "metrics", "models", "sampling"},
    "evaluation_rows": {"errors", "data.files", "distributed", "metrics", "storage"},
    "evaluation_summary": {"evaluation_rows", "metrics"},
    "scorer": {
        *("errors", "batch", "data.base", "evaluation_rows", "evaluation_summary", "instances", "metrics"),
        *("models.protocol", "sampling", "scoring"),
    },
    "evaluate": {
        *("errors", "data.base", "distributed", "evaluation_rows", "evaluation_summary", "pictures"),
        *("scorer", "scoring", "storage"),
    },
    "compare": {"errors", "evaluation_rows", "evaluation_summary", "report_figures", "report_sheets"},
    "cli_evaluate": {
        *(
            "errors",
            "build",
            "cli_progress",
            "cli_weights",
            "compare",
            "config",
            "data.sources",
            "distributed",
            "evaluate",
            "evaluation_rows",
            "evaluation_summary",
            "kernels.choice",
            "published",
            "scorer",
            "storage",
        ),
        *("train", "trained"),
    },
    "train": {
        *("errors", "config", "batch", "build", "checkpoint", "data", "distributed", "logs", "objectives"),
        *("kernels.choice", "run_state", "stopping", "storage", "trained", "training_step", "validation", "weights"),
    },
    "published": {"errors", "storage", "weights"},
    "trained": {"errors", "build", "checkpoint", "config", "data", "models", "published", "weights"},
    "init": {"errors", "data"},
    "cli_init": {"errors", "config", "init", "storage"},
    "stopping": {"distributed"},
    "cli_report": {"config", "cli_progress", "cli_train", "demo", "report", "report_contents", "stopping", "train"},
    "cli_train": {"errors", "config", "distributed", "stopping", "train"},
    "models": {"errors", "batch", "models"},
    "kernels": {"errors", "batch", "kernels", "models", "noise"},
    "data": {"errors", "batch", "noise", "pictures", "data"},
    "metrics": {"errors", "metrics"},
    "instances": {"errors"},
}


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hpunet"):
            found.add(node.module.removeprefix("hpunet").removeprefix(".") or "__init__")
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_modules_import_only_what_the_table_allows(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    allowed = ALLOWED[room]
    for module in imports_of(path):
        fits = any(module == name or module.startswith(name + ".") for name in allowed)
        assert "*" in allowed or fits, f"{room} must not import {module}"


def run_python(code: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder)


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
    "hpunet.sample(model, image=image, num_samples=1, latents=['mode'])": "ConfigError: latents[0]: expected",
    "hpunet.ELBO()(model(image=image, labels=labels), labels=labels[:1])": "DataError: labels: expected shape",
}


def test_production_refuses_bad_arguments_without_the_annotations() -> None:
    """The shape annotations are only checked in tests; users meet the checks of the code itself."""
    code = f"""
import torch, hpunet
model = hpunet.HPUNet(in_channels=1, num_classes=2, channels=(4, 4), latent_dims=(1,), blocks_per_scale=1)
image, labels = torch.rand(2, 1, 4, 4), torch.zeros(2, 4, 4, dtype=torch.long)
model(image=image, labels=labels)
for call in {list(REFUSED)}:
    try:
        print(f"accepted: {{eval(call)}}")
    except Exception as error:
        print(f"{{type(error).__name__}}: {{error}}")
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    for line, expected in zip(result.stdout.splitlines(), REFUSED.values(), strict=True):
        assert expected in line


def test_readme_example_runs(tmp_path: Path) -> None:
    Image.effect_noise((128, 128), 40).save(tmp_path / "crop.png")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        result = run_python(block, tmp_path)
        assert result.returncode == 0, result.stderr


def test_readme_file_map_names_what_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    for path in sorted(SOURCE.iterdir()):
        if path.suffix == ".py" and not path.name.startswith("__"):
            assert path.name in text, f"README's file map lacks {path.name}"
