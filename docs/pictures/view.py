"""Takes the pictures of `hpunet view`: `python docs/pictures/view.py` (needs Chromium and playwright; a minute).

Images and weights are those of the package. `--all FOLDER` takes every view at several sizes instead, to look at.
"""

import argparse
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "helpers"))
from live_viewer import CHROMIUM, FLAGS, LiveViewer  # noqa: E402

SIZES = ((1280, 800), (1920, 1080), (1024, 700))
MAX_BYTES = 250_000
MAX_ANIMATION_BYTES = 1_000_000


@dataclass(frozen=True)
class View:
    """A state of the page: how to get there from the first example, and the part of the page that is shown."""

    name: str
    reach: Callable[[Page], None]
    part: str | None = None
    kept: str = ""
    """The picture in this folder."""


def place_of(page: Page, column: float, row: float, *, closer: float = 1.0) -> tuple[float, float]:
    """A point of the image (of 128×128 pixels) on the page, at a zoom around its middle."""
    box = page.locator("#main").bounding_box()
    assert box is not None
    zoom = min(box["width"], box["height"]) / 128 * 0.97 * closer
    return box["x"] + box["width"] / 2 + (column - 64) * zoom, box["y"] + box["height"] / 2 + (row - 64) * zoom


def press(page: Page, *keys: str) -> None:
    """Type keys on the image, and wait until their effect is drawn."""
    for key in keys:
        page.locator("#main").press(key)
    page.wait_for_timeout(400)


def stroke(page: Page, *points: tuple[float, float], closer: float = 1.0) -> None:
    """A stroke through points of the image (column and row of 128)."""
    for number, (column, row) in enumerate(points):
        page.mouse.move(*place_of(page, column, row, closer=closer), steps=8)
        if number == 0:
            page.mouse.down()
    page.mouse.up()


def compare(page: Page) -> None:
    """The first and the third hypothesis side by side."""
    press(page, "1", "s")
    page.locator("#other-choice").select_option("2")
    page.wait_for_timeout(200)


def correct(page: Page) -> None:
    """The first hypothesis with a rim added by the brush, which is still in the hand."""
    press(page, "1", "b")
    stroke(page, (56, 61), (58, 56), (63, 52), (68, 50.5), (72.5, 54.5), (76, 60))
    page.wait_for_timeout(400)


def accept(page: Page) -> None:
    """A corrected case with a note, accepted."""
    correct(page)
    press(page, "b")
    page.locator("#note").fill("faint rim above")
    press(page, "a")


def wait_caption(page: Page, words: str) -> None:
    """Wait until the caption of the image has these words."""
    page.wait_for_function("words => document.getElementById('caption').textContent.includes(words)", arg=words)


def redraw_here(page: Page) -> None:
    """The first hypothesis, redrawn in its upper half, beside itself as it was drawn."""
    press(page, "1", "s")
    page.locator("#other-choice").select_option("0")
    page.locator("#size").fill("9")
    press(page, "+", "+", "+", "l")
    stroke(page, (58, 57), (65, 54), (72, 60), closer=1.25**3)
    wait_caption(page, "1 edit of its latents")
    page.wait_for_timeout(400)


def effect(page: Page) -> None:
    """What one latent of the finest scale controls."""
    press(page, "1", "+", "+", "+", "d")
    page.mouse.move(*place_of(page, 60, 60, closer=1.25**3))
    press(page, "v")
    page.wait_for_function("() => document.getElementById('scale-legend-end').textContent.includes('change')")


def scale_spread(page: Page) -> None:
    """Where samples differ if only the finest scale is drawn."""
    press(page, "1")
    page.locator("#latents summary").click()
    page.locator("#scale-map").select_option("spread")
    page.wait_for_function("() => document.getElementById('scale-legend-end').textContent.includes('deviation')")
    page.locator("#latents").scroll_into_view_if_needed()


def drag(page: Page) -> Iterator[Image.Image]:
    """A latent of the finest scale is dragged down, up, and back."""
    press(page, "1", "+", "+", "+", "d")
    x, y = place_of(page, 60, 60, closer=1.25**3)
    page.mouse.move(x, y)
    page.mouse.down()
    for step in (*range(1, 13), *range(11, -9, -1), *range(-7, 1)):
        page.mouse.move(x, y + 20 * step)
        wait_caption(page, f"{'−' if step > 0 else '+'}{abs(step) / 2:.2f} σ")
        page.wait_for_timeout(60)
        figure: Any = page.locator("figure", has=page.locator("#main"))
        yield Image.open(io.BytesIO(figure.screenshot()))
    page.keyboard.press("Escape")
    page.mouse.up()


VIEWS = (
    View("first", lambda page: press(page, "Escape")),
    View("main", lambda page: press(page, "1"), kept="view.webp"),
    View("mean", lambda page: press(page, "m")),
    View("spread", lambda page: press(page, "m", "m"), kept="view_spread.webp"),
    View("flip", lambda page: press(page, "f", "f", "f")),
    View("side-by-side", compare, kept="view_two.webp"),
    View("graders", lambda page: press(page, "1", "g")),
    View("correct", correct, kept="view_correct.webp"),
    View("measurements", lambda page: press(page, "1"), part="aside section:has(#plot)"),
    View("redraw-here", redraw_here, kept="latents_redraw.webp"),
    View("effect", effect, kept="latents_effect.webp"),
    View("scale-spread", scale_spread, kept="latents_scale.webp"),
    View("keys", lambda page: press(page, "?")),
    View("accepted", accept),
)


@contextmanager
def opened(browser: Browser, address: str, **options: Any) -> Iterator[Page]:
    """The page with 64 samples of the first example; the work list is left as it was found."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(address)
    page.wait_for_selector("#strip button")
    page.locator("#number").fill("64")
    press(page, "r")
    page.wait_for_function("() => document.getElementById('sample').max === '63'")
    yield page
    page.keyboard.press("Escape")
    page.locator("#note").fill("")
    while page.locator("#undo").is_enabled():
        page.locator("#undo").click()
    page.wait_for_function("() => !document.getElementById('saved').textContent.includes('wait')")
    context.close()


def take(browser: Browser, address: str, view: View, **options: Any) -> Image.Image:
    """A picture of this view."""
    with opened(browser, address, **options) as page:
        view.reach(page)
        page.evaluate("() => document.activeElement.blur()")  # no ring around the image
        taken: Any = page.locator(view.part) if view.part else page
        return Image.open(io.BytesIO(taken.screenshot(animations="disabled")))


def take_animation(browser: Browser, address: str) -> None:
    """A latent that is dragged."""
    target = HERE / "latents_drag.webp"
    with opened(browser, address, viewport={"width": 1000, "height": 800}) as page:
        first, *frames = drag(page)
    how: Any = {"save_all": True, "append_images": frames, "duration": 110, "loop": 0}
    first.save(target, quality=60, method=6, **how)
    print(f"{target.name:20} {target.stat().st_size / 1000:6.0f} kB")
    assert target.stat().st_size < MAX_ANIMATION_BYTES


def take_all(browser: Browser, address: str, folder: Path) -> None:
    """Every view at every size; the first views also with forced colours."""
    folder.mkdir(parents=True, exist_ok=True)
    for view in VIEWS:
        for width, height in SIZES:
            picture = take(browser, address, view, viewport={"width": width, "height": height})
            picture.save(folder / f"{view.name}-{width}.png")
    for view in VIEWS[:2]:
        picture = take(browser, address, view, viewport={"width": 1280, "height": 800}, forced_colors="active")
        picture.save(folder / f"{view.name}-forced-colours.png")


def take_kept(browser: Browser, address: str, *, only: str) -> None:
    """The pictures of the README and the guides, with two pixels per CSS pixel."""
    for view in VIEWS:
        if view.kept.startswith(only) and view.kept:
            size = {"width": 1280, "height": 800}
            target = HERE / view.kept
            take(browser, address, view, viewport=size, device_scale_factor=2).save(target, quality=80, method=6)
            print(f"{target.name:20} {target.stat().st_size / 1000:6.0f} kB")
            assert target.stat().st_size < MAX_BYTES
    if "latents_drag.webp".startswith(only):
        take_animation(browser, address)


def main() -> None:
    """Take the pictures that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="every view at several sizes")
    parser.add_argument("--only", default="", metavar="START", help="kept pictures whose names start so")
    arguments = parser.parse_args()
    folder = arguments.all
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        viewer = LiveViewer(Path(scratch))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            if folder:
                take_all(browser, viewer.address, folder)
            else:
                take_kept(browser, viewer.address, only=arguments.only)
        finally:
            viewer.kill()


if __name__ == "__main__":
    main()
