"""Mutated bytes for every parser of files: it gives a value or a clean error, soon and in bounds.

The inputs are those of corpus/, which are a few bytes each, and of the run's own artefacts.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from artefacts import Artefacts
from damage import _import, _use_run, check_tokenizer
from harness import Case, Lost, bounded

from groundup.checkpoint import CheckpointFolder, load_weights
from groundup.checkpoint.state_tree import load_tree
from groundup.config import load_settings
from groundup.data.prepare.journal import read_journal
from groundup.data.shards import INDEX_NAME, JOURNAL_NAME, verify
from groundup.errors import GroundupError
from groundup.experiments.spec import SweepConfig
from groundup.files import hash_bytes, read_json_lines
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runs.metrics_file import MetricsReader, cut_metrics, read_metrics, read_newest
from groundup.serving.dashboard import lines_after
from groundup.serving.run_reading import as_json
from groundup.text_files import read_document_batches
from groundup.tokenizer import Tokenizer

CORPUS = Path(__file__).with_name("corpus")
MAX_SECONDS = 10.0
MAX_GROWTH_BYTES = 64 * 2**20
MAX_GROWTH_PER_BYTE = 100

NUMBERS = [
    *(b"0", b"-1", b"1", b"255", b"256", b"65536", b"2147483648", b"4294967296", b"1000000000"),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"1e18", b"1e400"),
    *(b"-1e400", b"NaN", b"Infinity", b".nan", b"-.inf", b"0.5", b"1" + b"0" * 400, b"9" * 5000),
]
DEEP = "@deep@"
Place = tuple[dict[Any, Any] | list[Any], Any]
VALUES: list[Any] = [None, True, [], {}, "", "x" * 100_000, "\ud800", "\0", "../../x", -1]
VALUES += [10**9, 10**30, 0.5, [[]], {"": None}, [None] * 1000, DEEP]


def fuzz(case: Case) -> None:
    """Mutate one input of one parser."""
    name = case.pick(list(PARSERS))
    case.row = f"fuzzed: {name}"
    sources, parse = PARSERS[name]
    paths = _inputs(sources, case.work)
    path = case.random.choice(paths)
    data = mutate(path.read_bytes(), case.random)
    growth = MAX_GROWTH_BYTES + MAX_GROWTH_PER_BYTE * len(data)
    try:
        with bounded(case, growth, MAX_SECONDS):
            parse(case, path.name, data)
    except (GroundupError, OSError):
        return


@cache
def _inputs(sources: str, work: Path) -> list[Path]:
    folders = (CORPUS, Artefacts(work).folder)
    found = [path for one in sources.split() for folder in folders for path in folder.glob(one)]
    return sorted(path for path in found if path.is_file())


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A few changes: of bits, of numbers, of stretches, of the structure where it is JSON."""
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        data = rng.choice(MUTATIONS)(data, rng)
    return data


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return b"\0"
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _drop(data: bytes, rng: random.Random) -> bytes:
    begin = rng.randrange(len(data) + 1)
    return data[:begin] + data[begin + rng.choice((1, 2, 8, 100)) :]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    begin = rng.randrange(len(data) + 1)
    stretch = data[begin : begin + rng.choice((1, 8, 64))]
    return data[:begin] + stretch * rng.choice((2, 3, 1000)) + data[begin:]


def _insert(data: bytes, rng: random.Random) -> bytes:
    begin = rng.randrange(len(data) + 1)
    odd = [rng.randbytes(4), b"[" * 20_000, b'{"a":' * 20_000, b"\xff\xfe", b"\0" * 64, b"\n", b'"']
    return data[:begin] + rng.choice(odd) + data[begin:]


def _renumber(data: bytes, rng: random.Random) -> bytes:
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?(e[-+]?\d+)?", data))
    if not numbers:
        return _flip(data, rng)
    match = rng.choice(numbers)
    return data[: match.start()] + rng.choice(NUMBERS) + data[match.end() :]


def _restructure(data: bytes, rng: random.Random) -> bytes:
    """Another value in the place of one, in JSON, in a line of JSON, or in a safetensors header."""
    if data[8:9] == b"{" and len(data) >= 8:
        length = int.from_bytes(data[:8], "little")
        header = _restructure(data[8 : 8 + length], rng)
        return len(header).to_bytes(8, "little") + header + data[8 + length :]
    lines = data.split(b"\n") if data.count(b"\n{") else [data]
    number = rng.randrange(len(lines))
    try:
        value = json.loads(lines[number])
    except (ValueError, RecursionError):
        return _renumber(data, rng)
    places: list[Place] = []
    _walk({"": value} if not isinstance(value, dict | list) else value, places)
    if not places:
        return _renumber(data, rng)
    holder, key = rng.choice(places)
    match rng.randrange(4):
        case 0 if isinstance(holder, dict):
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[str(key) + "x"] = holder[key]
        case _:
            holder[key] = rng.choice(VALUES)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    text = text.replace(f'"{DEEP}"', "[" * 20_000 + "]" * 20_000)
    lines[number] = text.encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


def _walk(value: object, places: list[Place]) -> None:
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            _walk(value[key], places)


MUTATIONS = [_flip, _cut, _drop, _repeat, _insert, _renumber, _renumber, *[_restructure] * 4]


def _tokenizer(case: Case, name: str, data: bytes) -> None:
    # The two files of the gpt2 format are read together.
    shutil.copy(CORPUS / "vocab.json", case.place / "vocab.json")
    shutil.copy(CORPUS / "merges.txt", case.place / "merges.txt")
    (case.place / name).write_bytes(data)
    tokenizer = Tokenizer.load(case.place / ("vocab.json" if name == "merges.txt" else name))
    if tokenizer.vocab_size < 100_000:
        try:
            check_tokenizer(tokenizer)
        except KeyError:
            # The reference knows no vocabulary without some of the bytes; ours says so.
            raise Lost("ids for a text that the vocabulary cannot spell") from None


def _shard_index(case: Case, name: str, data: bytes) -> None:
    shards = Artefacts(case.work).shards
    for path in shards.glob("*.bin"):
        os.link(path, case.place / path.name)
    (case.place / INDEX_NAME).write_bytes(data)
    verify(case.place, Tokenizer.load(Artefacts(case.work).tokenizer))


def _journal(case: Case, name: str, data: bytes) -> None:
    # Most of it is what an index says as well.
    (case.place / JOURNAL_NAME).write_bytes(
        data.replace(b"groundup-shards", b"groundup-unfinished-shards")
    )
    read_journal(case.place)


def _safetensors(case: Case, name: str, data: bytes) -> None:
    path = case.place / "x.safetensors"
    path.write_bytes(data)
    for source in (path, data):
        try:
            load_weights(source)
            load_tree(source, "groundup optimizer state")
        except GroundupError:
            continue


def _state(case: Case, name: str, data: bytes) -> None:
    checkpoint = max((Artefacts(case.work).run / "checkpoints").iterdir())
    copy = case.place / checkpoint.name
    shutil.copytree(checkpoint, copy)
    if case.random.random() < 0.7:
        # With a hash that is right, as only a liar would write it.
        try:
            value = json.loads(data)
            value.pop("hash", None)
            body = json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")
            data = json.dumps({**value, "hash": hash_bytes(body)}).encode()
        except (ValueError, RecursionError, AttributeError, TypeError):
            pass
    (copy / "state.json").write_bytes(data)
    folder = CheckpointFolder(case.place)
    folder.newest()
    folder.best()


def _settings(case: Case, name: str, data: bytes) -> None:
    path = case.place / "config.yaml"
    path.write_bytes(data)
    json.dumps(as_json(RunFolder(case.place).read_settings()).decode())
    load_settings(SweepConfig if name == "sweep.yaml" else RunConfig, path)


def _run_settings(case: Case, name: str, data: bytes) -> None:
    artefacts = Artefacts(case.work)
    shutil.copytree(artefacts.run, case.place / "whole")
    (case.place / "whole" / "config.yaml").write_bytes(data)
    try:
        _use_run(case, artefacts, case.place)
    except Lost:
        # Other settings may lawfully compute something else.
        return


def _metrics(case: Case, name: str, data: bytes) -> None:
    path = case.place / "metrics.jsonl"
    path.write_bytes(data)
    as_json(lines_after(MetricsReader(path), 0, None, 100))
    as_json(read_newest(path).values)
    read_metrics(path)
    cut_metrics(path, 2)
    list(read_json_lines(path))


def _export(case: Case, name: str, data: bytes) -> None:
    artefacts = Artefacts(case.work)
    copy = case.place / "export"
    shutil.copytree(artefacts.export, copy)
    (copy / name).write_bytes(data)
    _import(case, artefacts, copy)


def _texts(case: Case, name: str, data: bytes) -> None:
    path = case.place / name
    path.write_bytes(data)
    for errors in ("strict", "replace", "skip"):
        try:
            for batch in read_document_batches([path], errors=errors):
                for begin, end in batch.bounds.tolist():
                    bytes(batch.data[begin:end]).decode("utf-8")
        except GroundupError:
            continue


def _not_ours(case: Case, name: str, data: bytes) -> None:
    path = case.place / name
    path.write_bytes(data)
    for load in (load_weights, Tokenizer.load):
        try:
            load(path)
        except GroundupError:
            continue
        raise Lost("a GGUF file was taken for another one")


Parse = Callable[[Case, str, bytes], None]
PARSERS: dict[str, tuple[str, Parse]] = {
    "tokenizer files": (
        "groundup_tokenizer.json huggingface_tokenizer.json vocab.json merges.txt ranks.tiktoken",
        _tokenizer,
    ),
    "index.json of shards": ("index.json shards/index.json", _shard_index),
    "unfinished.json of shards": ("index.json", _journal),
    "safetensors": ("*.safetensors", _safetensors),
    "state.json of a checkpoint": ("runs/whole/checkpoints/*/state.json", _state),
    "GGUF": ("*.gguf", _not_ours),
    "settings": ("run.yaml sweep.yaml aliases.yaml", _settings),
    "config.yaml of a run": ("runs/whole/config.yaml", _run_settings),
    "metrics": ("metrics.jsonl runs/whole/metrics.jsonl", _metrics),
    "Hugging Face checkpoint": (
        "export/config.json export/model.safetensors export/tokenizer.json",
        _export,
    ),
    "texts": ("texts.*", _texts),
}
