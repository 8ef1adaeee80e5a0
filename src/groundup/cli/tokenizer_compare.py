"""`groundup tokenizer compare`: tokenizers side by side on each text."""

import json
import time
from pathlib import Path
from typing import Any

from pydantic import Field

from groundup.cli.arguments import Positional
from groundup.cli.shared import ReadingFlags
from groundup.errors import DataError

# The encoder has seen the words from the second on; the best counts.
_NUM_PASSES = 3


class Arguments(ReadingFlags):
    """Compare tokenizers on texts: bytes per token, tokens per second, time for a large corpus."""

    tokenizers: Positional[tuple[Path, ...]]
    """Tokenizer files that say their split pattern; groundup tokenizer convert adds one."""

    texts: tuple[str, ...]
    """The texts: files, folders or globs, measured one by one."""

    corpus_gb: float = Field(default=825, gt=0)
    """Corpus size for the estimated encoding time. Default: The Pile."""

    num_threads: int | None = Field(default=None, ge=1)
    """Number of threads. Default: all cores."""

    json_: bool = False
    """Print a JSON list instead of a table."""


def run(arguments: Arguments) -> None:
    """Measure every tokenizer on every text and print one table."""
    from groundup.cli.terminal import print_records
    from groundup.text_files import read_document_batches
    from groundup.tokenizer import Tokenizer
    from groundup.tokenizer.training import bytes_per_token

    tokenizers = {str(path): Tokenizer.load(path) for path in arguments.tokenizers}
    records: list[dict[str, Any]] = []
    for text in arguments.texts:
        batches = list(read_document_batches([text], **arguments.reading))
        num_bytes = sum(int((one.bounds[:, 1] - one.bounds[:, 0]).sum()) for one in batches)
        if not num_bytes:
            raise DataError(f"no text in {text}; name files with text")
        for name, tokenizer in tokenizers.items():
            seconds = []
            for _ in range(_NUM_PASSES):
                began, num_tokens = time.perf_counter(), 0
                for one in batches:
                    parts = one.data, one.bounds, arguments.num_threads
                    num_tokens += len(tokenizer.encode_documents(*parts)[0])
                # Some clocks stand still for as long.
                seconds.append(max(time.perf_counter() - began, 1e-6))
            record = {"text": text, "tokenizer": name, "vocab_size": len(tokenizer.vocab)}
            record |= {"num_bytes": num_bytes, "num_tokens": num_tokens}
            record |= {"bytes_per_token": bytes_per_token(num_bytes, num_tokens)}
            record |= {"tokens_per_second": num_tokens / min(seconds)}
            record |= {"corpus_seconds": arguments.corpus_gb * 1e9 * seconds[0] / num_bytes}
            records.append(record)
    if arguments.json_:
        print(json.dumps(records, ensure_ascii=False, indent=2))
        return
    print_records(f"tokenizers compared, with the time for {arguments.corpus_gb:,g} GB", records)
