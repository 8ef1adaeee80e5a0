"""The built-in corpus: the same everywhere, as long as asked, varied, and written in good order."""

import hashlib
import re
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from groundup.data.samples import SEPARATOR, write_sample_corpus, write_stories
from groundup.data.stories import writer
from groundup.data.stories.cast import choose_cast
from groundup.data.stories.grammar import KINDS, Grammar, Scene
from groundup.data.stories.shape import Shape
from groundup.errors import DataError

MEGABYTE = list(write_stories(1_000_000, seed=3))


def size_of(stories: list[str]) -> int:
    return sum(len(f"{story}\n{SEPARATOR}\n".encode()) for story in stories)


def test_a_seed_gives_the_same_stories_on_every_machine() -> None:
    """Recorded once; a change of the grammar changes it, a change of machine or Python must not."""
    text = "\n".join(write_stories(100_000, seed=0))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "30c118b5b6006e0a"


def test_another_seed_gives_other_stories() -> None:
    assert not set(write_stories(50_000, seed=1)) & set(write_stories(50_000, seed=2))


def test_a_longer_corpus_begins_with_the_shorter_one() -> None:
    short = list(write_stories(5000, seed=7))
    assert list(islice(write_stories(90_000, seed=7), len(short))) == short


@pytest.mark.parametrize("num_bytes", [0, 1, 1000, 54_321])
def test_stories_reach_the_size_and_stop_there(num_bytes: int) -> None:
    stories = list(write_stories(num_bytes))
    assert size_of(stories) >= num_bytes
    assert not stories or size_of(stories[:-1]) < num_bytes


def test_the_file_is_the_stories_with_separators(tmp_path: Path) -> None:
    path = tmp_path / "new" / "stories.txt"
    seen: list[tuple[int, int | None]] = []
    corpus = write_sample_corpus(path, 0.05, 5, progress=lambda *it: seen.append(it))
    stories = list(write_stories(50_000, seed=5))
    assert path.read_text() == "".join(f"{story}\n{SEPARATOR}\n" for story in stories)
    assert corpus == (len(stories), path.stat().st_size)
    assert seen == sorted(seen)
    assert seen[-1] == (50_000, 50_000)


def test_a_stopped_writer_leaves_nothing(tmp_path: Path) -> None:
    def stop(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_sample_corpus(tmp_path / "stories.txt", 1, progress=stop)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("megabytes", [0, -1, float("inf"), float("nan")])
def test_an_impossible_size_is_an_error(tmp_path: Path, megabytes: float) -> None:
    with pytest.raises(DataError, match="megabytes"):
        write_sample_corpus(tmp_path / "stories.txt", megabytes)


# The language


def test_stories_are_varied() -> None:
    assert len(set(MEGABYTE)) == len(MEGABYTE)
    text = " ".join(MEGABYTE)
    assert len(set(re.findall(r"[^\W\d_]+", text.lower()))) > 1500
    sentences = re.split(r"(?<=[.!?])\s+", text)
    assert len(set(sentences)) > len(sentences) / 2


def test_stories_have_one_to_eight_paragraphs() -> None:
    for story in MEGABYTE:
        paragraphs = story.split("\n\n")
        assert 1 <= len(paragraphs) <= 8
        assert all(text and text == text.strip() and "\n" not in text for text in paragraphs)


def test_no_trace_of_the_grammar_is_left() -> None:
    for story in MEGABYTE:
        assert not re.search(r"[{}¶|/^#_<>]", story)


@pytest.mark.parametrize(
    "mistake",
    [
        r"\b[Aa] [aeiou]",
        r"\b[Aa]n [^aeiouh]",
        r" [.,!?]",
        r"[.,]{2}",
        r"[!?][.,]",
        r"[!?]\"[.,]",
        r"  ",
        r"\b(\w+) \1\b",
        r"(?<!\b\w)(?<!Mr)(?<!Mrs)[.!?] [a-zà-ÿ]",
        r"^[a-zà-ÿ]",
    ],
)
def test_stories_are_free_of_slips(mistake: str) -> None:
    for story in MEGABYTE:
        found = re.search(mistake, story, re.MULTILINE)
        assert found is None, story[max(0, found.start() - 40) : found.end() + 40]


def test_quotation_marks_come_in_pairs() -> None:
    for story in MEGABYTE:
        assert all(text.count('"') % 2 == 0 for text in story.split("\n\n")), story


NAMES = {"hero": "Robin", "friend": "Sam", "elder": "Alex", "parent": "Kim"} | {
    "child": "child",
    "fchild": "child",
    "his_elder": "{his} aunt",
    "his_parent": "{his} parent",
}
MALE = {"he": "he", "him": "him", "his": "his", "himself": "himself"}
FEMALE = {"he": "she", "him": "her", "his": "her", "himself": "herself"}


def cast_of(pronouns: dict[str, str]) -> dict[str, str]:
    """A cast of fixed names, so that only the pronouns differ between two tellings."""
    words = {prefix + key: it for prefix in ("", "f", "e", "p") for key, it in pronouns.items()}
    return {**words, **NAMES}


def tell(shape: Shape, kind: str, cast: dict[str, str]) -> str:
    stories = []
    for seed in range(20):
        scene = Scene(writer.load_grammar(), Random(seed))
        scene.start(kind)
        stories.append(writer.tell_story(scene, shape, cast))
    return "\n".join(stories)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("module", writer.SHAPE_MODULES, ids=lambda module: module.SHAPE.name)
def test_pronouns_follow_the_cast(module: object, kind: str) -> None:
    told_of_men, told_of_women = (
        tell(module.SHAPE, kind, cast_of(pronouns))  # type: ignore[attr-defined]
        for pronouns in (MALE, FEMALE)
    )

    def feminine(text: str) -> str:
        for word, other in FEMALE.items():
            text = re.sub(rf"\b{word}\b", other, text)
            text = re.sub(rf"\b{word.capitalize()}\b", other.capitalize(), text)
        return text

    assert told_of_men != told_of_women
    assert feminine(told_of_men) == feminine(told_of_women)


def test_every_name_in_the_grammar_means_something() -> None:
    grammar = writer.load_grammar()
    for kind in KINDS:
        rules, tables = grammar.rules[kind], grammar.tables[kind]
        bound = {key for rows in tables.values() for row in rows for key in row}
        for module in writer.SHAPE_MODULES:
            scene = Scene(grammar, Random(0))
            scene.start(kind)
            writer.tell_story(scene, module.SHAPE, choose_cast(scene, kind))
            bound |= set(scene)
        options = [option for choices in rules.values() for option in choices]
        texts = [it if isinstance(it, str) else it.__self__ for it in options]  # type: ignore[attr-defined]
        texts += [cell for rows in tables.values() for row in rows for cell in row.values()]
        for text in texts:
            for name in re.findall(r"\{\^?(?:a )?([^}]*)\}", text):
                assert name in rules or name in bound, f"{name!r} in {text!r}"


# The machine


def expand(text: str, name: str = "story", seed: int = 0, **words: str) -> str:
    grammar = Grammar()
    grammar.add_rules(text)
    scene = Scene(grammar, Random(seed))
    scene.start("child")
    scene.bind(words)
    return scene[name]


def test_rules_choose_capitalise_and_put_articles() -> None:
    assert expand("story\n| {a x}, {a y}, {^a z}", x="owl", y="unicorn", z="hour") == (
        "an owl, a unicorn, An hour"
    )
    found = {expand("story\n| {one {x/y}/two/}!", seed=seed) for seed in range(40)}
    assert found == {"one x!", "one y!", "two!", "!"}


def test_options_may_run_over_lines() -> None:
    assert expand("story\n| one\n  two\nother: a,\n  b") == "one two"


def test_no_option_comes_twice_before_all_have_come() -> None:
    text = expand("x: a, b, c, d, e\nstory\n| {x}{x}{x}{x}{x}")
    assert sorted(text) == list("abcde")


@pytest.mark.parametrize("text", ["story\n| {never closed", "x: a\nx: b", "x @child: a\nx: b"])
def test_a_broken_grammar_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"never close|defined twice"):
        expand(text)


def test_a_table_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="2 cells for 3 columns"):
        Grammar().add_table("things: a | b | c\n- one | two")
