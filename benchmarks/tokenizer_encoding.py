"""How fast is text turned into ids, and back? Ours and every installed rival, one and two threads.

The outputs of the first round are compared before any other round runs. How a tool is called is
`encoders`.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from corpora import Corpora, Vocabulary, special_token, split_documents
from encoders import RIVALS, TextEncoder, open_encoder
from hostile import HOSTILE, one_line
from machine import PeakMemory, Timing, timed
from measure import OURS, Benchmark, Json, Measure, Task, Verdict, main

_ONE_THREAD = f"{OURS}, one thread"
_NUM_SPECIAL_TOKENS = 10_000
# Slow tools get the first part of a text, and the result says so.
_MOST_MEGABYTES = {"tiktoken": 24.0, "splintr-rs": 24.0, "tokenizers": 3.0}


def tasks(corpora: Corpora) -> Iterator[Task]:
    yield from _array_tasks(corpora, "r50k")
    yield from _other_form_tasks(corpora)
    yield _special_token_task(corpora)
    yield from _hostile_tasks(corpora)
    for name in ("cl100k", "o200k"):
        yield from _array_tasks(corpora, name)


def work(job: Json) -> Json:
    loading = timed(open_encoder, job["tool"], job["vocabulary"], job["cores"])
    answer = _KINDS[job["kind"]](loading.result, job)
    answer["extra"] = {"load_seconds": loading.seconds}
    return answer


def compare(ours: Path, theirs: Path) -> Verdict:
    """Whether the ids are equal as far as the rival went, which is to the end of a document."""
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
    texts = {
        "web": ("English web text", {"gigatoken": 1.25, "tiktoken": 15}),
        "stories": ("English stories", {"gigatoken": 1.25, "tiktoken": 15}),
        "multilingual": ("139 languages", {"gigatoken": 1.1}),
        "code": ("source code", {}),
    }
    for text, (words, targets) in texts.items():
        if not corpora.has(text) or (text == "stories" and not is_gpt2):
            continue
        goal = targets if is_gpt2 else {}
        measures = (
            Measure("cold", "cold", targets=goal),
            Measure("warm", "warm", targets=goal),
            Measure("new", "warm, in a new string", headline=False),
        )
        yield _task(
            corpora,
            vocabulary,
            f"array_{text}" if is_gpt2 else f"array_{text}_{vocabulary_name}",
            f"encode to array, {words}, {'GPT-2' if is_gpt2 else vocabulary_name} vocabulary",
            measures,
            kind="array",
            text=corpora.text(text, None if is_gpt2 else 24),
        )


def _other_form_tasks(corpora: Corpora) -> Iterator[Task]:
    vocabulary = _gpt2(corpora)
    part = corpora.text("web", 24)
    goal = {"gigatoken": 1.5}
    yield _task(
        corpora,
        vocabulary,
        "list",
        "encode to list[int]",
        (Measure("cold", "cold", targets=goal), Measure("warm", "warm", targets=goal)),
        kind="list",
        text=part,
    )
    goal = {"gigatoken": 1.2, _ONE_THREAD: 1.8}
    yield _task(
        corpora,
        vocabulary,
        "batch",
        "documents to arrays, two threads",
        (
            Measure("cold", "cold", targets=goal),
            Measure("warm", "warm", targets=goal),
            Measure("new", "warm, in new strings", headline=False),
        ),
        kind="batch",
        text=corpora.text("web"),
        cores=2,
        rivals=("gigatoken", _ONE_THREAD, *RIVALS[1:]),
    )
    goal = {"gigatoken": 1.2}
    yield _task(
        corpora,
        vocabulary,
        "decode",
        "decode from an array",
        (
            Measure("cold", "cold", headline=False, targets=goal),
            Measure("warm", "", targets=goal),
        ),
        kind="decode",
        text=part,
        rivals=tuple(tool for tool in RIVALS if tool != "fastokens"),
    )


def _special_token_task(corpora: Corpora) -> Task:
    count = 100 if corpora.quick else _NUM_SPECIAL_TOKENS
    vocabulary = corpora.vocabulary("r50k", count)
    assert vocabulary is not None
    source = random.Random(0)
    words = corpora.text("web", 10).read_text(encoding="utf-8").split(" ")
    for place in range(0, len(words), 6):
        words[place] += special_token(source.randrange(count))
    goal = {"gigatoken": 1.25}
    return _task(
        corpora,
        vocabulary,
        "special_tokens",
        f"{count:,} special tokens, one after every sixth word",
        (Measure("cold", "cold", targets=goal), Measure("warm", "warm", targets=goal)),
        kind="array",
        text=corpora.written("special", " ".join(words)),
    )


def _hostile_tasks(corpora: Corpora) -> Iterator[Task]:
    vocabulary = _gpt2(corpora)
    size = 20_000 if corpora.quick else 1_000_000
    kinds = {name: words for name, (words, _) in HOSTILE.items()}
    kinds["one_line"] = "10 MB in one line"
    for name, words in kinds.items():
        if corpora.quick and name not in {"letter", "one_line"}:
            continue
        is_line = name == "one_line"
        measures = (
            Measure(
                "once",
                "",
                "s",
                headline=name in {"letter", "spaces", "emoji", "one_word", "one_line"},
                limit=None if is_line else 0.1,
            ),
            Measure("growth", "growth of the time with four times the text", "x", headline=False),
        )
        yield _task(
            corpora,
            vocabulary,
            f"hostile_{name}",
            words,
            measures,
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
    measures: tuple[Measure, ...],
    *,
    kind: str,
    text: Path,
    cores: int = 1,
    rivals: tuple[str, ...] = RIVALS,
    more: Json | None = None,
) -> Task:
    lighter = {}
    for tool, megabytes in _MOST_MEGABYTES.items():
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


def _work_array(encoder: TextEncoder, job: Json) -> Json:
    data = Path(job["text"]).read_bytes()
    return _passes(job, encoder.to_array, data.decode, lambda ids: ids, len(data))


def _work_list(encoder: TextEncoder, job: Json) -> Json:
    data = Path(job["text"]).read_bytes()
    return _passes(job, encoder.to_list, data.decode, lambda ids: ids, len(data))


def _work_batch(encoder: TextEncoder, job: Json) -> Json:
    text = Path(job["text"]).read_text(encoding="utf-8")
    num_bytes = len("".join(split_documents(text)).encode())

    def fresh() -> list[str]:
        return split_documents(text)

    return _passes(job, encoder.batch, fresh, encoder.flatten, num_bytes)


def _work_decode(encoder: TextEncoder, job: Json) -> Json:
    data = Path(job["text"]).read_bytes()
    ids = encoder.to_array(data.decode())

    def view(text: bytes) -> Any:
        return np.frombuffer(text, np.uint8)

    return _passes(job, encoder.decode, lambda: ids, view, len(data))


def _work_hostile(encoder: TextEncoder, job: Json) -> Json:
    size = job["size"]
    if job["hostile"] == "one_line":
        source = Path(job["text"]).read_text(encoding="utf-8")
        text, longer = one_line(source, size), one_line(source, 4 * size)
    else:
        make = HOSTILE[job["hostile"]][1]
        text, longer = make(size), make(4 * size)
    memory = PeakMemory()
    first = timed(encoder.to_array, text)
    peak_bytes = memory.growth_bytes()
    _save(job, first.result)
    fourfold = timed(encoder.to_array, longer)
    return {
        "seconds": {"once": first.seconds, "growth": fourfold.seconds / first.seconds},
        "cpu_seconds": {"once": first.cpu_seconds},
        "num_bytes": len(text.encode()),
        "peak_bytes": peak_bytes,
    }


_KINDS: dict[str, Callable[[TextEncoder, Json], Json]] = {
    "array": _work_array,
    "list": _work_list,
    "batch": _work_batch,
    "decode": _work_decode,
    "hostile": _work_hostile,
}


def _passes(
    job: Json,
    call: Callable[[Any], Any],
    fresh: Callable[[], Any],
    ids_of: Callable[[Any], Any],
    num_bytes: int,
) -> Json:
    """A first pass ("cold"), passes over the same object ("warm"), over new ones ("new").

    A string keeps its UTF-8 form once a tool has asked for it, hence the difference of the last two.
    """
    argument = fresh()
    memory = PeakMemory()
    result, *first = timed(call, argument)
    peak_bytes = memory.growth_bytes()
    _save(job, ids_of(result))
    del result
    count = job["passes"] if first[0] < 3 else 1

    def median(passes: list[Timing]) -> tuple[float, float]:
        return (
            statistics.median(one.seconds for one in passes),
            statistics.median(one.cpu_seconds for one in passes),
        )

    warm = median([timed(call, argument)._replace(result=None) for _ in range(count)])
    new = median([timed(call, fresh())._replace(result=None) for _ in range(count)])
    return {
        "seconds": {"cold": first[0], "warm": warm[0], "new": new[0]},
        "cpu_seconds": {"cold": first[1], "warm": warm[1], "new": new[1]},
        "num_bytes": num_bytes,
        "peak_bytes": peak_bytes,
    }


def _save(job: Json, ids: Any) -> None:
    """Leave the ids for `compare`, in the first round."""
    if job["output"]:
        with open(job["output"], "wb") as file:
            np.save(file, np.asarray(ids).astype(np.uint32))


if __name__ == "__main__":
    question = "How fast is text turned into ids, and back?"
    benchmark = Benchmark("tokenizer_encoding", question, tasks, work, compare)
    sys.exit(main(benchmark, __file__))
