"""The server process: socket, event loop, signals, graceful shutdown.

The socket is opened before the model is loaded, so that a wrong address fails at once. After the
first SIGINT or SIGTERM, new requests are refused and the accepted ones have a limited time to
finish; the second ends the process at once.
"""

import asyncio
import contextlib
import gc
import ipaddress
import logging
import resource
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping
from types import FrameType

import uvicorn

from groundup.errors import ConfigError
from groundup.generation import LanguageModel
from groundup.serving.app import create_app
from groundup.serving.connections import Connection
from groundup.serving.models import Models, Source
from groundup.serving.settings import TOKEN_VARIABLE, ServerSettings

_log = logging.getLogger(__name__)

# Time to send the rest of the responses after the last token.
_FLUSH_SECONDS = 5
# The engine releases the GIL in every torch operation and waits this long to get it back from a
# busy event loop. The default is ten times as long.
_SWITCH_SECONDS = 0.0005
_MAX_HEAD_BYTES = 16_384

# File descriptors for everything except connections.
_OTHER_FILES = 128
_MAX_FILES = 65536


def open_socket(settings: ServerSettings) -> socket.socket:
    """Bind to the host and port; raise ConfigError if that fails."""
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"--host {host} cannot be resolved ({error}): use an address of this machine"
        ) from error
    family, kind, protocol, _, address = found[0]
    is_local = ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
    if not settings.tokens and not is_local:
        raise ConfigError(
            f"--host {host} accepts connections from other machines, and no token is set: put one "
            f"into a file and pass it with --token-file (or set {TOKEN_VARIABLE}), or use 127.0.0.1"
        )
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on --host {host} --port {port}: {error.strerror}; choose another "
            f"--host or --port (0 takes any free port)"
        ) from error
    return listener


def address_to_open(listener: socket.socket) -> str:
    """Return the URL to open in a browser on this machine."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    models: Mapping[str, Source],
    settings: ServerSettings,
    listener: socket.socket,
    on_start: Callable[[LanguageModel], None],
) -> None:
    """Serve models by name until a signal arrives; once the server accepts requests, `on_start` is
    called with the first model, already loaded."""
    # Log only the server's failures: clients receive their errors in the response.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    sys.setswitchinterval(_SWITCH_SECONDS)
    server = make_server(models, settings, on_start)
    # Exclude the model and modules from garbage collection, whose pauses delay all requests.
    gc.collect()
    gc.freeze()
    server.run(sockets=[listener])
    # Cancel the alarm of the shutdown: all requests are answered.
    signal.setitimer(signal.ITIMER_REAL, 0)


def make_server(
    sources: Mapping[str, Source],
    settings: ServerSettings,
    on_start: Callable[[LanguageModel], None] = lambda first: None,
) -> "Server":
    """Build a server without running it; same arguments as `serve`."""
    models = Models(sources, settings)
    first = models.load_first()
    max_connections = raise_file_limit(settings.max_connections)
    limits = {"settings": settings, "max_connections": max_connections, "waiting": deque()}
    config = uvicorn.Config(
        create_app(models, lambda: on_start(first)),
        http=type("BoundedConnection", (Connection,), limits),
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_graceful_shutdown=_FLUSH_SECONDS,
    )
    return Server(config, models, settings.drain_seconds)


class Server(uvicorn.Server):
    """uvicorn's server with a graceful shutdown that waits for the schedulers."""

    def __init__(self, config: uvicorn.Config, models: Models, drain_seconds: float) -> None:
        super().__init__(config)
        self.models = models
        self._drain_seconds = drain_seconds

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        # SIGALRM then kills the process even if the shutdown hangs.
        signal.setitimer(signal.ITIMER_REAL, self._drain_seconds)
        # The event loop runs in the main thread, which receives the signals.
        name = signal.Signals(sig).name
        asyncio.get_running_loop().call_soon_threadsafe(self._start_shutdown, name)

    @property
    def _num_unfinished(self) -> int:
        return sum(one.num_running + one.num_waiting for one in self.models.schedulers)

    def _start_shutdown(self, name: str) -> None:
        if count := self._num_unfinished:
            words = "%s: %d running or waiting, with %g s to finish; press again to quit now"
            _log.warning(words, name, count, self._drain_seconds)
        self.models.is_stopping = True
        for scheduler in self.models.schedulers:
            scheduler.refuse_new()
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        flush_seconds = min(_FLUSH_SECONDS, self._drain_seconds / 2)
        try:
            async with asyncio.timeout(self._drain_seconds - flush_seconds):
                for scheduler in self.models.schedulers:
                    await scheduler.wait_until_idle()
        except TimeoutError:
            _log.warning("%d not finished in time: cancelled", self._num_unfinished)
            for scheduler in self.models.schedulers:
                scheduler.give_up()
        # Do not wait for incomplete requests.
        for connection in list(self.server_state.connections):
            if not getattr(connection, "has_request", True):
                connection.transport.abort()
        self.should_exit = True


def raise_file_limit(max_connections: int) -> int:
    """Raise the soft limit on open files; return how many connections it then allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    # Some systems refuse values below the hard limit they report.
    with contextlib.suppress(ValueError, OSError):
        if 0 <= soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return max_connections if soft < 0 else max(1, min(max_connections, soft - _OTHER_FILES))
