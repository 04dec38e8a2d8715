"""Hostile paths, names and requests for the server of `hpunet view`, endless and the same for a seed."""

import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from viewing import HOST, TOKEN, Client

_PARTS = (
    "..", ".", "%2e%2e", "%2e%2e%2f", "..%2f", "%252e%252e%252f", "..%5c", "..\\", "%c0%ae%c0%ae/", "....//", "/",
    "//", "%00", "%0a", "%0d%0aX:%20y", "~", "$HOME", "C:\\", "\\\\server\\share", "file:", "etc", "passwd",
    "proc/self/environ", "secret", "secret.txt", "api", "cases", "0", "-1", "image", "static", "assets", "index.html",
    "page.js", "BUILD", "log.jsonl", "worklist.json", "uploads", "images", "graders", "reviewer", ".git", "*",
    "?slice=0", "#", ";", "%", "%zz", "🩻", "%f0%9f%a9%bb", "A" * 300, "con", "nul.png", "'", '"', "<script>",
    "{{7*7}}", "${7*7}", "\u202egnp.", "\ud7ff",
)  # fmt: skip
_ENDINGS = (".png", ".nii.gz", ".dcm", ".npy", ".tif", ".gif", ".jpg", ".exe", "", ".png\0.exe", ".PNG", ".png/")


class Hostile(NamedTuple):
    """One request; `name` is that of an upload, else the target is asked for."""

    method: str
    target: str
    is_upload: bool


def hostile(count: int, *, seed: int = 0) -> Iterator[Hostile]:
    """So many requests."""
    rng = random.Random(seed)
    for _ in range(count):
        parts = rng.choices(_PARTS, k=rng.randint(1, 8))
        joined = rng.choice(["/", "", "\\"]).join(parts)
        if rng.random() < 0.3:
            yield Hostile("POST", f"/api/upload?name={quote(joined + rng.choice(_ENDINGS), safe='')}", True)
        else:
            start = rng.choice(
                ["/", "/assets/", "/api/", "/api/cases/", "/api/predictions/", "/api/cases/0/", "/static/"]
            )
            target = quote("/" + start + joined, safe="/%.~$:;*?#=&'+,@!()\\")
            yield Hostile(rng.choice(["GET", "GET", "GET", "HEAD", "POST"]), target, False)


def attack(port: int, requests: Iterator[Hostile], *, picture: bytes, secret: bytes) -> dict[int, int]:
    """How often each status was answered; fails where a secret file or an error of ours shows up."""
    found: dict[int, int] = {}
    client = Client(port)
    for method, target, is_upload in requests:
        content = picture if is_upload else b"{}" if method == "POST" else None
        answer = client.ask(method, target, content=content, Content_Type="application/json")
        found[answer.status] = found.get(answer.status, 0) + 1
        assert answer.status < 500, (method, target, answer)
        assert secret not in answer.content, (method, target)
        assert b"root:" not in answer.content, (method, target)
    client.close()
    return found


def check_inside(folder: Path, *, allowed: set[Path]) -> None:
    """Nothing was written outside of the work list."""
    for path in folder.rglob("*"):
        assert any(path == each or each in path.parents for each in allowed), path


def ask_raw(port: int, content: bytes) -> bytes:
    """The answer to bytes as they are, which no client would send."""
    with socket.create_connection((HOST, port), timeout=20) as connection:
        connection.sendall(content)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def raw_request(*, method: str = "GET", target: str = "/api/cases", headers: tuple[str, ...] = ()) -> bytes:
    """A request with exactly these headers besides the token."""
    lines = [f"{method} {target} HTTP/1.1", f"X-Hpunet-Token: {TOKEN}", "Connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
