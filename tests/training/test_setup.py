"""Before the first step: what is read of the data, and the plan that stands in the log."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from groundup.data.shards import index as shard_index
from groundup.runs.config import RunConfig
from groundup.training import setup
from groundup.training.execution import resolve
from groundup.training.loop import train
from groundup.training.setup import plan_lines

MakeConfig = Callable[..., RunConfig]


@pytest.mark.parametrize("verify", [True, False])
def test_the_shard_index_is_read_once(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, verify: bool
) -> None:
    read_record, read = shard_index.read_record, []

    def count(path: Path, *rest: object) -> object:
        read.append(path.name)
        return read_record(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(shard_index, "read_record", count)
    train(make_config("run", {"num_steps": 1, "data.verify": verify}))
    assert read == ["index.json"]


def lines_of(config: RunConfig, steps_done: int = 0, *, is_timed: bool = False) -> list[str]:
    return plan_lines(resolve(config), 1_000, steps_done=steps_done, is_timed=is_timed)


def test_time_and_price_are_those_of_the_rate_that_was_measured(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "find_peak", lambda config: 1e6)
    *_, line = lines_of(make_config())
    # Projections, feed-forward layer, output and attention of 768 tokens there and back, at half a
    # million operations a second.
    flops = 3 * 768 * (2 * (4 * 16 * 16 + 3 * 16 * 32 + 16 * 300) + 4 * 16 * 16)
    assert line.startswith(f"about {flops / 5e5:.1f} s for 12 steps at 50% of the 1e-06 TFLOP/s")
    assert line.endswith("less than a cent at $0.04 an hour")
    *_, line = lines_of(make_config(), steps_done=9)
    assert line.startswith(f"about {flops / 5e5 / 4:.1f} s for 3 steps at 50%")


def test_ranks_share_batches_time_and_weights(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "find_peak", lambda config: 1e6)
    config = resolve(make_config())
    *_, alone_memory, alone = plan_lines(config, 1_000)
    *_, memory, line = plan_lines(config, 1_000, num_ranks=config.batch_size)
    assert alone_memory.split(": ")[0].endswith(f"all {config.batch_size} sequences at once")
    assert memory.split(": ")[0].endswith("with one sequence")
    assert seconds_of(line) == pytest.approx(seconds_of(alone) / config.batch_size, abs=0.1)
    assert f"of each of {config.batch_size} CPU of" in line and " of one CPU of" in alone
    assert line.endswith(f"at ${0.0408 * config.batch_size:.2f} an hour")
    *_, sharded, _ = plan_lines(config, 1_000, num_ranks=2, num_shards=2)
    *_, copied, _ = plan_lines(config, 1_000, num_ranks=2)
    assert sharded != copied


def seconds_of(line: str) -> float:
    return float(line.removeprefix("about ").split(" s ")[0])


def test_nothing_is_guessed_where_the_rate_is_unknown_or_steps_were_timed(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lines in (lines_of(make_config(), is_timed=True), lines_of(make_config(), steps_done=12)):
        assert len(lines) == 3 and "peak of a step" in lines[-1]
    monkeypatch.setattr(setup, "find_peak", lambda config: None)
    assert len(lines_of(make_config())) == 3


def test_matmuls_of_float32_on_a_gpu_are_told_by_their_tensor_cores(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is another one by name alone: nothing is computed there."""
    monkeypatch.setattr(setup, "device_name", lambda config: "NVIDIA H200")
    monkeypatch.setattr(setup, "find_peak", lambda config: 494.7e12)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: H200())
    config = make_config().model_copy(update={"device": "cuda", "precision": "float32"})
    *_, line = plan_lines(config.model_copy(update={"micro_batch_size": None}), 1_000)
    assert "at 40% of the 494.7 TFLOP/s in tf32 of one H200 (NVIDIA H200 data sheet" in line


class H200:
    total_memory = 150_000_000_000
