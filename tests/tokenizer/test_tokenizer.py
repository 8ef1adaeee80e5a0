"""Methods known from other tokenizers, and invalid input."""

from pathlib import Path
from typing import Any

import pytest
from oracles import BYTES, END

from groundup import Tokenizer, train_bpe
from groundup.errors import TokenizerError
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.patterns import CL100K

TEXT = f"the theme of the thesis{END}the end"


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    (tmp_path / "text.txt").write_text(TEXT)
    return Tokenizer.train(tmp_path / "text.txt", 270, [END, "<|x|>"], pattern="cl100k")


def test_train_and_equality(tokenizer: Tokenizer, tmp_path: Path) -> None:
    vocab, merges = train_bpe(tmp_path / "text.txt", 270, [END, "<|x|>"], pattern=CL100K)
    same = Tokenizer(vocab, merges, [END, "<|x|>"], pattern="cl100k")
    assert same == tokenizer == same.with_chat("{{ 1 }}")
    others = Tokenizer(vocab, merges, [END, "<|x|>"]), Tokenizer(vocab, merges, pattern=CL100K)
    assert len({tokenizer, same, *others}) == 3 and tokenizer != "tokenizer"
    assert repr(tokenizer) == "Tokenizer(270 tokens, cl100k pattern)" and tokenizer.n_vocab == 270
    assert Tokenizer.train([tmp_path / "text.txt"], 270).special_tokens == {"<|endoftext|>": 269}
    with pytest.raises(TypeError, match="patern: did you mean pattern"):
        Tokenizer.train(tmp_path / "text.txt", 270, patern="gpt2")  # type: ignore[call-arg]


@pytest.mark.parametrize("whole_words", [False, True])
def test_special_tokens_may_be_ordinary_tokens_too(whole_words: bool) -> None:
    # " a" alone is special; "bc" and "b" are special and ordinary, in one entry and in two.
    vocab = dict(enumerate([*BYTES, b" a", b"bc", b"b"]))
    special = {" a": 256, "bc": 257, "b": 258}
    parts = vocab, [(b"b", b"c")], special
    tokenizer = Tokenizer.from_definition(TokenizerDefinition(*parts, whole_words=whole_words))
    assert tokenizer.encode(" abcb a") == [256, 257, 258, 256]
    assert tokenizer.encode_ordinary(" a bcb") == [*b" a ", 257, *b"b"]
    assert tokenizer.encode(" a b", allowed_special=["b"]) == [*b" a ", 258]
    assert (tokenizer.token_to_id("b"), tokenizer.token_to_id(b"b")) == (258, ord("b"))


def test_non_text_and_unknown_tokens_are_reported(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_to_id("\ud800") is tokenizer.token_to_id("no token") is None
    assert tokenizer.id_to_token(270) is None and tokenizer.id_to_token(269) == b"<|x|>"
    several: Any = ["a"]
    for encode in (tokenizer.encode, tokenizer.encode_ordinary, tokenizer.encode_to_numpy):
        with pytest.raises(TypeError, match=r"one text, not list; use encode_batch"):
            encode(several)
    for batch in ("abc", [*several, 1]):
        with pytest.raises(TypeError, match="list of texts"):
            tokenizer.encode_batch(batch)
    inverted: Any = {token: id for id, token in tokenizer.vocab.items()}
    pairs: Any = tokenizer.merges
    for vocab in (pairs, inverted):
        with pytest.raises(TokenizerError, match="vocab must map ids to bytes"):
            Tokenizer(vocab, [])
    with pytest.raises(TokenizerError, match="must be strings"):
        Tokenizer(tokenizer.vocab, [], [several])
    for wrong in ("none", END, [END, "<|y|>"]):
        with pytest.raises(TokenizerError, match="allowed_special"):
            tokenizer.encode("text", allowed_special=wrong)
