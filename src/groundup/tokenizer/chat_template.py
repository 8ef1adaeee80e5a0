"""A conversation as one text: messages through a Jinja template, the form that Hugging Face uses.

The template is data of the tokenizer, so whoever has the tokenizer renders the same text. It runs
in Jinja's sandbox and sees the messages, `add_generation_prompt` and nothing else: no clock, no
files. Any but our own runs in another process, see `template_process`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, cast

from groundup.errors import DataError
from groundup.tokenizer.formats.json_files import excerpt
from groundup.tokenizer.template_process import PROCESS, render_here

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
        self._run(None)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        """The text of a conversation; one that the template refuses is a TokenizerError.

        With `add_generation_prompt` it ends with what begins an assistant's turn.
        """
        return self._run(messages, add_generation_prompt)

    def _run(self, messages: Sequence[Message] | None, add_generation_prompt: bool = False) -> str:
        if self.source == CHATML:
            return render_here(self.source, messages, add_generation_prompt)
        return PROCESS.ask(self.source, messages, add_generation_prompt)


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
