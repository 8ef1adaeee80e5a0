"""Request bodies of the maximum size cost little memory, whatever they contain."""

import tracemalloc
from typing import Any

import pytest

from groundup.serving.api_errors import ApiError
from groundup.serving.protocol import ChatRequest, CompletionRequest, parse_body
from groundup.serving.settings import ServerSettings
from groundup.serving.views import TokenizeRequest

SIZE = ServerSettings().max_body_bytes


@pytest.mark.parametrize("model", [CompletionRequest, ChatRequest, TokenizeRequest])
@pytest.mark.parametrize(
    ("before", "element", "after"),
    [
        ('{"prompt": ["a", ', "1,", "1]}"),
        ('{"prompt": [', "[],", "[]]}"),
        ('{"prompt": ', "[", ""),
        ('{"messages": [', "{},", "{}]}"),
        ('{"n": 0, "metadata": {"": [', '{"a":1},', "1]}}"),
        ("{", '"prompt": 1, ', '"prompt": 1}'),
        ('{"stop": "', "雨", '"}'),
    ],
)
def test_malicious_bodies_are_rejected_in_little_memory(
    model: Any, before: str, element: str, after: str
) -> None:
    count = (SIZE - len(before + after)) // len(element.encode())
    body = (before + element * count + after).encode()
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as caught:
            parse_body(body, model)
        assert tracemalloc.get_traced_memory()[1] < 64 * SIZE
    finally:
        tracemalloc.stop()
    assert caught.value.status == 400 and len(caught.value.message) < 300
