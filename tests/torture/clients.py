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
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

from files import CORPUS
from harness import FORK, Case, Child, Lost, memory_of
from mutations import mutate

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
    requests = [make_request(case.random) for _ in range(50 if case.quick else 250)]
    # The one that once held everybody up is always among them.
    requests[0] = post(b'{"prompt": ["a", %s]}' % b", ".join([b"1"] * 300_000)), True
    case.num_faults = len(requests)
    words = ["serve", str(case.made / "runs" / "whole"), "--port", "0", "--device", "cpu"]
    child = Child(case.place, words)
    try:
        port = wait_for_port(child)
        expected = ask_honestly(port)
        before = memory_of(child.pid, "VmRSS")
        with watched(port) as stalls:
            time.sleep(0.5)
        case.note("s longest stall of /health before", stalls[0])
        with watched(port) as stalls:
            complaints = let_loose(port, requests, expected)
        case.note("s longest stall of /health", stalls[0])
        growth = memory_of(child.pid, "VmHWM") - before
        case.note("MB grown", growth / 2**20)
        if complaints:
            raise Lost("; ".join(sorted(complaints)[:5]))
        if stalls[0] > MAX_STALL_SECONDS[case.quick]:
            raise Lost(f"/health stalled for {stalls[0]:.2f} s")
        largest = max(len(data) for data, _ in requests)
        if growth > MAX_GROWTH_BYTES + MAX_GROWTH_PER_BYTE * NUM_CLIENTS * largest:
            raise Lost(f"the server grew by {growth / 2**20:.0f} MB")
        if ask_honestly(port) != expected:
            raise Lost("the same request gets another text than before")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGTERM)
        ended = child.wait(PATIENCE_SECONDS)
    ended.check([0])


def make_request(rng: random.Random) -> tuple[bytes, bool]:
    """The bytes that a client sends, and whether they are a whole request, which has an answer."""
    bodies = (CORPUS / "bodies.jsonl").read_bytes().splitlines()
    match rng.randrange(10):
        case 0 | 1 | 2 | 3:
            return post(mutate(rng.choice(bodies), rng)), True
        case 4:
            element = rng.choice(["1", "null", "[]", "{}", '"a"', "1.5", "[1]", "true"])
            size = rng.choice((10_000, 100_000, 990_000))
            listed = f'["a", {", ".join([element] * (size // (len(element) + 2)))}]'
            name = rng.choice(["prompt", "stop", "text", "logit_bias"])
            return post(f'{{"{name}": {listed}}}'.encode()), True
        case 5:
            greedy = {"prompt": "a", "n": 16, "max_tokens": 4096, "past_context": "slide"}
            return post(json.dumps({**greedy, "stream": rng.random() < 0.5}).encode()), False
        case 6:
            whole = post(rng.choice(bodies))
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
            tails = [
                b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1",
                b"Content-Length: 99999999999999999999\r\n\r\n{}",
                b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n",
                b"X: " + b"y" * 100_000 + b"\r\n\r\n",
                b"Content-Length: -1\r\n\r\n",
            ]
            return head + rng.choice(tails), False


def post(body: bytes) -> bytes:
    path = "/api/tokenize" if b'"text"' in body else "/v1/completions"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def let_loose(port: int, requests: list[tuple[bytes, bool]], expected: str) -> set[str]:
    """What hostile clients, and an honest one beside them, have to complain of."""
    complaints: set[str] = set()
    is_over = threading.Event()

    def be_honest() -> None:
        while not is_over.wait(0.05):
            try:
                if ask_honestly(port) not in (expected, "busy"):
                    complaints.add("an honest client got another text")
            except (OSError, ValueError, KeyError, Lost) as error:
                complaints.add(f"an honest client got no answer: {error}")

    honest = threading.Thread(target=be_honest)
    honest.start()
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        complaints.update(filter(None, pool.map(lambda request: send(port, *request), requests)))
    is_over.set()
    honest.join()
    return complaints


def send(port: int, data: bytes, is_whole: bool) -> str | None:
    """Send, read an answer where there must be one, leave; what was wrong with it."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as client:
        try:
            client.sendall(data)
            if not is_whole:
                # A client that sends no end, or reads none, is away soon.
                client.settimeout(0.2)
            status = status_of(client.recv(64))
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


def status_of(head: bytes) -> int:
    found = re.match(rb"HTTP/1\.1 (\d{3})", head)
    return int(found[1]) if found else 0


def ask_honestly(port: int) -> str:
    """The text of an honest client, or "busy"."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as client:
        client.sendall(post(json.dumps(HONEST).encode()))
        answer = b""
        while piece := client.recv(65536):
            answer += piece
    status = status_of(answer)
    if status in (429, 503):
        return "busy"
    if status != 200:
        raise Lost(f"status {status} for an honest client")
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"])


@contextlib.contextmanager
def watched(port: int) -> Iterator[list[float]]:
    """How long `/health` took at most, told in the list once the block has ended."""
    here, there = FORK.Pipe()
    process = FORK.Process(target=_watch, args=(port, there))
    process.start()
    stalls: list[float] = []
    try:
        yield stalls
    finally:
        here.send("stop")
        stalls.append(here.recv())
        process.join()


def _watch(port: int, told: Connection) -> None:
    longest = 0.0
    with contextlib.suppress(OSError):
        while not told.poll(0.01):
            begin = time.monotonic()
            with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as client:
                client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                client.recv(1024)
            longest = max(longest, time.monotonic() - begin)
    told.send(longest)


def wait_for_port(child: Child) -> int:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        child.listen()
        if found := re.search(rb":(\d+)\n", child.said[0]):
            return int(found[1])
        time.sleep(0.01)
    raise Lost("the server never said where it is")
