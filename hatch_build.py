"""Puts the commit that is built into wheel and sdist, as `hpunet/commit.json`."""

import json
import runpy
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PLACE = "src/hpunet/commit.json"


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    """An editable install asks git instead, and a wheel made from an sdist takes the sdist's file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file, if there is a commit to name."""
        if version == "editable":
            return
        root = Path(self.root)
        where = root / _PLACE
        if not where.exists():
            found = runpy.run_path(str(root / "src/hpunet/utils/source.py"))["source_commit"]()
            if found["commit"] is None:
                return
            where = Path(mkdtemp()) / "commit.json"
            where.write_text(json.dumps(found) + "\n")
        place = _PLACE if self.target_name == "sdist" else _PLACE.removeprefix("src/")
        build_data["force_include"][str(where)] = place
