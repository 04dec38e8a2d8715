"""Edits of hypotheses through the server: what the page gets is what Python gives, and is kept with the choice."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from viewing import Client, open_client, write_images

from hpunet.predict.prediction import Prediction
from hpunet.sampling.orientations import undo_orientation
from hpunet.viewer.answers import latent_grid, runs_of
from hpunet.viewer.state import Viewer


@pytest.fixture(scope="module")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Viewer, Path]]:
    folder = tmp_path_factory.mktemp("edits")
    images = write_images(folder / "images", side=24)
    with open_client(folder, [images]) as (client, viewer):
        yield client, viewer, sorted(images.glob("*.png"))[0]


def drawn(viewer: Viewer, image: Path) -> Prediction:
    return viewer.drawing.predictor.result()(image, num_samples=5, seed=3)


def edit(client: Client, *, sample: int = 2, **wanted: Any) -> dict[str, Any]:
    start = {"drawn": {"num_samples": 5, "seed": 3, "sample": sample}}
    answer = client.post("/api/cases/0/edits", {"start": start, **wanted})
    assert answer.status == 200, answer.content
    found: dict[str, Any] = answer.json()
    return found


def labels(found: dict[str, Any]) -> np.ndarray:
    flat = np.zeros(24 * 24, dtype=np.uint8)
    for start, length, value in found["value_map"]:
        flat[start : start + length] = value
    return flat.reshape(24, 24)


def runs(region: np.ndarray) -> list[tuple[int, int]]:
    return [(start, length) for start, length, _ in runs_of(region.astype(np.uint8))]


def test_runs_hold_the_map() -> None:
    random = np.random.default_rng(0)
    for top in (1, 2, 3):
        values = random.integers(0, top + 1, (5, 7)).astype(np.uint8)
        found = np.zeros(35, dtype=np.uint8)
        for start, length, value in runs_of(values):
            found[start : start + length] = value
        np.testing.assert_array_equal(found.reshape(5, 7), values)
    assert runs_of(np.zeros((2, 2), dtype=np.uint8)) == []
    assert runs_of(np.ones((2, 2), dtype=np.uint8)) == [(0, 4, 1)]


def test_edits_give_what_python_gives(viewed: tuple[Client, Viewer, Path]) -> None:
    client, viewer, image = viewed
    base = drawn(viewer, image).pick(2)
    np.testing.assert_array_equal(labels(edit(client)), base.samples[0])
    region = np.zeros((24, 24), dtype=bool)
    region[5:11, 8:20] = True
    redraw = {"kind": "redraw", "seed": 7, "region": runs(region)}
    np.testing.assert_array_equal(labels(edit(client, action=redraw)), base.redraw(seed=7, region=region).samples[0])
    mean = {"kind": "redraw", "seed": 7, "scales": [0], "temperature": 0}
    expected = base.redraw(seed=7, scales=[0], temperature=0.0)
    found = edit(client, action=mean)
    np.testing.assert_array_equal(labels(found), expected.samples[0])
    assert [scale["channels"] for scale in found["scales"]] == [1, 1]
    assert found["grid"] == {"y": 0, "x": 0, "height": 24, "width": 24}
    nudge = {"kind": "nudge", "scale": 1, "at": [9.5, 3], "by": 2.5}
    expected = base.nudge(scale=1, at=(9.5, 3), by=2.5)
    found = edit(client, action=nudge)
    np.testing.assert_array_equal(labels(found), expected.samples[0])
    assert found["state"] == json.loads(json.dumps(expected.state()))
    other = {"state": found["state"]}
    combined = edit(client, sample=4, action={"kind": "combine", "other": other, "region": runs(region)})
    expected = drawn(viewer, image).pick(4).combine(expected, region=region)
    np.testing.assert_array_equal(labels(combined), expected.samples[0])


def test_states_go_on_from_where_they_were(viewed: tuple[Client, Viewer, Path]) -> None:
    client, viewer, image = viewed
    first = edit(client, action={"kind": "redraw", "seed": 1, "scales": [1]})
    second = {"start": {"state": first["state"]}, "action": {"kind": "redraw", "seed": 2, "scales": [1]}}
    answer = client.post("/api/cases/0/edits", second)
    expected = drawn(viewer, image).pick(2).redraw(seed=1, scales=[1]).redraw(seed=2, scales=[1])
    np.testing.assert_array_equal(labels(answer.json()), expected.samples[0])
    again = viewer.drawing.predictor.result().replay(image, answer.json()["state"])
    np.testing.assert_array_equal(again.samples, expected.samples)


@pytest.mark.parametrize("kind", ["sigma", "spread", "effect"])
def test_maps_of_scales_are_of_the_image(viewed: tuple[Client, Viewer, Path], kind: str) -> None:
    client, _, _ = viewed
    answers = [
        client.post("/api/cases/0/scale-maps", {"scale": scale, "kind": kind, "point": [12, 12]}) for scale in (0, 1)
    ]
    maps = [answer.array() for answer in answers]
    assert [each.shape for each in maps] == [(24, 24)] * 2
    assert all(each.max() == 255 for each in maps)
    assert all(float(answer.headers["x-most"]) > 0 for answer in answers)
    assert not np.array_equal(*maps)


def test_an_edited_choice_is_kept_with_its_state(viewed: tuple[Client, Viewer, Path]) -> None:
    client, viewer, image = viewed
    found = edit(client, action={"kind": "nudge", "scale": 0, "at": [3, 3], "by": 1})
    source = {"hypothesis": 0, "share": 0.5, "seed": 3, "num_samples": 5, "at": None, "state": found["state"]}
    event = {"kind": "choose", "slice": 0, "value_map": found["value_map"], "source": source}
    version = client.get("/api/cases/0/events").json()["version"]
    assert client.post("/api/cases/0/events", {"version": version, "events": [event]}).status == 200
    exported = client.post("/api/cases/0/export", {"format": "state"})
    again = viewer.drawing.predictor.result().replay(image, json.loads(exported.content))
    np.testing.assert_array_equal(again.samples[0], client.get("/api/cases/0/mask").array())
    assert image.stem not in json.dumps(found["state"])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"slice": 1}, 404),
        ({"start": {"drawn": {"num_samples": 2, "sample": 2}}}, 400),
        ({"start": {"state": {"format": "x"}}}, 400),
        ({"start": {"state": {"x": "y" * 2**20}}}, 422),
        ({"action": {"kind": "nudge", "scale": 2, "at": [0, 0], "by": 1}}, 400),
        ({"action": {"kind": "nudge", "scale": 0, "at": [99, 0], "by": 1}}, 400),
        ({"action": {"kind": "redraw", "seed": 0, "scales": [9]}}, 400),
        ({"action": {"kind": "redraw", "seed": 0, "region": []}}, 400),
        ({"action": {"kind": "redraw", "seed": 0, "region": [[0, 10**9]]}}, 400),
        ({"action": {"kind": "redraw", "seed": 0, "region": [[2**31, 1]]}}, 422),
        ({"action": {"kind": "explode"}}, 422),
        ({"more": 1}, 422),
    ],
)  # fmt: skip
def test_impossible_edits_are_answered(viewed: tuple[Client, Viewer, Path], body: Any, status: int) -> None:
    answer = viewed[0].post("/api/cases/0/edits", body)
    assert (answer.status, "detail" in answer.json()) == (status, True)
    scale = viewed[0].post("/api/cases/0/scale-maps", {"scale": 7, "kind": "sigma"})
    assert scale.status == 400


@pytest.mark.parametrize("size", [(24, 24), (22, 22), (13, 18)])
def test_page_is_told_the_cell_of_every_latent(viewed: tuple[Client, Viewer, Path], size: tuple[int, int]) -> None:
    predictor, random = viewed[1].drawing.predictor.result(), np.random.default_rng(0)
    base = predictor(random.integers(0, 256, size, dtype=np.uint8), num_samples=1, seed=1)
    about, ids = latent_grid(base), base.orientation_ids
    grid = about["grid"]
    for number, scale in enumerate(about["scales"]):
        for x, y in ((0, 0), (size[1] - 1, 2), (size[1] // 2, size[0] // 2), (3, size[0] - 1)):
            moved = base.nudge(scale=number, at=(x, y), by=1)
            changed = (moved.latents[number] != base.latents[number])[0, 0, 0]
            upright = undo_orientation(changed, 0 if ids is None else int(ids[0, 0]))
            column = int((x - grid["x"]) * scale["width"] / grid["width"])
            row = int((y - grid["y"]) * scale["height"] / grid["height"])
            assert upright.nonzero().tolist() == [[row, column]]


def test_edits_of_a_crop_are_in_pixels_of_the_slice(viewed: tuple[Client, Viewer, Path]) -> None:
    client, viewer, image = viewed
    at, region = (17, 9), np.zeros((24, 24), dtype=bool)
    region[6:12, 13:19] = True
    base = viewer.drawing.predictor.result()(image, num_samples=5, seed=3, at=at).pick(2)
    found = edit(client, at=at, action={"kind": "redraw", "seed": 7, "region": runs(region)})
    y, x, height, width = (found["place"][name] for name in ("y", "x", "height", "width"))
    assert (y, x) == base.place.offset[1:] != (0, 0)
    expected = base.redraw(seed=7, region=region[y : y + height, x : x + width])
    flat = np.zeros(height * width, dtype=np.uint8)
    for start, length, value in found["value_map"]:
        flat[start : start + length] = value
    np.testing.assert_array_equal(flat.reshape(height, width), expected.samples[0])
    assert found["state"] == json.loads(json.dumps(expected.state()))
    point = {"kind": "nudge", "scale": 1, "at": [14.5, 8.5], "by": 2}
    nudged = edit(client, at=at, action=point)["state"]["latents"]
    assert nudged == json.loads(json.dumps(base.nudge(scale=1, at=(14.5 - x, 8.5 - y), by=2).state()))["latents"]
