"""The names that people know from other tokenizers, and what is no text."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import BYTES, END, tiktoken_of

from groundup import Tokenizer, train_bpe
from groundup.errors import TokenizerError
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.patterns import CL100K

TEXT = f"the theme of the thesis{END}the end"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text(TEXT)
    return Tokenizer.train(file, 270, [END, "<|x|>"], pattern="cl100k")


def test_a_whole_tokenizer_is_learned_from_files(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    vocab, merges = train_bpe(tmp_path / "text.txt", 270, [END, "<|x|>"], pattern=CL100K)
    same = Tokenizer(vocab, merges, [END, "<|x|>"], pattern="cl100k")
    assert (
        same == tokenizer == pickle.loads(pickle.dumps(tokenizer)) == tokenizer.with_chat("{{ 1 }}")
    )
    assert tokenizer.n_vocab == len(tokenizer) and tokenizer.special_tokens == {
        END: 268,
        "<|x|>": 269,
    }
    assert Tokenizer.train([tmp_path / "text.txt"], 270).special_tokens == {"<|endoftext|>": 269}
    with pytest.raises(TypeError, match="patern"):
        Tokenizer.train(tmp_path / "text.txt", 270, patern="gpt2")  # type: ignore[call-arg]


def test_tokenizers_are_equal_if_they_mean_the_same(tokenizer: Tokenizer) -> None:
    vocab, merges, special_tokens = (
        tokenizer.vocab,
        tokenizer.merges,
        list(tokenizer.special_tokens),
    )
    other = Tokenizer(vocab, merges, special_tokens)
    fewer = Tokenizer(vocab, merges, [END], pattern=CL100K)
    assert (
        len({tokenizer, other, fewer, Tokenizer(vocab, merges, special_tokens, pattern=CL100K)})
        == 3
    )
    assert tokenizer != "tokenizer" and repr(tokenizer) == "Tokenizer(270 tokens, cl100k pattern)"


def test_allowed_special_tokens_are_those_of_tiktoken(tokenizer: Tokenizer) -> None:
    ranks = {token: id for id, token in tokenizer.definition.ordinary_tokens().items()}
    oracle = tiktoken_of(ranks, tokenizer.special_tokens, CL100K.stages[0].replace(r"\Z", "$"))
    text = f"{TEXT}<|x|>{END}"
    for allowed in ("all", {END}, {END, "<|x|>"}, set()):
        expected = oracle.encode(text, allowed_special=allowed, disallowed_special=())
        assert tokenizer.encode(text, allowed_special=allowed) == expected
    assert tokenizer.encode_ordinary(text) == oracle.encode_ordinary(text)
    assert tokenizer.encode(text) == tokenizer.encode(text, allowed_special="all")
    for wrong in ("none", END, [END, "<|y|>"]):
        with pytest.raises(TokenizerError, match="allowed_special"):
            tokenizer.encode(text, allowed_special=wrong)


@pytest.mark.parametrize("whole_words", [False, True])
def test_a_hidden_special_token_is_never_in_the_ids_of_ordinary_text(whole_words: bool) -> None:
    # " a" alone is special; "bc" and "b" are special and ordinary, in one entry and in two.
    vocab = dict(enumerate([*BYTES, b" a", b"bc", b"b"]))
    special = {" a": 256, "bc": 257, "b": 258}
    definition = TokenizerDefinition(vocab, [(b"b", b"c")], special, whole_words=whole_words)
    tokenizer = Tokenizer.from_definition(definition)
    assert tokenizer.encode(" abcb a") == [256, 257, 258, 256]
    assert tokenizer.encode_ordinary(" a bcb") == [*b" a ", 257, *b"b"]
    assert tokenizer.encode(" a b", allowed_special=["b"]) == [*b" a ", 258]


def test_tokens_and_ids_find_each_other(tokenizer: Tokenizer) -> None:
    for id, token in tokenizer.vocab.items():
        assert tokenizer.id_to_token(id) == token and tokenizer.token_to_id(token) == id
    assert tokenizer.token_to_id(END) == 268
    repeated = Tokenizer.from_definition(
        TokenizerDefinition(dict(enumerate([*BYTES, b"a"])), [], {"a": 256})
    )
    assert (repeated.token_to_id("a"), repeated.token_to_id(b"a")) == (256, ord("a"))
    for unknown in ("no token", "\ud800", b""):
        assert tokenizer.token_to_id(unknown) is None
    assert tokenizer.id_to_token(270) is tokenizer.id_to_token(-1) is None


def test_several_texts_for_one_and_one_for_several_are_refused(tokenizer: Tokenizer) -> None:
    several: Any = ["a"]
    for encode in (tokenizer.encode, tokenizer.encode_ordinary, tokenizer.encode_to_numpy):
        with pytest.raises(TypeError, match=r"one text, not list: .* encode_batch"):
            encode(several)
    with pytest.raises(TypeError, match="list of texts"):
        tokenizer.encode_batch("abc")
    assert tokenizer.encode_batch(("a", "b"))[0].tolist() == list(b"ab")
    assert np.array_equal(tokenizer.encode_batch(iter("ab"))[0], list(b"ab"))  # type: ignore[arg-type]
