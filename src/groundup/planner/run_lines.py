"""A plan in three lines, for the log that a run begins with."""

from groundup.model.config import ModelConfig
from groundup.planner.flops import OptimizerName, training_flops_per_token
from groundup.planner.memory import TrainingMemory, training_state_bytes
from groundup.planner.parameters import count_parameters
from groundup.planner.quantities import show_bytes, show_count, show_flops


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
    tokens = f"{show_count(num_tokens)} tokens"
    if tokens_in_corpus:
        passes = num_tokens / tokens_in_corpus
        tokens += f" ({passes:.2g} passes over {show_count(tokens_in_corpus)})"
    return [
        f"{show_count(num_parameters)} parameters: {show_bytes(state_bytes)} of memory for "
        f"weights, gradients and optimizer, activations on top",
        f"{num_steps:,} steps of {tokens_per_step:,} tokens: {tokens}, "
        f"{show_flops(flops_per_step)} a step, {show_flops(flops_per_step * num_steps)} in all",
    ]


def memory_line(memory: TrainingMemory, micro_batch: int, batch_size: int) -> str:
    """One line for the log of a run: the peak of a step, and what it is made of."""
    peak = memory.bytes_at(micro_batch, accumulates=micro_batch < batch_size)
    at_once = f"all {batch_size:,} sequences at once" if batch_size > 1 else "one sequence"
    if micro_batch < batch_size:
        at_once = f"micro-batches of {micro_batch:,} of {batch_size:,} sequences"
    standing = memory.state_bytes + memory.workspaces
    passing = peak - standing - micro_batch * memory.bytes_per_sequence
    return (
        f"about {show_bytes(peak)} at the peak of a step with {at_once}: "
        f"{show_bytes(standing)} stand, a sequence adds "
        f"{show_bytes(memory.bytes_per_sequence)}, {show_bytes(max(0, passing))} come and go"
    )
