"""The socket a server listens on, opened before the model is loaded: mistakes show at once."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import resource
import socket
from typing import TYPE_CHECKING

from groundup.errors import ConfigError
from groundup.serving.settings import TOKEN_VARIABLE

if TYPE_CHECKING:
    from groundup.serving.settings import ServerSettings

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
            f"--host {host} lets other machines in, and there is no token to keep strangers out: "
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
        return f"--host {host} is no address of this machine: use one that is, or 127.0.0.1"
    return f"cannot listen on port {port} of {host}: {error.strerror}"
