"""A conversation as one text: messages through a Jinja template, the form that Hugging Face uses.

The template is data of the tokenizer, so whoever has the tokenizer renders the same text. It runs
in Jinja's sandbox and sees the messages, `add_generation_prompt` and nothing else: no clock, no
files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypedDict, cast

from groundup.errors import DataError, TokenizerError
from groundup.tokenizer.formats.json_files import excerpt

if TYPE_CHECKING:
    import jinja2

Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant")
_FORM = '[{"role": …, "content": …}'


class Message(TypedDict):
    """One turn of a conversation."""

    role: Role
    content: str


CHATML = """\
{% for message in messages %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""
"""The default template: ChatML. Blocks take their line ends with them."""

CHAT_TOKENS = ("<|im_start|>", "<|im_end|>")
"""The special tokens that the default template needs."""


@dataclass(frozen=True)
class ChatTemplate:
    """A template in Jinja; a source that does not compile is a TokenizerError."""

    source: str

    def __post_init__(self) -> None:
        _compile(self.source)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        """The text of a conversation; one that the template refuses is a TokenizerError.

        With `add_generation_prompt` it ends with what begins an assistant's turn.
        """
        try:
            return _compile(self.source).render(
                messages=messages, add_generation_prompt=add_generation_prompt
            )
        # A template can fail as any program can: a wrong type, an unknown name, its own refusal.
        except Exception as error:
            raise TokenizerError(
                f"the chat template does not render these {len(messages)} messages: {error}"
            ) from None


def check_messages(messages: Any, where: str) -> list[Message]:
    """The messages with role and content alone; what is not a conversation is a DataError.

    Content may also come as OpenAI's list of parts, if all of them are text. `where` is their place
    for an error, such as "line 3 of chats.jsonl".
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise DataError(
            f"messages in {where} is {excerpt(messages)}; it must have at least one: {_FORM}, …]"
        )
    checked: list[Message] = []
    for number, message in enumerate(messages, start=1):
        fields = message if isinstance(message, dict) else {"role": message}
        role, content = fields.get("role"), fields.get("content")
        if isinstance(content, list) and all(map(_is_text_part, content)):
            content = "".join(part["text"] for part in content)
        for name, value, fits in (
            ("role", role, role in ROLES),
            ("content", content, isinstance(content, str)),
        ):
            if not fits:
                raise DataError(
                    f"{name} is {excerpt(value)} in message {number} of {where}; messages are "
                    f"{_FORM}, …] with a role of {', '.join(ROLES)}, and text"
                )
        checked.append({"role": cast(Role, role), "content": cast(str, content)})
    return checked


def _is_text_part(part: Any) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )


@lru_cache(maxsize=8)
def _compile(source: str) -> jinja2.Template:
    import jinja2

    try:
        return _make_environment().from_string(source)
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None)
        raise TokenizerError(
            f"line {line} of the chat template does not compile: {error}"
        ) from None


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
