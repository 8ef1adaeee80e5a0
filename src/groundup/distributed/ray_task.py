"""What Ray runs on a machine of the cluster.

It is carried there as code, not by its name, so that it can say what is wrong with the groundup
that it finds: none, another version, or one without the native core.
"""

import importlib
import logging
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

_functions: dict[str, Any] = {}


def run_task(version: str, folder: str, function: list[Any], task: bytes) -> Iterator[Any]:
    """Yield ("result", value) for all that a function yields, and ("log", …) for what it logs.

    function: a reference to it, pickled; task: its argument, pickled.
    """
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


class HeldProcess:
    """A process on a machine of the cluster, as long as this actor holds it."""

    def start(
        self,
        version: str,
        folder: str,
        command: list[str],
        output: str,
        environment: dict[str, str],
    ) -> None:
        """Run a command, in which {python} is this machine's and {pid} the process of this actor;
        the file `output` gets what it prints."""
        enter(version, folder)
        place = os.path.dirname(os.path.abspath(output))
        if not os.path.isdir(place):
            raise NotADirectoryError(
                f"folder {place} does not exist on machine {socket.gethostname()}; run the sweep "
                f"in a folder that every machine of the cluster sees"
            )
        words = {"{python}": sys.executable, "{pid}": str(os.getpid())}
        with open(output, "ab") as file:
            self._process = subprocess.Popen(
                [words.get(word, word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def poll(self) -> int | None:
        return self._process.poll()

    def terminate(self) -> None:
        self._process.terminate()
