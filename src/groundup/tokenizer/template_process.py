"""Renders untrusted chat templates in a subprocess with limited time and memory.

Jinja's sandbox keeps a template away from files and Python internals, but does not bound its work:
`{{ 7 ** (10 ** 8) }}` is evaluated at compile time. A template that exceeds the limits kills only
this subprocess; the next request starts a new one.

    request, a line of JSON:  {"source": …, "messages": …, "add_generation_prompt": …}
    response, a line of JSON: {"text": …}, or {"error": …}
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
# Limit on the rendered text: 2^20 characters, or 16 times the size of the request if that is more.
_MAX_CHARACTERS, _MAX_EXPANSION = 1 << 20, 16
_MAX_ERROR_CHARACTERS = 300
_LIMIT_EXCEEDED = (
    f"the chat template takes more than {_SECONDS:g} s or {_MEMORY_BYTES >> 30} GiB for one "
    f"conversation: fix it, or use another one"
)


class TemplateProcess:
    """The subprocess, started on first use. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, source: str, messages: Any, add_generation_prompt: bool) -> str:
        """Call `render_here` in the subprocess."""
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
                raise TokenizerError(_LIMIT_EXCEEDED)
        answer = json.loads(reply)
        if "error" in answer:
            raise TokenizerError(answer["error"])
        return str(answer["text"])

    def end(self) -> None:
        """Kill the subprocess, if one is running."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        # A forked process must not use its parent's pipes.
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
    """Render a conversation in this process; with messages=None, only compile the template."""
    template = _compile(source)
    if messages is None:
        return ""
    try:
        return template.render(messages=messages, add_generation_prompt=add_generation_prompt)
    # A template can fail like any program: a wrong type, an undefined name, raise_exception().
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise TokenizerError(
            f"the chat template cannot render these {len(messages)} messages: {reason}"
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
    # Python compiles the code that Jinja generates, and may reject it.
    except Exception as error:
        raise TokenizerError(f"the chat template does not compile: {error}") from None


def _make_environment() -> jinja2.Environment:
    """The environment that Hugging Face's templates expect, without access to the time."""
    import jinja2.ext
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks the assistant's text; it renders as its content."""

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
    import jinja2.sandbox  # noqa: F401 - before RLIMIT_FSIZE forbids writing .pyc files

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for kind, limit in (("AS", _MEMORY_BYTES), ("CORE", 0), ("FSIZE", 0)):
        number = getattr(resource, f"RLIMIT_{kind}")
        resource.setrlimit(number, (limit, resource.getrlimit(number)[1]))
    for line in sys.stdin.buffer:
        # After this much CPU time SIGPROF kills the process, whatever it is doing.
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        try:
            text = render_here(**json.loads(line))
            if len(text) > max(_MAX_CHARACTERS, _MAX_EXPANSION * len(line)):
                raise TokenizerError(f"the chat template renders {len(text):,} characters; fix it")
            reply = json.dumps({"text": text})
        except Exception as error:
            reply = json.dumps({"error": str(error)[:_MAX_ERROR_CHARACTERS]})
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(reply.encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
