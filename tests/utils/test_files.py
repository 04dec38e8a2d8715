"""Names of files that come from data."""

from pathlib import Path

import pytest

from hpunet.errors import DataError
from hpunet.utils.files import below


def test_names_stay_below_the_folder(tmp_path: Path) -> None:
    assert below(tmp_path, "p1/z-5_c0") == tmp_path / "p1/z-5_c0"
    for name in ("", ".", "..", "../a", "a/../../b", "/a", "//a", "a\0"):
        with pytest.raises(DataError, match="cannot be the name of a file or folder below"):
            below(tmp_path, name)
