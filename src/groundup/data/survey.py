"""Survey a text before training: its size, languages, and prompts from its documents."""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from groundup.text_files import Part, Reading, find_sources, no_text_error, read

# At most this much text is read, with this many excerpts per batch searched for prompts.
_MAX_BYTES = 64_000_000
_BATCH_BYTES = 4_000_000
_EXCERPTS_PER_BATCH = 40
_EXCERPT_BYTES = 2_000
_MAX_PROMPT = 40
_NUM_PROMPTS = 3
# Common words of languages, none of them in two.
_WORDS = {
    "English": "the of and to that was with for",
    "German": "der und das nicht mit von ist auf",
    "French": "les des est dans une qui pour pas",
    "Spanish": "los las por como pero más muy y",
    "Italian": "che di non sono della gli il è",
    "Portuguese": "não uma em os ao foi mais também",
}
_LANGUAGE_OF = {word: name for name, words in _WORDS.items() for word in words.split()}
_CODE_LINE = re.compile(r"(?m)[;{}:(\[)\]]$|^ +\S")
_SCRIPTS = {"HIRAGANA": "Japanese", "KATAKANA": "Japanese", "CJK": "Chinese", "HANGUL": "Korean"}


@dataclass(frozen=True)
class Survey:
    """Size and prompts of a text; counts are extrapolated if it was not read to its end."""

    num_files: int
    num_documents: int
    num_bytes: int
    """Size of the text, decompressed."""
    document_bytes: int
    """The median size of a document."""
    prompts: tuple[str, ...]
    """The first words of a few documents."""
    languages: Counter[str]
    """Bytes by language, from excerpts; code is one."""
    is_whole: bool
    """Whether the whole text was read."""


def survey_text(inputs: Sequence[str | os.PathLike[str]], **reading: Any) -> Survey:
    """Survey a text by reading at most its first 64 MB."""
    how = Reading(**reading)
    sources = find_sources(inputs, how)
    part = Part(tuple(sources))
    sizes: list[int] = []
    openings: dict[str, None] = {}
    languages = Counter[str]()
    read_bytes = 0
    for batch in read(part, how, batch_bytes=_BATCH_BYTES):
        if sum(sizes) >= _MAX_BYTES:
            break
        read_bytes = batch.read_bytes
        sizes += (batch.bounds[:, 1] - batch.bounds[:, 0]).tolist()
        for text, distance in _excerpts(memoryview(batch.data), batch.bounds):
            openings |= dict.fromkeys(_openings(text))
            languages[_language(text)] += distance
    num_bytes = sum(sizes)
    if not num_bytes:
        raise no_text_error(sources, how)
    is_whole = num_bytes < _MAX_BYTES
    factor = 1.0 if is_whole else max(1.0, part.num_bytes / max(1, read_bytes))
    found = list(openings)
    chosen = np.linspace(0, len(found) - 1, _NUM_PROMPTS if found else 0).astype(int).tolist()
    return Survey(
        num_files=len(sources),
        num_documents=round(len(sizes) * factor),
        num_bytes=round(num_bytes * factor),
        document_bytes=int(np.median(sizes)),
        prompts=tuple(dict.fromkeys(found[one] for one in chosen)),
        languages=languages,
        is_whole=is_whole,
    )


def _excerpts(data: memoryview, bounds: npt.NDArray[np.int64]) -> Iterator[tuple[str, int]]:
    """Yield excerpts at equal distances in bytes, with the distance; the first from a document is
    its beginning."""
    ends = np.cumsum(bounds[:, 1] - bounds[:, 0])
    num_bytes = int(ends[-1]) if len(ends) else 0
    distance, last = max(1, num_bytes // _EXCERPTS_PER_BATCH), -1
    for position in range(0, num_bytes, distance):
        number = int(np.searchsorted(ends, position, side="right"))
        begin, end = bounds[number].tolist()
        start = begin
        if number == last:
            start = max(begin, end - max(_EXCERPT_BYTES, int(ends[number]) - position))
        text = str(data[start : min(end, start + _EXCERPT_BYTES)], "utf-8", "ignore")
        if start > begin:
            # It starts within a line or word: skip that.
            text = text.partition("\n")[2] or text.partition(" ")[2] or text
        yield text, distance
        last = number


def _openings(text: str) -> Iterator[str]:
    """Yield the first words of an excerpt that read like prose, if they are few letters."""
    starts = (line.split()[:4] for line in text.splitlines())
    whole = (one for one in starts if len(one) == 4 and sum(map(str.isalpha, one)) >= 3)
    opening = " ".join(next(whole, []))
    if 0 < len(opening) <= _MAX_PROMPT:
        yield opening


def _language(text: str) -> str:
    """Guess the language of an excerpt by its words or its script, and code by its lines."""
    if len(_CODE_LINE.findall(text)) > 0.4 * (text.count("\n") + 1):
        return "code"
    words = text.lower().split()
    for name, count in Counter(filter(None, map(_LANGUAGE_OF.get, words))).most_common(1):
        if count > len(words) / 25:
            return name
    letters = Counter(unicodedata.name(one, "?").split()[0] for one in text[:500] if one.isalpha())
    script = next((one for one, _ in letters.most_common(1)), "no")
    return _SCRIPTS.get(script, f"{script.capitalize()} script")
