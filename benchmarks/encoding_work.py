"""The work of one process of `tokenizer_encoding`: one tool, one text, first cold and then warm."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from corpora import SEPARATOR, split_documents
from encoders import TextEncoder, open_encoder
from machine import PeakMemory, timed
from measure import Json

# Time limit for passes of one kind.
_SECONDS_OF_PASSES = 2.0
_PIECE_BYTES = 4096
# Adversarial texts by name: a description, and a part that is repeated.
HOSTILE = {
    "letter": ('"a" * 1,000,000', "a"),
    "spaces": ("1,000,000 spaces", " "),
    "emoji": ("1 MB of emoji", "\U0001f600"),
    "one_word": ("one word of random letters", "abcdefghijklmnopqrstuvwxyz"),
    "one_line": ("10 MB in one line", ""),
}


def work(job: Json) -> Json:
    """Do a job; loading the tool is not timed."""
    loading = timed(open_encoder, job["tool"], job["vocabulary"], job["cores"])
    answer = _KINDS[job["kind"]](loading.result, job)
    answer["extra"] = {"load_seconds": loading.seconds}
    return answer


def _work_array(encoder: TextEncoder, job: Json) -> Json:
    data = Path(job["text"]).read_bytes()
    return _passes(job, encoder.to_array, data.decode, lambda ids: ids, len(data))


def _work_pieces(encoder: TextEncoder, job: Json) -> Json:
    data = Path(job["text"]).read_bytes()
    cuts = range(0, len(data), _PIECE_BYTES)
    pieces = [data[cut : cut + _PIECE_BYTES].decode("utf-8", "ignore") for cut in cuts]
    encode = encoder.to_array
    return _passes(
        job, lambda them: [*map(encode, them)], lambda: pieces, np.concatenate, len(data)
    )


def _work_list(encoder: TextEncoder, job: Json) -> Json:
    data = Path(job["text"]).read_bytes()
    return _passes(job, encoder.to_list, data.decode, lambda ids: ids, len(data))


def _work_batch(encoder: TextEncoder, job: Json) -> Json:
    text = Path(job["text"]).read_text(encoding="utf-8")
    num_bytes = len("".join(split_documents(text)).encode())
    return _passes(job, encoder.batch, lambda: split_documents(text), encoder.flatten, num_bytes)


def _work_decode(encoder: TextEncoder, job: Json) -> Json:
    data = Path(job["text"]).read_bytes()
    ids = encoder.to_array(data.decode())

    def view(text: bytes) -> Any:
        return np.frombuffer(text, np.uint8)

    return _passes(job, encoder.decode, lambda: ids, view, len(data))


def _work_hostile(encoder: TextEncoder, job: Json) -> Json:
    size, characters = job["size"], HOSTILE[job["hostile"]][1]
    if job["hostile"] == "one_line":
        source = Path(job["text"]).read_text(encoding="utf-8")
        line = source.replace(SEPARATOR, " ").replace("\n", " ")
        text = (line * (size // len(line) + 1))[:size]
    else:
        count = size // len(characters[0].encode())
        text = "".join(random.Random(0).choices(characters, k=count))
    memory = PeakMemory()
    first = timed(encoder.to_array, text)
    peak_bytes = memory.growth_bytes()
    _save(job, first.result)
    return {
        "seconds": {"once": first.seconds},
        "num_bytes": len(text.encode()),
        "peak_bytes": peak_bytes,
    }


_KINDS: dict[str, Callable[[TextEncoder, Json], Json]] = {
    "array": _work_array,
    "pieces": _work_pieces,
    "list": _work_list,
    "batch": _work_batch,
    "decode": _work_decode,
    "hostile": _work_hostile,
}


def _passes(
    job: Json,
    call: Callable[[Any], Any],
    make: Callable[[], Any],
    ids_of: Callable[[Any], Any],
    num_bytes: int,
) -> Json:
    """Time a first pass ("cold"), then more passes over the same object ("warm")."""
    argument = make()
    memory = PeakMemory()
    first = timed(call, argument)
    peak_bytes = memory.growth_bytes()
    _save(job, ids_of(first.result))
    first = first._replace(result=None)
    second = timed(call, argument).seconds
    count = max(1, min(job["passes"], int(_SECONDS_OF_PASSES / first.seconds)))
    warm = statistics.median(timed(call, argument).seconds for _ in range(count))
    return {
        "seconds": {"cold": first.seconds, "second": second, "warm": warm},
        "num_bytes": num_bytes,
        "peak_bytes": peak_bytes,
    }


def _save(job: Json, ids: Any) -> None:
    """Save the ids for `compare`, in the first round."""
    if job["output"]:
        with open(job["output"], "wb") as file:
            np.save(file, np.asarray(ids).astype(np.uint32))
