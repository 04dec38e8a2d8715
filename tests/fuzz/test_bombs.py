"""Every bomb is refused within the limits of the harness, which hold on replay, too."""

import sys
from pathlib import Path
from typing import ClassVar

import harness
import pytest
from mutate_samples import CANARY

SLOW = ("largest", "masks")  # hold as much as is allowed; `make fuzz` reads them, too


@pytest.mark.timeout(300)
def test_every_bomb_is_refused_or_read_by_a_worker_with_limits() -> None:
    names = [name for name in sorted(harness.BOMBS) if not name.startswith(SLOW)]
    worker = harness._Worker()
    try:
        found = {name: worker.run(name)[:2] for name in names}
        limits = Path("/proc", str(worker._process.pid), "limits").read_text()
    finally:
        worker.end()
    assert len(found) > 40
    assert not {
        name: outcome
        for name, outcome in found.items()
        if outcome != ("read" if name in harness.READ else "refused", False)
    }
    assert str(harness._WORKER_LIMIT) in limits
    assert not CANARY.exists()
    assert (harness.MAX_SECONDS, harness.MAX_BYTES) == (2.0, 2**29)


class _Worker:
    ran: ClassVar[list[int | str]] = []

    def run(self, item: int | str) -> tuple[str, bool, str]:
        self.ran.append(item)
        return "refused", False, ""

    def end(self) -> None:
        pass


def test_replay_runs_in_a_worker(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the limits are."""
    monkeypatch.setattr(harness, "_Worker", _Worker)
    for arguments in (["--case", "7"], ["--case", "7", "--seeds", "2020"], ["--bomb", "pax_digits"]):
        monkeypatch.setattr(sys, "argv", ["harness.py", *arguments])
        assert harness.main() == 0
    assert _Worker.ran == [7, 7 + harness.NUM_CASES, "pax_digits"]
    assert "refused" in capsys.readouterr().out
