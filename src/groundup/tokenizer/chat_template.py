"""Chat templates: Jinja, in Hugging Face's form, rendering messages to one text.

The template is stored with the tokenizer, so every user of the tokenizer renders the same text. It
runs in Jinja's sandbox and sees only the messages and `add_generation_prompt`: no clock, no files.
Any template but the default one runs in a separate process; see `template_process`.
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
"""The default template: ChatML. A block tag swallows the newline after it (`trim_blocks`)."""

CHAT_TOKENS = ("<|im_start|>", "<|im_end|>")
"""The special tokens that the default template needs."""


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template. Raises TokenizerError if the source does not compile."""

    source: str

    def __post_init__(self) -> None:
        self._run(None)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        """Render a conversation; with `add_generation_prompt`, end with the assistant's header.

        Raises TokenizerError if the template rejects the messages.
        """
        return self._run(messages, add_generation_prompt)

    def _run(self, messages: Sequence[Message] | None, add_generation_prompt: bool = False) -> str:
        if self.source == CHATML:
            return render_here(self.source, messages, add_generation_prompt)
        return PROCESS.ask(self.source, messages, add_generation_prompt)


def check_messages(messages: Any, where: str) -> list[Message]:
    """Return the messages reduced to role and content; raise DataError for an invalid conversation.

    Content may be OpenAI's list of parts if every part is text. `where` locates the messages in
    errors, such as "line 3 of chats.jsonl".
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise DataError(
            f"messages in {where} is {excerpt(messages)}; it needs at least one: {_FORM}, …]"
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
                    f"{_FORM}, …] with text content and one of the roles {', '.join(ROLES)}"
                )
        checked.append({"role": cast(Role, role), "content": cast(str, content)})
    return checked


def _is_text_part(part: Any) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )
