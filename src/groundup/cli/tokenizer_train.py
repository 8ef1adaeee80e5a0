"""`groundup tokenizer train`: learn a vocabulary from text and write it as one JSON file."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import UseAppendAction

from groundup.cli.shared import CorpusFlags
from groundup.cli.terminal import as_text
from groundup.errors import ConfigError

if TYPE_CHECKING:
    from groundup.tokenizer.training import TrainingSummary


class Arguments(CorpusFlags):
    """Learn a vocabulary by byte-pair encoding and write it as one JSON file."""

    vocab_size: int = 10_000
    """Tokens in all: the 256 bytes, the merges and the special tokens."""

    special_token: UseAppendAction[tuple[str, ...]] = ()
    """A text kept whole that nothing merges across; repeat for more. Without any: <|endoftext|>."""

    out: Path = Path("tokenizer.json")
    """The tokenizer file to write."""

    pattern: str = "gpt2"
    """The split into pre-tokens: gpt2, cl100k, o200k, llama3, qwen2, deepseek or any regex."""

    max_memory: str | None = None
    """Bound on all memory, such as 2GB; counts beyond it go to disk, the result is the same, and
    what cannot be done within it is refused. With --engine ray it holds for every worker."""


def run(arguments: Arguments) -> None:
    """Train, write the file, print the summary."""
    from groundup.cli.terminal import progress_bar
    from groundup.runtime import peak_memory_bytes
    from groundup.text_files import check_not_input, find_sources
    from groundup.tokenizer.training import train_from_files

    if arguments.out.is_dir():
        raise ConfigError(f"--out {arguments.out} is a folder; name the tokenizer file to write")
    sources = find_sources(arguments.files, arguments.errors)
    check_not_input(arguments.out, sources)
    special_tokens = list(map(as_text, arguments.special_token)) or ["<|endoftext|>"]
    max_memory_bytes = None
    if arguments.max_memory:
        # The program itself counts too.
        max_memory_bytes = parse_memory(arguments.max_memory) - peak_memory_bytes()
    with arguments.connect() as engine, progress_bar("learning the vocabulary") as progress:
        tokenizer, summary = train_from_files(
            sources,
            arguments.vocab_size,
            special_tokens,
            pattern=arguments.pattern,
            num_threads=arguments.num_threads,
            max_memory_bytes=max_memory_bytes,
            progress=progress,
            engine=engine,
            **arguments.reading,
        )
    tokenizer.save(arguments.out)
    _print_summary(summary, arguments.out)


def parse_memory(text: str) -> int:
    """Read 2GB, 512 MB, 1.5GiB or a plain number of bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?\s*", text.lower())
    if match is None or float(match[1]) == 0:
        raise ConfigError(f"--max-memory must be an amount like 2GB or 512MB, got {text!r}")
    step = 1024 if match[3] else 1000
    power = " kmgt".index(match[2]) if match[2] else 0
    return int(float(match[1]) * step**power)


def _print_summary(summary: "TrainingSummary", out: Path) -> None:
    from groundup.cli.terminal import print_results, show_token
    from groundup.planner.quantities import show_bytes
    from groundup.runtime import format_duration

    reached = f"{summary.vocab_size_reached:,}"
    if summary.ran_out_of_pairs:
        reached += f" of {summary.vocab_size_requested:,}: the text ran out of pairs to merge"
    results = [
        ("text", show_bytes(summary.num_bytes)),
        ("distinct pre-tokens", f"{summary.num_words:,}"),
        ("vocabulary", reached),
        ("bytes per token", f"{summary.bytes_per_token:.3f}"),
        ("longest tokens", ", ".join(map(show_token, summary.longest_tokens[:8]))),
    ]
    results += [
        (name, f"{format_duration(seconds)}, peak memory {show_bytes(peak)}")
        for name, seconds, peak in summary.phases
    ]
    print_results(f"wrote {out}", results)
