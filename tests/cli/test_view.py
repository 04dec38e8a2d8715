"""`hpunet view`: what it says before a page opens, and that it ends quietly."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner
from untrained import make_trained
from viewing import Client, write_images, write_page

from hpunet.cli.main import app
from hpunet.weights.load import publish


def refused(*args: str) -> str:
    result = CliRunner().invoke(app, ["view", "--no-browser", *args])
    assert result.exit_code != 0
    return str(result.exception)


def test_beyond_this_machine_a_token_is_needed() -> None:
    assert "--token" in refused("--host", "0.0.0.0")
    assert "--token" in refused("--host", "10.0.0.7", "--token", "short")


def test_a_page_that_is_not_built_and_no_model_are_said(tmp_path: Path) -> None:
    assert "make web" in refused("--static", str(tmp_path))
    page = str(write_page(tmp_path / "page"))
    (tmp_path / "image.png").write_bytes(b"")
    for first in (tmp_path, tmp_path / "image.png"):
        assert "lidc-hpu-2026" in refused("--static", page, str(first))
    assert "no such file" in refused("--static", page, "lidc-hpu-2026", str(tmp_path / "missing.png"))


def test_the_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install" in refused()


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_it_serves_and_ends_quietly(tmp_path: Path) -> None:
    publish(make_trained(channels=(4, 6), latent_dims=(1,)), out=tmp_path / "model", name="tiny")
    images, page = write_images(tmp_path / "images", count=1), write_page(tmp_path / "page")
    command = [sys.executable, "-m", "hpunet", "view", str(tmp_path / "model"), str(images), "--no-browser"]
    command += ["--port", "0", "--static", str(page)]
    environment = {**os.environ, "HPUNET_HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"}
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment, "cwd": tmp_path}
    with subprocess.Popen(command, **how) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]+)", address)
        assert found
        with urllib.request.urlopen(address) as answer:  # before the model is loaded
            assert b"page" in answer.read()
        client = Client(int(found[1]), token=found[2])
        session = client.get("/api/session").json()
        client.close()
        assert session["model"]["name"] == "tiny"
        assert client.post("/api/cases/0/samples", {"num_samples": 2}).status == 200
        client.close()
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=30)
        assert time.monotonic() - start < 10
    assert process.returncode == 130
    assert rest == ""
    assert "Traceback" not in errors
    assert "Stopped" in errors
    (folder,) = (tmp_path / "home" / "worklists").iterdir()
    assert {path.name for path in folder.iterdir()} == {"log.jsonl", "worklist.json"}


def test_a_damaged_model_ends_it_in_one_line(tmp_path: Path) -> None:
    publish(make_trained(channels=(4, 6), latent_dims=(1,)), out=tmp_path / "model", name="tiny")
    weights = tmp_path / "model" / "sampling.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    page = write_page(tmp_path / "page")
    how = {"--port": "0", "--static": str(page), "--worklist": str(tmp_path / "list")}
    options = [word for pair in how.items() for word in pair]
    images = write_images(tmp_path / "images", count=1)
    assert "truncated" in refused(str(tmp_path / "model"), str(images), *options)
