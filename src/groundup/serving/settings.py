"""Settings of a server: where it listens, how much it takes on, who may use it."""

import os
import re
from pathlib import Path
from typing import Literal

import pydantic

from groundup.config import Settings
from groundup.errors import ConfigError

TOKEN_VARIABLE = "GROUNDUP_SERVE_TOKEN"
_SHORTEST_TOKEN = 16
# One client leaves one in so many rows and places in the queue for others.
_RESERVED = 8


class ServerFlags(Settings):
    """The settings that are flags of `groundup serve`."""

    host: str = "127.0.0.1"
    """Address to listen on; any address except this machine's own needs a token."""

    public_host: str | None = None
    """Public host name of a proxy, passed on as Host; the pages' Origin must match it."""

    port: int = pydantic.Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 picks a free one."""

    max_rows: int = pydantic.Field(default=64, ge=1, le=10_000)
    """Sequences generated concurrently: the rows of the batch."""

    max_queue: int = pydantic.Field(default=256, ge=0, le=10**6)
    """Sequences that may wait for a row; beyond that, requests are answered with 429."""

    max_client_rows: int | None = pydantic.Field(default=None, ge=1, le=10_000)
    """Rows that one client may hold. Default: 7/8 of --max-rows."""

    max_models: int = pydantic.Field(default=4, ge=1, le=10_000)
    """Maximum number of models in memory; the least recently used one is unloaded first."""

    save_ratings: Literal["auto", "yes", "no"] = "auto"
    """Save conversations rated on the chat page in the run's folder; auto: if only this machine has
    access."""

    drain_seconds: float = pydantic.Field(default=30.0, gt=0, le=1e6)
    """Seconds to finish running requests after SIGTERM or Ctrl-C; the process ends by then."""


class ServerSettings(ServerFlags):
    """The limits hold for a request or for the server as a whole; times are in seconds."""

    runs_folder: Path = Path("runs")
    # Secrets, so that no log and no traceback shows them.
    tokens: tuple[pydantic.SecretStr, ...] = ()
    # Addresses whose X-Forwarded-For is trusted.
    trusted_proxies: tuple[str, ...] = ()

    # What one request may ask for.
    max_new_tokens: int = pydantic.Field(default=4096, ge=1, le=10**9)
    max_choices: int = pydantic.Field(default=16, ge=1, le=10**6)
    max_body_bytes: int = pydantic.Field(default=1_000_000, ge=1, le=10**9)

    # How long a request may take before and after the model, waiting for its turn included.
    work_seconds: float = pydantic.Field(default=30, gt=0, le=1e6)

    # How long a connection may take to send a request, and to read a piece of the answer.
    max_connections: int = pydantic.Field(default=2048, ge=1, le=10**6)
    request_seconds: float = pydantic.Field(default=20, gt=0, le=1e6)
    stalled_write_seconds: float = pydantic.Field(default=30, gt=0, le=1e6)

    @property
    def client_rows(self) -> int:
        """Rows that one client may hold: 7/8 of them by default."""
        default = self.max_rows - self.max_rows // _RESERVED
        return min(self.max_client_rows or default, self.max_rows)

    @property
    def client_held(self) -> int:
        """Sequences of one client that may run or wait."""
        return self.client_rows + self.max_queue - self.max_queue // _RESERVED


def read_tokens(file: Path | None) -> tuple[pydantic.SecretStr, ...]:
    """The bearer tokens in a file, one a line, or else in the environment variable."""
    text = (
        os.environ.get(TOKEN_VARIABLE, "") if file is None else file.read_text("utf-8", "replace")
    )
    tokens = [token.strip() for token in text.strip().splitlines()]
    if file is not None:
        tokens = tokens or [""]
    if not all(re.fullmatch(rf"[!-~]{{{_SHORTEST_TOKEN},}}", token) for token in tokens):
        raise ConfigError(
            f"a token in {file or TOKEN_VARIABLE} cannot be used: it must be {_SHORTEST_TOKEN} or "
            f"more ASCII letters, digits and signs without a space, on a line of its own; make one "
            f"with python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return tuple(map(pydantic.SecretStr, tokens))
