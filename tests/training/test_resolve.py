"""Resolving a run: every "auto", global switches, compiled models, the device's peak.

Invalid runs raise an error that names the setting, before anything is created."""

import dataclasses
import functools
import itertools
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from groundup.data.batches.order import IdArray
from groundup.distributed.process_group import ONE_PROCESS, ProcessGroup
from groundup.errors import ConfigError, GroundupError
from groundup.runs.config import RunConfig
from groundup.runtime import is_onednn_slow
from groundup.training import machine, train
from groundup.training import resolve as resolving
from groundup.training.data import RunData
from groundup.training.machine import Machine, compile_model, find_peak, switches
from groundup.training.resolve import planned_memory

from .conftest import MakeConfig

CPU = Machine("cpu", "any", 16 << 30)
H200 = Machine("cuda", "NVIDIA H200", 141 << 30, True, True, None)
A100 = Machine("cuda", "an A100", 80 << 30, True, True, "too old")
OLD = Machine("cuda", "old", 8 << 30)
TWO = ProcessGroup(0, 2, 0, 2, is_open=True)
FLOAT8 = {"precision": "float8"}


def resolve(
    config: RunConfig, ranks: ProcessGroup = ONE_PROCESS, *, on: Machine = CPU, **options: Any
) -> Any:
    return resolving.resolve(config, on, ranks, **options).config


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        (CPU, ("cpu", "float32", "off")),
        (H200, ("cuda", "bfloat16", "blocks")),
        (OLD, ("cuda", "float32", "off")),
        (Machine("mps", "a Mac", 16 << 30), ("mps", "float32", "off")),
    ],
)
def test_auto_is_resolved_once_and_explicit_settings_are_kept(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, on: Machine, expected: tuple[str, ...]
) -> None:
    resolved = resolve(make_config("run", {"device": "auto"}), on=on)
    assert (resolved.device, resolved.precision, resolved.compile) == expected
    assert "auto" not in resolved.model_dump().values()
    assert resolve(resolved, on=on) == resolved
    monkeypatch.setattr(resolving, "slow_bfloat16_reason", lambda: None)
    choices = {"precision": "bfloat16", "compile": "blocks", "micro_batch_size": 1}
    config = make_config("run", {**choices, "device": on.device})
    assert resolve(config, on=on) == config


def test_a_tied_run_stores_its_embedding_scale_and_keeps_the_one_it_has(
    make_config: MakeConfig,
) -> None:
    tied = make_config("run", {"model.tie_embeddings": True})
    stored = resolve(tied)
    assert stored.model.embedding_scale == tied.model.input_scale != 1
    other = make_config("run", {"model.tie_embeddings": True, "model.initialization": "gpt2"})
    assert resolve(other).model.embedding_scale == 1
    kept = resolve(other, previous=stored).model
    assert kept.input_scale == tied.model.input_scale
    # A run of an earlier version keeps the default rule.
    assert resolve(tied, previous=tied).model == tied.model
    assert resolve(make_config("run")).model.embedding_scale is None


@pytest.mark.parametrize(
    ("changes", "on", "ranks", "noun"),
    [
        ({"model.dropout": 0.1}, CPU, TWO, "dropout"),
        ({"precision": "bfloat16"}, CPU, ONE_PROCESS, "slow at it"),
        (FLOAT8, CPU, ONE_PROCESS, "float8 is for CUDA"),
        (FLOAT8, A100, ONE_PROCESS, "too old"),
        (FLOAT8 | {"model.d_ff": 40}, H200, ONE_PROCESS, "d_ff"),
        (FLOAT8 | {"distributed.strategy": "fsdp"}, H200, TWO, "fsdp"),
        ({"distributed.strategy": "fsdp"}, CPU, ONE_PROCESS, "torchrun"),
        ({"distributed": {"strategy": "hsdp", "reduction": "exact"}}, CPU, TWO, "exactly"),
        ({"micro_batch_size": 4}, CPU, TWO, "divided among 2 ranks"),
        ({"minutes": 3, "num_steps": None}, CPU, ONE_PROCESS, "below 1"),
    ],
)
def test_unsupported_settings_are_named(
    make_config: MakeConfig,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    on: Machine,
    ranks: ProcessGroup,
    noun: str,
) -> None:
    monkeypatch.setattr(resolving, "slow_bfloat16_reason", lambda: "this CPU is slow at it")
    with pytest.raises(ConfigError, match=noun):
        resolve(make_config("run", changes), ranks, on=on)


def test_a_missing_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for device, count, noun in (("cuda:2", 2, "finds 2 CUDA"), ("mps", 0, "no MPS")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda count=count: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        with pytest.raises(ConfigError, match=noun):
            Machine.detect(device)


BATCH_OF_24 = RunConfig(device="cpu", batch_size=24, distributed={"reduction": "fast"})


def test_a_custom_optimizer_is_sized_by_its_state_after_a_step() -> None:
    class Hoarder(torch.optim.Optimizer):
        def __init__(self, model: torch.nn.Module, copies: int) -> None:
            super().__init__(model.parameters(), {})
            self.copies = range(copies)

        def step(self, closure: Any = None) -> Any:
            for one in self.param_groups[0]["params"]:
                self.state[one] = {str(copy): one.clone() for copy in self.copies}

    memory = planned_memory(BATCH_OF_24.with_(precision="float32"), 16 << 30)
    hoarded = dataclasses.replace(memory, optimizer_state=8 * memory.weights)
    on = Machine("cpu", "small", 1 + round(hoarded.bytes_at(6, 4) / 0.6))
    sizes = [
        resolve(BATCH_OF_24, on=on, make_optimizer=functools.partial(Hoarder, copies=copies))
        for copies in (7, 8, 9)
    ]
    found = [one.sequences_in_memory for one in sizes]
    assert found[0] > found[1] == 6 > found[2], found


@pytest.mark.parametrize(
    ("fitting", "chosen", "expected"),
    [(24, "auto", None), (7, "auto", 6), (1, "auto", 1), (0, None, None), (0, 24, 24), (0, 3, 3)],
)
def test_the_largest_micro_batch_that_fits_is_chosen_and_an_explicit_one_kept(
    fitting: int, chosen: int | str | None, expected: int | None
) -> None:
    precise = BATCH_OF_24.model_copy(update={"precision": "float32"})
    memory = planned_memory(precise, 16 << 30)
    needed = 1
    if fitting:
        needed = 1 + round(memory.bytes_at(fitting, -(-24 // fitting)) / 0.6)
    config = BATCH_OF_24.model_copy(update={"micro_batch_size": chosen})
    resolved = resolve(config, on=Machine("cpu", "small", needed))
    assert resolved.micro_batch_size == expected
    # The processes of a machine share its memory, but have separate GPUs.
    assert [resolving._rank_memory(one, TWO) >> 30 for one in (CPU, H200)] == [8, 141]
    # A resolved run does not change on another machine.
    assert resolve(resolved, on=Machine("cpu", "large", 10**15)) == resolved
    with pytest.raises(ConfigError, match="600 B"):
        resolve(BATCH_OF_24, on=Machine("cpu", "tiny", 1_000))


@pytest.mark.parametrize(
    ("before", "given", "reduction", "num_ranks", "size"),
    [
        (2, "auto", "exact", 4, 1),
        (None, None, "exact", 2, 2),
        (None, None, "fast", 2, None),
        (2, 1, "exact", 2, 1),
    ],
)
def test_a_resume_keeps_the_micro_batch_if_the_ranks_allow(
    make_config: MakeConfig, before: Any, given: Any, reduction: str, num_ranks: int, size: Any
) -> None:
    shared = {"batch_size": 4, "distributed.reduction": reduction}
    run = make_config("any", {**shared, "micro_batch_size": before})
    config = make_config("any", {**shared, "micro_batch_size": given})
    ranks = ProcessGroup(0, num_ranks, 0, num_ranks, is_open=num_ranks > 1)
    assert resolve(config, ranks, previous=run).micro_batch_size == size
    other = make_config("any", {**shared, "batch_size": 8, "micro_batch_size": "auto"})
    assert resolve(other, ranks, previous=run).batch_size == 8


def test_epochs_determine_the_steps_and_few_conversations_the_batch_size(
    make_config: MakeConfig, make_tuning: MakeConfig
) -> None:
    config = make_config("run", {"num_steps": None, "epochs": 2.55})
    assert resolve(config, epoch_rows=100).num_steps == 64
    assert resolve(config).num_steps is None
    parts: Any = [(None, IdArray(np.arange(size)), None, None) for size in (16, 32, 33)]
    assert [RunData(*part).epoch_rows(16) for part in parts] == [1, 1, 2]
    tuning = make_tuning("run", {"num_steps": None, "epochs": 3.0})
    unset = tuning.model_copy(deep=True)
    unset.model_fields_set.discard("batch_size")
    assert resolve(tuning, epoch_rows=100).batch_size == 4
    small = resolve(unset, epoch_rows=100)
    assert (small.batch_size, small.num_steps) == (1, 300)
    plan = make_tuning("run", {"num_steps": None})
    plan.model_fields_set.discard("batch_size")
    expected = ((4, 50, 1, 200), (108, 9.2, 4, 248), (5000, 3, 8, 1875))
    for rows, epochs, batch_size, steps in expected:
        found = resolve(plan, epoch_rows=rows)
        assert (found.epochs, found.batch_size, found.num_steps) == (epochs, batch_size, steps)


def test_global_switches_are_restored(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "CUBLAS_WORKSPACE_CONFIG"

    def read() -> tuple[Any, ...]:
        return (
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.mkldnn.enabled,
            os.environ.get(name),
            torch.get_float32_matmul_precision(),
            getattr(torch.utils.deterministic, "fill_uninitialized_memory"),  # noqa: B009 - untyped
        )

    for workspace in (None, ":16:8"):
        monkeypatch.delenv(name, raising=False)
        if workspace is not None:
            monkeypatch.setenv(name, workspace)
        before = read()
        with pytest.raises(KeyError), switches(make_config("run", {"num_threads": 2})):
            is_fast = before[2] and not is_onednn_slow()
            assert read()[:4] == (2, True, is_fast, workspace or ":4096:8")
            raise KeyError
        assert read() == before


@pytest.mark.slow
# Tracing accesses gradients of non-leaf tensors, about which torch warns.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("mode", ["blocks", "model"])
def test_a_compiled_model_computes_the_same(
    make_config: MakeConfig, build: Any, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    # Capture one graph, forward and backward; generating code would take most of a minute.
    options: Any = {"backend": "aot_eager", "fullgraph": True}
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, **options))
    plain = build(make_config()).model
    compiled = build(make_config()).model
    compile_model(compiled, make_config("run", {"compile": mode}))
    assert list(compiled.state_dict()) == list(plain.state_dict())
    ids = torch.arange(34).reshape(2, 17)
    losses = [model.loss(ids[:, :-1], ids[:, 1:]) for model in (plain, compiled)]
    torch.autograd.backward(losses)
    torch.testing.assert_close(*losses)
    for first, second in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(first.grad, second.grad, rtol=1e-4, atol=1e-6)
    # Attention weights are available for a compiled model too.
    weights = [model.attention_weights(ids[:, :-1]) for model in (plain, compiled)]
    torch.testing.assert_close(*weights)


def test_a_process_may_compile_as_many_shapes_as_it_trains(make_config: MakeConfig) -> None:
    shapes = []

    def note(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        shapes.append(len(inputs[0]))
        return graph.forward

    double = torch.compile(lambda x: x * 2, backend=note, dynamic=False)
    with switches(make_config("run", {"compile": "blocks"})):
        for length in range(1, 11):
            double(torch.zeros(length))
    assert shapes == list(range(1, 11))


def test_the_peak_of_a_gpu_is_known_or_none(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config().model_copy(update={"precision": "float32"})
    on_gpu = config.model_copy(update={"device": "cuda", "precision": "bfloat16"})
    monkeypatch.setattr(machine, "device_name", lambda config: "NVIDIA H200")
    assert find_peak(on_gpu) == pytest.approx(989.4e12)
    monkeypatch.setattr(machine, "device_name", lambda config: "A toy")
    assert find_peak(on_gpu) is None
    assert find_peak(config.model_copy(update={"device": "mps"})) is None


def test_a_slow_start_does_not_count_in_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = itertools.count(), itertools.count()

    def multiply(*matrices: object) -> None:
        # The first twenty calls take three ticks, the others one.
        for _ in range(2 if next(calls) < 20 else 0):
            next(clock)

    monkeypatch.setattr(torch, "mm", multiply)
    monkeypatch.setattr(time, "perf_counter", lambda: 1e-4 * next(clock))
    assert machine.core_peak.__wrapped__("float32") == pytest.approx(2 * 512**3 / 1e-4)


IDS = np.zeros(90, int)
# Settings of a fine-tuning run.
TUNED = {"num_steps": 3}


def loss(*_: Any) -> Any:
    raise AssertionError


@pytest.mark.parametrize(
    ("changes", "parts", "noun"),
    [
        ({"samples.every_steps": 5, "samples.prompts": []}, {}, r"samples\.prompts"),
        ({"data.shards": "nowhere"}, {}, "nowhere"),
        ({"start_from": "nowhere"}, {}, "nowhere"),
        ({"tuning.lora_rank": 2}, {}, "lora_rank"),
        ({}, {"data": np.array([1, 2, 999] * 50)}, "ids from 1 to 999"),
        ({}, {"data": np.zeros((3, 3), int)}, "one-dimensional"),
        ({}, {"data": np.zeros(2, int)}, "2 tokens"),
        ({}, {"model": nn.Linear(2, 2)}, "TransformerLM"),
        ({"z_loss": 0.1}, {"loss": loss}, "z_loss"),
        ({"multi_token_weight": 0.1}, {"loss": loss}, "multi_token_weight"),
        ({"tuning.chats": ("a.jsonl",)}, {"loss": loss}, r"tuning\.chats"),
        ({"tuning.chats": ("a.jsonl",)}, {"data": IDS}, r"tuning\.chats"),
        ({"data.mix": ("a=1",)}, {"data": IDS}, r"data\.mix"),
        ({"model.document_separator": "auto"}, {"data": IDS}, "needs shards"),
        ({"model.document_separator": 300}, {}, "document_separator 300"),
        (TUNED | {"model.document_separator": 9}, {}, r"tuning\.chats"),
        (TUNED | {"model.d_model": 32}, {}, r"model\.d_model is 32, but 16 there"),
        (TUNED | {"model.rope_theta": 5e5}, {}, "rope_theta"),
        (TUNED | {"model.vocab_size": 300}, {}, "vocab_size 300"),
        (TUNED | {"tuning.template": "bad.jinja"}, {}, "UTF-8"),
    ],
)
def test_invalid_runs_are_named(
    make_config: MakeConfig,
    make_tuning: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    parts: dict[str, Any],
    noun: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.jinja").write_bytes(b"\xff")
    make = make_tuning if changes.keys() >= TUNED.keys() else make_config
    with pytest.raises(GroundupError, match=noun):
        train(make("bad", changes), **parts)
    assert not (tmp_path / "runs" / "bad" / "config.yaml").exists()
