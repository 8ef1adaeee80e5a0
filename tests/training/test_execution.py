"""How a run computes: every "auto" resolved, switches put back, compiled models equal, its peak."""

import copy
import functools
import io
import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from groundup.distributed.process_group import World
from groundup.errors import ConfigError
from groundup.experiments.results.run_result import read_run
from groundup.nn import float8
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import format_duration, is_onednn_slow
from groundup.training import execution
from groundup.training.execution import (
    autocast,
    compile_model,
    core_peak,
    describe_kernels,
    find_peak,
    planned_memory,
    resolve,
    resolve_device,
    switches,
    with_micro_batch_of,
)
from groundup.training.loop import train
from groundup.training.setup import build_state

MakeConfig = Callable[..., RunConfig]


def test_auto_is_resolved_and_choices_are_left_as_they_are(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = resolve(make_config("run", {"device": "auto"}))
    assert "auto" not in resolved.model_dump().values()
    assert resolve(resolved) == resolved
    monkeypatch.setattr(execution, "why_no_bfloat16", lambda: None)
    choices = {"precision": "bfloat16", "compile": "blocks", "micro_batch_size": 1}
    config = make_config("run", choices)
    assert resolve(config) == config


def test_dropout_is_refused_where_processes_would_drop_different_values(
    make_config: MakeConfig,
) -> None:
    config = make_config("run", {"model.dropout": 0.1})
    assert resolve(config).model.dropout == 0.1
    with pytest.raises(ConfigError, match=r"dropout 0\.1 needs one process"):
        resolve(config, World(0, 2, 0, 2))
    with pytest.raises(ConfigError, match="recompute"):
        resolve(make_config("run", {"model.dropout": 0.1, "distributed.recompute": True}))


def test_bfloat16_is_refused_on_a_cpu_without_it_and_only_there(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "why_no_bfloat16", lambda: "this CPU is slow at it")
    with pytest.raises(ConfigError, match="this CPU is slow at it: use --precision float32"):
        resolve(make_config("run", {"precision": "bfloat16"}))
    assert resolve(make_config("run", {"precision": "auto"})).precision == "float32"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    on_mps = {"device": "mps", "precision": "bfloat16"}
    assert resolve_device(make_config("run", on_mps)).precision == "bfloat16"


def test_float8_is_refused_where_there_is_none(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"device is cpu, .* use --precision auto"):
        resolve(make_config("run", {"precision": "float8"}))
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an A100")
    changes: dict[str, object] = {"precision": "float8", "device": "cuda"}
    monkeypatch.setattr(execution, "HAS_TRITON", False)
    with pytest.raises(ConfigError, match="Triton"):
        resolve(make_config("run", changes))
    monkeypatch.setattr(execution, "HAS_TRITON", True)
    monkeypatch.setattr(float8, "why_not", lambda device: "too old")
    with pytest.raises(ConfigError, match=r"an A100 has no such matmuls \(too old\)"):
        resolve(make_config("run", changes))
    monkeypatch.setattr(float8, "why_not", lambda device: None)
    config = resolve_device(make_config("run", changes))
    assert config.precision == "float8"
    assert execution.matmul_precision(config) == "bfloat16"
    bad = {"model.d_ff": 40, "distributed.strategy": "fsdp"}
    for name, value in bad.items():
        whole = {"micro_batch_size": 1, "distributed.strategy": "ddp"}
        config = make_config("run", {**changes, **whole, name: value})
        with pytest.raises(ConfigError, match=rf"{name}.* use --precision bfloat16"):
            resolve(config, World(0, 2, 0, 2, is_open=True))


@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_there_is_named(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, device: str, is_built: bool
) -> None:
    backend = torch.backends.mps if device == "mps" else torch.backends.cuda
    monkeypatch.setattr(backend, "is_built", lambda: is_built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    reason = "torch finds no|finds no MPS" if is_built else r"this torch \(.*\) is built without"
    with pytest.raises(ConfigError, match=f"device is {device}, but .*({reason}).*--device auto"):
        resolve(make_config("run", {"device": device}))


def test_a_device_number_beyond_the_last_is_named(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"device is cuda:2, but the last of 2 is cuda:1"):
        resolve(make_config("run", {"device": "cuda:2"}))


@pytest.mark.parametrize("has_all", [True, False])
def test_cuda_gets_half_precision_and_compilation_and_a_fallback_says_so(
    make_config: MakeConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    has_all: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **options: has_all)
    monkeypatch.setattr(execution, "HAS_TRITON", has_all)
    resolved = resolve(make_config("run", {"device": "auto", "micro_batch_size": None}))
    expected = ("cuda", "bfloat16", "blocks") if has_all else ("cuda", "float32", "off")
    assert (resolved.device, resolved.precision, resolved.compile) == expected
    assert ("needs triton" in caplog.text) is not has_all


def test_without_cuda_auto_is_mps_where_there_is_one(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    resolved = resolve_device(make_config("run", {"device": "auto"}))
    assert (resolved.device, resolved.precision, resolved.compile) == ("mps", "float32", "off")


BATCH_OF_24 = RunConfig(device="cpu", batch_size=24, distributed={"reduction": "fast"})


@pytest.mark.parametrize(
    ("fitting", "chosen", "expected"),
    [(24, "auto", None), (7, "auto", 6), (1, "auto", 1), (0, None, None), (0, 24, 24), (0, 3, 3)],
)
def test_the_greatest_micro_batch_that_fits_is_taken_and_a_choice_never_changed(
    monkeypatch: pytest.MonkeyPatch,
    fitting: int,
    chosen: int | str | None,
    expected: int | None,
) -> None:
    memory = planned_memory(BATCH_OF_24.model_copy(update={"precision": "float32"}))
    needed = 1
    if fitting:
        needed = 1 + round(memory.bytes_at(fitting, -(-24 // fitting)) / 0.6)
    monkeypatch.setattr(execution, "memory_bytes", lambda: needed)
    resolved = resolve(BATCH_OF_24.model_copy(update={"micro_batch_size": chosen}))
    assert resolved.micro_batch_size == expected
    # What was resolved stays, whatever the next machine has.
    monkeypatch.setattr(execution, "memory_bytes", lambda: 10**15)
    assert resolve(resolved) == resolved


@pytest.mark.parametrize(
    ("before", "given", "reduction", "num_ranks", "size"),
    [
        (2, "auto", "exact", 2, 2),
        (2, "auto", "exact", 4, 1),
        (None, None, "exact", 1, None),
        (None, None, "exact", 2, 2),
        (None, None, "fast", 2, None),
        (2, 1, "exact", 2, 1),
    ],
)
def test_a_resume_has_the_micro_batches_of_its_run_where_its_ranks_can(
    make_config: MakeConfig, before: Any, given: Any, reduction: str, num_ranks: int, size: Any
) -> None:
    shared = {"batch_size": 4, "distributed.reduction": reduction}
    run = make_config("any", {**shared, "micro_batch_size": before})
    config = make_config("any", {**shared, "micro_batch_size": given})
    world = World(0, num_ranks, 0, num_ranks, is_open=num_ranks > 1)
    assert resolve(with_micro_batch_of(run, config, world), world).micro_batch_size == size


def test_micro_batches_of_another_batch_are_chosen_again(make_config: MakeConfig) -> None:
    run = make_config("any", {"batch_size": 4, "micro_batch_size": None})
    config = make_config("any", {"batch_size": 8, "micro_batch_size": "auto"})
    world = World(0, 2, 0, 2, is_open=True)
    assert resolve(with_micro_batch_of(run, config, world), world).micro_batch_size == 4


def test_a_model_that_cannot_fit_is_refused_before_it_is_built_but_may_be_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execution, "memory_bytes", lambda: 1_000)
    with pytest.raises(ConfigError, match="256 tokens, and of 1,000 it may use 600"):
        resolve(BATCH_OF_24)
    resolved = resolve_device(BATCH_OF_24)
    assert resolved.device == "cpu" and resolved.micro_batch_size == "auto"
    assert execution.sequences_to_evaluate(resolved) == 1
    chosen = resolved.model_copy(update={"micro_batch_size": 3})
    assert execution.sequences_to_evaluate(chosen) == 3


@pytest.mark.parametrize("workspace", [None, ":16:8"])
def test_the_switches_are_put_back(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, workspace: str | None
) -> None:
    name = "CUBLAS_WORKSPACE_CONFIG"
    monkeypatch.delenv(name, raising=False)
    if workspace is not None:
        monkeypatch.setenv(name, workspace)

    def read() -> tuple[Any, ...]:
        return (
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            getattr(torch.utils.deterministic, "fill_uninitialized_memory"),  # noqa: B009 - untyped
            torch.get_float32_matmul_precision(),
            torch.backends.mkldnn.enabled,
            os.environ.get(name),
        )

    before = read()
    with pytest.raises(KeyError), switches(make_config("run", {"num_threads": 2})):
        assert torch.get_num_threads() == 2
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ[name] == (workspace or ":4096:8")
        assert torch.backends.mkldnn.enabled == (before[4] and not is_onednn_slow())
        raise KeyError
    assert read() == before


@pytest.mark.parametrize(("tf32", "precision"), [(True, "high"), (False, "highest")])
def test_tf32_is_for_the_matmuls_of_a_run_on_cuda(
    make_config: MakeConfig, tf32: bool, precision: str
) -> None:
    before = torch.get_float32_matmul_precision()
    config = make_config("run", {"device": "cuda", "tf32": tf32, "micro_batch_size": None})
    with switches(config):
        assert torch.get_float32_matmul_precision() == precision
    assert torch.get_float32_matmul_precision() == before


def test_half_precision_leaves_weights_in_float32(make_config: MakeConfig) -> None:
    config = make_config("run", {"precision": "bfloat16"})
    state = build_state(config)
    ids = torch.arange(16)[None]
    with autocast(config):
        assert state.model.hidden(ids).dtype == torch.bfloat16
    assert {weight.dtype for weight in state.model.state_dict().values()} == {torch.float32}


def test_the_line_about_kernels_names_what_runs(make_config: MakeConfig) -> None:
    assert "fused attention" in describe_kernels(make_config())
    line = describe_kernels(make_config("run", {"precision": "bfloat16"}))
    assert "bfloat16 (autocast, float32 weights)" in line and "deterministic" in line


# Tracing looks at gradients of inner tensors, which torch itself warns about.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("mode", ["blocks", "model"])
def test_a_compiled_model_computes_the_same(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    # The tracing is torch.compile's own; generating code for it would take long and prove no more.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    plain = build_state(make_config()).model
    compiled = build_state(make_config()).model
    compile_model(compiled, make_config("run", {"compile": mode}))
    assert list(compiled.state_dict()) == list(plain.state_dict())
    ids = torch.arange(34).reshape(2, 17)
    one = plain.loss(ids[:, :-1], ids[:, 1:])
    other = compiled.loss(ids[:, :-1], ids[:, 1:])
    one.backward()
    other.backward()
    torch.testing.assert_close(one, other)
    for first, second in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(first.grad, second.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("mode", ["blocks", "model"])
def test_a_copy_of_a_compiled_model_has_weights_of_its_own(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    model = build_state(make_config()).model
    compile_model(model, make_config("run", {"compile": mode}))
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    ids = torch.arange(16)[None]
    before = model(ids).detach()
    for copied in (copy.deepcopy(model), torch.load(saved, weights_only=False)):
        torch.testing.assert_close(copied(ids), before)
        with torch.no_grad():
            copied.token_embedding.weight.zero_()
        assert not torch.allclose(copied(ids), before)
        torch.testing.assert_close(model(ids), before)


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing has been measured, as in a new process; nor is what a test measures kept."""
    core_peak.cache_clear()
    yield
    core_peak.cache_clear()


@pytest.fixture
def matmuls(fresh: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was timed; each matmul takes twice as long as the one before."""
    timed: list[str] = []

    def time_matmul(dtype: str, size: int) -> float:
        timed.append(dtype)
        return 1e-3 * 2 ** len(timed)

    monkeypatch.setattr(execution, "matmul_seconds", time_matmul)
    return timed


def test_the_peak_is_measured_on_a_cpu_and_known_or_none_on_gpus(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config().model_copy(update={"precision": "float32"})
    peak = find_peak(config)
    assert peak is not None and peak > 1e6
    on_gpu = config.model_copy(update={"device": "cuda", "precision": "bfloat16"})
    monkeypatch.setattr(execution, "device_name", lambda config: "NVIDIA H200")
    assert find_peak(on_gpu) == pytest.approx(989.4e12)
    monkeypatch.setattr(execution, "device_name", lambda config: "A toy")
    assert find_peak(on_gpu) is None
    assert find_peak(config.model_copy(update={"device": "mps"})) is None


def test_threads_add_up_and_each_precision_is_measured_once(
    make_config: MakeConfig, matmuls: list[str]
) -> None:
    config = make_config().model_copy(update={"precision": "float32"})
    half = config.model_copy(update={"precision": "bfloat16"})
    one = find_peak(config)
    assert one == 2 * 512**3 / 2e-3
    torch.set_num_threads(2)
    assert find_peak(config) == 2 * one
    assert find_peak(half) == one and find_peak(half) == one
    assert matmuls == ["float32", "bfloat16"]


def test_log_folder_and_report_name_one_time(make_config: MakeConfig, matmuls: list[str]) -> None:
    config = make_config("run", {"precision": "float32"})
    train(config)
    folder = RunFolder(config.run_folder)
    assert matmuls == ["float32"]
    assert folder.read_environment()["peak_flops_per_second"] == find_peak(config)
    told = re.search(r"about (.+) for 12 steps at 50% of the ", folder.log_file.read_text("utf-8"))
    planned = read_run(folder.path).cost.planned_seconds
    assert told is not None and planned is not None
    assert told[1] == format_duration(planned)


def test_another_peak_is_no_other_condition_of_a_resume(make_config: MakeConfig) -> None:
    config = make_config()
    train(config, stop_after=3)
    folder = RunFolder(config.run_folder)
    begun = {**folder.read_environment(), "peak_flops_per_second": 1.0}
    folder.environment_file.write_text(json.dumps(begun), "utf-8")
    train(config, resume=True, stop_after=6)
    environment = folder.read_environment()
    assert environment["resumes"][0]["changes"] == []
    assert environment["peak_flops_per_second"] == 1.0
    assert "other conditions" not in folder.log_file.read_text("utf-8")
