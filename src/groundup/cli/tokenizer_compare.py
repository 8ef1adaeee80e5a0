"""`groundup tokenizer compare`: tokenizers side by side on each text."""

import json
from dataclasses import asdict
from pathlib import Path

from pydantic import Field

from groundup.cli.arguments import Positional
from groundup.cli.shared import ReadingFlags
from groundup.errors import DataError


class Arguments(ReadingFlags):
    """Compare tokenizers on texts: bytes per token, tokens per second, time for a large corpus."""

    tokenizers: Positional[tuple[Path, ...]]
    """Tokenizer files that say their split pattern; groundup tokenizer convert adds one."""

    texts: tuple[str, ...]
    """The texts: files, folders or globs, measured one by one."""

    corpus_gb: float = Field(default=825, gt=0)
    """Size of the corpus whose encoding time is estimated; The Pile's if not given."""

    num_threads: int | None = Field(default=None, ge=1)
    """Threads to encode with; all cores if not given."""

    json_: bool = False
    """Print a JSON list instead of a table."""


def run(arguments: Arguments) -> None:
    """Measure every tokenizer on every text and print one table."""
    from groundup.cli.terminal import print_records
    from groundup.experiments.tokenizer_comparison import compare_tokenizers
    from groundup.text_files import read_document_batches
    from groundup.tokenizer import Tokenizer

    tokenizers, texts = {str(path): Tokenizer.load(path) for path in arguments.tokenizers}, {}
    for text in arguments.texts:
        texts[text] = list(read_document_batches([text], **arguments.reading))
        if not any(one.bounds[-1, 1] for one in texts[text]):
            raise DataError(f"no text in {text}; name files with text")
    corpus_bytes = arguments.corpus_gb * 1e9
    results = compare_tokenizers(tokenizers, texts, corpus_bytes, arguments.num_threads)
    records = [asdict(result) for result in results]
    if arguments.json_:
        print(json.dumps(records, ensure_ascii=False, indent=2))
        return
    print_records(f"tokenizers compared, with the time for {arguments.corpus_gb:,g} GB", records)
