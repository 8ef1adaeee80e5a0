"""The two lines, and the memory they name, which is the real state's."""

import pytest

from groundup.model.config import PRESETS, ModelConfig
from groundup.planner import count_parameters, training_state_bytes, two_line_plan


def test_two_lines_say_parameters_memory_tokens_and_operations() -> None:
    first, second = two_line_plan(PRESETS["tinystories"], batch_size=32, num_steps=40_000)
    assert first.startswith("22.7 million parameters: 363.1 MB of memory")
    assert second.startswith("40,000 steps of 8,192 tokens: 327.7 million tokens, ")
    assert "915 gigaFLOP a step, 36.6 petaFLOP in all" in second


def test_passes_over_the_corpus_are_told_when_its_size_is_known() -> None:
    config = ModelConfig(context_length=100)
    _, line = two_line_plan(config, 10, 300, tokens_in_corpus=200_000)
    assert "300,000 tokens (1.5 passes over 200,000)" in line


def test_small_and_huge_runs_keep_readable_figures() -> None:
    tiny = ModelConfig(vocab_size=2, context_length=1, d_model=2, num_layers=0, num_heads=1)
    first, second = two_line_plan(tiny, 1, 1)
    assert first.startswith("10 parameters: 160 B ") and "36 FLOP a step" in second
    _, second = two_line_plan(PRESETS["gpt2-xl"], 512, 10_000_000)
    assert "zettaFLOP in all" in second and "e+" not in second


@pytest.mark.parametrize("name", PRESETS)
def test_state_is_two_values_a_weight_and_the_optimizers(name: str) -> None:
    config = PRESETS[name]
    parts = count_parameters(config)
    num_parameters = sum(parts.values())
    assert training_state_bytes(config, "sgd") == 8 * num_parameters
    assert training_state_bytes(config, "adamw") == 16 * num_parameters
    in_blocks = parts["attention"] + parts["feed_forward"]
    assert training_state_bytes(config, "muon") == 16 * num_parameters - 4 * in_blocks
