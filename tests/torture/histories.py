"""Runs of everything that writes, on a disk that loses power at any moment of them.

A workload is recorded once; from what each history leaves, what was promised must be there, and the
same command must end with the same bits. States that look the same are tried once; going on takes
long, so it is tried from some of them only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from harness import Case, Lost
from simulated_disk import Histories, Recorder, State, materialize

from groundup.checkpoint import CheckpointFolder
from groundup.config import load_settings, save_yaml
from groundup.data.prepare import prepare
from groundup.data.shards import verify
from groundup.errors import GroundupError
from groundup.experiments import runner
from groundup.experiments.spec import SweepConfig
from groundup.experiments.sweep import run_sweep
from groundup.experiments.sweep_folder import SweepFolder
from groundup.files import find_folders, hash_file
from groundup.interop import export_gguf, export_huggingface
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runs.metrics import parse_line
from groundup.tokenizer import Tokenizer, train_bpe
from groundup.training import train
from groundup.training.clock import Clock, ReplayClock
from groundup.training.metrics import MEASURED
from groundup.training.verify import compare_runs

END = "<|endoftext|>"
RUN: dict[str, Any] = {
    "name": "run",
    "num_steps": 8,
    "batch_size": 2,
    "num_threads": 1,
    "device": "cpu",
    "optimizer.learning_rate": 1e-2,
    "schedule.warmup_fraction": 0.25,
    "evaluation.every_steps": 4,
    "evaluation.num_windows": 2,
    "checkpoints.every_steps": 2,
    "logging.every_steps": 1,
}
MODEL = {"vocab_size": 280, "context_length": 40, "d_model": 8, "num_layers": 1, "num_heads": 2}
RUN |= {f"model.{name}": value for name, value in MODEL.items()}


def make_artefacts(made: Path) -> None:
    """A tokenizer, shards, conversations and a run to begin with."""
    made.mkdir(parents=True)
    lines = [f"Cat {number} ate {number * 7 % 13} fish." for number in range(300)]
    (made / "stories.txt").write_text(f"\n{END}\n".join(lines))
    chats = [
        [{"role": "user", "content": line}, {"role": "assistant", "content": line[:9]}]
        for line in lines[:40]
    ]
    text = "".join(json.dumps({"messages": messages}) + "\n" for messages in chats)
    (made / "chats.jsonl").write_text(text)
    special = [END, "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(*train_bpe(made / "stories.txt", 280, special), special)
    tokenizer.save(made / "tokenizer.json")
    prepare_shards(made, made / "shards")
    base = configure(made, made / "runs", {"name": "base", "model.tie_embeddings": True})
    train(base)
    export_huggingface(made / "runs" / "base", made / "export")
    config = base.with_(name=None)
    save_yaml(made / "run.yaml", config)
    sweep = {"name": "small", "base": str(made / "run.yaml"), "seeds": [1, 2]}
    (made / "sweep.yaml").write_text(yaml.safe_dump(sweep), "utf-8")


def prepare_shards(made: Path, out: Path, **options: Any) -> None:
    given: dict[str, Any] = {"num_threads": 1, "validation_fraction": 0.1, **options}
    prepare([made / "stories.txt"], Tokenizer.load(made / "tokenizer.json"), out, **given)


def configure(made: Path, runs: Path, changes: dict[str, Any]) -> RunConfig:
    data = {"data.shards": str(made / "shards"), "data.tokenizer": str(made / "tokenizer.json")}
    return load_settings(RunConfig, None, {**RUN, "runs_folder": str(runs), **data, **changes})


class Workload:
    """Something that writes below `root`."""

    def __init__(self, case: Case, root: Path) -> None:
        self.made, self.root, self.random = case.made, root, case.random

    def record(self, disk: Recorder) -> None:
        """Do it, and mark each promise once it is made."""
        raise NotImplementedError

    def check(self, marks: list[Any]) -> None:
        """Whether what was promised is there, and nothing is what it is not."""
        raise NotImplementedError

    def finish(self, marks: list[Any]) -> None:
        """Go on as a user would, to the end that an undisturbed run has."""
        raise NotImplementedError


def draw_run(made: Path, rng: random.Random) -> tuple[str, dict[str, Any]]:
    """What kind of run it is, and settings of its own."""
    changes: dict[str, Any] = {
        "optimizer.name": rng.choice(("adamw", "muon", "sgd")),
        "optimizer.average_over": rng.choice((None, 0.4)),
        "model.dropout": rng.choice((0.0, 0.3)),
        "micro_batch_size": rng.choice((1, 2)),
        "seed": rng.randrange(100),
        "checkpoints.every_steps": rng.choice((1, 2, 3)),
        "checkpoints.keep_last": rng.choice((1, 2, 3)),
        "checkpoints.keep_best": rng.random() < 0.5,
        "multi_token_weight": rng.choice((0.0, 0.3)),
    }
    kind = rng.choice(("plain", "plain", "timed", "tuned", "masked"))
    if kind == "tuned":
        changes |= {"start_from": made / "runs" / "base", "model.tie_embeddings": True}
        changes |= {"tuning.chats": [made / "chats.jsonl"], "model.dropout": 0.0}
        changes |= {"tuning.lora_rank": rng.choice((None, 2)), "multi_token_weight": 0.0}
    elif kind == "masked":
        changes |= {"model.document_separator": "auto"}
    elif kind == "timed":
        changes |= {"minutes": 0.4, "num_steps": None}
    return kind, changes


class Train(Workload):
    """A run with settings of the case's own, stopped now and then."""

    def __init__(self, case: Case, root: Path) -> None:
        super().__init__(case, root)
        rng = case.random
        kind, changes = draw_run(self.made, rng)
        self.stops = sorted(rng.sample(range(1, 8), rng.choice((0, 1, 1, 2))))
        case.row = f"power lost: train, {kind}"
        self.config = configure(self.made, root / "runs", changes)
        self.whole = configure(self.made, root.with_name("whole"), changes)
        self.run = RunFolder(self.config.run_folder)
        self.saved: dict[int, Any] = {}
        # A clock of its own: a timed run takes as many steps on any machine.
        ticks = iter(range(10**9))
        train(self.whole, clock=Clock(now=lambda: float(next(ticks))))
        records = RunFolder(self.whole.run_folder).metrics_file.read_bytes().splitlines()
        self.records = [_comparable(json.loads(line)) for line in records]

    def _train(self, resume: bool, stop_after: int | None = None) -> None:
        clock = Clock(stop_after=stop_after)
        if self.config.minutes:
            whole = RunFolder(self.whole.run_folder).metrics_file
            clock = ReplayClock(whole, stop_after=stop_after)
        train(self.config, resume=resume, clock=clock)

    def record(self, disk: Recorder) -> None:
        save, begin = CheckpointFolder.save, RunFolder.begin

        def marked_save(folder: CheckpointFolder, step: int, *arguments: Any) -> Path:
            path = save(folder, step, *arguments)
            self.saved[step] = folder.load(step).record.files
            disk.mark("saved", step)
            return path

        def marked_begin(*arguments: Any) -> None:
            begin(*arguments)
            disk.mark("begun")

        with (
            mock.patch.object(CheckpointFolder, "save", marked_save),
            mock.patch.object(RunFolder, "begin", marked_begin),
        ):
            for number, stop in enumerate((*self.stops, None)):
                self._train(number > 0, stop)
        disk.mark("done")

    def check(self, marks: list[Any]) -> None:
        if ("begun",) in marks and not self.run.has_run():
            raise Lost("a run that had begun is gone")
        promised = max((mark[1] for mark in marks if mark[0] == "saved"), default=0)
        checkpoints = CheckpointFolder(self.run.checkpoints)
        if not checkpoints.steps() and not promised:
            return
        # Half of one under its name is lost, also of one that is to be dropped.
        *_, newest = [checkpoints.load(step) for step in checkpoints.steps()]
        if newest.step < promised:
            raise Lost(f"step {promised} was saved, and the newest checkpoint is {newest.step}")
        if newest.record.files != self.saved[newest.step]:
            raise Lost(f"the checkpoint of step {newest.step} is not what was saved")
        lines = self.run.metrics_file.read_bytes().splitlines()
        found = [_comparable(record) for record in map(parse_line, lines) if record is not None]
        for one in self.records:
            if one["step"] <= newest.step and one not in found:
                raise Lost(f"the metrics of step {one['step']} are gone, saved {newest.step}")

    def finish(self, marks: list[Any]) -> None:
        self._train(self.run.has_run())
        if found := compare_runs(self.whole.run_folder, self.run.path).differences:
            raise Lost(f"resumed, the run ended otherwise: {found[0]}")
        outcome = self.run.read_outcome()
        if outcome is None or outcome.state != "finished":
            raise Lost("the outcome of the finished run is missing")
        check_no_leftovers(self.root)


def _comparable(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in MEASURED}


class Prepare(Workload):
    """Shards, most often over those of other settings."""

    def __init__(self, case: Case, root: Path) -> None:
        super().__init__(case, root)
        rng = case.random
        case.row = "power lost: data prepare"
        fraction = rng.choice((0.1, 0.0, 1e-9))
        self.options = {"shard_bytes": 3_000, "validation_fraction": fraction}
        self.overwrites = rng.random() < 0.5
        prepare_shards(self.made, root.with_name("whole"), **self.options)
        self.expected = hashes(root.with_name("whole"))

    def _prepare(self) -> None:
        prepare_shards(self.made, self.root / "out", overwrite=self.overwrites, **self.options)

    def record(self, disk: Recorder) -> None:
        if self.overwrites:
            prepare_shards(self.made, self.root / "out", shard_bytes=2_000)
            disk.mark("old")
        self._prepare()
        disk.mark("done")

    def check(self, marks: list[Any]) -> None:
        out = self.root / "out"
        if not (out / "index.json").exists():
            if marks and not (self.overwrites and ("done",) not in marks):
                raise Lost("finished shards are gone")
            return
        verify(out, Tokenizer.load(self.made / "tokenizer.json"))
        if ("done",) in marks and {**hashes(out), **self.expected} != hashes(out):
            raise Lost("the finished shards are others")

    def finish(self, marks: list[Any]) -> None:
        self._prepare()
        if hashes(self.root / "out") != self.expected:
            raise Lost("the shards are not those of an undisturbed run")


class Export(Workload):
    """An export over another one, or a tokenizer over another one."""

    def __init__(self, case: Case, root: Path) -> None:
        super().__init__(case, root)
        name = case.random.choice(("huggingface", "gguf", "tokenizer"))
        case.row = f"power lost: export {name}" if name != "tokenizer" else "power lost: tokenizer"
        self.out = root / "deep" / ("export.gguf" if name == "gguf" else "export")
        self.name = name

    def _export(self, number: int) -> None:
        self.out.parent.parent.mkdir(exist_ok=True)
        run, step = self.made / "runs" / "base", (4, 8)[number]
        if self.name == "huggingface":
            export_huggingface(run, self.out, checkpoint=step, force=True)
        elif self.name == "gguf":
            export_gguf(run, self.out, checkpoint=step, force=True)
        else:
            tokenizer = Tokenizer.load(self.made / "tokenizer.json")
            tokenizer.with_chat(f"{{{{ {number} }}}}").save(self.out)

    def record(self, disk: Recorder) -> None:
        self.versions: list[Any] = []
        for number in range(2):
            self._export(number)
            disk.mark(number)
            self.versions.append(self._found())

    def _found(self) -> dict[str, str] | None:
        if self.name != "huggingface":
            return {"": hash_file(self.out)} if self.out.exists() else None
        found = find_folders(self.out.parent).get(self.out.name)
        return None if found is None else hashes(found)

    def check(self, marks: list[Any]) -> None:
        if self._found() not in [None, *self.versions][len(marks) :]:
            raise Lost(f"after {len(marks)} exports it is neither of the whole ones")

    def finish(self, marks: list[Any]) -> None:
        self._export(1)
        if self._found() != self.versions[1] or not self.out.exists():
            raise Lost("the export is not that of an undisturbed run")
        check_no_leftovers(self.root)


class Sweep(Workload):
    """Two trials, in this process, so that their writes are seen too."""

    def __init__(self, case: Case, root: Path) -> None:
        super().__init__(case, root)
        case.row = "power lost: sweep"
        config = configure(self.made, root / "unused", {"num_steps": 4, "model.dropout": 0.2})
        base = {**config.model_dump(mode="json"), "name": None}
        values = {"name": "small", "base": base, "seeds": [1, 2], "variants": {"a": {}}}
        values["keep_checkpoints"] = case.random.choice(("none", "last"))
        self.spec = SweepConfig.model_validate(values)
        self.expected = self._sweep(root.with_name("whole"))

    def _sweep(self, path: Path) -> dict[str, Any]:
        with mock.patch.multiple(runner, subprocess=InProcess, _POLL_SECONDS=0.0):
            records = run_sweep(self.spec, path, jobs=1).records
        return {
            name: [record.status, record.loss, record.best_validation_loss, record.step]
            for name, record in records.items()
        }

    def record(self, disk: Recorder) -> None:
        add = SweepFolder.add_record

        def marked(folder: SweepFolder, record: Any) -> None:
            add(folder, record)
            disk.mark(record.trial)

        with mock.patch.object(SweepFolder, "add_record", marked):
            self._sweep(self.root / "sweep")

    def check(self, marks: list[Any]) -> None:
        records = SweepFolder(self.root / "sweep").records()
        if lost := [name for (name,) in marks if name not in records]:
            raise Lost(f"the result of {lost[0]} is gone")

    def finish(self, marks: list[Any]) -> None:
        found = self._sweep(self.root / "sweep")
        if found != self.expected:
            raise Lost(f"the sweep came to {found}, undisturbed to {self.expected}")
        # What a finished trial had discarded may be back; nobody opens it again.
        check_no_leftovers(self.root, besides="discarded")


class InProcess:
    """In place of `subprocess`: a trial is trained when it is started."""

    DEVNULL = STDOUT = None

    class Popen:
        def __init__(self, command: list[str], **options: Any) -> None:
            config = load_settings(RunConfig, Path(command[command.index("--config") + 1]))
            train(config, resume="--resume" in command)
            self.returncode = 0

        def poll(self) -> int:
            return 0


WORKLOADS: dict[str, tuple[type[Workload], int]] = {
    "train": (Train, 5),
    "prepare": (Prepare, 2),
    "export": (Export, 2),
    "sweep": (Sweep, 1),
}


# Each in its turn, some more often.
ORDER = [name for name, (_, times) in WORKLOADS.items() for _ in range(times)]


def lose_power(case: Case, name: str, numbers: range, num_finished: int) -> None:
    """Record one workload, and try some of its histories."""
    root = case.place / "disk"
    logging.getLogger("groundup").setLevel(logging.CRITICAL)
    workload = WORKLOADS[name][0](case, root)
    root.mkdir()
    disk = Recorder(str(root))
    with disk.recording():
        workload.record(disk)
    shutil.rmtree(root)
    tried = set[bytes]()
    ready: list[tuple[int, State, list[Any]]] = []
    for number, state, marks in Histories(disk.history, f"{case.seed}/{case.number}").draw(numbers):
        key = fingerprint(state, marks)
        if key not in tried:
            tried.add(key)
            with history(case, root, number, state):
                workload.check(marks)
            ready.append((number, state, marks))
    case.num_faults = len(numbers)
    case.counts["states"] += len(tried)
    case.random.shuffle(ready)
    for number, state, marks in ready[:num_finished]:
        with history(case, root, number, state):
            workload.finish(marks)
    case.counts["continued"] += min(num_finished, len(ready))


@contextlib.contextmanager
def history(case: Case, root: Path, number: int, state: State) -> Iterator[None]:
    materialize(state, root)
    try:
        yield
    except Lost as lost:
        raise Lost(f"history {number}: {lost}") from None
    except (GroundupError, OSError) as error:
        raise Lost(f"history {number}: {type(error).__name__}: {error}") from error
    finally:
        shutil.rmtree(root)


def fingerprint(state: State, marks: list[Any]) -> bytes:
    """The same for states that look the same: what a log holds is nobody's matter."""
    found = hashlib.blake2b(repr(len(marks)).encode())
    for path, data in state.items():
        if not path.endswith((".txt", "log.txt")):
            found.update(f"{path}\0{-1 if data is None else len(data)}\0".encode())
            found.update(data or b"")
    return found.digest()


def hashes(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): hash_file(path) for path in files}


def check_no_leftovers(root: Path, besides: str = "-") -> None:
    """Of what killed writers left nothing stays, once the work is done."""
    names = [path.name for path in root.rglob(".*")]
    if left := [name for name in names if besides not in name.split(".")[-1].split("-")[0]]:
        raise Lost(f"left behind: {left[0]}")
