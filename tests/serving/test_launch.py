"""`groundup serve` as a process with real signals, and errors of its command line."""

import asyncio
import operator
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from groundup.cli.serve import Arguments, run
from groundup.errors import ConfigError
from groundup.generation import LanguageModel
from groundup.serving import launch as launching
from groundup.serving.launch import raise_file_limit
from groundup.serving.models import Source
from groundup.serving.settings import TOKEN_VARIABLE, ServerSettings, read_tokens

from .conftest import LONG, PATIENCE_SECONDS, TOKEN, wait_for

SHORTER = LONG | {"max_tokens": 800}


@pytest.fixture(scope="module")
def run_folder(long_model: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "tiny"
    long_model.save(folder)
    return folder


class Process:
    """A server in a separate process; `url` is what it printed."""

    def __init__(self, folder: Path, *flags: str, **environment: str) -> None:
        command = [sys.executable, "-m", "groundup", "serve", str(folder), "--port", "0", *flags]
        self.process = subprocess.Popen(
            [*command, "--device", "cpu"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.url = self.line.split()[-1] if self.line else ""
        self.signal = self.process.send_signal

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", verify=False, timeout=PATIENCE_SECONDS)

    def complete(self, body: Any, **headers: str) -> httpx.Response:
        options: Any = {"verify": False, "timeout": PATIENCE_SECONDS, "headers": headers}
        return httpx.post(f"{self.url}/v1/completions", json=body, **options)

    def wait_for_load(self, num_requests: int) -> None:
        load = operator.itemgetter("running", "waiting")
        wait_for(lambda: sum(load(self.get("/health").json())) == num_requests)

    def end(self) -> tuple[int, str]:
        _, stderr = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, stderr


@pytest.fixture
def launch(run_folder: Path) -> Iterator[Callable[..., Process]]:
    launched: list[Process] = []

    def start(*flags: str, **environment: str) -> Process:
        launched.append(Process(run_folder, *flags, **environment))
        return launched[-1]

    yield start
    for server in launched:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


def test_a_signal_lets_running_and_queued_requests_finish_and_refuses_new_ones(
    launch: Callable[..., Process],
) -> None:
    server = launch("--max-rows", "1", "--drain-seconds", str(PATIENCE_SECONDS))
    assert server.line == f"serving tiny, step 7, at {server.url}\n"
    host, port = server.url.removeprefix("http://").split(":")
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(server.complete, SHORTER) for _ in range(3)]
        server.wait_for_load(3)
        # Idle connections and incomplete requests do not delay the shutdown.
        idle, slow = (socket.create_connection((host, int(port))) for _ in range(2))
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n")
        server.signal(signal.SIGTERM)
        refused = None
        while refused is None or refused.status_code == 200:
            refused = server.complete({"prompt": "a", "max_tokens": 1})
    assert refused.status_code == 503 and "stopping" in refused.text
    assert int(refused.headers["retry-after"]) > 0
    usages = [answer.result().json()["usage"]["completion_tokens"] for answer in answers]
    assert usages == [800] * 3
    status, stderr = server.end()
    assert status == 0
    assert stderr.startswith("warning: SIGTERM: ")
    assert len(stderr.splitlines()) == 1
    idle.close()
    slow.close()


def test_a_signal_ends_the_server_in_time_whatever_is_running(
    launch: Callable[..., Process],
) -> None:
    server = launch("--max-rows", "4", "--drain-seconds", "3")
    with ThreadPoolExecutor(10) as pool:
        bodies = [{**LONG, "n": 16, "stream": not n} for n in range(10)]
        asked = [pool.submit(server.complete, body) for body in bodies]
        server.wait_for_load(160)
        server.signal(signal.SIGTERM)
    answers = [one.result() for one in asked]
    status, stderr = server.end()
    assert status == 0, stderr
    assert "160 running or waiting, with 3 s to finish" in stderr and "cancelled" in stderr
    # One stream had started and ends with an error event; the others get an error status.
    assert sorted(answer.status_code for answer in answers)[1:] == [503] * 9
    assert all("the server stopped" in answer.text for answer in answers)


def test_a_second_signal_ends_at_once(launch: Callable[..., Process]) -> None:
    server = launch("--max-rows", "1", **{TOKEN_VARIABLE: TOKEN})
    assert server.get("/v1/models").status_code == 401
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.complete, LONG, authorization=f"Bearer {TOKEN}")
        server.wait_for_load(1)
        server.signal(signal.SIGINT)
        wait_for(lambda: server.get("/health").json()["status"] == "stopping")
        server.signal(signal.SIGINT)
        status, stderr = server.end()
    assert isinstance(asked.exception(), httpx.TransportError)
    assert status == -signal.SIGINT
    assert TOKEN not in stderr and "Traceback" not in stderr


def test_a_port_in_use_is_reported_with_advice(run_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"{port}: .* in use"):
            run(Arguments(runs=(str(run_folder),), port=port))


def test_a_token_file_overrides_the_environment_and_public_hosts_need_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert read_tokens(None) == ()
    monkeypatch.setenv(TOKEN_VARIABLE, f" {TOKEN}\n")
    assert [token.get_secret_value() for token in read_tokens(None)] == [TOKEN]
    others = ["another-token-of-this-house", "and-one-for-the-neighbours"]
    (tmp_path / "token").write_text("\n".join(others) + "\n", encoding="utf-8")
    assert [token.get_secret_value() for token in read_tokens(tmp_path / "token")] == others
    for text in ("", "short", "has a space in its midst", "ümläute-ümläute-ümläute"):
        (tmp_path / "token").write_text(text + "\n", encoding="utf-8")
        with pytest.raises(ConfigError, match="at least 16") as caught:
            read_tokens(tmp_path / "token")
        assert not text or text not in str(caught.value)


def test_connections_stay_below_the_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
        raised = raise_file_limit(10**9)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, 65536) == raised + 128
        assert raise_file_limit(100) == 100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_signal_sets_an_alarm_that_ends_a_hung_process(
    language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *given: None)
    settings = ServerSettings(port=0, max_rows=1, drain_seconds=50)
    server = launching.make_server({"tiny": Source(lambda: language_model)}, settings)

    async def end() -> None:
        server.handle_exit(signal.SIGTERM, None)

    try:
        asyncio.run(end())
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 50
        assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
