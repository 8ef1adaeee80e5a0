"""Tokenizer files: every format round-trips, and published files read as in their libraries."""

import base64
import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from oracles import END, PATTERNS, SPECIAL

from groundup.errors import TokenizerError
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.formats import read_definition, read_gpt2_files, write_definition
from groundup.tokenizer.formats.spelling import (
    ALPHABET,
    read_spelling,
    spell_bytes,
    spell_merges,
    spell_tokens,
    spell_vocab,
)
from groundup.tokenizer.patterns import (
    CL100K,
    DEEPSEEK,
    GPT2,
    LLAMA3,
    QWEN2,
    Pattern,
    find_pattern,
    superword_pattern,
)
from groundup.tokenizer.reference import encode_reference, train_bpe_reference

SUPERWORDS = superword_pattern(LLAMA3)
TEXT = "The theme of the thesis: then, there & thus — it's 1234 times the naïve 日本 thing.\n  \n"


def train(pattern: Pattern = GPT2, special_tokens: tuple[str, ...] = (END,)) -> TokenizerDefinition:
    vocab, merges = train_bpe_reference(TEXT * 2, 300, special_tokens, pattern)
    first = len(vocab) - len(special_tokens)
    ids = {text: first + place for place, text in enumerate(special_tokens)}
    return TokenizerDefinition(vocab, merges, ids, pattern, lineage={"corpus": "a sentence"})


SMALL = train()


def test_the_byte_spelling_is_that_of_gpt2() -> None:
    assert spell_bytes(b" the\n") == "ĠtheĊ"
    assert len(set(ALPHABET)) == 256
    assert all(ALPHABET[byte] == chr(byte) for byte in b"!~azAZ09\xa1\xac\xae\xff")
    assert (spell_bytes(b"\x00"), spell_bytes(b"\x7f"), spell_bytes(b"\xad")) == ("Ā", "ġ", "Ń")


@hypothesis.given(st.lists(st.binary(max_size=9)))
def test_the_byte_spelling_round_trips(tokens: list[bytes]) -> None:
    spelled = spell_tokens(tokens)
    assert [read_spelling(text) for text in spelled] == tokens
    assert all(text.isprintable() and " " not in text for text in spelled)


@hypothesis.given(
    format=st.sampled_from(["groundup", "huggingface"]),
    pattern=st.sampled_from([*PATTERNS, find_pattern(r"[a-z]+"), find_pattern(r"[$^a]+|\s")]),
    special=st.dictionaries(st.sampled_from([*SPECIAL, "the"]), st.integers(300, 399), max_size=4),
    whole_words=st.booleans(),
    name=st.sampled_from(["tokenizer.json", "a.tiktoken", "b"]),
)
@hypothesis.settings(
    max_examples=60, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_definitions_round_trip_whatever_the_file_name(
    tmp_path: Path,
    format: Any,
    pattern: Pattern,
    special: dict[str, int],
    whole_words: bool,
    name: str,
) -> None:
    special = {text: id for id, text in {id: text for text, id in special.items()}.items()}
    definition = dataclasses.replace(
        SMALL,
        vocab=SMALL.vocab | {id: text.encode() for text, id in special.items()},
        special_tokens=SMALL.special_tokens | special,
        pattern=pattern,
        whole_words=whole_words,
    )
    # In their files, a special token spelled like an ordinary one cannot have a second entry.
    spelled = spell_tokens(definition.ordinary_tokens().values())
    hypothesis.assume(format == "groundup" or special.keys().isdisjoint(spelled))
    (path,) = write_definition(definition, tmp_path / name, format)
    read = read_definition(path)
    assert read.content_id == definition.content_id
    if format == "groundup":
        assert read == definition
        value = json.loads(path.read_text("utf-8"))
        assert (value["format"], value["version"]) == ("groundup-tokenizer", 1)
        assert value["vocab_size"] == definition.vocab_size
        path.write_text(json.dumps(value, indent=4), "utf-8")
        assert read_definition(path) == definition
    else:
        value = json.loads(path.read_text("utf-8"))
        value["model"]["merges"] = [merge.split(" ") for merge in value["model"]["merges"]]
        assert read_value(tmp_path, value).content_id == read.content_id


def written(tmp_path: Path, format: Any = "huggingface") -> dict[str, Any]:
    (path,) = write_definition(SMALL, tmp_path / "file.json", format)
    value: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return value


def read_value(tmp_path: Path, value: dict[str, Any]) -> TokenizerDefinition:
    (tmp_path / "changed.json").write_text(json.dumps(value), "utf-8")
    return read_definition(tmp_path / "changed.json")


def split_step(regex: str, behaviour: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    options = {"pattern": {"Regex": regex}, "behavior": behaviour, "invert": invert}
    return {"type": "Split", **options}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
BYTE_LEVEL["use_regex"] = False


def set_entry(value: Any, place: str, entry: Any) -> None:
    *folders, key = place.split(".")
    for folder in folders:
        value = value[int(folder)] if isinstance(value, list) else value[folder]
    value[int(key) if isinstance(value, list) else key] = entry


def steps(*given: Any) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": [*given]}


@pytest.mark.parametrize(
    ("format", "place", "entry", "noun"),
    [
        ("huggingface", "normalizer", {"type": "Sequence", "normalizers": ["NFC"]}, "normalizer"),
        ("huggingface", "model.type", "WordPiece", "WordPiece"),
        ("huggingface", "model.dropout", 0.1, "dropout"),
        ("huggingface", "model.continuing_subword_prefix", "##", "continuing_subword_prefix"),
        ("huggingface", "pre_tokenizer.add_prefix_space", True, "add_prefix_space"),
        ("huggingface", "pre_tokenizer", None, "pre_tokenizer"),
        ("huggingface", "pre_tokenizer", steps("ByteLevel"), "pre_tokenizer"),
        ("huggingface", "pre_tokenizer", steps(), "ByteLevel"),
        ("huggingface", "pre_tokenizer", steps({"type": "Whitespace"}, BYTE_LEVEL), "Whitespace"),
        ("huggingface", "pre_tokenizer", split_step("a"), "ByteLevel"),
        *(
            ("huggingface", "pre_tokenizer", steps(step, BYTE_LEVEL), "does not support")
            for step in (
                *map(split_step, (r"a+$", r"^a+", r"[^\w]", r"\p{N}{1,3}+")),
                split_step("a", "Sideways"),
            )
        ),
        ("huggingface", "added_tokens.0.lstrip", True, "lstrip"),
        ("huggingface", "added_tokens.0.id", 5, r"<\|end\|>.*id 5"),
        ("huggingface", "added_tokens.0.id", "5", "'id'"),
        ("huggingface", "added_tokens.0", "<|end|>", "added_tokens"),
        ("huggingface", "model.vocab.Ġ", "x", "'Ġ'"),
        ("huggingface", "model.vocab", [], "'vocab'"),
        ("huggingface", "model.merges", ["t h", "onlyone"], "merge"),
        ("huggingface", "model.merges", ["t h", "t zzz"], "merge .*zzz"),
        ("groundup", "version", 2, "version 2"),
        ("groundup", "merges", ["t h", "q zzz"], "merge"),
        ("groundup", "merges", [], "content id"),
        ("groundup", "pattern.stages", [], "'pattern'"),
        ("groundup", "pattern.stages", ["("], "position 0"),
        ("groundup", "pattern.stages", [""], "pattern"),
        ("groundup", "special_tokens", {"<|end|>": "299"}, "'special_tokens'"),
        ("groundup", "chat_template", 7, "'chat_template'"),
        ("groundup", "vocabulary", ["a", 7], "'vocabulary'"),
        ("groundup", "vocabulary", ["a", "b c"], "'b c'"),
    ],
)
def test_invalid_and_unsupported_entries_are_named(
    tmp_path: Path, format: Any, place: str, entry: Any, noun: str
) -> None:
    value = written(tmp_path, format)
    set_entry(value, place, entry)
    with pytest.raises(TokenizerError, match=noun):
        read_value(tmp_path, value)


@pytest.mark.parametrize(
    ("parts", "pattern"),
    [
        ([split_step(LLAMA3.stages[0]), BYTE_LEVEL], LLAMA3),
        ([split_step(QWEN2.stages[0], "Removed", True), BYTE_LEVEL], QWEN2),
        ([*map(split_step, DEEPSEEK.stages), BYTE_LEVEL], DEEPSEEK),
        (
            [{"type": "Digits", "individual_digits": True}, {**BYTE_LEVEL, "use_regex": True}],
            Pattern("custom", (r"\p{N}", *GPT2.stages)),
        ),
        ([split_step(r"[a-z]+"), BYTE_LEVEL], Pattern("custom", (r"[a-z]+",))),
        ([*map(split_step, SUPERWORDS.stages), BYTE_LEVEL], SUPERWORDS),
        ([BYTE_LEVEL], Pattern("custom", (r"(?s:.+)",))),
        (
            [split_step("t", "MergedWithNext", True), split_step(r"\s", "Removed"), BYTE_LEVEL],
            Pattern("custom", ("t", r"\s"), ("merged with previous", "removed")),
        ),
        (
            [{"type": "Punctuation", "behavior": "Contiguous"}, split_step("e"), BYTE_LEVEL],
            Pattern("custom", (r"[\p{P}$+<=>\^`|~]", "e"), ("contiguous", "isolated")),
        ),
    ],
)
def test_huggingface_pre_tokenizers_become_patterns(
    tmp_path: Path, parts: list[dict[str, Any]], pattern: Pattern
) -> None:
    value = written(tmp_path)
    value["pre_tokenizer"] = steps(*parts)
    definition = read_value(tmp_path, value)
    assert definition.pattern == pattern
    tokenizers = pytest.importorskip("tokenizers")
    expected = tokenizers.Tokenizer.from_str(json.dumps(value)).encode(TEXT * 9).ids
    assert encode_reference(definition, TEXT * 9) == expected
    tokenizer = Tokenizer.from_definition(definition)
    assert tokenizer.encode(TEXT * 9) == [*tokenizer.encode_iterable(TEXT * 9)] == expected
    for format in ("huggingface", "groundup"):
        tokenizer.save(tmp_path / "again.json", format)
        assert read_definition(tmp_path / "again.json").pattern == pattern


def write_ranks(path: Path, tokens: Iterable[bytes]) -> None:
    lines = [base64.b64encode(token) + b" %d" % rank for rank, token in enumerate(tokens)]
    path.write_bytes(b"\n".join(lines))


def test_unpublished_ranks_need_a_pattern(tmp_path: Path) -> None:
    write_ranks(tmp_path / "ranks", SMALL.ordinary_tokens().values())
    with pytest.raises(TokenizerError, match="pattern"):
        read_definition(tmp_path / "ranks")
    assert read_definition(tmp_path / "ranks", GPT2, [END]).content_id == SMALL.content_id
    read = read_definition(tmp_path / "ranks", r"\w+|\W", {"<|x|>": 400})
    assert read.pattern.name == "custom"
    assert read.special_tokens == {"<|x|>": 400}


def test_tokens_that_merges_cannot_produce_set_whole_words(tmp_path: Path) -> None:
    write_ranks(tmp_path / "ranks", [*(bytes([byte]) for byte in range(256)), b"abc"])
    definition = read_definition(tmp_path / "ranks", "gpt2")
    assert definition.whole_words
    assert encode_reference(definition, "abc abc") == [256, 32, 97, 98, 99]


TOKEN = spell_bytes(b" the")
SPELLED_LIKE_ORDINARY = {
    "vocab": {**SMALL.vocab, 300: TOKEN.encode()},
    "special_tokens": {**SMALL.special_tokens, TOKEN: 300},
}


@pytest.mark.parametrize(
    ("changes", "format", "noun"),
    [
        ({"merges": [*SMALL.merges, (b"<|", b"end|>")]}, "groundup", "merge"),
        ({"pattern": find_pattern(r"a+$")}, "huggingface", r"'\$'"),
        ({"pattern": CL100K}, "yaml", "'yaml'"),
        (SPELLED_LIKE_ORDINARY, "huggingface", "Ġthe"),
    ],
)
def test_definitions_that_a_format_cannot_express_are_rejected(
    tmp_path: Path, changes: dict[str, Any], format: Any, noun: str
) -> None:
    with pytest.raises(TokenizerError, match=noun):
        write_definition(dataclasses.replace(SMALL, **changes), tmp_path / "out", format)
    assert list(tmp_path.iterdir()) == []


def test_special_tokens_and_pattern_can_be_overridden(tmp_path: Path) -> None:
    write_definition(SMALL, tmp_path / "tokenizer.json")
    read = read_definition(
        tmp_path / "tokenizer.json", pattern="cl100k", special_tokens=["<|end|>", "<|more|>"]
    )
    assert read.special_tokens == {"<|end|>": 299, "<|more|>": 300}
    assert read.vocab[300] == b"<|more|>"
    assert read.pattern is CL100K
    assert read.content_id != SMALL.content_id


@pytest.mark.parametrize(
    ("content", "noun"),
    [
        (b"hello", "JSON"),
        (b'{"a": "\xff"}', "JSON"),
        (b'{"a": "b"}', "not a known tokenizer file"),
        (b'{"a": 1}', "without merges"),
        (b"[]", "object"),
        (b'{"a":' * 100_000, "JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "JSON"),
        (b"QQ== 0\nQ*== 1\n", "line 2 .*Q\\*=="),
        (b"QQ== 0\nQg== 0\n", "line 2"),
        (b"QQ== 0\nQQ== 0\n", "line 2"),
        (b"QQ== 0\nQg== -1\n", "line 2"),
        (b"QQ== 0\nQg== 5\n", "byte 0x00"),
    ],
)
def test_unknown_content_is_named(tmp_path: Path, content: bytes, noun: str) -> None:
    (tmp_path / "file").write_bytes(content)
    for path in (tmp_path / "file", tmp_path / "nowhere", tmp_path):
        with pytest.raises(TokenizerError, match=noun if path.is_file() else str(path)):
            read_definition(path, "gpt2")


@pytest.mark.parametrize(
    ("vocab", "merges", "noun"),
    [
        ({}, "", ""),
        ({}, "\n", ""),
        ({"extra": 700}, "", "id 300"),
        ({"extra": 5}, "", "'extra' .* id 5"),
        ({}, "\nt zzz", r"merges\.txt .*zzz"),
        ({}, "\nt h e", r"merges\.txt"),
        ({}, "\n\nt h", r"merges\.txt"),
        ({"日": 300}, "", "'日'"),
    ],
)
def test_gpt2_files_are_a_pair_and_damaged_ones_are_named(
    tmp_path: Path, vocab: dict[str, int], merges: str, noun: str
) -> None:
    vocab_path, merges_path = tmp_path / "vocab.json", tmp_path / "merges.txt"
    vocab_path.write_text(json.dumps(spell_vocab(SMALL, "GPT-2's") | vocab), "utf-8")
    # Files may have no header.
    for header in ("", "#version: 0.2\n"):
        merges_path.write_text(header + "\n".join(spell_merges(SMALL)) + merges, "utf-8")
        with pytest.raises(TokenizerError, match=noun) if noun else contextlib.nullcontext():
            read = read_gpt2_files(vocab_path, merges_path, [END, "<|new|>"])
            expected = SMALL.with_special_tokens([END, "<|new|>"])
            assert read.content_id == expected.content_id
            assert read_definition(tmp_path).special_tokens == {}


def test_gpt2_files_equal_r50k(unpack: Callable[[str], Path]) -> None:
    definition = read_gpt2_files(
        unpack("tokenizers/gpt2_encoder.json"),
        unpack("tokenizers/gpt2_vocab.bpe"),
        ["<|endoftext|>"],
    )
    ranks = read_definition(unpack("tokenizers/r50k_base.tiktoken"))
    assert definition.content_id == ranks.content_id
    assert not ranks.whole_words
