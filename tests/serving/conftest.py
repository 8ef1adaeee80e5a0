"""A tiny model with random weights, and servers of it on real ports."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from groundup.config import load_settings, save_yaml
from groundup.files import write_json_atomic
from groundup.generation import LanguageModel
from groundup.model import ModelConfig, TransformerLM
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.serving.launch import Server, address_to_open, make_server, open_socket
from groundup.serving.models import Source
from groundup.serving.settings import ServerSettings
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.reference import train_bpe_reference

END = "<|endoftext|>"
TEXT = "the cat sat on the mat. the café is open, and 雨 falls on it — naïve 🙂 cats. " * 3

# Only reached by a failing test.
PATIENCE_SECONDS = 120.0
TOKEN = "sesame-open-the-door-0123456789"
# The tiny model's most likely ids never end a document, so this runs to its limit.
LONG: dict[str, Any] = {"prompt": "a", "max_tokens": 4096, "temperature": 0}


def wait_for(condition: Callable[[], Any], pause_seconds: float = 0.01) -> Any:
    """Wait for a condition; only a failing test reaches the limit."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(pause_seconds)
    raise AssertionError("it never came true")


class Running:
    """A running server at `url`."""

    def __init__(self, url: str, server: Server) -> None:
        self.url = url
        self.port = int(url.rpartition(":")[2])
        self.models = server.models
        self.scheduler = server.models.schedulers[0]
        self.connections = server.server_state.connections
        # Loading the CA certificates takes longer than a test.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(
            base_url=url, verify=False, timeout=PATIENCE_SECONDS, limits=limits
        )
        self.get = self._client.get
        self.post = self._client.post
        self.request = self._client.request
        self.stream = self._client.stream

    def complete(self, body: Any, path: str = "/v1/completions") -> httpx.Response:
        """The response to a completion request; a body in bytes may be invalid JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.post(path, content=content, headers={"content-type": "application/json"})

    def is_well(self) -> bool:
        body = {"prompt": "the cat", "max_tokens": 5, "temperature": 0}
        return self.complete(body).status_code == 200

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS)

    def exchange(self, data: bytes) -> bytes:
        """Send raw bytes, and read until the server closes the connection."""
        with self.connect() as client:
            client.sendall(data)
            answer = b""
            # If the server has not read all of the request, closing resets the connection.
            with contextlib.suppress(ConnectionResetError):
                while part := client.recv(65536):
                    answer += part
        return answer

    def close(self) -> None:
        self._client.close()

    def wait_until_idle(self) -> None:
        wait_for(lambda: not (self.scheduler.num_running or self.scheduler.num_waiting))


def make_run(runs_folder: Path, name: str = "one", year: int = 2026, **changes: Any) -> RunFolder:
    """A run folder as written by `train` before the first step."""
    folder = RunFolder(runs_folder / name)
    folder.path.mkdir()
    environment = {"device": "cpu", "started": f"{year}-01-02T03:04:05+00:00"}
    write_json_atomic(folder.environment_file, environment)
    save_yaml(folder.config_file, load_settings(RunConfig, None, {"num_steps": 100, **changes}))
    return folder


@pytest.fixture(autouse=True)
def always_on_one_thread(one_thread: None) -> None:
    pass


@pytest.fixture(scope="session")
def language_model() -> LanguageModel:
    """Generates noise, including partial characters, which a server must handle."""
    vocab, merges = train_bpe_reference(TEXT, 290, [END])
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=304, context_length=64, d_model=16, num_layers=1, num_heads=2, d_ff=32
    )
    model = TransformerLM.from_config(config)
    # Far from uniform probabilities, so that choices differ.
    with torch.no_grad():
        model.output_weight.mul_(8)
    return LanguageModel(model.eval(), Tokenizer(vocab, merges, [END]), step=7)


@pytest.fixture(scope="session")
def long_model(language_model: LanguageModel) -> LanguageModel:
    """The same model with a long context."""
    config = language_model.model.config.model_copy(update={"context_length": 5_000})
    model = TransformerLM.from_config(config)
    model.load_state_dict(language_model.model.state_dict())
    return LanguageModel(model.eval(), language_model.tokenizer, step=7)


@pytest.fixture(scope="session")
def start(language_model: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`with start(max_rows=2) as running:` serves the tiny or a given model with these settings."""
    runs_folder = tmp_path_factory.mktemp("runs")

    @contextlib.contextmanager
    def serving(
        served: LanguageModel = language_model, more: Any = None, **values: Any
    ) -> Iterator[Running]:
        defaults = {"port": 0, "runs_folder": runs_folder, "max_rows": 8}
        settings = ServerSettings.model_validate({**defaults, **values})
        started = threading.Event()
        with open_socket(settings) as listener:
            sources = {"tiny": Source(lambda: served), **(more or {})}
            server = make_server(sources, settings, lambda first: started.set())
            thread = threading.Thread(target=server.run, args=([listener],))
            thread.start()
            try:
                assert started.wait(PATIENCE_SECONDS), "the server did not start"
                running = Running(address_to_open(listener), server)
                yield running
                running.close()
            finally:
                server.should_exit = True
                thread.join(PATIENCE_SECONDS)
                assert not thread.is_alive(), "the server did not end"

    return serving


@pytest.fixture(scope="session")
def running(start: Any) -> Iterator[Running]:
    """One server for all tests that do not change its state."""
    with start() as server:
        yield server


@pytest.fixture(scope="session")
def chat_model(language_model: LanguageModel) -> LanguageModel:
    """The same model with a chat template."""
    return LanguageModel(language_model.model, language_model.tokenizer.with_chat(), step=7)


@pytest.fixture(scope="session")
def chatting(start: Any, chat_model: LanguageModel) -> Iterator[Running]:
    """One server of the chat model."""
    with start(chat_model) as server:
        yield server
