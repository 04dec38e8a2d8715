"""What the tests in a real browser share."""

from collections.abc import Iterator
from typing import Any

import pytest
from live_viewer import LiveViewer, open_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveViewer]:
    """The published model and the examples."""
    started = LiveViewer(tmp_path_factory.mktemp("view"))
    yield started
    started.kill()
