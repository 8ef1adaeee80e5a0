"""Tokenizer encoding and decoding: ours and every installed rival, with one and two threads.

The outputs of the first round are compared before any other round runs. `encoders` defines how a
tool is called, `encoding_work` what a process does.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from corpora import Corpora, Vocabulary, special_token
from encoders import RIVALS
from encoding_work import HOSTILE, work
from measure import OURS, Benchmark, Json, Measure, Task, Verdict, main

_ONE_THREAD = f"{OURS}, one thread"
_NUM_SPECIAL_TOKENS = 10_000
_PASSES = ("cold", "second", "warm")
_PASS_MEASURES = tuple(Measure(name, name) for name in _PASSES)
# Slow tools get the beginning of a text; the result notes it.
_MAX_MEGABYTES = {"tiktoken": 10.0, "tokenizers": 1.0}


def tasks(corpora: Corpora) -> Iterator[Task]:
    yield from _array_tasks(corpora, "r50k")
    yield from _other_form_tasks(corpora)
    yield _special_token_task(corpora)
    yield from _hostile_tasks(corpora)
    for name in ("cl100k", "o200k"):
        yield from _array_tasks(corpora, name)


def compare(ours: Path, theirs: Path) -> Verdict:
    """Whether the ids are equal up to the rival's end, which is the end of a document."""
    with ours.open("rb") as file, theirs.open("rb") as other:
        expected, found = np.load(file), np.load(other)
    shared = min(len(expected), len(found))
    differing = np.nonzero(expected[:shared] != found[:shared])[0]
    if len(differing):
        place = int(differing[0])
        words = f"id {place} is {found[place]}, ours {expected[place]}"
        return Verdict(False, f"{words}; {len(differing)} of {shared} differ")
    if len(found) > len(expected):
        return Verdict(False, f"{len(found)} ids, ours {len(expected)}")
    return Verdict(True, "ids equal")


def _array_tasks(corpora: Corpora, vocabulary_name: str) -> Iterator[Task]:
    vocabulary = corpora.vocabulary(vocabulary_name)
    if vocabulary is None:
        return
    is_gpt2 = vocabulary_name == "r50k"
    words = {"web": "English web text", "multilingual": "139 languages", "code": "source code"}
    shown = f"{'GPT-2' if is_gpt2 else vocabulary_name} vocabulary"
    for text in filter(corpora.has, words):
        name = text if is_gpt2 else f"{text}_{vocabulary_name}"
        for kind, how, megabytes in (("array", "", None), ("pieces", " in pieces of 4 KiB", 10)):
            size = megabytes if is_gpt2 else 24
            title, part = f"encode to array, {words[text]}{how}, {shown}", corpora.text(text, size)
            yield _task(corpora, vocabulary, f"{kind}_{name}", title, kind=kind, text=part)


def _other_form_tasks(corpora: Corpora) -> Iterator[Task]:
    vocabulary = _gpt2(corpora)
    part = corpora.text("web", 24)
    yield _task(corpora, vocabulary, "list", "encode to list[int]", kind="list", text=part)
    yield _task(
        corpora,
        vocabulary,
        "batch",
        "documents to arrays, two threads",
        kind="batch",
        text=corpora.text("web"),
        cores=2,
        rivals=("gigatoken", _ONE_THREAD, *RIVALS[1:]),
    )
    yield _task(
        corpora,
        vocabulary,
        "decode",
        "decode from an array",
        (Measure("warm", ""),),
        kind="decode",
        text=part,
    )


def _special_token_task(corpora: Corpora) -> Task:
    count = 100 if corpora.quick else _NUM_SPECIAL_TOKENS
    vocabulary = corpora.vocabulary("r50k", count)
    assert vocabulary is not None
    source = random.Random(0)
    words = corpora.text("web", 10).read_text(encoding="utf-8").split(" ")
    for place in range(0, len(words), 6):
        words[place] += special_token(source.randrange(count))
    return _task(
        corpora,
        vocabulary,
        "special_tokens",
        f"{count:,} special tokens, one after every sixth word",
        kind="array",
        text=corpora.written("special", " ".join(words)),
    )


def _hostile_tasks(corpora: Corpora) -> Iterator[Task]:
    vocabulary = _gpt2(corpora)
    size = 20_000 if corpora.quick else 1_000_000
    for name, (words, _) in HOSTILE.items():
        if corpora.quick and name not in {"letter", "one_line"}:
            continue
        is_line = name == "one_line"
        yield _task(
            corpora,
            vocabulary,
            f"hostile_{name}",
            words,
            (Measure("once", "", "s"),),
            kind="hostile",
            text=corpora.text("web", 10),
            more={"hostile": name, "size": size * 10 if is_line else size},
        )


def _gpt2(corpora: Corpora) -> Vocabulary:
    vocabulary = corpora.vocabulary("r50k")
    assert vocabulary is not None
    return vocabulary


def _task(
    corpora: Corpora,
    vocabulary: Vocabulary,
    name: str,
    title: str,
    measures: tuple[Measure, ...] = _PASS_MEASURES,
    *,
    kind: str,
    text: Path,
    cores: int = 1,
    rivals: tuple[str, ...] = RIVALS,
    more: Json | None = None,
) -> Task:
    lighter = {}
    for tool, megabytes in _MAX_MEGABYTES.items():
        part = corpora.part(text, megabytes)
        if part != text and kind != "hostile":
            lighter[tool] = ({"text": str(part)}, f"on the first {megabytes:g} MB")
    job = {
        "kind": kind,
        "vocabulary": vocabulary.as_job(),
        "text": str(text),
        "passes": 1 if corpora.quick else 5,
        **(more or {}),
    }
    return Task(name, title, job, rivals, measures, cores, lighter)


if __name__ == "__main__":
    question = "Tokenizer encoding and decoding"
    benchmark = Benchmark("tokenizer_encoding", question, tasks, work, compare)
    sys.exit(main(benchmark, __file__))
