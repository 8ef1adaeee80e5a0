"""A run in two lines, before it starts: what the model holds and what the training does."""

from typing import Literal

from groundup.model.config import ModelConfig
from groundup.planner.flops import training_flops_per_token
from groundup.planner.parameters import count_parameters

OptimizerName = Literal["adamw", "sgd", "muon"]

_FLOAT32_BYTES = 4


def two_line_plan(
    config: ModelConfig,
    batch_size: int,
    num_steps: int,
    *,
    tokens_in_corpus: int | None = None,
    optimizer: OptimizerName = "adamw",
) -> list[str]:
    """Two lines: the parameters and the memory they take; the tokens and operations of the run."""
    num_parameters = sum(count_parameters(config).values())
    state_bytes = training_state_bytes(config, optimizer)
    tokens_per_step = batch_size * config.context_length
    num_tokens = tokens_per_step * num_steps
    flops_per_step = training_flops_per_token(config) * tokens_per_step
    tokens = f"{_count(num_tokens)} tokens"
    if tokens_in_corpus:
        tokens += f" ({num_tokens / tokens_in_corpus:.2g} passes over {_count(tokens_in_corpus)})"
    return [
        f"{_count(num_parameters)} parameters: {_bytes(state_bytes)} of memory for weights, "
        f"gradients and optimizer, activations on top",
        f"{num_steps:,} steps of {tokens_per_step:,} tokens: {tokens}, "
        f"{_flops(flops_per_step)} a step, {_flops(flops_per_step * num_steps)} in all",
    ]


def training_state_bytes(config: ModelConfig, optimizer: OptimizerName = "adamw") -> int:
    """Memory of weights, gradients and optimizer state in float32, whatever the batch.

    AdamW keeps two values a weight, SGD none; Muon keeps one for the matrices of the blocks and
    leaves the rest to AdamW.
    """
    parts = count_parameters(config)
    num_parameters = sum(parts.values())
    num_block_weights = parts["attention"] + parts["feed_forward"]
    num_state_values = {
        "adamw": 2 * num_parameters,
        "sgd": 0,
        "muon": 2 * num_parameters - num_block_weights,
    }
    return _FLOAT32_BYTES * (2 * num_parameters + num_state_values[optimizer])


def _count(number: float) -> str:
    return _in_steps(number, (("billion", 1e9), ("million", 1e6))) or f"{number:,.0f}"


def _bytes(number: float) -> str:
    units = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    return _in_steps(number, units) or f"{number:,.0f} B"


def _flops(number: float) -> str:
    units = (("zetta", 1e21), ("exa", 1e18), ("peta", 1e15), ("tera", 1e12), ("giga", 1e9))
    for prefix, size in units:
        if number >= size:
            return f"{number / size:,.3g} {prefix}FLOP"
    return f"{number:,.0f} FLOP"


def _in_steps(number: float, units: tuple[tuple[str, float], ...]) -> str | None:
    for unit, size in units:
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return None
