"""`groundup tokenizer convert`: rewrite a tokenizer file in another format."""

from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from groundup.cli.shared import SplitFlags


class Arguments(SplitFlags):
    """Rewrite a tokenizer file in another format."""

    source: Positional[Path]
    """The tokenizer file (or a folder with one); its format is known by its content."""

    out: Positional[Path]
    """The file to write; for gpt2 a folder, or the vocabulary with merges.txt beside it."""

    to: Literal["groundup", "huggingface", "tiktoken", "gpt2"] = "groundup"
    """The format to write."""


def run(arguments: Arguments) -> None:
    """Read, write, and say what the new file leaves out."""
    from groundup.tokenizer.formats import write_definition

    definition = arguments.read(arguments.source)
    paths = write_definition(definition, arguments.out, arguments.to)
    print(f"wrote {' and '.join(map(str, paths))}: {len(definition.vocab):,} tokens")
    if arguments.to == "tiktoken":
        print(f"a ranks file holds no split pattern; this one's is {definition.pattern.name}")
    if arguments.to in ("tiktoken", "gpt2") and definition.special_tokens:
        names = list(definition.special_tokens.items())
        shown = ", ".join(f"{text} ({id})" for text, id in names[:5])
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        print(f"name its special tokens when you load it: {shown}{more}")
    if arguments.to in ("tiktoken", "gpt2") and definition.chat_template is not None:
        print("the chat template is left out: this format has no place for one")
