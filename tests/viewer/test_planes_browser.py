"""A volume in three planes in a real browser: crosshair, slices, hypotheses, brush, and what is exported."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_viewer import CHROMIUM, open_page, wait_saved
from untrained import make_predictor
from viewing import TOKEN, VolumePredictor, open_viewer, serve, write_volume

from hpunet.data.io.volumes import decode_nifti
from hpunet.viewer.server import STATIC

pytest.importorskip("playwright", reason="the viewer is not tested: pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the viewer is not tested: no Chromium here")
SHAPE, MM = (6, 16, 24), (2.5, 0.5, 0.8)
FILL = (240, 228, 66)  # colour of the first class
MARGIN = 0.97


@pytest.fixture
def page(browser: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """In three planes: at once for a model of volumes, else by a key."""
    path = write_volume(tmp_path / "scan.nii.gz", shape=SHAPE)
    with (
        open_viewer(tmp_path / "list", [path], load=request.param) as viewer,
        serve(viewer, static=STATIC) as port,
        open_page(
            browser, f"http://127.0.0.1:{port}/?token={TOKEN}", viewport={"width": 1280, "height": 800}
        ) as opened,
    ):
        if request.param is make_predictor:
            opened.locator("#main").press("P")
        opened.wait_for_function("() => document.querySelector('#strip button')?.ariaLabel.includes(' ml')")
        yield opened


def place_of(page: Any, plane: str, column: float, row: float) -> tuple[float, float]:
    """A point of a plane on the page. Slices are the rows of upright planes, the last one at the top."""
    d, h, w = SHAPE
    rows, columns, tall, wide = {"main": (h, w, 1, 2), "coronal": (d, w, 0, 2), "sagittal": (d, h, 0, 1)}[plane]
    aspect = MM[tall] / MM[wide]
    box = page.locator(f"#{plane}").bounding_box()
    zoom = min(box["width"] / columns, box["height"] / (rows * aspect)) * MARGIN
    up = 1 if plane == "main" else -1
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    return middle[0] + (column - columns / 2) * zoom, middle[1] + up * (row - rows / 2) * zoom * aspect


def wait_crosshair(page: Any, z: int, y: int, x: int) -> None:
    words = f"Crosshair at slice {z + 1}, row {y + 1}, column {x + 1}"
    page.wait_for_function("words => document.getElementById('place').textContent === words", arg=words)


def exported(page: Any) -> np.ndarray:
    page.locator("#format").select_option("nifti")
    with page.expect_download() as download:
        page.locator("#main").press("x")
    return np.asarray(decode_nifti(Path(download.value.path()).read_bytes(), name="it").slices)


def shown(page: Any, plane: str) -> np.ndarray:
    """Where a plane shows the filled mask, read in the middle of its pixels, next to the crosshair."""
    page.locator("#opacity").evaluate("e => { e.value = '100'; e.dispatchEvent(new Event('input')); }")
    page.wait_for_timeout(200)
    d, h, w = SHAPE
    rows, columns = {"main": (h, w), "coronal": (d, w), "sagittal": (d, h)}[plane]
    box = page.locator(f"#{plane}").bounding_box()
    points = [place_of(page, plane, c + 0.5, r + 0.5) for r in range(rows) for c in range(columns)]
    colours = page.evaluate(
        """([plane, points]) => points.map(([x, y]) =>
            [...document.getElementById(plane).getContext("2d").getImageData(x, y, 1, 1).data.slice(0, 3)])""",
        [plane, [[round(x - box["x"]), round(y - box["y"])] for x, y in points]],
    )
    return (np.array(colours).reshape(rows, columns, 3) == FILL).all(axis=-1)


@pytest.mark.parametrize("page", [make_predictor], indirect=True, ids=["images"])
def test_crosshair_links_the_planes(page: Any) -> None:
    page.mouse.click(*place_of(page, "main", 4.5, 6.5))
    middle = int(page.locator("#slice").input_value())
    wait_crosshair(page, middle, 6, 4)
    page.mouse.click(*place_of(page, "coronal", 9.5, 1.5))
    wait_crosshair(page, 1, 6, 9)
    assert page.locator("#slice").input_value() == "1"
    assert page.locator("#slice-number").text_content() == "2 of 6"
    assert page.locator("#sagittal-number").text_content() == "10 of 24"
    page.mouse.click(*place_of(page, "sagittal", 3.5, 4.5))
    wait_crosshair(page, 4, 3, 9)
    page.mouse.wheel(0, 100)
    wait_crosshair(page, 4, 3, 8)
    page.keyboard.press("PageUp")
    wait_crosshair(page, 4, 3, 9)
    page.locator("#main").focus()
    for key in (".", ",", ".", "ArrowRight", "Shift+ArrowDown"):
        page.keyboard.press(key)
    wait_crosshair(page, 5, 8, 10)
    page.locator("#coronal").focus()
    for key in ("ArrowDown", "PageDown"):  # down is down on the page, whichever way slices lie
        page.keyboard.press(key)
    wait_crosshair(page, 4, 7, 10)
    page.locator("#coronal-slice").fill("2")
    wait_crosshair(page, 4, 2, 10)
    page.locator("#main").press("P")
    page.wait_for_function("() => document.getElementById('caption').textContent.startsWith('Nothing chosen')")
    assert page.locator("#plane-views").is_hidden()
    assert page.locator("#slice-number").text_content() == "5 of 6"
    page.locator("#main").press("1")
    wait_saved(page)
    assert set(np.argwhere(exported(page))[:, 0]) == {4}


@pytest.mark.parametrize("page", [VolumePredictor], indirect=True, ids=["volumes"])
def test_hypothesis_of_the_volume_is_chosen_corrected_and_exported(page: Any) -> None:
    strip = page.locator("#strip button").first
    assert re.fullmatch(r"Hypothesis 1, \d+ %: [\d.e-]+ ml in \d+ parts?", strip.get_attribute("aria-label"))
    page.locator("#main").press("1")
    wait_saved(page)
    chosen = exported(page)
    assert chosen.any(axis=(1, 2)).sum() > 1
    assert page.locator("#measures").text_content().startswith("Volume ")
    z, y, x = 4, 11, 6
    page.mouse.click(*place_of(page, "main", x + 0.5, y + 0.5))
    page.locator("#slice").fill(str(z))
    wait_crosshair(page, z, y, x)
    for plane, expected, at in (
        ("main", chosen[z], (y, x)),
        ("coronal", chosen[:, y], (z, x)),
        ("sagittal", chosen[:, :, x], (z, y)),
    ):
        visible = np.ones(expected.shape, dtype=bool)
        visible[at[0]], visible[:, at[1]] = False, False
        found = shown(page, plane)
        np.testing.assert_array_equal(found[visible], expected[visible] > 0, err_msg=plane)
    page.locator("#main").press("b")
    page.mouse.click(*place_of(page, "main", 12.5, 8.5))
    wait_saved(page)
    corrected = exported(page)
    changed = np.argwhere(corrected != chosen)
    assert set(changed[:, 0]) <= {z}
    assert corrected[z, 8, 12] == 1
    for key in ("b", "u", "u"):
        page.locator("#main").press(key)
    wait_saved(page)
    assert not exported(page).any()
    page.locator("#main").press("f")
    page.wait_for_function("() => document.getElementById('caption').textContent === 'Sample 1 of 16'")
    page.locator("#overlay").select_option("std")
    page.locator("#main").press("P")
    page.wait_for_function("() => document.getElementById('status').textContent.includes('planes stay')")
