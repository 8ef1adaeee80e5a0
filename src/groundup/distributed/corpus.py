"""Process a corpus on a Ray cluster: run a function on many parts, with the results in order.

Memory is bounded, because only a few parts per core are in flight. A part whose worker or machine
dies is retried.
"""

import functools
import logging
import os
import pickle
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from groundup import __version__
from groundup.distributed import ray_task
from groundup.errors import ConfigError, DataError, GroundupError, MissingExtraError

# After this many failures the part itself is probably what crashes its workers.
_RETRIES = 10
# Parts in flight: enough that no core waits for the slowest one.
_PARTS_PER_CORE = 2

_log = logging.getLogger(__name__)


class RayEngine:
    """Runs functions on a Ray cluster; connects on first use."""

    def __init__(self, address: str | None = None, **options: Any) -> None:
        """address: host:port. Default: RAY_ADDRESS, else the cluster that this machine belongs to,
        else a new local one. options: Ray's task options."""
        self._address = address or os.environ.get("RAY_ADDRESS") or None
        self._options = {"num_cpus": 1, "max_retries": _RETRIES, **options}
        self._is_ours = False

    @functools.cached_property
    def ray(self) -> Any:
        """The ray module, connected to the cluster."""
        ray = _import_ray()
        # Pickled by reference, it could not even be loaded on a machine without groundup.
        ray.cloudpickle.register_pickle_by_value(ray_task)
        if ray.is_initialized():
            return ray
        if self._address not in (None, "auto", "local"):
            _check_address(self._address)
        where = f"at {self._address}" if self._address else "on this machine"
        try:
            ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            raise ConfigError(f"cannot use the Ray cluster {where}: {_reason(error)}") from error
        self._is_ours = True
        _log.info("Ray cluster %s: %d cores", where, _num_cores(ray))
        return ray

    def close(self) -> None:
        """Disconnect, unless ray was initialized elsewhere."""
        if self._is_ours:
            self.ray.shutdown()

    def __call__(
        self, function: Callable[[Any], Iterator[Any]], tasks: Sequence[Any]
    ) -> Iterator[Iterator[Any]]:
        """Yield, for each task in order, an iterator over the results of the pickled function."""
        reference = self.ray.put(self.ray.cloudpickle.dumps(function))
        run = self.ray.remote(ray_task.run_task).options(num_returns="streaming", **self._options)
        pending: deque[Any] = deque()
        for task in tasks:
            if len(pending) >= _PARTS_PER_CORE * _num_cores(self.ray):
                yield self._results(pending.popleft())
            pending.append(run.remote(__version__, os.getcwd(), [reference], pickle.dumps(task)))
        while pending:
            yield self._results(pending.popleft())

    def _results(self, references: Iterator[Any]) -> Iterator[Any]:
        """Yield the results of a task; re-raises its exceptions and replays its log records."""
        errors = self.ray.exceptions
        try:
            for reference in references:
                kind, value = self.ray.get(reference)
                if kind == "result":
                    yield value
                else:
                    name, level, message = value
                    logging.getLogger(name).log(level, "%s", message)
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ImportError):
                raise ConfigError(str(cause)) from None
            raise cause from (None if isinstance(cause, GroundupError) else error)
        except errors.RayError as error:
            text = f"part of the work was lost {_RETRIES + 1} times: {_reason(error)}"
            raise DataError(text) from None


def _num_cores(ray: Any) -> int:
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return max(1, sum(int(machine.get("CPU", 0)) for machine in machines))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".rstrip(".")


def _import_ray() -> Any:
    # Must be set before the import: send no usage statistics.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("--engine ray", "ray") from error
    # Suppress the twenty lines that Ray prints when a machine dies: the work is retried.
    ray._private.worker._worker_logs_enabled = False
    return ray


def _check_address(address: str) -> None:
    """Check that something listens at the address; Ray itself would retry for a minute."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10.0).close()
    except (OSError, OverflowError, ValueError) as error:
        text = f"no Ray cluster answers at {address!r}, which must be host:port: {error}"
        raise ConfigError(text) from None
