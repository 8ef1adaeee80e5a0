"""`explain` traces encoding to the ids of the encoder."""

import hypothesis
import hypothesis.strategies as st

from groundup.tokenizer import Tokenizer
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.inspection import explain
from groundup.tokenizer.reference import train_bpe_reference

TEXT = "the theme of the thesis is then and there"


def make(whole_words: bool = False) -> Tokenizer:
    vocab, merges = train_bpe_reference(TEXT, 280, ["<|end|>"])
    ids = {"<|end|>": len(vocab) - 1}
    return Tokenizer.from_definition(
        TokenizerDefinition(vocab, merges, ids, whole_words=whole_words)
    )


@hypothesis.given(st.text(max_size=40))
@hypothesis.example(TEXT + "<|end|>" + TEXT)
def test_explain_follows_the_merges_to_the_ids(text: str) -> None:
    for tokenizer in (make(), make(whole_words=True)):
        pre_tokens = explain(tokenizer.definition, text)
        assert [id for one in pre_tokens for id in one.ids] == tokenizer.encode(text)
        assert "".join(pre_token.text for pre_token in pre_tokens) == text
        for pre_token in pre_tokens:
            assert b"".join(pre_token.tokens) == pre_token.text.encode()
            symbols = pre_token.start
            for step in pre_token.steps:
                assert tokenizer.merges[step.rank] == (step.left, step.right)
                assert len(step.symbols) == len(symbols) - 1
                assert step.left + step.right in step.symbols
                symbols = step.symbols
            is_whole = pre_token.is_special or pre_token.is_whole_word
            assert not pre_token.steps if is_whole else symbols == pre_token.tokens


def test_explain_marks_special_tokens_and_whole_words() -> None:
    special, word = explain(make(whole_words=True).definition, "<|end|>the")
    assert special.is_special and word.is_whole_word
