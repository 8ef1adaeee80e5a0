"""Settings: frozen, strict, stored as YAML, merged in the order defaults < file < overrides.

A component declares its own Settings subclass in its own file; this one knows how to read,
merge, check and write them, and how to say in one paragraph what is wrong with them.
"""

import decimal
import math
import os
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import pydantic
import yaml

from groundup.errors import ConfigError, did_you_mean
from groundup.files import write_text_atomic

KeyPath = tuple[str, ...]
SettingsType = TypeVar("SettingsType", bound="Settings")

Seed = Annotated[int, pydantic.Field(ge=0, lt=2**64)]
MAX_STEPS = 10**9
"""The most steps that any setting may count."""

_MAX_FILE_BYTES = 1 << 20
_MAX_DEPTH = 50
_MAX_SHOWN = 60
_EXPONENT = re.compile(r"[0-9]+(\.[0-9]+)?[eE]\+?[0-9]{1,2}")
_MAX_FINDINGS = 8


class Settings(pydantic.BaseModel):
    """The base of all settings: values cannot change, unknown names are errors, numbers finite.

    Every number has a bound of its own, small enough that what is computed from several of them
    fits where it goes.
    """

    model_config = pydantic.ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    removed: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Settings of earlier versions, each with the values that had no effect: a file may have those,
    and they are dropped."""

    def __init__(self, **values: Any) -> None:
        """Raise for `RunConfig(num_stepz=1)` what a file with this mistake raises."""
        _check_names(type(self), values, (), {})
        try:
            super().__init__(**values)
        except pydantic.ValidationError as error:
            raise ConfigError(describe_validation_error(error)) from error

    # Nested settings are then validated without it, so that an error names their whole path.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @pydantic.model_validator(mode="before")
    @classmethod
    def _drop_removed(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        _check_names(cls, {name: values[name] for name in cls.removed if name in values}, (), {})
        return {name: value for name, value in values.items() if name not in cls.removed}

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _read_word(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """Read `none` and 1e9 as they are typed; refuse true for a number, as YAML reads yes."""
        kinds = _kinds(cls.model_fields[info.field_name or ""].annotation)
        is_number = int in kinds or float in kinds
        if isinstance(value, bool) and is_number and bool not in kinds:
            raise ValueError("must be a number")
        if not isinstance(value, str) or str in kinds or Path in kinds or value in kinds:
            return value
        if value.lower() in ("none", "null") and type(None) in kinds:
            return None
        if int in kinds and float not in kinds and _EXPONENT.fullmatch(value):
            number = decimal.Decimal(value)
            return int(number) if number == number.to_integral_value() else value
        return value

    @pydantic.field_validator("*", mode="after")
    @classmethod
    def _check_path(cls, value: Any) -> Any:
        if isinstance(value, Path) and "\0" in str(value):
            raise ValueError("no path has a NUL character")
        return value


def _kinds(annotation: Any) -> list[Any]:
    """The types that an annotation offers, of unions and behind bounds."""
    parts = typing.get_args(annotation)
    return [kind for part in parts for kind in _kinds(part)] if parts else [annotation]


def load_settings(
    settings_type: type[SettingsType],
    path: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> SettingsType:
    """Build settings from their defaults, then the YAML file, then `overrides`.

    Override keys may be dotted (`{"model.d_ff": 1344}`), nested, or both. A mistake raises a
    ConfigError that names the key, its value and, of a file, the line.
    """
    origins: dict[KeyPath, str] = {}
    values: dict[str, Any] = {}
    if path is not None:
        values, lines = _read(path)
        # Where a key that is missing should stand.
        origins[()] = str(path)
        origins.update((key, f"{path} line {line}") for key, line in lines.items())
    for name, value in flatten(overrides or {}):
        key = tuple(name.split("."))
        _set(settings_type, values, key, value)
        # Not from the line where the file has it.
        origins[key] = ""

    _check_names(settings_type, values, (), origins)
    try:
        return settings_type.model_validate(values)
    except pydantic.ValidationError as error:
        raise ConfigError(describe_validation_error(error, origins)) from error


def load_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a YAML file that holds one mapping; an empty file is an empty mapping."""
    return _read(path)[0]


def save_yaml(path: str | os.PathLike[str], settings: Settings) -> None:
    """Write every setting, defaults included, in the order of declaration."""
    write_text_atomic(path, as_yaml(settings.model_dump(mode="json")))


def as_yaml(values: Mapping[str, Any]) -> str:
    """Settings as the text of a file, in their order."""
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def parse_weights(words: Iterable[str], flag: str) -> dict[str, float]:
    """NAME=WEIGHT, each once, as a mapping; errors call where the words were typed `flag`."""
    found: dict[str, float] = {}
    for word in words:
        name, _, text = word.rpartition("=")
        try:
            weight = float(text) if name else math.nan
        except ValueError:
            weight = math.nan
        if not 0 <= weight < math.inf:
            raise ConfigError(f"{flag} takes NAME=WEIGHT, such as stories=0.7, got {word!r}")
        if os.path.normpath(name) in map(os.path.normpath, found):
            raise ConfigError(f"{flag} has {name} twice; name it once, with its whole weight")
        found[name] = weight
    if found and not any(found.values()):
        raise ConfigError(f"{flag}: all weights are 0; one must be more")
    return found


def flatten(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A tree of settings as (dotted name, value); an empty mapping is a value."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def describe_validation_error(
    error: pydantic.ValidationError,
    origins: Mapping[KeyPath, str] | None = None,
    names: Mapping[str, str] | None = None,
) -> str:
    """Pydantic's findings as one paragraph: key, value, complaint and origin of each.

    names: how to spell settings, by their dotted names: as flags, for example.
    """
    findings = error.errors()
    shown = [
        _describe_finding(finding, origins or {}, names or {})
        for finding in findings[:_MAX_FINDINGS]
    ]
    if len(findings) > _MAX_FINDINGS:
        shown.append(f"and {len(findings) - _MAX_FINDINGS} more")
    return "; ".join(shown)


class _Dumper(yaml.SafeDumper):
    """Quotes strings whose line ends PyYAML would otherwise change on the way back; no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"'
    )


_Dumper.add_representer(str, _represent_text)


# Where pydantic speaks of Python and of regular expressions; names are all that has a pattern.
_PLAIN_REASONS = {
    "string_pattern_mismatch": "must be letters, digits and . _ + = -, beginning with a letter or "
    "a digit",
    "model_type": "must be a section with settings of its own",
    "dict_type": "must be a section with settings of its own",
}


def _describe_finding(
    finding: Any, origins: Mapping[KeyPath, str], names: Mapping[str, str]
) -> str:
    # Without the names that pydantic gives to the types of a union.
    where = tuple(str(part) for part in finding["loc"])
    key = tuple(
        part
        for end, part in enumerate(where, start=1)
        if where[:end] in origins or not ("[" in part or part.startswith("constrained-"))
    )
    prefixes = (".".join(key[:length]) for length in range(len(key), 0, -1))
    name = next((names[one] for one in prefixes if one in names), _clip(".".join(key)))
    reason = finding["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    reason = reason[:1].lower() + reason[1:]
    reason = _PLAIN_REASONS.get(finding["type"], reason)
    if finding["type"] == "missing" and key[-1:] and key[-1].isdigit():
        complaint = f"{_clip('.'.join(key[:-1]))} has too few values: {key[-1]}"
    elif finding["type"] == "missing":
        complaint = f"{name} is missing and has no default: set it"
    elif not key:
        complaint = reason
    elif isinstance(finding["input"], Mapping) and finding["type"] == "value_error":
        # A whole section, of which the reason names what matters.
        complaint = f"{name}: {reason}"
    else:
        complaint = f"{name} is {_show(finding['input'])}, but {reason}"
    origin = _origin_of(key, origins)
    if origin is None and finding["type"] == "missing":
        origin = origins.get(())
    return f"{complaint} (in {origin})" if origin else complaint


def _show(value: Any) -> str:
    try:
        return _clip(repr(value))
    except ValueError:
        # Python shows no integer of thousands of digits.
        return "a number of thousands of digits"


def _clip(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _origin_of(key: KeyPath, origins: Mapping[KeyPath, str]) -> str | None:
    """The origin of the longest known prefix: what is inside a list belongs to the list's key."""
    for length in range(len(key), 0, -1):
        if key[:length] in origins:
            return origins[key[:length]]
    return None


def _check_names(
    settings_type: type[pydantic.BaseModel],
    values: Mapping[str, Any],
    prefix: KeyPath,
    origins: Mapping[KeyPath, str],
) -> None:
    fields = settings_type.model_fields
    for name, value in values.items():
        key = (*prefix, str(name))
        removed = getattr(settings_type, "removed", {})
        if name in removed:
            inactive = removed[name]
            if value in inactive:
                continue
            raise ConfigError(
                f"{_clip('.'.join(key))} is {_show(value)}, but this setting was removed: only "
                f"{' or '.join(map(repr, inactive))} still loads"
            )
        if name not in fields:
            origin = _origin_of(key, origins)
            raise ConfigError(
                f"unknown setting {_clip('.'.join(key))}{f' in {origin}' if origin else ''}: "
                f"{did_you_mean(str(name), fields)}"
            )
        nested = _settings_in(fields[name].annotation)
        if nested is not None and isinstance(value, Mapping):
            _check_names(nested, value, key, origins)


def _settings_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    """The one model an annotation stands for (`Model`, `Model | None`), if there is just one."""
    options = [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(annotation) if option is not type(None)]
    if len(options) == 1 and isinstance(options[0], type):
        return options[0] if issubclass(options[0], pydantic.BaseModel) else None
    return None


class _Loader(yaml.SafeLoader):
    """Plain YAML of bounded depth. Aliases, by which a small file could stand for any number of
    values, are refused."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent) or self.depth == _MAX_DEPTH:
            problem = "aliases (*name)" if self.depth < _MAX_DEPTH else "so many levels of nesting"
            raise yaml.composer.ComposerError(None, None, f"{problem} are not for settings", mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The mapping that a YAML file holds, and the line of each key."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise ValueError(f"it has more than {_MAX_FILE_BYTES:,} bytes")
        loader = _Loader(data.decode("utf-8"))
        node = loader.get_single_node()
        if node is None:
            return {}, {}
        if not isinstance(node, yaml.MappingNode):
            raise ValueError("it must hold `name: value` lines, but holds something else")
        lines: dict[KeyPath, int] = {}
        for key, line in _key_lines(node):
            if key in lines:
                raise ValueError(
                    f"it sets {'.'.join(key)} twice, on lines {lines[key]} and {line}: keep one"
                )
            lines[key] = line
        return loader.construct_document(node), lines
    except OSError as error:
        raise ConfigError(f"the settings file {path} cannot be read: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        where = f"{path} line {error.problem_mark.line + 1}" if error.problem_mark else f"{path}"
        raise ConfigError(f"{where} is not plain YAML: {error.problem}") from error
    except (
        *(yaml.YAMLError, ArithmeticError, AttributeError),
        *(LookupError, TypeError, ValueError),
    ) as error:
        # PyYAML itself trips over a date that is not one, `!!bool maybe`, a number beyond floats.
        raise ConfigError(f"{path} is not a settings file: {error}") from error


def _key_lines(node: yaml.Node | None, prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        key = (*prefix, str(key_node.value))
        yield key, key_node.start_mark.line + 1
        yield from _key_lines(value_node, key)


def _set(
    settings_type: type[pydantic.BaseModel] | None, values: dict[str, Any], key: KeyPath, value: Any
) -> None:
    for name in key[:-1]:
        fields = {} if settings_type is None else settings_type.model_fields
        annotation = fields[name].annotation if name in fields else None
        settings_type = _settings_in(annotation)
        inner = values.setdefault(name, {})
        if not isinstance(inner, dict):
            may_be_none = type(None) in typing.get_args(annotation)
            if settings_type is not None and not (inner is None and may_be_none):
                # Not a section: that is an error to be named, not to be written over.
                return
            inner = values[name] = {}
        values = inner
    values[key[-1]] = value
