"""A server under clients who send anything: each gets an answer, and the others theirs.

Requests are made up or mutated, sent as bytes, in pieces, or cut off; answers are never a failure
of ours, and the same question has the same answer before and after.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import Case, Lost
from mutations import mutate

from groundup.generation import LanguageModel
from groundup.serving.launch import Server, make_server, open_socket
from groundup.serving.settings import ServerSettings

_PATIENCE = 60.0
_SERVER_ERRORS = (b"500", b"501", b"502", b"504", b"505")
PROBE = {"prompt": "Cat", "max_tokens": 6, "temperature": 0, "seed": 1}
_MESSAGES = [{"role": "user", "content": "Cat 3?"}, {"role": "assistant", "content": "fish"}]
_BODIES: list[tuple[str, Any]] = [
    ("/v1/completions", {**PROBE, "n": 2, "logprobs": 2, "stop": ["a"], "echo": True}),
    ("/v1/completions", {**PROBE, "stream": True, "prompt": [1, 2, 3]}),
    ("/v1/chat/completions", {"messages": _MESSAGES, "max_tokens": 5, "top_p": 0.5}),
    ("/api/tokenize", {"text": "Cat 4 ate <|im_end|>"}),
    ("/api/inside", {"prompt": "Cat"}),
]
_PATHS = [
    "/health",
    "/metrics",
    "/v1/models",
    "/",
    "/runs",
    "/static/../../etc/passwd",
    "/%00",
    "*",
]
_PATHS += [
    "/api/runs/..%2f..",
    "//",
    "/v1/models/" + "x" * 9_000,
    "/\r\nX: y",
    "http://evil/health",
]
_HEADERS = [
    *("Host: evil.example", "Host:", "Host: 127.0.0.1:1\r\nHost: b", "Origin: http://evil.example"),
    *("Content-Length: -1", "Content-Length: 99999999999", "Transfer-Encoding: chunked"),
    *("Content-Type: text/plain", "Expect: 100-continue", "Connection: Upgrade\r\nUpgrade: h2c"),
    *("Authorization: Bearer \x00", "X: " + "y" * 20_000, "Range: bytes=0-1,0-1", ": x", "é: ü"),
    *("X-Forwarded-For: 1.2.3.4", "Cookie: a=b; a=b", "Content-Encoding: gzip", "Accept: */*;q=9"),
]


def serve(case: Case) -> None:
    """One server and some hundred requests."""
    case.row = "clients: any requests"
    settings = ServerSettings(port=0, request_seconds=1.0, runs_folder=case.made / "runs")
    case.num_faults = 100
    with running(case.made / "runs" / "base", settings) as port:
        before = ask(port, PROBE)
        for _ in range(case.num_faults):
            check_answer(send(port, make_request(case.random), case.random))
        for header in ("Origin: http://evil.example", "Host: evil.example"):
            answer = send(port, request_bytes("POST /v1/completions", PROBE, [header]), case.random)
            if answer and not answer.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400")):
                raise Lost(f"{header} was let in: {answer[:50]!r}")
        if ask(port, PROBE) != before:
            raise Lost("the same prompt and seed have another answer than before")


def forge(case: Case) -> None:
    """A client under other names: the limits of one client hold for all of them."""
    case.row = "clients: forged addresses"
    settings = ServerSettings(port=0, max_rows=4, max_queue=4, max_client_rows=1)
    body = {"prompt": "Cat", "max_tokens": 4_000, "temperature": 0}
    with running(case.made / "runs" / "base", settings) as port, contextlib.ExitStack() as stack:
        clients, header = [], case.random.choice(("X-Forwarded-For", "Forwarded", "X-Real-IP"))
        names = [f"10.0.{number}.{case.random.randrange(256)}" for number in range(8)]
        case.num_faults = len(names)
        if header == "Forwarded":
            names = [f"for={name}" for name in names]
        for name in names:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), _PATIENCE))
            client.sendall(request_bytes("POST /v1/completions", body, [f"{header}: {name}"]))
            clients.append(client)
        statuses = [client.recv(12)[9:] for client in clients]
        if statuses.count(b"200") + statuses.count(b"429") != len(names):
            raise Lost(f"the answers were {statuses}")
        if statuses.count(b"200") > settings.client_held:
            raise Lost(f"{header} let one client have {statuses.count(b'200')} places")


@contextlib.contextmanager
def running(run: Path, settings: ServerSettings) -> Iterator[int]:
    """A server in a thread of this process; gives its port."""
    is_ready, listener = threading.Event(), open_socket(settings)
    model = LanguageModel.load(run, device="cpu")
    server: Server = make_server({"base": model}, settings, is_ready.set)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        if not is_ready.wait(_PATIENCE):
            raise Lost("the server never answered")
        yield listener.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        thread.join(_PATIENCE)


def request_bytes(first: str, body: Any = None, headers: Any = ()) -> bytes:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{first} HTTP/1.1", "Host: 127.0.0.1", *headers]
    lines += [f"Content-Length: {len(data)}", "Content-Type: application/json"] if data else []
    return (
        "\r\n".join([*lines, "Connection: close"]).encode("latin-1", "replace") + b"\r\n\r\n" + data
    )


def make_request(rng: random.Random) -> bytes:
    """One that could be sound, changed in one way or several."""
    path, value = rng.choice(_BODIES)
    body = json.dumps(value).encode()
    method = rng.choice(("POST", "POST", "POST", "GET", "HEAD", "OPTIONS", "DELETE", "PRI", "é"))
    if rng.random() < 0.7:
        body = mutate(body, rng)
    if rng.random() < 0.3:
        path = rng.choice(_PATHS)
    headers = rng.sample(_HEADERS, rng.choice((0, 0, 1, 2)))
    whole = request_bytes(f"{method} {path}", None if method == "GET" else body, headers)
    return mutate(whole, rng) if rng.random() < 0.2 else whole


def send(port: int, data: bytes, rng: random.Random) -> bytes:
    """All that the server says until it closes the connection."""
    answer, begin = b"", time.monotonic()
    connection = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE)
    # A server that has refused does not read the rest.
    with connection as client, contextlib.suppress(ConnectionError):
        middle = rng.randrange(len(data) + 1)
        client.sendall(data[:middle])
        if rng.random() < 0.1:
            client.shutdown(socket.SHUT_WR)
        else:
            client.sendall(data[middle:])
        while part := client.recv(65_536):
            answer += part
    if time.monotonic() - begin > _PATIENCE:
        raise Lost("an answer took a minute")
    return answer


def check_answer(answer: bytes) -> None:
    """Nothing, where the request broke off; else no failure of ours, and errors in JSON."""
    if not answer:
        return
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head[9:12]
    if not answer.startswith(b"HTTP/1.") or status in _SERVER_ERRORS:
        raise Lost(f"the answer was {answer[:200]!r}")
    if b"Traceback" in body or b"groundup/" in body:
        raise Lost(f"the answer shows our insides: {body[:300]!r}")
    if status >= b"400" and b"application/json" in head and not head.startswith(b"HTTP/1.1 100"):
        with contextlib.suppress(ValueError):
            message = json.loads(body)["error"]["message"]
            if not 5 < len(message) < 5_000:
                raise Lost(f"no sentence but {message[:100]!r}")


def ask(port: int, body: Any) -> str:
    answer = send(port, request_bytes("POST /v1/completions", body), random.Random(3))
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"])
