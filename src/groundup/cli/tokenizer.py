"""The tokenizer verbs: each a class of arguments and the function of its name."""

import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from groundup.cli.arguments import Positional, Repeated
from groundup.cli.shared import CorpusFlags, ReadingFlags, TokenizerFlags
from groundup.cli.terminal import as_text, print_records, print_values, printable
from groundup.config import Settings
from groundup.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy

_IDS_AT_ONCE = 1 << 16
# The encoder has cached the words after the first pass; the fastest pass counts.
_NUM_PASSES = 3


class Train(CorpusFlags):
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
    """Number of merges within words; later merges may join up to four words (SuperBPE)."""


def train(arguments: Train) -> None:
    from groundup.text_files import Reading, check_not_input, find_sources, no_text_error
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
            raise no_text_error(sources, how)
    Tokenizer.from_definition(learned).save(out)
    values = asdict(summary)
    longest = [repr(token.decode("utf-8", "replace")[:24]) for token in summary.longest_tokens[:8]]
    values["longest_tokens"] = " ".join(longest)
    print_values(f"wrote {out}", values)
    if summary.vocab_size_reached < summary.vocab_size_requested:
        print("the text ran out of pairs to merge")


class Encode(TokenizerFlags):
    """Encode text into ids."""

    file: Positional[str] = "-"
    """The text to encode, unpacked if it ends with .gz, .zst or .xz; - is standard input."""

    text: str | None = None
    """Encode this text instead of a file."""

    out: Path | None = None
    """Write the ids here, as .npy, .bin (uint16 or uint32) or text, instead of printing them."""


def encode(arguments: Encode) -> None:
    _check_files(arguments.file, arguments.text, "--text", arguments.out)
    tokenizer = arguments.load()
    text = read_text(arguments.file) if arguments.text is None else as_text(arguments.text)
    ids = tokenizer.encode_to_numpy(text)
    if arguments.out is None:
        sys.stdout.writelines(_as_text(ids))
    else:
        _write(ids, arguments.out)


class Decode(TokenizerFlags):
    """Decode ids into text; invalid UTF-8 becomes U+FFFD."""

    file: Positional[str] = "-"
    """The ids: text, .npy or .bin as `encode` writes them; - is standard input, as text."""

    ids: str | None = None
    """Decode these ids, such as "15496 995", instead of a file."""

    out: Path | None = None
    """Write the text here instead of printing it."""


def decode(arguments: Decode) -> None:
    from groundup.files import write_text_atomic

    _check_files(arguments.file, arguments.ids, "--ids", arguments.out)
    tokenizer = arguments.load()
    text = tokenizer.decode(_read_ids(arguments, tokenizer.vocab_size))
    if arguments.out is not None:
        write_text_atomic(arguments.out, text)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


class Inspect(TokenizerFlags):
    """Show how a text is tokenized: pre-tokens, bytes, and the merges applied."""

    text: Positional[str]
    """Text to tokenize."""


def inspect(arguments: Inspect) -> None:
    from groundup.tokenizer.inspection import explain

    pre_tokens = explain(arguments.load().definition, as_text(arguments.text))
    print(f"pre-tokens ({len(pre_tokens)})")
    for pre_token in pre_tokens:
        note = "  special token" if pre_token.is_special else ""
        if pre_token.is_whole_word:
            note = "  a vocabulary entry as a whole"
        print(f"  {pre_token.text!r}{note}")
        if not note:
            print(f"    bytes       {_line(pre_token.start)}")
        for step in pre_token.steps:
            print(f"    merge {step.rank + 1:<5} {_line(step.symbols)}")
        print(f"    ids         {' '.join(map(str, pre_token.ids))}")
    print(f"tokens\n  {_line([token for one in pre_tokens for token in one.tokens])}")
    ids = [id for pre_token in pre_tokens for id in pre_token.ids]
    print(f"ids ({len(ids)})\n  {' '.join(map(str, ids))}")


class Compare(ReadingFlags):
    """Compare tokenizers on texts: bytes per token, tokens per second, time for a large corpus."""

    tokenizers: Positional[tuple[Path, ...]]
    """Tokenizer files that include their split pattern; groundup tokenizer convert adds one."""

    texts: tuple[str, ...]
    """The texts: files, folders or globs, measured one by one."""

    corpus_gb: float = Field(default=825, gt=0)
    """Corpus size for the estimated encoding time. Default: The Pile."""

    num_threads: int | None = Field(default=None, ge=1)
    """Number of threads. Default: all cores."""

    json_: bool = False
    """Print a JSON list instead of a table."""


def compare(arguments: Compare) -> None:
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
                # A coarse clock may show 0.
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


class Convert(Settings):
    """Rewrite a tokenizer file in another format."""

    source: Positional[Path]
    """The tokenizer file, or a folder with one; the format is detected from the content."""

    out: Positional[Path]
    """The file to write."""

    to: Literal["groundup", "huggingface"] = "groundup"
    """The format to write."""

    pattern: str | None = None
    """Split pattern, for tokenizer files that do not contain one."""

    special_token: Repeated[tuple[str, ...]] = ()
    """Additional special token; repeatable."""


def convert(arguments: Convert) -> None:
    from groundup.tokenizer.formats import read_definition, write_definition

    special_tokens = list(map(as_text, arguments.special_token)) or None
    options: dict[str, Any] = {"pattern": arguments.pattern, "special_tokens": special_tokens}
    definition = read_definition(arguments.source, **options)
    paths = write_definition(definition, arguments.out, arguments.to)
    print(f"wrote {' and '.join(map(str, paths))}: {len(definition.vocab):,} tokens")


def read_text(file: str) -> str:
    """The text of a file or of standard input, in any encoding that `new` reads."""
    from groundup.text_files import Reading, find_sources
    from groundup.text_files.encodings import as_utf8, guess_encoding
    from groundup.text_files.opening import open_source

    if Path(file).is_dir():
        raise DataError(f"{file} is a folder; name a file")
    source, name = find_sources([file])[0], "standard input" if file == "-" else file
    notes: list[str] = []
    with open_source(source) as (stream, _):
        data = b"".join(as_utf8(stream, name, Reading(), notes, guess_encoding, True))
    for note in notes:
        logging.getLogger(__name__).warning("%s: %s", name, note)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 at byte {error.start}; convert it first") from None


def _check_files(file: str, inline: str | None, flag: str, out: Path | None) -> None:
    """Refuse a file beside an inline input, and an output that is the input."""
    from groundup.text_files import check_not_input, find_sources

    if inline is not None and file != "-":
        raise ConfigError(f"give either {flag} or the file {file}, not both")
    if out is not None and file != "-":
        check_not_input(out, find_sources([file]))


def _as_text(ids: "numpy.ndarray") -> Iterator[str]:
    """In chunks: as Python objects, ids take many times their memory."""
    for begin in range(0, len(ids), _IDS_AT_ONCE):
        yield " " if begin else ""
        yield " ".join(map(str, ids[begin : begin + _IDS_AT_ONCE].tolist()))
    yield "\n"


def _write(ids: "numpy.ndarray", path: Path) -> None:
    from groundup.disk import open_stream
    from groundup.files import atomic_path

    with atomic_path(path) as temporary, open_stream(temporary) as file:
        if path.suffix == ".npy":
            import numpy

            numpy.save(file, ids, allow_pickle=False)
        elif path.suffix == ".bin":
            file.write(ids.astype(ids.dtype.newbyteorder("<"), copy=False).tobytes())
        else:
            file.writelines(part.encode() for part in _as_text(ids))


def _read_ids(arguments: Decode, vocab_size: int) -> Any:
    import numpy

    path, text = Path(arguments.file), arguments.ids
    is_piped = arguments.file == "-"
    name = "standard input" if is_piped else arguments.file
    try:
        if text is not None:
            name = "--ids"
        elif path.suffix == ".npy":
            found = numpy.load(path, allow_pickle=False)
            if found.ndim != 1 or found.dtype.kind not in "iu":
                raise ValueError(f"ids are a 1-D array of integers, not {found.dtype}")
            return found
        elif path.suffix == ".bin":
            return numpy.frombuffer(path.read_bytes(), "<u2" if vocab_size <= 1 << 16 else "<u4")
        else:
            data = sys.stdin.buffer.read() if is_piped else path.read_bytes()
            text = data.decode("utf-8", "replace")
        return list(map(int, text.replace(",", " ").strip(" []\n").split()))
    except (ValueError, EOFError) as error:
        raise DataError(f"{name} cannot be read as ids: {error}") from None


def _line(tokens: Sequence[bytes]) -> str:
    return " | ".join(map(_show, tokens))


def _show(token: bytes) -> str:
    """A token with visible blanks; invalid UTF-8 in GPT-2's spelling of bytes."""
    from groundup.tokenizer.formats.spelling import spell_bytes

    try:
        return printable(token.decode().replace(" ", "␠"))
    except UnicodeDecodeError:
        return spell_bytes(token)
