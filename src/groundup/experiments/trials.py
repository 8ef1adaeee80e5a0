"""A trial, one run of a sweep: its name, settings and result."""

import functools
import hashlib
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from groundup.errors import ConfigError, DataError
from groundup.experiments.spec import SweepConfig, base_config, build_config
from groundup.runs.config import NAME_PATTERN, RunConfig, as_fractions

Status = Literal["finished", "diverged", "failed"]

_MAX_NAME_LENGTH = 120


@dataclass(frozen=True)
class Point:
    """A choice of settings, run with every seed."""

    settings: Mapping[str, Any]
    variant: str | None = None
    """A bundle of the sweep, overridden by `settings`."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    name: str
    point: str
    """The name without the seed."""
    config: RunConfig
    settings: Mapping[str, Any]
    """The settings that differ from the base's, by dotted name."""
    variant: str | None = None


@dataclass(frozen=True)
class TrialRecord:
    """A line of trials.jsonl: how a trial ended, and its last metrics."""

    trial: str
    point: str
    status: Status
    seed: int
    settings: dict[str, Any] = field(default_factory=dict)
    variant: str | None = None
    reason: str | None = None
    step: int = 0
    ranking_loss: float | None = None
    """As in reports: the lowest validation loss, or without a validation split the mean of the last
    training losses."""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "TrialRecord":
        """Read a line, ignoring unknown fields."""
        try:
            return cls(**{k: v for k, v in values.items() if k in cls.__dataclass_fields__})
        except TypeError as error:
            raise DataError(f"a line of trials.jsonl is not a trial: {error}") from error


def make_trial(spec: SweepConfig, point: Point, seed: int, runs_folder: Path) -> Trial:
    """Build and check the settings of a trial; a ConfigError names the trial and the setting."""
    where = f"trial {_name(point.variant, point.settings) or 'base'}"
    if point.variant is not None and point.variant not in spec.variants:
        raise ConfigError(f"{where}: variant {point.variant} no longer exists")
    bundle = {} if point.variant is None else spec.variants[point.variant]
    config = build_config(spec.base_values, bundle, point.settings, where=where)
    # Use validated values: YAML reads 1e-3 as a string, which would change the name.
    values: Any = config.model_dump(mode="json")
    settings: dict[str, Any] = {
        name: functools.reduce(operator.getitem, name.split("."), values)
        for name in (*bundle, *point.settings)
    }
    base_name = _name(point.variant, {name: settings[name] for name in point.settings})
    layers = dict(settings)
    if spec.tokens is not None:
        num_steps = max(1, round(spec.tokens / config.tokens_per_step))
        layers |= {"num_steps": num_steps, **as_fractions(base_config(spec), settings)}
    if spec.keep_checkpoints != "all":
        layers |= {"checkpoints.keep_last": 1, "checkpoints.keep_best": False}
    name = f"{base_name}+seed={seed}" if base_name else f"seed={seed}"
    layers |= {"name": name, "runs_folder": str(runs_folder), "seed": seed}
    config = build_config(spec.base_values, layers, where=where)
    return Trial(name, base_name or "base", config, settings, point.variant)


def _name(variant: str | None, settings: Mapping[str, Any]) -> str:
    """A descriptive folder name."""
    parts = [] if variant is None else [variant]
    short = [name.split(".")[-1] for name in settings]
    for name, value in settings.items():
        last = name.split(".")[-1]
        parts.append(f"{last if short.count(last) == 1 else name}={_show(value)}")
    text = "+".join(parts)
    if not text or (re.fullmatch(NAME_PATTERN, text) and len(text) <= _MAX_NAME_LENGTH):
        return text
    plain = re.sub(r"[^A-Za-z0-9._+=-]", "-", text)
    plain = plain if plain[0].isalnum() else f"v{plain}"
    # The hash keeps shortened names unique.
    return f"{plain[:_MAX_NAME_LENGTH]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _show(value: Any) -> str:
    if isinstance(value, float):
        text = f"{value:.6g}" if float(f"{value:.6g}") == value else repr(value)
        return text.replace("e+", "e")  # A plus separates the parts of a name.
    if isinstance(value, list):
        return "-".join(map(_show, value))
    return str(value)
