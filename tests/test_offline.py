"""Nothing asks the network at run time: it works with the network taken away, but for this machine's own loopback."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

CODE = """
import fcntl, os, socket, struct, sys, threading, time, urllib.request

LOCAL = (None, "", "127.0.0.1", "localhost", b"localhost")

def refuse(event, arguments):
    host = arguments[0] if event == "socket.getaddrinfo" else None
    if event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    if host not in LOCAL:
        os.write(2, f"asked for {host}".encode())
        os._exit(99)  # an exception could be caught

sys.addaudithook(refuse)
if sys.argv[1] == "alone":  # the loopback of a new network namespace is down
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sh22x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
    assert os.listdir("/sys/class/net") and not open("/proc/net/route").read().splitlines()[1:]
if sys.argv[2] == "ask":
    urllib.request.urlopen("http://192.0.2.1/", timeout=1)

import hpunet
prediction = hpunet.load("lidc-hpu-2026")(hpunet.example("lidc-1").path, num_samples=1)
assert prediction.samples.shape == (1, 128, 128)

def visit():
    for _ in range(200):
        try:
            page = urllib.request.urlopen(f"http://127.0.0.1:{port}/?token={'t' * 20}", timeout=5)
            break
        except OSError:
            time.sleep(0.1)
    os.write(1, page.read())
    os._exit(0)

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
threading.Thread(target=visit).start()
from hpunet.cli.main import main
sys.argv = ["hpunet", "view", "--no-browser", "--port", str(port), "--token", "t" * 20, "--worklist", "list"]
main()
"""


def run(folder: Path, what: str) -> subprocess.CompletedProcess[str]:
    """In a network namespace of its own where the system allows that; else Python's own calls are watched."""
    alone = ["unshare", "--map-root-user", "--net"]
    allowed = (
        shutil.which("unshare") and subprocess.run([*alone, "true"], check=False, capture_output=True).returncode == 0
    )
    command = [*(alone if allowed else []), sys.executable, "-c", CODE, "alone" if allowed else "watched", what]
    environment = {**os.environ, "HPUNET_HOME": str(folder / "home")}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_loads_samples_and_views_without_a_network(tmp_path: Path) -> None:
    done = run(tmp_path, "work")
    assert done.returncode == 0, done.stderr
    assert "<title>" in done.stdout


def test_a_request_would_be_seen(tmp_path: Path) -> None:
    done = run(tmp_path, "ask")
    assert (done.returncode, done.stderr) == (99, "asked for 192.0.2.1")
