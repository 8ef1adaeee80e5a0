"""Pages of HTML: the text that a reader sees, blocks in lines of their own; one document a page."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import IO

from groundup.errors import DataError
from groundup.text_files.documents import Reading, decode, encode
from groundup.text_files.records import LONGEST_RECORD_BYTES

_HIDDEN = frozenset({"script", "style", "template", "noscript", "svg"})
# Behind these stands an empty line; behind the others a line ends.
_PARAGRAPHS = frozenset(
    "p h1 h2 h3 h4 h5 h6 ul ol dl pre table blockquote figure section article".split()
)
_BLOCKS = _PARAGRAPHS | frozenset(
    "address aside body br caption dd details dialog div dt fieldset figcaption footer form head "
    "header hr html li main nav option select summary tbody textarea tfoot thead title tr".split()
)
_CELLS = frozenset({"td", "th"})


def read_html(stream: IO[bytes], reading: Reading, name: str) -> Iterator[bytes | None]:
    """Yield the text of a page as one document."""
    parts: list[bytes] = []
    while part := stream.read(LONGEST_RECORD_BYTES + 1 - sum(map(len, parts))):
        parts.append(part)
    page = b"".join(parts)
    if len(page) > LONGEST_RECORD_BYTES:
        raise DataError(f"{name} is a page of more than {LONGEST_RECORD_BYTES:,} bytes")
    text = decode(page, reading.errors, name)
    yield None if text is None else encode(text_of_page(text), reading.errors, name)


def text_of_page(page: str) -> str:
    """The text of a page of HTML without tags, scripts and styles.

    page: the source of the page, whole or not, sound or not.
    """
    parser = _TextParser()
    parser.feed(page)
    parser.close()
    return "".join(parser.parts).strip()


class _TextParser(HTMLParser):
    """Collects text; white space is one space, save in preformatted text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden = self._pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag in _HIDDEN:
            self._hidden += 1
        elif tag == "pre":
            self._pre += 1
        elif tag == "body":
            # Whatever was left open in the head.
            self._hidden = 0
        if tag in _BLOCKS:
            self._break(2 if tag in _PARAGRAPHS else 1)
        elif tag in _CELLS:
            self._add("\t" if self.parts and not self.parts[-1].endswith(("\n", "\t")) else "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BLOCKS and tag not in _HIDDEN:
            self._break(1)

    def handle_endtag(self, tag: str) -> None:
        if tag in _HIDDEN:
            self._hidden = max(0, self._hidden - 1)
        elif tag == "pre":
            self._pre = max(0, self._pre - 1)
        if tag in _BLOCKS:
            self._break(2 if tag in _PARAGRAPHS else 1)

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        if not self._pre:
            data = re.sub(r"[ \t\r\n\f]+", " ", data)
            if data.startswith(" ") and self._ends_with_space():
                data = data[1:]
        self._add(data)

    def _break(self, num_lines: int) -> None:
        if self._hidden:
            return
        if self.parts:
            self.parts[-1] = self.parts[-1].rstrip(" \t")
        have = 0
        for part in reversed(self.parts):
            have += len(part) - len(part.rstrip("\n"))
            if part.strip("\n") or have >= num_lines:
                break
        self._add("\n" * (num_lines - have))

    def _ends_with_space(self) -> bool:
        return not self.parts or self.parts[-1][-1:] in ("", " ", "\n", "\t")

    def _add(self, text: str) -> None:
        if text and not self._hidden:
            self.parts.append(text)
