"""A server for one model: OpenAI's completions, pages to look at, figures for a monitor.

Names are resolved on first use, so that reading the settings costs neither torch nor FastAPI.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from groundup.serving.launch import serve
    from groundup.serving.server import create_app
    from groundup.serving.settings import ServerSettings

__all__ = ["ServerSettings", "create_app", "serve"]

_HOMES = {
    "ServerSettings": "groundup.serving.settings",
    "create_app": "groundup.serving.server",
    "serve": "groundup.serving.launch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
