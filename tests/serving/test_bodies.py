"""Request bodies: parts are counted exactly, and nothing hostile costs much time or memory."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.serving import bodies
from groundup.serving.api_errors import ApiError
from groundup.serving.bodies import MAX_ELEMENTS, MAX_STRUCTURES, parse_body
from groundup.serving.protocol import CompletionRequest
from groundup.serving.views import TokenizeRequest


def listed(element: str, count: int, rest: str = "1") -> bytes:
    return f'{{"prompt": [{(element + ",") * count}{rest}]}}'.encode()


def named(count: int) -> bytes:
    return b"{" + b", ".join(b'"%d": ""' % number for number in range(count)) + b"}"


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


@given(value=JSON_VALUES, in_ascii=st.booleans())
def test_parts_are_counted_outside_of_strings(value: Any, in_ascii: bool) -> None:
    body = json.dumps(value, ensure_ascii=in_ascii).encode()
    with pytest.MonkeyPatch.context() as patch:
        # Nothing is so small that an upper bound is enough.
        patch.setattr(bodies, "MAX_ELEMENTS", -1)
        assert bodies._count_parts(body) == count_parts(value)


@pytest.mark.parametrize("model", [CompletionRequest, TokenizeRequest])
@pytest.mark.parametrize(
    ("body", "has_too_many_elements"),
    [
        (listed('"a"', 1, "1," * MAX_ELEMENTS + "1"), True),
        (listed("[]", MAX_STRUCTURES), True),
        (b'{"prompt": ' + b"[" * 400_000, True),
        (named(MAX_STRUCTURES + 1), True),
        (b"{" + b'"prompt": 1, ' * MAX_STRUCTURES + b'"prompt": 1}', True),
        # Quotes in strings do not hide what is outside.
        (b'["\\\\", ' + b"[]," * MAX_STRUCTURES + b'"\\""]', True),
        (b'["\\"", ' + b"[]," * MAX_STRUCTURES + b'"\\\\"]', True),
        (listed('"a"', 1, "1," * 90_000 + "1"), False),
        (listed("[1, null]", 9_000), False),
        (b'{"prompt": %s}' % (b"[" * 900 + b"]" * 900), False),
        (b'{"stream_options": %s}' % named(9_000), False),
        ('{"prompt": "a", "n": 0}'.encode("utf-16"), False),
    ],
)
def test_a_hostile_body_is_refused_in_little_memory(
    model: Any, body: bytes, has_too_many_elements: bool
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as caught:
            parse_body(body, model)
        assert tracemalloc.get_traced_memory()[1] < 100 * len(body) + 100_000
    finally:
        tracemalloc.stop()
    assert ("too many elements" in caught.value.message) == has_too_many_elements
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "text", [',[{:"\\' * 150_000, '"' * 400_000, "\\" * 400_000, "雨" * 300_000]
)
def test_marks_in_a_long_text_are_no_parts(text: str) -> None:
    body = json.dumps({"prompt": text}, ensure_ascii=False).encode()
    assert parse_body(body, CompletionRequest).prompt == text
