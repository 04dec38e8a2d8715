"""Volumes in three planes: the page gets what the predictor draws, and a choice is one step for all slices."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lidc_study import Series
from untrained import make_instance_predictor, make_predictor
from viewing import SOURCE, Client, VolumePredictor, open_client, write_images, write_volume

from hpunet.data.io.volumes import decode_nifti
from hpunet.data.synthetic.source import INFO
from hpunet.sampling.hypotheses import distinct_hypotheses
from hpunet.viewer import volumes

PLANES = {"axial": 0, "coronal": 1, "sagittal": 2}
ML = 2.5 * 0.5 * 0.8 / 1000


def draw(client: Client, **wanted: Any) -> dict[str, Any]:
    return dict(client.post("/api/cases/0/volumes", {"num_samples": 6} | wanted).json())


def plane(client: Client, path: str, name: str, number: int) -> np.ndarray:
    return client.get(f"/api/{path}?plane={name}&slice={number}").array()


@pytest.mark.parametrize("load", [make_predictor, VolumePredictor])
def test_planes_are_those_of_the_predictor(tmp_path: Path, load: Any) -> None:
    path = write_volume(tmp_path / "scan.nii.gz")
    expected = make_predictor()(path, num_samples=6, seed=3)
    hypotheses = distinct_hypotheses(expected.samples, num_classes=2, classes=(1,))
    values = decode_nifti(path.read_bytes(), name="it").slices
    with open_client(tmp_path, [path], load=load) as (client, _):
        about = client.get("/api/cases/0").json()
        assert (about["slices"], about["spacing"], about["spacing_z"]) == (6, pytest.approx([0.5, 0.8]), 2.5)
        assert about["ascends"]
        assert client.get("/api/session").json()["model"]["ndim"] == (3 if load is VolumePredictor else 2)
        drawn = draw(client, seed=3)
        assert drawn["volumes"] == pytest.approx([(sample > 0).sum() * ML for sample in expected.samples], abs=1e-6)
        assert [each["members"] for each in drawn["hypotheses"]] == [list(each.members) for each in hypotheses]
        assert [each["volume"] for each in drawn["hypotheses"]] == pytest.approx([n.area * ML for n in hypotheses])
        marked = np.argwhere(expected.samples.any(axis=(0, 1)))
        (top, left), (bottom, right) = marked.min(axis=0), marked.max(axis=0)
        assert drawn["box"] == {"y": top, "x": left, "height": bottom - top + 1, "width": right - left + 1}
        maps = {
            "samples": expected.samples,
            "hypotheses": np.stack([each.labels for each in hypotheses]),
            "mean": np.rint(255 * expected.mean)[None],
            "std": np.rint(510 * expected.std)[None],
        }
        for name, axis in PLANES.items():
            for number in (0, values.shape[axis] - 1):
                found = plane(client, "cases/0/image", name, number)
                np.testing.assert_array_equal(found[..., 0], values.take(number, axis=axis))
                for kind, whole in maps.items():
                    found = plane(client, f"volumes/{drawn['prediction']}/{kind}", name, number)
                    np.testing.assert_array_equal(found, whole.take(number, axis=axis + 1))
        assert draw(client, seed=3)["prediction"] == drawn["prediction"]
        assert draw(client, seed=4)["prediction"] != drawn["prediction"]


def test_choice_of_a_volume_is_one_step_for_all_slices(tmp_path: Path) -> None:
    path = write_volume(tmp_path / "scan.nii.gz")
    with open_client(tmp_path, [path]) as (client, _):
        drawn = draw(client)
        first = drawn["hypotheses"][0]
        runs = client.get(f"/api/volumes/{drawn['prediction']}/runs/0").json()["value_map"]
        source = SOURCE | {"share": first["share"], "num_samples": 6}
        event = {"kind": "choose-volume", "value_map": runs, "source": source}

        def add(*events: Any, version: int) -> dict[str, Any]:
            return dict(client.post("/api/cases/0/events", {"version": version, "events": events}).json()["state"])

        def masks() -> np.ndarray:
            return np.stack([client.get(f"/api/cases/0/mask?slice={z}").array() for z in range(6)])

        samples = [client.get(f"/api/volumes/{drawn['prediction']}/samples?slice={z}").array() for z in range(6)]
        expected = np.stack(samples, axis=1)[first["representative"]]
        state = add(event, version=0)
        np.testing.assert_array_equal(masks(), expected)
        assert state["volume"] == {"size": pytest.approx(first["volume"]), "units": "ml"}
        assert {int(z) for z in state["slices"]} == set(np.flatnonzero(expected.any(axis=(1, 2))))
        state = add({"kind": "paint", "slice": 2, "value": 1, "runs": [[0, 384]]}, version=1)
        assert state["slices"]["2"]["is_edited"]
        assert state["slices"]["2"]["source"] == source
        edited = expected.copy()
        edited[2] = 1
        np.testing.assert_array_equal(masks(), edited)
        nifti = client.post("/api/cases/0/export", {"format": "nifti"}).content
        np.testing.assert_array_equal(decode_nifti(nifti, name="it").slices, edited)
        assert client.post("/api/cases/0/export", {"format": "json"}).json()["state"]["volume"] == state["volume"]
        add({"kind": "undo"}, version=2)
        np.testing.assert_array_equal(masks(), expected)
        state = add({"kind": "undo"}, version=3)
        assert not masks().any()
        assert (state["slices"], state["volume"]["size"]) == ({}, 0)
    with open_client(tmp_path, [path]) as (client, _):  # from the log
        client.post("/api/cases/0/events", {"version": 4, "events": [{"kind": "redo"}]})
        np.testing.assert_array_equal(client.get("/api/cases/0/mask?slice=3").array(), expected[3])


def test_part_of_a_volume_is_shown_in_the_whole(tmp_path: Path) -> None:
    info = replace(INFO["lesions"], image_size=(8, 8))
    path = write_volume(tmp_path / "scan.nii.gz")
    expected = make_predictor(info)(path, num_samples=6, at=(20, 2), window="auto")
    whole = np.zeros((6, 6, 16, 24), dtype=np.uint8)
    _, y, x = expected.place.offset
    whole[:, :, max(y, 0) : y + 8, x : min(x + 8, 24)] = expected.samples[:, :, max(-y, 0) :, : 24 - x]
    with open_client(tmp_path, [path], load=lambda: make_predictor(info)) as (client, viewer):
        assert client.get("/api/cases/0").json()["needs_point"]
        viewer.drawing._window = "auto"
        drawn = draw(client, at=[20, 2])
        for name, axis in PLANES.items():
            for number in range(whole.shape[axis + 1]):
                found = plane(client, f"volumes/{drawn['prediction']}/samples", name, number)
                np.testing.assert_array_equal(found, whole.take(number, axis=axis + 1))


def test_series_is_a_volume(tmp_path: Path) -> None:
    series = Series("Doe^Jane", "1.3.6.1.4.1.14519.5.2.1", shape=(16, 16), spacing=(0.5, 0.25)).write(
        tmp_path / "scans"
    )
    info = replace(INFO["lesions"], image_bits=32)
    with open_client(tmp_path, [series], load=lambda: make_predictor(info)) as (client, _):
        about = client.get("/api/cases/0").json()
        assert (about["slices"], about["spacing_z"], about["ascends"]) == (4, 2.5, True)
        drawn = draw(client)
        assert len(drawn["hypotheses"]) > 0
        found = plane(client, f"volumes/{drawn['prediction']}/mean", "coronal", 5)
        assert found.shape == (1, 4, about["width"])


def test_what_cannot_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_client(tmp_path, [write_volume(tmp_path / "scan.nii.gz")]) as (client, viewer):
        name = draw(client)["prediction"]
        for path, status in (
            (f"volumes/{name}/mean?plane=coronal&slice=16", 400),
            (f"volumes/{name}/mean?plane=oblique", 422),
            (f"volumes/{name}/mean?slice=-1", 422),
            (f"volumes/{name}/answer", 422),
            (f"volumes/{name}/runs/63", 400),
            (f"volumes/{name}/runs/64", 422),
            ("volumes/other/mean", 404),
            ("volumes/other/runs/0", 404),
            ("cases/0/image?plane=sagittal&slice=24", 404),
        ):
            assert client.get(f"/api/{path}").status == status, path
        assert client.post("/api/cases/0/volumes", {"num_samples": 65}).status == 422
        for runs in ([[380, 8, 1]], [[6 * 384 - 1, 2, 1]], [[0, 2, 1], [1, 1, 1]], [[0, 2, 0]], [[0, 2, 9]]):
            event = {"kind": "choose-volume", "value_map": runs, "source": SOURCE}
            assert client.post("/api/cases/0/events", {"version": 0, "events": [event]}).status == 422, runs
        monkeypatch.setattr(volumes, "MAX_RUNS", 3)
        assert "too many" in client.get(f"/api/volumes/{name}/runs/0").json()["detail"]
        monkeypatch.setattr(volumes, "MAX_VOLUME_BYTES", 6 * 16 * 24 * 4)
        assert "at most 4" in client.post("/api/cases/0/volumes", {"num_samples": 5}).json()["detail"]
        viewer.drawing._volumes.max_bytes = 30_000  # of two volumes of 13,824 bytes
        for seed in range(4):
            draw(client, num_samples=4, seed=seed)
        assert viewer.drawing._volumes.num_bytes <= 30_000
        assert client.get(f"/api/volumes/{name}/mean").status == 404


def test_model_of_volumes_draws_no_slices(tmp_path: Path) -> None:
    with open_client(tmp_path, [write_volume(tmp_path / "scan.nii.gz")], load=VolumePredictor) as (client, _):
        for path, wanted in (("samples", {}), ("edits", {}), ("scale-maps", {"scale": 0, "kind": "sigma"})):
            answer = client.post(f"/api/cases/0/{path}", wanted)
            assert (answer.status, "whole volumes" in answer.json()["detail"]) == (400, True)


def test_instances_of_slices_are_no_volume(tmp_path: Path) -> None:
    paths = [write_images(tmp_path / "images", count=1)]
    with open_client(tmp_path, paths, load=make_instance_predictor) as (client, _):
        assert "slices one by one" in draw(client)["detail"]
