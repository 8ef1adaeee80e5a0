"""Every tokenizer on every text: how much text a token holds, and how fast it is encoded."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from groundup.text_files import DocumentBatch
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.training import bytes_per_token

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
    texts: Mapping[str, Sequence[DocumentBatch]],
    corpus_bytes: float,
    num_threads: int | None = None,
) -> list[TokenizerResult]:
    """Encode the documents of each text with each tokenizer."""
    results = []
    for text, batches in texts.items():
        num_bytes = sum(int((one.bounds[:, 1] - one.bounds[:, 0]).sum()) for one in batches)
        for name, tokenizer in tokenizers.items():
            seconds = []
            for _ in range(_NUM_PASSES):
                begin = time.perf_counter()
                encoded = [
                    tokenizer.encode_documents(one.data, one.bounds, num_threads)[0]
                    for one in batches
                ]
                seconds.append(max(time.perf_counter() - begin, _SHORTEST_SECONDS))
            num_tokens = sum(map(len, encoded))
            results.append(
                TokenizerResult(
                    text=text,
                    tokenizer=name,
                    vocab_size=len(tokenizer.vocab),
                    num_bytes=num_bytes,
                    num_tokens=num_tokens,
                    bytes_per_token=bytes_per_token(num_bytes, num_tokens),
                    tokens_per_second=num_tokens / min(seconds),
                    corpus_seconds=corpus_bytes * seconds[0] / max(1, num_bytes),
                )
            )
    return results
