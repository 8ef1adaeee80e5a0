"""Every verb that writes: killed at random moments, and on disks that are full or read-only.

Then the same command again, without a fault: what it leaves must be what it always leaves.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml
from harness import Case, Child, Impossible, Lost

from groundup.files import hash_bytes, hash_file
from groundup.training.verify import comparable_records

MODEL = {"vocab_size": 300, "context_length": 16, "d_model": 16, "num_layers": 1, "num_heads": 2}
SETTINGS = {
    "num_steps": 40,
    "batch_size": 2,
    "num_threads": 1,
    "device": "cpu",
    "model": MODEL,
    "schedule": {"warmup_steps": 2},
    "evaluation": {"every_steps": 10, "num_windows": 4},
    "checkpoints": {"every_steps": 5},
    "logging": {"every_steps": 1},
    "samples": {"every_steps": 20, "max_tokens": 4},
}
TRAIN_TOKENIZER = "tokenizer train {made}/stories.txt --vocab-size "
PREPARE = (
    "data prepare {made}/stories.txt --tokenizer {made}/tokenizer.json --validation-fraction 0.1 "
    "--num-threads 1 --out "
)
TRAIN = "train --config {made}/run.yaml --name "
EXPORT = "export {made}/runs/whole --to "

# quickstart, ablate, scaling and verify-resume run these verbs' own code one after another.
VERBS = {
    "tokenizer train": TRAIN_TOKENIZER + "1000 --out out/t.json",
    "data prepare": PREPARE + "out",
    "train": TRAIN + "run --runs-folder out",
    "export huggingface": EXPORT + "huggingface out/export",
    "export gguf": EXPORT + "gguf out/m.gguf",
    "import huggingface": "import huggingface {made}/export --name r --runs-folder out",
    "data sample": "data sample --megabytes 1 --out out/s.txt",
    "tokenizer convert": "tokenizer convert {made}/tokenizer.json --to gpt2 out",
    "report": "report {made}/runs/whole --out out/report.html",
    "sweep": "sweep {made}/sweep.yaml",
}
SLOW = {"sweep"}
# What says when and where a run took place; `comparable_records` leaves the clocks out of metrics.
OF_THE_MOMENT = {"log.txt", "environment.json", "outcome.json", "state.json", "trials.jsonl"}


def make_artefacts(made: Path) -> None:
    """One of each, tiny; once for all processes that work in the same folder."""
    made.mkdir(parents=True, exist_ok=True)
    data = {"shards": str(made / "shards"), "tokenizer": str(made / "tokenizer.json")}
    variants = {"short": {"num_steps": 4}, "long": {"num_steps": 40}}
    sweep = {"name": "small", "base": str(made / "run.yaml"), "variants": variants}
    with locked(made / "made.lock") as is_made:
        if is_made:
            return
        (made / "run.yaml").write_text(yaml.safe_dump({**SETTINGS, "data": data}), "utf-8")
        (made / "sweep.yaml").write_text(yaml.safe_dump(sweep), "utf-8")
        for command in (
            "data sample --megabytes 0.3 --out stories.txt",
            TRAIN_TOKENIZER + "300 --out tokenizer.json",
            PREPARE + "shards",
            TRAIN + "whole",
            EXPORT + "huggingface export",
        ):
            Child(made, words_of(command, made)).wait().check([0])
        # A run that was killed in the middle.
        child = Child(made, words_of(TRAIN + "half", made))
        end = time.monotonic() + 120
        while not (made / "runs" / "half" / "checkpoints" / "step_000020").exists():
            if time.monotonic() > end:
                raise Lost("the run that is to be killed never saved")
            time.sleep(0.001)
        child.wait(0.0, kill=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold a lock; tells whether a block like this one has ended well before."""
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # Another process may have written since the file was opened.
        yield bool(file.seek(0, os.SEEK_END))
        file.write("done\n")


def words_of(command: str, made: Path) -> list[str]:
    return [word.format(made=made) for word in command.split()]


def pick_verb(case: Case, fault: str) -> tuple[str, list[str]]:
    """A verb to disturb, and its command line; those of a few seconds not in quick runs."""
    name = case.pick([name for name in VERBS if not (case.quick and name in SLOW)])
    case.row = f"{fault}: {name}"
    return name, words_of(VERBS[name], case.made)


def command_line(case: Case, words: list[str]) -> list[str]:
    """What a user types, the first time or to go on."""
    has_begun = words[0] == "train" and any(case.place.glob("out/*/config.yaml"))
    return [*words, "--resume"] if has_begun else words


def kill(case: Case) -> None:
    """Kill once or more, at moments spread over the time that the verb takes undisturbed."""
    name, words = pick_verb(case, "killed")
    _, seconds, _ = undisturbed(case, name)
    case.num_faults = case.random.choice((1, 1, 2, 3))
    for _ in range(case.num_faults):
        child = Child(case.place, command_line(case, words))
        ended = child.wait(case.random.uniform(0.0, 1.05 * seconds), kill=True)
        ended.check([0, 1, 2, -signal.SIGKILL])
        case.note("MB", ended.growth_bytes / 2**20)
    finish(case, name)


def fill(case: Case) -> None:
    """A disk with room for some of the output, or for none of it."""
    is_limit = case.random.random() < 0.5
    name, words = pick_verb(case, "file size limited" if is_limit else "disk full")
    room = int(undisturbed(case, name)[2] * case.random.uniform(0.0, 1.0))
    if is_limit:
        # The limit of one file is met like a full disk; it needs no rights.
        limit = (max(1, room // 4), resource.RLIM_INFINITY)
        limited = Child(case.place, words, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
        limited.wait().check()
        finish(case, name)
        return
    with small_disk(case.place, f"size={max(4096, room)}") as remount:
        Child(case.place, words).wait().check()
        remount("size=64m")
        finish(case, name)


def freeze(case: Case) -> None:
    """A disk that can be read only."""
    name, words = pick_verb(case, "read-only disk")
    with small_disk(case.place, "size=64m") as remount:
        remount("ro")
        ended = Child(case.place, words).wait()
        ended.check()
        if ended.status == 0 and undisturbed(case, name)[0]:
            raise Lost("it said that it had written to a read-only disk")
        remount("rw")
        finish(case, name)


def undisturbed(case: Case, name: str) -> tuple[dict[str, str], float, int]:
    """What the verb leaves when nothing happens, in how many seconds, and the bytes on disk."""
    place = case.work / "undisturbed" / name.replace(" ", "_")
    place.mkdir(parents=True, exist_ok=True)
    record = Path(f"{place}.json")
    with locked(Path(f"{place}.lock")) as is_known:
        if not is_known:
            ended = Child(place, words_of(VERBS[name], case.made)).wait()
            ended.check([0])
            size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
            record.write_text(json.dumps([contents(place), ended.seconds, size]))
    files, seconds, size = json.loads(record.read_text())
    return files, seconds, size


def finish(case: Case, name: str) -> None:
    """Run the command again, without a fault."""
    ended = Child(case.place, command_line(case, words_of(VERBS[name], case.made))).wait()
    ended.check()
    expected, found = undisturbed(case, name)[0], contents(case.place)
    if wrong := [path for path in expected if found.get(path) != expected[path]]:
        end = ended.error.strip().splitlines()[-1:] or [""]
        raise Lost(f"{', '.join(wrong[:3])} differ from an undisturbed run's ({end[0]})")
    if extra := found.keys() - expected.keys():
        raise Lost(f"left behind: {', '.join(sorted(extra)[:3])}")


def contents(folder: Path) -> dict[str, str]:
    """Every file by its path: its hash, without clocks."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.name == "metrics.jsonl":
            found[name] = hash_bytes(json.dumps(comparable_records(path)).encode())
        elif path.is_file() and path.name not in OF_THE_MOMENT and path.parent.name != "trials":
            found[name] = hash_file(path)
    return found


@contextlib.contextmanager
def small_disk(place: Path, options: str) -> Iterator[Callable[[str], bool]]:
    def mount(*words: str | Path) -> bool:
        with contextlib.suppress(OSError):
            return subprocess.run(["mount", *words], capture_output=True).returncode == 0
        return False

    if os.geteuid() != 0:
        raise Impossible("only root can mount a disk of a few kilobytes")
    if not mount("-t", "tmpfs", "-o", options, "none", place):
        raise Impossible("this machine lets nobody mount a disk")
    try:
        yield lambda options: mount("-o", f"remount,{options}", place)
    finally:
        subprocess.run(["umount", "-l", place], check=False, capture_output=True)
