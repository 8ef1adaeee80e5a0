"""The built-in corpus: the same everywhere, of the requested size, varied and well-formed."""

import functools
import hashlib
import re
from itertools import islice
from pathlib import Path

import pytest

from groundup.data.chats import read_conversations
from groundup.data.samples import write_dialogues, write_sample_corpus, write_stories
from groundup.text_files import END_OF_TEXT


@functools.cache
def megabyte() -> list[str]:
    return list(write_stories(1_000_000, seed=3))


def test_a_seed_gives_the_same_stories_and_dialogues_on_every_machine() -> None:
    """Recorded hashes, which only changes of the grammar may change."""
    dialogues = str(list(islice(write_dialogues(seed=0), 200)))
    for text, recorded in (
        ("\n".join(write_stories(100_000, seed=0)), "42b865aeb5b5c5d6"),
        (dialogues, "811a8b2ddd1951cb"),
    ):
        assert hashlib.sha256(text.encode()).hexdigest()[:16] == recorded
    assert str(list(islice(write_dialogues(seed=1), 200))) != dialogues


def test_the_file_contains_stories_and_separators(tmp_path: Path) -> None:
    path = tmp_path / "new" / "stories.txt"
    seen: list[tuple[int, int | None]] = []
    corpus = write_sample_corpus(path, 0.05, 5, progress=lambda *it: seen.append(it))
    stories = list(write_stories(50_000, seed=5))
    assert path.read_text() == "".join(f"{story}\n{END_OF_TEXT}\n" for story in stories)
    assert corpus == (len(stories), path.stat().st_size) and corpus.num_bytes >= 50_000
    assert corpus.num_bytes - len(f"{stories[-1]}\n{END_OF_TEXT}\n".encode()) < 50_000
    assert seen == sorted(seen) and seen[-1] == (50_000, 50_000)
    # A larger corpus begins with the smaller one.
    assert list(write_stories(90_000, seed=5))[: len(stories)] == stories


def test_dialogues_are_conversations_and_answers_follow_from_the_questions(tmp_path: Path) -> None:
    path = tmp_path / "dialogues.jsonl"
    corpus = write_sample_corpus(path, 0.2, seed=2, kind="dialogues")
    found = [one.messages for one in read_conversations([path])]
    assert corpus == (len(found), path.stat().st_size) and 200_000 <= corpus.num_bytes < 203_000
    assert found == list(islice(write_dialogues(seed=2), len(found)))
    num_checked = 0
    for messages in found:
        texts = [message["content"] for message in messages]
        assert all("{" not in text and "  " not in text for text in texts)
        if match := re.search(r"The (\w+) lost an? .* and the (\w+) found it. Who (\w+)", texts[0]):
            loser, finder, deed = match.groups()
            assert texts[1].startswith(f"The {finder if deed == 'found' else loser} {deed} the")
            num_checked += 1
        if match := re.search(r"story about an? (\w+) (?:named|called) (\S+?)[.,?]", texts[0]):
            assert match[1] in texts[1] and match[2] in texts[1]
            num_checked += 1
    assert num_checked > 50


# The language


@pytest.mark.parametrize(
    "mistake",
    [
        r"[{}¶|/^#_<>=]| [.,!?]|[.,]{2}|[!?]\"?[.,]|  ",
        r"\b[Aa] [aeiou]|\b[Aa]n [^aeiouh]|\b(\w+) \1\b",
        r"(?<!\b\w)(?<!Mr)(?<!Mrs)[.!?] [a-zà-ÿ]|^[a-zà-ÿ]",
    ],
)
def test_stories_have_no_grammar_errors(mistake: str) -> None:
    for story in megabyte():
        assert story.count('"') % 2 == 0 and 1 <= len(story.split("\n\n")) <= 8
        found = re.search(mistake, story, re.MULTILINE)
        assert found is None, story[max(0, found.start() - 40) : found.end() + 40]
