"""Edits of latents in a real browser, with the published model; states that are exported replay to the same masks."""

import base64
import io
import itertools
import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_viewer import CHROMIUM, LiveViewer, open_page, wait_saved
from PIL import Image
from viewing import TOKEN

import hpunet

pytest.importorskip("playwright", reason="the viewer is not tested: pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the viewer is not tested: no Chromium here")
MAX_MEDIAN_MS = 1500
"""From a move of the pointer to the new outline; 150 on two idle cores, and tests run on busy ones."""
TIME_OUTLINES = """() => {
    window.times = [];
    let moved = 0;
    document.getElementById("main").addEventListener("pointermove", () => { moved = performance.now(); }, true);
    const seen = () => requestAnimationFrame(() => window.times.push(performance.now() - moved));
    new MutationObserver(seen).observe(document.getElementById("caption"), { childList: true });
}"""


@pytest.fixture
def page(browser: Any, server: LiveViewer) -> Iterator[Any]:
    """The page at the first example, with nothing done to it."""
    with open_page(browser, server.address, permissions=["clipboard-read", "clipboard-write"]) as opened:
        opened.locator("#main").press("1")
        yield opened
        opened.locator("#main").press("Escape")
        while opened.locator("#undo").is_enabled():
            opened.locator("#undo").click()
        wait_saved(opened)


def caption(page: Any) -> str:
    return str(page.locator("#caption").text_content())


def wait_caption(page: Any, words: str) -> None:
    page.wait_for_function("words => document.getElementById('caption').textContent.includes(words)", arg=words)


def place_of(page: Any, column: float, row: float) -> tuple[float, float]:
    """A point of the image on the page."""
    box = page.locator("#main").bounding_box()
    zoom = min(box["width"], box["height"]) / 128 * 0.97
    return box["x"] + box["width"] / 2 + (column - 64) * zoom, box["y"] + box["height"] / 2 + (row - 64) * zoom


def click(page: Any, column: float, row: float) -> None:
    page.mouse.click(*place_of(page, column, row))


def click_case(page: Any, name: str) -> None:
    page.get_by_role("button", name=re.compile(f"^{name}, ")).click()
    page.wait_for_function("name => document.getElementById('title').textContent === name", arg=name)
    page.wait_for_selector("#strip button")


def export(page: Any, kind: str) -> bytes:
    page.locator("#format").select_option(kind)
    with page.expect_download() as download:
        page.locator("#main").press("x")
    return Path(download.value.path()).read_bytes()


def mask(page: Any) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(export(page, "png")))) > 0


def replayed(page: Any) -> np.ndarray:
    """What the exported state gives in Python; it must be the mask."""
    state = json.loads(export(page, "state"))
    found = hpunet.load("lidc-hpu-2026").replay(hpunet.example("lidc-1").path, state).samples[0]
    np.testing.assert_array_equal(found > 0, mask(page))
    return np.asarray(found)


def latents(page: Any) -> list[np.ndarray]:
    found = json.loads(export(page, "state"))["latents"]
    return [np.frombuffer(base64.b64decode(each["base64"]), "<f4") for each in found]


def open_scales(page: Any) -> None:
    page.locator("#latents").evaluate("e => { e.open = true; }")


def test_redraw_here_draws_only_under_the_stroke(page: Any) -> None:
    canvas = page.locator("#main")
    before = latents(page)
    canvas.press("l")
    click(page, 66, 62)  # on the lesion: the cell 3, 4 of 8×8
    wait_caption(page, "1 edit of its latents")
    after = latents(page)
    assert [int((a != b).sum()) for a, b in zip(after, before, strict=True)] == [0, 0, 0, 1]
    replayed(page)
    click(page, 66, 62)
    wait_caption(page, "2 edits of its latents")
    assert (latents(page)[3] != after[3]).sum() == 1, "another seed"
    edited = mask(page)
    wait_saved(page)
    page.reload()
    page.wait_for_selector("#strip button")
    assert "2 edits" in caption(page)
    np.testing.assert_array_equal(mask(page), edited)
    canvas.press("u")
    canvas.press("u")
    assert caption(page).endswith("as drawn")
    assert all((a == b).all() for a, b in zip(latents(page), before, strict=True))


def test_scales_are_drawn_and_averaged(page: Any) -> None:
    open_scales(page)
    assert page.locator("#scales label").all_text_contents() == [" 1×1", " 2×2", " 4×4", " 8×8"]
    before = latents(page)
    page.get_by_role("button", name="Draw 4×4 and everything finer").click()
    wait_caption(page, "1 edit of its latents")
    drawn = latents(page)
    assert [bool((a == b).all()) for a, b in zip(drawn, before, strict=True)] == [True, True, False, False]
    page.get_by_role("button", name="2×2 at its mean").click()
    wait_caption(page, "2 edits of its latents")
    mean = latents(page)
    assert [bool((a == b).all()) for a, b in zip(mean, drawn, strict=True)] == [True, False, True, True]
    page.locator("#temperature").fill("0")
    for times in (3, 4):
        page.get_by_role("button", name="Draw 1×1 and everything finer").click()
        wait_caption(page, f"{times} edits of its latents")
    replayed(page)
    page.locator("#main").press("u")
    same = mask(page)
    page.locator("#main").press("U")
    np.testing.assert_array_equal(mask(page), same)  # two seeds at temperature 0
    page.locator("#reset").click()
    assert caption(page).endswith("as drawn")


def test_region_is_taken_from_the_hypothesis_beside(page: Any) -> None:
    page.locator("#main").press("t")
    assert page.locator("#second").is_visible()
    assert page.locator("#other-choice").input_value() == "1"
    before = latents(page)
    page.locator("#size").fill("60")
    page.wait_for_timeout(100)  # two canvases share the place now
    click(page, 64, 64)
    wait_caption(page, "1 edit of its latents")
    changed = [int((a != b).sum()) for a, b in zip(latents(page), before, strict=True)]
    assert changed[0] == 0
    assert changed[3] >= 9
    replayed(page)


def test_latent_is_dragged_by_mouse_and_keys(page: Any) -> None:
    canvas = page.locator("#main")
    canvas.press("d")
    page.get_by_role("radio", name="8×8").check()
    x, y = place_of(page, 66, 62)
    page.mouse.move(x, y)
    page.mouse.down()
    page.evaluate(TIME_OUTLINES)
    for step in itertools.chain(range(1, 9), range(7, -9, -1)):
        page.mouse.move(x, y + 10 * step)
        wait_caption(page, f"{'−' if step > 0 else '+'}{abs(step) / 4:.2f} σ")
    page.wait_for_timeout(100)
    times = page.evaluate("() => window.times")
    median = statistics.median(times)
    print(f"a dragged latent: {len(times)} outlines, {median:.0f} ms median")
    assert len(times) == 24
    assert median < MAX_MEDIAN_MS
    page.mouse.up()
    wait_caption(page, "1 edit of its latents")
    replayed(page)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y + 40)
    wait_caption(page, "−1.00 σ")
    page.keyboard.press("Escape")
    assert "1 edit of its latents" in caption(page)
    page.mouse.up()
    for key in ("ArrowRight", "k", "k", "j"):
        canvas.press(key)
    wait_caption(page, "Latent of 8×8: +0.25 σ")
    wait_caption(page, "2 edits of its latents")
    replayed(page)


def test_maps_of_scales_and_of_one_latent_are_shown(page: Any) -> None:
    open_scales(page)
    page.locator("#main").press("d")
    page.get_by_role("radio", name="4×4").check()
    page.mouse.move(*place_of(page, 66, 62))
    seen = []
    for kind, words in (("sigma", "prior σ"), ("spread", "standard deviation"), ("effect", "change")):
        page.locator("#scale-map").select_option(kind)
        page.wait_for_function(
            "words => document.getElementById('scale-legend-end').textContent.includes(words)",
            arg=words,
        )
        page.wait_for_timeout(150)
        seen.append(page.locator("#main").evaluate("e => e.toDataURL()"))
    assert len(set(seen)) == 3
    assert page.locator("#scale-legend").is_visible()
    assert re.match(r"0 [\d.]+ change", " ".join(page.locator("#scale-legend").inner_text().split()))
    page.locator("#main").press("v")
    assert not page.locator("#scale-legend").is_visible()


def test_link_leads_to_the_map(page: Any, browser: Any, server: LiveViewer) -> None:
    open_scales(page)
    page.get_by_role("button", name="Draw 1×1 and everything finer").click()
    wait_caption(page, "1 edit of its latents")
    wanted, state = mask(page), export(page, "state")
    page.locator("#main").press("c")
    page.wait_for_function("() => document.getElementById('hint').textContent.includes('copied')")
    link = page.evaluate("() => navigator.clipboard.readText()")
    assert TOKEN not in link
    assert link.startswith(page.url + "#case=0&slice=0&state=")
    page.locator("#main").press("u")
    assert caption(page).endswith("as drawn")
    page.evaluate("link => { location.href = link; }", link)
    wait_caption(page, "1 edit of its latents")
    assert "#" not in page.url
    np.testing.assert_array_equal(mask(page), wanted)
    assert export(page, "state") == state
    wait_saved(page)
    for wrong, why in (
        ("case=1", "another image"),
        ("case=99", "does not have"),
        ("slice=3", "a slice"),
        ("state=A", ""),
    ):
        name = wrong.split("=")[0]
        page.evaluate("link => { location.href = link; }", re.sub(rf"{name}=[^&]+", wrong, link))
        page.wait_for_function("why => document.getElementById('hint').textContent.includes(why)", arg=why)
    click_case(page, "lidc-1")
    assert "1 edit" in caption(page)
    address = server.address + link[link.index("#") :]
    with open_page(browser, address) as other:
        other.wait_for_function(
            "() => document.getElementById('hint').textContent.includes('is the one that is shown')"
        )
        assert "1 edit" in caption(other)
        assert TOKEN not in other.url
        assert "#" not in other.url
