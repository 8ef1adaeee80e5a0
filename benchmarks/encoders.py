"""A common interface to all encoders; each is called in the fastest way that it documents.

All get the same vocabulary and special tokens. A library is imported only in its own class.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Job = dict[str, Any]


class TextEncoder(Protocol):
    """The operations of a tool; NotImplementedError if it does not support one."""

    def to_array(self, text: str) -> Any:
        """All ids in one array, with special tokens."""

    def to_list(self, text: str) -> list[int]:
        """All ids as a list of int."""

    def batch(self, documents: list[str]) -> Any:
        """Encode documents without special tokens, in the tool's own batch format."""

    def flatten(self, batch: Any) -> Any:
        """All ids of such a batch, in order; not timed."""

    def decode(self, ids: Any) -> bytes:
        """The bytes of the array that `to_array` gave."""


class Groundup:
    def __init__(self, vocabulary: Job, threads: int) -> None:
        from groundup.tokenizer import Tokenizer

        special_tokens = vocabulary["special_tokens"]
        self._tokenizer = Tokenizer.load(
            vocabulary["ranks"], pattern=vocabulary["pattern"], special_tokens=special_tokens
        )
        self._threads = threads
        self.to_array = self._tokenizer.encode_to_numpy
        self.to_list = self._tokenizer.encode
        self.decode = self._tokenizer.decode_bytes

    def batch(self, documents: list[str]) -> Any:
        return self._tokenizer.encode_batch(documents, num_threads=self._threads)

    def flatten(self, batch: Any) -> Any:
        return batch[0]


class Gigatoken:
    def __init__(self, vocabulary: Job, threads: int) -> None:
        # Batches are awkward arrays; do not time the import.
        import awkward
        import gigatoken

        self._awkward = awkward
        self._tokenizer = gigatoken.Tokenizer.from_tiktoken(
            vocabulary["ranks"], vocabulary["pattern"], vocabulary["special_tokens"]
        )
        self._is_parallel = threads > 1
        self.to_array = self._tokenizer.encode
        self.decode = self._tokenizer.decode

    def to_list(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).tolist())

    def batch(self, documents: list[str]) -> Any:
        return self._tokenizer.encode_batch(documents, parallel=self._is_parallel)

    def flatten(self, batch: Any) -> Any:
        return self._awkward.to_numpy(self._awkward.flatten(batch))


class Tiktoken:
    def __init__(self, vocabulary: Job, threads: int) -> None:
        import tiktoken
        from tiktoken_ext import openai_public

        ranks = _read_ranks(vocabulary["ranks"])
        # Its own form of the pattern, without its download.
        openai_public.load_tiktoken_bpe = lambda *_, **__: ranks
        constructors = {
            "gpt2": openai_public.r50k_base,
            "cl100k": openai_public.cl100k_base,
            "o200k": openai_public.o200k_base,
        }
        pattern = constructors[vocabulary["pattern"]]()["pat_str"]
        self._encoding = tiktoken.Encoding(
            "benchmark",
            pat_str=pattern,
            mergeable_ranks=ranks,
            special_tokens=vocabulary["special_tokens"],
        )
        self._threads = threads

    def to_array(self, text: str) -> Any:
        return self._encoding.encode_to_numpy(text, allowed_special="all")

    def to_list(self, text: str) -> list[int]:
        return self._encoding.encode(text, allowed_special="all")

    def batch(self, documents: list[str]) -> Any:
        return self._encoding.encode_ordinary_batch(documents, num_threads=self._threads)

    def flatten(self, batch: Any) -> Any:
        return np.array([id for ids in batch for id in ids], np.uint32)

    def decode(self, ids: Any) -> bytes:
        return self._encoding.decode_bytes(ids.tolist())


class HuggingFace:
    def __init__(self, vocabulary: Job, threads: int) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(vocabulary["json"])

    def to_array(self, text: str) -> Any:
        return np.array(self.to_list(text), np.uint32)

    def to_list(self, text: str) -> list[int]:
        return list(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def batch(self, documents: list[str]) -> Any:
        encodings = self._tokenizer.encode_batch_fast(documents, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def flatten(self, batch: Any) -> Any:
        return np.array([id for ids in batch for id in ids], np.uint32)

    def decode(self, ids: Any) -> bytes:
        return bytes(self._tokenizer.decode(ids.tolist(), skip_special_tokens=False).encode())


_CLASSES: dict[str, Any] = {
    "groundup": Groundup,
    "gigatoken": Gigatoken,
    "tiktoken": Tiktoken,
    "tokenizers": HuggingFace,
}
RIVALS = tuple(name for name in _CLASSES if name != "groundup")


def open_encoder(tool: str, vocabulary: Job, threads: int) -> TextEncoder:
    """A tool by name; "groundup, one thread" is ours limited to one thread."""
    name, _, variant = tool.partition(", ")
    encoder: TextEncoder = _CLASSES[name](vocabulary, 1 if variant == "one thread" else threads)
    return encoder


def _read_ranks(path: str) -> dict[bytes, int]:
    lines = (line.split() for line in Path(path).read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}
