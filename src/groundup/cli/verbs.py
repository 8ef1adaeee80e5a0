"""The verbs with their one-line summaries; their modules are imported on demand."""

import importlib
from typing import Any

VERBS = {
    "new": "train a model on your own text, in minutes",
    "quickstart": "train a small story model on a built-in corpus",
    "plan": "show parameters, FLOPs, memory, time and price of a model",
    "train": "train a model on shards, or resume a run",
    "more": "continue training a run on unseen or new text",
    "tune": "fine-tune a model on conversations (SFT), so that it answers",
    "evaluate": "evaluate trained models: loss, perplexity, bits per byte",
    "generate": "generate text with a trained model, streamed token by token",
    "chat": "talk to a model in the terminal",
    "serve": "serve models: an OpenAI-compatible API and web pages",
    "export": "export a trained model to transformers, llama.cpp or Ollama",
    "import huggingface": "import a Hugging Face checkpoint as a run",
    "verify-resume": "prove that a killed and resumed run equals an uninterrupted one",
    "sweep": "run a resumable sweep over settings and seeds",
    "list": "list runs: age, size, loss, and what you can do with them",
    "report": "compare runs on one page: curves, intervals, settings, cost",
    "tokenizer train": "learn a byte-level BPE vocabulary",
    "tokenizer encode": "encode text into ids",
    "tokenizer decode": "decode ids into text",
    "tokenizer inspect": "show how a text is tokenized: bytes, pre-tokens, merges",
    "tokenizer compare": "compare tokenizers on texts: bytes per token, speed",
    "tokenizer convert": "convert a tokenizer file to another format",
    "data sample": "write the built-in corpus of short stories",
    "data clean": "remove duplicates and low-quality documents",
    "data prepare": "tokenize a corpus into shards",
    "data verify": "verify shards against their index and tokenizer",
    "completion": "print a shell completion script",
}

MEANT = {
    "continue": "more RUN",
    "resume": "train --name RUN --resume",
    "talk": "chat RUN",
    "compare": "evaluate RUN RUN FILE, or report RUN RUN",
    "ablate": "sweep configs/sweep/ablations.yaml",
    "download": "import huggingface FOLDER",
}
"""Other names that users try, and the command to use instead."""

GROUPS = {
    "tokenizer": "text to ids and back",
    "data": "corpora and shards",
    "import": "models from other projects",
}


_HOMES = {
    "tokenizer": "tokenizer",
    "data": "data",
    "export": "export",
    "import": "export",
}
"""Modules that contain several verbs, by the verbs' first word."""


def find_verb(verb: str) -> tuple[Any, Any]:
    """The class of a verb's arguments and its function: `Arguments` and `run` in its own module, or
    for example `Encode` and `encode` in a shared one."""
    first, last = verb.split()[0], verb.split()[-1]
    name = _HOMES.get(first, verb.replace(" ", "_").replace("-", "_"))
    module = importlib.import_module(f"groundup.cli.{name}")
    names = (last.capitalize(), last) if first in _HOMES else ("Arguments", "run")
    return getattr(module, names[0]), getattr(module, names[1])
