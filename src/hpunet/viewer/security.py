"""What every request must pass before the application sees it, and the headers of every answer; pure ASGI.

Host and Origin must name this server, so that no other page can use it (DNS rebinding); everything below /api needs
the token; bodies are bounded.
"""

import hmac
import ipaddress
import json
import platform
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_JSON_BYTES, MAX_UPLOAD_BYTES = 2**22, 2**28
UPLOAD = "/api/upload"
TOKEN_HEADER = b"x-hpunet-token"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
]


class Guard:
    """An application behind the checks; `host` is the address that it is bound to."""

    def __init__(self, app: App, *, token: str, host: str, port: int) -> None:
        self._app, self._token, self._port = app, token.encode(), port
        names = {"127.0.0.1", "localhost", "[::1]"}
        self._any_address = not is_loopback(host)
        if self._any_address:
            names |= {_bracketed(host), platform.node().lower()}
        self._hosts = {f"{name}:{port}".encode() for name in names}
        self._hosts |= {name.encode() for name in names} if port == 80 else set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        is_api = scope["path"].startswith("/api")

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                ours = {name for name, _ in _HEADERS}
                kept = [(name, value) for name, value in message.get("headers", []) if name.lower() not in ours]
                message["headers"] = kept + _HEADERS + [(b"cache-control", b"no-store" if is_api else b"no-cache")]
            await send(message)

        refused = self._refuse(scope)
        body = b""
        if refused is None and scope["path"] != UPLOAD:
            refused, body = await _read_body(receive)
        if refused is not None:
            await _answer(send_safely, *refused, is_head=scope["method"] == "HEAD")
            return
        await self._app(scope, receive if scope["path"] == UPLOAD else _replay(body, receive), send_safely)

    def _refuse(self, scope: Scope) -> tuple[int, str] | None:
        def values(name: bytes) -> list[bytes]:
            return [value for key, value in scope["headers"] if key.lower() == name]

        hosts, origins, tokens = values(b"host"), values(b"origin"), values(TOKEN_HEADER)
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return 403, "this server is not known under that host name"
        if any(not origin.startswith(b"http://") or not self._is_ours(origin[7:]) for origin in origins):
            return 403, "requests of other pages are refused"
        if scope["method"] not in ("GET", "POST", "HEAD"):
            return 405, "only GET, POST and HEAD are answered"
        if scope["path"].startswith("/api") and not (
            len(tokens) == 1 and hmac.compare_digest(tokens[0], self._token)
        ):
            return 403, "the token is missing or wrong; open the address that hpunet view printed"
        length = values(b"content-length")
        limit = MAX_UPLOAD_BYTES if scope["path"] == UPLOAD else MAX_JSON_BYTES
        if length and not (length[0].isdigit() and int(length[0][:20]) <= limit):
            return 413, f"more than {limit} bytes"
        return None

    def _is_ours(self, host: bytes) -> bool:
        if host.lower() in self._hosts:
            return True
        name, _, port = host.rpartition(b":")
        return self._any_address and port == str(self._port).encode() and _is_address(name.decode("latin-1"))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _is_address(name: str) -> bool:
    """Whether this is an IP address, which no name server can turn into another one."""
    try:
        ipaddress.ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return True


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host.lower()


async def _read_body(receive: Receive) -> tuple[tuple[int, str] | None, bytes]:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return (400, "the connection was closed"), b""
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_JSON_BYTES:
            return (413, f"more than {MAX_JSON_BYTES} bytes"), b""
        if not message.get("more_body", False):
            return None, b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    given: Iterable[Message] = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replayed() -> Message:
        for message in given:
            return message
        return await receive()

    return replayed


async def _answer(send: Send, status: int, detail: str, *, is_head: bool) -> None:
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 413:  # the rest of the body is not read
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if is_head else body})
