"""Extract the visible text of HTML pages, with each block on lines of its own."""

import re
from html.parser import HTMLParser

_HIDDEN = frozenset("script style template noscript svg".split())
# Paragraphs are followed by an empty line, other blocks by a newline.
_PARAGRAPHS = frozenset(
    "p h1 h2 h3 h4 h5 h6 ul ol dl pre table blockquote figure section article".split()
)
_BLOCKS = _PARAGRAPHS | frozenset(
    "address aside body br caption dd details dialog div dt fieldset figcaption footer form head "
    "header hr html li main nav option select summary tbody textarea tfoot thead title tr".split()
)


def text_of_page(page: str) -> str:
    """Return the text of an HTML page, valid or not, without tags, scripts and styles."""
    parser = _TextParser()
    parser.feed(page)
    parser.close()
    return "".join(parser.parts).strip()


class _TextParser(HTMLParser):
    """Collects text and collapses white space, except in preformatted text."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden = self._pre = 0
        self._line_ends = 0
        """Pending newlines before the next text."""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "body":
            # Close tags that were left open in the head.
            self._hidden = 0
        self._break(tag)
        self._hidden += tag in _HIDDEN
        self._pre += tag == "pre"
        if tag in ("td", "th") and not self._hidden and not self._line_ends:
            self._add("\t")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in _HIDDEN))
        self._pre = max(0, self._pre - (tag == "pre"))
        self._break(tag)

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        if not self._pre:
            data = re.sub(r"[ \t\r\n\f]+", " ", data)
            if self._line_ends or self.parts[-1:] == [] or self.parts[-1][-1] in " \n\t":
                data = data.removeprefix(" ")
        if data:
            self._add(data)

    def _add(self, text: str) -> None:
        if self._line_ends and self.parts:
            line = self.parts.pop().rstrip(" \t\n")
            self.parts.append(line + "\n" * self._line_ends)
        self._line_ends = 0
        self.parts.append(text)

    def _break(self, tag: str) -> None:
        if tag in _BLOCKS and not self._hidden:
            self._line_ends = max(self._line_ends, 2 if tag in _PARAGRAPHS else 1)
