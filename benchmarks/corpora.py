"""The texts and vocabularies that benchmarks run on.

Real ones from `../shared/data` if it exists, unpacked once into `build/`; else the built-in sample
corpus and a vocabulary trained on it.
"""

from __future__ import annotations

import base64
import json
import lzma
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = REPOSITORY.parent / "shared" / "data"
CACHE = REPOSITORY / "build" / "benchmarks"
SEPARATOR = "<|endoftext|>"

_QUICK_BYTES = 300_000
_PATTERN_OF_RANKS = {"r50k": "gpt2", "cl100k": "cl100k", "o200k": "o200k"}


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary in two file formats, of which every tool reads one."""

    name: str
    pattern: str
    ranks: str
    json: str
    special_tokens: dict[str, int]

    def as_job(self) -> dict[str, Any]:
        return asdict(self)


class Corpora:
    """Provides the input files of benchmarks."""

    def __init__(self, temporary: Path, *, quick: bool) -> None:
        self.quick = quick
        self._shared = SHARED if SHARED.is_dir() and not quick else None
        self.source = "../shared/data" if self._shared else "the built-in sample corpus"
        # Unpacked files are cached; files made by our own code are not.
        self._folder = CACHE if self._shared else temporary
        self._temporary = temporary
        self._folder.mkdir(parents=True, exist_ok=True)

    def has(self, name: str) -> bool:
        """Whether the text is available; the sample corpus only replaces English ones."""
        return self._shared is not None or name in {"web", "stories"}

    def text(self, name: str, megabytes: float | None = None) -> Path:
        """A text, or its beginning up to the last end of a document within the size."""
        path = self._whole(name)
        return path if megabytes is None else self.part(path, megabytes)

    def part(self, path: Path, megabytes: float) -> Path:
        """The beginning of a file, cut in the same way; the file itself if it is short."""
        if megabytes * 1e6 >= path.stat().st_size:
            return path
        target = self._temporary / f"{path.stem}-{megabytes:g}mb.txt"
        if not target.exists():
            target.write_bytes(cut_after_document(path.read_bytes(), round(megabytes * 1e6)))
        return target

    def written(self, name: str, text: str) -> Path:
        """A text written by the benchmark."""
        target = self._temporary / f"{name}.txt"
        target.write_text(text, encoding="utf-8")
        return target

    def vocabulary(self, name: str, num_special_tokens: int = 0) -> Vocabulary | None:
        """A published vocabulary (r50k, cl100k, o200k), or None if it is not available.

        Without the published files, the sample corpus' own vocabulary replaces r50k.
        """
        stem = name if self._shared else "sample"
        if stem == "sample" and name != "r50k":
            return None
        stem += f"-special{num_special_tokens}" if num_special_tokens else ""
        record = self._temporary / f"{stem}.vocabulary.json"
        if not record.exists():
            made = self._make_vocabulary(name, stem, num_special_tokens)
            record.write_text(json.dumps(made.as_job()))
        return Vocabulary(**json.loads(record.read_text()))

    def _make_vocabulary(self, name: str, stem: str, num_special_tokens: int) -> Vocabulary:
        from groundup.tokenizer import Tokenizer

        if self._shared:
            ranks = self._folder / f"{name}_base.tiktoken"
            _unpack(self._shared / "tokenizers" / f"{name}_base.tiktoken.xz", ranks)
            tokenizer = Tokenizer.load(ranks)
            pattern = _PATTERN_OF_RANKS[name]
        else:
            ranks = self._folder / "sample.tiktoken"
            tokenizer = Tokenizer.train(self._whole("stories"), 4096, [SEPARATOR])
            tokens = tokenizer.definition.ordinary_tokens().items()
            lines = [base64.b64encode(token) + f" {id}\n".encode() for id, token in tokens]
            ranks.write_bytes(b"".join(lines))
            pattern = "gpt2"
        special = dict(tokenizer.special_tokens)
        if num_special_tokens:
            first = tokenizer.vocab_size
            special |= {special_token(n): first + n for n in range(num_special_tokens)}
            tokenizer = Tokenizer.load(ranks, pattern=pattern, special_tokens=special)
        converted = self._temporary / f"{stem}.tokenizer.json"
        tokenizer.save(converted, "huggingface")
        return Vocabulary(name, pattern, str(ranks), str(converted), special)

    def _whole(self, name: str) -> Path:
        if self._shared:
            target = self._folder / f"{name}.txt"
            _unpack(self._shared / f"{name}.txt.xz", target)
            return target
        from groundup.data.samples import write_sample_corpus

        size = _QUICK_BYTES if self.quick else 20_000_000
        target = self._folder / f"sample-{name}-{size}.txt"
        if not target.exists():
            write_sample_corpus(target, size / 1e6, seed=len(name))
        return target


def special_token(number: int) -> str:
    return f"<|special_{number}|>"


def cut_after_document(data: bytes, num_bytes: int) -> bytes:
    """The beginning of a text up to the last separator within this number of bytes."""
    separator = SEPARATOR.encode()
    end = data.rfind(separator, 0, num_bytes)
    return data[: end + len(separator)] if end >= 0 else data[:num_bytes]


def split_documents(text: str) -> list[str]:
    """The documents between separators as new strings."""
    return [document for document in text.split(SEPARATOR) if document]


def _unpack(packed: Path, target: Path) -> None:
    if target.exists():
        return
    partial = target.with_suffix(".partial")
    with lzma.open(packed) as source, open(partial, "wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    partial.rename(target)
