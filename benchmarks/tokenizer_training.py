"""How fast is a vocabulary learned, and in how much memory? Ours and every installed rival.

Each tool breaks ties its own way, so vocabularies agree but for a tail of rare tokens; how far they
do is part of the result.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from corpora import Corpora
from machine import PeakMemory, timed
from measure import Benchmark, Json, Measure, Task, Verdict, main, short
from trainers import RIVALS, open_trainer

# Ties decide many of the last tokens of a small corpus; a real mistake changes far more than this.
_LEAST_SHARED = 0.85


def tasks(corpora: Corpora) -> Iterator[Task]:
    web = corpora.text("web")
    repeated = corpora.repeated("stories", 20)
    stories = f"{_megabytes(corpora.text('stories'))} of stories repeated to {_megabytes(repeated)}"
    title = f"train 32,000 tokens on {_megabytes(web)} of English web text"
    yield _task(corpora, "web_32k", title, web, 32_000)
    title = f"train 10,000 tokens on {stories}"
    yield _task(corpora, "stories_10k", title, repeated, 10_000)
    if corpora.has("multilingual"):
        text = corpora.text("multilingual")
        title = f"train 32,000 tokens on {_megabytes(text)} in 139 languages"
        yield _task(corpora, "multilingual_32k", title, text, 32_000)
    for megabytes, rivals in ((243, ("gigatoken",)), (486, ())):
        if corpora.quick and megabytes != 243:
            continue
        yield _task(
            corpora,
            f"memory_{megabytes}mb",
            f"train 32,000 tokens on {megabytes} MB of English web text (repeated)",
            corpora.repeated("web", megabytes),
            32_000,
            rivals,
            is_about_memory=True,
        )


def work(job: Json) -> Json:
    train = open_trainer(job["tool"], job["cores"])
    memory = PeakMemory()
    timing = timed(train, job["text"], job["vocab_size"])
    peak_bytes = memory.growth_bytes()
    if job["output"]:
        tokens, merges = timing.result()
        found = {
            "tokens": [token.hex() for token in tokens],
            "merges": merges and [[left.hex(), right.hex()] for left, right in merges],
        }
        Path(job["output"]).write_text(json.dumps(found))
    return {
        "seconds": {"time": timing.seconds},
        "memory_bytes": {"peak": peak_bytes},
        "num_bytes": Path(job["text"]).stat().st_size,
        "peak_bytes": peak_bytes,
    }


def compare(ours: Path, theirs: Path) -> Verdict:
    """How much of the two vocabularies is the same, and how long the merges are."""
    expected, found = json.loads(ours.read_text()), json.loads(theirs.read_text())
    shared = len(set(expected["tokens"]) & set(found["tokens"])) / len(expected["tokens"])
    words = f"{shared:.1%} of the tokens shared"
    if len(found["tokens"]) != len(expected["tokens"]):
        words += f", {len(found['tokens'])} tokens to our {len(expected['tokens'])}"
    if found["merges"]:
        pairs = zip(expected["merges"], found["merges"], strict=False)
        same = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
        words += ", all merges equal" if same is None else f", the first {same} merges equal"
    return Verdict(shared >= _LEAST_SHARED, words)


def _task(
    corpora: Corpora,
    name: str,
    title: str,
    text: Path,
    vocab_size: int,
    rivals: tuple[str, ...] = RIVALS,
    *,
    is_about_memory: bool = False,
) -> Task:
    measures = (
        Measure("time", "", "s", headline=not is_about_memory),
        Measure("peak", "peak memory", "MB"),
    )
    job = {"text": str(text), "vocab_size": 1_000 if corpora.quick else vocab_size}
    return Task(name, title, job, rivals, measures, cores=2)


def _megabytes(path: Path) -> str:
    return f"{short(path.stat().st_size / 1e6)} MB"


if __name__ == "__main__":
    question = "How fast is a vocabulary learned, and in how much memory?"
    benchmark = Benchmark("tokenizer_training", question, tasks, work, compare)
    sys.exit(main(benchmark, __file__))
