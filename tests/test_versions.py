"""What version 1 wrote can be read: `golden/v1` holds a tiny file of each kind (`helpers/golden_v1.py`)."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from places import ROOT, TESTS

import hpunet
from hpunet.config.settings import check_settings, load_settings
from hpunet.data.packs import open_pack
from hpunet.evaluation.rows import read_evaluation
from hpunet.predict.measurements import read_measurements
from hpunet.utils.files import parse_json
from hpunet.viewer.cases import find_cases
from hpunet.viewer.worklist import open_work_list
from hpunet.weights.calibration import read_calibration, read_review
from hpunet.weights.checkpoints import load_checkpoint
from hpunet.weights.load import load_trained

V1 = TESTS / "golden" / "v1"
IMAGE = V1 / "images" / "image-000.png"
SAMPLED = V1 / "sampled" / "image-000"


def test_settings_mean_what_they_meant() -> None:
    found = parse_json((V1 / "settings.json").read_bytes(), name="settings.json")
    assert found["format"] == 1
    settings = check_settings(found, where="settings.json")
    assert settings == load_settings("demo")
    del found["format"]
    assert check_settings(found, where="earlier") == settings
    with pytest.raises(hpunet.ConfigError, match="format"):
        check_settings({**found, "format": 2}, where="later")


def test_packs_hold_the_same_images() -> None:
    pack = open_pack(V1 / "pack", split="train")
    assert (len(pack), pack.info.num_graders, pack.info.num_classes) == (10, 4, 2)
    batch = pack.batch(torch.arange(10))
    pixels = np.fromfile(V1 / "pack" / "train" / "images.bin", np.uint8).reshape(10, 1, 16, 16)
    np.testing.assert_array_equal(np.rint(batch.image.numpy() * 255), pixels)
    bits = np.unpackbits(np.fromfile(V1 / "pack" / "train" / "labels.bin", np.uint8))
    assert batch.labels.sum() == bits.sum() > 0


def test_checkpoints_and_published_weights_are_the_same_model() -> None:
    kept = load_checkpoint(V1 / "run" / "checkpoints" / "step-00000002")
    assert {"model", "averaged", "loss", "optimiser"} <= kept.tensors.keys()
    run = load_trained(V1 / "run")
    weights = dict(run.model.state_dict())
    assert (run.step, len(weights)) == (2, len(kept.tensors["model"]))
    for folder in ("published", "hub"):
        found = load_trained(V1 / folder)
        assert found.name == "tiny-1"
        for name, tensor in found.model.state_dict().items():
            assert torch.equal(tensor, weights[name].half().float()), name


def test_states_replay_their_samples() -> None:
    again = hpunet.load(V1 / "run").replay(IMAGE, SAMPLED / "state.json")
    assert again.samples.shape == (3, 16, 16)
    areas, written = (
        found.classes["lesion"]["area"].values for found in (again.measurements, read_measurements(SAMPLED))
    )
    np.testing.assert_allclose(areas, written, atol=3)  # processors round differently


def test_calibrations_hold_for_their_weights() -> None:
    found = read_calibration(V1 / "run" / "calibration.json")
    assert [level.guarantee for level in found.levels] == [0.5]
    assert read_review(V1 / "run" / "review.safetensors")[2] == found.weights_sha256
    guarantee = hpunet.load(V1 / "run")(IMAGE, num_samples=4).guarantee(0.5)
    assert guarantee.calibration == found


def test_evaluations_are_read() -> None:
    identity, rows = read_evaluation(V1 / "run" / "evaluation" / "val-2")
    assert (identity["split"], identity["samples"], len(rows)) == ("val", 2, 3)


def test_work_lists_are_read(tmp_path: Path) -> None:
    folder = shutil.copytree(V1 / "worklist", tmp_path / "worklist")
    cases = find_cases([IMAGE])
    with open_work_list(folder, cases, model="run") as work:
        assert [each["status"] for each in work.summary()] == ["accepted"]
        fold = work.fold(cases[0])
        assert fold.note == "unsure"
        mask = fold.mask(0, shape=(16, 16))
        assert set(np.flatnonzero(mask)) >= {3, 4, 20}


def test_versions_page_lists_every_format() -> None:
    page = (ROOT / "docs" / "reference" / "versions.md").read_text()
    contents = [json.loads(path.read_text()) for path in V1.rglob("*.json")]
    names = {str(found["format"]) for found in contents if isinstance(found, dict) and "format" in found}
    assert len(names) == 11
    for name in names:
        assert f"| {'`format`' if name == '1' else name.removesuffix(' 1')} | 1 |" in page, name
