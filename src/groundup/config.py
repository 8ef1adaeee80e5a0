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

# A stranger's file may be small and yet mean any number of values, as YAML's aliases repeat things.
_MAX_FILE_BYTES = 1 << 20
_MAX_DEPTH = 50
_MAX_NODES = 100_000
_MAX_DIGITS = 1_000
_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
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
        node = _compose(path)
        values = _construct(node, path)
        # Where a key that is missing should stand.
        origins[()] = str(path)
        origins.update((key, f"{path} line {line}") for key, line in _key_lines(node))
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
    return _construct(_compose(path), path)


def save_yaml(path: str | os.PathLike[str], settings: Settings) -> None:
    """Write every setting, defaults included, in the order of declaration."""
    write_text_atomic(path, as_yaml(settings.model_dump(mode="json")))


def as_yaml(values: Mapping[str, Any]) -> str:
    """Settings as the text of a file, in their order."""
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def parse_weights(words: Iterable[str], flag: str) -> dict[str, float]:
    """NAME=WEIGHT, each once, as a mapping.

    words: as they are typed.
    flag: where, for errors.
    """
    found: dict[str, float] = {}
    for word in words:
        name, is_there, text = word.rpartition("=")
        try:
            weight = float(text) if is_there and name else math.nan
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
    """Quotes strings whose line ends PyYAML would otherwise change on the way back."""


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
    key = _setting_of(tuple(str(part) for part in finding["loc"]), origins)
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


def _setting_of(key: KeyPath, origins: Mapping[KeyPath, str]) -> KeyPath:
    """A finding's place without the names that pydantic gives to the types of a union."""
    return tuple(
        part
        for end, part in enumerate(key, start=1)
        if key[:end] in origins or not ("[" in part or part.startswith("constrained-"))
    )


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


def _compose(path: str | os.PathLike[str]) -> yaml.MappingNode | None:
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        text = data.decode("utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"the settings file {path} does not exist: check the path") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}): save it so") from error
    except OSError as error:
        raise ConfigError(f"the settings file {path} cannot be read: {error.strerror}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(
            f"{path} has more than {_MAX_FILE_BYTES:,} bytes, too many for a settings file: check "
            f"the path"
        )
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None:
            _check_size(node, path)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{path}{line} is not valid YAML: {problem}; fix it") from error
    except RecursionError:
        raise ConfigError(
            f"{path} is nested more than {_MAX_DEPTH} levels deep: settings are not"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}; fix it") from error
    if node is not None and not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path} must hold `name: value` lines, but holds a {node.id}")
    return node


def _check_size(root: yaml.Node, path: str | os.PathLike[str]) -> None:
    """Refuse a tree that is too deep or too large once every alias in it is followed."""
    num_nodes, waiting = 0, [(root, 1)]
    while waiting:
        node, depth = waiting.pop()
        num_nodes += 1
        if depth > _MAX_DEPTH:
            raise RecursionError
        if num_nodes > _MAX_NODES:
            raise ConfigError(
                f"{path} comes to more than {_MAX_NODES:,} values once its aliases (*name) are "
                f"followed: write fewer"
            )
        if node.tag in _NUMBER_TAGS and len(node.value) > _MAX_DIGITS:
            raise ConfigError(
                f"{path} line {node.start_mark.line + 1} holds a number of {len(node.value):,} "
                f"digits; no setting has more than {_MAX_DIGITS}"
            )
        if isinstance(node, yaml.CollectionNode):
            for part in node.value:
                inner = part if isinstance(part, tuple) else (part,)
                waiting += [(one, depth + 1) for one in inner]


def _construct(node: yaml.MappingNode | None, path: str | os.PathLike[str]) -> dict[str, Any]:
    if node is None:
        return {}
    seen: dict[KeyPath, int] = {}
    for key, line in _key_lines(node):
        if key in seen:
            raise ConfigError(
                f"{path} sets {'.'.join(key)} twice, on lines {seen[key]} and {line}: keep one"
            )
        seen[key] = line
    loader = yaml.SafeLoader("")
    try:
        values: dict[str, Any] = loader.construct_document(node)
        return values
    except yaml.constructor.ConstructorError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path} line {line} is not plain YAML: {error.problem}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # What PyYAML trips over: a date that is not one, `!!bool maybe`, a number beyond floats.
        raise ConfigError(f"{path} holds a value that is not plain YAML: {error}") from error
    finally:
        loader.dispose()


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
