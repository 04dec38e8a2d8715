"""Examples that ship with the package."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer import Typer
from typer.testing import CliRunner

import hpunet
from hpunet.cli.examples import examples_command
from hpunet.data.examples.load import copy_example, example_names
from hpunet.data.open import open_data
from hpunet.errors import DataError

FOLDER = Path(hpunet.__file__).parent / "data" / "examples" / "lidc"


@pytest.mark.parametrize(("name", "marked"), [("lidc", 2), ("lidc-1", 2), ("lidc-2", 4), ("lidc-3", 4)])
def test_example_has_an_image_and_four_gradings(name: str, marked: int) -> None:
    example = hpunet.example(name)
    assert example.image.shape == (128, 128)
    assert (example.image.dtype, example.labels.dtype) == (np.uint8, np.int32)
    assert example.labels.shape == (4, 128, 128)
    assert set(np.unique(example.labels)) == {0, 1}
    assert example.labels.any(axis=(1, 2)).sum() == marked
    assert example.path.is_file()
    assert "CC BY 3.0" in example.credit


def test_examples_are_the_files_there_are() -> None:
    assert example_names() == sorted(path.stem for path in FOLDER.glob("images/*.png"))


def test_a_copied_example_with_labels_is_a_data_set(tmp_path: Path) -> None:
    image, *graders = copy_example("lidc-2", tmp_path / "new", labels=True)
    assert image == tmp_path / "new/images/lidc-2.png"
    assert len(graders) == 4
    sample = open_data(str(tmp_path / "new"), split="train")[0]
    assert np.array_equal(sample.labels, hpunet.example("lidc-2").labels)


def test_a_copied_example_replaces_no_other_file(tmp_path: Path) -> None:
    (path,) = copy_example("lidc-2", tmp_path)
    assert path.read_bytes() == hpunet.example("lidc-2").path.read_bytes()
    assert copy_example("lidc-2", tmp_path) == [path]
    path.write_bytes(b"mine")
    with pytest.raises(DataError, match="exists already"):
        copy_example("lidc-2", tmp_path)
    assert path.read_bytes() == b"mine"


def test_examples_command_lists_and_copies(tmp_path: Path) -> None:
    app = Typer()
    app.command()(examples_command)
    listed = CliRunner().invoke(app, []).output
    assert all(name in listed for name in (*example_names(), "CC BY 3.0"))
    result = CliRunner().invoke(app, ["lidc", "lidc-3", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "CC BY 3.0" in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lidc-1.png", "lidc-3.png"]


def test_example_refuses_an_unknown_name() -> None:
    with pytest.raises(hpunet.ConfigError, match=r"lidc-1, lidc-2, lidc-3.*'brain'"):
        hpunet.example("brain")


def test_example_does_not_import_torch() -> None:
    code = "import sys, hpunet; hpunet.example('lidc'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_example_files_are_small_and_licensed() -> None:
    assert "CC BY 3.0" in (FOLDER / "LICENSE.txt").read_text()
    assert sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) < 100_000


def test_example_folder_is_read_as_a_data_set() -> None:
    sample = open_data(str(FOLDER), split="train")[0]
    example = hpunet.example(sample.identity.key)
    assert np.array_equal(np.rint(sample.image[0] * 255), example.image)
    assert np.array_equal(sample.labels, example.labels)
