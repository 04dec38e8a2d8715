"""`make sbom`: what .venv holds, as CycloneDX and as a table of licences, in dist/. Run from .venv/tools."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

from places import ROOT

DIST = ROOT / "dist"
LOOKED_AT = str(ROOT / ".venv" / ("Scripts" if os.name == "nt" else "bin") / "python")


def tool(name: str, *arguments: str) -> str:
    """What a program beside this Python prints."""
    command = [str(Path(sys.executable).with_name(name)), *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Write both."""
    DIST.mkdir(exist_ok=True)
    how = ("--mc-type", "library", "--pyproject", "pyproject.toml", "--output-reproducible", "--gather-license-texts")
    found = json.loads(tool("cyclonedx-py", "environment", *how, LOOKED_AT))
    about = found["metadata"]["component"]  # pyproject.toml leaves the version to the package
    about["version"] = runpy.run_path(str(ROOT / "src/hpunet/__init__.py"))["__version__"]
    (DIST / "hpunet.cdx.json").write_text(json.dumps(found, indent=1) + "\n")
    licences = tool("pip-licenses", "--python", LOOKED_AT, "--format", "markdown", "--with-urls")
    (DIST / "licences.md").write_text(licences)
    unknown = [each["name"] for each in found["components"] if not each.get("licenses")]
    print(f"hpunet: dist/hpunet.cdx.json and dist/licences.md: {len(found['components'])} packages")
    if unknown:
        print(f"hpunet: no licence is declared by {', '.join(unknown)}")


if __name__ == "__main__":
    main()
