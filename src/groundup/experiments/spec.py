"""What a sweep is to try: a base run, the settings that vary, and how; checked before it starts.

How points are chosen from it is `samplers`, what becomes of a point is a `Trial`.
"""

import math
import os
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import Field, model_validator

from groundup.config import Seed, Settings, flatten, load_settings
from groundup.errors import ConfigError, GroundupError, did_you_mean
from groundup.runs.config import NAME_PATTERN, RunConfig

# The sweep itself names its runs, says where they lie, and repeats them with its seeds.
_RESERVED = {
    "name": "trials are named after what they try",
    "runs_folder": "the runs of a sweep lie in its own folder",
    "seed": "list them under seeds",
}


_MAX_TRIALS = 10**5


class RangeConfig(Settings):
    """Numbers from low to high, both included."""

    low: float = Field(ge=-1e18, le=1e18)
    high: float = Field(ge=-1e18, le=1e18)

    scale: Literal["linear", "log"] = "linear"
    """Equal steps, or equal ratios."""

    num: int = Field(5, ge=1, le=10_000)
    """How many of them a grid takes."""

    @model_validator(mode="after")
    def _check_order(self) -> "RangeConfig":
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}: exchange them")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"a log scale has no {self.low:g}: choose a low above 0")
        return self


class PruneConfig(Settings):
    """When a trial is stopped before its end."""

    worse_than_start: float | None = Field(0.5, ge=0, le=1e6)
    """A trial has diverged when its loss stays this much above that of its first step; None leaves
    only losses that are not finite."""

    patience: int = Field(3, ge=1, le=10**9)
    """For how many log lines in a row it must stay there."""

    hopeless: bool = False
    """Also stop trials that are behind the others on the same data."""

    after: float = Field(0.3, ge=0, le=1)
    """The fraction of a trial before which it is never hopeless."""

    min_trials: int = Field(3, ge=1, le=_MAX_TRIALS)
    """How many finished trials a comparison needs."""

    quantile: float = Field(0.5, gt=0, le=1)
    """Hopeless is a best validation loss above this quantile of the others' at the same point."""


class SweepConfig(Settings):
    """A base run, what varies around it, and how often each point is repeated."""

    name: str = Field(pattern=NAME_PATTERN, max_length=200)
    """Name of the sweep and of its folder."""

    kind: Literal["sweep", "ablation", "isoflop"] = "sweep"
    """What its report shows besides: nothing, each variant at its best learning rate, or fits."""

    why: str = ""
    """The question that the sweep is to answer."""

    base: Path | dict[str, Any] = Field(default_factory=dict)
    """Settings of a run: a YAML file, relative to this one, or the settings themselves."""

    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings that every trial has instead of the base's."""

    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Named bundles of settings; each is tried with everything below."""

    grid: dict[str, list[Any]] = Field(default_factory=dict)
    """Settings by dotted name, each with the values to try."""

    ranges: dict[str, RangeConfig] = Field(default_factory=dict)
    """Settings by dotted name, each with a range of numbers."""

    sampler: Literal["grid", "random", "tpe", "gp"] = "grid"
    """Try every combination, sample them, or propose them while the sweep runs: tpe and gp learn
    from the finished ones."""

    num_trials: int | None = Field(None, ge=1, le=_MAX_TRIALS)
    """Points to sample; a grid takes all it has."""

    sampler_seed: Seed = 0
    """Seed of the sampled points."""

    seeds: list[Seed] = Field(default_factory=lambda: [0], min_length=1)
    """Seeds that every point is repeated with."""

    tokens: int | None = Field(None, ge=1, le=10**18)
    """Train every trial on this many tokens, whatever its batch size: num_steps and all other
    settings counted in steps follow from it."""

    prune: PruneConfig = PruneConfig()

    keep_checkpoints: Literal["all", "last", "none"] = "last"
    """Those that the base keeps, the newest of each trial, or none once a trial is over."""

    @property
    def is_search(self) -> bool:
        """Are points proposed while the sweep runs?"""
        return self.sampler not in ("grid", "random")

    @property
    def base_values(self) -> dict[str, Any]:
        """The settings of the base, once the sweep is resolved."""
        assert isinstance(self.base, dict)
        return self.base

    @model_validator(mode="after")
    def _check(self) -> "SweepConfig":
        complaint = next(self._complaints(), None)
        if complaint is not None:
            raise ValueError(complaint)
        return self

    def _complaints(self) -> Iterator[str]:
        """What contradicts itself."""
        sampler = self.sampler
        if sampler != "grid" and self.num_trials is None:
            yield f"sampler {sampler} samples points: say how many with num_trials"
        if sampler == "grid" and self.num_trials is not None:
            yield "a grid takes all its points: leave num_trials out, or sample them"
        for name in sorted(set(self.grid) & set(self.ranges)):
            yield f"{name} is in grid and in ranges: keep one"
        for name in (name for name, values in self.grid.items() if not values):
            yield f"grid has no values for {name}: list some, or leave it out"
        if len(set(self.seeds)) < len(self.seeds):
            yield f"seeds {self.seeds} has one twice: a run is repeated, not copied"
        if self.is_search and not (self.variants or self.grid or self.ranges):
            yield f"sampler {sampler} has nothing to vary: give it some ranges"
        tried = {
            *self.grid,
            *self.ranges,
            *(name for one in self.variants.values() for name in one),
        }
        for name in ("num_steps", "minutes", "epochs"):
            if self.tokens is not None and name in tried:
                yield f"{name} cannot vary, for the length follows from tokens: leave one out"


def load_sweep(path: str | os.PathLike[str]) -> SweepConfig:
    """Read a sweep's file and put the settings of its base in place of the base's path."""
    config = load_settings(SweepConfig, path)
    if isinstance(config.base, Path):
        file = Path(path).parent / config.base
        config = config.model_copy(update={"base": file})
    return resolve(config, where=str(path))


def resolve(config: SweepConfig, where: str = "the sweep") -> SweepConfig:
    """The same sweep with its base as a whole tree of settings, every name in it checked."""
    for names in (config.settings, config.grid, config.ranges, *config.variants.values()):
        check_names(names, where)
    for name, one in config.ranges.items():
        if takes_whole_numbers(name) and math.ceil(one.low) > math.floor(one.high):
            raise ConfigError(
                f"{where} has no integer from {one.low:g} to {one.high:g} for {name}: widen the "
                f"range"
            )
    if isinstance(config.base, Path):
        base = load_settings(RunConfig, config.base, config.settings)
    else:
        base = _merge(config.base, config.settings, where=f"the base of {where}")
    tried: tuple[Mapping[str, Any], ...] = (config.grid, config.ranges, *config.variants.values())
    if not any(name.startswith("data.") for names in tried for name, _ in flatten(names)):
        from groundup.training.resolve import with_vocabulary

        base = with_vocabulary(base)
    values = base.model_dump(mode="json")
    if "vocab_size" not in base.model.model_fields_set:
        # Each trial has that of its own shards.
        del values["model"]["vocab_size"]
    return config.model_copy(update={"base": values, "settings": {}})


def base_config(config: SweepConfig) -> RunConfig:
    """The settings that trials start from, of a sweep that was resolved."""
    return build_config(config.base_values, config.settings, where="the base")


def build_config(*layers: Mapping[str, Any], where: str) -> RunConfig:
    """Settings from their defaults and then each layer; an error says where it comes from.

    As for `groundup train`, a vocabulary that no layer gives is that of the shards.
    """
    # Here, for it imports torch, and whoever reads a sweep needs none.
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


def check_names(names: Mapping[str, Any], where: str) -> None:
    """Raise for a name that is not a setting of a run, or one that is the sweep's own."""
    known = setting_types()
    for name in names:
        if name in _RESERVED:
            raise ConfigError(f"{where} cannot set {name}: {_RESERVED[name]}")
        if name not in known:
            nearest = did_you_mean(name, known)
            raise ConfigError(f"{where} names {name}, which is not a setting of a run: {nearest}")


def setting_types(
    settings_type: type[pydantic.BaseModel] = RunConfig, prefix: str = ""
) -> dict[str, Any]:
    """Every setting of a run by its dotted name, with its type."""
    types_by_name: dict[str, Any] = {}
    for name, field in settings_type.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
            types_by_name |= setting_types(annotation, f"{prefix}{name}.")
        else:
            types_by_name[f"{prefix}{name}"] = annotation
    return types_by_name


def takes_whole_numbers(name: str) -> bool:
    """Does the setting take integers and no fractions?"""
    annotation = setting_types()[name]
    options = [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        options = list(typing.get_args(annotation))
    bare = {getattr(option, "__origin__", option) for option in options}
    return int in bare and float not in bare
