"""Models of instances in the viewer: samples are clustered, ids are painted, accepted cases are a data set."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from untrained import CELLS, make_instance_predictor
from viewing import SOURCE, Client, open_client, write_cells, write_images

from hpunet.data.io.volumes import decode_nifti
from hpunet.data.open import open_splits
from hpunet.evaluation.scores import instances_of
from hpunet.viewer import instances
from hpunet.viewer.answers import runs_of


def draw(client: Client, case: int = 0, **wanted: Any) -> tuple[dict[str, Any], np.ndarray]:
    answer = client.post(f"/api/cases/{case}/samples", wanted).json()
    return answer, client.get(f"/api/predictions/{answer['prediction']}/instances").array()


def choose(client: Client, labels: np.ndarray, case: int = 0, **more: Any) -> Any:
    event = {"kind": "choose", "slice": 0, "value_map": runs_of(labels), "source": SOURCE}
    body = {"version": client.get(f"/api/cases/{case}").json()["version"], "events": [event]} | more
    return client.post(f"/api/cases/{case}/events", body)


def accept(client: Client, case: int = 0) -> Any:
    version = client.get(f"/api/cases/{case}").json()["version"]
    return client.post(f"/api/cases/{case}/events", {"version": version, "events": [{"kind": "accept"}]})


def many(side: int) -> np.ndarray:
    """An instance in every second pixel of each second row."""
    found = np.zeros((side, side), dtype=np.uint16)
    found[::2, ::2] = np.arange(1, (side // 2) ** 2 + 1).reshape(side // 2, -1)
    return found


def test_samples_are_clustered_as_the_command_does(tmp_path: Path) -> None:
    paths = [write_cells(tmp_path / "images")]
    with open_client(tmp_path, paths, load=make_instance_predictor) as (client, _):
        model = client.get("/api/session").json()["model"]
        assert (model["has_instances"], model["num_samples"]) == (True, 32)
        for seed in (0, 4):
            answer, found = draw(client, num_samples=16, seed=seed)
            samples = make_instance_predictor()(paths[0] / "cells-000.png", num_samples=16, seed=seed).samples
            expected = instances_of(samples, info=CELLS, alpha=16, seed=seed)
            ids = np.unique(expected[expected > 0])
            assert answer["hypotheses"] == []
            assert answer["num_instances"] == len(ids) == found.max() > 1
            for number, each in enumerate(ids, start=1):
                np.testing.assert_array_equal(found == number, expected == each)


def test_models_of_classes_have_no_instances(tmp_path: Path) -> None:
    with open_client(tmp_path, [write_images(tmp_path / "images", count=1)]) as (client, _):
        answer = client.post("/api/cases/0/samples", {"num_samples": 2}).json()
        assert answer["num_instances"] is None
        assert client.get(f"/api/predictions/{answer['prediction']}/instances").status == 404
        refused = choose(client, np.full((16, 16), 2, dtype=np.uint8))
        assert refused.status == 422
        assert "0 to 1" in refused.json()["detail"]


def test_more_instances_than_a_map_holds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "MAX_INSTANCES", 1)
    with open_client(tmp_path, [write_cells(tmp_path / "images")], load=make_instance_predictor) as (client, _):
        answer = client.post("/api/cases/0/samples", {"num_samples": 16})
        assert answer.status == 400
        assert "instances" in answer.json()["detail"]


@pytest.mark.parametrize(("side", "mode"), [(16, "L"), (48, "I;16")])
def test_label_maps_are_exported_whole(tmp_path: Path, side: int, mode: str) -> None:
    labels = many(side)
    with open_client(
        tmp_path, [write_images(tmp_path / "images", count=1, side=side)], load=make_instance_predictor
    ) as (client, _):
        state = choose(client, labels).json()["state"]
        assert state["slices"]["0"]["num_instances"] == state["slices"]["0"]["area"] == labels.max()
        np.testing.assert_array_equal(client.get("/api/cases/0/mask").array(), labels)
        picture = Image.open(io.BytesIO(client.post("/api/cases/0/export", {"format": "png"}).content))
        assert picture.mode == mode
        np.testing.assert_array_equal(np.asarray(picture), labels)
        volume = client.post("/api/cases/0/export", {"format": "nifti"}).content
        np.testing.assert_array_equal(decode_nifti(volume, name="it").slices[0], labels)
        about = json.loads(client.post("/api/cases/0/export", {"format": "json"}).content)
        assert about["state"]["slices"]["0"]["num_instances"] == labels.max()


def test_accepted_cases_are_a_data_set_of_instances(tmp_path: Path) -> None:
    labels = {0: many(48), 1: many(16).repeat(3, axis=0).repeat(3, axis=1), 2: many(48)}
    with open_client(
        tmp_path, [write_images(tmp_path / "images", count=3, side=48)], load=make_instance_predictor
    ) as (client, _):
        for case, each in labels.items():
            assert choose(client, each, case).status == 200
            assert accept(client, case).status == 200
        client.post("/api/cases/2/events", {"version": 2, "events": [{"kind": "reopen"}]})
    folder = tmp_path / "list"
    for place in ("images", "instances"):
        assert sorted(file.name for file in (folder / place).iterdir()) == ["image-000.png", "image-001.png"]
    assert not (folder / "graders").exists()
    splits = open_splits(str(folder), options={"val_every": 2})
    assert all(source.info.has_instances for source in splits.values())
    found = {each.identities[n].key: each[n].labels[0] for each in splits.values() for n in range(len(each))}
    assert len(found) == 2
    for key, truth in found.items():
        each = labels[int(key[-1])]
        assert len(np.unique(truth)) == len(np.unique(each))
        pairs = np.unique(np.stack([truth.ravel(), each.ravel()]), axis=1)
        assert pairs.shape[1] == len(np.unique(each)), "the same partition"


def test_a_work_list_holds_classes_or_instances(tmp_path: Path) -> None:
    paths = [write_images(tmp_path / "images", count=2)]
    labels = np.eye(16, dtype=np.uint8)
    with open_client(tmp_path, paths) as (client, _):
        choose(client, labels)
        assert accept(client).status == 200
    with open_client(tmp_path, paths, load=make_instance_predictor) as (client, _):
        choose(client, labels, 1)
        refused = accept(client, 1)
        assert refused.status == 422
        assert "classes" in refused.json()["detail"]
        assert client.get("/api/cases").json()["cases"][1]["status"] == "open"
    assert not (tmp_path / "list" / "instances").exists()
