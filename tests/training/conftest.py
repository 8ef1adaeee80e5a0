"""A tiny corpus, its shards, and settings of very short runs."""

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.config import load_settings
from groundup.data.prepare import prepare
from groundup.files import read_json_lines
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.reference import train_bpe_reference
from groundup.training import train
from groundup.training.clock import Clock, Tick
from groundup.training.machine import Machine
from groundup.training.resolve import resolve, resolve_device
from groundup.training.state import TrainingState, build_state
from groundup.training.step import Step, StepResult
from groundup.training.verify import compare_runs

END = "<|endoftext|>"
NAMES = "Ada Ben Cleo Dan Eve Finn".split()
THINGS = "kite ball boat drum hat cup".split()
COLOURS = "red blue green old new big".split()

MakeConfig = Callable[..., RunConfig]


def write_stories(count: int, seed: int) -> str:
    random_ = random.Random(seed)
    stories = []
    for _ in range(count):
        name, colour, thing = map(random_.choice, (NAMES, COLOURS, THINGS))
        stories.append(f"{name} had a {colour} {thing}. {name} lost it. Who found the {thing}?")
    return END.join(stories)


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tokenizer.json and shards, about 8,000 ids."""
    folder = tmp_path_factory.mktemp("corpus")
    text = write_stories(400, seed=0)
    (folder / "stories.txt").write_text(text, "utf-8")
    vocab, merges = train_bpe_reference(text[:4000], 300, [END])
    tokenizer = Tokenizer(vocab, merges, [END])
    tokenizer.save(folder / "tokenizer.json")
    prepare([folder / "stories.txt"], tokenizer, folder / "shards", validation_fraction=0.1)
    return folder


def build_config(corpus: Path, runs: Path, name: str, changes: dict[str, Any]) -> RunConfig:
    """A run of twelve steps, changed as given."""
    values: dict[str, Any] = {
        "name": name,
        "runs_folder": str(runs),
        "num_steps": 12,
        "batch_size": 4,
        "device": "cpu",
        "model.vocab_size": 300,
        "model.context_length": 16,
        "model.d_model": 16,
        "model.num_layers": 1,
        "model.num_heads": 2,
        "model.d_ff": 32,
        "data.shards": str(corpus / "shards"),
        "data.tokenizer": str(corpus / "tokenizer.json"),
        "optimizer.learning_rate": 1e-2,
        "schedule.warmup_steps": 2,
        "evaluation.every_steps": 5,
        "evaluation.num_windows": 4,
        "checkpoints.every_steps": 3,
        "logging.every_steps": 1,
    }
    return load_settings(RunConfig, None, {**values, **changes})


@pytest.fixture
def make_config(corpus_folder: Path, tmp_path: Path) -> MakeConfig:
    """`make_config("name", {"optimizer.name": "sgd"})`: see `build_config`."""

    def make(name: str = "run", changes: dict[str, Any] | None = None) -> RunConfig:
        return build_config(corpus_folder, tmp_path / "runs", name, changes or {})

    return make


@pytest.fixture
def check_resume(make_config: MakeConfig) -> Callable[..., tuple[RunConfig, RunConfig]]:
    """`check_resume({"optimizer.name": "sgd"}, 5)`: checks that a run stopped after five steps and
    resumed is bitwise equal to an uninterrupted one; returns the settings of both.

    parts: creates the custom parts for each run.
    """

    def check(
        changes: dict[str, Any] | None = None,
        stop: int = 7,
        parts: Callable[[], dict[str, Any]] = dict,
        make: MakeConfig = make_config,
    ) -> tuple[RunConfig, RunConfig]:
        whole, parted = make("whole", changes), make("parted", changes)
        train(whole, **parts())
        assert train(parted, **parts(), clock=Clock(stop_after=stop)).steps == stop
        assert train(parted, **parts(), resume=True).is_finished
        comparison = compare_runs(whole.run_folder, parted.run_folder)
        assert comparison.differences == []
        assert comparison.num_records > 0 and comparison.num_values > 20
        records = read_json_lines(RunFolder(parted.run_folder).metrics_file)
        clocks = [record["wall_seconds"] for record in records]
        assert clocks == sorted(clocks)
        return whole, parted

    return check


@pytest.fixture(scope="session")
def build() -> Callable[..., TrainingState]:
    """Model and optimizer of a run with these settings."""
    return lambda config: build_state(resolve(config, Machine.detect(config.device)))


@pytest.fixture(scope="session")
def take_step() -> Callable[..., StepResult]:
    """`take_step(config, state, batch)`: one step at the full learning rate."""

    def take(config: RunConfig, state: TrainingState, batch: Any) -> StepResult:
        schedule = config.schedule.model_copy(update={"name": "constant", "warmup_steps": 0})
        config = resolve_device(config.model_copy(update={"schedule": schedule}))
        step = Step(config, state)
        return step(batch, Tick(1, 0, 1, 12, False, 0)).read()

    return take


@pytest.fixture(scope="session")
def finished(corpus_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """The settings of a finished run, which tests must not change."""
    config = build_config(corpus_folder, tmp_path_factory.mktemp("finished"), "run", {})
    torch.set_num_threads(1)
    train(config)
    return config


@pytest.fixture(scope="session")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty conversations of one or two questions, with answers that follow from them."""
    random_ = random.Random(1)
    lines = []
    for number in range(40):
        name, colour, thing = map(random_.choice, (NAMES, COLOURS, THINGS))
        turns = [f"{name} had a {colour} {thing}. What?", f"A {colour} {thing}.", "Who?", name]
        turns = turns[: 2 if number % 3 else 4]
        roles = ("user", "assistant") * 2
        messages = [
            {"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)
        ]
        lines.append(json.dumps({"messages": messages}))
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    path.write_text("\n".join(lines), "utf-8")
    return path


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The setting for 36 pairs, whose chosen answers are those that name the thing."""
    lines = [
        {"prompt": f"{name} had a {thing}.", "chosen": f"A {thing}.", "rejected": f"{name} found."}
        for name, thing in itertools.product(NAMES, THINGS)
    ]
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    return {"tuning.chats": [str(path)]}


@pytest.fixture
def make_tuning(make_config: MakeConfig, finished: RunConfig, chats: Path) -> MakeConfig:
    """`make_tuning("name", {"tuning.lora_rank": 2})`: settings for fine-tuning the finished run."""

    def make(name: str = "run", changes: dict[str, Any] | None = None) -> RunConfig:
        tuning = {
            "start_from": str(finished.run_folder),
            "tuning.chats": [str(chats)],
            "tuning.validation_fraction": 0.1,
            "model.vocab_size": 304,
            "model.context_length": 96,
        }
        return make_config(name, {**tuning, **(changes or {})})

    return make


@pytest.fixture(scope="session")
def records_of() -> Callable[[RunConfig], list[dict[str, Any]]]:
    """The records of a run's metrics.jsonl."""
    return lambda config: list(read_json_lines(RunFolder(config.run_folder).metrics_file))
