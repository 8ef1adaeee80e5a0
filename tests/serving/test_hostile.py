"""Malicious and disconnected clients: the server keeps answering the others."""

import contextlib
import copy
import json
import re
import resource
import socket
import time
from typing import Any

import pytest
import torch

from groundup.generation import LanguageModel
from groundup.generation.engine import Engine
from groundup.serving import connections
from groundup.serving.completions import _Running

from .conftest import LONG, wait_for

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def counted(running: Any, name: str) -> int:
    found = running.get("/metrics").text.partition(f'\ngroundup_{name}{{model="tiny"}} ')[2]
    return int(float(found.split()[0]))


def request_of(body: Any, *headers: str) -> bytes:
    """The bytes of a completion request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"content-length: {len(data)}", *headers]
    return HEAD + "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def send_request(running: Any, body: Any, *headers: str) -> socket.socket:
    """A connection with a request sent and nothing read yet."""
    client: socket.socket = running.connect()
    client.sendall(request_of(body, *headers))
    return client


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnected_client_frees_its_row(
    start: Any, long_model: LanguageModel, stream: bool
) -> None:
    with start(long_model, max_rows=1, max_queue=1) as running:
        with send_request(running, {**LONG, "stream": stream}) as client:
            wait_for(lambda: running.scheduler.num_running == 1)
            if stream:
                assert client.recv(20).startswith(b"HTTP/1.1 200")
            # So does a client that disconnects while queued.
            with send_request(running, LONG):
                wait_for(lambda: running.scheduler.num_waiting == 1)
            wait_for(lambda: running.scheduler.num_waiting == 0)
        running.wait_until_idle()
        assert 0 < counted(running, "generated_tokens_total") < 4096
        assert counted(running, "cancelled_texts_total") == 1
        # So does a stop string, which the engine does not check.
        text = running.complete({**LONG, "max_tokens": 30}).json()["choices"][0]["text"]
        answer = running.complete({**LONG, "stop": text[5:8]}).json()["choices"][0]
        assert answer["text"] == text[: text.index(text[5:8])]
        running.wait_until_idle()
        assert counted(running, "cancelled_texts_total") == 2


def test_a_full_queue_answers_429_with_retry_after(start: Any, long_model: LanguageModel) -> None:
    with start(long_model, max_rows=1, max_queue=1) as running:
        waiting = [send_request(running, LONG) for _ in range(2)]
        wait_for(lambda: running.scheduler.num_running + running.scheduler.num_waiting == 2)
        for stream in (True, False):
            answer = running.complete({"prompt": "a", "stream": stream})
            assert answer.status_code == 429
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            error = answer.json()["error"]
            assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
        # A request that can never fit is not 429.
        assert running.complete({"prompt": "a", "n": 3}).status_code == 400
        for client in waiting:
            client.close()


def test_a_body_with_a_too_large_content_length_is_not_read(running: Any) -> None:
    with running.connect() as client:
        # No byte of the body is sent: the response does not wait for it.
        client.sendall(HEAD + b"content-length: 100000000\r\n\r\n")
        answer = client.recv(65536).lower()
    assert answer.startswith(b"http/1.1 413 ") and b"\r\nconnection: close\r\n" in answer
    # A chunked body of a hundred megabytes is not read to its end either.
    num_sent, piece = 0, b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
    with running.connect() as client:
        client.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        with pytest.raises(OSError):
            while num_sent < 100_000_000:
                client.sendall(piece)
                num_sent += 0x10000
    assert num_sent < 50_000_000
    assert running.is_well()


def test_a_thousand_slow_clients_do_not_lock_out_others(
    start: Any, long_model: LanguageModel
) -> None:
    with start(long_model, max_connections=100) as running, contextlib.ExitStack() as clients:
        # The server has raised the limit; this process has both ends of each connection.
        if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2400:
            pytest.skip("this system does not let a process open 2,400 files")
        beginnings = [b"", b"G", b"GET /health HTTP/1.1\r\nhost: loc", request_of("{" * 50)[:-49]]
        for number in range(1000):
            client = clients.enter_context(running.connect())
            client.sendall(beginnings[number % len(beginnings)])
            if number % 200 == 199:
                assert running.is_well()
        assert len(running.connections) <= 100
        assert running.get("/health").json()["status"] == "ok"


@pytest.mark.slow
def test_a_request_sent_too_slowly_times_out(
    start: Any, long_model: LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    with start(long_model, request_seconds=0.3) as running:
        for beginning in (b"GET / HT", request_of("a" * 9)[:-9]):
            answer = running.exchange(beginning)
            assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
            assert b"request_timeout" in answer and b"\r\nx-frame-options: DENY\r\n" in answer
        # Sending a byte now and then does not keep a connection open.
        with running.connect() as client:
            client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
            client.sendall(b"G")
            assert b"HTTP/1.1 408" in b"".join(iter(lambda: client.recv(1000), b""))
        # A complete request may take any time to answer.
        answer = running.complete({**LONG, "max_tokens": 800})
        assert answer.json()["usage"]["completion_tokens"] == 800
    # Clients that leave are not the server's failures.
    assert "failed" not in caplog.text


def test_a_request_not_yet_read_by_the_server_does_not_time_out(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(request_seconds=0.1) as running:
        monkeypatch.setattr(connections, "_MAX_READS", 0)
        with send_request(running, {"prompt": "a", "max_tokens": 2}) as client:
            time.sleep(0.25)
            monkeypatch.setattr(connections, "_MAX_READS", 4)
            assert client.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
def test_a_client_that_stops_reading_is_disconnected(start: Any, long_model: LanguageModel) -> None:
    with (
        start(long_model, stalled_write_seconds=0.3, max_client_rows=8) as running,
        socket.socket() as client,
    ):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", running.port))
        client.sendall(request_of({**LONG, "stream": True, "logprobs": 20, "n": 8}))
        wait_for(lambda: running.scheduler.num_running == 8)
        wait_for(lambda: not running.connections)
        running.wait_until_idle()
        assert counted(running, "cancelled_texts_total") == 8


def test_a_body_with_contradicting_lengths_is_rejected_and_the_connection_closed(
    running: Any,
) -> None:
    body = b"0\r\n\r\nGET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    lengths = b"content-length: %d\r\ntransfer-encoding: chunked\r\n\r\n" % len(body)
    answer = running.exchange(HEAD + lengths + body)
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1
    assert b"\r\nconnection: close\r\n" in answer.lower()
    broken = running.exchange(HEAD + b"transfer-encoding: chunked\r\n\r\n-1\r\n")
    assert b"invalid_http" in broken and b"x-frame-options" in broken
    assert running.is_well()


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[first : first + size] for first in range(0, len(body), size)]
    parts = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""]]
    return HEAD + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n" + b"".join(parts)


def test_a_body_in_tiny_chunks_is_not_read_to_its_end(running: Any) -> None:
    short, long = b'{"prompt": "a"}', b'{"prompt": "%s"}' % (b"a" * 50_000)
    assert running.exchange(chunked(short, 1)).startswith(b"HTTP/1.1 200")
    answer = running.exchange(chunked(long, 100))
    assert answer.startswith(b"HTTP/1.1 400") and b"context of 64" in answer
    assert b"invalid_http" in running.exchange(chunked(long[:2000], 1))


def test_each_key_is_a_separate_client(start: Any, long_model: LanguageModel) -> None:
    """tests/serving/test_scheduler.py tests the limits of one client."""
    keys = ["the-key-of-the-first-client", "the-key-of-the-second-client"]
    first, second = (f"authorization: Bearer {key}" for key in keys)
    # One client gets at most 7 rows.
    with (
        start(long_model, max_rows=8, max_queue=0, tokens=keys) as running,
        send_request(running, {**LONG, "n": 7}, first),
    ):
        wait_for(lambda: running.scheduler.num_running == 7)
        assert b"429" in running.exchange(request_of(LONG, first, "connection: close"))[:15]
        with send_request(running, LONG, second):
            wait_for(lambda: running.scheduler.num_running == 8)


def test_a_connection_stays_usable_after_errors_and_streams(running: Any) -> None:
    short = {"prompt": "a", "max_tokens": 3, "stream": True}
    unknown = b"GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n"
    requests = [request_of(b"{bad"), request_of(short), unknown]
    answer = running.exchange(b"".join(requests) + request_of(short, "connection: close"))
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"400", b"200", b"404", b"200"]
    assert answer.count(b"data: [DONE]\n\n\r\n0\r\n\r\n") == 2


def test_internal_errors_are_only_logged(
    start: Any,
    long_model: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    step = Engine.step

    def break_once(*_: Any) -> Any:
        monkeypatch.setattr(Engine, "step", step)
        raise RuntimeError("secret of the house")

    with start(long_model) as running:
        for stream in (True, False):
            monkeypatch.setattr(Engine, "step", break_once)
            answer = running.complete({"prompt": "a", "stream": stream})
            assert answer.status_code == 500
            assert answer.json()["error"]["code"] == "internal_error"
            assert "secret" not in answer.text
            assert running.is_well()
        for owner, name in ((Engine, "step"), (_Running, "_choice")):
            with running.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as answer:
                events = answer.iter_lines()
                assert "text_completion" in next(events)
                with monkeypatch.context() as patch:
                    patch.setattr(owner, name, break_once)
                    last = [line for line in events if line][-1]
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "internal_error"
        assert running.is_well()
    assert "secret of the house" in caplog.text


def test_a_sequence_with_nan_logits_fails_alone(
    start: Any, long_model: LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = LanguageModel(copy.deepcopy(long_model.model), long_model.tokenizer)
    with torch.no_grad():
        damaged.model.token_embedding.weight[long_model.tokenizer.encode("雨")[-1]] = torch.nan
    with start(damaged, max_rows=4) as running:
        with running.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as other:
            events = other.iter_lines()
            assert "text_completion" in next(events)
            for stream in (True, False):
                answer = running.complete({"prompt": "雨", "n": 2, "stream": stream, "logprobs": 2})
                assert answer.status_code == 500 and "finite" not in answer.text
            assert "text_completion" in next(line for line in events if line)
            assert counted(running, "engine_failures_total") == 0
        running.wait_until_idle()
        assert running.is_well()
    assert "not finite" in caplog.text
