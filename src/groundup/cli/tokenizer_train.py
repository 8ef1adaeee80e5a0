"""`groundup tokenizer train`: learn a vocabulary from text and write it as one JSON file."""

from dataclasses import asdict
from pathlib import Path

from groundup.cli.arguments import Repeated
from groundup.cli.shared import CorpusFlags
from groundup.cli.terminal import as_text, print_values
from groundup.errors import ConfigError


class Arguments(CorpusFlags):
    """Train a byte-level BPE tokenizer and write it as one JSON file."""

    vocab_size: int = 10_000
    """Vocabulary size: 256 bytes, merges and special tokens."""

    special_token: Repeated[tuple[str, ...]] = ()
    """Special token, kept whole; repeatable. Default: <|endoftext|>."""

    out: Path = Path("tokenizer.json")
    """The tokenizer file to write."""

    pattern: str = "gpt2"
    """Split pattern: gpt2, cl100k, o200k, llama3, qwen2, deepseek, or a regular expression."""

    superbpe_from: int | None = None
    """Merges within words; the later ones go across them, up to four words a token (SuperBPE)."""


def run(arguments: Arguments) -> None:
    """Train, write the file, print the summary."""
    from groundup.text_files import Reading, check_not_input, find_sources, nothing_in
    from groundup.tokenizer import Tokenizer
    from groundup.tokenizer.training import train_from_files

    out = arguments.out
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; name the tokenizer file to write")
    how = Reading(**arguments.reading)
    sources = find_sources(arguments.files, how)
    check_not_input(out, sources)
    special_tokens = list(map(as_text, arguments.special_token)) or ["<|endoftext|>"]
    with arguments.work("learning the vocabulary") as work:
        learned, summary = train_from_files(
            sources,
            arguments.vocab_size,
            special_tokens,
            pattern=arguments.pattern,
            superbpe_from=arguments.superbpe_from,
            **work,
        )
        if not summary.num_words:
            raise nothing_in(sources, how)
    Tokenizer.from_definition(learned).save(out)
    values = asdict(summary)
    longest = [repr(token.decode("utf-8", "replace")[:24]) for token in summary.longest_tokens[:8]]
    values["longest_tokens"] = " ".join(longest)
    print_values(f"wrote {out}", values)
    if summary.vocab_size_reached < summary.vocab_size_requested:
        print("the text ran out of pairs to merge")
