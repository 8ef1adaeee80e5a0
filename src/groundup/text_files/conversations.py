"""Conversations in records, in the shapes that data sets have them."""

from collections.abc import Mapping
from typing import Any

SHAPES = (
    "messages (role and content), conversations (from and value), instruction, input and output, "
    "or a pair such as prompt and completion, question and answer, or input and output"
)
"""For errors."""

_LISTS = ("messages", "conversations", "conversation", "dialogue", "dialog")
_ROLES = {
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bot", "model"), "assistant"),
}
_QUESTIONS = ("prompt", "instruction", "question", "query", "input", "user", "human")
_ANSWERS = ("completion", "response", "output", "answer", "reply", "assistant", "gpt")
# What a question may be about.
_CONTEXTS = ("input", "context")


def find_turns(record: Any) -> list[Any] | None:
    """The turns of a conversation, each with role and content; None where there is none.

    Only the shape is looked at: a turn may have an odd role, or a number for its content. A last
    turn of the user, whom nobody answers, is left out.
    """
    if isinstance(record, list) and all(isinstance(one, Mapping) for one in record):
        record = {"messages": record}
    if not isinstance(record, Mapping):
        return None
    fields = {str(name).strip().lower(): value for name, value in record.items()}
    turns: list[Any] = []
    if listed := next((name for name in _LISTS if isinstance(fields.get(name), list)), None):
        turns = [_turn(one) for one in fields[listed]]
    else:
        question = next((name for name in _QUESTIONS if name in fields), None)
        answer = next((name for name in _ANSWERS if name in fields), None)
        if question is None or answer is None:
            return None
        asked, about = fields[question], [fields.get(one) for one in _CONTEXTS if one != question]
        if isinstance(asked, str):
            asked = "\n\n".join([asked, *(one for one in about if one and isinstance(one, str))])
        for role, value in (("user", asked), ("assistant", fields[answer])):
            turns += value if isinstance(value, list) else [{"role": role, "content": value}]
    system = fields.get("system") or fields.get("system_prompt")
    if system and isinstance(system, str):
        turns.insert(0, {"role": "system", "content": system})
    if len(turns) > 1 and isinstance(turns[-1], Mapping) and turns[-1].get("role") == "user":
        turns.pop()
    return turns


def text_of_turns(turns: list[Any]) -> str:
    """A conversation as plain text: who speaks and what they say, a paragraph for each turn."""
    said = (
        one for one in turns if isinstance(one, Mapping) and isinstance(one.get("content"), str)
    )
    return "\n\n".join(f"{str(one.get('role')).capitalize()}: {one['content']}" for one in said)


def _turn(turn: Any) -> Any:
    if not isinstance(turn, Mapping):
        return turn
    role = turn.get("role", turn.get("from"))
    if isinstance(role, str):
        role = _ROLES.get(role.lower(), role.lower())
    return {"role": role, "content": turn.get("content", turn.get("value"))}
