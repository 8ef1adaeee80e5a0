"""Real processes under real signals, alone and as ranks: they end as undisturbed ones do.

A run is stopped, killed or suspended a few times, at a step or at any moment, and each time it must
have saved what it promises; then it ends with the bits of a run that nobody disturbed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from harness import Case, Child, Lost
from histories import check_no_leftovers, configure, draw_run, hashes

from groundup.checkpoint import CheckpointFolder
from groundup.config import save_yaml
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runs.metrics import parse_line
from groundup.training import train
from groundup.training.clock import ReplayClock
from groundup.training.verify import compare_runs

_STEPS = 30
_KILLED = -signal.SIGKILL


class Ranks:
    """Some processes that train one run together."""

    def __init__(self, place: Path, words: Sequence[str], size: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.children = [Child(place, words, environment(rank, size, port)) for rank in range(size)]

    def signal(self, number: int, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self.children[rank].signal(number)

    def wait(self, expected: Sequence[int]) -> list[int]:
        found: list[int | Lost] = []
        for child in self.children:
            try:
                found.append(child.wait(expected))
            except Lost as lost:
                found.append(lost)
        for one in found:
            if isinstance(one, Lost):
                raise one
        return [one for one in found if isinstance(one, int)]


def environment(rank: int, size: int, port: int) -> Callable[[], None]:
    """What torchrun tells a rank."""
    numbers = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
    values = {name: str(number) for name, number in {**numbers, "MASTER_PORT": port}.items()}
    values["MASTER_ADDR"] = "127.0.0.1"
    return lambda: os.environ.update(values) if size > 1 else None


def disturb_training(case: Case) -> None:
    """One run, disturbed up to three times."""
    rng = case.random
    kind, changes = draw_run(case.made, rng)
    size = rng.choice((1, 1, 2, 3, 4))
    if size > 1:
        changes |= {"batch_size": 12, "micro_batch_size": 1, "evaluation.batch_size": 1}
        changes |= {"distributed.strategy": rng.choice(("ddp", "ddp", "fsdp"))}
        changes |= {"model.dropout": 0.0, "distributed.timeout_minutes": 0.5}
    if changes.get("distributed.strategy") == "fsdp":
        changes |= {"optimizer.name": rng.choice(("adamw", "muon"))}
    changes |= {"num_steps": _STEPS, "checkpoints.every_steps": rng.choice((4, 7, 40))}
    if kind == "timed":
        changes |= {"minutes": 0.2, "checkpoints.every_steps": rng.choice((4, 7))}
    case.row = f"signals: train, {'one process' if size == 1 else 'ranks'}"
    case.what = f"{kind}, {size} processes"
    config = configure(case.made, case.place / "runs", changes)
    save_yaml(case.place / "run.yaml", config)
    whole = config.with_(name="whole")
    save_yaml(case.place / "whole.yaml", whole)
    if kind != "timed":
        Ranks(case.place, ["train", "--config", "whole.yaml"], size).wait([0])
    # Exact sums of copies have the same bits on any number of ranks.
    is_any_size = changes.get("distributed.strategy") == "ddp"
    run = RunFolder(config.run_folder)
    case.num_faults = rng.choice((1, 1, 2, 3))
    for _ in range(case.num_faults):
        fault = rng.choice(("INT", "TERM", "TERM", "KILL", "KILL", "STOP", "TERM one", "KILL one"))
        disturb(case, config, size if not is_any_size else rng.choice((1, 2, 3, 4)), fault)
    Ranks(case.place, words(run), size).wait([0])
    if kind == "timed":

        def replay() -> None:
            train(whole, clock=ReplayClock(run.metrics_file))

        Child(case.place, replay).wait([0])
    if found := compare_runs(whole.run_folder, run.path).differences:
        raise Lost(f"disturbed, the run ended otherwise: {found[0]}")
    check_no_leftovers(case.place / "runs")


def words(run: RunFolder) -> list[str]:
    return ["train", "--config", "run.yaml", *(["--resume"] if run.has_run() else [])]


def disturb(case: Case, config: RunConfig, size: int, fault: str) -> None:
    """Start the run or go on with it, let one thing happen, and see what it left."""
    rng, run = case.random, RunFolder(config.run_folder)
    before = last_step(run)
    ranks = Ranks(case.place, words(run), size)
    target = [rng.randrange(size)] if "one" in fault or rng.random() < 0.3 else list(range(size))
    step = rng.choice((0, before + rng.randrange(1, _STEPS)))
    begin = time.monotonic()
    late = rng.uniform(0.0, 0.6)
    while is_running(ranks) and (
        last_step(run) < step if step else time.monotonic() - begin < late
    ):
        time.sleep(0.002)
        if time.monotonic() - begin > 100:
            raise Lost(f"step {step} never came")
    number = signal.Signals[f"SIG{fault.split()[0]}"]
    ranks.signal(number, target)
    if number == signal.SIGSTOP:
        time.sleep(rng.uniform(0.0, 0.5))
        ranks.signal(signal.SIGCONT, target)
        ranks.wait([0])
        return
    # Before it listens a process dies of the signal; one that has saved says which it was.
    statuses = ranks.wait([0, 1, 2, -number, 128 + number, 130])
    found = last_step(run)
    if step == 0 or not found or 0 in statuses:
        return
    newest = max(CheckpointFolder(run.checkpoints).steps(), default=0)
    every = config.checkpoints.every_steps or 1
    # Killed between a record and the checkpoint that is due behind it, it has the one before.
    promised = found - 1 - (found - 1) % every if config.minutes is None else 0
    is_divided = config.distributed.strategy == "fsdp" and size > 1
    if number != signal.SIGKILL:
        promised = found
        if statuses[0] != 128 + number:
            raise Lost(f"{fault} ended it with status {statuses[0]}")
    elif 0 not in target and not is_divided and config.optimizer.name != "muon":
        promised = found
    elif is_divided:
        # The newest one may still be on its way.
        promised = max(0, promised - every)
    if newest < promised:
        raise Lost(f"after {fault} at step {found} the newest checkpoint is {newest}")


def is_running(ranks: Ranks) -> bool:
    states = [Path(f"/proc/{child.pid}/stat") for child in ranks.children]
    return all(state.read_text().rpartition(")")[2].split()[0] != "Z" for state in states)


def last_step(run: RunFolder) -> int:
    """How far the metrics are."""
    with contextlib.suppress(FileNotFoundError):
        records = map(parse_line, run.metrics_file.read_bytes().splitlines())
        return max((record["step"] for record in records if record), default=0)
    return 0


# Command lines that write below the folder they are run in, and what they take of a test's time.
VERBS = {
    "tokenizer train": "tokenizer train {made}/stories.txt --vocab-size 400 --out out/t.json",
    "data prepare": (
        "data prepare {made}/stories.txt --tokenizer {made}/tokenizer.json --num-threads 1 "
        "--out out"
    ),
    "data clean": "data clean {made}/stories.txt --min-characters 5 --out out/c.jsonl",
    "import huggingface": "import huggingface {made}/export --name r --runs-folder out",
    "export gguf": "export {made}/runs/base --to gguf out/m.gguf --force",
    "sweep": "sweep {made}/sweep.yaml --folder out",
    "new": "new {made}/stories.txt --name n --minutes 0.5 --num-steps 5 --max-tokens 4",
}
# What says when and where something took place.
_OF_THE_MOMENT = {"log.txt", "environment.json", "outcome.json", "state.json", "metrics.jsonl"}
_OF_THE_MOMENT |= {"trials.jsonl", "new.json", "train.yaml", "config.yaml"}


def disturb_verb(case: Case) -> None:
    """A verb that is killed at any moment, or finds no room; then the same again."""
    name = case.pick(list(VERBS))
    line = [word.format(made=case.made) for word in VERBS[name].split()]
    is_full = case.random.random() < 0.25
    case.row, case.what = f"{'no room for' if is_full else 'killed'}: other verbs", name
    expected, seconds, size = undisturbed(case, name, line)
    for _ in range(case.random.choice((1, 1, 2, 3))):
        number = signal.SIGXFSZ if is_full else case.random.choice((signal.SIGKILL, signal.SIGTERM))
        limit = int(size * case.random.uniform(0.0, 0.4)) if is_full else resource.RLIM_INFINITY
        limits = (limit, resource.RLIM_INFINITY)
        room = partial(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
        child = Child(case.place / "work", line, room)
        if not is_full:
            time.sleep(case.random.uniform(0.0, seconds))
            child.signal(number)
        child.wait([0, 1, 2, -number, 128 + number])
    Child(case.place / "work", line).wait([0])
    found = contents(case.place / "work")
    if found != expected:
        wrong = {path for path, _ in found.items() ^ expected.items()}
        raise Lost(f"{min(wrong)} differs from an undisturbed run's")


def undisturbed(case: Case, name: str, line: list[str]) -> tuple[dict[str, str], float, int]:
    """What the verb leaves when nothing happens, in how many seconds, and its largest file."""
    place = case.work / "undisturbed" / name.replace(" ", "_")
    place.parent.mkdir(exist_ok=True)
    with open(f"{place}.json", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not os.fstat(file.fileno()).st_size:
            begin = time.monotonic()
            Child(place, line).wait([0])
            seconds = time.monotonic() - begin
            size = max(path.stat().st_size for path in place.rglob("*") if path.is_file())
            file.write(json.dumps([contents(place), seconds, size]))
        file.seek(0)
        files, seconds, size = json.load(file)
    return files, seconds, size


def contents(folder: Path) -> dict[str, str]:
    found = hashes(folder)
    if "new" in folder.parts[-2:] or (folder / "prepared").exists():
        # Its settings follow from the speed of the machine: what is there is what counts.
        found = {path: "" for path in found if "checkpoints" not in path}
    return {
        path: "" if Path(path).name in _OF_THE_MOMENT or "/trials/" in path else one
        for path, one in found.items()
    }
