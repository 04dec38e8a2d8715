"""Bad calls as users make them: the shape annotations are only checked in tests, so this runs in a plain process."""

import subprocess
import sys
from collections.abc import Mapping


def check_refused(setup: str, expected: Mapping[str, str]) -> None:
    """Each call of `expected` raises, after `setup`, an error whose "type: message" holds the given words."""
    code = f"""{setup}
for call in {list(expected)}:
    try:
        print(f"accepted: {{eval(call)}}")
    except Exception as error:
        print(f"{{type(error).__name__}}: {{error}}")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    for line, words in zip(result.stdout.splitlines(), expected.values(), strict=True):
        assert words in line
