"""Damage in every artefact and mutated bytes for every parser of files.

Where a file carries a checksum, or another file carries one of it, damage must be refused. Formats
of others have none: there a damaged file may be taken for another sound one. A parser gives a value
or a clean error, soon and in bounds, whatever it is fed; its inputs are those of corpus/, which are
a few bytes each, and the run's own artefacts.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from harness import Case, Child, Lost, bounded
from mutations import mutate, spoil
from writers import contents

from groundup.checkpoint import CheckpointFolder, load_weights
from groundup.checkpoint.record import unpack_tree
from groundup.checkpoint.weights import read_weights
from groundup.config import load_settings
from groundup.data.prepare.writing import Sidecar
from groundup.data.shards import read_index, verify
from groundup.data.shards.index import read_record
from groundup.errors import GroundupError
from groundup.experiments.spec import SweepConfig
from groundup.files import hash_bytes, read_json_lines
from groundup.generation import LanguageModel
from groundup.interop import import_huggingface
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runs.metrics_file import MetricsReader, read_metrics, read_newest
from groundup.serving.runs_api import as_json, lines_after
from groundup.text_files import read_document_batches
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.reference import encode_reference

CORPUS = Path(__file__).with_name("corpus")
PROBE = "Once upon a time, it's 3 o'clock — naïve 雨 cats.\n\n  <|endoftext|> The end of the story."


def damage(case: Case) -> None:
    """Damage one artefact, and do with it what a user does."""
    name = case.pick(list(DAMAGED))
    case.row = f"damaged: {name}"
    file, use = DAMAGED[name]
    # A run has several checkpoints: the newest counts.
    change(case, sorted(case.made.glob(file))[-1], spoil, use)


def fuzz(case: Case) -> None:
    """Mutate one input of one parser."""
    name = case.pick(list(PARSERS))
    case.row = f"fuzzed: {name}"
    files, parse = PARSERS[name]
    roots = (CORPUS, case.made)
    found = [path for file in files.split() for root in roots for path in root.glob(file)]
    try:
        change(case, case.random.choice(sorted(found)), mutate, parse)
    except OSError:
        # Names in a file may be those of anything.
        return


def change(
    case: Case, source: Path, alter: Callable[[bytes, random.Random], bytes], use: Use
) -> None:
    """Alter a copy of a file, beside copies of what belongs to it, and use it."""
    data = alter(source.read_bytes(), case.random)
    if source.parent == CORPUS:
        shutil.copytree(CORPUS, case.place, dirs_exist_ok=True)
        copy = case.place / source.name
    else:
        copy = case.place / source.relative_to(case.made)
        top = copy.relative_to(case.place).parts[0]
        if copy.name != top:
            shutil.copytree(case.made / top, case.place / top)
    copy.write_bytes(data)
    if data == source.read_bytes():
        return
    try:
        with bounded(case, 64 * 2**20 + 100 * len(data), 10):
            use(case, copy)
    except GroundupError:
        return


def use_own_tokenizer(case: Case, path: Path) -> None:
    if Tokenizer.load(path).id != Tokenizer.load(case.made / "tokenizer.json").id:
        raise Lost("a damaged tokenizer was taken for a sound one")


def use_tokenizer(case: Case, path: Path) -> None:
    """Whatever it is, it must be one: the ids of the reference, and the text back."""
    # The two files of the gpt2 format are read together.
    tokenizer = Tokenizer.load(path.with_name(path.name.replace("merges.txt", "vocab.json")))
    if tokenizer.vocab_size > 100_000:
        return
    ids = tokenizer.encode(PROBE)
    try:
        expected = encode_reference(tokenizer.definition, PROBE)
    except KeyError:
        # The reference knows no vocabulary without some of the bytes; ours says so.
        raise Lost("ids for a text that the vocabulary cannot spell") from None
    if ids != expected:
        raise Lost("its ids are not those of the reference")
    if tokenizer.decode(ids) != PROBE:
        raise Lost("its ids do not give the text back")


def use_shards(case: Case, path: Path) -> None:
    verify(path.parent, Tokenizer.load(case.made / "tokenizer.json"))
    found, expected = read_index(path.parent), read_index(case.made / "shards")
    for name in ("dtype", "vocab_size", "tokenizer", "end", "splits"):
        if getattr(found, name) != getattr(expected, name):
            raise Lost(f"verified although {name} in index.json is wrong")
    if path.suffix == ".bin":
        raise Lost("verified although a shard is damaged")


def use_checkpoint(case: Case, path: Path) -> None:
    checkpoint = CheckpointFolder(path.parents[1]).newest()
    sound = CheckpointFolder(case.made / "runs/whole/checkpoints").load(checkpoint.step)
    mine, other = checkpoint.model_state(), sound.model_state()
    is_same = all(torch.equal(mine[name], other[name]) for name in other)
    if not is_same or mine.keys() != other.keys():
        raise Lost("damaged weights were taken for sound ones")


def use_run(case: Case, path: Path) -> None:
    if not torch.equal(logits_of(path.parent), sound_logits(case.made / "runs" / "whole")):
        raise Lost("the model computes something else, and nothing was said")


def logits_of(run: Path) -> torch.Tensor:
    language_model = LanguageModel.load(run, device="cpu")
    with torch.no_grad():
        return language_model.model(torch.arange(12)[None])


sound_logits = cache(logits_of)


def resume(case: Case, path: Path) -> None:
    ended = Child(case.place, ["train", "--name", "half", "--resume"]).wait()
    ended.check()
    if ended.status:
        if path.name == "metrics.jsonl":
            raise Lost(f"a sound run could not go on: {ended.error[-300:]}")
        return
    expected = contents(case.made / "runs" / "whole" / "checkpoints")
    found = contents(case.place / "runs" / "half" / "checkpoints")
    newest = [name for name in expected if name.startswith("step_000040/model")]
    if any(found.get(name) != expected[name] for name in newest):
        raise Lost("the resumed run ended with other weights, and nothing was said")


def report(case: Case, path: Path) -> None:
    words = ["report", str(path.parent), "--out", "report.html"]
    Child(case.place, words).wait().check()


def use_export(case: Case, path: Path) -> None:
    import_huggingface(path.parent, "back", runs_folder=case.place / "back")
    logits_of(case.place / "back" / "back")


Use = Callable[[Case, Path], object]
DAMAGED: dict[str, tuple[str, Use]] = {
    "tokenizer.json": ("tokenizer.json", use_own_tokenizer),
    "shard": ("shards/train_*.bin", use_shards),
    "index.json of shards": ("shards/index.json", use_shards),
    "weights of a checkpoint": ("runs/whole/checkpoints/*/model.safetensors", use_checkpoint),
    "optimizer of a checkpoint": ("runs/half/checkpoints/*/optimizer.safetensors", resume),
    "state.json of a checkpoint": ("runs/whole/checkpoints/*/state.json", use_checkpoint),
    "config.yaml of a run, generating": ("runs/whole/config.yaml", use_run),
    "config.yaml of a run, resuming": ("runs/half/config.yaml", resume),
    "environment.json of a run": ("runs/half/environment.json", resume),
    "metrics.jsonl, resuming": ("runs/half/metrics.jsonl", resume),
    "metrics.jsonl, reporting": ("runs/whole/metrics.jsonl", report),
}


def each_of(*calls: Callable[[], object]) -> None:
    """All are made, whether those before are refused or not."""
    for call in calls:
        with contextlib.suppress(GroundupError):
            call()


def parse_index(case: Case, path: Path) -> None:
    for shard in (case.made / "shards").glob("*.bin"):
        (path.parent / shard.name).unlink(missing_ok=True)
        (path.parent / shard.name).hardlink_to(shard)
    # Most of a sidecar is what an index says as well.
    sidecar = path.read_bytes().replace(b"groundup-shards", b"groundup-shard")
    each_of(partial(verify, path.parent, Tokenizer.load(case.made / "tokenizer.json")))
    path.with_name("shard_000000.json").write_bytes(sidecar)
    read_record(path.with_name("shard_000000.json"), Sidecar)


def parse_weights(case: Case, path: Path) -> None:
    unpack_tree(*read_weights(path), "the file")


def parse_state(case: Case, path: Path) -> None:
    if case.random.random() < 0.7:
        # With a hash that is right, as only a liar would write it.
        with contextlib.suppress(ValueError, RecursionError, AttributeError, TypeError):
            value = json.loads(path.read_bytes())
            value.pop("hash", None)
            body = json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")
            path.write_bytes(json.dumps({**value, "hash": hash_bytes(body)}).encode())
    folder = CheckpointFolder(path.parents[1])
    each_of(folder.newest, folder.best)


def parse_settings(case: Case, path: Path) -> None:
    kind = SweepConfig if path.name == "sweep.yaml" else RunConfig
    config = path.rename(path.with_name("config.yaml"))
    json.dumps(as_json(RunFolder(path.parent).read_settings()).decode())
    load_settings(kind, config)


def parse_metrics(case: Case, path: Path) -> None:
    as_json(lines_after(MetricsReader(path), 0, None, 100))
    as_json(read_newest(path).samples)
    read_metrics(path)
    path = path.rename(path.with_name("metrics.jsonl"))
    RunFolder(path.parent).cut_metrics(2)
    list(read_json_lines(path))


def parse_texts(case: Case, path: Path) -> None:
    def read(errors: Any) -> None:
        for batch in read_document_batches([path], errors=errors):
            for begin, end in batch.bounds.tolist():
                bytes(batch.data[begin:end]).decode("utf-8")

    each_of(*(partial(read, errors) for errors in ("strict", "replace", "skip")))


def parse_gguf(case: Case, path: Path) -> None:
    for load in (load_weights, Tokenizer.load):
        with contextlib.suppress(GroundupError):
            load(path)
            raise Lost("a GGUF file was taken for another one")


PARSERS: dict[str, tuple[str, Use]] = {
    "tokenizer files": (
        "groundup_tokenizer.json huggingface_tokenizer.json vocab.json merges.txt ranks.tiktoken",
        use_tokenizer,
    ),
    "index.json of shards": ("index.json shards/index.json", parse_index),
    "safetensors": ("*.safetensors", parse_weights),
    "state.json of a checkpoint": ("runs/whole/checkpoints/*/state.json", parse_state),
    "GGUF": ("*.gguf", parse_gguf),
    "settings": ("run.yaml sweep.yaml aliases.yaml", parse_settings),
    # Other settings may lawfully compute something else.
    "config.yaml of a run": ("runs/whole/config.yaml", lambda _, path: logits_of(path.parent)),
    "metrics": ("metrics.jsonl runs/whole/metrics.jsonl", parse_metrics),
    "Hugging Face checkpoint": (
        "export/config.json export/model.safetensors export/tokenizer.json",
        use_export,
    ),
    "texts": ("texts.*", parse_texts),
}
