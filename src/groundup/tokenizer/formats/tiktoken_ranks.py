"""tiktoken's ranks: lines of a token in base64 and its rank, its id and order of merging.

Such a file holds neither pattern nor special tokens; for the published ones `published` knows them.
The merges are recovered from the ranks.
"""

from __future__ import annotations

import binascii
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from groundup.errors import TokenizerError
from groundup.files import write_bytes_atomic
from groundup.tokenizer import native
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.formats.parts import (
    describe_source,
    resolve_special_tokens,
    with_special_tokens,
)
from groundup.tokenizer.formats.published import find_published
from groundup.tokenizer.patterns import PATTERN_NAMES, Pattern

_FIRST_LINE = re.compile(rb"\s*[A-Za-z0-9+/]+={0,2} \d+\s*(\n|$)")

_RANKS_ALPHABET = string.ascii_letters.encode() + b"0123456789+/= \t\r\n"


def recognise(data: bytes) -> bool:
    """Whether the first line is a token in base64 and a number."""
    return _FIRST_LINE.match(data[:4096]) is not None


def read(
    data: bytes,
    path: Path,
    pattern: Pattern | None,
    special_tokens: Mapping[str, int] | Iterable[str] | None,
) -> TokenizerDefinition:
    """Read ranks; a file that is not a published one needs its pattern from the caller."""
    published = find_published(data)
    if pattern is None:
        if published is None:
            raise TokenizerError(
                f"the ranks file {path} says no split pattern and is none of the published ones; "
                f"give the pattern: one of {', '.join(PATTERN_NAMES)}, or a regular expression"
            )
        pattern = published.pattern
    if special_tokens is None:
        special_tokens = published.special_tokens if published else {}
    vocab = _parse_ranks(data, path)
    special_ids = resolve_special_tokens(
        vocab, special_tokens, published.special_tokens if published else None
    )
    tokens = list(vocab.values())
    pairs = recover_merges(tokens)
    unreachable = any(
        left < 0 and len(token) > 1 for token, (left, _) in zip(tokens, pairs, strict=True)
    )
    return TokenizerDefinition(
        vocab=with_special_tokens(vocab, special_ids),
        merges=[(tokens[left], tokens[right]) for left, right in pairs if left >= 0],
        special_tokens=special_ids,
        pattern=pattern,
        # tiktoken always looks for the whole pre-token first; where the merges reach every token
        # that changes nothing, and leaving it out keeps one tokenizer one content id in all
        # formats.
        whole_words=unreachable,
        lineage=describe_source("tiktoken", path, data),
    ).validate()


def write(definition: TokenizerDefinition, path: Path) -> list[Path]:
    """Write the ordinary tokens as ranks, if ranks alone say the same as the merges."""
    ranks = definition.ordinary_tokens()
    _check_ranks_suffice(definition, ranks)
    lines = [
        binascii.b2a_base64(token, newline=False) + b" %d\n" % rank for rank, token in ranks.items()
    ]
    write_bytes_atomic(path, b"".join(lines))
    return [path]


def recover_merges(tokens: Sequence[bytes]) -> list[tuple[int, int]]:
    """The pair of tokens that makes each token, or (-1, -1); see `recover_merges_reference`."""
    buffer = native.recover_merges(list(tokens))
    flat = memoryview(buffer).cast("B").cast("i").tolist()
    return list(zip(flat[::2], flat[1::2], strict=True))


def _parse_ranks(data: bytes, path: Path) -> dict[int, bytes]:
    if data.translate(None, _RANKS_ALPHABET):
        _raise_bad_line(data, path)
    fields = data.split()
    try:
        tokens = list(map(binascii.a2b_base64, fields[::2]))
        ranks = list(map(int, fields[1::2]))
        vocab = dict(zip(ranks, tokens, strict=True))
    except ValueError:
        vocab = {}
    if len(vocab) * 2 != len(fields) or (vocab and min(vocab) < 0):
        _raise_bad_line(data, path)
    return dict(sorted(vocab.items()))


def _raise_bad_line(data: bytes, path: Path) -> None:
    line_of: dict[int, int] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            encoded, digits = line.split()
            token, rank = binascii.a2b_base64(encoded, strict_mode=True), int(digits)
        except ValueError:
            token, rank = b"", -1
        if not token or rank < 0:
            raise TokenizerError(
                f"line {number} of the ranks file {path} is {line[:60]!r}; it should be a token in "
                f"base64, a space and its rank: the file was cut short or changed"
            )
        if rank in line_of:
            raise TokenizerError(
                f"lines {line_of[rank]} and {number} of the ranks file {path} both have rank "
                f"{rank}; each rank may occur once"
            )
        line_of[rank] = number


def _check_ranks_suffice(definition: TokenizerDefinition, ranks: Mapping[int, bytes]) -> None:
    """Ranks merge whatever makes a token, the lowest id first: the merges must come to the same."""
    tokens = list(ranks.values())
    rank_of = {token: rank for rank, token in ranks.items()}
    last = -1
    for left, right in definition.merges:
        merged = rank_of.get(left + right)
        if merged is None or left not in rank_of or right not in rank_of:
            raise _refuse(f"the merge {left!r} + {right!r} uses a special token")
        if merged < last:
            raise _refuse(
                f"its ids do not follow its merges ({left + right!r} has id {merged} and is "
                f"merged after id {last})"
            )
        last = merged
    merges = set(definition.merges)
    for token, (left_rank, right_rank) in zip(tokens, recover_merges(tokens), strict=True):
        if left_rank >= 0 and (tokens[left_rank], tokens[right_rank]) not in merges:
            raise _refuse(f"ranks would merge {token!r} from other parts than its merges do")
        if left_rank < 0 and len(token) > 1 and not definition.whole_words:
            raise _refuse(f"ranks would make {token!r} a token, which its merges never do")


def _refuse(reason: str) -> TokenizerError:
    return TokenizerError(
        f"this tokenizer cannot be written as tiktoken ranks: {reason}; convert to huggingface or "
        f"groundup instead"
    )
