"""Flags to a verb's Arguments, by tyro, with tyro's error boxes turned into our one-line errors.

tyro reports mistakes as boxes drawn for a terminal; a rejected command line is therefore parsed
once more into a stream of known shape (UTF-8, no colour, very wide), whose rows are easy to read.
"""

import contextlib
import dataclasses
import decimal
import io
import math
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import pydantic
import tyro

from groundup.config import describe_validation_error
from groundup.errors import ConfigError, nearest_name

ArgumentsType = TypeVar("ArgumentsType")

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w.-]*")
_EXPONENT = re.compile(r"[0-9]+(\.[0-9]+)?[eE]\+?[0-9]{1,2}")


def parse_arguments(
    arguments_type: type[ArgumentsType],
    prog: str,
    argv: Sequence[str],
    default: ArgumentsType | None = None,
) -> ArgumentsType | None:
    """The parsed arguments, or None when `--help` was asked for and has been printed.

    What the words do not set is as in `default`, or as the type says. A switch takes `true` and
    `false` as well as its two spellings, and a whole number may be written as 1e9. Raises
    ConfigError, one line that names the flag and, for an unknown one, the nearest.
    """
    argv = _without_truth_values(arguments_type, prog, argv)
    argv = _without_exponents(arguments_type, prog, argv)
    finding: pydantic.ValidationError | None
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            arguments = _parse(arguments_type, prog, argv, default)
        _check_numbers(arguments)
        return arguments
    except SystemExit as stop:
        if not stop.code:
            return None
        finding = _validation_error_behind(stop)
    except ConfigError as error:
        if not isinstance(error.__cause__, pydantic.ValidationError):
            raise
        finding = error.__cause__
    flags = known_flags(arguments_type, prog)
    if finding is not None:
        raise ConfigError(_with_flags(describe_validation_error(finding), flags, argv))
    unknown = _first_unknown_flag(argv, flags)
    if unknown is not None:
        nearest = nearest_name(unknown, [flag for flag in flags if flag.startswith("--")])
        hint = f"did you mean {nearest}?" if nearest else f"see {prog} --help"
        raise ConfigError(f"{prog} has no option {unknown}: {hint}")
    raise ConfigError(_explain(_boxes(arguments_type, prog, argv), prog))


def _check_numbers(arguments: Any) -> None:
    """No flag of any verb takes a number that is not finite or that 64 bits cannot count."""
    for name, value in vars(arguments).items() if dataclasses.is_dataclass(arguments) else ():
        for one in value if isinstance(value, tuple) else (value,):
            flag = f"--{name.replace('_', '-')}"
            if isinstance(one, float) and not math.isfinite(one):
                raise ConfigError(f"{flag} is {one}: give a finite number")
            if isinstance(one, int) and not -(2**63) <= one < 2**64:
                raise ConfigError(f"{flag} is {one!s:.40}, beyond 64 bits: give a smaller number")


def known_flags(arguments_type: type[Any], prog: str) -> list[str]:
    """Every flag that `--help` shows, long and short."""
    flags: list[str] = []
    for row in _flag_rows(arguments_type, prog):
        flags += row
    return list(dict.fromkeys(flags))


def _flag_rows(arguments_type: type[Any], prog: str) -> Iterator[list[str]]:
    """The spellings of each flag, one list for each row of `--help`."""
    for row in _rows(_boxes(arguments_type, prog, ["--help"])):
        # Two spaces end the flags of a row; what follows is prose, which may name other flags.
        if row.startswith("-"):
            yield _FLAG.findall(row.split("  ")[0])


def _without_truth_values(
    arguments_type: type[Any], prog: str, argv: Sequence[str]
) -> Sequence[str]:
    """The words with `--switch true` as `--switch` and `--switch false` as `--no-switch`."""
    if not any(word.lower().endswith(("true", "false")) for word in argv):
        return argv
    switches = {row[0]: row for row in _flag_rows(arguments_type, prog) if len(row) == 2}
    words, result = list(argv), []
    while words:
        word, is_joined, value = words.pop(0).partition("=")
        switch = switches.get(word.replace("_", "-"))
        if not is_joined and switch and words:
            value = words[0]
        if switch and value.lower() in ("true", "false"):
            result.append(switch[0] if value.lower() == "true" else switch[1])
            del words[: 0 if is_joined else 1]
        else:
            result.append(word + (is_joined and f"={value}"))
    return result


def _without_exponents(arguments_type: type[Any], prog: str, argv: Sequence[str]) -> Sequence[str]:
    """The words with 1e9 written out where the flag before it takes whole numbers."""
    if not any(_EXPONENT.search(word) for word in argv):
        return argv
    heads = (row.split("  ")[0] for row in _rows(_boxes(arguments_type, prog, ["--help"])))
    takers = {_FLAG.findall(head)[0] for head in heads if re.match(r"--.*\bINT\b", head)}
    result, is_taker = [], False
    for word in argv:
        flag, is_joined, value = word.partition("=")
        if _FLAG.fullmatch(flag):
            is_taker = flag.replace("_", "-") in takers
            written = f"{flag}={_whole(value)}" if is_taker and is_joined else word
        else:
            written = _whole(word) if is_taker else word
        result.append(written)
    return result


def _whole(text: str) -> str:
    """The digits of a number with an exponent, if it is whole; any other text as it is."""
    if not _EXPONENT.fullmatch(text):
        return text
    number = decimal.Decimal(text)
    return str(int(number)) if number == number.to_integral_value() else text


def _parse(
    arguments_type: type[ArgumentsType],
    prog: str,
    argv: Sequence[str],
    default: ArgumentsType | None = None,
) -> ArgumentsType:
    markers = (tyro.conf.PositionalMetavarFromFieldName,)
    if default is None:
        return tyro.cli(arguments_type, prog=prog, args=list(argv), config=markers)
    return tyro.cli(arguments_type, prog=prog, args=list(argv), config=markers, default=default)


def _boxes(arguments_type: type[Any], prog: str, argv: Sequence[str]) -> str:
    """What tyro prints for these words, on either stream, drawn without a line break inside."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "10000"
    try:
        with (
            contextlib.redirect_stdout(stream),
            contextlib.redirect_stderr(stream),
            contextlib.suppress(SystemExit),
        ):
            _parse(arguments_type, prog, argv)
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    stream.seek(0)
    return _ESCAPES.sub("", stream.read())


def _rows(boxes: str) -> Iterator[str]:
    """The text inside boxes, a row at a time, indentation kept; boxes may stand side by side."""
    for line in boxes.splitlines():
        # What stands before the first edge, between two boxes and after the last is no text.
        for cell in line.split("│")[1::2]:
            yield cell.removeprefix(" ").rstrip()


def _first_unknown_flag(argv: Sequence[str], flags: Sequence[str]) -> str | None:
    spellings = {flag.replace("_", "-") for flag in flags}
    for word in argv:
        if word == "--":
            return None
        name = word.split("=", 1)[0]
        if _FLAG.fullmatch(name) and name.replace("_", "-") not in spellings:
            return name
    return None


def _explain(boxes: str, prog: str) -> str:
    section: list[str] = []
    for row in _rows(boxes):
        if row.startswith("─"):
            break
        section.append(row)
    text = " ".join(row.strip() for row in section)
    if text.startswith("Missing from"):
        # Rows indented by four are the arguments; deeper ones explain them.
        missing = [row.strip() for row in section if re.match(r" {4}\S", row)]
        return f"{prog} needs {' and '.join(missing)}: see {prog} --help"
    text = re.sub(r"^Unrecognized options: ", f"{prog} has no use for ", text)
    text = re.sub(r"^Error parsing (Arguments: )?", "", text)
    return (
        _in_plain_words(text).rstrip(".") or f"{prog} cannot use these arguments: see {prog} --help"
    )


def _in_plain_words(text: str) -> str:
    """Python's complaints about numbers, as a person would say them."""
    union = r"no type matching (?:\{None\}\|)?(\S+) could be instantiated from \[(.*?)\]\. .*"
    text = re.sub(union, r"\2 is no \1", text)
    text = re.sub(r"invalid literal for int\(\) with base 10: (.*)", r"\1 is no INT", text)
    text = re.sub(r"could not convert string to float: (.*)", r"\1 is no FLOAT", text)
    return re.sub(
        r"is no INT\b", "is no whole number", re.sub(r"is no FLOAT\b", "is no number", text)
    )


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


def _validation_error_behind(stop: SystemExit) -> pydantic.ValidationError | None:
    cause: BaseException | None = stop
    while cause is not None:
        if isinstance(cause, pydantic.ValidationError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None
