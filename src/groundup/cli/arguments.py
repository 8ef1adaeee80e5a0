"""Words of the command line to a verb's Arguments and back: tyro splits them, pydantic validates.

Every field of an Arguments class is a flag, or a positional if marked so. All values reach pydantic
as text, so that bounds, choices and the reading of numbers are in one place.
"""

import contextlib
import importlib
import inspect
import io
import re
import shlex
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pydantic
import tyro
from pydantic.fields import FieldInfo

from groundup.config import Settings, describe_validation_error
from groundup.errors import ConfigError, nearest_name

ArgumentsType = TypeVar("ArgumentsType", bound=Settings)

# -3 is a value.
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*(=.*)?", re.DOTALL)
_MARKS = (tyro.conf.Positional, tyro.conf.UseAppendAction)
_TYPE_NAMES = {int: "INT", float: "FLOAT", Path: "PATH", str: "TEXT", type(None): "none"}
# What other trainers call a setting of ours.
_NAMES_ELSEWHERE = {
    "learning-rate": "lr max-lr",
    "weight-decay": "wd",
    "warmup-steps": "warmup warmup-iters",
    "clip-norm": "grad-clip max-grad-norm",
    "num-steps": "steps max-steps max-iters",
    "micro-batch-size": "gradient-accumulation-steps",
    "batch-size": "bs batch",
    "context-length": "block-size seq-len max-seq-len",
    "num-layers": "n-layer n-layers layers depth",
    "num-heads": "n-head n-heads heads",
    "d-model": "n-embd hidden-size dim",
    "precision": "dtype",
    "max-tokens": "max-new-tokens",
    "temperature": "temp",
    "runs-folder": "out-dir",
}
_OURS = {theirs: ours for ours, names in _NAMES_ELSEWHERE.items() for theirs in names.split()}


@dataclass(frozen=True)
class FlagsOf:
    """Marks a mapping that collects what is typed for the flags of other settings.

    `model: Annotated[dict[str, Any], FlagsOf(ModelConfig, "model.")]` gets `{"d_ff": 64}` from
    `--model.d-ff 64`: only what was typed, for `load_settings` to merge over a file.
    """

    settings: type[Settings]
    prefix: str = ""


@dataclass(frozen=True)
class Flag:
    """One setting as it is typed."""

    setting: str
    """Its dotted name: model.d_ff."""
    field: FieldInfo

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
        """The type that tyro reads: bool for a switch, one word, or several."""
        first = _options(self.field.annotation)[0]
        if first is bool:
            return bool
        if typing.get_origin(first) not in (tuple, list):
            return str
        items = typing.get_args(first)
        is_fixed = typing.get_origin(first) is tuple and Ellipsis not in items
        return tuple[(str,) * len(items)] if is_fixed else tuple[str, ...]  # type: ignore[misc]

    def for_tyro(self) -> Any:
        """The annotation from which tyro makes the flag and its help."""
        hint = f"(default: {_show(self.field.get_default(call_default_factory=True))})"
        if self.field.is_required():
            hint = "(required)"
        elif self.is_repeated:
            hint = "(repeatable)"
        metavar = self.name if self.is_positional else _metavar(self.field.annotation)
        options = tyro.conf.arg(
            name=None if self.is_positional else self.name.removeprefix("--"),
            metavar=None if self.words is bool else metavar,
            help=self.field.description or "",
            help_behavior_hint=hint,
        )
        marks = [mark for mark in _MARKS if mark in self.field.metadata]
        return Annotated[(self.words, options, *marks)]


def flags_of(settings: type[Settings], prefix: str = "") -> Iterator[Flag]:
    """Every flag and positional, those of sections by dotted names."""
    for name, field in settings.model_fields.items():
        first = _options(field.annotation)[0]
        if mark := _mark_of(field):
            yield from flags_of(mark.settings, mark.prefix)
        elif isinstance(first, type) and issubclass(first, Settings):
            yield from flags_of(first, f"{prefix}{name}.")
        elif typing.get_origin(first) is not dict:
            yield Flag(prefix + name, field)


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
    typed = typing.TypedDict(  # type: ignore[misc]
        "Flags", {name: flag.for_tyro() for name, flag in flags.items()}, total=False
    )
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            values, unknown = tyro.cli(
                typed,
                prog=prog,
                description=inspect.cleandoc(arguments.__doc__ or ""),
                args=words,
                # tyro cannot leave out what is appended to.
                default={name: () for name, flag in flags.items() if flag.is_repeated},
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
    values: dict[str, Any] = {}
    for name, field in type(arguments).model_fields.items():
        value, mark = getattr(arguments, name), _mark_of(field)
        values |= (
            {name: value} if mark is None else {mark.prefix + one: value[one] for one in value}
        )
    for flag in flags_of(type(arguments)):
        if flag.setting not in values:
            continue
        value = values[flag.setting]
        if value == flag.field.get_default(call_default_factory=True):
            continue
        texts = list(map(str, value)) if isinstance(value, tuple | list) else [_show(value)]
        if flag.is_positional:
            positionals += texts
        elif flag.words is bool:
            options.append(flag.name if value else flag.off)
        elif flag.is_repeated or flag.words is str:
            for text in texts:
                options += [f"{flag.name}={text}"] if text[:1] == "-" else [flag.name, text]
        else:
            options += [flag.name, *texts]
    if any(word.startswith("-") for word in positionals):
        return shlex.join(["groundup", *verb.split(), *options, "--", *positionals])
    return shlex.join(["groundup", *verb.split(), *positionals, *options])


def take_step(title: str, verb: str, arguments: Settings, **options: Any) -> int:
    """Show a verb as it could be typed, and run it; its exit status."""
    from groundup.cli.verbs import VERBS

    show_commands(title, as_command(verb, arguments))
    status = importlib.import_module(VERBS[verb].module).run(arguments, **options)
    return int(status or 0)


def show_commands(title: str, *commands: str) -> None:
    """A heading, and command lines."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print("\n", Text(title, style="bold"), sep="")
    for command in commands:
        console.print(Text(f"$ {command}", style="green"), soft_wrap=True)


def _split(
    argv: list[str], flags: Mapping[str, Flag], known: list[str], prog: str
) -> tuple[list[str], list[str]]:
    """The words for tyro, each value joined to its flag, and the words after --.

    Raises ConfigError for a flag that is unknown or lacks its value.
    """
    end = argv.index("--") if "--" in argv else len(argv)
    argv, loose = argv[:end], argv[end + 1 :]
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


def _place(loose: list[str], values: dict[str, Any], flags: Mapping[str, Flag], prog: str) -> None:
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
    arguments: type[ArgumentsType], values: dict[str, Any], flags: Mapping[str, Flag], prog: str
) -> ArgumentsType:
    names = {name: flag.name for name, flag in flags.items()}
    own = {name: value for name, value in values.items() if name in arguments.model_fields}
    try:
        for name, field in arguments.model_fields.items():
            if mark := _mark_of(field):
                typed = {
                    flag.setting: values[flag.setting]
                    for flag in flags_of(mark.settings, mark.prefix)
                    if flag.setting in values and flag.setting not in own
                }
                # Each by itself: what depends on others is checked with what a file says.
                fields: dict[str, Any] = {
                    one: (flags[one].field.annotation, flags[one].field) for one in typed
                }
                checked = pydantic.create_model("Typed", __base__=Settings, **fields)
                found = checked.model_validate(typed)
                own[name] = {one.removeprefix(mark.prefix): getattr(found, one) for one in typed}
        return arguments.model_validate(own)
    except pydantic.ValidationError as error:
        missing = [str(one["loc"][0]) for one in error.errors() if one["type"] == "missing"]
        if missing:
            needed = " and ".join(names[name] for name in missing)
            raise ConfigError(f"{prog} needs {needed}: see {prog} --help") from None
        raise ConfigError(describe_validation_error(error, names=names)) from None


def _mark_of(field: FieldInfo) -> FlagsOf | None:
    return next((mark for mark in field.metadata if isinstance(mark, FlagsOf)), None)


def _options(annotation: Any) -> list[Any]:
    """The types of a union without annotations, None last."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _options(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        found = [one for option in typing.get_args(annotation) for one in _options(option)]
        return sorted(found, key=lambda option: option is type(None))
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
    own = _OURS.get(last, last)
    alike = [flag for flag in flags if flag.removeprefix("--").rpartition(".")[2] == own]
    return " or ".join(alike[:2]) or nearest_name(name, flags)
