"""The model card beside an export: results, settings and lineage, from the run folder alone.

Absolute paths, host names and command lines of the run stay in the run folder.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import yaml

from groundup import __version__
from groundup.files import hash_file
from groundup.generation.special_ids import IMPORTED_KEY
from groundup.interop.export_folder import CARD_TAG, DtypeName, Source
from groundup.nn.losses import perplexity
from groundup.planner.parameters import count_parameters
from groundup.runs.metrics_file import read_metrics

Library = Literal["transformers", "llama.cpp"]

# The settings that decided what the model became; paths on somebody's disk are not among them.
_SHOWN_SETTINGS = (
    *("num_steps", "batch_size", "seed", "precision", "clip_norm", "z_loss"),
    *("multi_token_weight", "model", "optimizer", "schedule"),
)

Rows = Iterable[tuple[str, str]]


def write_card(
    source: Source, *, library: Library, tag: str, dtype: DtypeName, content_ids: Mapping[str, str]
) -> str:
    """The text of README.md for an export that consists of the weight files named."""
    head = {
        "library_name": library,
        "pipeline_tag": "text-generation",
        "tags": [CARD_TAG, tag],
    }
    parts = [
        f"---\n{_yaml(head)}---",
        f"# {_cell(source.name)}",
        _summary(source, dtype),
        f"## Results\n\n{_table(_results(source))}",
        f"## Use\n\n{_usage(source, library, content_ids)}",
        f"## Settings\n\n```yaml\n{_yaml(_shown_settings(source))}```",
        f"## Lineage\n\n{_table(_lineage(source, content_ids))}",
    ]
    return "\n\n".join(parts) + "\n"


def _summary(source: Source, dtype: DtypeName) -> str:
    config = source.config
    origin = "trained with groundup"
    if IMPORTED_KEY in source.environment:
        origin = "imported into groundup"
    if source.tokenizer.chat_template is None:
        use = "It continues text; it was not taught to follow instructions and may"
    else:
        use = "It was tuned on conversations and answers by its chat template; it may"
    num_parameters = sum(count_parameters(config).values())
    data, masked = source.settings.get("data"), ""
    if isinstance(data, dict) and data.get("mask_documents") is True:
        masked = " It saw each document by itself: give it one document a prompt."
    return (
        f"A Transformer language model, {origin}: {num_parameters:,} parameters in {dtype}, "
        f"{config.num_layers} blocks of width {config.d_model}, a vocabulary of "
        f"{config.vocab_size:,} tokens and a context of {config.context_length:,}. {use} "
        f"generate anything its data suggests.{masked}"
    )


def _results(source: Source) -> Rows:
    """The last of each metric up to the step of the checkpoint."""
    yield "parameters", f"{sum(count_parameters(source.config).values()):,}"
    yield "step", f"{source.step:,}"
    metrics = read_metrics(source.folder.metrics_file)
    steps = metrics.column("step")

    def latest(name: str) -> float | None:
        known = metrics.indices(name) if steps else []
        index = max((index for index in known if steps[index] <= source.step), default=None)
        return metrics.at(name, index)

    if (tokens := latest("tokens")) is not None:
        yield "tokens", f"{int(tokens):,}"
    if (loss := latest("loss")) is not None:
        yield "training loss", f"{loss:.4f}"
    if (loss := latest("validation_loss")) is not None:
        yield "validation loss", f"{loss:.4f}"
        yield "validation perplexity", f"{perplexity(loss):.3f}"
    if (bits := latest("bits_per_byte")) is not None:
        yield "validation bits per byte", f"{bits:.4f}"


def _usage(source: Source, library: Library, content_ids: Mapping[str, str]) -> str:
    if library == "llama.cpp":
        file = shlex.quote(next(iter(content_ids)))
        return f"```text\nllama-cli -m {file} -no-cnv -p 'Once upon a time' -n 64 --temp 0.8\n```"
    return (
        "```python\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        'folder = "."  # where this file is\n'
        "tokenizer = AutoTokenizer.from_pretrained(folder)\n"
        "model = AutoModelForCausalLM.from_pretrained(folder)\n"
        'inputs = tokenizer("Once upon a time", return_tensors="pt")\n'
        "ids = model.generate(**inputs, max_new_tokens=64, do_sample=True, temperature=0.8)\n"
        "print(tokenizer.decode(ids[0]))\n"
        "```\n\n"
        f"A text and what follows it may have {source.config.context_length:,} tokens together; "
        "no special token is put before a text."
    )


def _shown_settings(source: Source) -> dict[str, Any]:
    if IMPORTED_KEY in source.environment and source.step == 0:
        # What an import writes besides the model are defaults for training on.
        return {"model": source.settings.get("model", {})}
    return {key: source.settings[key] for key in _SHOWN_SETTINGS if key in source.settings}


def _lineage(source: Source, content_ids: Mapping[str, str]) -> Rows:
    environment = source.environment
    yield "run", source.name
    yield "run settings", hash_file(source.folder.config_file)
    yield "checkpoint weights", source.weights_id
    yield "tokenizer", source.tokenizer.definition.content_id()
    data = environment.get("data")
    if isinstance(data, dict):
        yield "shards", str(data.get("content"))
        for split, count in dict(data.get("num_ids") or {}).items():
            yield f"ids for {split}", f"{count:,}"
    imported = environment.get(IMPORTED_KEY)
    if isinstance(imported, dict):
        yield "imported from", f"{imported.get('folder')} ({imported.get('architecture')})"
        for name, found in dict(imported.get("files") or {}).items():
            yield f"imported {name}", str(found)
    verb = "imported" if isinstance(imported, dict) else "trained"
    names = {"groundup": f"{verb} by groundup", "git_commit": "commit"}
    for key in ("groundup", "git_commit", "torch", "device", "started"):
        if environment.get(key):
            yield names.get(key, key), str(environment[key])
    yield "exported by groundup", __version__
    yield from content_ids.items()


def _table(rows: Rows) -> str:
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows]
    return "\n".join(["| | |", "| --- | --- |", *lines])


def _cell(text: str) -> str:
    """Text that is nothing but text in Markdown, in one line."""
    plain = " ".join(text.split())
    return "".join(
        f"\\{character}" if character in "\\|`*<>[]" else character for character in plain
    )


def _yaml(value: Any) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text
