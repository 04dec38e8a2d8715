"""Where the repository's files lie."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SHARED = Path(os.environ.get("HPUNET_SHARED", ROOT.parent / "shared"))
"""Real data and the authors' outputs, which users do not have: tests that read them are skipped without."""
