"""`groundup VERB …`: find the verb, parse its arguments, run it, turn errors into exit statuses.

0 done, 2 the user's mistake, 1 a failure of groundup, 130 interrupted. Help imports nothing heavy:
the verb's module and the parser are imported when needed.
"""

import contextlib
import errno
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence

from groundup import disk
from groundup.cli.terminal import prepare_streams, printable
from groundup.cli.verbs import GROUPS, MEANT, VERBS, find_verb
from groundup.errors import (
    NATIVE_MISSING,
    ConfigError,
    GroundupError,
    did_you_mean,
    is_out_of_memory,
)

_HELP_FLAGS = ("-h", "--help", "help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status; never raises for a user's mistake."""
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
    except TypeError as error:
        # A native core built before a pull has other signatures than its types.
        core = getattr(sys.modules.get("groundup._native"), "__file__", None)
        types = os.path.join(os.path.dirname(core or ""), "_native.pyi")
        if core is None or os.path.getmtime(types) - os.path.getmtime(core) < 60:
            raise
        return _fail(f"the native core is outdated: run `make install` ({error})", 2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Keep the flush at exit from failing.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        return _fail(_describe_os_error(error), 1 if error.errno == errno.EIO else 2)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return _fail("out of memory: close other programs or work on less at once", 1)


def _dispatch(words: list[str]) -> int:
    first, second = [*words, "", ""][:2]
    if not words or first in _HELP_FLAGS:
        print(_help(""))
    elif first in ("-V", "--version"):
        for line in _version_lines():
            print(line, flush=True)
    elif first in GROUPS and second in ("", *_HELP_FLAGS):
        print(_help(first))
    else:
        verb = f"{first} {second}" if first in GROUPS else first
        if verb not in VERBS:
            # `groundup prepare` means `groundup data prepare`.
            sharing = [name for name in VERBS if name.split()[-1] == verb]
            sharing += [MEANT[verb]] if verb in MEANT else []
            hint = f"did you mean {sharing[0]}?" if sharing else did_you_mean(verb, VERBS)
            raise ConfigError(f"unknown command groundup {verb}: {hint}")
        return _run_verb(verb, words[len(verb.split()) :])
    return 0


def _run_verb(verb: str, words: list[str]) -> int:
    # Both are read when torch is loaded. Spinning OpenMP threads take cores from the threads that
    # they wait for if anything else runs; sleeping costs almost nothing.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Torch's Arm builds use mimalloc, which returns freed memory to the system: 8% of a step on two
    # Neoverse N1 cores.
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")
    arguments_type, run = find_verb(verb)
    from groundup.cli.arguments import parse
    from groundup.runtime import set_up_logging

    set_up_logging()
    arguments = parse(arguments_type, f"groundup {verb}", words)
    return 0 if arguments is None else int(run(arguments) or 0)


def _help(group: str) -> str:
    """The help text of a group, or of all verbs."""
    of_group = f"{group} VERB" if group else "VERB"
    lines = [f"usage: groundup {of_group} [OPTIONS]", ""]
    lines += [] if group else ["From raw text to a trained, measured, served language model.", ""]
    width = max(map(len, VERBS))
    for heading in [group] if group else ["", *GROUPS]:
        lines += [f"{heading}: {GROUPS[heading]}"] if heading else []
        for verb, summary in VERBS.items():
            if " ".join(verb.split()[:-1]) == heading:
                lines.append(f"  {verb:<{width}}  {summary}")
        lines.append("")
    lines.append(f"groundup {of_group} --help shows a verb's options and their defaults.")
    return "\n".join(lines)


def _describe_os_error(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    reason = reason[:1].lower() + reason[1:]
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason += "; free some space and run the same command again"
    has_path = isinstance(error.filename, str | bytes | os.PathLike)
    return f"{os.fsdecode(error.filename)}: {reason}" if has_path else reason


def _fail(message: str, status: int) -> int:
    line = f"error: {printable(message)}"
    # Print buffered results before the error.
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    from groundup.runtime import is_first_rank

    # Lets torchrun report the message instead of a traceback.
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        failure = {"message": line, "extraInfo": {"timestamp": int(time.time())}}
        with contextlib.suppress(OSError):
            disk.write_file(file, json.dumps({"message": failure}).encode())
    if is_first_rank():
        print(line, file=sys.stderr)
    return status


def _version_lines() -> Iterator[str]:
    """What a bug report needs; a part that is missing or broken says why. The last two import
    torch, which takes seconds."""
    from groundup import __version__

    yield f"groundup {__version__}"
    yield f"python   {platform.python_version()}, {platform.system()} {platform.machine()}"
    for name, find in (("native", _native), ("torch", _torch), ("device", _device)):
        try:
            found = find()
        # A torch build for another machine may raise anything.
        except Exception as error:
            found = f"not usable: {error}"
        yield f"{name:<8} {found}"


def _native() -> str:
    from groundup.tokenizer.native import vectors

    used, supported = vectors()
    return f"{used} (of {', '.join(supported)})"


def _torch() -> str:
    import torch

    return torch.__version__


def _device() -> str:
    from groundup.training.machine import Machine

    machine = Machine.detect()
    return f"{machine.device}: {machine.name}"
