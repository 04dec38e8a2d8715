"""The viewer in a real browser: what a person does from the first hypotheses to the exported mask."""

import base64
import io
import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_viewer import CHROMIUM, WAIT_MS, LiveViewer, open_page, wait_saved
from PIL import Image

import hpunet

pytest.importorskip("playwright", reason="the viewer is not tested: pip install playwright")

AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the viewer is not tested: no Chromium here")
FILL = (240, 228, 66)  # colour of the first class


@pytest.fixture
def page(browser: Any, server: LiveViewer) -> Iterator[Any]:
    with open_page(browser, server.address) as opened:
        yield opened


def open_case(page: Any, name: str) -> None:
    page.get_by_role("button", name=re.compile(f"^{name}, ")).click()
    page.wait_for_function("name => document.getElementById('title').textContent === name", arg=name)
    page.wait_for_selector("#strip button")


def shown_mask(page: Any) -> np.ndarray:
    """Where the canvas shows the filled mask, read from its pixels at the middle of each pixel of the image."""
    page.locator("#opacity").evaluate("e => { e.value = '100'; e.dispatchEvent(new Event('input')); }")
    page.locator("#main").press("0")
    page.wait_for_timeout(200)
    colours = page.evaluate(
        """() => {
            const canvas = document.getElementById("main"), context = canvas.getContext("2d"), n = 128;
            const zoom = Math.min(canvas.clientWidth / n, canvas.clientHeight / n) * 0.97;
            const at = (i, side) => Math.floor(side / 2 + (i + 0.5 - n / 2) * zoom);
            const found = [];
            for (let y = 0; y < n; y += 1) for (let x = 0; x < n; x += 1) {
                const place = [at(x, canvas.clientWidth), at(y, canvas.clientHeight)];
                found.push(...context.getImageData(...place, 1, 1).data.slice(0, 3));
            }
            return found;
        }"""
    )
    return (np.array(colours).reshape(128, 128, 3) == FILL).all(axis=-1)


def exported(page: Any) -> np.ndarray:
    page.locator("#format").select_option("png")
    with page.expect_download() as download:
        page.locator("#main").press("x")
    return np.asarray(Image.open(io.BytesIO(Path(download.value.path()).read_bytes()))) > 0


def stroke(page: Any, *, dx: int, dy: int) -> None:
    """A stroke with the mouse from the middle of the canvas."""
    box = page.locator("#main").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + dx, y + dy, steps=5)
    page.mouse.up()


def test_person_chooses_corrects_accepts_and_exports(page: Any) -> None:
    open_case(page, "lidc-2")
    assert not shown_mask(page).any()
    canvas = page.locator("#main")
    canvas.press("1")
    chosen = shown_mask(page)
    canvas.press("w")
    assert page.locator("#high").input_value() == "128"
    canvas.press("b")
    stroke(page, dx=120, dy=-90)
    canvas.press("e")
    stroke(page, dx=-60, dy=0)
    canvas.press("e")
    corrected = shown_mask(page)
    assert (corrected & ~chosen).any()
    assert (exported(page) == corrected).all()
    for before in (2, 1, 0):
        canvas.press("u")
        assert page.locator("#undo").is_enabled() == (before > 0)
    assert not shown_mask(page).any()
    for _ in range(3):
        canvas.press("U")
    assert (shown_mask(page) == corrected).all()
    page.locator("#note").fill("a faint rim")
    page.locator("#accept").click()
    wait_saved(page)
    assert page.locator("#progress").text_content() == "1 of 3 accepted"
    page.reload()
    open_case(page, "lidc-2")
    assert (shown_mask(page) == corrected).all()
    assert page.locator("#note").input_value() == "a faint rim"
    assert page.locator("#cases button").nth(1).text_content() == "✓ lidc-2"


def test_person_works_without_a_mouse(page: Any) -> None:
    open_case(page, "lidc-1")
    canvas = page.locator("#main")
    for key in ("]", "]", "b", ".", "ArrowRight", "Shift+ArrowDown", " ", "Escape"):
        canvas.press(key)
    masks = [shown_mask(page)]
    canvas.press("u")
    masks.append(shown_mask(page))
    assert masks[0].sum() > masks[1].sum() > 0
    canvas.press("?")
    assert page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#keys").is_visible()
    canvas.press("r")
    page.wait_for_function("() => document.getElementById('status').textContent.includes('distinct hypotheses')")
    wait_saved(page)


def test_work_survives_kills_of_the_server(page: Any, server: LiveViewer) -> None:
    kills = int(os.environ.get("HPUNET_KILLS", "2"))
    rng = random.Random(0)
    open_case(page, "lidc-3")
    canvas = page.locator("#main")
    canvas.press("1")
    canvas.press("b")
    for _ in range(kills):
        stroke(page, dx=rng.randint(-200, 200), dy=rng.randint(-200, 200))
        page.wait_for_timeout(rng.uniform(0, 60))
        server.kill()
        stroke(page, dx=rng.randint(-200, 200), dy=rng.randint(-200, 200))
        server.start()
        wait_saved(page)
    canvas.press("b")
    before = shown_mask(page)
    assert (exported(page) == before).all()
    page.reload()
    open_case(page, "lidc-3")
    assert (shown_mask(page) == before).all()
    while page.locator("#undo").is_enabled():
        canvas.press("u")
    assert not shown_mask(page).any()
    wait_saved(page)


def test_image_that_cannot_be_read_does_not_stop_the_work(
    browser: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a-broken.png").write_bytes(b"no image")
    shutil.copy(hpunet.example("lidc-1").path, folder / "b-good.png")
    viewer = LiveViewer(tmp_path / "view", ["lidc-hpu-2026", folder])
    request.addfinalizer(viewer.kill)
    page = browser.new_context().new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(viewer.address)
    page.wait_for_function("() => document.getElementById('title').textContent === 'a-broken'")
    assert "a-broken" in page.locator("#hint").text_content()
    assert page.locator("#accept").is_disabled()
    page.keyboard.press("n")
    page.wait_for_selector("#strip button")
    assert page.locator("#title").text_content() == "b-good"
    page.keyboard.press("a")
    assert "Choose a hypothesis" in page.locator("#hint").text_content()
    for key in ("1", "a"):
        page.keyboard.press(key)
    wait_saved(page)
    assert page.locator("#progress").text_content() == "1 of 2 accepted"
    content = base64.b64encode(hpunet.example("lidc-2").path.read_bytes()).decode()
    page.evaluate(
        """(content) => {
            const dropped = new DataTransfer();
            const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
            dropped.items.add(new File([bytes], "dropped.png"));
            document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: dropped, bubbles: true }));
        }""",
        content,
    )
    page.wait_for_function("() => document.getElementById('title').textContent === 'dropped'")
    page.wait_for_selector("#strip button")
    page.context.close()


@pytest.mark.skipif(not AXE.exists(), reason="accessibility is not tested: npm ci in web/")
def test_page_is_accessible(page: Any) -> None:
    axe, rules = AXE.read_text(), ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
    page.locator("#main").press("g")
    page.locator("#latents summary").click()
    for key in ("1", "?"):
        page.locator("#main").press(key)
        page.wait_for_timeout(300)
        page.evaluate(axe)
        found = page.evaluate("rules => axe.run({ runOnly: rules })", rules)
        assert [(v["id"], [n["html"] for n in v["nodes"]]) for v in found["violations"]] == []
    page.keyboard.press("Escape")


def test_tab_key_reaches_every_control_and_stays_where_it_was_used(page: Any) -> None:
    page.keyboard.press("1")
    page.keyboard.press("s")
    page.locator("#latents summary").click()
    wait_saved(page)
    count = page.evaluate(
        """() => {
            window.left = new Set([...document.querySelectorAll("button, input, select, textarea, canvas[tabindex]")]
                .filter((e) => e.offsetParent && !e.disabled && !e.closest("dialog"))
                .filter((e) => e.type !== "radio" || e.checked)); // arrows reach the others
            return window.left.size;
        }"""
    )
    assert count > 30
    for _ in range(count + 5):
        page.keyboard.press("Tab")
        page.evaluate("() => window.left.delete(document.activeElement)")
    assert page.evaluate("() => [...window.left].map((e) => e.outerHTML)") == []
    page.locator("#strip button").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.getAttribute('aria-label')").startswith("Hypothesis 2")
    for _ in range(2):
        page.keyboard.press("u")
    wait_saved(page)
