"""`groundup tokenizer convert`: rewrite a tokenizer file in another format."""

from pathlib import Path
from typing import Literal

from groundup.cli.arguments import Positional
from groundup.cli.shared import SplitFlags


class Arguments(SplitFlags):
    """Rewrite a tokenizer file in another format."""

    source: Positional[Path]
    """The tokenizer file (or a folder with one); its format is known by its content."""

    out: Positional[Path]
    """The file to write; for gpt2 a folder, or the vocabulary with merges.txt beside it."""

    to: Literal["groundup", "huggingface", "gpt2"] = "groundup"
    """The format to write."""


def run(arguments: Arguments) -> None:
    """Read, write, and say what the new file leaves out."""
    from groundup.tokenizer.formats import write_definition

    definition = arguments.read(arguments.source)
    paths = write_definition(definition, arguments.out, arguments.to)
    print(f"wrote {' and '.join(map(str, paths))}: {len(definition.vocab):,} tokens")
    if arguments.to == "gpt2":
        special = ", ".join(definition.special_tokens) or "none"
        print(f"not in the file: pattern {definition.pattern.name}; special tokens {special}")
        if definition.chat_template is not None:
            print("not in the file: the chat template")
