"""An interrupted and resumed run is bitwise equal to an uninterrupted one."""

import json
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.checkpoint import CheckpointFolder
from groundup.cli.main import main
from groundup.config import _EARLIER_NAMES
from groundup.distributed.process_group import ProcessGroup
from groundup.errors import GroundupError
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import slow_bfloat16_reason
from groundup.training.loop import train
from groundup.training.metrics import AfterStep, Callback
from groundup.training.verify import compare_runs

from .conftest import MakeConfig

NEEDS_BFLOAT16 = pytest.mark.skipif(bool(slow_bfloat16_reason()), reason="slow on this CPU")

# The program of a training process: it waits at one step, to be killed there.
SCRIPT = """
import torch
from groundup.runs.config import RunConfig
from groundup.training.metrics import AfterStep
from groundup.training.loop import train

torch.set_num_threads(1)
def wait(step, progress):
    pipe.send(step)
    if step == hold_at:
        pipe.recv()
train(RunConfig.model_validate_json(settings), resume=resume, callbacks=[AfterStep(wait)])
"""


def start(
    forks: Any, config: RunConfig, resume: bool, hold_at: int | None = None
) -> tuple[Any, Any]:
    """A training process, and the pipe to which it sends every step."""
    pipe, child_pipe = forks.Pipe()
    names = {"settings": config.model_dump_json(), "resume": resume}
    names |= {"hold_at": hold_at, "pipe": child_pipe}
    process = forks.Process(target=exec, args=(SCRIPT, names), daemon=True)
    process.start()
    return process, pipe


GATES = {"model.gated_attention": True, "model.value_embeddings": "projection"}


@pytest.mark.parametrize(
    ("changes", "stop"),
    [
        ({"optimizer.name": "adamw"}, 1),
        ({"optimizer.name": "muon", "optimizer.ema_fraction": 0.3, **GATES}, 6),
        ({"optimizer.name": "sgd", "model.dropout": 0.2}, 11),
        ({"micro_batch_size": 2, "model.tie_embeddings": True}, 9),
        pytest.param({"precision": "bfloat16"}, 2, marks=NEEDS_BFLOAT16),
        ({"num_threads": 2, "num_steps": 4, "batch_size": 64, "model.d_model": 64}, 2),
    ],
)
def test_resume_is_bitwise_exact(check_resume: Any, changes: dict[str, Any], stop: int) -> None:
    check_resume({"data.verify": False, **changes}, stop)


def test_dpo_resumes_exactly(check_resume: Any, make_tuning: MakeConfig, pairs: Any) -> None:
    check_resume({**pairs, "micro_batch_size": 1}, make=make_tuning)


def test_samples_and_evaluations_do_not_affect_the_run(
    make_config: MakeConfig, records_of: Any
) -> None:
    class Sampler(Callback):
        def sample(self, model: Any, tokenizer: Any, prompt: str) -> str:
            torch.rand(3)
            random.random()
            return f" {prompt} again"

    plain = make_config("plain", {"evaluation.every_steps": 0})
    busy = make_config("busy", {"evaluation.every_steps": 1, "samples.every_steps": 2})
    train(plain)
    train(busy, callbacks=[Sampler()])
    plain_state = CheckpointFolder(plain.run_folder / "checkpoints").newest()
    busy_state = CheckpointFolder(busy.run_folder / "checkpoints").newest()
    assert plain_state.state["random"] == busy_state.state["random"]
    for name, weight in plain_state.model_state().items():
        assert torch.equal(weight, busy_state.model_state()[name])
    records = records_of(busy)
    assert [r["step"] for r in records if "samples" in r] == [2, 4, 6, 8, 10, 12]
    assert records[-1]["samples"] == [" Once upon a time again"]


@pytest.mark.parametrize("every_steps", [0, 4])
def test_a_killed_run_resumes_exactly(
    forks: Any, make_config: MakeConfig, make_tuning: MakeConfig, every_steps: int
) -> None:
    """A run without checkpoints starts over; the one with checkpoints trains adapters."""
    changes = {"num_steps": 20, "checkpoints.every_steps": every_steps}
    make = make_tuning if every_steps else make_config
    changes |= {"tuning.lora_rank": 2} if every_steps else {}
    whole, killed = make("whole", changes), make("killed", changes)
    train(whole)
    moments = random.Random(os.urandom(8))
    for step in (None, 3, 9) if every_steps else (3,):
        # A kill before the settings were written leaves nothing to resume.
        has_run = RunFolder(killed.run_folder).has_run()
        process, pipe = start(forks, killed, resume=has_run, hold_at=(step or 0) + 3)
        while step is not None and pipe.recv() != step:
            pass
        time.sleep(moments.uniform(0.0, 0.03))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert RunFolder(killed.run_folder).read_outcome() is None
    process, _ = start(forks, killed, resume=True)
    process.join()
    assert process.exitcode == 0
    assert compare_runs(whole.run_folder, killed.run_folder).differences == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_run_and_it_resumes_exactly(
    make_config: MakeConfig, finished: RunConfig, number: signal.Signals
) -> None:
    def interrupt(step: int, progress: float) -> None:
        if step in (4, 12):
            os.kill(os.getpid(), number)

    parted = make_config("parted")
    before = signal.getsignal(number)
    summary = train(parted, callbacks=[AfterStep(interrupt)])
    *_, saved = CheckpointFolder(parted.run_folder / "checkpoints").steps()
    assert 4 <= saved < 12 and summary.stopped_by == number.name
    outcome = RunFolder(parted.run_folder).read_outcome()
    assert outcome is not None
    assert (outcome.state, outcome.step, outcome.reason) == ("stopped", saved, number.name)
    # A signal after the last step has no effect.
    summary = train(parted, resume=True, callbacks=[AfterStep(interrupt)])
    assert summary.is_finished and summary.stopped_by is None
    assert signal.getsignal(number) == before
    assert compare_runs(finished.run_folder, parted.run_folder).differences == []


def test_a_signal_during_a_collective_is_not_lost(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def all_reduce_max(ranks: ProcessGroup, *numbers: int) -> Any:
        asked.append(numbers[0])
        if len(asked) == 2:
            signal.raise_signal(signal.SIGTERM)
        return lambda: list(numbers)

    monkeypatch.setattr(ProcessGroup, "all_reduce_max", all_reduce_max)
    summary = train(make_config("run", {"num_steps": 9}))
    assert summary.stopped_by == "SIGTERM" and summary.steps < 9
    assert asked[-2:] == [0, signal.SIGTERM]


def test_a_second_signal_stops_at_once(make_config: MakeConfig) -> None:
    calls = []

    def interrupt(step: int, progress: float) -> None:
        calls.append(step)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(make_config(), callbacks=[AfterStep(interrupt)])
    assert calls == [1]


# Uses three processes.
@pytest.mark.slow
def test_verify_resume_proves_it_with_a_real_kill(
    finished: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in finished.run_folder.rglob("*")}
    assert main(["verify-resume", str(finished.run_folder), "--num-steps", "6"]) == 0
    assert capsys.readouterr().out.startswith("Exact: 6 steps")
    assert {path: path.stat().st_mtime_ns for path in finished.run_folder.rglob("*")} == before
    assert not list(tmp_path.glob("groundup-verify-*"))


def test_comparing_runs_finds_every_difference(
    finished: RunConfig, make_config: MakeConfig
) -> None:
    other = make_config("other", {"seed": 1})
    train(other)
    differences = compare_runs(finished.run_folder, other.run_folder).differences
    for beginning in ("step 1: loss", "model.", "optimizer."):
        assert any(text.startswith(beginning) for text in differences)


def test_a_run_renamed_during_training_loses_nothing(
    make_config: MakeConfig, finished: RunConfig
) -> None:
    renamed = make_config("renamed")
    folder = renamed.run_folder
    other = folder.with_name("other")
    # A new folder of the old name is not the run's, and is left as it is.
    (empty := folder.with_name("empty")).mkdir(parents=True)
    rename = AfterStep(lambda step, _: step == 5 and (folder.rename(other), empty.rename(folder)))
    with pytest.raises(GroundupError, match=r"was renamed to .*other.* --name other --resume"):
        train(renamed, callbacks=[rename])
    assert not list(folder.iterdir())
    # The name is that of the folder, so this is not a changed setting.
    train(renamed.with_(name="other"), resume=True)
    assert not compare_runs(finished.run_folder, other).differences
    deleted = make_config("deleted")
    gone = deleted.run_folder
    remove = AfterStep(lambda step, _: shutil.rmtree(gone, True) if step == 5 else None)
    with pytest.raises(GroundupError, match="moved or deleted"):
        train(deleted, callbacks=[remove])


@pytest.mark.slow
def test_a_run_with_names_of_an_earlier_version_resumes_bitwise_exact(
    make_config: MakeConfig, corpus_folder: Path, tmp_path: Path
) -> None:
    corpus = shutil.copytree(corpus_folder, tmp_path / "corpus")
    changes = {"model.gated_attention": True, "model.value_embeddings": "projection"}
    config = make_config("old", {**changes, "data.shards": str(corpus / "shards")})
    train(config)
    folder = CheckpointFolder(config.run_folder / "checkpoints", keep_last=None)
    end = folder.load(12).model_state()
    shutil.rmtree(folder.path_of(12))

    def earlier(text: str) -> str:
        for old, new in _EARLIER_NAMES.items():
            text = re.sub(rf"(?<![a-z_]){new}(?![a-z_])", old, text)
        return text

    for path in (*config.run_folder.glob("*.yaml"), *config.run_folder.glob("env*.json")):
        path.write_text(earlier(path.read_text("utf-8")), "utf-8")
    index = corpus / "shards" / "index.json"
    index.write_text(earlier(index.read_text("utf-8")), "utf-8")
    saved = folder.newest()
    weights = {earlier(name): tensor for name, tensor in saved.adapted_state().items()}
    state = json.loads(earlier(json.dumps(saved.state)))
    assert weights.keys() != saved.adapted_state().keys() and state != saved.state
    folder.save(saved.step, weights, saved.optimizer_state(), state, saved.metric)
    train(config, resume=True)
    resumed = folder.load(12).model_state()
    assert resumed.keys() == end.keys()
    assert all(torch.equal(resumed[name], end[name]) for name in end)
