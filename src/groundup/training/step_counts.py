"""The settings that are counted in steps, and how they follow when a run gets another length."""

from collections.abc import Collection
from typing import Any

from groundup.config import load_settings
from groundup.runs.config import RunConfig

COUNTED_IN_STEPS = (
    "schedule.warmup_steps",
    "schedule.decay_steps",
    "evaluation.every_steps",
    "checkpoints.every_steps",
    "logging.every_steps",
    "samples.every_steps",
)
"""Besides num_steps itself, by dotted name."""


def scaled_steps(base: RunConfig, num_steps: int, chosen: Collection[str] = ()) -> dict[str, Any]:
    """num_steps, and what else is counted in steps so that it keeps its share of the run.

    Names in `chosen` are left out: they stay as they are.
    """
    values: dict[str, Any] = {"num_steps": num_steps}
    for name in COUNTED_IN_STEPS:
        section, _, setting = name.partition(".")
        value = getattr(getattr(base, section), setting)
        if value and name not in chosen:
            values[name] = scaled(value, num_steps, base.num_steps)
    return values


def scaled(count: int, num_steps: int, base_num_steps: int) -> int:
    """A number of steps that is the same share of a run of `num_steps`, and never none at all."""
    return max(1, round(count * num_steps / base_num_steps)) if count else 0


def with_num_steps(base: RunConfig, num_steps: int, chosen: Collection[str] = ()) -> RunConfig:
    """The same run with another length, see `scaled_steps`."""
    changes = scaled_steps(base, num_steps, chosen)
    return load_settings(RunConfig, None, {**base.model_dump(), **changes})
