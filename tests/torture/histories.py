"""Workloads on a simulated disk that loses power at any moment.

A workload is recorded once. In the state that each history leaves, everything guaranteed must
exist, and repeating the command must give the same bits. Equal states are tried once, and only some
of them are continued, because that is slow.
"""

import contextlib
import io
import logging
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from harness import Case, Lost
from simulated_disk import Recorder, State, sample_histories

from groundup.checkpoint import CheckpointFolder
from groundup.cli import new
from groundup.cli.main import main
from groundup.config import load_settings, save_yaml
from groundup.data.prepare import prepare
from groundup.data.shards import verify
from groundup.errors import GroundupError
from groundup.experiments import runner
from groundup.experiments.sweep_folder import SweepFolder
from groundup.files import find_folders, hash_file
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.training import train
from groundup.training.clock import Clock, ReplayClock
from groundup.training.verify import comparable_records, compare_runs

VERBS = yaml.safe_load(Path(__file__).with_name("verbs.yaml").read_text("utf-8"))


def make_artefacts(made: Path) -> None:
    """Create a tokenizer, shards, conversations and a run to start from."""
    made.mkdir(parents=True)
    base = configure(made, made / "runs", {"name": None, "model.tie_embeddings": True})
    save_yaml(made / "run.yaml", base)
    for name, spec in VERBS["sweeps"].items():
        (made / name).write_text(yaml.safe_dump(spec))
    for line in VERBS["artefacts"]:
        assert not main(line.format(made=made).split()), line


def configure(made: Path, runs: Path, changes: dict[str, Any]) -> RunConfig:
    data = {"data.shards": str(made / "shards"), "data.tokenizer": str(made / "tokenizer.json")}
    settings = Path(__file__).with_name("run.yaml")
    return load_settings(RunConfig, settings, {"runs_folder": str(runs), **data, **changes})


def sample_run(made: Path, rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Sample the kind of a run, and its settings."""
    text = Path(__file__).with_name("choices.yaml").read_text("utf-8")
    choices = yaml.safe_load(text.replace("{made}", str(made)))
    kind = rng.choice(list(choices["kinds"]))
    drawn = {name: rng.choice(options) for name, options in choices["settings"].items()}
    drawn["tuning.lora_rank"] = drawn["tuning.lora_rank"] if kind == "tuned" else None
    return kind, drawn | choices["kinds"][kind]


class Train:
    """A training run with random settings, stopped a few times."""

    def __init__(self, case: Case, root: Path) -> None:
        self.made, self.root = case.made, root
        case.what, changes = sample_run(self.made, case.random)
        self.stops = sorted(case.random.sample(range(1, 8), case.random.choice((0, 1, 1, 2))))
        self.config = configure(self.made, root / "runs", changes)
        self.whole = configure(self.made, root.with_name("whole"), changes)
        self.run = RunFolder(self.config.run_folder)
        self.saved: dict[int, Any] = {}
        # A fake clock: a timed run takes the same number of steps on any machine.
        train(self.whole, clock=Clock(now=map(float, range(10**9)).__next__))
        self.metrics = RunFolder(self.whole.run_folder).metrics_file
        # A tuned run ends with its best checkpoint, and drops the later ones.
        self.last = max(CheckpointFolder(self.metrics.with_name("checkpoints")).steps())

    def _train(self, resume: bool, stop_after: int | None = None) -> None:
        clock = Clock(stop_after=stop_after)
        if self.config.minutes:
            clock = ReplayClock(self.metrics, stop_after=stop_after)
        train(self.config, resume=resume, clock=clock)

    def record(self, disk: Recorder) -> None:
        def saved(folder: CheckpointFolder, step: int, *_: Any) -> int:
            self.saved[step] = folder.load(step).record.files
            return step

        is_begun = marking(disk, RunFolder, "begin", lambda *_: 0)
        with is_begun, marking(disk, CheckpointFolder, "save", saved):
            for number, stop in enumerate((*self.stops, None)):
                self._train(number > 0, stop)

    def check(self, marks: list[Any]) -> None:
        if marks and not self.run.has_run():
            raise Lost("a run that had begun is gone")
        promised = min(max(marks, default=0), self.last)
        checkpoints = CheckpointFolder(self.run.checkpoints)
        if not checkpoints.steps() and not promised:
            return
        # All of them must be intact, including those that are about to be removed.
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
        if (outcome := self.run.read_outcome()) is None or outcome.state != "finished":
            raise Lost("the outcome of the finished run is missing")
        check_no_leftovers(self.root)


class Verb:
    """Command lines that write below `root`, one after the other."""

    def __init__(self, case: Case, root: Path, name: str) -> None:
        self.name, self.root, verb, folder = name, root, VERBS["verbs"][name], root / "deep"
        self.out, self.versions = folder / verb["out"], list[Any]()
        drawn = {key: case.random.choice(some) for key, some in verb.get("drawn", {}).items()}
        drawn |= {"made": case.made, "folder": folder, "out": self.out}
        self.commands = [line.format(**drawn).split() for line in verb["lines"]]

    def run(self, command: list[str]) -> int:
        os.chdir(self.root)
        # A command counts its minutes from the start of its process; small shards for small texts.
        begun = mock.patch.object(new, "STARTED", time.monotonic())
        with begun, mock.patch.dict(prepare.__kwdefaults__, shard_bytes=3_000):
            return main(command)

    def find(self) -> Any:
        """Return the complete output, if any. That of `new` depends on the machine's speed."""
        if self.name.startswith("data prepare"):
            is_finished = (self.out / "index.json").exists()
            shards = verify(self.out).shards if is_finished else []
            return [[shard.file, shard.hash] for shard in shards] or None
        if self.name == "sweep":
            records = SweepFolder(self.out).records().values()
            return {one.trial: [one.status, one.ranking_loss] for one in records}
        # Between two renames, the folder is where the next export looks for it.
        found = find_folders(self.out.parent).get(self.out.name, self.out)
        files = [found, *sorted(found.rglob("*"))]
        return {path.name: hash_file(path) for path in files if path.is_file()} or None

    def record(self, disk: Recorder) -> None:
        """Run the commands, and mark each guarantee when it is given."""
        with marking(disk, SweepFolder, "add_record", lambda _, record: record.trial):
            for command in self.commands:
                self._do(command)
                disk.mark(None)
                self.versions += [self.find()] * (len(self.versions) < len(self.commands))

    def check(self, marks: list[Any]) -> None:
        """Check that everything guaranteed exists, and that the output is one of the versions."""
        found, num_done = self.find(), marks.count(None)
        if self.name == "sweep":
            if lost := {*marks} - {None, *found}:
                raise Lost(f"the result of {min(lost)} is gone")
            for path in self.out.glob("runs/*/checkpoints/step_*"):
                CheckpointFolder(path.parent).load(int(path.name[5:]))
            return
        # --overwrite removes the old output first; otherwise it stays until the new is complete.
        is_gone = "--overwrite" in self.name and num_done < len(self.commands)
        if found not in [None, *self.versions][0 if is_gone else num_done :]:
            raise Lost(f"after {num_done} commands it is neither the old nor the new")

    def finish(self) -> None:
        """Repeat the command, and check that the result is that of an undisturbed run."""
        self._do(self.commands[-1])
        if self.find() != self.versions[-1]:
            raise Lost("it ends with something else than undisturbed")
        check_no_leftovers(self.root)

    def _do(self, command: list[str]) -> None:
        with contextlib.redirect_stderr(io.StringIO()) as output:
            status = self.run(command)
        if status:
            raise Lost(f"it ended with status {status}: {output.getvalue()[-300:]}")


class InProcess:
    """Replaces `subprocess`: starting a trial trains it in this process."""

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
    """Mark what a method guarantees when it returns."""
    real = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        result = real(*arguments)
        disk.mark(promise(*arguments))
        return result

    with mock.patch.object(owner, name, call):
        yield


# Trials train in this process, so that their writes are recorded too.
@mock.patch.multiple(runner, subprocess=InProcess, _POLL_SECONDS=0.0)
def lose_power(case: Case, num_histories: int = 400, num_continued: int = 8) -> None:
    """Record one workload, and try some of its histories."""
    root = case.place / "disk"
    logging.getLogger("groundup").setLevel(logging.CRITICAL)
    name = case.turn(VERBS["order"])
    case.row = f"power lost: {name}"
    workload = Train(case, root) if name == "train" else Verb(case, root, name)
    root.mkdir()
    disk = Recorder(str(root))
    with disk.recording():
        workload.record(disk)
    shutil.rmtree(root)
    case.counts["injected"], seed = num_histories, f"{case.seed}/{case.number}"
    tried = dict[Any, tuple[int, State]]()
    for number, state, marks in sample_histories(disk.history, seed, num_histories):
        # Logs do not matter.
        left = frozenset(one for one in state.items() if not one[0].endswith(".txt"))
        if (key := (len(marks), left)) not in tried:
            tried[key] = number, state
            with left_on_disk(root, number, state):
                workload.check(marks)
    continued = case.random.sample([*tried.values()], min(num_continued, len(tried)))
    for number, state in continued:
        with left_on_disk(root, number, state):
            workload.finish()
    # A full disk from some write on: no traceback, and with free space the work continues.
    with left_on_disk(root, -1, {}):
        full = Recorder(str(root), case.random.randrange(len(disk.history)))
        with contextlib.suppress(OSError, GroundupError, Lost), full.recording():
            workload.record(full)
        workload.finish()
    case.counts.update(states=len(tried), continued=len(continued))


@contextlib.contextmanager
def left_on_disk(root: Path, number: int, state: State) -> Iterator[None]:
    """Write the state that a history leaves; errors in the block name the history."""
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


def check_no_leftovers(root: Path) -> None:
    """Check that no temporary files of killed writers remain."""
    names = [path.name for path in root.rglob("*")]
    if left := [name for name in names if name.startswith((".", "shard_")) or "partial" in name]:
        raise Lost(f"left behind: {left[0]}")
