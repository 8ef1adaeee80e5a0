"""Processes on the machines of a Ray cluster, with the methods of `subprocess.Popen`."""

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from groundup import __version__
from groundup.distributed import ray_task
from groundup.distributed.corpus import RayEngine, explained_errors

LOST = -1000
"""The exit status of a process whose machine died."""


class RemoteProcess:
    """A command that runs wherever the cluster has room for it."""

    def __init__(
        self,
        engine: RayEngine,
        command: Sequence[str],
        output: Path,
        environment: Mapping[str, str],
        resources: Mapping[str, float],
    ) -> None:
        """Start it where num_cpus and num_gpus are free; see `ray_task.HeldProcess`."""
        self._ray = engine.ray
        self.returncode: int | None = None
        self._is_started = False
        self._actor = self._ray.remote(ray_task.HeldProcess).options(**resources).remote()
        what = (list(command), str(output), dict(environment))
        self._answer = self._actor.start.remote(__version__, os.getcwd(), *what)

    def poll(self) -> int | None:
        """The exit status, LOST if the machine died, None as long as it runs."""
        if self.returncode is None and self._ray.wait([self._answer], timeout=0)[0]:
            with explained_errors(self._ray):
                try:
                    status = self._ray.get(self._answer)
                except self._ray.exceptions.RayActorError:
                    status = LOST
            self._is_started = True
            if status is None:
                self._answer = self._actor.poll.remote()
            else:
                self._end(status)
        return self.returncode

    def terminate(self) -> None:
        """Ask it to stop; one that has not begun never does."""
        if self._is_started:
            self._actor.terminate.remote()
        else:
            self._end(-signal.SIGTERM)

    def kill(self) -> None:
        """End it now; without the process that holds it, the command stops too."""
        self._end(-signal.SIGKILL)

    def wait(self) -> None:
        """Nothing is left to wait for."""

    def _end(self, status: int) -> None:
        if self.returncode is None:
            self.returncode = status
            self._ray.kill(self._actor)
