"""Flipped bits, lost ends and zeroed blocks in every artefact: refused, or of no consequence.

Where a file carries a checksum, or another file carries one of it, damage must be refused. Formats
of others have none: there a damaged file may be taken for another sound one, without a crash.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from artefacts import Artefacts
from harness import Case, Child, Lost, bounded
from verbs import contents

from groundup.checkpoint import CheckpointFolder
from groundup.data.shards import read_index, verify
from groundup.errors import GroundupError
from groundup.generation import LanguageModel
from groundup.interop import import_huggingface
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.reference import encode_reference

PROBE = "Once upon a time, it's 3 o'clock — naïve 雨 cats.\n\n  <|endoftext|> The end of the story."


def damage(case: Case) -> None:
    """Damage one file, and do with it what a user does."""
    artefacts = Artefacts(case.work)
    name = case.pick(list(DAMAGED))
    case.row = f"damaged: {name}"
    file, use = DAMAGED[name]
    source = artefacts.folder / file.split("/")[0]
    copy = case.place / source.name
    if source.is_dir():
        shutil.copytree(source, copy)
    else:
        shutil.copy(source, copy)
    # A run has several checkpoints, and an export may have a name of its own choice.
    (path,) = sorted(case.place.glob(file))[-1:]
    before = path.read_bytes()
    after = spoil(before, case.random)
    path.write_bytes(after)
    if after == before:
        return
    try:
        with bounded(case, 300 * 2**20, 60):
            use(case, artefacts, copy)
    except GroundupError:
        return
    except OSError as error:
        raise Lost(f"{type(error).__name__}: {error}") from error


def spoil(data: bytes, rng: random.Random) -> bytes:
    """Bytes as a bad disk, a bad memory or a broken transfer leaves them."""
    place = rng.randrange(len(data))
    match rng.randrange(4):
        case 0 | 1:
            return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
        case 2:
            return data[:place]
        case _:
            begin = place // 512 * 512
            return data[:begin] + bytes(len(data[begin : begin + 512])) + data[begin + 512 :]


def _use_own_tokenizer(case: Case, artefacts: Artefacts, copy: Path) -> None:
    if Tokenizer.load(copy).id != Tokenizer.load(artefacts.tokenizer).id:
        raise Lost("a damaged tokenizer was taken for a sound one")


def _use_foreign_tokenizer(case: Case, artefacts: Artefacts, copy: Path) -> None:
    path = next(path for path in copy.iterdir() if path.name == case.row.split()[-1])
    tokenizer = Tokenizer.load(path if path.name != "merges.txt" else copy / "vocab.json")
    check_tokenizer(tokenizer)


def check_tokenizer(tokenizer: Tokenizer) -> None:
    """Whatever it is, it must be one: the ids of the reference, and the text back."""
    ids = tokenizer.encode(PROBE)
    if ids != encode_reference(tokenizer.definition, PROBE):
        raise Lost("its ids are not those of the reference")
    if tokenizer.decode(ids) != PROBE:
        raise Lost("its ids do not give the text back")


def _use_shards(case: Case, artefacts: Artefacts, copy: Path) -> None:
    verify(copy, Tokenizer.load(artefacts.tokenizer))
    found, expected = read_index(copy), read_index(artefacts.shards)
    for name in ("dtype", "vocab_size", "tokenizer", "end", "splits"):
        if getattr(found, name) != getattr(expected, name):
            raise Lost(f"verified although {name} in index.json is wrong")
    if case.row.endswith("shard"):
        raise Lost("verified although a shard is damaged")


def _use_checkpoint(case: Case, artefacts: Artefacts, copy: Path) -> None:
    checkpoint = CheckpointFolder(copy / "whole" / "checkpoints").newest()
    sound = CheckpointFolder(artefacts.run / "checkpoints").load(checkpoint.step)
    mine, other = checkpoint.model_state(), sound.model_state()
    if (
        not all(torch.equal(mine[name], other[name]) for name in other)
        or mine.keys() - other.keys()
    ):
        raise Lost("damaged weights were taken for sound ones")


def _use_run(case: Case, artefacts: Artefacts, copy: Path) -> None:
    if not torch.equal(_logits(copy / "whole"), _sound_logits(artefacts.run)):
        raise Lost("the model computes something else, and nothing was said")


def _logits(run: Path) -> torch.Tensor:
    language_model = LanguageModel.load(run, device="cpu")
    with torch.no_grad():
        return language_model.model(torch.arange(12)[None])


@cache
def _sound_logits(run: Path) -> torch.Tensor:
    return _logits(run)


def _resume(case: Case, artefacts: Artefacts, copy: Path) -> None:
    ended = Child(case.place, ["train", "--name", "half", "--resume"]).wait()
    ended.check()
    if ended.status:
        if "metrics" in case.row:
            raise Lost(f"a sound run could not go on: {ended.error[-300:]}")
        return
    expected = contents(artefacts.run / "checkpoints")
    found = contents(copy / "half" / "checkpoints")
    newest = [path for path in expected if path.startswith("step_000040/model")]
    if any(found.get(path) != expected[path] for path in newest):
        raise Lost("the resumed run ended with other weights, and nothing was said")


def _import(case: Case, artefacts: Artefacts, copy: Path) -> None:
    import_huggingface(copy, "back", runs_folder=case.place / "runs_back")
    _logits(case.place / "runs_back" / "back")


def _report(case: Case, artefacts: Artefacts, copy: Path) -> None:
    run = str(copy / "whole")
    ended = Child(case.place, ["report", run, "--out", "report.html"]).wait()
    ended.check()


Use = Callable[[Case, Artefacts, Path], Any]
DAMAGED: dict[str, tuple[str, Use]] = {
    "tokenizer.json": ("tokenizer.json", _use_own_tokenizer),
    "foreign huggingface.json": ("foreign/huggingface.json", _use_foreign_tokenizer),
    "foreign vocab.json": ("foreign/vocab.json", _use_foreign_tokenizer),
    "foreign merges.txt": ("foreign/merges.txt", _use_foreign_tokenizer),
    "foreign ranks.tiktoken": ("foreign/ranks.tiktoken", _use_foreign_tokenizer),
    "shard": ("shards/train_*.bin", _use_shards),
    "index.json of shards": ("shards/index.json", _use_shards),
    "model.safetensors of a checkpoint": (
        "runs/whole/checkpoints/*/model.safetensors",
        _use_checkpoint,
    ),
    "optimizer.safetensors of a checkpoint": (
        "runs/half/checkpoints/*/optimizer.safetensors",
        _resume,
    ),
    "state.json of a checkpoint": ("runs/whole/checkpoints/*/state.json", _use_checkpoint),
    "config.yaml of a run, generating": ("runs/whole/config.yaml", _use_run),
    "config.yaml of a run, resuming": ("runs/half/config.yaml", _resume),
    "environment.json of a run": ("runs/half/environment.json", _resume),
    "metrics.jsonl, resuming": ("runs/half/metrics.jsonl", _resume),
    "metrics.jsonl, reporting": ("runs/whole/metrics.jsonl", _report),
    "model.safetensors of an export": ("export/model.safetensors", _import),
    "config.json of an export": ("export/config.json", _import),
    "tokenizer.json of an export": ("export/tokenizer.json", _import),
}
