"""A server as a process: its socket, the event loop, the signals, the end.

The socket is opened before the model is loaded, so that mistakes show at once. The first SIGINT or
SIGTERM lets what is running and waiting come to its end while new requests are refused, for a
limited time; the second ends the process at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import ipaddress
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from groundup.errors import ConfigError
from groundup.planner.quantities import show_bytes
from groundup.runtime import count_of, memory_bytes
from groundup.serving.settings import TOKEN_VARIABLE

if TYPE_CHECKING:
    from groundup.generation import LanguageModel
    from groundup.serving.connections import Connections
    from groundup.serving.scheduler import Scheduler
    from groundup.serving.settings import ServerSettings

_log = logging.getLogger(__name__)

# Nothing is generated any more; what is left is to send the last of it.
_LAST_WORDS_SECONDS = 5
# The engine gives Python's lock away with every operation of torch and waits so long to get it back
# from a busy event loop. The default is ten times as long.
_SWITCH_SECONDS = 0.0005
# Reading an integer takes time that grows with the square of its digits; Python allows no less.
_MAX_DIGITS = 640
_MAX_HEAD_BYTES = 16_384

_BACKLOG = 1024
# Files that are open beside the connections: the model, the runs, the log, what Python has open.
_OTHER_FILES = 128
_ENOUGH_FILES = 65536


def open_socket(settings: ServerSettings) -> socket.socket:
    """Bind to the host and port; a ConfigError says what to do where that cannot be."""
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"--host {host} cannot be found ({error}): use an address of this machine"
        ) from error
    family, kind, protocol, _, address = found[0]
    if not settings.tokens and not _is_local(str(address[0])):
        raise ConfigError(
            f"--host {host} lets other machines in, and no token keeps strangers out: "
            f"write one into a file and name it by --token-file (or set {TOKEN_VARIABLE}), or stay "
            f"on 127.0.0.1"
        )
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(_explain(error, host, port)) from error
    return listener


def address_to_open(listener: socket.socket) -> str:
    """What to type into a browser on this machine."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    language_model: LanguageModel,
    settings: ServerSettings,
    listener: socket.socket,
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal comes.

    language_model: what is served.
    settings: limits, tokens and names.
    listener: the open socket, see `open_socket`.
    on_start: called when requests are taken.
    """
    # Only failures of ours are worth a line: what clients do wrong is told to them.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    sys.setswitchinterval(_SWITCH_SECONDS)
    sys.set_int_max_str_digits(_MAX_DIGITS)
    server = make_server(language_model, settings, on_start)
    # What is here stays: looking through it again for garbage would hold everyone up.
    gc.collect()
    gc.freeze()
    server.run(sockets=[listener])
    # All are answered: nothing holds the process up any more.
    signal.setitimer(signal.ITIMER_REAL, 0)


def make_server(
    language_model: LanguageModel,
    settings: ServerSettings,
    on_start: Callable[[], None] = lambda: None,
) -> Server:
    """A server that is not running yet; the arguments are those of `serve`."""
    from groundup.serving.connections import Connections
    from groundup.serving.server import create_app

    _check_rows(language_model, settings.max_rows)
    app = create_app(language_model, settings)
    connections = Connections(settings, raise_file_limit(settings.max_connections))
    config = uvicorn.Config(
        app,
        http=connections.protocol(),
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
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
    return Server(config, app.state.scheduler, connections, settings.drain_seconds, on_start)


class Server(uvicorn.Server):
    """uvicorn's, with an end of our own."""

    def __init__(
        self,
        config: uvicorn.Config,
        scheduler: Scheduler,
        connections: Connections,
        drain_seconds: float,
        on_start: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self.scheduler = scheduler
        self.connections = connections
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
                "%s: %d running or waiting, given %g s to finish; press again to quit now",
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
            _log.warning("%d not finished in time: given up", count)
            self.scheduler.give_up()
        # A request that has not come by now is not waited for.
        self.connections.drop_incomplete()
        self.should_exit = True


def raise_file_limit(max_connections: int) -> int:
    """Let the process open as many files as it may; how many connections that allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Some systems promise more than they let a process have.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY:
        return max_connections
    return max(1, min(max_connections, soft - _OTHER_FILES))


def _check_rows(language_model: LanguageModel, max_rows: int) -> None:
    """Refuse more rows than there is memory for their keys and values, before any is taken."""
    import torch

    config, device = language_model.model.config, language_model.model.device
    size = next(language_model.model.parameters()).element_size()
    row_bytes = 2 * config.num_layers * config.key_value_heads * config.d_head * size
    row_bytes *= config.context_length
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else memory_bytes()
    if max_rows * row_bytes > free:
        raise ConfigError(
            f"{count_of(max_rows, 'text')} at a time take {show_bytes(max_rows * row_bytes)} for "
            f"their context of {config.context_length}, and there are {show_bytes(free)}: set "
            f"--max-rows to {max(1, free // (2 * row_bytes))} or so"
        )


def _is_local(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _explain(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is in use: choose another by --port, or --port 0 for any that "
            f"is free"
        )
    if error.errno == errno.EACCES:
        return f"port {port} of {host} may not be opened by you: choose one above 1023 by --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is not an address of this machine: use one of its own, or 127.0.0.1"
    return f"cannot listen on port {port} of {host}: {error.strerror}"
