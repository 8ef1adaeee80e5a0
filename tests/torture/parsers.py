"""Damage in every artefact, and made-up bytes for everything that reads files of strangers.

Where a file carries a checksum, or another file carries one of it, damage must be refused. Formats
of others have none: there a damaged file may be taken for another sound one. A parser gives a value
or one sentence, soon and in bounds, whatever it is fed.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from harness import Case, Child, Lost, bounded
from mutations import mutate, spoil

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
from groundup.tokenizer.chat_template import ChatTemplate
from groundup.tokenizer.patterns import Pattern
from groundup.tokenizer.reference import encode_reference

CORPUS = Path(__file__).with_name("corpus")
PROBE = "Once upon a time, it's 3 o'clock — naïve 雨 cats.\n\n  <|endoftext|> The end of the story."
# A template may take this long by itself; a busy machine may take as long again.
_TEMPLATE_SECONDS = 15

Use = Callable[[Case, Path], object]


def damage(case: Case) -> None:
    """Damage one artefact, and do with it what a user does."""
    name = case.pick(list(DAMAGED))
    case.row, case.what = "damaged artefacts", name
    file, use = DAMAGED[name]
    # A run has several checkpoints: the newest counts.
    change(case, sorted(case.made.glob(file))[-1], spoil, use)


def fuzz(case: Case) -> None:
    """Mutate one input of one parser, or make one up."""
    name = case.pick([*PARSERS, *MADE_UP])
    case.row, case.what = f"fuzzed: {name if name in MADE_UP else 'files'}", name
    if name in MADE_UP:
        with answered(), bounded(64 * 2**20, 10):
            MADE_UP[name](case.random)
        return
    files, parse = PARSERS[name]
    roots = (CORPUS, case.made)
    found = [path for file in files.split() for root in roots for path in root.glob(file)]
    # Names in a file may be those of anything.
    with contextlib.suppress(OSError):
        change(case, case.random.choice(sorted(found)), mutate, parse)


def change(
    case: Case, source: Path, alter: Callable[[bytes, random.Random], bytes], use: Use
) -> None:
    """Alter a copy of a file, beside copies of what belongs to it, and use it."""
    data = alter(source.read_bytes(), case.random)
    if data == source.read_bytes():
        return
    if source.parent == CORPUS:
        shutil.copytree(CORPUS, case.place, dirs_exist_ok=True)
        copy = case.place / source.name
    else:
        copy = case.place / source.relative_to(case.made)
        top = copy.relative_to(case.place).parts[0]
        if copy.name != top:
            shutil.copytree(case.made / top, case.place / top)
    copy.write_bytes(data)
    with answered(), bounded(64 * 2**20 + 100 * len(data), 10):
        use(case, copy)


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Work that may be refused, in one sentence."""
    try:
        yield
    except GroundupError as error:
        text = str(error)
        if not 10 < len(text) < 5_000 or "Traceback" in text:
            raise Lost(f"no sentence but {len(text)} characters: {text[:200]}") from None


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


def train_on(case: Case, path: Path) -> None:
    words = ["train", "--config", str(case.made / "run.yaml"), "--name", "r", "--num-steps", "1"]
    words += ["--data.shards", str(path.parent), "--runs-folder", str(case.place)]
    if Child(case.place, words).wait() == 0:
        raise Lost("trained on damaged shards")


def use_checkpoint(case: Case, path: Path) -> None:
    checkpoint = CheckpointFolder(path.parents[1]).newest()
    sound = CheckpointFolder(case.made / "runs/base/checkpoints").load(checkpoint.step)
    mine, other = checkpoint.model_state(), sound.model_state()
    is_same = all(torch.equal(mine[name], other[name]) for name in other)
    if not is_same or mine.keys() != other.keys():
        raise Lost("damaged weights were taken for sound ones")


def use_optimizer(case: Case, path: Path) -> None:
    CheckpointFolder(path.parents[1]).load(int(path.parent.name[5:])).optimizer_state()
    raise Lost("a damaged state of an optimizer was taken for a sound one")


def use_run(case: Case, path: Path) -> None:
    if not torch.equal(logits_of(path.parent), sound_logits(case.made / "runs" / "base")):
        raise Lost("the model computes something else, and nothing was said")


def logits_of(run: Path) -> torch.Tensor:
    language_model = LanguageModel.load(run, device="cpu")
    with torch.no_grad():
        return language_model.model(torch.arange(12)[None])


sound_logits = cache(logits_of)


def resume(case: Case, path: Path) -> None:
    """Damaged settings are refused, or the checkpoint knows better; metrics decide nothing."""
    words = ["train", "--config", str(case.made / "run.yaml"), "--name", "base", "--resume"]
    words += ["--model.tie-embeddings", "--num-steps", "8"]
    status = Child(case.place, words).wait()
    if path.name == "metrics.jsonl" and status:
        raise Lost("a sound run could not go on")
    folders = (root / "runs" / "base" / "checkpoints" for root in (case.place, case.made))
    mine, other = (CheckpointFolder(folder).load(8).record.files for folder in folders)
    if mine != other:
        raise Lost("the resumed run has other weights, and nothing was said")


def report(case: Case, path: Path) -> None:
    Child(case.place, ["report", str(path.parent), "--out", "report.html"]).wait()


def use_export(case: Case, path: Path) -> None:
    import_huggingface(path.parent, "back", runs_folder=case.place / "back")
    logits_of(case.place / "back" / "back")


DAMAGED: dict[str, tuple[str, Use]] = {
    "tokenizer.json": ("tokenizer.json", use_own_tokenizer),
    "shard": ("shards/train_*.bin", use_shards),
    "shard, training": ("shards/train_*.bin", train_on),
    "index.json of shards": ("shards/index.json", use_shards),
    "weights of a checkpoint": ("runs/base/checkpoints/*/model.safetensors", use_checkpoint),
    "optimizer of a checkpoint": ("runs/base/checkpoints/*/optimizer.safetensors", use_optimizer),
    "state.json of a checkpoint": ("runs/base/checkpoints/*/state.json", use_checkpoint),
    "config.yaml of a run, generating": ("runs/base/config.yaml", use_run),
    "config.yaml of a run, resuming": ("runs/base/config.yaml", resume),
    "environment.json of a run": ("runs/base/environment.json", resume),
    "metrics.jsonl, resuming": ("runs/base/metrics.jsonl", resume),
    "metrics.jsonl, reporting": ("runs/base/metrics.jsonl", report),
}


def each_of(*calls: Callable[[], object]) -> None:
    """All are made, whether those before are refused or not."""
    for call in calls:
        with contextlib.suppress(GroundupError):
            call()


def parse_index(case: Case, path: Path) -> None:
    for shard in (case.made / "shards").glob("*.bin"):
        shutil.copyfile(shard, path.parent / shard.name)
    # Most of a sidecar is what an index says as well.
    sidecar = path.read_bytes().replace(b"groundup-shards", b"groundup-shard")
    each_of(partial(verify, path.parent, Tokenizer.load(case.made / "tokenizer.json")))
    path.with_name("shard_000000.json").write_bytes(sidecar)
    read_record(path.with_name("shard_000000.json"), Sidecar)


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
    "safetensors": (
        "*.safetensors",
        lambda _, path: unpack_tree(*read_weights(path), "the file"),
    ),
    "state.json of a checkpoint": ("runs/base/checkpoints/*/state.json", parse_state),
    "GGUF": ("*.gguf", parse_gguf),
    "settings": ("run.yaml sweep.yaml aliases.yaml", parse_settings),
    # Other settings may lawfully compute something else.
    "config.yaml of a run": ("runs/base/config.yaml", lambda _, path: logits_of(path.parent)),
    "metrics": ("metrics.jsonl runs/base/metrics.jsonl", parse_metrics),
    "Hugging Face checkpoint": (
        "export/config.json export/model.safetensors export/tokenizer.json",
        use_export,
    ),
    "texts": ("texts.*", parse_texts),
}


# Fields first, so that most templates say something of a conversation.
_TEMPLATE = """
{{ messages[0].content }}|{% for m in messages %}|{{ m.role }}: {{ m['content'] }}|{% endfor %}
{{ 7 ** (10 ** 8) }}|{{ 'a' * 3000000000 }}|{% for i in range(99999) %}|{% endfor %}{% endfor %}
{% break %}|{{ raise_exception('no') }}|{% if add_generation_prompt %}|{% endif %}|{% else %}
{{ messages.__class__.__mro__ }}|{{ ''.join(messages) }}|{% set x = messages * 99999 %}|{{ x }}
{{ x.append(x) }}|{% macro f(a) %}{{ f(a) }}{% endmacro %}|{{ f(1) }}|{{ lipsum }}|{% raw %}
{{ '%99999999d' % 1 }}|{{ ('(' * 3000) }}|((((((((|]]]]|{#|{{|{% include 'a' %}|<|im_start|>
{{ messages | map(attribute='content') | list | tojson }}|{% generation %}|{{ 1 / 0 }}|é雨\ud800
""".split("|")


def template(rng: random.Random) -> None:
    """Compiled and rendered, or refused, each in a few seconds."""
    parts = rng.choices(_TEMPLATE, k=rng.choice((1, 2, 3, 6, 30)))
    source = "".join(part * rng.choice((1, 1, 1, 2, 25)) for part in parts)
    begin = time.monotonic()
    with answered():
        made = ChatTemplate(source)
        made.render([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}])
    if time.monotonic() - begin > _TEMPLATE_SECONDS:
        raise Lost(f"it took {time.monotonic() - begin:.1f} s: {source[:100]}")


_PATTERN = (
    r"a b ( ) [ ] ^ $ | * + ? {1,3} {3,} {,99} (?: (?= (?! (?<= (?<! (?i: (?> \p{L} \P{N} \s "
)
_PATTERN += r"\S \d \w . \b \Z \1 \x{110000} [^\s\p{L}] [a-z&&[^b]] é 雨 ++ *+ ?+ [[:alpha:]] \ - "
_PATTERN += r"(a|aa)+ (a*)*b (.*)* .* (?:a?){50}a{50}"


def pattern(rng: random.Random) -> None:
    """All of a text, cut in time that is linear in it, or a refusal."""
    pieces = _PATTERN.split()
    stages = tuple("".join(rng.choices(pieces, k=rng.choice((1, 3, 9, 40)))) for _ in range(2))
    made = Pattern("fuzzed", stages[: rng.choice((1, 1, 2))])
    text = "".join(rng.choices(("a", "ab ", "\r\n", "雨", "é1", " ", "aaaa", "x"), k=6_000))
    if "".join(made.split(text)) != text:
        raise Lost(f"{stages} does not give all of the text")


MADE_UP: dict[str, Callable[[random.Random], object]] = {
    "chat templates": template,
    "patterns": pattern,
}
