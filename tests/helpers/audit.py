"""`make audit`: known vulnerabilities of the pinned Python packages and of what builds and tests the viewer's page.

Exit code 1 if there are some, 2 if a source of advisories gave no answer: then nothing is known.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from places import ROOT


def ask(name: str, command: list[str], *, folder: Path) -> dict[str, Any] | None:
    """What the command answers, as JSON; None and a message if that is no answer."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        found = {"error": done.stderr.strip().splitlines()[-1:]}
    if "error" in found:
        print(f"{name}: no advisory source answered, so nothing is known: {found['error']}")
        return None
    return found


def python_packages() -> list[str] | None:
    """Advisories of everything in constraints.txt."""
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--strict",
        "--no-deps",
        "--disable-pip",
        "--progress-spinner",
        "off",
    ]
    found = ask("pip-audit", [*command, "--format", "json", "--requirement", "constraints.txt"], folder=ROOT)
    if found is None:
        return None
    known = [(package, each) for package in found["dependencies"] for each in package["vulns"]]
    return [f"{package['name']} {package['version']}: {each['id']}" for package, each in known]


def npm_packages() -> list[str] | None:
    """Advisories of everything in web/package-lock.json."""
    if not shutil.which("npm"):
        print("npm audit: npm is missing, so nothing is known")
        return None
    found = ask("npm audit", ["npm", "audit", "--json"], folder=ROOT / "web")
    if found is None:
        return None
    return [f"{name}: {each['severity']}" for name, each in found["vulnerabilities"].items()]


def main() -> int:
    """Ask both."""
    answers = {"pip-audit": python_packages(), "npm audit": npm_packages()}
    for name, known in answers.items():
        if known is not None:
            print(f"{name}: {len(known)} known vulnerabilities", *known, sep="\n  ")
    return 1 if any(answers.values()) else 2 if None in answers.values() else 0


if __name__ == "__main__":
    sys.exit(main())
