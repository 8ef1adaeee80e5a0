"""What a server may be told: where it listens, how much it takes on, who may ask."""

import os
import re
from pathlib import Path

import pydantic

from groundup.config import Settings
from groundup.errors import ConfigError

TOKEN_VARIABLE = "GROUNDUP_SERVE_TOKEN"
_SHORTEST_TOKEN = 16


class ServerSettings(Settings):
    """The limits hold for a request or for the server as a whole; times are in seconds."""

    model_name: str = "model"
    host: str = "127.0.0.1"
    port: int = pydantic.Field(8000, ge=0, le=65535)
    runs_folder: Path = Path("runs")
    # Whoever asks must know it; a secret, so that no log and no traceback shows it.
    token: pydantic.SecretStr | None = None

    # Texts being written at once, and texts that may wait for a row to become free.
    max_rows: int = pydantic.Field(64, ge=1, le=10_000)
    max_queue: int = pydantic.Field(256, ge=0, le=10**6)

    # What one request may ask for.
    max_new_tokens: int = pydantic.Field(4096, ge=1, le=10**9)
    max_choices: int = pydantic.Field(16, ge=1, le=10**6)
    max_body_bytes: int = pydantic.Field(1_000_000, ge=1, le=10**9)

    # What a connection may take: time to send a request, time to read a piece of the answer.
    max_connections: int = pydantic.Field(2048, ge=1, le=10**6)
    request_seconds: float = pydantic.Field(20, gt=0, le=1e6)
    stalled_write_seconds: float = pydantic.Field(30, gt=0, le=1e6)


def read_token(file: Path | None) -> pydantic.SecretStr | None:
    """The bearer token of a file, or else of the environment variable; None where there is none."""
    if file is not None:
        place = str(file)
        token = file.read_text(encoding="utf-8", errors="replace").strip()
    else:
        place = TOKEN_VARIABLE
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if not token:
            return None
    if not re.fullmatch(rf"[!-~]{{{_SHORTEST_TOKEN},}}", token):
        raise ConfigError(
            f"the token in {place} cannot be used: it must be {_SHORTEST_TOKEN} or more ASCII "
            f"letters, digits and signs without a space; make one with "
            f"python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return pydantic.SecretStr(token)
