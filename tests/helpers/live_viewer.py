"""`hpunet view` as a process of its own, which can be killed and started again, and a browser to look at it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from viewing import TOKEN

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync", "--no-first-run"]
WAIT_MS = 60_000


@contextmanager
def open_browser() -> Iterator[Any]:
    """Chromium, driven by playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)


@contextmanager
def open_page(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """The page at its first case, in a profile of its own; no script may fail."""
    context = browser.new_context(**{"viewport": {"width": 1500, "height": 1400}} | options)
    opened, problems = context.new_page(), []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.set_default_timeout(WAIT_MS)
    opened.goto(address)
    opened.wait_for_selector("#strip button")
    yield opened
    assert problems == []
    context.close()


def wait_saved(page: Any) -> None:
    """Wait until the server has every step."""
    page.wait_for_function("() => document.getElementById('saved').textContent === 'Everything is saved.'")


class LiveViewer:
    """The command with these arguments; by default the published model on the examples."""

    def __init__(self, folder: Path, arguments: Sequence[str | Path] = ()) -> None:
        self.folder, self.arguments, self.log, self._port = folder, [*map(str, arguments)], folder / "log", "0"
        folder.mkdir(parents=True, exist_ok=True)
        self.start()

    @property
    def port(self) -> int:
        return int(self._port)

    def start(self) -> None:
        """Start it at the port that it had."""
        command = [sys.executable, "-m", "hpunet", "view", *self.arguments, "--no-browser", "--token", TOKEN]
        command += ["--port", self._port, "--worklist", str(self.folder / "list")]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + 60
        while not (found := re.search(r"http://\S+:(\d+)/\S+", self.log.read_text())):
            assert time.monotonic() < end, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        self.address, self._port = found[0], found[1]

    def kill(self) -> None:
        """End it as a crash would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def memory(self) -> tuple[int, int]:
        """Bytes in memory now and at most so far (Linux only)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        now, most = (int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) for name in ("VmRSS", "VmHWM"))  # type: ignore[index]
        return now * 1024, most * 1024
