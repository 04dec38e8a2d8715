"""`hpunet convert-tf`: the authors' checkpoint, ways to name it, and what is wrong with others."""

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from places import SHARED
from tf_files import GOLDEN, golden_variables, write_checkpoint, write_golden_checkpoint

import hpunet
from hpunet.config.settings import load_settings
from hpunet.data.lidc.crops import INFO as LIDC
from hpunet.errors import CheckpointError, ConfigError
from hpunet.sampling.sample import reconstruct
from hpunet.weights.load import load_trained
from hpunet.weights.tensorflow.convert import Converted, convert_checkpoint

# Their images are normal noise, which a model warns of.
pytestmark = pytest.mark.filterwarnings("ignore:.*models made by hpunet take 0 to 1:UserWarning")

GOLDEN_FILES = SHARED / "golden"
SHAPE = ("model.channels=[8,12,16,16,16,16]", "model.latent_dims=[1,1,1]", "model.blocks_per_scale=2")
TINY = ("model.channels=[2,2]", "model.latent_dims=[1]", "model.blocks_per_scale=1")
ATOL = 5e-6


def convert(path: Path, out: Path, *changes: str, classes: list[str] | None = None) -> Converted:
    settings = load_settings("lidc-hpu", changes or SHAPE)
    return convert_checkpoint(path, out=out, settings=settings, class_names=classes)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_golden_checkpoint(tmp_path_factory.mktemp("tf") / "authors")


def assert_golden(folder: Path) -> None:
    """The folder's model computes what the authors' code computed."""
    arrays = np.load(GOLDEN / "hpu_small.npz")

    def nchw(name: str) -> torch.Tensor:
        return torch.from_numpy(arrays[name]).permute(0, 3, 1, 2)

    model = load_trained(folder, device="cpu").model
    means = hpunet.sample(model, image=nchw("img"), num_samples=1, latents=["mean"] * 3)
    rebuilt = reconstruct(model, image=nchw("img"), labels=nchw("seg").argmax(dim=1))
    for found, name in ((means, "prior_mean.logits"), (rebuilt, "rec_mean.logits")):
        assert found.logits is not None
        torch.testing.assert_close(found.logits[:, 0], nchw(name), rtol=0, atol=ATOL)


@pytest.mark.parametrize("named", ["prefix", "folder", "index", "data"])
def test_the_authors_checkpoint_gives_the_authors_logits(prefix: Path, tmp_path: Path, named: str) -> None:
    ending = {"prefix": "", "index": ".index", "data": ".data-00000-of-00001"}
    path = prefix.parent if named == "folder" else prefix.with_name(prefix.name + ending[named])
    done = convert(path, tmp_path / "out")
    assert (done.num_variables, done.num_parameters, done.step) == (344, 86_595, 0)
    assert done.info.fixed_classes == ("background", "class 1", "class 2")
    with np.load(GOLDEN / "hpu_small.npz") as arrays:
        assert set(done.unused) == {str(name) for name in arrays["grad_none_names"]}
    assert_golden(tmp_path / "out")


@pytest.mark.skipif(not GOLDEN_FILES.is_dir(), reason="needs the checkpoint itself")
def test_the_checkpoint_as_it_is_on_disk_gives_the_authors_logits(tmp_path: Path) -> None:
    convert(GOLDEN_FILES / "tf_checkpoint", tmp_path / "out")
    assert_golden(tmp_path / "out")


@pytest.mark.skipif(not GOLDEN_FILES.is_dir(), reason="needs the list of the LIDC model's variables")
def test_the_lidc_models_variables_are_those_of_the_default_shape(tmp_path: Path) -> None:
    variables = {}
    for line in (GOLDEN_FILES / "default_lidc_variables.txt").read_text().splitlines():
        name, shape = line.split(maxsplit=1)
        variables[name] = np.zeros([int(n) for n in shape.strip("()").split(",") if n.strip()], dtype=np.float32)
    np.savez(tmp_path / "model.ckpt-240000.npz", **variables)
    settings = load_settings("lidc-hpu")
    done = convert_checkpoint(tmp_path / "model.ckpt-240000.npz", out=tmp_path / "out", settings=settings)
    assert (done.num_parameters, done.step, done.info) == (20_584_302, 240_000, LIDC)
    assert len(variables) == 704 == done.num_variables + len(done.unused)


def test_an_npz_of_the_variables_does_as_well(tmp_path: Path) -> None:
    extra = {"global_step": np.array(240_000), "model/HPUNet/prior/conv_2d/w/Adam": np.zeros(3), "beta1_power": 0.1}
    np.savez(tmp_path / "variables.npz", **golden_variables(), **extra)
    done = convert(tmp_path / "variables.npz", tmp_path / "out", classes=["void", "cell", "wall"])
    assert done.step == 240_000
    assert done.info.fixed_classes == ("void", "cell", "wall")
    assert set(done.unused) > set(extra)
    found = load_trained(tmp_path / "out", device="cpu")
    assert (found.step, found.info, found.name) == (240_000, done.info, "out")
    assert_golden(tmp_path / "out")


def test_the_step_comes_from_the_variable_or_else_from_the_name(tmp_path: Path) -> None:
    variables = golden_variables()
    assert convert(write_checkpoint(tmp_path / "a/model.ckpt-77", variables), tmp_path / "from-name").step == 77
    variables["global_step"] = np.array(78, dtype=np.int64)
    assert convert(write_checkpoint(tmp_path / "b/model.ckpt-77", variables), tmp_path / "counted").step == 78


NAME = "model/HPUNet/prior/conv_2d_7/w"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({NAME: None}, "1 variables are missing: prior/conv_2d_7/w"),
        ({NAME: np.zeros((1, 1, 2, 3), np.float32)}, rf"{NAME} has \(1, 1, 2, 3\), expected"),
        ({"model/HPUNet/prior/conv_2d_99/w": np.zeros(1)}, "not have .*: model/HPUNet/prior/conv_2d_99/w"),
        ({"old/prior/conv_2d_7/w": np.zeros(1)}, "two variables for one weight"),
        ({"model/HPUNet/f_comb/logits/w": np.zeros((1, 1, 0, 10**9), np.float32)}, "logits/."),
        ({NAME: np.zeros(3, np.int32)}, f"{NAME} holds int32, expected floats"),
        ({NAME: np.full(3, np.nan, np.float32)}, f"{NAME} holds values that are not finite"),
    ],
)
@pytest.mark.parametrize("kind", ["checkpoint", "npz"])
def test_variables_that_do_not_fit_are_named(
    tmp_path: Path, change: dict[str, np.ndarray | None], words: str, kind: str
) -> None:
    variables = {name: array for name, array in (golden_variables() | change).items() if array is not None}
    path = tmp_path / "model.npz"
    if kind == "npz":
        np.savez(path, **variables)
    else:
        path = write_checkpoint(tmp_path / "model.ckpt", variables)
    with pytest.raises(CheckpointError, match=words):
        convert(path, tmp_path / "out")
    assert sorted(entry.name for entry in tmp_path.iterdir() if "out" in entry.name) == []


def test_another_shape_says_which_was_expected(prefix: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"variables .*It was read for model.channels=\[2, 2\].*--set"):
        convert(prefix, tmp_path / "out", *TINY)
    for changes in (
        ["model.kind=punet", "model.latent_dims=[1]"],
        ["data.extrapolate=true"],
        ["model.ndim=3", "data.crop=[64,64,64]"],
    ):
        with pytest.raises(ConfigError, match="the plain HPU-Net of images only"):
            convert(prefix, tmp_path / "out", *changes)
    with pytest.raises(ConfigError, match="--classes: 2 names, but the checkpoint has 3 classes"):
        convert(prefix, tmp_path / "out", classes=["background", "lesion"])


def test_what_is_no_checkpoint_is_refused_by_what_it_is(prefix: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    empty, several = tmp_path / "empty", tmp_path / "several"
    empty.mkdir()
    for name in ("model.ckpt-1", "model.ckpt-2"):
        write_checkpoint(several / name, {"a": np.zeros(1)})
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "text.npz").write_text("no zip")
    np.savez(tmp_path / "objects.npz", **{NAME: np.array([{}], dtype=object)})
    for path, words in {
        "empty": "empty: holds no TensorFlow checkpoint",
        "several": "several: holds several checkpoints; name one: model.ckpt-1, model.ckpt-2",
        "nowhere": "nowhere: no such checkpoint; expected a prefix such as",
        "nowhere.npz": "nowhere.npz: no such file",
        "picture.png": r"picture.png: not a readable.*\.npz",
        "cut.npz": "cut.npz: not a readable .npz file",
        "text.npz": "text.npz: not a readable .npz file",
        "objects.npz": "objects.npz: not a readable .npz file .*allow_pickle",
    }.items():
        with warnings.catch_warnings(), pytest.raises(CheckpointError, match=words):
            convert(tmp_path / path, out)
    out.mkdir()
    with pytest.raises(ConfigError, match="out: exists already"):
        convert(prefix, out)


def test_the_command_says_what_it_did_and_errors_are_one_line(prefix: Path, tmp_path: Path) -> None:
    code = "import sys\nfrom hpunet.cli.main import main\nsys.argv = ['hpunet', *sys.argv[1:]]\nmain()"
    command = [sys.executable, "-c", code, "convert-tf", str(prefix), "out"]
    changes = [word for change in SHAPE for word in ("--set", change)]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *more], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
        )

    done = run(*changes)
    assert done.returncode == 0, done.stderr
    assert "Converted 344 variables, 86,595 parameters, of iteration 0; classes: background, class 1" in done.stdout
    assert "Not used: 18 (model/HPUNet/posterior/conv_2d_72/b, " in done.stdout
    assert "hpunet sample out IMAGE" in done.stdout
    again = run(*changes)
    assert (again.returncode, again.stderr) == (2, "error: out: exists already; choose another folder\n")
