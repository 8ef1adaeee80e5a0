"""Standard streams that take whatever is printed, and words of the command line as text."""

import codecs
import io
import os
import sys


def prepare_streams() -> None:
    """Let closed streams lead nowhere, and let no character be an error on the others.

    A closed one would also give its number to the next file opened, into which libraries that print
    would then write. The C locale names no encoding, so UTF-8 is as good there as anywhere.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            _open_nowhere(number)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
        elif name != "stdin" and isinstance(stream, io.TextIOWrapper):
            is_ascii = codecs.lookup(stream.encoding).name == "ascii"
            errors = "replace" if name == "stdout" else "backslashreplace"
            stream.reconfigure(encoding="utf-8" if is_ascii else None, errors=errors)


def as_text(word: str) -> str:
    """A word of the command line as the UTF-8 that was typed, whatever the locale took it for."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def _open_nowhere(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        nowhere = os.open(os.devnull, os.O_RDWR)
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)
