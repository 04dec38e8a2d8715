import io
from collections.abc import Sequence
from typing import Any

import pytest

from hpunet.cli import progress as cli_progress
from hpunet.cli.progress import PeriodicLog, progress_bar
from hpunet.cli.terminal import Terminal


def lines_of(times: Sequence[tuple[float, float]], **how: Any) -> list[str]:
    """What is said of 280 images when so many are done at such seconds."""
    out = io.StringIO()
    terminal = how.pop("terminal", False)
    console = Terminal(file=out, force_terminal=terminal, width=40)
    lines = PeriodicLog(
        "evaluate [a]", console=console, clock=iter([0.0, *(float(now) for now, _ in times)]).__next__, **how
    )
    for _, done in times:
        lines.update(done, 280)
    return out.getvalue().splitlines()


def test_log_lines_come_now_and_then_and_say_what_is_left() -> None:
    assert lines_of([(0, 0), (29, 50), (31, 62), (45, 90), (62, 120), (7000, 121.7), (8000, 280)]) == [
        "evaluate [a]: 62 of 280 images, about 2 min left",
        "evaluate [a]: 120 of 280 images, about 80 s left",
        "evaluate [a]: 121 of 280 images, about 2.5 h left",
    ]
    assert lines_of([(40, 0)]) == ["evaluate [a]: 0 of 280 images"]


def test_log_lines_leave_quick_work_terminals_and_the_quiet_alone() -> None:
    assert lines_of([(1, 100), (29, 279), (30, 280)]) == []
    assert lines_of([(100, 100)], terminal=True) == []
    assert lines_of([(100, 100)], quiet=True) == []


@pytest.mark.parametrize(("number", "last"), [(1, "sample: 3 of 4 samples"), (3, "sample: 2 of 3 images")])
def test_images_in_a_log_have_lines_of_their_progress(
    monkeypatch: pytest.MonkeyPatch, number: int, last: str
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(cli_progress, "notes", Terminal(file=out, width=80))
    monkeypatch.setattr(cli_progress, "LOG_INTERVAL_S", 0.0)

    def work(_item: str, begin: Any, advance: Any) -> None:
        begin(4)
        for _ in range(4):
            advance(1)

    cli_progress.process_each(["a", "b", "c"][:number], work, command="sample", quiet=False)
    assert out.getvalue().splitlines()[-1].startswith(last)


def test_the_bar_knows_the_time_left_of_samples_that_take_minutes() -> None:
    bar, now = progress_bar(hidden=True), 0.0
    bar.get_time = lambda: now
    task = bar.add_task("", total=16)
    for _ in range(3):
        now += 130
        bar.advance(task)
    assert bar.tasks[0].time_remaining == 13 * 130
