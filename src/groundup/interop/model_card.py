"""Writes the model card of an export: results and lineage, read from the run folder.

Absolute paths, host names and command lines are left out.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import yaml

from groundup import __version__
from groundup.files import hash_file, write_text_atomic
from groundup.generation.special_ids import IMPORTED_KEY
from groundup.interop.export_folder import CARD_NAME, CARD_TAG, Source
from groundup.nn.losses import perplexity
from groundup.runs.metrics_file import read_metrics

_USAGE = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # where this file is
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder{code})
inputs = tokenizer("Once upon a time", return_tensors="pt")
ids = model.generate(**inputs, max_new_tokens=64)
print(tokenizer.decode(ids[0]))
```"""

Rows = Iterable[tuple[str, str]]


def write_card(
    folder: Path, source: Source, *, tag: str, dtype: str, weights: str, usage: str = ""
) -> None:
    """Write README.md. weights: name of the weight file. usage: if not with transformers."""
    head = {
        "library_name": tag if usage else "transformers",
        "pipeline_tag": "text-generation",
        "tags": list(dict.fromkeys([CARD_TAG, tag])),
    }
    # Our own architecture runs from the bundled modeling file.
    usage = usage or _USAGE.format(code=", trust_remote_code=True" if tag == CARD_TAG else "")
    files = [("exported by groundup", __version__), (weights, hash_file(folder / weights))]
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {_cell(source.name)}",
        describe(source, dtype),
        f"## Results\n\n{_table(_results(source))}",
        f"## Use\n\n{usage}",
        f"## Lineage\n\n{_table([*lineage(source), *files])}",
    ]
    write_text_atomic(folder / CARD_NAME, "\n\n".join(parts) + "\n")


def describe(source: Source, dtype: str) -> str:
    """Describe the model in one paragraph."""
    config = source.config
    verb = "imported into" if IMPORTED_KEY in source.environment else "trained with"
    if source.tokenizer.chat_template is None:
        use = "It continues text and is not trained to follow instructions."
    else:
        use = "It is fine-tuned on conversations: prompt it with its chat template."
    if config.document_separator is not None:
        use += " It was trained with document masking: give it one document per prompt."
    return (
        f"A Transformer language model, {verb} groundup: {source.num_parameters:,} parameters in "
        f"{dtype}, {config.num_layers} blocks of width {config.d_model}, a vocabulary of "
        f"{config.vocab_size:,} tokens and a context of {config.context_length:,}. {use}"
    )


def _results(source: Source) -> Rows:
    """Yield the latest value of each metric at the checkpoint's step."""
    yield "parameters", f"{source.num_parameters:,}"
    yield "step", f"{source.step:,}"
    metrics = read_metrics(source.folder.metrics_file)

    def latest(name: str) -> float | None:
        known = [i for i in metrics.indices(name) if metrics.step_of(i) <= source.step]
        return metrics.at(name, max(known, default=None))

    for name, title, form in (
        ("tokens", "tokens", ",.0f"),
        ("loss", "training loss", ".4f"),
        ("validation_loss", "validation loss", ".4f"),
        ("bits_per_byte", "validation bits per byte", ".4f"),
    ):
        if (value := latest(name)) is not None:
            yield title, f"{value:{form}}"
            if name == "validation_loss":
                yield "validation perplexity", f"{perplexity(value):.3f}"


def lineage(source: Source) -> Rows:
    """Yield the model's provenance: inputs by content id, and versions."""
    environment = source.environment
    yield "run", source.name
    yield "run settings", hash_file(source.folder.config_file)
    yield "checkpoint weights", source.weights_id
    yield "tokenizer", source.tokenizer.definition.content_id
    if isinstance(data := environment.get("data"), dict):
        yield "shards", str(data.get("content"))
    imported = environment.get(IMPORTED_KEY)
    verb = "trained"
    if isinstance(imported, dict):
        verb = "imported"
        yield "imported from", f"{imported.get('folder')} ({imported.get('architecture')})"
        for name, found in dict(imported.get("files") or {}).items():
            yield f"imported {name}", str(found)
    names = {"groundup": f"{verb} by groundup", "git_commit": "commit"}
    for key in ("groundup", "git_commit", "torch", "device", "started"):
        if environment.get(key):
            yield names.get(key, key), str(environment[key])


def _table(rows: Rows) -> str:
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows]
    return "\n".join(["| | |", "| --- | --- |", *lines])


def _cell(text: str) -> str:
    """Escape text for a Markdown table cell."""
    return re.sub(r"([\\|`*<>\[\]])", r"\\\1", " ".join(text.split()))
