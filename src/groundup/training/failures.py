"""What went wrong in a run, with numbers and advice instead of a bare traceback."""

import contextlib
import re
from collections.abc import Iterator

import torch

from groundup.errors import GroundupError
from groundup.runs.config import RunConfig
from groundup.runtime import peak_memory_bytes
from groundup.training.state import TrainingState

_NO_MEMORY = re.compile(r"out of memory|not enough memory|can't allocate memory", re.IGNORECASE)
_GIB = 2**30


@contextlib.contextmanager
def memory_advice(config: RunConfig) -> Iterator[None]:
    """Convert running out of memory, on any device, into an error that says what to change."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise GroundupError(_describe_memory(config)) from error
    except RuntimeError as error:
        if not _NO_MEMORY.search(str(error)):
            raise
        raise GroundupError(_describe_memory(config)) from error


def describe_divergence(
    config: RunConfig, state: TrainingState, reason: str, starts: list[int]
) -> str:
    """Why the run stops after too many steps without a finite loss or gradient.

    `reason` is that of the last one, whose windows begin at `starts`.
    """
    advice = [f"lower --optimizer.learning-rate from {config.optimizer.learning_rate:g}"]
    if config.clip_norm is None:
        advice.append("clip gradients with --clip-norm 1")
    if config.precision != "float32":
        wider = "bfloat16" if config.precision == "float8" else "float32"
        advice.append(f"compute with --precision {wider}")
    if config.model.norm == "none":
        advice.append("use --model.norm pre in a new run")
    elif not config.model.qk_norm:
        advice.append("use --model.qk-norm in a new run")
    shown = ", ".join(map(str, starts[:4])) + (", …" if len(starts) > 4 else "")
    return (
        f"{state.num_skipped_in_row} steps in a row had no finite loss and gradients (the last: "
        f"{reason}; its windows begin at ids {shown}), so the run stopped; weights and optimizer "
        f"are as they were after step {state.last_good_step}, its last good one, and are saved. "
        f"{_sentence(advice)}; "
        f"continue with --resume --allow-changes. metrics.jsonl names the windows of every "
        f"skipped step: if they are always the same, look at the text there"
    )


def _describe_memory(config: RunConfig) -> str:
    size = config.sequences_in_memory
    advice = []
    if size > 1:
        half = next(n for n in range(size // 2, 0, -1) if config.batch_size % n == 0)
        advice.append(
            f"use --micro-batch-size {half}, which gives the same batch in about half the memory"
        )
    if config.precision == "float32" and config.device.startswith("cuda"):
        advice.append("use --precision bfloat16")
    if size == 1:
        advice.append(
            f"use a smaller model or a --model.context-length below {config.model.context_length}"
        )
    advice.append("close other programs that use the same memory")
    return (
        f"out of memory on {config.device} with micro-batches of {size} sequences of "
        f"{config.model.context_length} tokens in {config.precision} ({_memory_in_use(config)}). "
        f"{_sentence(advice)}; a run that has checkpoints continues with --resume --allow-changes"
    )


def _memory_in_use(config: RunConfig) -> str:
    device = torch.device(config.device)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        allocated = torch.cuda.memory_allocated(device)
        peak = torch.cuda.max_memory_allocated(device)
        return (
            f"{peak / _GIB:.1f} GiB at most in use here, {allocated / _GIB:.1f} GiB now, "
            f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
        )
    return f"{peak_memory_bytes() / _GIB:.1f} GiB at most in use"


def _sentence(advice: list[str]) -> str:
    text = advice[0] if len(advice) == 1 else f"{', '.join(advice[:-1])}, or {advice[-1]}"
    return text[:1].upper() + text[1:]
