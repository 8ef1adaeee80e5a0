"""A conversation as a prompt, and where an answer to it ends: the tokenizer's template tells both.

What continues the prompt is the same as for any text. No torch.
"""

from __future__ import annotations

from typing import Any

from groundup.errors import ConfigError, DataError, TokenizerError
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.chat_template import ChatTemplate, check_messages

# A text that no template has of its own.
_ANSWER = "4b1d answer 9c7e"


def chat_prompt(tokenizer: Tokenizer, messages: Any) -> str:
    """The text whose continuation is the assistant's next turn.

    messages: the turns so far, `{"role": …, "content": …}` each.
    """
    checked = check_messages(messages, "the conversation")
    if tokenizer.chat_template is None:
        raise ConfigError(
            "the model has no chat template, so it knows no turns: tune it on conversations with "
            "`groundup tune RUN chats.jsonl`"
        )
    for number, message in enumerate(checked, 1):
        found = next((one for one in tokenizer.special_tokens if one in message["content"]), None)
        if found is not None:
            # It would be read as the template's own, and begin a turn that nobody took.
            raise DataError(f"message {number} holds the special token {found}: take it out")
    return ChatTemplate(tokenizer.chat_template).render(checked, add_generation_prompt=True)


def find_turn_end(tokenizer: Tokenizer) -> int | None:
    """The id of the special token that ends an assistant's turn, if there is one."""
    if tokenizer.chat_template is None:
        return None
    try:
        text = ChatTemplate(tokenizer.chat_template).render(
            [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
        )
    except TokenizerError:
        # It is told when somebody chats; the model continues texts without it.
        return None
    _, found, rest = text.rpartition(_ANSWER)
    special = set(tokenizer.special_tokens.values())
    ids = tokenizer.encode(rest) if found else []
    return next((id for id in ids if id in special), None)
