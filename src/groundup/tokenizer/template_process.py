"""Foreign chat templates run in a process of their own, with little time and memory.

Jinja's sandbox keeps a template from files and from Python's insides, but not from endless work:
`{{ 7 ** (10 ** 8) }}` is worked out while it is compiled. What takes too much here ends this
process and nothing else; the next request starts another one.

    a line of JSON in:  {"source": …, "messages": …, "add_generation_prompt": …}
    a line of JSON out: {"text": …}, or {"error": …}
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from groundup.errors import TokenizerError

if TYPE_CHECKING:
    import jinja2

_SECONDS = 2.0
_MEMORY_BYTES = 1 << 30
# A text may be larger than its conversation by what the template says around it.
_MOST_CHARACTERS, _MOST_TIMES = 1 << 20, 16
_LONGEST_ERROR = 300
_TOO_MUCH = (
    f"the chat template takes more than {_SECONDS:g} s or {_MEMORY_BYTES >> 30} GiB for a "
    f"conversation: correct it, or take another one"
)


class TemplateProcess:
    """The process, started when it is first needed; safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, source: str, messages: Any, add_generation_prompt: bool) -> str:
        """What `render_here` gives, or raises, within the limits."""
        request = {"source": source, "messages": messages}
        line = json.dumps({**request, "add_generation_prompt": add_generation_prompt})
        with self._lock:
            process = self._started()
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(line.encode() + b"\n")
                process.stdin.flush()
                reply = process.stdout.readline()
            except OSError:
                reply = b""
            if not reply:
                self.end()
                raise TokenizerError(_TOO_MUCH)
        answer = json.loads(reply)
        if "error" in answer:
            raise TokenizerError(answer["error"])
        return str(answer["text"])

    def end(self) -> None:
        """End the process, if there is one."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        # A forked process must not talk through its parent's pipes.
        if self._process is None or self._owner != os.getpid():
            command = [sys.executable, "-P", "-m", __name__]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
            )
            self._owner = os.getpid()
            atexit.register(self.end)
        return self._process


PROCESS = TemplateProcess()


def render_here(source: str, messages: Sequence[Any] | None, add_generation_prompt: bool) -> str:
    """The text of a conversation, in this process; compiled only if there are no messages."""
    template = _compile(source)
    if messages is None:
        return ""
    try:
        return template.render(messages=messages, add_generation_prompt=add_generation_prompt)
    # A template can fail as any program can: a wrong type, an unknown name, its own refusal.
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise TokenizerError(
            f"the chat template does not render these {len(messages)} messages: {reason}"
        ) from None


@lru_cache(maxsize=8)
def _compile(source: str) -> jinja2.Template:
    import jinja2

    try:
        return _make_environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise TokenizerError(
            f"line {error.lineno} of the chat template does not compile: {error}"
        ) from None
    # Python compiles what Jinja makes of it, and has limits of its own.
    except Exception as error:
        raise TokenizerError(f"the chat template does not compile: {error}") from None


def _make_environment() -> jinja2.Environment:
    """What Hugging Face's templates expect to find, the clock apart."""
    import jinja2.ext
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks the assistant's text and renders as what is inside."""

        tags: set[str] = {"generation"}  # noqa: RUF012

        def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.filters["tojson"] = _to_json
    return environment


def _raise_exception(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    # Jinja's own filter escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _serve() -> None:
    import jinja2.ext
    import jinja2.sandbox  # noqa: F401 - before files cannot be written

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for kind, most in (("AS", _MEMORY_BYTES), ("CORE", 0), ("FSIZE", 0)):
        number = getattr(resource, f"RLIMIT_{kind}")
        resource.setrlimit(number, (most, resource.getrlimit(number)[1]))
    for line in sys.stdin.buffer:
        # At the end of this time the system ends the process, whatever it is doing.
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        try:
            text = render_here(**json.loads(line))
            if len(text) > max(_MOST_CHARACTERS, _MOST_TIMES * len(line)):
                raise TokenizerError(f"the chat template renders {len(text):,} characters")
            reply = json.dumps({"text": text})
        except Exception as error:
            reply = json.dumps({"error": str(error)[:_LONGEST_ERROR]})
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(reply.encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
