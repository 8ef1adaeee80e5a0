"""The flags of a verb, known from the types of its Arguments, and what was typed for them.

tyro makes the same flags from the same types; knowing them here lets a mistake be told in one line
of ours before tyro sees it.
"""

import dataclasses
import decimal
import math
import re
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import pydantic
import tyro

from groundup.errors import ConfigError

# A word that can only be meant as a flag: -3 and -inf are values.
_FLAG = re.compile(r"--?(?!inf\b|nan\b)[A-Za-z][\w.-]*", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
_EXPONENT = re.compile(r"[0-9]+(\.[0-9]+)?[eE]\+?[0-9]{1,2}")


@dataclasses.dataclass(frozen=True)
class Flag:
    """One setting as it is typed: `--model.d-ff`, or a positional by its name in capitals."""

    name: str
    choices: tuple[Any, ...]
    """The types and literal values that a word may be read as."""

    is_positional: bool
    is_required: bool
    takes_many: bool
    """Whether all words up to the next flag belong to it."""

    num_values: int | None
    """How many values it must have; None for any number."""

    @property
    def is_switch(self) -> bool:
        return self.choices == (bool,)

    @property
    def off(self) -> str:
        """What sets a switch to false: `--no-resume`, `--logging.no-wandb`."""
        section, dot, name = self.name.removeprefix("--").rpartition(".")
        return f"--{section}{dot}no-{name}"

    def read(self, word: str) -> str:
        """The word as tyro takes it (1e9 written out, null as None); a ConfigError for a wrong
        value."""
        if not _is_checkable(self.choices):
            return word
        if None in self.choices and word.lower() in ("none", "null"):
            return "None"
        is_whole = int in self.choices and float not in self.choices
        word = _without_exponent(word) if is_whole else word
        if not any(_fits(word, choice) for choice in self.choices):
            raise ConfigError(f"{self.name} must be {self._describe()}, got {word[:40]!r}")
        if is_whole and _INTEGER.fullmatch(word) and not -(2**63) <= float(word) < 2**64:
            raise ConfigError(f"{self.name} is {word:.40}, beyond 64 bits: give a smaller number")
        return word

    def _describe(self) -> str:
        words = {int: "an integer", float: "a finite number"}
        literals = [str(one) for one in self.choices if not isinstance(one, type | None)]
        named = [f"one of {', '.join(literals)}"] if len(literals) > 1 else literals
        return " or ".join([words[one] for one in self.choices if one in words] + named)


def flags_of(arguments_type: type[Any], prefix: str = "") -> Iterator[Flag]:
    """Every flag and positional of a dataclass or pydantic model, those of its sections included.

    `prefix` is the dotted name of the section that the type stands for.
    """
    hints = typing.get_type_hints(arguments_type, include_extras=True)
    for name, is_required in _fields(arguments_type):
        annotation = hints[name]
        extras: list[Any] = []
        if typing.get_origin(annotation) is typing.Annotated:
            annotation, *extras = typing.get_args(annotation)
        if tyro.conf.Suppress in extras:
            continue
        choices = tuple(_choices(annotation))
        # A name that Python keeps for itself ends in an underscore here.
        dotted = f"{prefix}{name.rstrip('_').replace('_', '-')}"
        if len(choices) == 1 and _is_section(choices[0]):
            is_nameless = any(getattr(extra, "name", None) == "" for extra in extras)
            yield from flags_of(choices[0], prefix if is_nameless else f"{dotted}.")
            continue
        is_tuple = typing.get_origin(choices[0]) is tuple
        items = typing.get_args(choices[0]) if is_tuple else ()
        yield Flag(
            name=name.upper() if tyro.conf.Positional in extras else f"--{dotted}",
            choices=tuple(_choices(items[0])) if is_tuple else choices,
            is_positional=tyro.conf.Positional in extras,
            is_required=is_required and not is_tuple,
            takes_many=is_tuple and tyro.conf.UseAppendAction not in extras,
            num_values=len(items) if items and Ellipsis not in items else None,
        )


def known_flags(arguments_type: type[Any]) -> list[str]:
    """Every flag that may be typed, with both spellings of a switch."""
    flags = [flag for flag in flags_of(arguments_type) if not flag.is_positional]
    spellings = [[flag.name, flag.off] if flag.is_switch else [flag.name] for flag in flags]
    return ["--help", *(spelling for pair in spellings for spelling in pair)]


def flag_of(setting: str) -> str:
    """A setting's dotted name as it is given on the command line."""
    return f"--{setting.replace('_', '-')}"


def is_flag(word: str) -> bool:
    """Whether a word is meant as a flag, with or without a value joined to it."""
    return _FLAG.fullmatch(word.partition("=")[0]) is not None


def is_on(switch: str, argv: Sequence[str]) -> bool:
    """Whether a switch is set, in any spelling: alone, `--no-switch`, or with true or false."""
    is_set = False
    for index, word in enumerate(argv):
        name, is_joined, value = word.replace("_", "-").partition("=")
        if name == f"--no-{switch.removeprefix('--')}":
            is_set = False
        elif name == switch:
            value = value if is_joined else " ".join(argv[index + 1 : index + 2])
            is_set = value.lower() != "false"
    return is_set


def value_of(flag: str, argv: Sequence[str]) -> str | None:
    """The last value given to a flag, as `--flag value` or `--flag=value`."""
    found = None
    for index, word in enumerate(argv):
        name, is_joined, value = word.partition("=")
        if name.replace("_", "-") == flag:
            found = value if is_joined else next(iter(argv[index + 1 : index + 2]), None)
    return found


def _fields(arguments_type: type[Any]) -> Iterator[tuple[str, bool]]:
    """The name of each field, and whether it has no default."""
    if issubclass(arguments_type, pydantic.BaseModel):
        for name, model_field in arguments_type.model_fields.items():
            yield name, model_field.is_required()
        return
    for field in dataclasses.fields(arguments_type):
        missing = dataclasses.MISSING
        yield field.name, field.default is missing and field.default_factory is missing


def _choices(annotation: Any) -> Iterator[Any]:
    """The types and literals of a union, without annotations."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from _choices(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for option in typing.get_args(annotation):
            yield from _choices(option)
    elif origin is Literal:
        yield from typing.get_args(annotation)
    else:
        yield None if annotation is type(None) else annotation


def _is_section(choice: Any) -> bool:
    is_model = isinstance(choice, type) and issubclass(choice, pydantic.BaseModel)
    return is_model or (isinstance(choice, type) and dataclasses.is_dataclass(choice))


def _is_checkable(choices: tuple[Any, ...]) -> bool:
    """Texts and paths may be anything, and tyro reads types that are not known here."""
    kinds = {choice for choice in choices if isinstance(choice, type)}
    return kinds <= {int, float} and not any(typing.get_origin(choice) for choice in choices)


def _fits(word: str, choice: Any) -> bool:
    if choice not in (int, float):
        return word == str(choice)
    if choice is int:
        return _INTEGER.fullmatch(word) is not None
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False


def _without_exponent(word: str) -> str:
    """The digits of a whole number with an exponent; any other text as it is."""
    if not _EXPONENT.fullmatch(word):
        return word
    number = decimal.Decimal(word)
    return str(int(number)) if number == number.to_integral_value() else word
