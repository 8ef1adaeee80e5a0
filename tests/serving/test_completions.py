"""What a completion request may ask for, and how it is told that it may not."""

import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from groundup.generation import LanguageModel
from groundup.serving.protocol import CompletionRequest


def talk(*contents: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for content in contents]}


MISTAKES: list[tuple[Any, str | None]] = [
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    (b'{"temperature": NaN}', "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": 0}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"repetition_penalty": 101}, "repetition_penalty"),
    ({"n": 0}, "n"),
    ({"n": 10**30}, "n"),
    ({"prompt": ["a"] * 9, "n": 2}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"prompt": "a" * 65}, "prompt"),
    ({"prompt": [1] * 65}, "prompt"),
    ({"prompt": [1, 304]}, "prompt"),
    ({"prompt": [10**40]}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"logprobs": 21}, "logprobs"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": "a" * 1001}, "stop"),
    ({"seed": 2**63}, "seed"),
    ({"stream": "yes"}, "stream"),
    ({"stream": True, "stream_options": {"include_more": True}}, "stream_options"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"suffix": "end"}, "suffix"),
    ({"echo": True}, "echo"),
    ({"best_of": 3, "n": 2}, "best_of"),
    ({"tempreature": 1}, "tempreature"),
    (b'{"\xc3\xa9": 1}', "\\xe9"),
    (b'{"prompt": "\\ud800"}', None),
    (b'{"model\\ud800": 1}', None),
    (b"", None),
    (b'{"prompt": "a"', None),
    (b"\xff\xfe{}", None),
    (b'{"max_tokens": ' + b"9" * 5000 + b"}", None),
    (b"[" * 5_000, None),
    (talk(), "messages"),
    (talk("x", role="tool"), "messages"),
    (talk(7), "messages"),
    (talk("a b " * 40), "messages"),
    (talk("hi<|im_end|>"), "messages"),
    (talk("x") | {"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
    (talk("x") | {"max_completion_tokens": 0}, "max_completion_tokens"),
    (talk("x") | {"top_logprobs": 2}, "top_logprobs"),
    (talk("x") | {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (talk("x") | {"logprobs": 3}, "logprobs"),
    (talk("x") | {"tools": [{}]}, "tools"),
    (talk("x") | {"response_format": {"type": "json_object"}}, "response_format"),
    (talk("x") | {"prompt": "x"}, "prompt"),
]


@pytest.mark.parametrize(("body", "param"), MISTAKES)
def test_what_is_not_possible_is_refused_by_name(
    chatting: Any, body: Any, param: str | None
) -> None:
    is_chat = isinstance(body, dict) and "messages" in body
    answer = chatting.complete(body, "/v1/chat/completions" if is_chat else "/v1/completions")
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert len(error["message"]) < 300


VALUES = st.none() | st.booleans() | st.integers(-5, 70) | st.floats() | st.text(max_size=3)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        name: VALUES | st.lists(VALUES, max_size=3) for name in CompletionRequest.model_fields
    },
)


@hypothesis.given(body=BODIES)
@hypothesis.settings(max_examples=60, deadline=None)
def test_no_body_makes_the_server_fail(running: Any, body: dict[str, Any]) -> None:
    assert running.complete({**body, "model": "tiny"}).status_code in (200, 400)


def test_what_clients_send_without_meaning_anything_is_taken(running: Any) -> None:
    empty = {"user": "someone", "best_of": 1, "suffix": "", "presence_penalty": 0}
    empty |= {"logit_bias": {}, "stream_options": None, "temperature": None, "max_tokens": None}
    answer = running.complete({"model": "tiny", "prompt": "a", **empty})
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] <= 16


def test_our_own_options_reach_the_engine(running: Any, language_model: LanguageModel) -> None:
    options: Any = {"top_k": 5, "min_p": 0.02, "repetition_penalty": 1.3, "temperature": 1.5}
    body = {"prompt": "the cat", "max_tokens": 30, "seed": 4}
    text = running.complete({**body, **options}).json()["choices"][0]["text"]
    assert text == language_model.generate("the cat", max_tokens=30, seed=4, **options)
    assert text != running.complete(body).json()["choices"][0]["text"]


def test_a_seed_is_drawn_and_told_where_none_is_given(running: Any) -> None:
    body = {"prompt": "the", "max_tokens": 20}
    first, second = (running.complete(body).json() for _ in range(2))
    assert first["seed"] != second["seed"]
    again = running.complete({**body, "seed": first["seed"]}).json()
    assert again["choices"] == first["choices"]
    assert running.complete({**body, "seed": -5}).json()["seed"] == -5


def test_events_are_framed_as_the_standard_says(running: Any) -> None:
    body = {"prompt": "the", "max_tokens": 5, "stream": True}
    answer = running.complete(body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    *events, done, rest = answer.content.split(b"\n\n")
    assert done == b"data: [DONE]" and rest == b""
    for event in events:
        assert event.startswith(b"data: {") and b"\n" not in event and event.isascii()
        json.loads(event[6:])
