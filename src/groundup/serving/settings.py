"""Server settings: address, limits and authentication."""

import os
import re
from pathlib import Path
from typing import Literal

import pydantic

from groundup.config import Settings
from groundup.errors import ConfigError

TOKEN_VARIABLE = "GROUNDUP_SERVE_TOKEN"
_MIN_TOKEN_LENGTH = 16
# A single client may not use the last 1/8 of the rows and of the queue.
_RESERVED_DIVISOR = 8


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
    """All settings. Limits apply per request or to the whole server."""

    runs_folder: Path = Path("runs")
    # SecretStr, so that no log or traceback shows them.
    tokens: tuple[pydantic.SecretStr, ...] = ()
    # Addresses whose X-Forwarded-For is trusted.
    trusted_proxies: tuple[str, ...] = ()

    # Limits of one request.
    max_new_tokens: int = pydantic.Field(default=4096, ge=1, le=10**9)
    max_choices: int = pydantic.Field(default=16, ge=1, le=10**6)
    # Parsing takes up to a hundred times the memory of a body, and holds up the event loop.
    max_body_bytes: int = pydantic.Field(default=250_000, ge=1, le=10**9)

    # Time for a request's work before and after the model, including the wait for a thread.
    work_seconds: float = pydantic.Field(default=30, gt=0, le=1e6)

    # Time for a connection to send a request, and to read a piece of the response.
    max_connections: int = pydantic.Field(default=2048, ge=1, le=10**6)
    request_seconds: float = pydantic.Field(default=20, gt=0, le=1e6)
    stalled_write_seconds: float = pydantic.Field(default=30, gt=0, le=1e6)

    @property
    def client_rows(self) -> int:
        """Rows that one client may hold."""
        default = self.max_rows - self.max_rows // _RESERVED_DIVISOR
        return min(self.max_client_rows or default, self.max_rows)

    @property
    def client_held(self) -> int:
        """Sequences of one client that may run or wait."""
        return self.client_rows + self.max_queue - self.max_queue // _RESERVED_DIVISOR


def read_tokens(file: Path | None) -> tuple[pydantic.SecretStr, ...]:
    """Read the bearer tokens, one per line, from a file or from the environment variable."""
    text = (
        os.environ.get(TOKEN_VARIABLE, "") if file is None else file.read_text("utf-8", "replace")
    )
    tokens = [token.strip() for token in text.strip().splitlines()]
    if file is not None:
        tokens = tokens or [""]
    if not all(re.fullmatch(rf"[!-~]{{{_MIN_TOKEN_LENGTH},}}", token) for token in tokens):
        raise ConfigError(
            f"a token in {file or TOKEN_VARIABLE} is invalid: it must be at least "
            f"{_MIN_TOKEN_LENGTH} ASCII letters, digits and symbols without spaces, one per line; "
            f"make one with python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return tuple(map(pydantic.SecretStr, tokens))
