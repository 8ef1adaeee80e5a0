"""Pages: the text that a reader sees, and nothing that a browser runs."""

from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from groundup.errors import DataError
from groundup.text_files import read_document_batches
from groundup.text_files.html import text_of_page

PAGE = """<!DOCTYPE html><html><head><title>Foxes &amp; hens</title>
<style>p { color: red }</style><script>var text = "<p>not text</p>";</script></head>
<body><!-- nothing --><h1>The   fox</h1><p>One <b>red</b>
fox&nbsp;ran.<br>It was&#x20;late.</p><ul><li>one</li><li>two</ul>
<pre>  a = 1
    b</pre><table><tr><td>x</td><td>y</td></tr></table><p>End</body></html>"""
TEXT = (
    "Foxes & hens\nThe fox\n\nOne red fox\xa0ran.\nIt was late.\n\none\ntwo\n\n"
    "  a = 1\n    b\n\nx\ty\n\nEnd"
)


def test_tags_scripts_and_styles_are_off_and_blocks_are_lines() -> None:
    lines = [line for line in text_of_page(PAGE).splitlines() if line]
    assert lines == [line for line in TEXT.splitlines() if line]
    assert "\n\n\n" not in text_of_page(PAGE)


def test_a_page_is_one_document(tmp_path: Path) -> None:
    for name in ("a.html", "b.HTM"):
        (tmp_path / name).write_text(PAGE, encoding="utf-8")
    (batch,) = read_document_batches([tmp_path])
    texts = [bytes(batch.data[a:b]).decode() for a, b in batch.bounds.tolist()]
    assert texts == [text_of_page(PAGE)] * 2


@hypothesis.given(st.text(alphabet="<>/ab&;!-\n \"'p", max_size=60))
def test_any_text_is_a_page(page: str) -> None:
    text = text_of_page(page)
    assert text == text.strip()
    assert "<p>" not in text


def test_text_without_tags_is_itself_with_spaces_made_one() -> None:
    assert text_of_page("a  b\n c") == "a b c"


def test_what_the_head_leaves_open_ends_with_the_body() -> None:
    assert text_of_page("<noscript>hidden<body>shown") == "shown"
    assert text_of_page("<body>one<script>hidden</script>two<svg>x</svg> three") == "onetwo three"


def test_a_page_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "old.html"
    path.write_bytes("<p>café".encode("latin-1"))
    with pytest.raises(DataError, match=r"old\.html: not UTF-8"):
        list(read_document_batches([path]))
    [batch] = read_document_batches([path], encoding="latin-1")
    assert bytes(batch.data).decode() == "café"
