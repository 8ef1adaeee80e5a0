"""Hostile clients on a real server: every request is answered, and the others notice nothing.

While they are at it `/health` is watched from another process, an honest client asks for the same
text again and again, and the server's memory is looked at.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from artefacts import Artefacts
from fuzz import CORPUS, mutate
from harness import Case, Child, Lost, own_memory

NUM_CLIENTS = 8
PATIENCE_SECONDS = 60.0
# What the guide says is shown in the table; this is what a busy machine may make of it.
MAX_STALL_SECONDS = {False: 1.0, True: 5.0}
MAX_GROWTH_BYTES = 64 * 2**20
MAX_GROWTH_PER_BYTE = 20
HONEST = {"prompt": "Once", "max_tokens": 8, "temperature": 1, "seed": 3}


def attack(case: Case) -> None:
    """One server, and a crowd for it."""
    case.row = "hostile clients"
    requests = [make_request(case.random) for _ in range(80 if case.quick else 250)]
    # The one that once held everybody up is always among them.
    requests[0] = _post(b'{"prompt": ["a", %s]}' % b", ".join([b"1"] * 300_000)), True
    case.num_faults = len(requests)
    run = Artefacts(case.work).run
    child = Child(case.place, ["serve", str(run), "--port", "0", "--device", "cpu"])
    try:
        port = _wait_for_port(case)
        expected = _ask_honestly(port)
        before = own_memory("VmRSS", child.pid)
        with _watched(port) as stalls:
            time.sleep(0.5)
        case.note("s longest stall of /health before", max(stalls))
        complaints: list[str] = []
        with _watched(port) as stalls:
            _let_loose(port, requests, expected, complaints)
        case.note("s longest stall of /health", max(stalls))
        growth = own_memory("VmHWM", child.pid) - before
        case.note("MB grown", growth / 2**20)
        if complaints:
            raise Lost("; ".join(sorted(set(complaints))[:5]))
        if max(stalls) > MAX_STALL_SECONDS[case.quick]:
            raise Lost(f"/health stalled for {max(stalls):.2f} s")
        largest = max(len(data) for data, _ in requests)
        if growth > MAX_GROWTH_BYTES + MAX_GROWTH_PER_BYTE * NUM_CLIENTS * largest:
            raise Lost(f"the server grew by {growth / 2**20:.0f} MB")
        if _ask_honestly(port) != expected:
            raise Lost("the same request gets another text than before")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGTERM)
        ended = child.wait(PATIENCE_SECONDS)
    ended.check(expect=[0])


def make_request(rng: random.Random) -> tuple[bytes, bool]:
    """The bytes that a client sends, and whether they are a whole request, which has an answer."""
    bodies = (CORPUS / "bodies.jsonl").read_bytes().splitlines()
    match rng.randrange(10):
        case 0 | 1 | 2 | 3:
            return _post(mutate(rng.choice(bodies), rng)), True
        case 4:
            element = rng.choice(["1", "null", "[]", "{}", '"a"', "1.5", "[1]", "true"])
            size = rng.choice((10_000, 100_000, 990_000))
            listed = f'["a", {", ".join([element] * (size // (len(element) + 2)))}]'
            name = rng.choice(["prompt", "stop", "text", "logit_bias"])
            return _post(f'{{"{name}": {listed}}}'.encode()), True
        case 5:
            greedy = {"prompt": "a", "n": 16, "max_tokens": 4096, "past_context": "slide"}
            return _post(json.dumps({**greedy, "stream": rng.random() < 0.5}).encode()), False
        case 6:
            whole = _post(rng.choice(bodies))
            return whole[: rng.randrange(len(whole))], False
        case 7:
            return rng.randbytes(rng.choice((1, 100, 70_000))), False
        case 8:
            path = rng.choice(
                ["/api/runs/..%2f..%2fetc%2fpasswd", "/static/../../x", "/%00", "/" + "a" * 9000]
            )
            return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), len(path) < 9000
        case _:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            tail = rng.choice(
                [
                    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1",
                    b"Content-Length: 99999999999999999999\r\n\r\n{}",
                    b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n",
                    b"X: " + b"y" * 100_000 + b"\r\n\r\n",
                    b"Content-Length: -1\r\n\r\n",
                ]
            )
            return head + tail, False


def _post(body: bytes) -> bytes:
    path = "/api/tokenize" if b'"text"' in body else "/v1/completions"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def _let_loose(
    port: int, requests: list[tuple[bytes, bool]], expected: str, complaints: list[str]
) -> None:
    waiting = iter(requests)
    lock = threading.Lock()
    is_over = threading.Event()

    def be_hostile() -> None:
        while True:
            with lock:
                request = next(waiting, None)
            if request is None:
                return
            if complaint := _send(port, *request):
                complaints.append(complaint)

    def be_honest() -> None:
        while not is_over.wait(0.05):
            try:
                if _ask_honestly(port) not in (expected, "busy"):
                    complaints.append("an honest client got another text")
            except (OSError, ValueError, KeyError, Lost) as error:
                complaints.append(f"an honest client got no answer: {error}")

    threads = [threading.Thread(target=be_hostile) for _ in range(NUM_CLIENTS)]
    honest = threading.Thread(target=be_honest)
    for thread in (*threads, honest):
        thread.start()
    for thread in threads:
        thread.join()
    is_over.set()
    honest.join()


def _send(port: int, data: bytes, is_whole: bool) -> str | None:
    """Send, read an answer where there must be one, leave; what was wrong with it."""
    status = 0
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as client:
        try:
            client.sendall(data)
            if not is_whole:
                # A client that sends no end, or reads none, is away soon.
                client.settimeout(0.2)
            status = _status(client.recv(64))
            while is_whole and client.recv(65536):
                pass
        except TimeoutError:
            return "a whole request had no answer" if is_whole else None
        except OSError:
            # A body that is too large is refused before it has arrived.
            return None
    if status >= 500 and status != 503:
        return f"status {status} for {data[:300]!r}"
    if is_whole and not status:
        return f"the connection ended without an answer to {data[:300]!r}"
    return None


def _status(head: bytes) -> int:
    found = re.match(rb"HTTP/1\.1 (\d{3})", head)
    return int(found[1]) if found else 0


def _ask_honestly(port: int) -> str:
    """The text of an honest client, or "busy"."""
    body = json.dumps(HONEST).encode()
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as client:
        client.sendall(_post(body))
        answer = b""
        while piece := client.recv(65536):
            answer += piece
    status = _status(answer)
    if status in (429, 503):
        return "busy"
    if status != 200:
        raise Lost(f"status {status} for an honest client")
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"])


@contextlib.contextmanager
def _watched(port: int) -> Iterator[list[float]]:
    """How long `/health` took at most, told in the list once the block has ended."""
    answers_in, answers_out = os.pipe()
    stop_in, stop_out = os.pipe()
    pid = os.fork()
    if pid == 0:
        longest = 0.0
        with contextlib.suppress(OSError):
            os.close(stop_out)
            while not select.select([stop_in], [], [], 0.01)[0]:
                begin = time.monotonic()
                with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as client:
                    client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    client.recv(1024)
                longest = max(longest, time.monotonic() - begin)
        os.write(answers_out, str(longest).encode())
        os._exit(0)
    os.close(answers_out)
    os.close(stop_in)
    stalls: list[float] = []
    try:
        yield stalls
    finally:
        os.close(stop_out)
        stalls.append(float(os.read(answers_in, 64) or 1e9))
        os.close(answers_in)
        os.waitpid(pid, 0)


def _wait_for_port(case: Case) -> int:
    out = Path(f"{case.place}.logs") / "out"
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if out.exists() and (found := re.search(r":(\d+)\n", out.read_text())):
            return int(found[1])
        time.sleep(0.01)
    raise Lost("the server never said where it is")
