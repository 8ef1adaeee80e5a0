"""Real processes under real signals, single and as ranks, end like undisturbed ones.

A run is stopped, killed or suspended a few times, at a step or at any moment. Each time it must
have saved what it guarantees, and it must end with the same bits as an undisturbed run. The same
holds for other long-running verbs.
"""

import os
import shutil
import signal
import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from harness import Case, Child, Lost
from histories import VERBS, Verb, check_no_leftovers, configure, sample_run

from groundup.checkpoint import CheckpointFolder
from groundup.config import save_yaml
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runs.metrics_file import read_metrics
from groundup.training import train
from groundup.training.clock import ReplayClock
from groundup.training.verify import compare_runs

_STEPS = 30
_RUNS = "one process;2 ranks;data prepare;one process;3 ranks;new;a lost rank;4 ranks;sweep"
_FAULTS = ("INT", "TERM", "TERM", "KILL", "KILL", "STOP")
_FAULTS_OF_RANKS: Sequence[str] = (*_FAULTS, "TERM one", "KILL one", "KILL one", "KILL another")


def start_ranks(place: Path, words: Sequence[str], size: int) -> list[Child]:
    """Start the processes that train a run together."""
    if size == 1:
        return [Child(place, words)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    # torchrun's environment variables.
    job |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(size))
    ranks = [dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) for rank in range(size)]
    return [Child(place, words, **job, **rank) for rank in ranks]


def wait_for(ranks: list[Child], expected: Sequence[int]) -> list[int]:
    """Wait for all ranks, then return their statuses or raise Lost for one."""
    for child in ranks:
        child.poll(0)
    return [child.wait(expected) for child in ranks]


def disturb(case: Case) -> None:
    """Disturb one run, or another verb, up to three times."""
    name, case.counts["injected"] = case.turn(_RUNS.split(";")), case.random.choice((1, 1, 2, 3))
    case.what = name
    if name in VERBS["verbs"]:
        disturb_verb(case, Verb(case, case.place / "disk", name))
    else:
        disturb_training(case, {"one process": 1, "a lost rank": 3}.get(name) or int(name[0]))


def disturb_training(case: Case, size: int) -> None:
    rng, is_lost = case.random, case.what == "a lost rank"
    kind, changes = sample_run(case.made, rng)
    is_timed = kind == "timed" and not is_lost
    # Timed runs are replayed by a single process.
    strategy = "ddp" if is_timed or is_lost else rng.choice(("ddp", "ddp", "fsdp"))
    # If a rank is lost, the others save: far from any regular checkpoint.
    every = 40 if is_lost else rng.choice((4, 7) if is_timed else (4, 7, 40))
    changes |= {"num_steps": _STEPS, "minutes": 0.2 if is_timed else None}
    changes |= {"checkpoints.every_steps": every}
    if size > 1:
        changes |= {"batch_size": 12, "micro_batch_size": 1, "evaluation.batch_size": 1}
        changes |= {"model.dropout": 0.0, "distributed.timeout_minutes": 0.5}
        optimizer = "adamw" if is_lost else rng.choice(("adamw", "adamw", "muon"))
        changes |= {"distributed.strategy": strategy, "optimizer.name": optimizer}
    case.row = f"signals: train, {'one process' if size == 1 else 'ranks'}"
    case.what = f"{kind}, {case.what}"
    config = configure(case.made, case.place / "runs", changes)
    whole, run = config.with_(name="whole"), RunFolder(config.run_folder)
    save_yaml(case.place / "run.yaml", config)
    save_yaml(case.place / "whole.yaml", whole)
    if not is_timed:
        wait_for(start_ranks(case.place, ["train", "--config", "whole.yaml"], size), [0])
    for _ in range(case.counts["injected"]):
        # With ddp, exact reduction gives the same bits for any world size.
        is_fixed = size == 1 or is_lost or strategy == "fsdp"
        now = size if is_fixed else rng.choice((1, 2, 3, 4))
        faults = ("KILL another",) if is_lost else _FAULTS if now == 1 else _FAULTS_OF_RANKS
        disturb_ranks(case, config, now, rng.choice(faults))
    wait_for(start_ranks(case.place, words(run), size), [0])
    if is_timed:
        Child(case.place, partial(train, whole, clock=ReplayClock(run.metrics_file))).wait([0])
    if found := compare_runs(whole.run_folder, run.path).differences:
        raise Lost(f"disturbed, the run ended otherwise: {found[0]}")
    check_no_leftovers(case.place / "runs")


def disturb_verb(case: Case, verb: Verb) -> None:
    case.row = "signals: data prepare, new, sweep"
    start, begin = partial(Child, verb.root, partial(verb.run, verb.commands[-1])), time.monotonic()
    start().wait([0])
    seconds, verb.versions = time.monotonic() - begin, [verb.find()]
    shutil.rmtree(verb.root)
    for _ in range(case.counts["injected"]):
        child, number = start(), signal.Signals[f"SIG{case.random.choice(_FAULTS)}"]
        time.sleep(case.random.uniform(0, seconds))
        os.kill(child.pid, number)
        if number == signal.SIGSTOP:
            os.kill(child.pid, signal.SIGCONT)
        child.wait([0, -number, 128 + number])
        verb.check([])
    verb.finish()


def words(run: RunFolder) -> list[str]:
    return ["train", "--config", "run.yaml", *(["--resume"] if run.has_run() else [])]


def disturb_ranks(case: Case, config: RunConfig, size: int, fault: str) -> None:
    """Start or resume the run, inject one fault, and check what has been saved."""
    rng, run = case.random, RunFolder(config.run_folder)
    step = rng.choice((0, 1, 1)) * (last_step(run) + rng.randrange(1, _STEPS))
    target = list(range(size))
    if "one" in fault or "another" in fault or rng.random() < 0.3:
        target = [rng.randrange("another" in fault, size)]
    number, late = signal.Signals[f"SIG{fault.split()[0]}"], rng.uniform(0.0, 0.6)
    ranks = start_ranks(case.place, words(run), size)
    begin = time.monotonic()
    while all(map(Child.is_running, ranks)) and last_step(run) < step:
        time.sleep(0.002)
        if time.monotonic() > begin + 100:
            raise Lost(f"step {step} never came")
    if not step:
        time.sleep(late)
    for rank in target:
        # None has been reaped, so the process ids have not been reused.
        os.kill(ranks[rank].pid, number)
    if number == signal.SIGSTOP:
        time.sleep(late)
        for rank in target:
            os.kill(ranks[rank].pid, signal.SIGCONT)
        wait_for(ranks, [0])
        return
    # Before the handlers are set, the signal kills the process; later the status names the signal.
    statuses = wait_for(ranks, [0, 1, 2, -number, 128 + number, 130])
    found, newest = last_step(run), max(CheckpointFolder(run.checkpoints).steps(), default=0)
    if step == 0 or not found or 0 in statuses:
        return
    every = config.checkpoints.every_steps or 1
    # Killed between a record and the checkpoint due after it, the run has the previous one.
    promised = found - 1 - (found - 1) % every if config.minutes is None else 0
    is_divided = config.distributed.strategy == "fsdp" and size > 1
    if number != signal.SIGKILL:
        promised = found
        if statuses[0] != 128 + number:
            raise Lost(f"{fault} ended it with status {statuses[0]}")
    elif is_divided:
        # The newest checkpoint may not be complete yet.
        promised = max(0, promised - every)
    elif 0 not in target and config.optimizer.name != "muon":
        promised = found
    if newest < promised:
        raise Lost(f"after {fault} at step {found} the newest checkpoint is {newest}")


def last_step(run: RunFolder) -> int:
    """Return the last step in the metrics."""
    return int(read_metrics(run.metrics_file).last("step") or 0)
