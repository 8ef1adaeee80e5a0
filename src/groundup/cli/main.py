"""`groundup VERB …`: finds the verb, reads its arguments, runs it, turns errors into exit statuses.

0 done, 2 the user's mistake, 1 a failure of ours, 130 interrupted. Help and version import
nothing heavy; the verb's module and the flag parser are imported once they are needed.
"""

import codecs
import contextlib
import errno
import importlib
import json
import os
import re
import sys
import time
from collections.abc import Sequence

from groundup.cli.terminal import prepare_streams
from groundup.cli.verbs import GROUPS, VERBS, Verb
from groundup.errors import NATIVE_MISSING, ConfigError, GroundupError, did_you_mean

_HELP_FLAGS = ("-h", "--help", "help")
# As torch says it, of whatever device.
_NO_MEMORY = re.compile(r"out of memory|not enough memory|can't allocate memory", re.IGNORECASE)
_USER_ERRNOS = frozenset(
    {
        errno.ENOENT,
        errno.EACCES,
        errno.EPERM,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.EEXIST,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EROFS,
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status; never raises for a user's mistake."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    prepare_streams()
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()
        return status
    except GroundupError as error:
        return _fail(str(error), 2)
    except ImportError as error:
        if error.name != "groundup._native" and "'_native'" not in str(error):
            raise
        return _fail(f"{NATIVE_MISSING} ({error.__cause__ or error})", 2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _silence_stdout()
        return 141
    except OSError as error:
        return _fail(_describe_os_error(error), 2 if error.errno in _USER_ERRNOS else 1)
    except UnicodeEncodeError as error:
        if codecs.lookup(error.encoding).name == "utf-8":
            raise
        text = error.object[error.start : error.end]
        hint = "set LC_ALL=C.UTF-8 or PYTHONUTF8=1"
        return _fail(f"no file name of this locale can hold {text!a}: {hint}", 2)
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or _NO_MEMORY.search(str(error))):
            raise
        return _fail("out of memory: close other programs or work on less at once", 1)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in _HELP_FLAGS:
        print(_overview())
        return 0
    if arguments[0] in ("-V", "--version"):
        from groundup import __version__

        print(f"groundup {__version__}")
        return 0
    if arguments[0] in GROUPS and (len(arguments) == 1 or arguments[1] in _HELP_FLAGS):
        print(_group_help(arguments[0]))
        return 0
    return _run_verb(arguments)


def _find_verb(arguments: list[str]) -> tuple[Verb, list[str]]:
    first = arguments[0]
    if first in VERBS:
        return VERBS[first], arguments[1:]
    if first in GROUPS:
        name = f"{first} {arguments[1]}"
        if name in VERBS:
            return VERBS[name], arguments[2:]
        known = [verb.name for verb in _verbs_of(first)]
        raise ConfigError(f"unknown command groundup {name}: {did_you_mean(name, known)}")
    if first.startswith("-"):
        known = ["--help", "--version"]
        raise ConfigError(f"groundup has no option {first}: {did_you_mean(first, known)}")
    # A person who types the second word alone (`groundup prepare`) means the only verb that has it.
    sharing = [verb.name for verb in VERBS.values() if verb.name.split()[-1] == first]
    hint = f"did you mean {' or '.join(sharing)}?" if sharing else ""
    if not hint:
        names = [*GROUPS, *(name for name in VERBS if " " not in name)]
        hint = did_you_mean(first, names)
    raise ConfigError(f"unknown command groundup {first}: {hint}")


def _run_verb(words: list[str]) -> int:
    verb, rest = _find_verb(words)
    # torch's threads spin while they wait for each other: if anything else runs, they take the core
    # from the one they wait for. Asleep they lose next to nothing. Read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Torch's builds for Arm have mimalloc, which gives freed memory back and gets it anew: 8% of a
    # step on two cores of a Neoverse N1.
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")
    module = importlib.import_module(verb.module)
    from groundup.cli.arguments import parse
    from groundup.runtime import set_up_logging

    set_up_logging()
    arguments = parse(module.Arguments, f"groundup {verb.name}", rest)
    return 0 if arguments is None else int(module.run(arguments) or 0)


def _verbs_of(group: str) -> list[Verb]:
    return [verb for verb in VERBS.values() if verb.name.split()[0] == group]


def _overview() -> str:
    lines = ["usage: groundup VERB [OPTIONS]", ""]
    lines += ["From raw text to a trained, measured, served language model."]
    single = [verb for verb in VERBS.values() if " " not in verb.name]
    lines += ["", *_table(single)]
    for group, summary in GROUPS.items():
        lines += ["", f"{group}: {summary}", *_table(_verbs_of(group))]
    lines += ["", "groundup VERB --help shows a verb's options and their defaults."]
    lines += ["groundup --version shows the version."]
    return "\n".join(lines)


def _group_help(group: str) -> str:
    lines = [f"usage: groundup {group} VERB [OPTIONS]", "", f"{group}: {GROUPS[group]}"]
    lines += _table(_verbs_of(group))
    lines += ["", f"groundup {group} VERB --help shows a verb's options and their defaults."]
    return "\n".join(lines)


def _table(verbs: list[Verb]) -> list[str]:
    width = max(len(name) for name in VERBS)
    return [f"  {verb.name:<{width}}  {verb.summary}" for verb in verbs]


def _describe_os_error(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    reason = reason[:1].lower() + reason[1:]
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason += "; free some space and run the same command again"
    return f"{os.fsdecode(error.filename)}: {reason}" if _has_path(error) else reason


def _has_path(error: OSError) -> bool:
    return isinstance(error.filename, str | bytes | os.PathLike)


def _fail(message: str, status: int) -> int:
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    # Results may be buffered on stdout: they come before the error that ended them.
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    from groundup.runtime import is_first_rank

    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        _tell_torchrun(file, f"error: {line}")
    if is_first_rank():
        print(f"error: {line}", file=sys.stderr)
    return status


def _tell_torchrun(file: str, message: str) -> None:
    """Give torchrun's report of failed ranks the sentence in place of a traceback."""
    with contextlib.suppress(OSError), open(file, "w", encoding="utf-8") as report:
        json.dump(
            {"message": {"message": message, "extraInfo": {"timestamp": int(time.time())}}}, report
        )


def _silence_stdout() -> None:
    """The reader is gone; point stdout elsewhere so that the exit flush does not complain."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
