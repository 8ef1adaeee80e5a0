"""Train parts of runs on several ranks each, as forks of this program.

    python rank_program.py jobs.json results.json

A job is {settings, ranks, resume, allow_changes, stop_after, kill_at, signal}; its result is, for
each rank, the text of its error, None if there was none, or "killed"; with a signal, its last step.
"""

import functools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))
from forked_ranks import fork_ranks

from groundup.config import load_settings
from groundup.errors import GroundupError
from groundup.runs.config import RunConfig
from groundup.training import train
from groundup.training.clock import Clock
from groundup.training.metrics import AfterStep


def run_job(job: dict[str, Any]) -> list[str | None]:
    return fork_ranks(functools.partial(train_part, job), job["ranks"], died="killed")


def train_part(job: dict[str, Any], rank: int) -> str | None:
    config = load_settings(RunConfig, job["settings"], job.get("of_rank", {}).get(str(rank)))

    def kill_in_time(step: int, progress: float) -> None:
        if step == job.get("kill_at") and rank == job.get("killed_rank", 0):
            os.kill(os.getpid(), job.get("signal", signal.SIGKILL))

    try:
        summary = train(
            config,
            resume=job.get("resume", False),
            allow_changes=job.get("allow_changes", False),
            callbacks=[AfterStep(kill_in_time)],
            clock=Clock(stop_after=job.get("stop_after")),
        )
    except GroundupError as error:
        return str(error)
    return f"{summary.stopped_by} at {summary.steps}" if "signal" in job else None


if __name__ == "__main__":
    torch.set_num_threads(1)
    jobs = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps([run_job(job) for job in jobs]))
