"""The task that Ray runs on the machines of the cluster.

Pickled by value, so that it can report what is wrong with a machine's groundup: not installed,
another version, or without the native core.
"""

import importlib
import logging
import os
import pickle
import socket
from collections.abc import Iterator
from typing import Any

_functions: dict[str, Any] = {}


def run_task(version: str, folder: str, function: list[Any], task: bytes) -> Iterator[Any]:
    """Run a pickled function, given by reference, on a pickled task; yields ("result", value) for
    each result, then ("log", …) for each log record."""
    import ray

    enter(version, folder)
    (reference,) = function
    name = reference.hex()
    if name not in _functions:
        # Cache one function, which is used for many tasks in a row.
        _functions.clear()
        _functions[name] = pickle.loads(ray.get(reference))
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = records.append  # type: ignore[assignment,method-assign]
    logger = logging.getLogger("groundup")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        for value in _functions[name](pickle.loads(task)):
            yield "result", value
    finally:
        logger.removeHandler(handler)
    for record in records:
        yield "log", (record.name, record.levelno, record.getMessage())


def enter(version: str, folder: str) -> None:
    """Check this machine's groundup, and use the caller's working directory if it exists here."""
    machine = socket.gethostname()
    try:
        from groundup import __version__ as found

        importlib.import_module("groundup._native")
    except ImportError as error:
        raise ImportError(
            f"machine {machine} has no groundup with a native core ({error}); install groundup "
            f"{version} on every machine of the cluster"
        ) from None
    if found != version:
        raise ImportError(f"machine {machine} has groundup {found}; install {version} there")
    if os.path.isdir(folder):
        os.chdir(folder)
