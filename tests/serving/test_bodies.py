"""What a body may cost before anyone looks at what it says."""

import json
import tracemalloc
from typing import Any

import pytest
from fastapi import HTTPException
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from groundup.serving import bodies
from groundup.serving.bodies import MAX_ELEMENTS, MAX_STRUCTURES, read_json
from groundup.serving.protocol import CompletionRequest
from groundup.serving.tokenizer_view import TokenizeRequest


def listed(element: str, count: int, rest: str = "1") -> bytes:
    return f'{{"prompt": [{(element + ",") * count}{rest}]}}'.encode()


def named(count: int) -> str:
    return "{" + ", ".join(f'"{number}": ""' for number in range(count)) + "}"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('",:[]{}\\a雨🙂\n', max_size=8),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('",:\\a', max_size=3), inner),
)


def count_parts(value: Any) -> tuple[int, int]:
    """Commas, and brackets with colons."""
    if not isinstance(value, list | dict):
        return 0, 0
    inner = [count_parts(one) for one in (value.values() if isinstance(value, dict) else value)]
    num_names = len(value) if isinstance(value, dict) else 0
    return (
        max(0, len(value) - 1) + sum(commas for commas, _ in inner),
        1 + num_names + sum(structures for _, structures in inner),
    )


@settings(max_examples=50)
@given(value=JSON_VALUES, in_ascii=st.booleans())
def test_parts_are_counted_outside_of_strings(value: Any, in_ascii: bool) -> None:
    body = json.dumps(value, ensure_ascii=in_ascii).encode()
    assert read_json(body) == value
    with pytest.MonkeyPatch.context() as patch:
        # Nothing is so small that it need not be looked at closely.
        patch.setattr(bodies, "MAX_ELEMENTS", -1)
        assert bodies._count_parts(body) == count_parts(value)


@pytest.mark.parametrize(
    "body",
    [
        listed('"a"', 1, "1," * MAX_ELEMENTS + "1"),
        listed("null", MAX_ELEMENTS + 1),
        listed("[]", MAX_STRUCTURES),
        listed("{}", MAX_STRUCTURES),
        listed('"ab"', 190_000),
        b'{"prompt": ' + b"[" * 400_000,
        named(MAX_STRUCTURES + 1).encode(),
        b'{"logit_bias": %s}' % named(MAX_STRUCTURES).encode(),
        b"{" + b'"prompt": 1, ' * MAX_STRUCTURES + b'"prompt": 1}',
        # Quotes in strings do not hide what is outside.
        b'["\\\\", ' + b"[]," * MAX_STRUCTURES + b'"\\""]',
        b'["\\"", ' + b"[]," * MAX_STRUCTURES + b'"\\\\"]',
    ],
)
def test_too_many_parts_are_refused_before_one_is_made(body: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(HTTPException, match="too many parts"):
            read_json(body)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(body) + 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "text", [',[{:"\\' * 150_000, '"' * 400_000, "\\" * 400_000, "雨" * 300_000]
)
def test_marks_in_a_long_text_are_no_parts(text: str) -> None:
    body = json.dumps({"prompt": text}, ensure_ascii=False).encode()
    assert read_json(body) == {"prompt": text}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_only_utf_8_is_read(encoding: str) -> None:
    # In another the marks would be others.
    with pytest.raises((HTTPException, json.JSONDecodeError)):
        read_json('{"prompt": "a"}'.encode(encoding))


@pytest.mark.parametrize("model", [CompletionRequest, TokenizeRequest])
@pytest.mark.parametrize(
    "body",
    [
        listed('"a"', 1, "1," * 90_000 + "1"),
        listed("null", 90_000),
        listed("[]", 9_000),
        listed("[1, null]", 9_000),
        listed("1e999", 90_000),
        listed("1", 90_000, '"a"'),
        b'{"prompt": %s}' % (b"[" * 900 + b"]" * 900),
        b'{"stop": [%s1]}' % (b"1," * 90_000),
        b'{"logit_bias": %s}' % named(9_000).encode(),
        b'{"stream_options": %s}' % named(9_000).encode(),
        named(9_000).encode(),
    ],
)
def test_of_many_mistakes_a_few_are_told(model: Any, body: bytes) -> None:
    value = read_json(body)
    tracemalloc.start()
    try:
        with pytest.raises(ValidationError) as caught:
            model.model_validate(value)
        assert caught.value.error_count() < 10
        assert tracemalloc.get_traced_memory()[1] < 5 * len(body) + 100_000
    finally:
        tracemalloc.stop()


def test_every_route_with_a_body_reads_it_so(running: Any) -> None:
    paths = running.get("/openapi.json").json()["paths"]
    taking = [path for path, methods in paths.items() if "requestBody" in methods.get("post", {})]
    assert {"/v1/completions", "/api/tokenize"} <= set(taking)
    for path in taking:
        headers = {"content-type": "application/json"}
        body = listed("[]", MAX_STRUCTURES)
        answer = running.post(path, content=body, headers=headers)
        assert answer.status_code == 400 and "too many parts" in answer.text
