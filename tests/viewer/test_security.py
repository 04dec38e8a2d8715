"""The server answers its own page only, reads no file that was not named, and bounds what it is sent."""

import resource
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hostile import ask_raw, attack, check_inside, hostile, raw_request
from viewing import TOKEN, Client, open_client, write_images

from hpunet.viewer.security import MAX_JSON_BYTES, MAX_UPLOAD_BYTES, Guard, is_loopback


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("viewer")
    with open_client(folder, [write_images(folder / "images", count=1)]) as (client, _):
        yield client


def status(port: int, **how: Any) -> int:
    return int(ask_raw(port, raw_request(**how)).split()[1])


def test_foreign_hosts_are_refused(client: Client) -> None:
    port = client.port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}"):
        assert status(port, headers=(f"Host: {host}",)) == 200
    foreign = ("evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", f"127.0.0.1.evil.example:{port}")
    foreign += (f"localhost.:{port}", f"127.1:{port}", f"0.0.0.0:{port}", f"user@127.0.0.1:{port}", "", "*", ":")
    for host in foreign:
        assert status(port, headers=(f"Host: {host}",)) in (400, 403)
        assert status(port, target="/", headers=(f"Host: {host}",)) in (400, 403)
    good = f"Host: 127.0.0.1:{port}"
    assert status(port, headers=(good, "Host: evil.example")) in (400, 403)
    assert status(port, headers=()) in (400, 403)


def test_foreign_origins_are_refused(client: Client) -> None:
    port = client.port
    good = f"Host: 127.0.0.1:{port}"
    for origin in (f"http://127.0.0.1:{port}", f"http://localhost:{port}"):
        assert status(port, headers=(good, f"Origin: {origin}")) == 200
    foreign = ("null", "http://evil.example", f"https://127.0.0.1:{port}", f"http://evil.example:{port}", "http://")
    for origin in (*foreign, f"http://127.0.0.1:{port}/", f"http://127.0.0.1:{port}.evil.example", "file://", ""):
        assert status(port, headers=(good, f"Origin: {origin}")) == 403
        both = (good, f"Origin: http://127.0.0.1:{port}", f"Origin: {origin}")
        assert status(port, headers=both) == 403


def test_everything_below_api_needs_the_token(client: Client) -> None:
    described = client.get("/api/openapi.json").json()
    for token in (None, "", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper()):
        with closing(Client(client.port, token=token)) as stranger:
            for path, methods in described["paths"].items():
                for method in methods:
                    assert stranger.ask(method.upper(), path.replace("{number}", "0")).status == 403
            assert stranger.get("/api/openapi.json").status == 403
            assert stranger.get("/api").status == 403
            assert stranger.get("/%61pi/cases").status == 403
            assert stranger.get(f"/api/cases?token={TOKEN}").status == 403
    with closing(Client(client.port, token=None)) as stranger:
        assert stranger.get("/").status == 200


def test_only_three_methods_are_answered(client: Client) -> None:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"):
        answer = client.ask(method, "/api/cases")
        assert answer.status == 405
        assert "access-control-allow-origin" not in answer.headers


def test_every_answer_has_the_headers(client: Client) -> None:
    with closing(Client(client.port, token="wrong")) as stranger:
        answers = [client.get("/"), client.get("/api/cases"), client.get("/x"), stranger.get("/api/cases")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in answer.headers
    assert answers[1].headers["cache-control"] == "no-store"


def test_hostile_paths_and_names_lead_nowhere(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    images = write_images(folder / "images", count=1)
    secret = b"a secret of another folder"
    (tmp_path / "secret.txt").write_bytes(secret)
    (images / "secret.txt").write_bytes(secret)
    with open_client(folder, [images]) as (client, viewer):
        picture = (images / "image-000.png").read_bytes()
        found = attack(client.port, hostile(1000), picture=picture, secret=secret)
        assert found.get(200, 0) > 20  # uploads of pictures, whatever their name
        assert sum(found.values()) == 1000
        names = [case.name for case in viewer.cases]
        assert len({name.casefold() for name in names}) == len(names)
        assert all("/" not in name and "\\" not in name and not name.startswith(".") for name in names)
    check_inside(tmp_path, allowed={folder, tmp_path / "secret.txt"})
    check_inside(folder, allowed={folder / "list", folder / "images", folder / "page"})


def test_too_many_bytes_are_refused_before_they_are_read(client: Client) -> None:
    host = f"Host: 127.0.0.1:{client.port}"
    for target, limit in (("/api/cases/0/events", MAX_JSON_BYTES), ("/api/upload?name=a.png", MAX_UPLOAD_BYTES)):
        how: dict[str, Any] = {"method": "POST", "target": target}
        for length in (str(limit + 1), "9" * 40):
            headers = (host, f"Content-Length: {length}")
            assert status(client.port, headers=headers, **how) in (400, 413)
    chunk = b"%x\r\n%s\r\n" % (2**20, b" " * 2**20)
    chunked = (host, "Transfer-Encoding: chunked")
    request = raw_request(method="POST", target="/api/cases/0/events", headers=chunked)
    try:
        answer = ask_raw(client.port, request + 6 * chunk + b"0\r\n\r\n")
    except ConnectionError:  # refused while we were still sending
        return
    assert int(answer.split()[1]) == 413


def test_uploads_that_are_no_images_are_refused_without_growing(client: Client, tmp_path: Path) -> None:
    picture = (write_images(tmp_path, count=1, side=64) / "image-000.png").read_bytes()
    bad = [b"", b"x", b"\x89PNG\r\n\x1a\n" + b"\0" * 100, picture[:60], b"\0" * 2**21]
    bombs = [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (2**30).to_bytes(4, "big") * 2 + b"\x08\0\0\0\0" + b"\0" * 4096]
    names = ("a.png", "a.nii.gz", "a.npy", "a.tif", "a.gif", "a.jpg", "a.dcm", "a", "a.nii", "a.exe")
    client.get("/api/session")
    before = len(client.get("/api/cases").json()["cases"])
    for name in names:
        client.post(f"/api/upload?name={name}", content=picture[:60])  # imports the readers
    tracemalloc.start()
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in names:
        for content in bad + bombs:
            answer = client.post(f"/api/upload?name={name}", content=content)
            assert answer.status == 400, (name, content[:20])
            assert "upload" not in answer.json()["detail"] or "/" not in answer.json()["detail"]
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 2**22
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before < 2**18  # KiB: 256 MiB
    assert len(client.get("/api/cases").json()["cases"]) == before


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("10.0.0.1", False), ("x", False)],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_beyond_loopback_only_addresses_and_own_names_are_known() -> None:
    async def app(*_: Any) -> None:
        raise AssertionError

    guard = Guard(app, token=TOKEN, host="10.0.0.7", port=80)
    for host in (b"10.0.0.7", b"10.0.0.7:80", b"10.0.0.8:80", b"localhost:80", b"[fe80::1]:80"):
        assert guard._is_ours(host)
    for host in (b"evil.example:80", b"10.0.0.7.evil.example:80", b"10.0.0.7:81", b":80", b"[evil]:80"):
        assert not guard._is_ours(host)
