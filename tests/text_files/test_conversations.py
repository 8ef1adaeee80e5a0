"""Conversations are recognized in records of all common shapes, and in nothing else."""

from typing import Any

import pytest

from groundup.text_files.records import find_turns

QUESTION, ANSWER = "Who has it?", "The mouse."
PAIR = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
SYSTEM = {"role": "system", "content": "Be kind."}
OPENAI = {"messages": [SYSTEM, *PAIR]}
SHAREGPT = [{"from": "human", "value": QUESTION}, {"from": "GPT", "value": ANSWER}]
# Content in parts, some of them no text, and ChatGPT's export with an empty message.
PARTS = [
    {**turn, "content": [{"type": "text", "text": turn["content"]}, {"type": "image"}]}
    for turn in PAIR
]
NODES = [None, {"author": {"role": "system"}, "content": {"parts": [""]}}]
NODES += [
    {"author": {"role": turn["role"]}, "content": {"parts": [turn["content"]]}} for turn in PAIR
]
EXPORT = {"title": "t", "mapping": {str(n): {"message": node} for n, node in enumerate(NODES)}}
ALPACA = {"instruction": "Who has", "input": "it?", "output": ANSWER}


@pytest.mark.parametrize(
    ("record", "turns"),
    [
        (OPENAI, [SYSTEM, *PAIR]),
        (PAIR, PAIR),
        ({"messages": PARTS}, PAIR),
        (EXPORT, PAIR),
        ({"id": 3, "conversations": SHAREGPT, "system": "Be kind."}, [SYSTEM, *PAIR]),
        ({"conversations": [*SHAREGPT, SHAREGPT[0]]}, PAIR),
        (ALPACA, [{"role": "user", "content": "Who has\n\nit?"}, PAIR[1]]),
        ({**ALPACA, "instruction": QUESTION, "input": ""}, PAIR),
        ({"prompt": QUESTION, "completion": ANSWER}, PAIR),
        ({"Question ": QUESTION, "Answer": ANSWER}, PAIR),
        ({"input": QUESTION, "output": ANSWER}, PAIR),
        ({"prompt": PAIR[:1], "completion": PAIR[1:]}, PAIR),
        (
            {"question": 3, "answer": None},
            [{**PAIR[0], "content": 3}, {**PAIR[1], "content": None}],
        ),
        ({"messages": [3, {"role": 4}]}, [3, {"role": 4, "content": None}]),
    ],
)
def test_turns_are_found_in_every_shape(record: Any, turns: list[Any]) -> None:
    assert find_turns(record) == turns


@pytest.mark.parametrize(
    "record", [{}, {"text": "x"}, {"prompt": "x"}, {"messages": "x"}, {"answer": "x"}, [1], 3, None]
)
def test_other_records_are_not_conversations(record: Any) -> None:
    assert find_turns(record) is None
