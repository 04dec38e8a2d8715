"""Instances in a real browser: choose the clustering, select, merge, split, paint, undo, and export what is shown."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_viewer import CHROMIUM, open_page, wait_saved
from PIL import Image
from untrained import make_instance_predictor
from viewing import TOKEN, open_viewer, serve, write_cells

from hpunet.data.open import open_splits
from hpunet.viewer.server import STATIC

pytest.importorskip("playwright", reason="the viewer is not tested: pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the viewer is not tested: no Chromium here")
SIDE, MARGIN = 64, 0.97


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    paths = [write_cells(tmp_path / "images", count=2, side=SIDE)]
    with (
        open_viewer(tmp_path / "list", paths, load=make_instance_predictor) as viewer,
        serve(viewer, static=STATIC) as port,
        open_page(browser, f"http://127.0.0.1:{port}/?token={TOKEN}") as opened,
    ):
        yield opened


def place_of(page: Any, x: float, y: float) -> tuple[float, float]:
    """A point of the image on the page."""
    box = page.locator("#main").bounding_box()
    zoom = min(box["width"], box["height"]) / SIDE * MARGIN
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    return middle[0] + (x - SIDE / 2) * zoom, middle[1] + (y - SIDE / 2) * zoom


def stroke(page: Any, *points: tuple[float, float]) -> None:
    page.mouse.move(*place_of(page, *points[0]))
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*place_of(page, *point), steps=8)
    page.mouse.up()


def mask(page: Any) -> np.ndarray:
    page.locator("#format").select_option("png")
    with page.expect_download() as download:
        page.locator("#main").press("x")
    return np.asarray(Image.open(io.BytesIO(Path(download.value.path()).read_bytes())))


def shown(page: Any) -> np.ndarray:
    """The colour of every pixel of the image on the canvas, filled."""
    page.locator("#opacity").evaluate("e => { e.value = '100'; e.dispatchEvent(new Event('input')); }")
    page.locator("#main").press("0")
    page.wait_for_timeout(200)
    found = page.evaluate(
        """([n, margin]) => {
            const canvas = document.getElementById("main"), context = canvas.getContext("2d");
            const zoom = Math.min(canvas.clientWidth / n, canvas.clientHeight / n) * margin;
            const at = (i, side) => Math.floor(side / 2 + (i + 0.5 - n / 2) * zoom), found = [];
            for (let y = 0; y < n; y += 1) for (let x = 0; x < n; x += 1) {
                const place = [at(x, canvas.clientWidth), at(y, canvas.clientHeight)];
                found.push(...context.getImageData(...place, 1, 1).data.slice(0, 3));
            }
            return found;
        }""",
        [SIDE, MARGIN],
    )
    return np.array(found).reshape(SIDE, SIDE, 3)


def check_shown(page: Any, labels: np.ndarray) -> None:
    """One colour for each instance, another one for its neighbours, and the grey image beside them."""
    colours = shown(page)
    is_filled = (colours != colours[..., :1]).any(axis=-1)
    np.testing.assert_array_equal(is_filled, labels > 0)
    of = {int(i): {tuple(c) for c in colours[labels == i].tolist()} for i in np.unique(labels[labels > 0])}
    assert all(len(each) == 1 for each in of.values())
    for a, b in ((labels[:, 1:], labels[:, :-1]), (labels[1:], labels[:-1])):
        for i, j in np.unique(np.stack([a[a != b], b[a != b]], axis=1), axis=0).tolist():
            assert not i or not j or of[i] != of[j]


def words(page: Any) -> str:
    return str(page.locator("#instance").text_content())


def inside(labels: np.ndarray, number: int) -> tuple[float, float]:
    """A point well inside an instance."""
    from scipy import ndimage

    depth = ndimage.distance_transform_edt(np.pad(labels == number, 1))[1:-1, 1:-1]
    y, x = np.unravel_index(depth.argmax(), depth.shape)
    return float(x) + 0.5, float(y) + 0.5


def count(labels: np.ndarray) -> int:
    return len(np.unique(labels[labels > 0]))


def test_person_chooses_merges_splits_paints_and_exports(page: Any, tmp_path: Path) -> None:
    canvas = page.locator("#main")
    assert page.locator("#number").input_value() == "32"
    assert not page.locator("#latent-tools").is_visible()
    assert not page.locator("#class-choice").is_visible()
    assert re.fullmatch(r"\d+ instances. Click an instance.", words(page))
    canvas.press("1")
    chosen = mask(page)
    assert count(chosen) >= 3
    assert page.locator("#caption").text_content() == "Clustering of 32 samples, as drawn"
    check_shown(page, chosen)

    ids, areas = np.unique(chosen[chosen > 0], return_counts=True)
    first, second = (int(each) for each in ids[areas.argsort()[::-1]][:2])
    page.mouse.click(*place_of(page, *inside(chosen, first)))
    found = re.search(rf"Instance {first}: (\d+) pixels, whole in (\d+) of 32 samples", words(page))
    assert found is not None
    assert abs(int(found[1]) - (chosen == first).sum()) < 6  # three digits
    assert 0 <= int(found[2]) <= 32

    canvas.press("y")
    page.locator("#size").fill("1")
    stroke(page, inside(chosen, first), inside(chosen, second))
    canvas.press("y")
    merged = mask(page)
    assert count(merged) < count(chosen)
    assert (merged[chosen == second] == first).all()
    np.testing.assert_array_equal(merged > 0, chosen > 0)

    x, _ = inside(merged, first)
    canvas.press("z")
    stroke(page, (x, -1), (x, SIDE + 1))
    canvas.press("z")
    split = mask(page)
    assert count(split) > count(merged)
    np.testing.assert_array_equal(split > 0, merged > 0)
    canvas.press("Escape")

    canvas.press("I")
    page.locator("#size").fill("6")
    stroke(page, (30, 30), (34, 34))
    stroke(page, (34, 34), (38, 34))
    canvas.press("b")
    painted = mask(page)
    assert (painted == split.max() + 1).sum() > 40, "both strokes make one instance"
    page.mouse.click(*place_of(page, -1, 20))  # beside the image
    assert words(page).endswith("Click an instance.")
    check_shown(page, painted)

    steps = [painted, None, split, merged, chosen]
    for expected in steps[1:]:
        canvas.press("u")
        if expected is not None:
            np.testing.assert_array_equal(mask(page), expected)
    canvas.press("u")
    assert not page.locator("#undo").is_enabled()
    for _ in range(5):
        canvas.press("U")
    np.testing.assert_array_equal(mask(page), painted)
    canvas.press("a")
    wait_saved(page)
    page.reload()
    page.wait_for_selector("#strip button")
    page.get_by_role("button", name=re.compile("^cells-000, ")).click()
    page.wait_for_function("() => document.getElementById('title').textContent === 'cells-000'")
    page.wait_for_selector("#strip button")
    np.testing.assert_array_equal(mask(page), painted)
    (source,) = open_splits(str(tmp_path / "list"), options={"val_every": 2}).values()
    assert source.info.has_instances
    assert len(np.unique(source[0].labels)) == len(np.unique(painted))


def test_person_selects_and_splits_without_a_mouse(page: Any) -> None:
    canvas = page.locator("#main")
    canvas.press("i")  # what is selected is in the clustering, before it is chosen
    assert "whole in" in words(page)
    for key in ("y", " "):
        canvas.press(key)
    assert "Choose" in page.locator("#hint").text_content()
    canvas.press("Escape")
    canvas.press("1")
    before = mask(page)
    seen = set()
    for _ in range(count(before)):
        canvas.press("i")
        seen.add(words(page).split(":")[0])
    assert len(seen) == count(before)
    page.locator("#size").fill("200")
    canvas.press("y")
    canvas.press(" ")
    assert count(mask(page)) == 1
    canvas.press("l")
    assert "latents" in page.locator("#hint").text_content()
    canvas.press("Escape")
    canvas.press("u")
    np.testing.assert_array_equal(mask(page), before)
    wait_saved(page)
