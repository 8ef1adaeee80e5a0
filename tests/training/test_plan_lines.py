"""The plan that stands in the log of a run before its first step."""

import re
from collections.abc import Callable

import pytest
import torch

from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.training import plan_lines as module
from groundup.training.execution import settle
from groundup.training.loop import train
from groundup.training.plan_lines import plan_lines

MakeConfig = Callable[..., RunConfig]

# In the order in which they have to stand.
BEGINNINGS = [
    r"data in .*: [\d,]+ ids for train, ",
    r"[\d,]+ parameters: .* of memory for weights, gradients and optimizer",
    r"12 steps of 64 tokens: 768 tokens \(.* epochs of .*\), .* a step, .* in all",
    r"about .* at the peak of a step with all 4 sequences at once: .* fixed, .* per sequence",
    r"about .* for 12 steps at 50% of the .* TFLOP/s in float32 of one CPU of 1 core \(measured\)",
    r"kernels on ",
    r"step +1/12 ",
]


def test_the_plan_stands_in_the_log_before_the_first_step(make_config: MakeConfig) -> None:
    config = make_config()
    train(config, stop_after=1)
    lines = RunFolder(config.run_folder).log_file.read_text("utf-8").splitlines()
    messages = [line.split(" INFO ", 1)[1] for line in lines if " INFO " in line]
    places = [
        next(place for place, message in enumerate(messages) if re.match(beginning, message))
        for beginning in BEGINNINGS
    ]
    assert places == sorted(places)


def lines_of(config: RunConfig, steps_done: int = 0, *, is_timed: bool = False) -> list[str]:
    return plan_lines(settle(config), 1_000, steps_done=steps_done, is_timed=is_timed)


def test_time_and_price_are_those_of_the_rate_that_was_measured(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_peak", lambda config: 1e6)
    *_, line = lines_of(make_config())
    # Projections, feed-forward layer, output and attention of 768 tokens there and back, at half a
    # million operations a second.
    flops = 3 * 768 * (2 * (4 * 16 * 16 + 3 * 16 * 32 + 16 * 300) + 4 * 16 * 16)
    assert line.startswith(f"about {flops / 5e5:.1f} s for 12 steps at 50% of the 1e-06 TFLOP/s")
    assert line.endswith("less than a cent at $0.04 an hour")
    *_, line = lines_of(make_config(), steps_done=9)
    assert line.startswith(f"about {flops / 5e5 / 4:.1f} s for 3 steps at 50%")


def test_nothing_is_guessed_where_the_rate_is_unknown_or_steps_were_timed(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lines in (lines_of(make_config(), is_timed=True), lines_of(make_config(), steps_done=12)):
        assert len(lines) == 3 and "peak of a step" in lines[-1]
    monkeypatch.setattr(module, "find_peak", lambda config: None)
    assert len(lines_of(make_config())) == 3


def test_products_of_float32_on_a_gpu_are_told_by_their_tensor_cores(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is another one by name alone: nothing is computed there."""
    monkeypatch.setattr(module, "device_name", lambda config: "NVIDIA H200")
    monkeypatch.setattr(module, "find_peak", lambda config: 494.7e12)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: H200())
    config = make_config().model_copy(update={"device": "cuda", "precision": "float32"})
    *_, line = plan_lines(config.model_copy(update={"micro_batch_size": None}), 1_000)
    assert "at 40% of the 494.7 TFLOP/s in tf32 of one H200 (NVIDIA H200 data sheet" in line


class H200:
    total_memory = 150_000_000_000
