"""Parse a command line into a verb's arguments, and back: argparse splits, pydantic validates.

Every field of an arguments class is a flag, or a positional if marked. All values reach pydantic as
text, so that bounds, choices and number formats are in one place.
"""

import argparse
import inspect
import re
import shlex
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pydantic
from pydantic.fields import FieldInfo

from groundup.config import Settings, describe_validation_error, kinds_of, setting_fields
from groundup.errors import ConfigError, nearest_name

ArgumentsType = TypeVar("ArgumentsType", bound=Settings)
Value = TypeVar("Value")

Positional = Annotated[Value, "positional"]
Repeated = Annotated[Value, "repeated"]
"""A flag that may be given several times, with one value each."""

_TYPE_NAMES = {int: "INT", float: "FLOAT", Path: "PATH", str: "TEXT", type(None): "none"}


@dataclass(frozen=True)
class FlagsOf:
    """Marks a mapping that collects the typed flags of other settings, for `load_settings` to merge
    over a file.

    `model: Annotated[dict[str, Any], FlagsOf(ModelConfig, "model.")]` gets `{"d_ff": 64}` from
    `--model.d-ff 64`.
    """

    settings: type[Settings]
    prefix: str = ""


@dataclass(frozen=True)
class Flag:
    """A setting on the command line."""

    setting: str
    """Its dotted name: model.d_ff."""
    field: FieldInfo

    @property
    def name(self) -> str:
        """--model.d-ff, or a positional in capitals."""
        if self.is_positional:
            return self.setting.upper()
        # Python keywords have a trailing underscore.
        return f"--{self.setting.rstrip('_').replace('_', '-')}"

    @property
    def is_positional(self) -> bool:
        return "positional" in self.field.metadata

    @property
    def is_repeated(self) -> bool:
        return "repeated" in self.field.metadata

    @property
    def is_switch(self) -> bool:
        return self.field.annotation is bool

    @property
    def is_several(self) -> bool:
        return typing.get_origin(self.field.annotation) is tuple

    @property
    def metavar(self) -> str:
        kinds = dict.fromkeys(one for one in kinds_of(self.field.annotation) if one is not ...)
        return "|".join(one if isinstance(one, str) else _TYPE_NAMES[one] for one in kinds)

    def add_to(self, parser: argparse.ArgumentParser, *, is_shown: bool, is_of_run: bool) -> None:
        about = self.field.description or ""
        default = _show(self.field.get_default(call_default_factory=True))
        hint = f" (default: {default})" if default else ""
        if is_of_run:
            hint = " (default: the run's)"
        elif self.field.is_required():
            hint = " (required)"
        elif "Default:" in about or "repeatable" in about:
            hint = ""
        elif self.is_repeated:
            hint = " (repeatable)"
        options: dict[str, Any] = {
            "help": f"{about}{hint}".replace("%", "%%"),
            "default": argparse.SUPPRESS,
        }
        if not is_shown:
            options["help"] = argparse.SUPPRESS
        if self.is_switch:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["metavar"] = self.name if self.is_positional else self.metavar
            options["nargs"] = "?" if self.is_positional else None
            if self.is_repeated:
                options["action"] = "append"
            elif self.is_several:
                options["nargs"] = "*"
        if not self.is_positional:
            options["dest"] = self.setting
        parser.add_argument(self.setting if self.is_positional else self.name, **options)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        raise ConfigError(f"{message}: see {self.prog} --help")


def flags_of(settings: type[Settings], prefix: str = "") -> Iterator[Flag]:
    """Every flag and positional; those of sections have dotted names."""
    for name, field in setting_fields(settings, prefix):
        if mark := _mark_of(field):
            yield from flags_of(mark.settings, mark.prefix)
        elif typing.get_origin(field.annotation) is not dict:
            yield Flag(name, field)


def known_flags(arguments: type[Settings]) -> list[str]:
    """Every flag, with both spellings of switches."""
    flags = [flag for flag in flags_of(arguments) if not flag.is_positional]
    switched_off = [f"--no-{flag.name[2:]}" for flag in flags if flag.is_switch]
    return ["--help", "--help-all", *(flag.name for flag in flags), *switched_off]


def parse(arguments: type[ArgumentsType], prog: str, argv: Sequence[str]) -> ArgumentsType | None:
    """The parsed arguments; None after printing help: `--help` shows the verb's own flags and its
    `common` ones, or those without a section; `--help-all` shows all.

    Raises ConfigError, one line that names the flag and, for an unknown one, suggests another.
    """
    flags = {flag.setting: flag for flag in flags_of(arguments)}
    positionals = [flag.name for flag in flags.values() if flag.is_positional]
    shows_all, common = "--help-all" in argv, list(getattr(arguments, "common", ()))
    own = [name for name in flags if name in arguments.model_fields]
    usual = [*own, *common] if common else [name for name in flags if "." not in name]
    flags = {name: flags[name] for name in [*usual, *flags]}
    parser = _Parser(
        prog=prog,
        usage=" ".join([prog, *positionals, "[OPTIONS]"]),
        description=inspect.cleandoc(arguments.__doc__ or ""),
        epilog=f"{prog} --help-all shows all {len(flags)}" if len(usual) < len(flags) else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    of_run = getattr(arguments, "of_run", ())
    for flag in flags.values():
        is_shown = shows_all or flag.setting in usual
        flag.add_to(parser, is_shown=is_shown, is_of_run=flag.setting in of_run)
    words = [re.sub(r"^--\w[\w.-]*", lambda name: name[0].replace("_", "-"), it) for it in argv]
    words = ["--help" if word == "--help-all" else word for word in words]
    try:
        found, unknown = parser.parse_known_intermixed_args(words)
    except SystemExit:
        return None
    for word in unknown:
        if word.startswith("-"):
            meant = _meant_by(word.partition("=")[0], known_flags(arguments))
            hint = f"did you mean {meant}?" if meant else f"see {prog} --help"
            raise ConfigError(f"{prog} has no option {word.partition('=')[0]}: {hint}")
    if unknown:
        raise ConfigError(f"{prog} takes no argument {', '.join(unknown)}: see {prog} --help")
    return _validate(arguments, vars(found), flags, prog)


def as_command(verb: str, arguments: Settings) -> str:
    """The command line for these arguments."""
    words, options = ["groundup", *verb.split()], []
    values: dict[str, Any] = {}
    for name, field in type(arguments).model_fields.items():
        value, mark = getattr(arguments, name), _mark_of(field)
        values |= {mark.prefix + one: value[one] for one in value} if mark else {name: value}
    for flag in flags_of(type(arguments)):
        default = flag.field.get_default(call_default_factory=True)
        if (value := values.get(flag.setting, default)) == default:
            continue
        texts = list(map(str, value)) if flag.is_several else [_show(value)]
        if flag.is_positional:
            words += texts
        elif flag.is_switch:
            options.append(flag.name if value else f"--no-{flag.name[2:]}")
        elif flag.is_several and not flag.is_repeated:
            options += [flag.name, *texts]
        else:
            for text in texts:
                options += [f"{flag.name}={text}"] if text[:1] == "-" else [flag.name, text]
    return shlex.join([*words, *options])


def _validate(
    arguments: type[ArgumentsType], values: dict[str, Any], flags: Mapping[str, Flag], prog: str
) -> ArgumentsType:
    own = {name: value for name, value in values.items() if name in arguments.model_fields}
    try:
        for name, field in arguments.model_fields.items():
            if mark := _mark_of(field):
                marked = (flag.setting for flag in flags_of(mark.settings, mark.prefix))
                typed = {one: values[one] for one in marked if one in values}
                fields = {one: (flags[one].field.annotation, flags[one].field) for one in typed}
                # Each separately: settings that depend on others are checked later, with the
                # file's.
                checked = pydantic.create_model("Typed", __base__=Settings, **fields)  # type: ignore[call-overload]
                found = checked.model_validate(typed)
                own[name] = {one.removeprefix(mark.prefix): getattr(found, one) for one in typed}
        return arguments.model_validate(own)
    except pydantic.ValidationError as error:
        names = {name: flag.name for name, flag in flags.items()}
        missing = [names[str(one["loc"][0])] for one in error.errors() if one["type"] == "missing"]
        if missing:
            needed = " and ".join(missing)
            raise ConfigError(f"{prog} needs {needed}: see {prog} --help") from None
        raise ConfigError(describe_validation_error(error, names=names)) from None


def _mark_of(field: FieldInfo) -> FlagsOf | None:
    return next((mark for mark in field.metadata if isinstance(mark, FlagsOf)), None)


def _show(value: Any) -> str:
    if isinstance(value, tuple | list):
        return shlex.join(map(str, value))
    return "none" if value is None else str(value)


def _meant_by(name: str, flags: list[str]) -> str | None:
    """The flag with the same last part, or the most similar one."""
    bare = {flag.removeprefix("--"): flag for flag in flags}
    last = name.lstrip("-").rpartition(".")[2]
    alike = [bare[one] for one in bare if one.rpartition(".")[2] == last]
    nearest = nearest_name(name.lstrip("-"), bare)
    return " or ".join(alike[:2]) or (nearest and bare[nearest])
