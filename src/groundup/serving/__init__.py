"""A server for one model: OpenAI's completions, pages to look at, metrics for a monitor.

Names are resolved on first use, so that reading the settings costs neither torch nor FastAPI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from groundup.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from groundup.serving.launch import serve
    from groundup.serving.server import create_app
    from groundup.serving.settings import ServerSettings

__all__ = ["ServerSettings", "create_app", "serve"]

__getattr__, __dir__ = lazy_exports(
    __name__, {"launch": "serve", "server": "create_app", "settings": "ServerSettings"}
)
