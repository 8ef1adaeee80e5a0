"""A server as a process: the event loop, the signals, the end.

The first SIGINT or SIGTERM lets what is running and waiting come to its end while new requests are
refused, for a limited time; the second ends the process at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from groundup.serving.connections import guarded_protocol
from groundup.serving.listening import raise_file_limit
from groundup.serving.server import create_app

if TYPE_CHECKING:
    from groundup.generation import LanguageModel
    from groundup.serving.scheduler import Scheduler
    from groundup.serving.settings import ServerSettings

_log = logging.getLogger(__name__)

# No text is being written any more; what is left is to send the last of them.
_LAST_WORDS_SECONDS = 5
# The engine gives Python's lock away with every operation of torch and waits so long to get it back
# from a busy event loop. The default is ten times as long.
_SWITCH_SECONDS = 0.0005
# Reading an integer takes time that grows with the square of its digits; Python allows no less.
_MAX_DIGITS = 640


def serve(
    language_model: LanguageModel,
    settings: ServerSettings,
    listener: socket.socket,
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal comes; `on_start` is called when requests are taken."""
    # Only failures of ours are worth a line: what clients do wrong is told to them.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    sys.setswitchinterval(_SWITCH_SECONDS)
    sys.set_int_max_str_digits(_MAX_DIGITS)
    server = make_server(language_model, settings, on_start)
    # What is here stays: looking through it again for garbage would hold everyone up.
    gc.collect()
    gc.freeze()
    server.run(sockets=[listener])


def make_server(
    language_model: LanguageModel,
    settings: ServerSettings,
    on_start: Callable[[], None] = lambda: None,
) -> Server:
    """A server that is not running yet."""
    app = create_app(language_model, settings)
    config = uvicorn.Config(
        app,
        http=guarded_protocol(settings, raise_file_limit(settings.max_connections)),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_graceful_shutdown=_LAST_WORDS_SECONDS,
    )
    return Server(config, app.state.scheduler, settings.drain_seconds, on_start)


class Server(uvicorn.Server):
    """uvicorn's, with an end of our own."""

    def __init__(
        self,
        config: uvicorn.Config,
        scheduler: Scheduler,
        drain_seconds: float,
        on_start: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self.scheduler = scheduler
        self._drain_seconds = drain_seconds
        self._on_start = on_start
        self._ending: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets=sockets)
        if not self.should_exit:
            self._on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        # Kills the process, whatever holds it up.
        signal.setitimer(signal.ITIMER_REAL, self._drain_seconds)
        self._loop.call_soon_threadsafe(self._begin_to_end, signal.Signals(sig).name)

    def _begin_to_end(self, name: str) -> None:
        count = self.scheduler.num_running + self.scheduler.num_waiting
        if count:
            _log.warning(
                "%s: texts in work: %d, to be done in %g s; once more ends at once",
                name,
                count,
                self._drain_seconds,
            )
        self.scheduler.refuse_new()
        self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        last_words = min(_LAST_WORDS_SECONDS, self._drain_seconds / 2)
        try:
            async with asyncio.timeout(self._drain_seconds - last_words):
                await self.scheduler.wait_until_idle()
        except TimeoutError:
            count = self.scheduler.num_running + self.scheduler.num_waiting
            _log.warning("texts given up because they were not done in time: %d", count)
            self.scheduler.give_up()
        self.should_exit = True
