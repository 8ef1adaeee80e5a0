"""SuperBPE, with merges across words: training, files and encoding equal the reference."""

import random
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest
from oracles import END, PATTERNS, SNIPPETS, learn

from groundup.errors import TokenizerError
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.patterns import GPT2, LLAMA3, Pattern, superword_pattern
from groundup.tokenizer.reference import MAX_WORDS, encode_reference, train_bpe_reference
from groundup.tokenizer.training import train_from_files

TEXTS = st.one_of(
    st.text("ab \n", max_size=200),
    st.lists(st.sampled_from(["of ", "the ", "a", "\n", "\r\n  ", " 12345", END, "字", "é"])).map(
        "".join
    ),
    st.text(max_size=60),
)


@hypothesis.given(
    texts=st.lists(TEXTS, max_size=5),
    num_merges=st.integers(0, 60),
    superbpe_from=st.integers(1, 40),
    num_threads=st.integers(1, 3),
    pattern=st.sampled_from(PATTERNS),
    text=TEXTS,
)
@hypothesis.settings(max_examples=60)
def test_superbpe_equals_the_reference(
    texts: list[str],
    num_merges: int,
    superbpe_from: int,
    num_threads: int,
    pattern: Pattern,
    text: str,
) -> None:
    size = 257 + num_merges
    vocab, merges = train_bpe_reference(texts, size, [END], pattern, superbpe_from)
    blocks = [END.join(texts).encode()]
    options = {"pattern": pattern, "superbpe_from": superbpe_from, "num_threads": num_threads}
    tokenizer, summary = learn(blocks, size, [END], **options)
    assert (tokenizer.vocab, tokenizer.merges) == (vocab, merges)
    for one in (text, *texts):
        ids = tokenizer.encode(one)
        assert ids == encode_reference(tokenizer.definition, one)
        assert tokenizer.decode(ids) == one
    if texts:
        learned = sum(len(tokenizer.encode_ordinary(one)) for one in END.join(texts).split(END))
        num_bytes = len("".join(END.join(texts).split(END)).encode())
        assert summary.bytes_per_token == num_bytes / max(1, learned)


def corpus() -> str:
    words = [*SNIPPETS, *"of the in a was and to it, said that. def return self 1984 20 3".split()]
    random_ = random.Random(0)
    lines = [" ".join(random_.choices(words, k=random_.randrange(12))) for _ in range(3_000)]
    return "\n".join(lines)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_superbpe_files_give_the_same_ids_in_tokenizers(pattern: Pattern, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    text = corpus()
    (tmp_path / "text.txt").write_text(text)
    ours = Tokenizer.train(tmp_path / "text.txt", 1200, [END], pattern=pattern, superbpe_from=400)
    words = {len(token.split()) for token in ours.vocab.values()}
    assert max(words) == MAX_WORDS
    ours.save(tmp_path / "tokenizer.json", "huggingface")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    held_out = text[::-1] + "of the, 1984123 in\n\n   a was \n"
    for line in (text[:100_000], held_out[:100_000]):
        assert theirs.encode(line).ids == ours.encode(line)
    assert Tokenizer.load(tmp_path / "tokenizer.json") == ours
    ours.save(tmp_path / "own.json")
    assert Tokenizer.load(tmp_path / "own.json").definition == ours.definition
    # Parts counted in other processes give the same result.
    parts, _ = train_from_files(
        tmp_path, 1200, [END], pattern=pattern, superbpe_from=400, engine=map, part_bytes=10_000
    )
    assert parts.merges == ours.merges


def test_stage_two_merges_stay_within_lines_and_groups_of_digits() -> None:
    lines = ["def f(x):\n    ", " return x 12345 or\n\n", "the end.\r\n  ", "\n", " x"]
    assert superword_pattern(GPT2).split("".join(lines)) == lines
    pieces = ["in ", "123", "45", " and\n ", "1"]
    assert superword_pattern(LLAMA3).split("".join(pieces)) == pieces


def test_superbpe_from_zero_is_rejected() -> None:
    with pytest.raises(TokenizerError, match="superbpe_from is 0"):
        train_from_files("nothing", 300, [], superbpe_from=0)
