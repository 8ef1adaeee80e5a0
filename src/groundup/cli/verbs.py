"""The table of verbs: what each is called, what it does in a line, where it lives.

Nothing here imports a verb; `main` does that once it knows which one is wanted.
"""

from typing import NamedTuple


class Verb(NamedTuple):
    """One command: `groundup` followed by `name`, run by the module `module`."""

    name: str
    summary: str

    @property
    def module(self) -> str:
        return "groundup.cli." + self.name.replace(" ", "_").replace("-", "_")


VERBS = {
    verb.name: verb
    for verb in (
        Verb("new", "go from your own text to a trained model, in minutes"),
        Verb("quickstart", "walk from a built-in corpus to a model of little stories"),
        Verb("plan", "know the cost first: parameters, FLOP, memory, time, price"),
        Verb("train", "train a model on shards, or resume a run"),
        Verb("tune", "tune a trained model on conversations, so that it answers"),
        Verb("evaluate", "evaluate a trained model: loss, perplexity, bits per byte"),
        Verb("generate", "generate text with a trained model, streamed token by token"),
        Verb("serve", "serve a model: an API, a playground, learning curves"),
        Verb("export", "export a trained model to transformers or llama.cpp"),
        Verb("import huggingface", "make a run folder from a Hugging Face checkpoint"),
        Verb("verify-resume", "prove that a killed and resumed run equals an uninterrupted one"),
        Verb("sweep", "try many settings around one base run, resumable, with seeds"),
        Verb("ablate", "find what each part of a recipe is worth, at its own best learning rate"),
        Verb("scaling", "fit loss over size and compute, and test the prediction"),
        Verb("report", "compare runs on one page: curves, intervals, settings, cost, samples"),
        Verb("tokenizer train", "learn a vocabulary from text"),
        Verb("tokenizer encode", "encode text into ids"),
        Verb("tokenizer decode", "decode ids into text"),
        Verb("tokenizer inspect", "show how a text becomes ids: bytes, pre-tokens, merges"),
        Verb("tokenizer compare", "compare tokenizers on texts: bytes per token, speed"),
        Verb("tokenizer convert", "rewrite a tokenizer file in another format"),
        Verb("data sample", "write the built-in corpus of little stories"),
        Verb("data download", "fetch a public corpus"),
        Verb("data clean", "leave out duplicates and poor documents"),
        Verb("data prepare", "encode a corpus into shards"),
        Verb("data verify", "check shards against their index and tokenizer"),
    )
}

GROUPS = {
    "tokenizer": "text to ids and back",
    "data": "corpora and shards",
    "import": "models of other projects",
}
