"""Published tokenizers give the same ids as their own libraries on real text."""

import base64
import lzma
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import CL100K_IN_TIKTOKEN, tiktoken_of

from groundup.tokenizer import Tokenizer

# The other libraries take most of half a minute.
pytestmark = pytest.mark.slow

CORPORA = ("stories", "web", "multilingual", "code")
RANKS = {
    "r50k_base.tiktoken": "gpt2",
    "p50k_base.tiktoken": "gpt2",
    "cl100k_base.tiktoken": "cl100k",
    "o200k_base.tiktoken": "o200k",
    "llama3_tokenizer.model": "llama3",
    "qwen.tiktoken": "qwen2",
}
END = "<|endoftext|>"
SLICE_BYTES = 200_000


@cache
def read_slice(packed: Path, size: int) -> str:
    """Read text near the start of a corpus, without unpacking the rest."""
    with lzma.open(packed) as file:
        file.read(200_001)
        return file.read(size).decode("utf-8", "ignore")


@pytest.fixture(params=CORPORA)
def corpus(request: pytest.FixtureRequest, shared_data: Path) -> Callable[[int], str]:
    packed = shared_data / f"{request.param}.txt.xz"
    if not packed.is_file():
        pytest.skip(f"no {packed.name} in ../shared/data")
    return lambda size: read_slice(packed, size)


@cache
def load_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.load(path)


@cache
def load_oracle(path: Path) -> Any:
    tokenizer = load_tokenizer(path)
    pairs = (line.split() for line in path.read_bytes().splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    is_cl100k = tokenizer.pattern.name == "cl100k"
    expression = CL100K_IN_TIKTOKEN if is_cl100k else tokenizer.pattern.stages[0]
    return tiktoken_of(ranks, tokenizer.special_tokens, expression)


def edges_of_documents(text: str) -> Iterator[str]:
    """Starts and ends of texts, where patterns split differently than inside."""
    for document in text.split(END)[:300]:
        yield document[:150]
        yield document[-150:]
        yield document.rstrip()[-100:] + " "


@pytest.mark.parametrize("name", RANKS)
def test_real_text_has_the_ids_of_tiktoken(
    name: str, corpus: Callable[[int], str], unpack: Callable[[str], Path]
) -> None:
    path = unpack(f"tokenizers/{name}")
    tokenizer, oracle = load_tokenizer(path), load_oracle(path)
    assert tokenizer.pattern.name == RANKS[name]
    assert tokenizer.vocab_size == oracle.n_vocab
    text = corpus(SLICE_BYTES)
    expected = np.array(oracle.encode(text, allowed_special={END}))
    assert np.array_equal(tokenizer.encode_to_numpy(text), expected)
    assert tokenizer.decode(expected) == text
    texts = list(edges_of_documents(text))
    ids, offsets = tokenizer.encode_batch(texts, 2)
    for place, ids_of_text in enumerate(oracle.encode_ordinary_batch(texts, num_threads=1)):
        assert ids[offsets[place] : offsets[place + 1]].tolist() == ids_of_text


@pytest.mark.parametrize(
    ("name", "size"), [("gpt2_hf_tokenizer.json", 200_000), ("deepseek_tokenizer.json", 50_000)]
)
def test_real_text_has_the_ids_of_tokenizers(
    name: str, size: int, corpus: Callable[[int], str], unpack: Callable[[str], Path]
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = unpack(f"tokenizers/{name}")
    tokenizer = load_tokenizer(path)
    oracle = tokenizers.Tokenizer.from_file(str(path))
    text = corpus(SLICE_BYTES)[:size]
    ids = oracle.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text) == ids
    for edge in list(edges_of_documents(text))[:200]:
        assert tokenizer.encode(edge) == oracle.encode(edge, add_special_tokens=False).ids
