"""Every tokenizer on every text: how much text a token holds, and how fast it is encoded."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from groundup.tokenizer import Tokenizer

# The Pile: a corpus whose encoding time makes a rate easy to picture.
LARGE_CORPUS_BYTES = 825 * 10**9

_NUM_PASSES = 3
# Some clocks stand still for as long.
_SHORTEST_SECONDS = 1e-6


@dataclass(frozen=True)
class TokenizerResult:
    """One tokenizer on one text."""

    text: str
    tokenizer: str
    vocab_size: int
    num_bytes: int
    num_tokens: int
    bytes_per_token: float
    tokens_per_second: float
    """Best of several passes; the encoder has seen the words before."""
    corpus_seconds: float
    """Time for a corpus of the size asked for, at the speed of the first pass."""


def compare_tokenizers(
    tokenizers: Mapping[str, Tokenizer],
    texts: Mapping[str, Sequence[str]],
    *,
    corpus_bytes: float = LARGE_CORPUS_BYTES,
    num_threads: int | None = None,
) -> list[TokenizerResult]:
    """Encode each text with each tokenizer; texts are lists of documents."""
    results = []
    for text, documents in texts.items():
        num_bytes = sum(len(document.encode()) for document in documents)
        for name, tokenizer in tokenizers.items():
            seconds = []
            for _ in range(_NUM_PASSES):
                begin = time.perf_counter()
                ids, _ = tokenizer.encode_batch(documents, num_threads=num_threads)
                seconds.append(max(time.perf_counter() - begin, _SHORTEST_SECONDS))
            results.append(
                TokenizerResult(
                    text=text,
                    tokenizer=name,
                    vocab_size=len(tokenizer.vocab),
                    num_bytes=num_bytes,
                    num_tokens=len(ids),
                    bytes_per_token=num_bytes / max(1, len(ids)),
                    tokens_per_second=len(ids) / min(seconds),
                    corpus_seconds=corpus_bytes * seconds[0] / max(1, num_bytes),
                )
            )
    return results
