"""Special ids that begin and end texts, and chat prompts. No torch."""

from dataclasses import dataclass, replace
from typing import Any

from groundup.errors import ConfigError, DataError, TokenizerError
from groundup.text_files import END_OF_TEXT
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.chat_template import ChatTemplate, check_messages

IMPORTED_KEY = "imported"
"""Key in environment.json of an imported run: its origin."""
SPECIAL_IDS_KEY = "special_ids"
"""Key of that entry, or of a saved run's environment.json: ids under Hugging Face's names."""


# A text that no template contains.
_ANSWER = "4b1d answer 9c7e"


@dataclass(frozen=True)
class SpecialIds:
    """A model's special ids; several may end a text."""

    begin: int | None = None
    ends: tuple[int, ...] = ()
    padding: int | None = None

    @property
    def end(self) -> int | None:
        return self.ends[0] if self.ends else None

    @classmethod
    def from_json(cls, value: dict[str, Any], tokenizer: Tokenizer) -> "SpecialIds":
        """Read Hugging Face's names; values that are no ids of the tokenizer are ignored."""
        stored = value.get("eos_token_id")
        ends = (
            known_id(id, tokenizer) for id in (stored if isinstance(stored, list) else [stored])
        )
        return cls(
            begin=known_id(value.get("bos_token_id"), tokenizer),
            ends=tuple(id for id in ends if id is not None),
            padding=known_id(value.get("pad_token_id"), tokenizer),
        )

    def to_json(self) -> dict[str, Any]:
        """Invert `from_json`; several ends are a list."""
        return {
            "bos_token_id": self.begin,
            "eos_token_id": list(self.ends) if len(self.ends) > 1 else self.end,
            "pad_token_id": self.padding,
        }


def find_special_ids(tokenizer: Tokenizer, environment: dict[str, Any]) -> SpecialIds:
    """Return the special ids recorded for an imported or saved run; other runs use the id that ends
    documents for begin, end and padding. Adds the id that ends a turn in the chat template.
    """
    imported = environment.get(IMPORTED_KEY)
    stored = (imported if isinstance(imported, dict) else environment).get(SPECIAL_IDS_KEY)
    if isinstance(stored, dict):
        found = SpecialIds.from_json(stored, tokenizer)
    else:
        end = known_id(environment.get("end_id"), tokenizer)
        if end is None:
            end = tokenizer.special_tokens.get(END_OF_TEXT)
        found = SpecialIds() if end is None else SpecialIds(begin=end, ends=(end,), padding=end)
    turn_end = find_turn_end(tokenizer)
    if turn_end is None or turn_end in found.ends:
        return found
    return replace(found, ends=(*found.ends, turn_end))


def known_id(id: Any, tokenizer: Tokenizer) -> int | None:
    return id if type(id) is int and id in tokenizer.vocab else None


def chat_prompt(tokenizer: Tokenizer, messages: Any) -> str:
    """Render the prompt for the assistant's next turn.

    messages: the turns so far, `{"role": …, "content": …}` each.
    """
    checked = check_messages(messages, "the conversation")
    if tokenizer.chat_template is None:
        raise ConfigError(
            "the model has no chat template, so it cannot chat: tune it on conversations with "
            "`groundup tune RUN chats.jsonl`"
        )
    contents = [message["content"] for message in checked]
    # Searching for each of a thousand special tokens takes longer than encoding.
    if _special_ids("\0".join(contents), tokenizer):
        for number, content in enumerate(contents, 1):
            if found := next((one for one in tokenizer.special_tokens if one in content), None):
                # The model would read it as the template's: a message could forge a turn.
                raise DataError(f"message {number} has the special token {found}: remove it")
    template = ChatTemplate(tokenizer.chat_template)
    prompt = template.render(checked, add_generation_prompt=True)
    # A template may cut messages, and so join the text around the cuts to special tokens.
    neutral = [
        {**message, "content": _ANSWER if message["content"].strip() else message["content"]}
        for message in checked
    ]
    expected = template.render(neutral, add_generation_prompt=True)  # type: ignore[arg-type]
    if _special_ids(prompt, tokenizer) != _special_ids(expected, tokenizer):
        raise DataError(
            "the chat template turns text of the messages into special tokens: change their text, "
            "or use another template"
        )
    return prompt


def _special_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    special = set(tokenizer.special_tokens.values())
    return [id for id in tokenizer.encode(text) if id in special]


def find_turn_end(tokenizer: Tokenizer) -> int | None:
    """Return the id of the special token that ends an assistant's turn, or None."""
    if tokenizer.chat_template is None:
        return None
    try:
        text = ChatTemplate(tokenizer.chat_template).render(
            [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
        )
    except TokenizerError:
        # `chat_prompt` reports it; continuing text does not need the template.
        return None
    _, found, rest = text.rpartition(_ANSWER)
    return next(iter(_special_ids(rest, tokenizer)), None) if found else None
