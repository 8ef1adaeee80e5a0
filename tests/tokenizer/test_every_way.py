"""Every way to encode gives the ids of the reference, for any vocabulary, and the text back."""

import random
from functools import cache

import hypothesis
import hypothesis.strategies as st
import numpy as np

from groundup.tokenizer import Tokenizer
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.patterns import CL100K, DEEPSEEK, GPT2, LLAMA3, O200K, QWEN2, find_pattern
from groundup.tokenizer.reference import encode_reference
from groundup.tokenizer.training import train_tokenizer

BYTES = [bytes([byte]) for byte in range(256)]
PATTERNS = (GPT2, CL100K, LLAMA3, QWEN2, O200K, DEEPSEEK)
END = "<|end|>"
# Prefixes of each other, overlapping ends, expressions, white space, single characters.
SPECIAL = [
    END,
    END * 2,
    *"<|en < |> ab aba abab bab é a.b .* [a-b]+ (a|b) \\d $ 's 😀 \0".split(),
]
SPECIAL += ["a b", " ", "  ", "\n", " \n", "b\na"]
SNIPPETS = [*"aabbABé字ไ́1 \n\r\t\u3000\xa0'.!/😀<|>", "  ", "\n\n", "'s", "'Ll", "the", " the"]
SNIPPETS += ["aab", "字AB", "AB字", "it's", "don't", "\u2028", *SPECIAL]
TEXTS = st.one_of(
    st.lists(st.sampled_from(SNIPPETS), max_size=25).map("".join),
    st.text("aabbé ", max_size=80),
    st.text(max_size=30),
)
# Long runs cross the block and the window of the scanners.
RUNS = st.builds(
    lambda piece, size: piece * size,
    st.sampled_from(SNIPPETS),
    st.sampled_from([1, 2, 7, 63, 64, 65, 600, 4100]),
)


@cache
def without_splitting() -> Tokenizer:
    """A vocabulary in which most neighbours merge, so that ids tell where the text was cut."""
    text = "".join(random.Random(0).choices(SNIPPETS, k=20_000))
    return train_tokenizer([text.encode()], 3000, [], pattern=find_pattern(r"(?s).+"))[0]


def odd_merges(chance: random.Random) -> tuple[list[bytes], list[tuple[bytes, bytes]]]:
    """Merges no training would give: of later tokens, of one result twice, dead ends; any ids."""
    tokens = [b"a", b"b"] if chance.random() < 0.5 else [b"a", b"b", b"\xc3", b"\xa9", b" "]
    merges: list[tuple[bytes, bytes]] = []
    for _ in range(chance.randrange(20)):
        left, right = chance.choices(tokens, k=2)
        if len(left + right) <= 8:
            merges.append((left, right))
            tokens.append(left + right)
    if chance.random() < 0.5:
        # Other ways to put the same tokens together; of each token only one can ever happen.
        splits = [(token[:cut], token[cut:]) for token in tokens for cut in range(1, len(token))]
        for pair in chance.sample(splits, len(splits) // 2):
            if pair[0] in tokens and pair[1] in tokens:
                merges.insert(chance.randrange(len(merges) + 1), pair)
    if chance.random() < 0.3:
        chance.shuffle(merges)
    if chance.random() < 0.3:
        merges = [merge for merge in merges if chance.random() < 0.8]
    extra = ["".join(chance.choices("ab ", k=4)).encode() for _ in range(chance.randrange(3))]
    distinct = list(dict.fromkeys([*BYTES, *tokens, *extra]))
    chance.shuffle(distinct)
    return distinct, list(dict.fromkeys(merges))


@cache
def make_tokenizer(seed: int) -> Tokenizer:
    """Special tokens may have the bytes of ordinary ones, under ids of their own."""
    chance = random.Random(seed)
    pattern = chance.choice(PATTERNS)
    if seed % 3 == 0:
        tokens, merges = odd_merges(chance)
    else:
        text = "".join(chance.choices(SNIPPETS, k=200)).encode()
        trained = without_splitting()
        if seed % 3 == 1:
            trained, _ = train_tokenizer([text], 256 + chance.randrange(60), [], pattern=pattern)
        tokens, merges = list(trained.vocab.values()), trained.merges
    special = chance.sample(SPECIAL, chance.choice([0, 1, 3, 8]))
    ids = {text: len(tokens) + 3 * number for number, text in enumerate(special)}
    vocab = {**dict(enumerate(tokens)), **{id: text.encode() for text, id in ids.items()}}
    is_whole = chance.random() < 0.2
    return Tokenizer.from_definition(
        TokenizerDefinition(vocab, merges, ids, pattern, whole_words=is_whole)
    )


@hypothesis.given(
    tokenizer=st.integers(0, 299).map(make_tokenizer),
    texts=st.lists(TEXTS, max_size=5),
    runs=st.lists(RUNS, max_size=3),
    cuts=st.lists(st.integers(0, 20_000), max_size=8),
    num_threads=st.integers(1, 4),
    data=st.data(),
)
@hypothesis.settings(max_examples=600)
def test_every_way_to_encode_gives_the_ids_of_the_reference(
    tokenizer: Tokenizer,
    texts: list[str],
    runs: list[str],
    cuts: list[int],
    num_threads: int,
    data: st.DataObject,
) -> None:
    expected = [encode_reference(tokenizer.definition, text) for text in texts]
    assert [tokenizer.encode(text) for text in texts] == expected
    ids, offsets = tokenizer.encode_batch(texts, num_threads)
    assert ids.dtype == tokenizer.id_type and offsets.dtype == np.int64 and offsets[0] == 0
    assert [part.tolist() for part in np.split(ids, offsets[1:-1])][: len(texts)] == expected
    # Any order, and the same document twice.
    order = data.draw(st.lists(st.sampled_from(range(len(texts))))) if texts else []
    joined, ends = "".join(texts).encode(), np.cumsum([0, *(len(t.encode()) for t in texts)])
    bounds = np.array([[ends[i], ends[i + 1]] for i in order], np.int64).reshape(-1, 2)
    end_id = next(iter(tokenizer.special_tokens.values()), None)
    ids, offsets = tokenizer.encode_documents(joined, bounds, num_threads, end_id)
    for number, index in enumerate(order):
        end = [] if end_id is None else [end_id]
        assert ids[offsets[number] : offsets[number + 1]].tolist() == expected[index] + end
    whole = "".join(texts[:2] + runs + texts[2:])
    ids = tokenizer.encode_to_numpy(whole)
    assert tokenizer.decode(ids) == whole
    # A pattern without a scanner takes each piece by itself.
    if tokenizer.pattern is not DEEPSEEK:
        stops = sorted(cut % (len(whole) + 1) for cut in cuts)
        pieces = [whole[a:b] for a, b in zip([0, *stops], [*stops, len(whole)], strict=True)]
        assert list(tokenizer.encode_iterable(pieces)) == ids.tolist()
        assert list(tokenizer.encode_iterable(whole[:500])) == tokenizer.encode(whole[:500])
    decoder = tokenizer.decode_stream()
    assert "".join(map(decoder.push, ids[:2000].tolist())) + decoder.finish() == (
        tokenizer.decode(ids[:2000])
    )
