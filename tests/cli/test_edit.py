"""`hpunet edit` and `hpunet sample --state` give what Python gives."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner
from untrained import make_trained

import hpunet
from hpunet.cli.main import app
from hpunet.data.io.images import read_image
from hpunet.errors import HPUNetError
from hpunet.predict.predictor import Predictor
from hpunet.weights.load import publish


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and an image, whose samples are in `drawn`."""
    folder = tmp_path_factory.mktemp("edit")
    publish(make_trained(channels=(4, 6), latent_dims=(1,)), out=folder / "model", name="tiny")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 48)).astype(np.uint8)
    Image.fromarray(pixels).save(folder / "image.png")
    run(folder, "sample", "model", "image.png", "--out", ".", "--samples", 5, "--seed", 2, "--box", "4,4,40,36")
    return folder


def run(folder: Path, *words: object, refused: str = "") -> None:
    with contextlib.chdir(folder):
        result = CliRunner().invoke(app, [*map(str, words)])
    assert isinstance(result.exception, HPUNetError) == bool(refused), result.output
    assert result.exception is None or refused in str(result.exception)


def maps(folder: Path) -> np.ndarray:
    return np.stack([read_image(path, labels=True) for path in sorted(folder.glob("sample-*.png"))])


def test_states_replay_in_other_processes(place: Path) -> None:
    state = place / "image" / "state.json"
    command = [sys.executable, "-m", "hpunet", "sample", "model", "image.png", "--state", state, "--out", "again"]
    subprocess.run(command, cwd=place, check=True, capture_output=True)
    np.testing.assert_array_equal(maps(place / "again/image"), maps(place / "image"))
    found = hpunet.load(place / "model", device="cpu").replay(place / "image.png", state)
    np.testing.assert_array_equal(found.samples, maps(place / "image"))
    assert found.options.num_samples == 5
    assert (found.state(), json.loads(state.read_text())) == (json.loads(state.read_text()),) * 2


@pytest.mark.parametrize(
    ("words", "change"),
    [
        (["--pick", "2,4"], lambda p: p.pick(1, 3)),
        (["--redraw", "auto", "--region", "3,4,20,20"], lambda p: p.redraw(region=(3, 4, 20, 20))),
        (["--redraw", "0", "--seed", 9, "--temperature", 2], lambda p: p.redraw(scales=[0], seed=9, temperature=2.0)),
        (["--nudge", "0,7,8,3"], lambda p: p.nudge(scale=0, at=(7, 8), by=3)),
        (["--pick", 3, "--with", "image/state.json", "--region", "0,0,9,9"], None),
    ],
)
def test_edit_does_what_python_does(place: Path, tmp_path: Path, words: list[Any], change: Any) -> None:
    given = [each if each != "image/state.json" else place / "one/state.json" for each in words]
    predictor: Predictor = hpunet.load(place / "model", device="cpu")
    before = predictor.replay(place / "image.png", place / "image/state.json")
    if change is None:
        run(place, "edit", "model", "image.png", "image/state.json", "--out", "one", "--pick", 5, "--replace")
        expected = before.pick(2).combine(before.pick(4), region=(0, 0, 9, 9))
    else:
        expected = change(before)
    run(place, "edit", "model", "image.png", "image/state.json", "--out", tmp_path / "edited", *given)
    np.testing.assert_array_equal(maps(tmp_path / "edited"), expected.samples)
    again = predictor.replay(place / "image.png", tmp_path / "edited/state.json")
    np.testing.assert_array_equal(again.samples, expected.samples)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "--pick, --redraw, --nudge or --with"),
        (["--pick", "0"], "samples: expected numbers"),
        (["--pick", "one"], "--pick: expected numbers"),
        (["--nudge", "1,2,3"], "--nudge: expected numbers such as"),
        (["--with", "image/state.json"], "needs a --region"),
        (["--redraw", "7"], "scales: expected"),
    ],
)
def test_impossible_edits_are_one_line(place: Path, tmp_path: Path, words: list[str], expected: str) -> None:
    run(place, "edit", "model", "image.png", "image/state.json", "--out", tmp_path / "x", *words, refused=expected)
    assert not (tmp_path / "x").exists()


def test_a_state_is_of_one_image(place: Path) -> None:
    two = ["model", "image.png", "image.png"]
    run(place, "sample", *two, "--state", "image/state.json", "--out", "x", refused="of one image")
