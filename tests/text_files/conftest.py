"""Shared helpers: a few texts, ways to write them to files, and reading their documents."""

import functools
import gzip
import lzma
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import zstandard

from groundup.text_files import DocumentBatch, read_document_batches

SEPARATOR = "<|endoftext|>"
TEXTS = ["One day, it rained.", "\nZoë ran home.\n", "日本語 and 🦊\x00", " ", "the end"]

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".xz": functools.partial(lzma.compress, preset=0),
}


def documents_of(batches: Iterable[DocumentBatch]) -> list[bytes]:
    return [
        bytes(batch.data[begin:end]) for batch in batches for begin, end in batch.bounds.tolist()
    ]


def read(*inputs: Path | str, **options: Any) -> list[bytes]:
    return documents_of(read_document_batches(inputs, **options))
