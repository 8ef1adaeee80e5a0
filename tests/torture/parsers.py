"""Damaged artefacts, and mutated bytes for everything that reads untrusted files.

If there is a checksum of a file, damage must be detected. Formats without checksums may accept a
damaged file as a different valid one. For any input, a parser returns a value or raises a
GroundupError, within limits of time and memory.
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from harness import Case, Child, Lost
from mutations import FRAGMENTS, mutate, spoil

from groundup.checkpoint import CheckpointFolder, load_weights
from groundup.checkpoint.record import pack, unpack_tree
from groundup.checkpoint.weights import read_weights
from groundup.config import load_settings
from groundup.data.shards import verify
from groundup.errors import DataError, GroundupError
from groundup.experiments.spec import SweepConfig
from groundup.files import hash_bytes
from groundup.generation import LanguageModel
from groundup.interop import import_huggingface
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.serving.runs_api import as_json
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.chat_template import ChatTemplate
from groundup.tokenizer.patterns import Pattern
from groundup.tokenizer.reference import encode_reference

CORPUS = Path(__file__).with_name("corpus")
_PROBE = (
    "Once upon a time, it's 3 o'clock — naïve 雨 cats.\n\n  <|endoftext|> The end of the story."
)

# Limits for a parser: CPU time, and wall time if it has a separate process.
_CPU_SECONDS, _SECONDS, _DAMAGE_SECONDS = 10, 20, 60


def damage(case: Case) -> None:
    """Damage one artefact, or replace it with a pipe: it is rejected, or changes no result."""
    case.row, case.what = "damaged artefacts", case.turn(DAMAGED)
    pattern, use = DAMAGED[case.what]
    sound, damaged = (shutil.copytree(case.made, case.place / name) for name in ("one", "other"))
    file = case.random.choice(sorted(damaged.glob(pattern)))
    data, is_pipe = file.read_bytes(), case.random.random() < 0.1 and file.suffix != ".jsonl"
    file.unlink()
    os.mkfifo(file) if is_pipe else file.write_bytes(spoil(data, case.random))
    is_damaged = is_pipe or file.read_bytes() != data
    signal.alarm(_DAMAGE_SECONDS)
    with answered():
        if use(damaged) != use(sound) or (is_damaged and file.suffix in (".bin", ".safetensors")):
            raise Lost("damage was taken for sound")


def fuzz(case: Case) -> None:
    """Mutate the inputs of one parser."""
    case.row, case.what = "fuzzed: files, templates, patterns", case.turn(PARSERS)
    patterns, parse = PARSERS[case.what]
    case.counts["injected"] = 20
    for _ in range(20):
        for root in (CORPUS, case.made):
            shutil.copytree(root, case.place, dirs_exist_ok=True)
        found = [path for one in patterns.split() for path in case.place.glob(one)]
        file = case.random.choice(sorted(found))
        file.write_bytes(data := mutate(file.read_bytes(), case.random))
        # Ends the process.
        signal.alarm(_SECONDS)
        # A file name in the input may be that of anything.
        with answered((64 << 20) + 100 * len(data)), contextlib.suppress(OSError):
            parse(case, file)
        shutil.rmtree(case.place)


@contextlib.contextmanager
def answered(most_bytes: int = 1 << 62) -> Iterator[None]:
    """Check that the block succeeds or raises a GroundupError, within limits of time and memory."""
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        yield
    except GroundupError as error:
        text = str(error)
        if not 10 < len(text) < 5_000 or "Traceback" in text:
            raise Lost(f"no sentence but {len(text)} characters: {text[:200]}") from None
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    if (seconds := time.process_time() - begin) > _CPU_SECONDS or growth > most_bytes:
        raise Lost(f"it took {seconds:.1f} s and grew by {growth >> 20} MB")


def read_shards(root: Path) -> object:
    index = verify(root / "shards", Tokenizer.load(root / "tokenizer.json"))
    return index.model_dump(include={"dtype", "vocab_size", "tokenizer", "end", "splits"})


def train_on(root: Path) -> object:
    """Train on the shards; damaged ones must be rejected."""
    words = ["train", "--config", "run.yaml", "--name", "new", "--num-steps", "1"]
    with tempfile.TemporaryDirectory() as runs:
        words += ["--data.shards", str(root / "shards"), "--runs-folder", runs]
        if status := Child(root, words).wait():
            raise DataError("the shards were refused")
    return status


def read_checkpoint(root: Path) -> object:
    checkpoint = CheckpointFolder(root / "runs/base/checkpoints").load(8)
    rest, tensors = pack([checkpoint.model_state(), checkpoint.optimizer_state()])
    return checkpoint.record, rest, {name: tensor.tolist() for name, tensor in tensors.items()}


def compute(root: Path) -> object:
    language_model = LanguageModel.load(root / "runs" / "base", device="cpu")
    with torch.no_grad():
        return language_model.model(torch.arange(12)[None]).tolist()


def resume(root: Path, may_refuse: bool = True) -> object:
    """Damaged settings are rejected or overridden by the checkpoint; metrics have no effect."""
    words = "train --config run.yaml --runs-folder runs --name base --resume --num-steps 8"
    if Child(root, words.split()).wait():
        raise DataError("the settings were refused") if may_refuse else Lost("a run is refused")
    return CheckpointFolder(root / "runs/base/checkpoints").load(8).record.files


Read = Callable[[Path], object]
DAMAGED: dict[str, tuple[str, Read]] = {
    "tokenizer": ("tokenizer.json", lambda root: Tokenizer.load(root / "tokenizer.json").id),
    "shard": ("shards/train_*.bin", read_shards),
    "shard, training": ("shards/train_*.bin", train_on),
    "index of shards": ("shards/index.json", read_shards),
    "weights of a checkpoint": ("runs/base/checkpoints/*8/*.safetensors", read_checkpoint),
    "state of a checkpoint": ("runs/base/checkpoints/*8/state.json", read_checkpoint),
    "settings of a run, generating": ("runs/base/config.yaml", compute),
    "settings of a run, resuming": ("runs/base/[cg]*.*", resume),
    "metrics of a run": ("runs/base/m*", partial(resume, may_refuse=False)),
}


def use_tokenizer(case: Case, path: Path) -> None:
    """A tokenizer that loads must match the reference and round-trip the text."""
    # The two files of the gpt2 format are read together.
    tokenizer = Tokenizer.load(path.with_name(path.name.replace("merges.txt", "vocab.json")))
    if tokenizer.vocab_size > 100_000:
        return
    ids = tokenizer.encode(_PROBE)
    if ids != encode_reference(tokenizer.definition, _PROBE) or tokenizer.decode(ids) != _PROBE:
        raise Lost("its ids are not those of the reference, or do not give the text back")


def template(case: Case, _: Path) -> None:
    rng = case.random
    parts = rng.choices(FRAGMENTS["templates"], k=rng.choice((1, 2, 3, 6, 30)))
    source = "".join(part * rng.choice((1, 1, 1, 2, 25)) for part in parts)
    ChatTemplate(source).render([{"role": "user", "content": "hi"}])


def pattern(case: Case, _: Path) -> None:
    """A pattern that is accepted must split all of a text, in linear time."""
    rng = case.random
    stages = tuple(
        "".join(rng.choices(FRAGMENTS["patterns"], k=rng.choice((1, 3, 9, 40)))) for _ in range(2)
    )
    made = Pattern("fuzzed", stages[: rng.choice((1, 1, 2))])
    text = "".join(rng.choices(("a", "ab ", "\r\n", "雨", "é1", " ", "aaaa", "x"), k=6_000))
    if "".join(made.split(text)) != text:
        raise Lost(f"{stages} does not give all of the text")


def parse_state(case: Case, path: Path) -> None:
    if case.random.random() < 0.7:
        # With a valid hash, as an attacker would write it.
        with contextlib.suppress(ValueError, RecursionError, AttributeError, TypeError):
            value = json.loads(path.read_bytes())
            value.pop("hash", None)
            body = json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")
            path.write_bytes(json.dumps({**value, "hash": hash_bytes(body)}).encode())
    CheckpointFolder(path.parents[1]).best()


def parse_settings(case: Case, path: Path) -> None:
    kind = SweepConfig if path.name == "sweep.yaml" else RunConfig
    config = path.rename(path.with_name("config.yaml"))
    json.dumps(as_json(RunFolder(path.parent).read_settings()).decode())
    load_settings(kind, config)


def parse_gguf(case: Case, path: Path) -> None:
    for load in (load_weights, Tokenizer.load):
        with contextlib.suppress(GroundupError):
            load(path)
            raise Lost("a GGUF file was taken for another one")


def use_export(case: Case, path: Path) -> None:
    import_huggingface(path.parent, "back", runs_folder=case.place / "runs")
    LanguageModel.load(case.place / "runs" / "back", device="cpu")


PARSERS: dict[str, tuple[str, Callable[[Case, Path], object]]] = {
    "tokenizer files": (
        "groundup_tokenizer.json huggingface_tokenizer.json vocab.json merges.txt ranks.tiktoken",
        use_tokenizer,
    ),
    "index.json of shards": ("index.json shards/index.json", lambda _, path: verify(path.parent)),
    "safetensors": ("*.safetensors", lambda _, path: unpack_tree(*read_weights(path), "it")),
    "state.json of a checkpoint": ("runs/base/checkpoints/*/state.json", parse_state),
    "GGUF": ("*.gguf", parse_gguf),
    "settings": ("run.yaml sweep.yaml aliases.yaml", parse_settings),
    # Other valid settings may give other results.
    "config.yaml of a run": ("runs/base/config.yaml", lambda case, _: compute(case.place)),
    "Hugging Face checkpoint": ("export/[ct]o*.json export/model.safetensors", use_export),
    "chat templates": ("run.yaml", template),
    "patterns": ("run.yaml", pattern),
}
