"""A killed reader, two writers and readers of a live run; `make chaos` is the long version."""

import os
import subprocess
import sys
from pathlib import Path

HELPERS = Path(__file__).parents[1] / "helpers"


def test_commands_that_meet_leave_what_one_of_them_would() -> None:
    command = [sys.executable, "-W", "ignore", str(HELPERS / "two_at_once.py"), "1", "1", "0", "30"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "30 reads: nothing lost" in result.stdout
