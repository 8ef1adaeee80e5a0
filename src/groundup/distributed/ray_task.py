"""What Ray runs on a machine of the cluster.

It is carried there as code, not by its name, so that it can say what is wrong with the groundup
that it finds: none, another version, or one without the native core.
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
    """Yield ("result", value) for all that a pickled function, behind a reference, yields for a
    pickled task, and ("log", …) for what it logs."""
    import ray

    enter(version, folder)
    (reference,) = function
    name = reference.hex()
    if name not in _functions:
        # One at a time is used again and again.
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
    """Raise ImportError, in words for the user, unless this machine can do the work."""
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
