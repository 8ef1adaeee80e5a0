"""Words of the command line to a verb's Arguments and back: tyro splits them, pydantic validates.

Every field of an Arguments class is a flag, or a positional if marked so. All values reach pydantic
as text, so that bounds, choices and reading of numbers are in one place.
"""

import contextlib
import inspect
import io
import re
import shlex
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pydantic
import tyro
from pydantic_core import PydanticUndefined

from groundup.config import Settings, describe_validation_error
from groundup.errors import ConfigError, nearest_name

ArgumentsType = TypeVar("ArgumentsType", bound=Settings)

# -3 is a value.
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*(=.*)?", re.DOTALL)
_TYPE_NAMES = {int: "INT", float: "FLOAT", Path: "PATH", str: "TEXT", type(None): "none"}
# What other trainers call a setting of ours.
_NAMES_ELSEWHERE = {
    "lr": "learning-rate",
    "max-lr": "learning-rate",
    "wd": "weight-decay",
    "warmup": "warmup-steps",
    "warmup-iters": "warmup-steps",
    "grad-clip": "clip-norm",
    "steps": "num-steps",
    "max-steps": "num-steps",
    "max-iters": "num-steps",
    "gradient-accumulation-steps": "micro-batch-size",
    "bs": "batch-size",
    "batch": "batch-size",
    "block-size": "context-length",
    "seq-len": "context-length",
    "max-seq-len": "context-length",
    "n-layer": "num-layers",
    "n-layers": "num-layers",
    "layers": "num-layers",
    "depth": "num-layers",
    "n-head": "num-heads",
    "n-heads": "num-heads",
    "heads": "num-heads",
    "n-embd": "d-model",
    "hidden-size": "d-model",
    "dim": "d-model",
    "dtype": "precision",
    "max-new-tokens": "max-tokens",
    "temp": "temperature",
    "out-dir": "runs-folder",
}


@dataclass(frozen=True)
class FlagsOf:
    """Marks a mapping that collects what is typed for the flags of other settings.

    `model: Annotated[dict[str, Any], FlagsOf(ModelConfig, "model.")]` gets `{"d_ff": "64"}` from
    `--model.d-ff 64`: only what was typed, for `load_settings` to merge over a file.
    """

    settings: type[Settings]
    prefix: str = ""


@dataclass(frozen=True)
class Flag:
    """One setting as it is typed."""

    setting: str
    """Its dotted name: model.d_ff."""
    annotation: Any
    field: pydantic.fields.FieldInfo

    @property
    def name(self) -> str:
        """--model.d-ff, or a positional in capitals."""
        if self.is_positional:
            return self.setting.upper()
        # A name that Python keeps for itself ends in an underscore.
        return f"--{self.setting.rstrip('_').replace('_', '-')}"

    @property
    def off(self) -> str:
        """What sets a switch to false: --no-resume, --logging.no-wandb."""
        section, dot, name = self.name.removeprefix("--").rpartition(".")
        return f"--{section}{dot}no-{name}"

    @property
    def is_positional(self) -> bool:
        return tyro.conf.Positional in self.field.metadata

    @property
    def is_repeated(self) -> bool:
        return tyro.conf.UseAppendAction in self.field.metadata

    @property
    def words(self) -> Any:
        """The type that tyro reads: a switch, one word, or several."""
        options = [option for option in _options(self.annotation) if option is not type(None)]
        if options == [bool]:
            return bool
        if typing.get_origin(options[0]) not in (tuple, list):
            return str
        items = typing.get_args(options[0])
        is_fixed = typing.get_origin(options[0]) is tuple and Ellipsis not in items
        return tuple[(str,) * len(items)] if is_fixed else tuple[str, ...]  # type: ignore[misc]

    def for_tyro(self) -> Any:
        hint = f"(default: {_show(self.field.get_default(call_default_factory=True))})"
        if self.field.is_required():
            hint = "(required)"
        elif self.is_repeated:
            hint = "(repeatable)"
        metavar = self.name if self.is_positional else _metavar(self.annotation)
        name = self.name.removeprefix("--")
        options = tyro.conf.arg(
            name=None if self.is_positional else name,
            metavar=None if self.words is bool else metavar,
            help=self.field.description or "",
            help_behavior_hint=hint,
        )
        marks = [mark for mark in self.field.metadata if mark in _TYRO_MARKS]
        return Annotated[(self.words, options, *marks)]  # type: ignore[return-value]


_TYRO_MARKS = (tyro.conf.Positional, tyro.conf.UseAppendAction)


def flags_of(settings: type[Settings], prefix: str = "") -> Iterator[Flag]:
    """Every flag and positional, those of sections by dotted names."""
    for name, field in settings.model_fields.items():
        options = [option for option in _options(field.annotation) if option is not type(None)]
        if mark := _mark_of(field):
            yield from flags_of(mark.settings, mark.prefix)
        elif isinstance(options[0], type) and issubclass(options[0], Settings):
            yield from flags_of(options[0], f"{prefix}{name}.")
        elif typing.get_origin(options[0]) is not dict:
            yield Flag(prefix + name, field.annotation, field)


def known_flags(arguments: type[Settings]) -> list[str]:
    """Every flag that may be typed, with both spellings of a switch."""
    flags = [flag for flag in flags_of(arguments) if not flag.is_positional]
    switched_off = [flag.off for flag in flags if flag.words is bool]
    return ["--help", *(flag.name for flag in flags), *switched_off]


def parse(arguments: type[ArgumentsType], prog: str, argv: Sequence[str]) -> ArgumentsType | None:
    """The parsed arguments; None if help was asked for, and printed.

    Raises ConfigError, one line that names the flag and, for an unknown one, the nearest.
    """
    flags = {flag.setting: flag for flag in flags_of(arguments)}
    words, loose = _split(list(argv), flags, known_flags(arguments), prog)
    repeated = {name: () for name, flag in flags.items() if flag.is_repeated}
    typed = typing.TypedDict(  # type: ignore[operator]
        "Flags", {name: flag.for_tyro() for name, flag in flags.items()}, total=False
    )
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            values, unknown = tyro.cli(
                typed,
                prog=prog,
                description=inspect.cleandoc(arguments.__doc__ or ""),
                args=words,
                default=repeated,
                return_unknown_args=True,
            )
    except SystemExit as stop:
        if not stop.code:
            return None
        raise ConfigError(f"{prog} cannot use these arguments: see {prog} --help") from None
    values = {name: value for name, value in values.items() if value != ()}
    _place([*unknown, *loose], values, flags, prog)
    return _validate(arguments, values, flags, prog)


def as_command(verb: str, arguments: Settings) -> str:
    """The command line that gives these arguments."""
    positionals, options = [], []
    for flag in flags_of(type(arguments)):
        value: Any = arguments
        for part in flag.setting.split("."):
            value = getattr(value, part, PydanticUndefined)
        default = flag.field.get_default(call_default_factory=True)
        if value is PydanticUndefined or (value == default and not flag.field.is_required()):
            continue
        texts = list(map(str, value)) if isinstance(value, tuple) else [str(value)]
        if flag.is_positional:
            positionals += texts
        elif flag.words is bool:
            options.append(flag.name if value else flag.off)
        elif flag.is_repeated or flag.words is str:
            for text in texts:
                options += [f"{flag.name}={text}"] if text[:1] == "-" else [flag.name, text]
        else:
            options += [flag.name, *texts]
    for name, field in type(arguments).model_fields.items():
        if mark := _mark_of(field):
            for setting, value in getattr(arguments, name).items():
                options += [f"--{mark.prefix}{setting}".replace("_", "-"), str(value)]
    if any(word.startswith("-") for word in positionals):
        return shlex.join(["groundup", *verb.split(), *options, "--", *positionals])
    return shlex.join(["groundup", *verb.split(), *positionals, *options])


def _split(
    argv: list[str], flags: dict[str, Flag], known: list[str], prog: str
) -> tuple[list[str], list[str]]:
    """The words for tyro, values that begin with a dash joined to their flag, and what follows --.

    Raises ConfigError for a flag that is unknown or lacks its value.
    """
    argv, loose = (
        (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    )
    if {"-h", "--help"} & set(argv):
        return ["--help"], []
    takes_one = {flag.name for flag in flags.values() if flag.words is str or flag.is_repeated}
    words: list[str] = []
    while argv:
        word = argv.pop(0)
        if not _FLAG.fullmatch(word):
            words.append(word)
            continue
        typed, is_joined, _ = word.partition("=")
        name = typed.replace("_", "-")
        if name not in known:
            meant = _meant_by(name, known)
            hint = f"did you mean {meant}?" if meant else f"see {prog} --help"
            raise ConfigError(f"{prog} has no option {typed}: {hint}")
        if name in takes_one and not is_joined:
            if not argv or argv[0].partition("=")[0].replace("_", "-") in known:
                raise ConfigError(f"{name} needs a value: see {prog} --help")
            word = f"{name}={argv.pop(0)}"
        words.append(word)
    return words, loose


def _place(loose: list[str], values: dict[str, Any], flags: dict[str, Flag], prog: str) -> None:
    """Give words that stood apart (`RUN --json FILE`) to the positionals that they belong to."""
    for name, flag in flags.items():
        if loose and flag.is_positional and flag.words is not str:
            values[name] = (*values.get(name, ()), *loose)
            loose = []
        elif loose and flag.is_positional and name not in values:
            values[name] = loose.pop(0)
    if loose:
        raise ConfigError(f"{prog} has no use for {', '.join(loose)}: see {prog} --help")


def _validate(
    arguments: type[ArgumentsType], values: dict[str, Any], flags: dict[str, Flag], prog: str
) -> ArgumentsType:
    names = {name: flag.name for name, flag in flags.items()}
    nested: dict[str, Any] = {}
    for name, field in arguments.model_fields.items():
        if mark := _mark_of(field):
            own = {flag.setting for flag in flags_of(mark.settings, mark.prefix)}
            typed = {one: values.pop(one) for one in list(values) if one in own}
            _check_typed(mark, typed, names)
            nested[name] = {one.removeprefix(mark.prefix): typed[one] for one in typed}
    try:
        return arguments.model_validate(_nest(values) | nested)
    except pydantic.ValidationError as error:
        missing = [str(one["loc"][0]) for one in error.errors() if one["type"] == "missing"]
        if missing:
            needed = " and ".join(names[name] for name in missing)
            raise ConfigError(f"{prog} needs {needed}: see {prog} --help") from None
        raise ConfigError(describe_validation_error(error, names=names)) from None


def _check_typed(mark: FlagsOf, typed: dict[str, Any], names: dict[str, str]) -> None:
    """Report values that no file could make right; what depends on others is checked after it."""
    values = _nest({name.removeprefix(mark.prefix): value for name, value in typed.items()})
    try:
        mark.settings.model_validate(values)
    except pydantic.ValidationError as error:
        keys = [tuple(name.removeprefix(mark.prefix).split(".")) for name in typed]
        if any(one["loc"][: len(key)] == key for one in error.errors() for key in keys):
            named = {name.removeprefix(mark.prefix): names[name] for name in typed}
            raise ConfigError(describe_validation_error(error, names=named)) from None


def _nest(values: dict[str, Any]) -> dict[str, Any]:
    """{"model.d_ff": 1} as {"model": {"d_ff": 1}}."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *sections, last = name.split(".")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return nested


def _mark_of(field: pydantic.fields.FieldInfo) -> FlagsOf | None:
    return next((mark for mark in field.metadata if isinstance(mark, FlagsOf)), None)


def _options(annotation: Any) -> list[Any]:
    """The types of a union, without annotations."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _options(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [one for option in typing.get_args(annotation) for one in _options(option)]
    return [annotation]


def _metavar(annotation: Any) -> str:
    shown = []
    for option in _options(annotation):
        if typing.get_origin(option) is Literal:
            shown += list(map(str, typing.get_args(option)))
        elif typing.get_origin(option) in (tuple, list):
            items = [item for item in typing.get_args(option) if item is not Ellipsis]
            shown.append(" ".join(map(_metavar, items)))
        else:
            shown.append(_TYPE_NAMES.get(option, "TEXT"))
    return "|".join(shown)


def _show(value: Any) -> str:
    if isinstance(value, tuple | list):
        return shlex.join(map(str, value))
    return "none" if value is None else str(value)


def _meant_by(name: str, flags: list[str]) -> str | None:
    """The flag that a word probably means: by its name elsewhere, its last part, or its letters."""
    last = name.lstrip("-").rpartition(".")[2]
    own = _NAMES_ELSEWHERE.get(last, last)
    alike = [flag for flag in flags if flag.removeprefix("--").rpartition(".")[2] == own]
    return " or ".join(alike[:2]) or nearest_name(name, flags)
