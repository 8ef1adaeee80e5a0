"""Words to a verb's Arguments, by tyro, with every mistake as one line that names the flag."""

import contextlib
import io
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import pydantic
import tyro

from groundup.cli.flags import Flag, flags_of, is_flag, known_flags
from groundup.config import describe_validation_error
from groundup.errors import ConfigError, nearest_name

ArgumentsType = TypeVar("ArgumentsType")

# What other trainers call a setting of ours, to be understood as a hint.
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
    "epochs": "num-steps",
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


def parse_arguments(
    arguments_type: type[ArgumentsType],
    prog: str,
    argv: Sequence[str],
    default: ArgumentsType | None = None,
) -> ArgumentsType | None:
    """The parsed arguments, or None when `--help` was asked for and has been printed.

    What the words do not set is as in `default`, or as the type says. A switch takes `true` and
    `false` as well as its two spellings, and an integer may be written as 1e9. Raises ConfigError,
    one line that names the flag and, for an unknown one, the nearest.

    Args:
        arguments_type: A dataclass or pydantic model whose fields are the flags.
        prog: The command, as messages name it.
        argv: The words behind the command.
        default: What the flags start from.
    """
    if any(word in ("-h", "--help") for word in argv):
        words = ["--help"]  # By itself: words that tyro has taken are left out of the help.
    elif any(word.startswith("--tyro-") for word in argv):
        words = list(argv)
    else:
        words = _check_words(arguments_type, prog, argv)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return tyro.cli(
                arguments_type,
                prog=prog,
                args=words,
                config=(tyro.conf.PositionalMetavarFromFieldName,),
                default=tyro.MISSING_NONPROP if default is None else default,
            )
    except (SystemExit, ConfigError, pydantic.ValidationError) as stop:
        if isinstance(stop, SystemExit) and not stop.code:
            return None
        finding = _validation_error_behind(stop)
        if finding is None and isinstance(stop, ConfigError):
            raise
    if finding is None:
        raise ConfigError(f"{prog} cannot use these arguments: see {prog} --help")
    message = describe_validation_error(finding)
    raise ConfigError(_with_flags(message, known_flags(arguments_type), argv))


def _check_words(arguments_type: type[Any], prog: str, argv: Sequence[str]) -> list[str]:
    """The words as tyro takes them; a ConfigError for an unknown flag or a value that cannot be."""
    flags = list(flags_of(arguments_type))
    by_name = {flag.name: flag for flag in flags if not flag.is_positional}
    by_name |= {flag.off: flag for flag in flags if flag.is_switch}
    num_needed = sum(flag.is_positional and flag.is_required for flag in flags)
    waiting, options, loose, given = list(argv), [], [], set()
    while waiting:
        word = waiting.pop(0)
        if word == "--":
            loose += waiting
            break
        if not is_flag(word):
            loose.append(word)
            continue
        typed, is_joined, value = word.partition("=")
        name = typed.replace("_", "-")
        flag = by_name.get(name)
        if flag is None:
            meant = _meant_by(name, known_flags(arguments_type))
            hint = f"did you mean {meant}?" if meant else f"see {prog} --help"
            raise ConfigError(f"{prog} has no option {typed}: {hint}")
        given.add(flag.name)
        values = [value] if is_joined else _take_values(flag, waiting)
        if flag.takes_many and not is_joined and not waiting and len(loose) < num_needed:
            # The last words are the positionals that must follow.
            kept = max(0, len(values) - (num_needed - len(loose)))
            waiting, values = values[kept:], values[:kept]
        if flag.is_switch:
            truth = values[0].lower() if values else "true"
            if truth not in ("true", "false") or (values and name == flag.off):
                raise ConfigError(f"{flag.name} is a switch, true or false: got {word!r}")
            options.append(name if truth == "true" else flag.off)
        elif flag.num_values not in (None, len(values)):
            raise ConfigError(f"{name} takes {flag.num_values} values, got {' '.join(values)!r}")
        elif flag.takes_many:
            options += [name, *map(flag.read, values)]
        elif values:
            options.append(f"{name}={flag.read(values[0])}")
        else:
            raise ConfigError(f"{name} needs a value: see {prog} --help")
    _check_positionals(flags, loose, given, prog)
    return [*options, "--", *loose] if loose else options


def _take_values(flag: Flag, waiting: list[str]) -> list[str]:
    """Take the words off that belong to a flag: all up to the next one, one, or a truth value."""
    values: list[str] = []
    while waiting and not is_flag(waiting[0]) and waiting[0] != "--":
        if flag.is_switch and waiting[0].lower() not in ("true", "false"):
            return []
        values.append(waiting.pop(0))
        if not flag.takes_many:
            break
    return values


def _check_positionals(flags: list[Flag], loose: list[str], given: set[str], prog: str) -> None:
    positionals = [flag for flag in flags if flag.is_positional]
    missing = [flag.name for flag in positionals if flag.is_required][len(loose) :]
    missing += [
        flag.name
        for flag in flags
        if flag.is_required and not flag.is_positional and flag.name not in given
    ]
    if missing:
        raise ConfigError(f"{prog} needs {' and '.join(missing)}: see {prog} --help")
    if not any(flag.takes_many for flag in positionals) and len(loose) > len(positionals):
        extra = ", ".join(loose[len(positionals) :])
        raise ConfigError(f"{prog} has no use for {extra}: see {prog} --help")
    for flag, word in zip(positionals, loose, strict=False):
        flag.read(word)


def _with_flags(text: str, flags: Sequence[str], argv: Sequence[str]) -> str:
    """Spell the settings that a message's clauses begin with as the flags the user typed.

    A section is checked by itself, so its messages lack its name: the words that were typed, or
    the only flag that fits, tell which section it is.
    """
    typed = {word.partition("=")[0].replace("_", "-") for word in argv}

    def spell(match: re.Match[str]) -> str:
        name = match[1].replace("_", "-")
        fitting = [flag for flag in flags if flag == f"--{name}" or flag.endswith(f".{name}")]
        for candidates in ([flag for flag in fitting if flag in typed], fitting):
            if len(candidates) == 1:
                return candidates[0]
        return f"--{name}" if f"--{name}" in fitting else match[1]

    return re.sub(r"(?:^|(?<=; ))([\w.]+)(?= is )", spell, text)


def _validation_error_behind(cause: BaseException | None) -> pydantic.ValidationError | None:
    """What pydantic found, where that is why tyro gave up."""
    while cause is not None and not isinstance(cause, pydantic.ValidationError):
        cause = cause.__cause__ or cause.__context__
    return cause


def _meant_by(name: str, flags: list[str]) -> str | None:
    """The flag that a word probably means: by its name elsewhere, its last part, or its letters."""
    last = name.removeprefix("--").rpartition(".")[2]
    own = _NAMES_ELSEWHERE.get(last, last)
    alike = [flag for flag in flags if flag.removeprefix("--").rpartition(".")[2] == own]
    return " or ".join(alike[:2]) or nearest_name(name, flags)
