"""What loss to expect: pairs against a count by hand, and what is said before and after a run."""

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from groundup.files import append_json_line
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.training.expectation import Outlook, count_losses, meaning

from .conftest import MakeConfig


def test_pairs_predict_as_counted_by_hand() -> None:
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
    # Beyond what was fitted less is known.
    spreads = [one.high / one.low for one in losses]
    assert spreads[0] == pytest.approx(spreads[1]) and spreads[2] > spreads[1]


def test_a_run_that_its_passes_end_says_so(make_config: MakeConfig) -> None:
    short, _ = outlook(make_config, flops=1e9)
    long, config = outlook(make_config, flops=1e15)
    assert not short.is_cut and long.is_cut
    assert "ends after 10 epochs" in long.before() and "ends after" not in short.before()
    assert f"{long.expect(long.num_tokens).loss:.2f}" in long.before()
    run = RunFolder(config.run_folder)
    run.path.mkdir(parents=True)
    append_json_line(run.metrics_file, {"step": 9, "validation_loss": 4.321})
    assert "4.32, expected" in long.after(run) and "give more text" in long.after(run)


def test_a_lower_loss_means_more() -> None:
    words = [meaning(bits) for bits in (9.0, 2.3, 1.7, 1.4, 0.9)]
    assert len(set(words)) == 5 and words[0].startswith("pieces") and "follow" in words[-1]
