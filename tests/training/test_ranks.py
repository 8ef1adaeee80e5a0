"""One run on several ranks: bitwise equal for any number of ranks, and one error if it fails."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groundup.checkpoint import CheckpointFolder
from groundup.config import save_yaml
from groundup.files import read_json_lines
from groundup.runs.folder import RunFolder
from groundup.training.verify import compare_runs

from .conftest import MakeConfig

PROGRAM = Path(__file__).with_name("rank_program.py")
# Micro-batches divisible among one, two and four ranks.
SHARED = {"batch_size": 8, "micro_batch_size": 1, "evaluation.batch_size": 3}


Jobs = list[dict[str, Any]]


@pytest.fixture
def run_jobs(tmp_path: Path, run_program: Any) -> Callable[[Jobs], list[list[str | None]]]:
    """Runs all jobs in one program; a config may be given instead of a job."""

    def run(jobs: Jobs) -> Any:
        for number, job in enumerate(jobs):
            job["settings"] = str(tmp_path / f"{number}.yaml")
            save_yaml(Path(job["settings"]), job.pop("config"))
        (tmp_path / "jobs.json").write_text(json.dumps(jobs))
        return run_program(PROGRAM, tmp_path / "jobs.json", tmp_path / "results.json")

    return run


def test_training_is_bitwise_equal_for_any_number_of_ranks(
    make_config: MakeConfig, make_tuning: MakeConfig, pairs: Any, run_jobs: Any
) -> None:
    plain = make_config("any", SHARED)
    recipe = {"optimizer.name": "muon", "optimizer.normalize_rows": True, "multi_token_weight": 0.3}
    muon = make_config("any", {**SHARED, **recipe, "num_steps": 6})
    tuning = make_tuning("any", {**SHARED, "num_steps": 6})
    dpo = make_tuning("any", {**SHARED, **pairs, "num_steps": 6})
    kinds = {"one": plain, "two": plain, "four": plain, "moving": plain}
    kinds |= {"muon": muon, "muon_two": muon, "tuned": tuning, "tuned_two": tuning}
    kinds |= {"dpo": dpo, "dpo_two": dpo}
    runs = {name: config.model_copy(update={"name": name}) for name, config in kinds.items()}
    sizes = {"one": 1, "two": 2, "four": 4, "muon": 1, "muon_two": 2, "tuned": 1, "tuned_two": 2}
    sizes |= {"dpo": 1, "dpo_two": 2}
    results = run_jobs(
        [
            *({"config": runs[name], "ranks": size} for name, size in sizes.items()),
            {"config": runs["moving"], "ranks": 1, "kill_at": 4},
            {"config": runs["moving"], "ranks": 2, "kill_at": 7, "resume": True},
            {"config": runs["moving"], "ranks": 4, "stop_after": 10, "resume": True},
            {"config": runs["moving"], "ranks": 1, "resume": True},
        ]
    )
    assert [error for result in results[:9] for error in result] == [None] * 16
    lost = results[10][1]
    assert results[9:] == [["killed"], ["killed", lost], [None] * 4, [None]]
    assert "a rank died" in str(lost)
    same = {"two": "one", "four": "one", "moving": "one", "muon_two": "muon", "tuned_two": "tuned"}
    for many, one in {**same, "dpo_two": "dpo"}.items():
        found = compare_runs(runs[one].run_folder, runs[many].run_folder)
        assert not found.differences, (many, found.differences[:3])
        assert found.num_records >= 6 and found.num_values > 30
    assert (runs["four"].run_folder / "log_rank_3.txt").exists()
    assert not (runs["one"].run_folder / "log_rank_1.txt").exists()


@pytest.mark.parametrize("is_timed", [False, True])
def test_a_signal_to_one_rank_stops_all_at_one_step(
    make_config: MakeConfig, run_jobs: Any, is_timed: bool
) -> None:
    timed = {"num_steps": None, "minutes": 0.5, "schedule.warmup_steps": None}
    config = make_config("run", {**SHARED, **(timed if is_timed else {"num_steps": 10_000})})
    job = {"config": config, "ranks": 2, "kill_at": 5, "killed_rank": 1, "signal": 15}
    # Signaled before step 6, known to all before step 7.
    assert run_jobs([job]) == [["SIGTERM at 6"] * 2]
    assert CheckpointFolder(RunFolder(config.run_folder).checkpoints).newest().step == 6


def test_ranks_that_cannot_train_together_report_why(
    make_config: MakeConfig, run_jobs: Any
) -> None:
    other_data = {"1": {"data.shards": "nothing"}}
    make_config("log").run_folder.joinpath("log_rank_1.txt").mkdir(parents=True)
    jobs = [
        {"config": make_config("odd", {"batch_size": 9}), "ranks": 2},
        {"config": make_config("begun"), "ranks": 1, "stop_after": 3},
        {"config": make_config("begun", {"micro_batch_size": 2}), "ranks": 2},
        {"config": make_config("named"), "ranks": 2, "of_rank": other_data},
        {"config": make_config("bad", {"optimizer.learning_rate": 1e15}), "ranks": 2},
        {"config": make_config("log", {"micro_batch_size": 2}), "ranks": 2},
    ]
    odd, _, begun, named, bad, log = run_jobs(jobs)
    assert odd[0] == odd[1] and "batch_size 9" in str(odd[0])
    assert "already has a run" in str(begun[0]) and begun[1] == f"rank 0: {begun[0]}"
    # The settings of the first rank apply.
    assert named == [None, None]
    # A rank that cannot open its log is named by the others.
    assert str(log[0]).startswith("rank 1: ") and "log_rank_1.txt" in str(log[0])
    assert bad[0] == bad[1] and "no finite loss" in str(bad[0])
    assert not RunFolder(make_config("odd").run_folder).path.exists()
    outcome = RunFolder(make_config("bad").run_folder).read_outcome()
    assert outcome is not None and outcome.state == "diverged"


def test_sharded_runs_train_and_resume_in_any_layout(
    make_config: MakeConfig, run_jobs: Any
) -> None:
    settings = {**SHARED, "micro_batch_size": 2, "optimizer.name": "muon", "num_steps": 8}
    settings |= {"checkpoints.every_steps": 2, "distributed.reduction": "fast"}
    settings |= {"optimizer.ema_fraction": 0.5, "distributed.activation_checkpointing": True}
    sharded = {**settings, "distributed.strategy": "fsdp"}
    moved = {"resume": True, "allow_changes": True}
    bad = make_config("bad", {**sharded, "distributed.reduction": "exact"})
    jobs = [
        {"config": make_config("one", settings), "ranks": 1},
        {"config": make_config("fast", settings), "ranks": 2},
        {"config": make_config("fsdp", sharded), "ranks": 2, "kill_at": 5, "killed_rank": 1},
        {"config": make_config("fsdp", sharded), "ranks": 2, "resume": True, "stop_after": 6},
        {"config": make_config("fsdp", settings), "ranks": 1, **moved, "stop_after": 7},
        {"config": make_config("fsdp", sharded), "ranks": 2, **moved},
        {"config": bad, "ranks": 2},
    ]
    one, fast, killed, *resumed, (refused, also) = run_jobs(jobs)
    assert [one, fast, *resumed] == [[None], [None] * 2, [None] * 2, [None], [None] * 2]
    assert killed[1] == "killed"
    assert "rank 1 on" in str(killed[0]) or "a rank died" in str(killed[0])
    assert refused == also and "use --distributed.reduction fast" in str(refused)
    curves = {
        name: {record["step"]: record for record in read_json_lines(run.metrics_file)}
        for name in ("one", "fast", "fsdp")
        if (run := RunFolder(make_config(name).run_folder))
    }
    for name in ("fast", "fsdp"):
        assert curves[name].keys() == curves["one"].keys()
        for step, record in curves["one"].items():
            for key in ("loss", "validation_loss", "gradient_norm"):
                if key in record:
                    assert curves[name][step][key] == pytest.approx(record[key], rel=1e-4)
    saved = RunFolder(make_config("fsdp").run_folder).checkpoints / "step_000008"
    assert len(list(saved.glob("shard-*.safetensors"))) == 4


def test_torchrun_continues_after_a_rank_was_killed(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config("run", {**SHARED, "num_steps": 3000, "checkpoints.every_steps": 50})
    save_yaml(tmp_path / "settings.yaml", config)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc-per-node=2", "--max-restarts=1", "-m", "groundup", "train"]
    metrics = RunFolder(config.run_folder).metrics_file
    flags = ["--config", str(tmp_path / "settings.yaml")]
    with open(tmp_path / "log.txt", "wb") as log:
        process = subprocess.Popen([*command, *flags], stdout=log, stderr=log)
    try:
        wait_for_step(metrics, 60, process)
        ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(ranks[-1]), signal.SIGKILL)
        wait_for(lambda: "resumed from" in (tmp_path / "log.txt").read_text(), process)
        resumed = max(int(record["step"]) for record in read_json_lines(metrics))
        wait_for_step(metrics, resumed + 20, process)
        process.send_signal(signal.SIGTERM)
        process.wait()
    finally:
        # Only if the test failed: a second signal would end the ranks before they have saved.
        if process.poll() is None:
            process.terminate()
            process.wait()
    outcome = RunFolder(config.run_folder).read_outcome()
    assert outcome is not None and (outcome.state, outcome.reason) == ("stopped", "SIGTERM")
    steps = [record["step"] for record in read_json_lines(metrics)]
    assert steps == list(range(1, len(steps) + 1))


def wait_for(is_true: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    while not is_true():
        assert process.poll() is None
        time.sleep(0.1)


def wait_for_step(metrics: Path, step: int, process: "subprocess.Popen[bytes]") -> None:
    wait_for(lambda: metrics.exists() and len(metrics.read_bytes().splitlines()) >= step, process)
