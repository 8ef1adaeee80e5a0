"""AutoTokenizer on an export gives our ids and our text, however hard the text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from groundup.interop import export_huggingface
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.patterns import find_pattern
from groundup.tokenizer.training import train_tokenizer

transformers = pytest.importorskip("transformers")

END = "<|endoftext|>"
HARD_PIECES = st.sampled_from(
    [
        *(END, "<|", "|>", "<|pad|>", "'s", "'LL", "don't", "ĠĊ", "\x00", "1234567", "١٢٣"),
        *(" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u200d", "…"),
        *("naïve", "e\u0301", "日本語", "\U0001f3f4\u200d\u2620\ufe0f"),
    ]
)
HARD_TEXT = st.lists(HARD_PIECES | st.text(max_size=8), max_size=12).map("".join)

TEXT = "Ada had a red kite. Ben lost the old drum. Who found the new boat? It's Eve's! " * 8

Pair = tuple[Any, Tokenizer]


@pytest.fixture(scope="module", params=["gpt2", "llama3", "cl100k", "o200k", "qwen2", "deepseek"])
def pair(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    write_run: Callable[..., Path],
) -> Pair:
    """Their tokenizer of an export and ours."""
    folder = tmp_path_factory.mktemp(request.param)
    ours, _ = train_tokenizer(
        [TEXT.encode()], 300, [END, "<|pad|>"], pattern=find_pattern(request.param)
    )
    export_huggingface(write_run(folder / "runs", ours), folder / "out")
    return transformers.AutoTokenizer.from_pretrained(folder / "out", local_files_only=True), ours


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=HARD_TEXT, any_ids=st.lists(st.integers(0, 299), max_size=20))
def test_ids_and_texts_are_ours(pair: Pair, text: str, any_ids: list[int]) -> None:
    theirs, ours = pair
    ids = ours.encode(text)
    assert theirs(text)["input_ids"] == ids
    assert theirs.decode(ids) == text
    assert theirs.decode(any_ids) == ours.decode(any_ids)


def test_its_limits_and_roles_are_told(pair: Pair) -> None:
    theirs, ours = pair
    assert theirs.model_max_length == 32
    assert theirs.eos_token == theirs.bos_token == theirs.pad_token == END
    assert theirs.eos_token_id == ours.special_tokens[END]
    assert len(theirs) == ours.vocab_size
