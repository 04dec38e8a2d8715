"""Commands on volumes: they write what Python gives."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from typer.testing import CliRunner
from untrained import CELLS, make_volume_predictor

import hpunet
from hpunet.cli.main import app
from hpunet.data.synthetic.writers import write_volumes
from hpunet.errors import ConfigError
from hpunet.evaluation.scores import instances_of
from hpunet.weights.load import publish


def command(*words: object) -> Any:
    """Run a command that succeeds."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def read(path: Path) -> np.ndarray:
    return np.moveaxis(np.asarray(nibabel.load(path).dataobj), 2, 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published model of volumes, and a set of NIfTI volumes."""
    folder = tmp_path_factory.mktemp("volumes")
    publish(make_volume_predictor().trained, out=folder / "model", name="tiny")
    write_volumes(folder / "data", size=(4, 16, 16), num_volumes=2, seed=0)
    return folder


def test_commands_write_what_python_gives(place: Path, tmp_path: Path) -> None:
    model, image = place / "model", sorted((place / "data" / "images").glob("*val*.nii.gz"))[0]
    name, out = image.name.removesuffix(".nii.gz"), tmp_path / "out"
    words = command("sample", model, image, "--samples", 3, "--out", out, "--format", "nifti,geojson,imagej")
    assert "ml" in words
    found = hpunet.load(model)(image, num_samples=3)
    for number, labels in enumerate(found.samples, start=1):
        np.testing.assert_array_equal(read(out / name / f"sample-{number:02d}.nii.gz"), labels)
    planes = [
        each["properties"].get("slice")
        for each in json.loads((out / name / "outlines.geojson").read_text())["features"]
    ]
    assert set(planes) == {z for z in range(4) if found.samples[:, z].any()}
    state = out / name / "state.json"
    command("edit", model, image, state, "--nudge", "1,5,6,2,3", "--pick", "2", "--out", tmp_path / "edited")
    edited = found.pick(1).nudge(scale=1, at=(5, 6), slice=2, by=3)
    np.testing.assert_array_equal(read(tmp_path / "edited" / "sample-01.nii.gz"), edited.samples[0])
    command("edit", model, image, state, "--redraw", 1, "--region", "2,3,1,9,9,3", "--out", tmp_path / "redrawn")
    redrawn = found.redraw(scales=[1], region=(2, 3, 1, 9, 9, 3))
    np.testing.assert_array_equal(read(tmp_path / "redrawn" / "sample-03.nii.gz"), redrawn.samples[2])
    median = json.loads(measured(out / name, tmp_path))["sizes"][0]
    assert median["unit"] == "ml"
    assert median["before"]["median"] == pytest.approx(found.measurements.of().median)
    assert median["before"]["larger_than"] == found.measurements.of().larger_than(0.1)
    for words, expected in (("1,5,6", "in volumes 3,64,70,12,1.5"), ("1,5,6,2", "with the slice")):
        with pytest.raises(ConfigError, match=expected):
            command("edit", model, image, state, "--nudge", words, "--out", tmp_path / "none")


def measured(folder: Path, tmp_path: Path) -> str:
    command("measure", folder, "--larger-than", 0.1, "--json", tmp_path / "sizes.json")
    return (tmp_path / "sizes.json").read_text()


def test_volumes_are_calibrated(place: Path, tmp_path: Path) -> None:
    """The folder is opened as volumes, as the model needs them."""
    how = ("--samples", 4, "--guarantee", 0.5)
    words = command("calibrate", place / "model", "--data", place / "data", *how, "--out", tmp_path / "made")
    assert "2 images of 2 patients" in words
    image = sorted((place / "data" / "images").glob("*test*.nii.gz"))[0]
    how = (*how, "--calibration", tmp_path / "made", "--out", tmp_path / "out")
    command("sample", place / "model", image, *how)
    folder = tmp_path / "out" / image.name.removesuffix(".nii.gz")
    held = hpunet.load(place / "model", calibration=tmp_path / "made")(image, num_samples=4).guarantee(0.5)
    about = json.loads((folder / "guarantee.json").read_text())
    assert about["volume_ml"] == pytest.approx(held.volume)
    for name in ("outer", "inner"):
        np.testing.assert_array_equal(read(folder / f"{name}.nii.gz"), getattr(held, name))


def test_instances_of_volumes(tmp_path: Path) -> None:
    predictor = make_volume_predictor(replace(CELLS, ndim=3, spacing=(2.0, 1.0, 1.0)), latent_dims=(2, 2))
    publish(predictor.trained, out=tmp_path / "model", name="cells")
    volume = np.random.default_rng(0).integers(0, 256, (4, 16, 16), dtype=np.uint8)
    np.save(tmp_path / "cells.npy", volume)
    how = ("--samples", 6, "--erosion", 1, "--out", tmp_path / "out")
    command("instances", tmp_path / "model", tmp_path / "cells.npy", *how)
    drawn = hpunet.load(tmp_path / "model")(volume, num_samples=6)
    found = instances_of(drawn.samples, info=predictor.info, alpha=6, seed=0, erosion=1)
    np.testing.assert_array_equal(read(tmp_path / "out" / "cells" / "instances.nii.gz"), found)
    assert len(np.unique(found)) > 2
    assert {each.name for each in (tmp_path / "out" / "cells").iterdir()} == {
        "instances.nii.gz",
        "instances.json",
        "overlay.png",
    }
