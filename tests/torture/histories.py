"""Runs of everything that writes, on a disk that loses power at any moment of them.

A workload is recorded once; from what each history leaves, what was promised must be there, and the
same command must end with the same bits. States that look the same are tried once; going on takes
long, so it is tried from some of them only.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from harness import Case, Lost
from simulated_disk import Recorder, State, draw_histories

from groundup.checkpoint import CheckpointFolder
from groundup.cli import new
from groundup.cli.main import main
from groundup.config import load_settings, save_yaml
from groundup.data.prepare import prepare
from groundup.data.samples import write_sample_corpus
from groundup.data.shards import verify
from groundup.errors import GroundupError
from groundup.experiments import runner
from groundup.experiments.spec import SweepConfig
from groundup.experiments.sweep import run_sweep
from groundup.experiments.sweep_folder import SweepFolder
from groundup.files import find_folders, hash_file
from groundup.interop import export_huggingface
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer, train_bpe
from groundup.training import train
from groundup.training.clock import Clock, ReplayClock
from groundup.training.verify import comparable_records, compare_runs

# Each in its turn, some more often.
ORDER = """train;data prepare;train;export gguf;train;sweep;train;tokenizer train;data prepare;train
export huggingface;train;data clean;import huggingface;new""".replace("\n", ";").split(";")
VERBS = yaml.safe_load(Path(__file__).with_name("verbs.yaml").read_text("utf-8"))


def make_artefacts(made: Path) -> None:
    """A tokenizer, shards, conversations and a run to begin with."""
    made.mkdir(parents=True)
    write_sample_corpus(made / "stories.txt", 0.01)
    write_sample_corpus(made / "chats.jsonl", 0.01, kind="dialogues")
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    learned = train_bpe(made / "stories.txt", 280, special)
    Tokenizer(*learned, special).save(made / "tokenizer.json")
    prepare_shards(made, made / "shards")
    base = configure(made, made / "runs", {"name": "base", "model.tie_embeddings": True})
    train(base)
    export_huggingface(made / "runs" / "base", made / "export")
    save_yaml(made / "run.yaml", base.with_(name=None))
    sweep = f"name: small\nseeds: [1, 2]\nbase: {made / 'run.yaml'}\n"
    (made / "sweep.yaml").write_text(sweep)


def prepare_shards(made: Path, out: Path, **options: Any) -> None:
    given: dict[str, Any] = {"num_threads": 1, "validation_fraction": 0.1, **options}
    prepare([made / "stories.txt"], Tokenizer.load(made / "tokenizer.json"), out, **given)


def configure(made: Path, runs: Path, changes: dict[str, Any]) -> RunConfig:
    data = {"data.shards": str(made / "shards"), "data.tokenizer": str(made / "tokenizer.json")}
    settings = Path(__file__).with_name("run.yaml")
    return load_settings(RunConfig, settings, {"runs_folder": str(runs), **data, **changes})


def draw_run(made: Path, rng: random.Random) -> tuple[str, dict[str, Any]]:
    """What kind of run it is, and settings of its own."""
    text = Path(__file__).with_name("choices.yaml").read_text("utf-8")
    choices = yaml.safe_load(text.replace("{made}", str(made)))
    kind = rng.choice(list(choices["kinds"]))
    drawn = {name: rng.choice(options) for name, options in choices["settings"].items()}
    drawn["tuning.lora_rank"] = drawn["tuning.lora_rank"] if kind == "tuned" else None
    return kind, drawn | choices["kinds"][kind]


class Train:
    """A run with settings of the case's own, stopped now and then."""

    def __init__(self, case: Case, root: Path) -> None:
        self.made, self.root = case.made, root
        kind, changes = draw_run(self.made, case.random)
        self.stops = sorted(case.random.sample(range(1, 8), case.random.choice((0, 1, 1, 2))))
        case.row, case.what = "power lost: train", kind
        self.config = configure(self.made, root / "runs", changes)
        self.whole = configure(self.made, root.with_name("whole"), changes)
        self.run = RunFolder(self.config.run_folder)
        self.saved: dict[int, Any] = {}
        # A clock of its own: a timed run takes as many steps on any machine.
        ticks = iter(range(10**9))
        train(self.whole, clock=Clock(now=lambda: float(next(ticks))))
        self.metrics = RunFolder(self.whole.run_folder).metrics_file

    def _train(self, resume: bool, stop_after: int | None = None) -> None:
        clock = Clock(stop_after=stop_after)
        if self.config.minutes:
            clock = ReplayClock(self.metrics, stop_after=stop_after)
        train(self.config, resume=resume, clock=clock)

    def record(self, disk: Recorder) -> None:
        def saved(folder: CheckpointFolder, step: int, *_: Any) -> int:
            self.saved[step] = folder.load(step).record.files
            return step

        is_begun = marking(disk, RunFolder, "begin", lambda *_: "begun")
        with is_begun, marking(disk, CheckpointFolder, "save", saved):
            for number, stop in enumerate((*self.stops, None)):
                self._train(number > 0, stop)

    def check(self, marks: list[Any]) -> None:
        if "begun" in marks and not self.run.has_run():
            raise Lost("a run that had begun is gone")
        promised = max((mark for mark in marks if mark != "begun"), default=0)
        checkpoints = CheckpointFolder(self.run.checkpoints)
        if not checkpoints.steps() and not promised:
            return
        # Half of one under its name is lost, also of one that is to be dropped.
        *_, newest = [checkpoints.load(step) for step in checkpoints.steps()]
        if newest.step < promised:
            raise Lost(f"step {promised} was saved, and the newest checkpoint is {newest.step}")
        if newest.record.files != self.saved[newest.step]:
            raise Lost(f"the checkpoint of step {newest.step} is not what was saved")
        self.run.cut_metrics(newest.step)
        expected = [one for one in comparable_records(self.metrics) if one["step"] <= newest.step]
        if comparable_records(self.run.metrics_file) != expected:
            raise Lost(f"metrics of the steps before the checkpoint {newest.step} are gone")

    def finish(self) -> None:
        self._train(self.run.has_run())
        if found := compare_runs(self.whole.run_folder, self.run.path).differences:
            raise Lost(f"resumed, the run ended otherwise: {found[0]}")
        outcome = self.run.read_outcome()
        if outcome is None or outcome.state != "finished":
            raise Lost("the outcome of the finished run is missing")
        check_no_leftovers(self.root)


class Verb:
    """Command lines that write below `root`, one over what another has made."""

    def __init__(self, case: Case, root: Path) -> None:
        self.name, self.made, self.root, rng = case.turn(ORDER), case.made, root, case.random
        case.row = f"power lost: {self.name}"
        verb = VERBS.get(self.name, {"out": "out", "lines": []})
        self.out, self.versions = root / "deep" / verb["out"], list[Any]()
        lines = [line.format(made=self.made, out=self.out) for line in verb["lines"]]
        self.commands: list[Callable[[], object]] = [partial(self._run, line) for line in lines]
        # Whether what was there stays until the new is whole.
        self.is_replaced_whole = self.name not in ("data prepare", "import huggingface")
        if self.name == "data prepare":
            overwrites, fraction = rng.random() < 0.5, rng.choice((0.1, 0.0, 1e-9))
            for size, part in [(2_000, 0.1), (3_000, fraction)][not overwrites :]:
                options = {"overwrite": overwrites, "shard_bytes": size}
                prepared = partial(prepare_shards, self.made, self.out, validation_fraction=part)
                self.commands.append(partial(prepared, **options))

    def _run(self, line: str) -> None:
        os.chdir(self.root)
        # A command counts its minutes from the start of its process.
        begun = mock.patch.object(new, "STARTED", time.monotonic())
        with begun, contextlib.redirect_stderr(io.StringIO()) as told:
            status = main(line.split())
        if status:
            raise Lost(f"it ended with status {status}: {told.getvalue()[-300:]}")

    def find(self) -> Any:
        """What whole there is, if anything."""
        run = RunFolder(self.out / "r")
        if self.name == "new":
            # What it makes follows from the speed of the machine.
            return None
        if self.name == "data prepare":
            if not (self.out / "index.json").exists():
                return None
            index = verify(self.out, Tokenizer.load(self.made / "tokenizer.json"))
            return [[shard.file, shard.hash] for shard in index.shards]
        if self.name == "import huggingface":
            return hashes(run.checkpoints) if run.has_run() else None
        # Between two renames a folder is where the next export looks for it.
        found = find_folders(self.out.parent).get(self.out.name)
        return hashes(found) if found else hash_file(self.out) if self.out.exists() else None

    def record(self, disk: Recorder) -> None:
        """Do it, and mark each promise once it is made."""
        for command in self.commands:
            command()
            disk.mark("done")
            self.versions += [self.find()] if len(self.versions) < len(self.commands) else []

    def check(self, marks: list[Any]) -> None:
        """Whether what was promised is there, and nothing is what it is not."""
        is_under_way = not self.is_replaced_whole and len(marks) < len(self.commands)
        allowed = [None, *self.versions][0 if is_under_way else len(marks) :]
        if self.find() not in allowed:
            raise Lost(f"after {len(marks)} commands it is neither the old nor the new")

    def finish(self) -> None:
        """Go on as a user would, to the end that an undisturbed run has."""
        self.commands[-1]()
        if self.find() != self.versions[-1]:
            raise Lost("it ends with something else than undisturbed")
        check_no_leftovers(self.root)


class Sweep(Verb):
    """Two trials, in this process, so that their writes are seen too."""

    def __init__(self, case: Case, root: Path) -> None:
        super().__init__(case, root)
        config = configure(self.made, root / "unused", {"num_steps": 4, "model.dropout": 0.2})
        base = {**config.model_dump(mode="json"), "name": None}
        values = {"name": "small", "base": base, "seeds": [1, 2], "variants": {"a": {}}}
        values["keep_checkpoints"] = case.random.choice(("none", "last"))
        self.spec = SweepConfig.model_validate(values)
        self.commands = [self._sweep]

    def _sweep(self) -> None:
        with mock.patch.multiple(runner, subprocess=InProcess, _POLL_SECONDS=0.0):
            run_sweep(self.spec, self.out, jobs=1)

    def find(self) -> Any:
        return {
            name: [record.status, record.loss, record.best_validation_loss, record.step]
            for name, record in SweepFolder(self.out).records().items()
        }

    def record(self, disk: Recorder) -> None:
        with marking(disk, SweepFolder, "add_record", lambda _, record: record.trial):
            super().record(disk)

    def check(self, marks: list[Any]) -> None:
        if lost := {*marks} - {"done"} - {*self.find()}:
            raise Lost(f"the result of {min(lost)} is gone")


class InProcess:
    """In place of `subprocess`: a trial is trained when it is started."""

    DEVNULL = STDOUT = None

    class Popen:
        returncode = 0

        def __init__(self, command: list[str], **options: Any) -> None:
            config = load_settings(RunConfig, Path(command[command.index("--config") + 1]))
            train(config, resume="--resume" in command)

        def poll(self) -> int:
            return 0


@contextlib.contextmanager
def marking(
    disk: Recorder, owner: type, name: str, promise: Callable[..., object]
) -> Iterator[None]:
    """Mark what a method promises when it returns."""
    real = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        result = real(*arguments)
        disk.mark(promise(*arguments))
        return result

    with mock.patch.object(owner, name, call):
        yield


def lose_power(case: Case, num_histories: int = 400, num_continued: int = 8) -> None:
    """Record one workload, and try some of its histories."""
    root = case.place / "disk"
    logging.getLogger("groundup").setLevel(logging.CRITICAL)
    kinds: dict[str, Callable[[Case, Path], Train | Verb]] = {"train": Train, "sweep": Sweep}
    workload = kinds.get(case.turn(ORDER), Verb)(case, root)
    root.mkdir()
    disk = Recorder(str(root))
    with disk.recording():
        workload.record(disk)
    shutil.rmtree(root)
    case.num_faults, seed = num_histories, f"{case.seed}/{case.number}"
    tried = dict[bytes, tuple[int, State]]()
    for number, state, marks in draw_histories(disk.history, seed, num_histories):
        if (key := fingerprint(state, marks)) not in tried:
            tried[key] = number, state
            with left_on_disk(root, number, state):
                workload.check(marks)
    continued = case.random.sample([*tried.values()], min(num_continued, len(tried)))
    for number, state in continued:
        with left_on_disk(root, number, state):
            workload.finish()
    # Full from some write on: no traceback, nothing wrong, and with room again it goes on.
    with left_on_disk(root, -1, {}):
        full = Recorder(str(root), case.random.randrange(len(disk.history)))
        with contextlib.suppress(OSError, GroundupError, Lost), full.recording():
            workload.record(full)
        workload.finish()
    case.counts.update({"states": len(tried), "continued": len(continued)})


@contextlib.contextmanager
def left_on_disk(root: Path, number: int, state: State) -> Iterator[None]:
    """What a history leaves, for the block, whose errors tell which one it was."""
    root.mkdir()
    for path, data in state.items():
        if data is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(data)
    try:
        yield
    except (Lost, GroundupError, OSError) as error:
        raise Lost(f"history {number}: {type(error).__name__}: {error}") from error
    finally:
        shutil.rmtree(root)


def fingerprint(state: State, marks: list[Any]) -> bytes:
    """The same for states that look the same: what a log holds is nobody's matter."""
    found = hashlib.blake2b(str(len(marks)).encode())
    for path, data in state.items():
        if not path.endswith(".txt"):
            found.update(f"{path}\0{-1 if data is None else len(data)}\0".encode())
            found.update(data or b"")
    return found.digest()


def hashes(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): hash_file(path) for path in files}


def check_no_leftovers(root: Path) -> None:
    """Of what killed writers left nothing stays once the work is done."""
    names = [path.name for path in root.rglob("*")]
    if left := [name for name in names if name.startswith((".", "shard_")) or "partial" in name]:
        raise Lost(f"left behind: {left[0]}")
