"""A server under malicious clients: each gets a valid answer, and others are not affected.

Requests are random or mutated, and sent in pieces or cut off. Answers are never server errors, and
the same request has the same answer before and after.
"""

import contextlib
import json
import random
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness import Case, Lost
from mutations import FRAGMENTS, mutate

from groundup.generation import LanguageModel
from groundup.serving.launch import make_server, open_socket
from groundup.serving.models import Source
from groundup.serving.settings import ServerSettings

_PATIENCE = 60.0
_PROBE = {"prompt": "Cat", "max_tokens": 6, "temperature": 0, "seed": 1}


def serve(case: Case) -> None:
    """Send a hundred requests to a server, or requests of one client with forged addresses."""
    case.what = case.turn(("any requests", "forged addresses"))
    case.row, is_forged = f"clients: {case.what}", case.what == "forged addresses"
    settings = ServerSettings(port=0, request_seconds=1.0, runs_folder=case.made / "runs")
    if is_forged:
        settings = ServerSettings(port=0, max_rows=4, max_queue=4, max_client_rows=1)
    with running(case.made / "runs" / "base", settings) as port:
        case.counts["injected"] = (forge if is_forged else ask)(port, case.random, settings)


def ask(port: int, rng: random.Random, settings: ServerSettings) -> int:
    before = send(port, request("POST /v1/completions", _PROBE)).partition(b'"choices"')[2]
    for _ in range(100):
        check_answer(send(port, make_request(rng), rng))
    for header in ("Origin: http://evil.example", "Host: evil.example"):
        answer = send(port, request("POST /v1/completions", _PROBE, [header]))
        if not answer.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400")):
            raise Lost(f"{header} was let in: {answer[:50]!r}")
    after = send(port, request("POST /v1/completions", _PROBE)).partition(b'"choices"')[2]
    if not before or after != before:
        raise Lost("the same prompt and seed have another answer than before")
    return 102


def forge(port: int, rng: random.Random, settings: ServerSettings) -> int:
    """Check that the limits of a client apply to all addresses it claims."""
    header, body = rng.choice(("X-Forwarded-For: ", "Forwarded: for=", "X-Real-IP: ")), {**_PROBE}
    with contextlib.ExitStack() as stack:
        clients = [socket.create_connection(("127.0.0.1", port), _PATIENCE) for _ in range(8)]
        for number, client in enumerate(map(stack.enter_context, clients)):
            names = [f"{header}10.0.{number}.{rng.randrange(256)}"]
            client.sendall(request("POST /v1/completions", body | {"max_tokens": 4_000}, names))
        statuses = [client.recv(12)[9:] for client in clients]
    num_served = statuses.count(b"200")
    if num_served + statuses.count(b"429") < len(clients) or num_served > settings.client_held:
        raise Lost(f"{header} let one client have {num_served} places: {statuses}")
    return len(clients)


@contextlib.contextmanager
def running(run: Path, settings: ServerSettings) -> Iterator[int]:
    """Run a server in a thread; yields its port."""
    is_ready, listener = threading.Event(), open_socket(settings)
    models = {"base": Source(lambda: LanguageModel.load(run, device="cpu"))}
    server = make_server(models, settings, lambda *_: is_ready.set())
    threading.Thread(target=server.run, args=([listener],), daemon=True).start()
    if not is_ready.wait(_PATIENCE):
        raise Lost("the server never answered")
    yield listener.getsockname()[1]


def request(first: str, body: Any = b"", headers: Sequence[str] = ()) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{first} HTTP/1.1", "Host: 127.0.0.1", *headers]
    lines += [f"Content-Length: {len(data)}", "Content-Type: application/json"] if data else []
    head = "\r\n".join([*lines, "Connection: close\r\n\r\n"])
    return head.encode("latin-1", "replace") + data


def make_request(rng: random.Random) -> bytes:
    """Create a valid request, and change it in some way or several."""
    path, value = rng.choice(FRAGMENTS["bodies"])
    body = json.dumps(value).encode()
    method = rng.choice(("POST", "POST", "POST", "GET", "HEAD", "OPTIONS", "DELETE", "PRI", "é"))
    body = b"" if method == "GET" else mutate(body, rng) if rng.random() < 0.7 else body
    path = rng.choice(FRAGMENTS["paths"]) if rng.random() < 0.3 else path
    headers = rng.sample(FRAGMENTS["headers"], rng.choice((0, 0, 1, 2)))
    whole = request(f"{method} {path}", body, headers)
    return mutate(whole, rng) if rng.random() < 0.2 else whole


def send(port: int, data: bytes, rng: random.Random | None = None) -> bytes:
    """Return all data from the server until it closes. Some requests are randomly cut off."""
    answer, connection = b"", socket.create_connection(("127.0.0.1", port), _PATIENCE)
    middle = rng.randrange(len(data) + 1) if rng is not None else 0
    # A server that rejects a request does not read the rest.
    with connection as client, contextlib.suppress(ConnectionError):
        client.sendall(data[:middle])
        if rng is not None and rng.random() < 0.1:
            client.shutdown(socket.SHUT_WR)
        else:
            client.sendall(data[middle:])
        while part := client.recv(65_536):
            answer += part
    return answer


def check_answer(answer: bytes) -> None:
    """Check that an answer, if any, is neither a server error nor reveals internals."""
    status, body = answer[9:12], answer.partition(b"\r\n\r\n")[2]
    if answer and (not answer.startswith(b"HTTP/1.") or (status >= b"500" and status != b"503")):
        raise Lost(f"the answer was {answer[:200]!r}")
    if b"Traceback" in body or b"groundup/" in body:
        raise Lost(f"the answer shows our insides: {body[:300]!r}")
