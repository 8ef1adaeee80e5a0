"""Settings: frozen, strict, stored as YAML, merged in the order defaults < file < overrides.

A component declares its own Settings subclass in its own file; this one knows how to read,
merge, check and write them, and how to say in one paragraph what is wrong with them.
"""

import os
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import yaml

from groundup.errors import ConfigError, did_you_mean
from groundup.files import write_text_atomic

KeyPath = tuple[str, ...]
SettingsType = TypeVar("SettingsType", bound="Settings")


class Settings(pydantic.BaseModel):
    """The base of all settings: values cannot change and unknown names are errors."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", validate_default=True)


def load_settings(
    settings_type: type[SettingsType],
    path: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> SettingsType:
    """Build settings from their defaults, then the YAML file, then `overrides`.

    Override keys may be dotted (`{"model.d_ff": 1344}`), nested, or both. A mistake raises a
    ConfigError that names the key, its value and the place that set it.
    """
    places: dict[KeyPath, str] = {}
    values: dict[str, Any] = {}
    if path is not None:
        node = _compose(path)
        values = _construct(node, path)
        # Where a key that is missing should stand.
        places[()] = str(path)
        places.update((key, f"{path} line {line}") for key, line in _key_lines(node))
    for name, value in flatten(overrides or {}):
        key = tuple(name.split("."))
        _set(values, key, value)
        places[key] = "the overrides"

    _check_names(settings_type, values, (), places)
    try:
        return settings_type.model_validate(values)
    except pydantic.ValidationError as error:
        raise ConfigError(describe_validation_error(error, places)) from error


def load_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a YAML file that holds one mapping; an empty file is an empty mapping."""
    return _construct(_compose(path), path)


def save_yaml(path: str | os.PathLike[str], settings: Settings) -> None:
    """Write every setting, defaults included, in the order of declaration."""
    values = settings.model_dump(mode="json")
    text = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    write_text_atomic(path, text)


def flatten(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A tree of settings as (dotted name, value); an empty mapping is a value."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def describe_validation_error(
    error: pydantic.ValidationError, places: Mapping[KeyPath, str] | None = None
) -> str:
    """Pydantic's findings as one paragraph: key, value, complaint and place of each."""
    return "; ".join(_describe_finding(finding, places or {}) for finding in error.errors())


class _Dumper(yaml.SafeDumper):
    """Quotes strings whose line ends PyYAML would otherwise change on the way back."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"'
    )


_Dumper.add_representer(str, _represent_text)


def _describe_finding(finding: Any, places: Mapping[KeyPath, str]) -> str:
    key = tuple(str(part) for part in finding["loc"])
    name = ".".join(key)
    reason = finding["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    reason = reason[:1].lower() + reason[1:]
    if finding["type"] == "missing":
        complaint = f"{name} is missing and has no default: set it"
    elif not key:
        complaint = reason
    elif isinstance(finding["input"], Mapping) and finding["type"] == "value_error":
        # A whole section, of which the reason names what matters.
        complaint = f"{name}: {reason}"
    else:
        complaint = f"{name} is {finding['input']!r}, but {reason}"
    place = _place_of(key, places)
    if place is None and finding["type"] == "missing":
        place = places.get(())
    return f"{complaint} (in {place})" if place else complaint


def _place_of(key: KeyPath, places: Mapping[KeyPath, str]) -> str | None:
    """The place of the longest known prefix: what is inside a list belongs to the list's key."""
    for length in range(len(key), 0, -1):
        if key[:length] in places:
            return places[key[:length]]
    return None


def _check_names(
    settings_type: type[pydantic.BaseModel],
    values: Mapping[str, Any],
    prefix: KeyPath,
    places: Mapping[KeyPath, str],
) -> None:
    fields = settings_type.model_fields
    for name, value in values.items():
        key = (*prefix, str(name))
        if name not in fields:
            place = _place_of(key, places)
            raise ConfigError(
                f"unknown setting {'.'.join(key)}{f' in {place}' if place else ''}: "
                f"{did_you_mean(str(name), fields)}"
            )
        nested = _settings_in(fields[name].annotation)
        if nested is not None and isinstance(value, Mapping):
            _check_names(nested, value, key, places)


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
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"the settings file {path} does not exist: check the path") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}): save it so") from error
    except OSError as error:
        raise ConfigError(f"the settings file {path} cannot be read: {error.strerror}") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{path}{place} is not valid YAML: {problem}; mend it") from error
    if node is None:
        return None
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path} must hold `name: value` lines, but holds a {node.id}")
    return node


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
    finally:
        loader.dispose()


def _key_lines(node: yaml.Node | None, prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        key = (*prefix, str(key_node.value))
        yield key, key_node.start_mark.line + 1
        yield from _key_lines(value_node, key)


def _set(values: dict[str, Any], key: KeyPath, value: Any) -> None:
    for name in key[:-1]:
        inner = values.get(name)
        if not isinstance(inner, dict):
            inner = values[name] = {}
        values = inner
    values[key[-1]] = value
