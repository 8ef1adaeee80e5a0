"""What a probe of this machine does: how many steps it takes, and which of them it times."""

from collections.abc import Iterable

import pytest

from groundup.data.batches.loader import Batch
from groundup.model.config import ModelConfig
from groundup.runs.config import RunConfig
from groundup.training import machine_probe
from groundup.training.execution import settle
from groundup.training.machine_probe import probe_this_machine, time_steps

MODEL = ModelConfig(context_length=32, d_model=16, num_layers=1, num_heads=2, vocab_size=64)
CONFIG = settle(RunConfig(device="cpu", batch_size=2, model=MODEL))


class Steps:
    """In place of real steps: the first takes 64 seconds, each further one half of it."""

    sizes: list[tuple[int, int]]

    def __init__(self, config: RunConfig) -> None:
        self._seconds = 128.0

    def take(self, batches: Iterable[Batch]) -> float:
        self.sizes += [batch.inputs.shape for batch in batches]
        self._seconds /= 2
        return self._seconds


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> type[Steps]:
    monkeypatch.setattr(Steps, "sizes", [], raising=False)
    monkeypatch.setattr(machine_probe, "Rehearsal", Steps)
    return Steps


@pytest.mark.parametrize(("num_warm_up", "median"), [(0, 32.0), (1, 16.0), (5, 1.0)])
def test_three_steps_are_timed_after_the_warm_up(
    steps: type[Steps], num_warm_up: int, median: float
) -> None:
    seconds, _ = time_steps(CONFIG, num_warm_up)
    # One of next to nothing comes first, to load the libraries.
    assert steps.sizes[1:] == [(2, 32)] * (num_warm_up + 3)
    assert steps.sizes[0] != (2, 32)
    assert seconds == median


def test_a_step_of_a_probe_has_no_more_tokens_than_a_cpu_is_asked_for(steps: type[Steps]) -> None:
    config = CONFIG.model_copy(update={"batch_size": 360})
    probe = probe_this_machine(config, 10**12)
    # 128 sequences would be 4,096 tokens; 120 is the next number that cuts the batch evenly.
    assert probe.micro_batch == 120
    assert steps.sizes[1:] == [(120, 32)] * 4
    assert probe.tokens_per_second == 120 * 32 / probe.seconds_per_step
