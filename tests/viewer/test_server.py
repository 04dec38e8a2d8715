"""The answers of the server: what a page gets is what the predictor draws and what the work list holds."""

import gzip
import json
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lidc_study import Series
from PIL import Image
from untrained import make_predictor
from viewing import SOURCE, Client, open_client, open_viewer, write_images

from hpunet.data.examples.load import example
from hpunet.data.io.volumes import decode_nifti
from hpunet.data.synthetic.source import INFO
from hpunet.errors import ConfigError
from hpunet.metrics import area, longest_diameter
from hpunet.viewer import drawing
from hpunet.viewer.cases import Case, find_cases
from hpunet.viewer.drawing import CancelledError, Drawing, Wish
from hpunet.viewer.server import STATIC, read_pages

PAINT = {"kind": "paint", "slice": 0, "value": 1, "runs": [[3, 2], [20, 1]]}


def test_what_the_page_asks_first(tmp_path: Path) -> None:
    paths = [example("lidc").path.parents[1], write_images(tmp_path / "images", count=1)]
    with open_client(tmp_path, paths) as (client, _):
        session = client.get("/api/session").json()
        assert session["model"]["classes"][0] == {"index": 0, "name": "background"}
        assert session["num_cases"] == 4
        assert "medical device" in session["disclaimer"]
        listed = client.get("/api/cases").json()["cases"]
        assert listed[0] == {"id": 0, "name": "lidc-1", "status": "open", "note": False}
        about = client.get("/api/cases/1").json()
        assert (about["height"], about["width"], about["slices"], about["dtype"]) == (128, 128, 1, "uint8")
        assert about["graders"] == ["1", "2", "3", "4"]
        assert about["formats"] == ["png", "nifti", "json", "state", "geojson", "imagej"]
        assert about["state"] == {"status": "open", "note": "", "steps_done": 0, "steps_undone": 0, "slices": {}}
        image = client.get("/api/cases/1/image?slice=0").array()
        np.testing.assert_array_equal(image[..., 0], example("lidc-2").image)
        grader = client.get("/api/cases/1/graders/2").array()
        np.testing.assert_array_equal(grader, example("lidc-2").labels[2])
        assert client.get("/api/cases/3").json()["graders"] == []


def test_samples_are_those_of_the_predictor(tmp_path: Path) -> None:
    paths = [write_images(tmp_path / "images", count=2)]
    predictor = make_predictor()
    with open_client(tmp_path, paths) as (client, _):
        for case, seed in ((0, 0), (1, 0), (1, 5), (0, 0)):
            wanted = {"slice": 0, "num_samples": 6, "seed": seed, "at": None}
            drawn = client.post(f"/api/cases/{case}/samples", wanted).json()
            expected = predictor(paths[0] / f"image-00{case}.png", num_samples=6, seed=seed)
            place = f"/api/predictions/{drawn['prediction']}"
            for headers in ({}, {"Accept_Encoding": "gzip"}):
                answer = client.get(f"{place}/samples", **headers)
                if headers:
                    assert answer.headers["content-encoding"] == "gzip"
                    answer.content = gzip.decompress(answer.content)
                np.testing.assert_array_equal(answer.array(), expected.samples)
            mean, std = (client.get(f"{place}/{what}").array() / 255 for what in ("mean", "std"))
            np.testing.assert_allclose(mean, expected.mean, atol=0.51 / 255)
            np.testing.assert_allclose(std / 2, expected.std, atol=0.51 / 255)
            assert [each["members"] for each in drawn["hypotheses"]] == [
                list(each.members) for each in expected.hypotheses
            ]
            assert drawn["place"] == {"y": 0, "x": 0, "height": 16, "width": 16}
            assert drawn["units"] == "px"
            for sizes, labels in zip(drawn["samples"], expected.samples, strict=True):
                assert sizes["area"] == area(labels == 1)
                assert sizes["diameter"] == pytest.approx(longest_diameter(labels == 1), abs=1e-3)


def test_the_same_wish_is_answered_from_memory_until_it_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "PREDICTION_BYTES", 5000)  # of two predictions of 2304 bytes
    with open_client(tmp_path, [write_images(tmp_path / "images", count=1)]) as (client, viewer):

        def draw(seed: int) -> tuple[str, bytes]:
            name = client.post("/api/cases/0/samples", {"num_samples": 7, "seed": seed}).json()["prediction"]
            return name, client.get(f"/api/predictions/{name}/samples").content

        first = draw(0)
        assert draw(0) == first
        draw(1), draw(2)
        assert client.get(f"/api/predictions/{first[0]}/samples").status == 404
        again = draw(0)
        assert again[0] != first[0]
        assert again[1] == first[1]
        assert viewer.drawing._drawn.num_bytes <= 5000
        assert len(viewer.drawing._names) <= 2


def test_part_of_a_large_image(tmp_path: Path) -> None:
    info = replace(INFO["lesions"], image_size=(16, 16))
    folder = write_images(tmp_path / "images", count=1, side=48)
    how: dict[str, Any] = {"load": lambda: make_predictor(info)}
    with open_client(tmp_path, [folder], **how) as (client, _):
        assert client.get("/api/cases/0").json()["needs_point"] is True
        drawn = client.post("/api/cases/0/samples", {"num_samples": 3, "at": [40, 20.5]}).json()
        assert drawn["place"] == {"y": 13, "x": 32, "height": 16, "width": 16}
        expected = make_predictor(info)(folder / "image-000.png", num_samples=3, at=(40, 20.5))
        samples = client.get(f"/api/predictions/{drawn['prediction']}/samples").array()
        np.testing.assert_array_equal(samples, expected.samples)
        assert client.post("/api/cases/0/samples", {"at": [48.5, 0]}).status == 400


def test_volumes_slice_by_slice(tmp_path: Path) -> None:
    series = Series("Doe^Jane", "1.3.6.1.4.1.14519.5.2.1", shape=(16, 16), spacing=(0.5, 0.25)).write(
        tmp_path / "scans"
    )
    info = replace(INFO["lesions"], image_bits=32)
    how: dict[str, Any] = {"load": lambda: make_predictor(info)}
    with open_client(tmp_path, [series], **how) as (client, _):
        about = client.get("/api/cases/0").json()
        assert (about["slices"], about["spacing"]) == (4, pytest.approx([0.5, 0.25]))
        for number in range(4):
            image = client.get(f"/api/cases/0/image?slice={number}").array()
            assert image[3, 5, 0] == -1000 + 30 + 25 + number
        drawn = client.post("/api/cases/0/samples", {"slice": 2, "num_samples": 2}).json()
        assert drawn["units"] == "mm"
        samples = client.get(f"/api/predictions/{drawn['prediction']}/samples").array()
        assert drawn["samples"][0]["area"] == pytest.approx((samples[0] == 1).sum() / 8, abs=1e-3)
        assert client.post("/api/cases/0/samples", {"slice": 4}).status == 404
        paint = PAINT | {"slice": 3}
        state = client.post("/api/cases/0/events", {"version": 0, "events": [paint]}).json()["state"]
        assert state["slices"]["3"]["area"] == pytest.approx(3 / 8)
        png = client.post("/api/cases/0/export", {"format": "png", "slice": 3}).content
        (tmp_path / "mask.png").write_bytes(png)
        mask = np.asarray(Image.open(tmp_path / "mask.png"))
        assert mask.ravel().nonzero()[0].tolist() == [3, 4, 20]
        nifti = decode_nifti(client.post("/api/cases/0/export", {"format": "nifti"}).content, name="it")
        np.testing.assert_array_equal(nifti.slices[3], mask)
        assert not nifti.slices[:3].any()
        assert {"dicom-seg", "rtstruct"} < set(about["formats"])
        refused = client.post("/api/cases/0/export", {"format": "dicom-seg"})  # the file is no valid CT
        assert refused.status == 400
        assert "StudyInstanceUID" in refused.json()["detail"]


def test_events_make_the_mask_that_is_exported(tmp_path: Path) -> None:
    with open_client(tmp_path, [write_images(tmp_path / "images", count=1)]) as (client, _):
        drawn = client.post("/api/cases/0/samples", {"num_samples": 5}).json()
        labels = client.get(f"/api/predictions/{drawn['prediction']}/samples").array()[2].ravel()
        runs = [[int(start), 1, 1] for start in labels.nonzero()[0]]
        choose = {"kind": "choose", "slice": 0, "value_map": runs, "source": SOURCE}
        answer = client.post("/api/cases/0/events", {"version": 0, "events": [choose]}).json()
        assert answer["version"] == 1
        assert answer["state"]["slices"]["0"]["source"] == SOURCE
        assert answer["state"]["slices"]["0"]["area"] == drawn["samples"][2]["area"]
        np.testing.assert_array_equal(client.get("/api/cases/0/mask").array().ravel(), labels)
        note = {"kind": "note", "text": "Größe"}
        batch = {"version": 1, "events": [PAINT, note, {"kind": "accept"}]}
        state = client.post("/api/cases/0/events", batch).json()["state"]
        assert (state["status"], state["steps_done"], state["slices"]["0"]["is_edited"]) == ("accepted", 2, True)
        late = client.post("/api/cases/0/events", {"version": 1, "events": [PAINT]})
        assert (late.status, late.json()["version"]) == (409, 4)
        refused = client.post("/api/cases/0/events", {"version": 4, "events": [PAINT]})
        assert refused.status == 422
        expected = labels.copy()
        expected[[3, 4, 20]] = 1
        exported = client.post("/api/cases/0/export", {"format": "png"})
        (tmp_path / "mask.png").write_bytes(exported.content)
        np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "mask.png")).ravel(), expected)
        assert "image-000-mask.png" in exported.headers["content-disposition"]
        record = client.post("/api/cases/0/export", {"format": "json"}).json()
        assert record["model"]["name"] == "run"
        assert record["state"] == state
        assert record["state"]["note"] == "Größe"
        events = client.get("/api/cases/0/events").json()
        assert (events["version"], len(events["events"])) == (4, 4)


def test_uploads_become_cases(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", count=1)
    content = (folder / "image-000.png").read_bytes()
    with open_client(tmp_path, []) as (client, _):
        assert client.post("/api/upload?name=..%2F..%2Fb%C3%A4r.png", content=content).json() == {"id": 0}
        assert client.get("/api/cases").json()["cases"][0]["name"] == "bär"
        image = client.get("/api/cases/0/image").array()[..., 0]
        np.testing.assert_array_equal(image, np.asarray(Image.open(folder / "image-000.png")))
        assert client.post("/api/cases/0/samples", {"num_samples": 2}).status == 200
        assert [file.name for file in (tmp_path / "list" / "uploads").iterdir()] == ["bär.png"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/cases/7", None, 404),
        ("GET", "/api/cases/-1", None, 404),
        ("GET", "/api/cases/x", None, 422),
        ("GET", "/api/cases/0/image?slice=1", None, 404),
        ("GET", "/api/cases/0/image?slice=-1", None, 422),
        ("GET", "/api/cases/0/mask?slice=1", None, 404),
        ("GET", "/api/cases/0/graders/0", None, 404),
        ("GET", "/api/predictions/p1/samples", None, 404),
        ("GET", "/api/predictions/p1/other", None, 422),
        ("GET", "/api/nothing", None, 404),
        ("GET", "/nothing.html", None, 404),
        ("POST", "/api/cases/0/samples", {"num_samples": 65}, 422),
        ("POST", "/api/cases/0/samples", {"seed": 1.5}, 422),
        ("POST", "/api/cases/0/samples", {"at": [1]}, 422),
        ("POST", "/api/cases/0/samples", {"slice": 1}, 404),
        ("POST", "/api/cases/0/samples", [], 422),
        ("POST", "/api/cases/0/export", {"format": "exe"}, 422),
        ("POST", "/api/cases/0/export", {"format": "png", "slice": 3}, 400),
        ("POST", "/api/cases/0/events", {"version": 0}, 422),
        ("POST", "/api/cases/0/events", {"version": 0, "events": [PAINT | {"slice": 1}]}, 422),
        ("POST", "/api/cases/0/events", {"version": 3, "events": []}, 409),
        ("GET", "/api/cases/0/samples", None, 404),
    ],
)
def test_impossible_requests_are_refused_in_one_sentence(
    one_image: Client, method: str, path: str, body: Any, status: int
) -> None:
    answer = one_image.ask(method, path, body=body)
    assert answer.status == status
    detail = answer.json()["detail"]
    assert isinstance(detail, str)
    assert "\n" not in detail


@pytest.fixture(scope="module")
def one_image(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("viewer")
    with open_client(folder, [write_images(folder / "images", count=1)]) as (client, _):
        yield client


def test_malformed_bodies_are_refused(one_image: Client) -> None:
    for content in (b"", b"{", b"\xff", b"nul", b'{"version": NaN, "events": []}', b"[" * 100_000):
        answer = one_image.post("/api/cases/0/events", content=content, Content_Type="application/json")
        assert answer.status in (400, 422)
        assert isinstance(answer.json()["detail"], str)


def test_a_job_ends_when_its_client_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two chunks: the rest of the samples is never drawn, and the next one is answered."""
    ended, drawn = [], []
    advance = drawing.Job.advance

    def slow(job: drawing.Job, count: int = 0) -> None:
        drawn.append(count)
        time.sleep(0.02)
        try:
            advance(job, count)
        except CancelledError:
            ended.append(job)
            raise

    monkeypatch.setattr(drawing.Job, "advance", slow)
    with open_client(tmp_path, [write_images(tmp_path / "images", count=1)]) as (client, _):
        client.get("/api/session")
        impatient, waiting = Client(client.port, timeout=0.3), Client(client.port, timeout=0.3)
        with pytest.raises(TimeoutError):
            impatient.post("/api/cases/0/samples", {"num_samples": 64, "seed": 1})
        impatient.close()
        with pytest.raises(TimeoutError):
            impatient.post("/api/cases/0/samples", {"num_samples": 64, "seed": 2})
        impatient.close()
        waiting.close()
        drawn.clear()
        assert client.post("/api/cases/0/samples", {"num_samples": 2, "seed": 3}).status == 200
        assert len(ended) >= 1
        assert sum(drawn) < 64


def test_a_job_that_waits_is_cancelled_at_once(tmp_path: Path) -> None:
    with open_viewer(tmp_path / "list", [write_images(tmp_path / "images", count=1)]) as viewer:
        (case,) = viewer.cases
        go = threading.Event()

        def read(_: Any) -> Any:
            go.wait(10)
            return case.read()

        first = viewer.drawing.draw(Wish(case.name, 0), case, read)
        second = viewer.drawing.draw(Wish(case.name, 0, seed=1), case, read)
        second.cancel()
        go.set()
        assert first.future.result(10).samples.shape == (16, 16, 16)
        assert second.future.cancelled()


def test_a_model_that_cannot_be_loaded_fails_every_request(tmp_path: Path) -> None:
    def load() -> Any:
        raise ConfigError("run: damaged")

    with open_client(tmp_path, [write_images(tmp_path / "images", count=1)], load=load) as (client, _):
        answer = client.get("/api/session")
        assert answer.status == 400
        assert "damaged" in answer.json()["detail"]


def test_features_of_images_are_encoded_once_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_images(tmp_path / "images", count=5)
    with open_viewer(tmp_path / "list", [folder]) as viewer:
        predictor = viewer.drawing.predictor.result(30)
        encoded = []
        encode = predictor.encode
        monkeypatch.setattr(predictor, "encode", lambda *args, **how: encoded.append(1) or encode(*args, **how))

        def draw(number: int, seed: int) -> None:
            case = viewer.cases[number]
            viewer.drawing.draw(Wish(case.name, 0, 2, seed), case, viewer.images.read).future.result(30)

        for seed in range(4):
            draw(0, seed)
        assert len(encoded) == 1
        one = viewer.drawing._features.num_bytes
        viewer.drawing._features.max_bytes = 2 * one
        viewer.drawing._opened.max_bytes = 2 * 4 * 16 * 16
        for number in range(5):
            draw(number, 9)
        assert viewer.drawing._features.num_bytes <= 2 * one
        assert viewer.drawing._opened.num_bytes <= 2 * 4 * 16 * 16


def test_too_many_waiting_jobs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "MAX_WAITING", 2)
    waits = Drawing(make_predictor)  # not started
    (case,) = find_cases([write_images(tmp_path, count=1)])
    for seed in range(2):
        waits.draw(Wish(case.name, 0, seed=seed), case, Case.read)
    with pytest.raises(drawing.BusyError):
        waits.draw(Wish(case.name, 0, seed=9), case, Case.read)


def test_a_page_that_is_not_built_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make web"):
        read_pages(tmp_path)


def test_page_is_built_and_light() -> None:
    files = [file for file in STATIC.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} >= {".html", ".js", ".css"}
    assert sum(file.stat().st_size for file in files) <= 400_000


def test_pages_have_their_types(one_image: Client) -> None:
    for path, kind in (("/", "text/html"), ("/index.html", "text/html"), ("/assets/page.js", "text/javascript")):
        with closing(Client(one_image.port, token=None)) as client:
            answer = client.get(path)
        assert answer.status == 200
        assert answer.headers["content-type"].startswith(kind)


def test_the_description_of_the_api_is_there(one_image: Client) -> None:
    described = one_image.get("/api/openapi.json").json()
    assert "/api/cases/{number}/events" in described["paths"]
    assert json.dumps(described).count("HTTPValidationError") == 0
