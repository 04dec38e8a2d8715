"""Takes the pictures of `hpunet view`: `python docs/pictures/view.py` (needs Chromium and playwright; a minute).

Images and weights are those of the package. `--all FOLDER` takes every view at several sizes instead, to look at.
"""

import argparse
import io
import sys
import tempfile
from collections.abc import Callable
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


@dataclass(frozen=True)
class View:
    """A state of the page: how to get there from the first example, and the part of the page that is shown."""

    name: str
    reach: Callable[[Page], None]
    part: str | None = None
    kept: str = ""
    """The picture in this folder."""


def press(page: Page, *keys: str) -> None:
    """Type keys on the image, and wait until their effect is drawn."""
    for key in keys:
        page.locator("#main").press(key)
    page.wait_for_timeout(400)


def stroke(page: Page, *points: tuple[float, float]) -> None:
    """A stroke through points of the image (column and row of 128)."""
    box = page.locator("#main").bounding_box()
    assert box is not None
    zoom = min(box["width"], box["height"]) / 128 * 0.97
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    for number, (column, row) in enumerate(points):
        page.mouse.move(middle[0] + (column - 64) * zoom, middle[1] + (row - 64) * zoom, steps=8)
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
    View("keys", lambda page: press(page, "?")),
    View("accepted", accept),
)


def take(browser: Browser, address: str, view: View, **options: Any) -> Image.Image:
    """A picture of this view with 64 samples; the work list is left as it was found."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(address)
    page.wait_for_selector("#strip button")
    page.locator("#number").fill("64")
    press(page, "r")
    page.wait_for_function("() => document.getElementById('sample').max === '63'")
    view.reach(page)
    page.evaluate("() => document.activeElement.blur()")  # no ring around the image
    taken: Any = page.locator(view.part) if view.part else page
    picture = Image.open(io.BytesIO(taken.screenshot(animations="disabled")))
    page.keyboard.press("Escape")
    page.locator("#note").fill("")
    while page.locator("#undo").is_enabled():
        page.locator("#undo").click()
    page.wait_for_function("() => !document.getElementById('saved').textContent.includes('wait')")
    context.close()
    return picture


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


def take_kept(browser: Browser, address: str) -> None:
    """The pictures of the README and the guide, with two pixels per CSS pixel."""
    for view in VIEWS:
        if view.kept:
            size = {"width": 1280, "height": 800}
            target = HERE / view.kept
            take(browser, address, view, viewport=size, device_scale_factor=2).save(target, quality=80, method=6)
            print(f"{target.name:20} {target.stat().st_size / 1000:6.0f} kB")
            assert target.stat().st_size < MAX_BYTES


def main() -> None:
    """Take the pictures that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="every view at several sizes")
    folder = parser.parse_args().all
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        viewer = LiveViewer(Path(scratch))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            if folder:
                take_all(browser, viewer.address, folder)
            else:
                take_kept(browser, viewer.address)
        finally:
            viewer.kill()


if __name__ == "__main__":
    main()
