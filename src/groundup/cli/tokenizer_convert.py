"""`groundup tokenizer convert`: rewrite a tokenizer file in another format."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional, UseAppendAction

from groundup.cli.streams import as_text


@dataclass(frozen=True)
class Arguments:
    """Rewrite a tokenizer file in another format."""

    source: Positional[Path]
    """The tokenizer file (or a folder with one); its format is known by its content."""

    out: Positional[Path]
    """The file to write; for gpt2 a folder, or the vocabulary with merges.txt beside it."""

    to: Literal["groundup", "huggingface", "tiktoken", "gpt2"] = "groundup"
    """The format to write."""

    pattern: str | None = None
    """The split pattern, for files that do not say theirs."""

    special_token: UseAppendAction[tuple[str, ...]] = ()
    """A special token besides the file's own; repeat for more."""


def run(arguments: Arguments) -> None:
    """Read, write, and say what the new file leaves out."""
    from groundup.tokenizer.formats import read_definition, write_definition

    definition = read_definition(
        arguments.source,
        pattern=arguments.pattern,
        special_tokens=list(map(as_text, arguments.special_token)) or None,
    )
    paths = write_definition(definition, arguments.out, arguments.to)
    print(f"wrote {' and '.join(map(str, paths))}: {len(definition.vocab):,} tokens")
    if arguments.to == "tiktoken":
        print(f"a ranks file holds no split pattern; this one's is {definition.pattern.name}")
    if arguments.to in ("tiktoken", "gpt2") and definition.special_tokens:
        names = list(definition.special_tokens.items())
        shown = ", ".join(f"{text} ({id})" for text, id in names[:5])
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        print(f"name its special tokens when you load it: {shown}{more}")
