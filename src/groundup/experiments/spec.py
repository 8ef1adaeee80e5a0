"""The settings of a sweep: a base run and what varies; checked before it starts."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from groundup.config import Seed, Settings, flatten, load_settings, setting_fields
from groundup.errors import ConfigError, GroundupError, did_you_mean
from groundup.runs.config import NAME_PATTERN, RunConfig

# Set by the sweep itself.
_RESERVED = ("name", "runs_folder", "seed")


class RangeConfig(Settings):
    """Numbers from low to high, both included; whole numbers if both are written as integers."""

    low: int | float = Field(ge=-1e18, le=1e18)
    high: int | float = Field(ge=-1e18, le=1e18)

    scale: Literal["linear", "log"] = "linear"
    """Sample the values uniformly, or their logarithms."""

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @model_validator(mode="after")
    def _check_order(self) -> "RangeConfig":
        if self.low > self.high or (self.scale == "log" and self.low <= 0):
            raise ValueError(f"low {self.low:g} is above high {self.high:g}, or not above 0 (log)")
        return self


class SweepConfig(Settings):
    """A base run, the settings that vary, and the seeds."""

    name: str = Field(pattern=NAME_PATTERN, max_length=200)
    """Name of the sweep and its folder."""

    why: str = ""
    """The question that the sweep answers."""

    base: Path | dict[str, Any] = Field(default_factory=dict)
    """Settings of a run, or a YAML file of them, relative to this file."""

    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of every trial, instead of the base's."""

    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Named bundles of settings; each is combined with everything below."""

    grid: dict[str, list[Any]] = Field(default_factory=dict)
    """Settings by dotted name, each with the values to try."""

    ranges: dict[str, RangeConfig] = Field(default_factory=dict)
    """Settings by dotted name, each with a range of numbers for a search."""

    num_trials: int | None = Field(default=None, ge=1, le=10**5)
    """Search: the number of points to propose, learning from finished trials. Default: every
combination of variants and grid."""

    sampler_seed: Seed = 0
    """Seed of a search."""

    seeds: list[Seed] = Field(default_factory=lambda: [0], min_length=1)
    """Seeds for every point."""

    tokens: int | None = Field(default=None, ge=1, le=10**18)
    """Train every trial on this many tokens, whatever its batch size; settings in steps scale with
    num_steps."""

    keep_checkpoints: Literal["all", "last", "none"] = "last"
    """All that the base keeps, the newest of each trial, or none after a trial's end."""

    @property
    def is_search(self) -> bool:
        """Whether points are proposed during the sweep."""
        return self.num_trials is not None

    @property
    def base_values(self) -> dict[str, Any]:
        """The settings of the base of a resolved sweep."""
        assert isinstance(self.base, dict)
        return self.base

    @model_validator(mode="after")
    def _check(self) -> "SweepConfig":
        """Refuse contradictions."""
        both = sorted(set(self.grid) & set(self.ranges))
        tried = {*self.grid, *self.ranges, *(n for one in self.variants.values() for n in one)}
        lengths = sorted(tried & {"num_steps", "minutes", "epochs"})
        complaints = (
            (self.ranges and not self.is_search, "ranges are for searches: set num_trials"),
            (both, f"{both} are in both grid and ranges: keep one"),
            (not all(self.grid.values()), "a setting in grid has no values: list some"),
            (len(set(self.seeds)) < len(self.seeds), f"seeds {self.seeds} contains duplicates"),
            (self.is_search and not tried, "a search with num_trials needs something to vary"),
            (self.tokens and lengths, f"{lengths} cannot vary: the length follows from tokens"),
        )
        for is_true, complaint in complaints:
            if is_true:
                raise ValueError(complaint)
        return self


def load_sweep(path: str | os.PathLike[str]) -> SweepConfig:
    """Read a sweep's file and resolve it."""
    config = load_settings(SweepConfig, path)
    if isinstance(config.base, Path):
        config = config.model_copy(update={"base": Path(path).parent / config.base})
    return resolve(config)


def resolve(config: SweepConfig) -> SweepConfig:
    """Return the sweep with the complete settings of its base, after checking all names."""
    tried: tuple[Mapping[str, Any], ...] = (config.grid, config.ranges, *config.variants.values())
    known = dict(setting_fields(RunConfig))
    for name in (name for names in (config.settings, *tried) for name in names):
        if name in _RESERVED:
            raise ConfigError(f"a sweep cannot vary {name}; list seeds under seeds")
        if name not in known:
            raise ConfigError(f"{name} is not a setting of a run: {did_you_mean(name, known)}")
    if isinstance(config.base, Path):
        base = load_settings(RunConfig, config.base, config.settings)
    else:
        base = _merge(config.base, config.settings, where="the base")
    if not any(name.startswith("data.") for names in tried for name, _ in flatten(names)):
        from groundup.training.resolve import with_vocabulary

        base = with_vocabulary(base)
    values = base.model_dump(mode="json")
    if "vocab_size" not in base.model.model_fields_set:
        # Each trial takes its vocabulary size from its shards.
        del values["model"]["vocab_size"]
    return config.model_copy(update={"base": values, "settings": {}})


def base_config(config: SweepConfig) -> RunConfig:
    """The base settings of a resolved sweep."""
    return build_config(config.base_values, config.settings, where="the base")


def build_config(*layers: Mapping[str, Any], where: str) -> RunConfig:
    """Merge layers of settings over the defaults; `where` prefixes errors. As in `groundup train`,
    the vocabulary size comes from the shards unless a layer sets it."""
    # Imported here because it imports torch, which reading a sweep does not need.
    from groundup.training.resolve import with_vocabulary

    return with_vocabulary(_merge(*layers, where=where))


def _merge(*layers: Mapping[str, Any], where: str) -> RunConfig:
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update(flatten(layer))
    try:
        return load_settings(RunConfig, None, merged)
    except GroundupError as error:
        raise ConfigError(f"{where}: {error}") from error
