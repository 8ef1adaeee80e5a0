"""The verbs, each with what it does in a line. Verb `a b-c` lives in the module `a_b_c`.

Nothing here imports a verb; `main` does that once it knows which one is wanted.
"""

VERBS = {
    "new": "go from your own text to a trained model, in minutes",
    "quickstart": "walk from a built-in corpus to a model of little stories",
    "plan": "know the cost first: parameters, FLOP, memory, time, price",
    "train": "train a model on shards, or resume a run",
    "more": "go on with a run: on text it has not read yet, or on more text",
    "tune": "tune a trained model on conversations, so that it answers",
    "evaluate": "evaluate trained models: loss, perplexity, bits per byte",
    "generate": "generate text with a trained model, streamed token by token",
    "chat": "talk to a model in the terminal",
    "serve": "serve a model: an API, a playground, learning curves",
    "export": "export a trained model to transformers, llama.cpp or Ollama",
    "import huggingface": "make a run folder from a Hugging Face checkpoint",
    "verify-resume": "prove that a killed and resumed run equals an uninterrupted one",
    "sweep": "try many settings around one base run, resumable, with seeds",
    "ablate": "find what each part of a recipe is worth, at its own best learning rate",
    "list": "list runs: age, size, loss, and what they can do",
    "report": "compare runs on one page: curves, intervals, settings, cost, samples",
    "tokenizer train": "learn a vocabulary from text",
    "tokenizer encode": "encode text into ids",
    "tokenizer decode": "decode ids into text",
    "tokenizer inspect": "show how a text becomes ids: bytes, pre-tokens, merges",
    "tokenizer compare": "compare tokenizers on texts: bytes per token, speed",
    "tokenizer convert": "rewrite a tokenizer file in another format",
    "data sample": "write the built-in corpus of little stories",
    "data clean": "leave out duplicates and poor documents",
    "data prepare": "encode a corpus into shards",
    "data verify": "check shards against their index and tokenizer",
    "completion": "let a shell complete groundup's words",
}

MEANT = {
    "continue": "more RUN",
    "resume": "train --name RUN --resume",
    "talk": "chat RUN",
    "compare": "evaluate RUN RUN FILE, or report RUN RUN",
    "download": "import huggingface FOLDER",
}
"""What people type for other words."""

GROUPS = {
    "tokenizer": "text to ids and back",
    "data": "corpora and shards",
    "import": "models of other projects",
}


def module_of(verb: str) -> str:
    return "groundup.cli." + verb.replace(" ", "_").replace("-", "_")
