"""Preparing shards: speed relative to the encoder, and memory.

The rival is our own encoder, which only encodes documents in memory.
"""

from __future__ import annotations

import json
import mmap
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from corpora import SEPARATOR, Corpora
from groundup._native import find_documents
from groundup.tokenizer import Tokenizer
from machine import PeakMemory, timed
from measure import OURS, Benchmark, Json, Measure, Task, Verdict, main, short

_ENCODING_ONLY = f"{OURS}, encoding only"


def tasks(corpora: Corpora) -> Iterator[Task]:
    vocabulary = corpora.vocabulary("r50k")
    assert vocabulary is not None
    path = corpora.text("web")
    yield Task(
        "web",
        f"prepare {short(path.stat().st_size / 1e6)} MB of English web text, two cores",
        {"text": str(path), "vocabulary": vocabulary.as_job()},
        (_ENCODING_ONLY,),
        (Measure("time", ""), Measure("peak", "peak memory", "MB")),
        cores=2,
    )


def work(job: Json) -> Json:
    vocabulary = job["vocabulary"]
    tokenizer = Tokenizer.load(
        vocabulary["ranks"],
        pattern=vocabulary["pattern"],
        special_tokens=vocabulary["special_tokens"],
    )
    # Next to the text: the default temporary folder may be in memory.
    with tempfile.TemporaryDirectory(dir=Path(job["text"]).parent) as folder:
        run = (
            _encoding(job, tokenizer)
            if job["tool"] == _ENCODING_ONLY
            else _preparing(job, tokenizer, Path(folder) / "shards")
        )
        memory = PeakMemory()
        timing = timed(run)
        peak_bytes = memory.growth_bytes()
    if job["output"]:
        Path(job["output"]).write_text(json.dumps({"num_tokens": timing.result}))
    return {
        "seconds": {"time": timing.seconds},
        "memory_bytes": {"peak": peak_bytes},
        "num_bytes": Path(job["text"]).stat().st_size,
        "peak_bytes": peak_bytes,
    }


def compare(ours: Path, theirs: Path) -> Verdict:
    """Compare the numbers of ids; the tests check the ids themselves."""
    expected, found = (json.loads(path.read_text())["num_tokens"] for path in (ours, theirs))
    return Verdict(expected == found, f"{found:,} ids to our {expected:,}")


def _preparing(job: Json, tokenizer: Tokenizer, out: Path) -> Callable[[], int]:
    from groundup.data.prepare import prepare

    def run() -> int:
        summary = prepare([job["text"]], tokenizer, out, num_threads=job["cores"])
        return sum(split.num_tokens for split in summary.index.splits.values())

    return run


def _encoding(job: Json, tokenizer: Tokenizer) -> Callable[[], int]:
    with open(job["text"], "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    found = find_documents(data, [SEPARATOR.encode()])
    bounds = np.frombuffer(memoryview(found), np.int64).reshape(-1, 2)
    end_id = job["vocabulary"]["special_tokens"][SEPARATOR]
    return lambda: len(tokenizer.encode_documents(data, bounds, job["cores"], end_id)[0])


if __name__ == "__main__":
    question = "Preparing shards: speed relative to the encoder, and memory"
    benchmark = Benchmark("data_prepare", question, tasks, work, compare)
    sys.exit(main(benchmark, __file__))
