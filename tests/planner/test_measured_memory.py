"""The planned peak of a step on a CPU against the tensors of a real one, and against the memory
that a process grows by."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from groundup.model.config import ModelConfig
from groundup.planner import Execution, StepKind, training_memory

CPU = Execution("cpu", "float32")
NARROW: dict[str, Any] = {
    "vocab_size": 1_024,
    "context_length": 128,
    "d_model": 128,
    "num_layers": 3,
    "num_heads": 4,
}
WIDE: dict[str, Any] = {
    "vocab_size": 16_000,
    "context_length": 64,
    "d_model": 128,
    "num_layers": 2,
    "num_heads": 2,
}
CASES: dict[str, dict[str, Any]] = {
    "micro-batches": {"model": NARROW, "batch_size": 4, "micro_batch_size": 2},
    "a tree of micro-batches": {"model": NARROW, "batch_size": 8, "micro_batch_size": 1},
    "micro-batches in their order": {
        "model": NARROW,
        "batch_size": 8,
        "micro_batch_size": 1,
        "distributed": {"reduction": "fast"},
    },
    "recomputed": {"model": NARROW, "batch_size": 4, "distributed": {"recompute": True}},
    "recomputed, input mix": {
        "model": {**NARROW, "num_layers": 8},
        "batch_size": 8,
        "distributed": {"recompute": True},
    },
    "a wide vocabulary": {"model": WIDE, "batch_size": 4},
    "muon": {"model": NARROW, "batch_size": 1, "optimizer": {"name": "muon"}},
    "sgd": {"model": NARROW, "batch_size": 1, "optimizer": {"name": "sgd"}},
    "tuned": {"model": NARROW, "batch_size": 4, "tuning": {"chats": ["a"]}},
}
ADAPTED: dict[str, dict[str, Any]] = {
    "adapters": {"model": NARROW, "batch_size": 4},
    "adapters, a wide vocabulary": {"model": WIDE, "batch_size": 1},
    "adapters, micro-batches": {"model": NARROW, "batch_size": 4, "micro_batch_size": 1},
    "adapters, sgd": {"model": WIDE, "batch_size": 1, "optimizer": {"name": "sgd"}},
    "adapters, muon": {"model": NARROW, "batch_size": 1, "optimizer": {"name": "muon"}},
}
for case, settings in ADAPTED.items():
    # A rank high enough for what the adapters themselves take to show.
    tuning = {"chats": ["a"], "lora_rank": 32}
    CASES[case] = {**settings, "tuning": tuning, "start_from": "a"}
VARIANTS: list[dict[str, Any]] = [
    {"num_kv_heads": 2},
    {"qk_norm": True},
    {"tie_embeddings": True},
    {"norm": "post"},
    {"norm": "none"},
    {"positions": "none"},
    {"feed_forward": "silu", "vocab_size": 64},
    {"feed_forward": "gelu", "vocab_size": 64},
    {"feed_forward": "relu2", "vocab_size": 64},
    {"dropout": 0.1},
    {"head_gates": True},
    {"extra_values": "projection"},
    {"extra_values": "projection", "qk_norm": True},
]
for precision in ("float32", "bfloat16"):
    for variant in [{}, *VARIANTS]:
        # Scores by the formula grow with the square of the context.
        batch_size = 1 if "context_length" in variant else 4
        model = {**NARROW, **variant}
        settings = {"model": model, "batch_size": batch_size, "precision": precision}
        CASES[f"{precision} {variant}"] = settings

BY_FORMULA: dict[str, Any] = {
    "model": NARROW,
    "batch_size": 1,
    "optimizer": {"name": "adamw"},
}

# The tensors that a second step makes, as torch's profiler sees them come and go, for each case.
TENSORS = """
import dataclasses, json, sys
import torch
from torch.profiler import ProfilerActivity, profile
from groundup.runs.config import RunConfig
from groundup.training.budget import random_batch
from groundup.training.execution import resolve, switches
from groundup.training.setup import build_state
from groundup.training.step import choose_step

def make_batch(config, number):
    batch = random_batch(config, number)
    if not config.tuning.chats:
        return batch
    positions = torch.arange(config.model.context_length).expand(config.batch_size, -1) % 30
    return dataclasses.replace(batch, positions=positions.contiguous())

for line in sys.stdin:
    settings = {"device": "cpu", "num_threads": 1, **json.loads(line)}
    config = resolve(RunConfig.model_validate(settings))
    with switches(config):
        state = build_state(config)
        step = choose_step(config, state.model, state.optimizer, None, state.reduction)
        step(make_batch(config, 0)).read()
        batch = make_batch(config, 1)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            step(batch).read()
    now = most = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    print(most, flush=True)
"""
PROCESS = """
import json, sys
from groundup.training.budget import time_steps
from groundup.runs.config import RunConfig
from groundup.training.execution import resolve

settings = {"device": "cpu", "num_threads": 1, **json.loads(sys.argv[1])}
print(time_steps(resolve(RunConfig.model_validate(settings)), 1)[1])
"""


@pytest.fixture(scope="module")
def environment(repository: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(repository / "src"), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def measure(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[dict[str, Any]], int]]:
    """`measure(settings)` is the bytes of a step's tensors above weights and optimizer state.

    One process answers for all cases that are asked for, each when its turn comes.
    """
    errors = tmp_path_factory.mktemp("tensors") / "stderr"
    with (
        open(errors, "wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-c", TENSORS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment,
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        answers = process.stdout

        def ask(settings: dict[str, Any]) -> int:
            print(json.dumps(settings), file=process.stdin, flush=True)
            answer = answers.readline()
            assert answer, errors.read_text("utf-8", "replace")
            return int(answer)

        yield ask


def in_its_precision(case: str) -> Any:
    is_half = CASES[case].get("precision") == "bfloat16"
    return pytest.param(case, marks=pytest.mark.needs_bfloat16) if is_half else case


@pytest.mark.parametrize("case", [in_its_precision(case) for case in CASES])
def test_the_tensors_of_a_step_take_what_is_planned(
    case: str, measure: Callable[[dict[str, Any]], int]
) -> None:
    settings = CASES[case]
    batch_size = settings["batch_size"]
    micro_batch = settings.get("micro_batch_size", batch_size)
    optimizer = settings.get("optimizer", {"name": "adamw"})["name"]
    execution = Execution("cpu", settings.get("precision", "float32"))
    distributed = settings.get("distributed", {})
    memory = training_memory(
        ModelConfig(**settings["model"]),
        execution,
        optimizer,
        step=StepKind(
            recompute=distributed.get("recompute", False),
            adds_in_tree=distributed.get("reduction") != "fast",
            lora_rank=settings.get("tuning", {}).get("lora_rank"),
            is_masked="tuning" in settings,
        ),
    )
    planned = max(memory.moments(micro_batch, batch_size // micro_batch).values())
    real = memory.state_bytes + measure(settings)
    assert memory.state_bytes + planned == pytest.approx(real, rel=0.03)


def test_an_update_by_the_formula_takes_what_is_planned_where_no_kernel_is(
    measure: Callable[[dict[str, Any]], int],
) -> None:
    memory = training_memory(ModelConfig(**NARROW), Execution("mps", "float32"))
    planned = memory.state_bytes + memory.moments(1)["update"]
    assert planned == pytest.approx(memory.state_bytes + measure(BY_FORMULA), rel=0.03)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep freed memory otherwise")
def test_a_process_grows_by_what_is_planned(environment: dict[str, str]) -> None:
    settings = {"model": NARROW, "batch_size": 16}
    command = [sys.executable, "-c", PROCESS, json.dumps(settings)]
    growth = int(subprocess.check_output(command, env=environment))
    planned = training_memory(ModelConfig(**NARROW), CPU).bytes_at(16)
    # Of a small process the holes in its heap are not the same twice; a whole run is held to less
    # in tests/training/test_process_memory.py.
    assert planned == pytest.approx(growth, rel=0.2)
