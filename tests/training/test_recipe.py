"""The settings chosen for a text, a machine and a time, and the expected loss."""

import itertools
import math
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.files import append_json_line
from groundup.planner import step_flops
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.training.expectation import Outlook, count_losses
from groundup.training.recipe import choose_recipe

from .conftest import MakeConfig


def tokens_of(recipe: RunConfig) -> int:
    return (recipe.num_steps or 0) * recipe.tokens_per_step


@pytest.mark.parametrize(
    ("flops", "num_bytes", "expected"),
    [
        pytest.param(1.1e13, 20e6, (96, 4, 4_096, 256, 8), id="two CPU cores, five minutes"),
        pytest.param(1.8e16, 96e6, (512, 4, 16_384, 256, 128), id="a minute of an H200"),
    ],
)
def test_tuned_recipes_are_found_again(
    flops: float, num_bytes: float, expected: tuple[int, ...]
) -> None:
    config = choose_recipe(flops=flops, num_bytes=int(num_bytes))
    model = config.model
    sizes = (model.d_model, model.num_layers, model.vocab_size, model.context_length)
    assert (*sizes, config.batch_size) == expected
    assert config.optimizer.name == "muon" and config.schedule.name == "linear"


def test_more_epochs_increase_weight_decay_and_epochs_are_limited() -> None:
    once = choose_recipe(flops=1e13, num_bytes=100_000_000)
    often = choose_recipe(flops=1e16, num_bytes=1_000_000)
    assert once.optimizer.weight_decay == 0.1 and often.optimizer.weight_decay == 1.0
    assert tokens_of(often) / (1_000_000 / 3.6) == pytest.approx(10, rel=0.05)


@given(
    st.floats(6, 24).map(lambda power: 10.0**power),
    st.integers(1, 10**13),
    st.sampled_from([None, 1, 50, 512, 770]),
    st.sampled_from([None, 1, 7, 100_000]),
)
def test_every_recipe_is_a_run_that_fits_into_the_time(
    flops: float, num_bytes: int, d_model: int | None, max_steps: int | None
) -> None:
    if d_model == 1:
        d_model = 2  # RoPE needs an even size.
    config = choose_recipe(
        flops=flops, num_bytes=num_bytes, d_model=d_model, max_steps=max_steps, document_bytes=10
    )
    num_steps = config.num_steps or 0
    assert 0 < num_steps <= (max_steps or math.inf)
    taken = num_steps * step_flops(config.model, config.batch_size)
    one_step = step_flops(config.model, config.batch_size)
    assert taken <= 1.01 * flops + one_step
    assert d_model in (None, config.model.d_model)
    assert config.schedule.warmup_steps <= 1


@pytest.mark.parametrize(
    ("document_bytes", "is_on_cpu", "is_masked"),
    [(None, True, False), (1_000, True, True), (1_000, False, False), (100_000, True, False)],
)
def test_documents_that_share_a_window_are_masked_on_a_cpu(
    document_bytes: int | None, is_on_cpu: bool, is_masked: bool
) -> None:
    recipe = choose_recipe(
        flops=1e13, num_bytes=10**6, document_bytes=document_bytes, is_on_cpu=is_on_cpu
    )
    assert recipe.model.document_separator == ("auto" if is_masked else None)


def test_validation_windows_do_not_depend_on_the_machine() -> None:
    speeds = (1e10, 1e13, 1e17, 1e21)
    found = {choose_recipe(flops=one, num_bytes=10**8).evaluation for one in speeds}
    assert len({one.num_windows for one in found}) == 1


def test_bigram_predictions_equal_manual_counts() -> None:
    random = np.random.default_rng(0)
    seen, unseen = random.integers(0, 6, 40), random.integers(0, 8, (3, 10))
    singles, starts = Counter(seen.tolist()), Counter(seen[:-1].tolist())
    pairs = Counter(zip(seen.tolist(), seen[1:].tolist(), strict=False))
    nats, nats_alone = [], []
    for row in unseen.tolist():
        for a, b in itertools.pairwise(row):
            alone = (singles[b] + 0.5) / (len(seen) + 0.5 * 8)
            kinds = sum(first == a for first, _ in pairs)
            together = max(0, pairs[a, b] - 0.75) + 0.75 * kinds * alone
            nats_alone.append(-math.log(alone))
            nats.append(-math.log(together / starts[a] if starts[a] else alone))
    expected = sum(nats_alone) / len(nats), sum(nats) / len(nats)
    assert count_losses(seen, unseen) == pytest.approx(expected)


def outlook(
    make_config: MakeConfig, flops: float = 1e9, **changes: Any
) -> tuple[Outlook, RunConfig]:
    config = make_config(
        "run", {"evaluation.num_windows": 4, "epochs": 10, "num_steps": None} | changes
    )
    return Outlook(config, flops), config


def test_more_tokens_lower_the_loss_and_less_time_widens_nothing(make_config: MakeConfig) -> None:
    found, _ = outlook(make_config)
    losses = [found.expect(number) for number in (1e5, 1e6, 1e8)]
    assert losses[0].loss > losses[1].loss > losses[2].loss
    assert all(one.low < one.loss < one.high for one in losses)
    # Extrapolation widens the interval.
    spreads = [one.high / one.low for one in losses]
    assert spreads[0] == pytest.approx(spreads[1]) and spreads[2] > spreads[1]


def test_a_run_limited_by_epochs_says_so(make_config: MakeConfig, monkeypatch: Any) -> None:
    short, _ = outlook(make_config, flops=1e9)
    long, config = outlook(make_config, flops=1e15)
    assert not short.is_cut and long.is_cut
    assert "ends after 10 epochs" in long.before() and "ends after" not in short.before()
    assert f"{long.expect(long.num_tokens).loss:.2f}" in long.before()
    run = RunFolder(config.run_folder)
    run.path.mkdir(parents=True)
    append_json_line(run.metrics_file, {"step": 9, "validation_loss": 4.321})
    assert "4.32, expected" in long.after(run) and "give more text" in long.after(run)
    longer = config.with_(num_steps=10**6)
    monkeypatch.setattr("groundup.training.expectation.choose_recipe", lambda **_: longer)
    monkeypatch.setattr("groundup.training.expectation.meaning", str)
    told = re.search(r"would give about ([\d.]+) \(.*\): (.*)", short.after(run))
    assert told and float(told[2]) == pytest.approx(float(told[1]) * short._bits_per_byte, rel=0.1)
