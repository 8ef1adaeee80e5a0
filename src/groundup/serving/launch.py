"""A server as a process: its socket, the event loop, the signals, the end.

The socket is opened before the model is loaded, so that mistakes show at once. The first SIGINT or
SIGTERM lets what is running and waiting finish while new requests are refused, for a limited time;
the second ends the process at once.
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
from groundup.serving.metrics import Metrics
from groundup.serving.models import Models, Source
from groundup.serving.settings import TOKEN_VARIABLE, ServerSettings
from groundup.serving.workers import Workers

_log = logging.getLogger(__name__)

# After everything is generated, time to send the last of it.
_LAST_WORDS_SECONDS = 5
# The engine releases the GIL with every operation of torch and waits so long to get it back from a
# busy event loop. The default is ten times as long.
_SWITCH_SECONDS = 0.0005
_MAX_HEAD_BYTES = 16_384

# Files that are open beside the connections.
_OTHER_FILES = 128
_ENOUGH_FILES = 65536


def open_socket(settings: ServerSettings) -> socket.socket:
    """Bind to the host and port; a ConfigError says what to do if that fails."""
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"--host {host} cannot be found ({error}): use an address of this machine"
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
    """What to type into a browser on this machine."""
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
    """Serve models by name until a signal comes; `on_start` is called when requests are taken, with
    the first model, which is loaded by then."""
    # Only our own failures are worth a line: clients are told their mistakes.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    sys.setswitchinterval(_SWITCH_SECONDS)
    server = make_server(models, settings, on_start)
    # What is here stays: looking through it for garbage again and again would delay everyone.
    gc.collect()
    gc.freeze()
    server.run(sockets=[listener])
    # All are answered: the process may end in its own time.
    signal.setitimer(signal.ITIMER_REAL, 0)


def make_server(
    sources: Mapping[str, Source],
    settings: ServerSettings,
    on_start: Callable[[LanguageModel], None] = lambda first: None,
) -> "Server":
    """A server that is not running yet; the arguments are those of `serve`."""
    metrics, workers = Metrics(), Workers(settings.work_seconds)
    models = Models(sources, settings, metrics, workers)
    first = models.load_first()
    max_connections = raise_file_limit(settings.max_connections)
    limits = {"settings": settings, "max_connections": max_connections, "waiting": deque()}
    app = create_app(models, settings, metrics, workers, lambda: on_start(first))
    config = uvicorn.Config(
        app,
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
        timeout_graceful_shutdown=_LAST_WORDS_SECONDS,
    )
    return Server(config, models, settings.drain_seconds)


class Server(uvicorn.Server):
    """uvicorn's server, with a shutdown of our own."""

    def __init__(self, config: uvicorn.Config, models: Models, drain_seconds: float) -> None:
        super().__init__(config)
        self.models = models
        self._drain_seconds = drain_seconds

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        # SIGALRM kills the process then, whatever holds it up.
        signal.setitimer(signal.ITIMER_REAL, self._drain_seconds)
        # The event loop runs in the thread that gets the signals.
        name = signal.Signals(sig).name
        asyncio.get_running_loop().call_soon_threadsafe(self._begin_to_end, name)

    @property
    def _num_unfinished(self) -> int:
        return sum(one.num_running + one.num_waiting for one in self.models.schedulers)

    def _begin_to_end(self, name: str) -> None:
        if count := self._num_unfinished:
            words = "%s: %d running or waiting, given %g s to finish; press again to quit now"
            _log.warning(words, name, count, self._drain_seconds)
        self.models.is_stopping = True
        for scheduler in self.models.schedulers:
            scheduler.refuse_new()
        self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        last_words = min(_LAST_WORDS_SECONDS, self._drain_seconds / 2)
        try:
            async with asyncio.timeout(self._drain_seconds - last_words):
                for scheduler in self.models.schedulers:
                    await scheduler.wait_until_idle()
        except TimeoutError:
            _log.warning("%d not finished in time: given up", self._num_unfinished)
            for scheduler in self.models.schedulers:
                scheduler.give_up()
        # A request that has not arrived by now is not waited for.
        for connection in list(self.server_state.connections):
            if not getattr(connection, "has_request", True):
                connection.transport.abort()
        self.should_exit = True


def raise_file_limit(max_connections: int) -> int:
    """Let the process open as many files as it may; how many connections that allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_FILES)
    # Some systems promise more than they let a process have.
    with contextlib.suppress(ValueError, OSError):
        if 0 <= soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return max_connections if soft < 0 else max(1, min(max_connections, soft - _OTHER_FILES))
