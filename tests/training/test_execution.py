"""How a run computes: every "auto" settled, torch's switches put back, compiled models equal."""

import functools
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from groundup.errors import ConfigError
from groundup.runs.config import RunConfig
from groundup.training import execution
from groundup.training.building import build_state
from groundup.training.execution import (
    autocast,
    compile_model,
    describe_kernels,
    settle,
    settle_device,
    switches,
)

MakeConfig = Callable[..., RunConfig]


def test_auto_is_settled_for_the_machine(make_config: MakeConfig) -> None:
    settled = settle(make_config("run", {"device": "auto"}))
    assert "auto" not in settled.model_dump().values()
    assert settle(settled) == settled


def test_choices_are_left_as_they_are(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "why_no_bfloat16", lambda: None)
    choices = {"precision": "bfloat16", "compile": "blocks", "micro_batch_size": 1}
    config = make_config("run", choices)
    assert settle(config) == config


def test_bfloat16_is_refused_on_a_cpu_without_it_and_only_there(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "why_no_bfloat16", lambda: "this CPU is slow at it")
    with pytest.raises(ConfigError, match="this CPU is slow at it: use --precision float32"):
        settle(make_config("run", {"precision": "bfloat16"}))
    assert settle(make_config("run", {"precision": "auto"})).precision == "float32"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    on_mps = {"device": "mps", "precision": "bfloat16"}
    assert settle_device(make_config("run", on_mps)).precision == "bfloat16"


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
        settle(make_config("run", {"device": device}))


def test_a_device_number_beyond_the_last_is_named(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"device is cuda:2, but the last of 2 is cuda:1"):
        settle(make_config("run", {"device": "cuda:2"}))


def test_cuda_gets_half_precision_and_compilation(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **options: True)
    monkeypatch.setattr(execution, "HAS_TRITON", True)
    settled = settle(make_config("run", {"device": "auto", "micro_batch_size": None}))
    assert (settled.device, settled.precision) == ("cuda", "bfloat16")
    assert settled.compile != "off"


def test_without_cuda_auto_is_mps_where_there_is_one(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    settled = settle_device(make_config("run", {"device": "auto"}))
    assert (settled.device, settled.precision, settled.compile) == ("mps", "float32", "off")


def test_a_fallback_says_so(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **options: False)
    monkeypatch.setattr(execution, "HAS_TRITON", False)
    settled = settle(make_config("run", {"device": "auto", "micro_batch_size": None}))
    assert (settled.precision, settled.compile) == ("float32", "off")
    assert "needs triton" in caplog.text


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
            torch.utils.deterministic.fill_uninitialized_memory,
            torch.get_float32_matmul_precision(),
            os.environ.get(name),
        )

    before = read()
    with pytest.raises(KeyError), switches(make_config("run", {"num_threads": 2})):
        assert torch.get_num_threads() == 2
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ[name] == (workspace or ":4096:8")
        raise KeyError
    assert read() == before


@pytest.mark.parametrize(("tf32", "precision"), [(True, "high"), (False, "highest")])
def test_tf32_is_for_the_products_of_a_run_on_cuda(
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
    assert "reference formulas" in describe_kernels(
        make_config("run", {"model.kernels": "reference"})
    )
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
