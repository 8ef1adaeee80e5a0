"""Settings: frozen, strict, stored as YAML, merged in the order defaults < file < overrides.

Components declare Settings subclasses in their own modules; this one reads, merges, validates and
writes them, and formats validation errors.
"""

import decimal
import functools
import importlib
import json
import math
import os
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import pydantic
import yaml
from pydantic.fields import FieldInfo

from groundup.errors import ConfigError, did_you_mean, nearest_name
from groundup.files import read_plain_file, write_text_atomic

KeyPath = tuple[str, ...]
SettingsType = TypeVar("SettingsType", bound="Settings")

Seed = Annotated[int, pydantic.Field(ge=0, lt=2**64)]
MAX_STEPS = 10**9
"""Upper bound of all settings counted in steps."""


def _check_steps(value: float) -> float:
    if value >= 1 and value != int(value):
        raise ValueError("must be a whole number of steps or, below 1, a fraction of the run")
    return value if 0 < value < 1 else int(value)


StepsOrFraction = Annotated[
    int | float, pydantic.Field(ge=0, le=MAX_STEPS), pydantic.AfterValidator(_check_steps)
]
"""A number of steps or, below 1, a fraction of the run's steps or minutes."""

_EARLIER_NAMES = {
    "average_over": "ema_fraction",
    "clip_norm": "max_grad_norm",
    "extra_values": "value_embeddings",
    "first_row": "skip_sequences",
    "goes_on": "continue_training",
    "head_gates": "gated_attention",
    "input_mix": "x0_skip",
    "made_with": "provenance",
    "num_ids": "num_tokens",
    "recompute": "activation_checkpointing",
}
# Removed settings, with the values that had no effect: files with these values still load.
_REMOVED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("cautious_decay", "decay_embeddings", "mask_documents", "x0_skip"), (False,)),
    **dict.fromkeys(("tensorboard", "trackio", "wandb"), (False,)),
    **dict.fromkeys(("logit_soft_cap", "muon_learning_rate"), (None,)),
    "kernels": ("fused", "reference"),
    "kind": ("sweep", "ablation"),
    "order": ("epochs",),
    "orthogonalization_steps": (5,),
    "project": ("groundup",),
    "prune": ({"worse_than_start": 0.5, "patience": 3},),
    "reduce_dtype": ("float32", "bfloat16"),
    "sampler": ("grid", "tpe"),
    "tasks": ((), []),
}
_EXPONENT = re.compile(r"[0-9]+(\.[0-9]+)?[eE]\+?[0-9]{1,2}")
_MAX_FINDINGS = 8
_MAX_DEPTH = 20
# libyaml's loader is ten times as fast, but PyYAML may be built without it.
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def current_name(name: Any) -> Any:
    """Return the current name of a setting or tensor, dotted or not; ignores other types."""
    if not isinstance(name, str):
        return name
    return ".".join(_EARLIER_NAMES.get(part, part) for part in name.split("."))


def with_current_names(values: Any) -> Any:
    """Replace the names of earlier versions in a tree read from a file."""
    if not isinstance(values, Mapping):
        return values
    return {current_name(name): with_current_names(one) for name, one in values.items()}


class Settings(pydantic.BaseModel):
    """Base class of all settings: frozen, without unknown names or non-finite numbers.

    Every number needs bounds, tight enough that values computed from several settings cannot
    overflow.
    """

    model_config = pydantic.ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    if not TYPE_CHECKING:
        # Hidden from type checkers, for which each setting is an argument.
        def __init__(self, **values: Any) -> None:
            """Raise ConfigError for invalid arguments, such as `RunConfig(num_stepz=1)`."""
            try:
                super().__init__(**values)
            except pydantic.ValidationError as error:
                raise ConfigError(describe_validation_error(error, kind=type(self))) from error

        # Nested settings are then validated without __init__, so that errors name the full path.
        __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

        def __setattr__(self, name: str, value: Any) -> None:
            raise ConfigError(f"settings cannot be changed: make a copy, with_({name}=…)")

    def with_(self, **changes: Any) -> Self:
        """Return a copy with other values, validated: `config.with_(num_steps=3)`; for part of a
        section, `config.with_(model={"d_ff": 64})` or `**{"model.d_ff": 64}`."""
        values, new = dict(flatten(self.model_dump())), dict(flatten(changes))
        kept = {key: values[key] for key in values if not any(k.startswith(f"{key}.") for k in new)}
        return load_settings(type(self), overrides=kept | new)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _drop_removed(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {
            name: value
            for name, value in with_current_names(values).items()
            if name in cls.model_fields or value not in _REMOVED.get(name, ())
        }

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _read_word(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """Parse `none`, and integers such as 1e9; refuse booleans for numbers (YAML's yes)."""
        kinds = kinds_of(cls.model_fields[info.field_name or ""].annotation)
        is_number = int in kinds or float in kinds
        if isinstance(value, bool) and is_number and bool not in kinds:
            raise ValueError("must be a number")
        if not isinstance(value, str):
            return value
        if Path in kinds and "\0" in value:
            raise ValueError("a path cannot contain a NUL character")
        if str in kinds or Path in kinds or value in kinds:
            return value
        if value.lower() in ("none", "null") and type(None) in kinds:
            return None
        if int in kinds and float not in kinds and _EXPONENT.fullmatch(value):
            number = decimal.Decimal(value)
            return int(number) if number == number.to_integral_value() else value
        return value


def named_classes(package: str, file: str, marker: str) -> dict[str, Callable[[], Any]]:
    """Find the classes with `marker = "name"` in their body in the folder of a file; returns a
    function that imports the class for each name. Parses the source, to avoid importing torch."""

    def load(module: str, name: str) -> Any:
        return getattr(importlib.import_module(module), name)

    found: dict[str, Callable[[], Any]] = {}
    pattern = re.compile(rf'^class (\w+)|^    {marker} = "([\w-]+)"', re.MULTILINE)
    for path in sorted(Path(file).parent.glob("*.py")):
        text, owner = path.read_text("utf-8"), ""
        for line in pattern.finditer(text if marker in text else ""):
            owner = line[1] or owner
            if line[2]:
                found[line[2]] = functools.partial(load, f"{package}.{path.stem}", owner)
    return found


def kinds_of(annotation: Any) -> list[Any]:
    """Return the types and literal values in an annotation: a union, tuple, or with bounds."""
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) is Annotated:
        parts = parts[:1]
    return [kind for part in parts for kind in kinds_of(part)] if parts else [annotation]


def setting_fields(
    kind: type[pydantic.BaseModel], prefix: str = ""
) -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting with its dotted name, including those in sections."""
    for name, field in kind.model_fields.items():
        is_mapping = typing.get_origin(field.annotation) is dict
        kinds = [] if is_mapping else kinds_of(field.annotation)
        section = next((one for one in kinds if hasattr(one, "model_fields")), None)
        if section is not None:
            yield from setting_fields(section, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def load_settings(
    settings_type: type[SettingsType],
    path: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> SettingsType:
    """Build settings from their defaults, then the YAML file, then `overrides`.

    Override keys may be dotted (`{"model.d_ff": 1344}`), nested, or both. Raises ConfigError for
    invalid values, with the key, the value and, if in a file, the line.
    """
    values, lines = ({}, {}) if path is None else _read(path)
    # () is the origin of missing keys.
    origins: dict[KeyPath, str] = {} if path is None else {(): str(path)}
    origins |= {key: f"{path} line {line}" for key, line in lines.items()}
    for name, value in flatten(overrides or {}):
        key = tuple(name.split("."))
        _set(values, key, value)
        # Overridden, so the line in the file is not its origin.
        origins[key] = ""
    try:
        return settings_type.model_validate(values)
    except pydantic.ValidationError as error:
        message = describe_validation_error(error, origins, kind=settings_type)
        raise ConfigError(message) from error


def load_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a YAML file with one mapping; an empty file is an empty mapping."""
    return _read(path)[0]


def save_yaml(path: str | os.PathLike[str], settings: Settings) -> None:
    """Write every setting, defaults included, in the order of declaration."""
    write_text_atomic(path, as_yaml(settings.model_dump(mode="json")))


def as_yaml(values: Mapping[str, Any]) -> str:
    """Format settings as YAML, in their order."""
    # Copy, because an object that occurs twice would become an alias.
    values = json.loads(json.dumps(values))
    text: str = yaml.dump(values, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    if yaml.load(text, YAML_LOADER) != values:
        # PyYAML only preserves some Unicode line breaks if they are escaped.
        text = yaml.dump(values, Dumper=_DUMPER, sort_keys=False)
    return text


def parse_weights(words: Iterable[str]) -> dict[str, float]:
    """Parse the words NAME=WEIGHT of data.mix to a mapping."""
    found: dict[str, float] = {}
    for word in words:
        name, _, text = word.rpartition("=")
        try:
            weight = float(text)
        except ValueError:
            weight = math.nan
        if not name or not 0 <= weight < math.inf:
            raise ConfigError(f"data.mix takes NAME=WEIGHT, such as stories=0.7, got {word!r}")
        if os.path.normpath(name) in map(os.path.normpath, found):
            raise ConfigError(f"data.mix has {name} twice; give it once, with its total weight")
        found[name] = weight
    if found and not any(found.values()):
        raise ConfigError("data.mix: all weights are 0; at least one must be positive")
    return found


def flatten(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a tree of settings as (dotted name, value); an empty mapping is a value."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def describe_validation_error(
    error: pydantic.ValidationError,
    origins: Mapping[KeyPath, str] | None = None,
    names: Mapping[str, str] | None = None,
    kind: type[pydantic.BaseModel] | None = None,
) -> str:
    """Format pydantic's errors as one paragraph: key, value, reason and origin of each.

    names: how to print settings, by their dotted names, for example as flags.
    kind: the settings class, to suggest names for unknown ones.
    """
    findings = error.errors()[:_MAX_FINDINGS]
    return "; ".join(_describe(one, origins or {}, names or {}, kind) for one in findings)


def _describe(
    finding: Any, origins: Mapping[KeyPath, str], names: Mapping[str, str], kind: Any
) -> str:
    # Omit pydantic's names for the types of a union.
    parts = [str(part) for part in finding["loc"]]
    end = len(parts) - (finding["type"] == "extra_forbidden")
    named = [one for one in parts[:end] if not ("[" in one or one.startswith("constrained-"))]
    key = (*named, *parts[end:])
    # Items of a list are reported under the list's key.
    prefixes = [key[:length] for length in range(len(key), 0, -1)]
    known = (names[".".join(one)] for one in prefixes if ".".join(one) in names)
    name = next(known, _clip(".".join(key)))
    origin = next((origins[one] for one in prefixes if one in origins), "")
    reason = finding["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = f"{name} is {_clip(repr(finding['input']))}, but {reason[:1].lower()}{reason[1:]}"
    if finding["type"] == "extra_forbidden":
        message = f"unknown setting {name}"
        if kind is not None:
            section = "".join(f"{one}." for one in key[:-1])
            settings = (one for one, _ in setting_fields(kind) if one.startswith(section))
            inside = [one[len(section) :] for one in settings]
            beside = dict.fromkeys(one.partition(".")[0] for one in inside)
            near = nearest_name(key[-1], [*beside, *inside])
            message += f": {did_you_mean(key[-1], [near] if near else beside)}"
    elif finding["type"] == "missing":
        origin = origin or origins.get((), "")
        message = f"{name} is missing and has no default: set it"
    elif not key or (isinstance(finding["input"], Mapping) and finding["type"] == "value_error"):
        # For a whole section, the reason names the relevant settings.
        message = f"{name}: {reason}" if key else reason
    return f"{message} (in {origin})" if origin else message


def _clip(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """Read the mapping in a YAML file, and the line of each key."""
    try:
        text = read_plain_file(Path(path)).decode("utf-8")
        check_yaml(text)
        loader = YAML_LOADER(text)
        node = loader.get_single_node()
        if node is None:
            return {}, {}
        if not isinstance(node, yaml.MappingNode):
            raise ValueError("it must contain `name: value` lines, but contains something else")
        lines: dict[KeyPath, int] = {}
        for key, line in _key_lines(node):
            if key in lines:
                raise ValueError(f"it sets {'.'.join(key)} twice, on lines {lines[key]} and {line}")
            lines[key] = line
        return loader.construct_document(node), lines
    except OSError as error:
        raise ConfigError(f"the settings file {path} cannot be read: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        where = f"{path} line {error.problem_mark.line + 1}" if error.problem_mark else f"{path}"
        raise ConfigError(f"{where} is not plain YAML: {error.problem}") from error
    except Exception as error:
        # PyYAML raises other exceptions for invalid dates, `!!bool maybe`, depth and huge numbers.
        raise ConfigError(f"{path} is not a settings file: {error}") from error


def check_yaml(text: str | bytes) -> None:
    """Raise ValueError for aliases, by which a small file could expand to any number of values, and
    for deep nesting, which takes PyYAML quadratic time."""
    depth = 0
    for event in yaml.parse(text, YAML_LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("aliases (*name) are not allowed in settings")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise ValueError("it is nested too deep")


def _key_lines(node: yaml.Node | None, prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        key = (*prefix, str(key_node.value))
        yield key, key_node.start_mark.line + 1
        yield from _key_lines(value_node, key)


def _set(values: dict[str, Any], key: KeyPath, value: Any) -> None:
    for name in key[:-1]:
        inner = values.setdefault(name, {})
        if isinstance(inner, list):
            inner = values[name] = {}
        elif not isinstance(inner, dict):
            # Not a section: keep it, so that validation reports the error.
            return
        values = inner
    values[key[-1]] = value
