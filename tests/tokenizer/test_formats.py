"""Tokenizer files: each format both ways, the published ones as their own libraries read them."""

import base64
import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from groundup.errors import TokenizerError
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.formats import read_definition, read_gpt2_files, write_definition
from groundup.tokenizer.formats.spelling import ALPHABET, read_spelling, spell_bytes, spell_tokens
from groundup.tokenizer.patterns import (
    CL100K,
    DEEPSEEK,
    GPT2,
    LLAMA3,
    O200K,
    QWEN2,
    Pattern,
    find_pattern,
)
from groundup.tokenizer.reference import encode_reference, train_bpe_reference

TEXT = "The theme of the thesis: then, there & thus — it's 1234 times the naïve 日本 thing.\n  \n"


def train(
    pattern: Pattern = GPT2, special_tokens: tuple[str, ...] = ("<|end|>",)
) -> TokenizerDefinition:
    vocab, merges = train_bpe_reference(TEXT * 2, 300, special_tokens, pattern)
    first = len(vocab) - len(special_tokens)
    ids = {text: first + place for place, text in enumerate(special_tokens)}
    return TokenizerDefinition(vocab, merges, ids, pattern, lineage={"corpus": "a sentence"})


SMALL = train()


def test_the_spelling_is_gpt2s() -> None:
    assert spell_bytes(b" the\n") == "ĠtheĊ"
    assert len(set(ALPHABET)) == 256
    assert all(ALPHABET[byte] == chr(byte) for byte in b"!~azAZ09\xa1\xac\xae\xff")
    assert (spell_bytes(b"\x00"), spell_bytes(b"\x7f"), spell_bytes(b"\xad")) == ("Ā", "ġ", "Ń")


@hypothesis.given(st.lists(st.binary(max_size=9)))
def test_spelling_goes_both_ways(tokens: list[bytes]) -> None:
    spelled = spell_tokens(tokens)
    assert [read_spelling(text) for text in spelled] == tokens
    assert all(text.isprintable() and " " not in text for text in spelled)


@pytest.mark.parametrize("pattern", [GPT2, CL100K, O200K, DEEPSEEK, find_pattern(r"\w+|\W")])
def test_our_file_holds_everything(tmp_path: Path, pattern: Pattern) -> None:
    definition = dataclasses.replace(
        train(pattern, ("<|end|>", " spaced ", "日本")), whole_words=True
    )
    path = tmp_path / "tokenizer.json"
    write_definition(definition, path)
    read = read_definition(path)
    assert read == definition
    assert read.content_id() == definition.content_id()
    value = json.loads(path.read_text("utf-8"))
    assert value["format"] == "groundup-tokenizer"
    assert value["version"] == 1
    assert value["vocab_size"] == definition.vocab_size
    assert value["lineage"] == {"corpus": "a sentence"}


def test_our_file_keeps_gaps_and_repeated_special_tokens(tmp_path: Path) -> None:
    special = {**SMALL.special_tokens, "the": 999}
    vocab = {**SMALL.vocab, 999: b"the"}
    definition = dataclasses.replace(SMALL, vocab=vocab, special_tokens=special)
    write_definition(definition, tmp_path / "tokenizer.json")
    assert read_definition(tmp_path / "tokenizer.json") == definition


@pytest.mark.parametrize(
    ("format", "name"), [("groundup", "a.tiktoken"), ("huggingface", "b.bin"), ("gpt2", "out")]
)
def test_a_file_is_known_by_its_content_not_its_name(
    tmp_path: Path, format: Any, name: str
) -> None:
    paths = write_definition(SMALL, tmp_path / name, format)
    read = read_definition(paths[0], GPT2, ["<|end|>"])
    assert read.content_id() == SMALL.content_id()


@pytest.mark.parametrize("target", ["folder", "folder/vocab.json"])
def test_gpt2_files_are_a_pair(tmp_path: Path, target: str) -> None:
    paths = write_definition(SMALL, tmp_path / target, "gpt2")
    assert paths == [tmp_path / "folder" / "vocab.json", tmp_path / "folder" / "merges.txt"]
    header, lines = paths[1].read_text("utf-8").split("\n", 1)
    assert header == "#version: 0.2"
    for source in (tmp_path / "folder", paths[0]):
        assert read_definition(source, special_tokens=["<|end|>"]).merges == SMALL.merges
    # The header is not part of the course's files.
    paths[1].write_text(lines, "utf-8")
    vocab, merges = paths
    assert read_gpt2_files(vocab, merges, ["<|end|>"]).content_id() == SMALL.content_id()
    plain = read_gpt2_files(vocab, merges)
    assert plain.special_tokens == {} and len(encode_reference(plain, "<|end|>")) > 1
    appended = read_gpt2_files(vocab, merges, ["<|new|>"])
    assert appended.special_tokens == {"<|new|>": SMALL.vocab_size}


@pytest.mark.parametrize("pairs", [False, True])
def test_huggingface_merges_are_texts_or_pairs(tmp_path: Path, pairs: bool) -> None:
    value = huggingface_value(tmp_path)
    if pairs:
        value["model"]["merges"] = [merge.split(" ") for merge in value["model"]["merges"]]
    assert read_value(tmp_path, value).content_id() == SMALL.content_id()


def huggingface_value(tmp_path: Path, definition: TokenizerDefinition = SMALL) -> dict[str, Any]:
    write_definition(definition, tmp_path / "hf.json", "huggingface")
    value: dict[str, Any] = json.loads((tmp_path / "hf.json").read_text("utf-8"))
    return value


def read_value(tmp_path: Path, value: dict[str, Any]) -> TokenizerDefinition:
    (tmp_path / "changed.json").write_text(json.dumps(value), "utf-8")
    return read_definition(tmp_path / "changed.json")


def split_step(regex: str, behaviour: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    options = {"pattern": {"Regex": regex}, "behavior": behaviour, "invert": invert}
    return {"type": "Split", **options}


BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": False,
}


def set_entry(value: Any, place: str, entry: Any) -> None:
    *folders, key = place.split(".")
    for folder in folders:
        value = value[int(folder)] if isinstance(value, list) else value[folder]
    value[int(key) if isinstance(value, list) else key] = entry


@pytest.mark.parametrize(
    ("place", "entry", "noun"),
    [
        ("normalizer", {"type": "NFC"}, "normalizer"),
        ("normalizer", {"type": "Sequence", "normalizers": ["NFC"]}, "normalizer"),
        ("normalizer", "NFC", "normalizer"),
        ("model.type", "WordPiece", "WordPiece"),
        ("model.dropout", 0.1, "dropout"),
        ("model.continuing_subword_prefix", "##", "continuing_subword_prefix"),
        ("pre_tokenizer.add_prefix_space", True, "add_prefix_space"),
        ("pre_tokenizer", None, "pre_tokenizer"),
        ("pre_tokenizer", "ByteLevel", "pre_tokenizer"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": ["ByteLevel"]}, "pre_tokenizer"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": []}, "ByteLevel"),
        (
            "pre_tokenizer",
            {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, BYTE_LEVEL]},
            "Whitespace",
        ),
        ("pre_tokenizer", split_step("a"), "ByteLevel"),
        ("added_tokens.0.lstrip", True, "lstrip"),
        ("added_tokens.0.single_word", True, "single_word"),
        ("added_tokens.0.id", 5, r"<\|end\|>.*id 5"),
        ("added_tokens.0.id", "5", "'id'"),
        ("added_tokens.0", "<|end|>", "added_tokens"),
        ("model.vocab.Ġ", "x", "'Ġ'"),
        ("model.vocab", [], "'vocab'"),
        ("model.merges", ["t h", "onlyone"], "merge"),
        ("model.merges", [["t", "h"], ["a"]], "merge"),
        ("model.merges", ["t h", "t zzz"], "merge .*zzz"),
        ("model.merges", ["t", "h e r"], "merge"),
    ],
)
def test_what_a_huggingface_file_asks_in_vain_is_named(
    tmp_path: Path, place: str, entry: Any, noun: str
) -> None:
    value = huggingface_value(tmp_path)
    set_entry(value, place, entry)
    with pytest.raises(TokenizerError, match=noun):
        read_value(tmp_path, value)


@pytest.mark.parametrize(
    ("steps", "pattern"),
    [
        ([split_step(LLAMA3.stages[0]), BYTE_LEVEL], LLAMA3),
        ([split_step(QWEN2.stages[0], "Removed", True), BYTE_LEVEL], QWEN2),
        ([*map(split_step, DEEPSEEK.stages), BYTE_LEVEL], DEEPSEEK),
        (
            [{"type": "Digits", "individual_digits": True}, {**BYTE_LEVEL, "use_regex": True}],
            Pattern("custom", (r"\p{N}", *GPT2.stages)),
        ),
        ([split_step(r"[a-z]+"), BYTE_LEVEL], Pattern("custom", (r"[a-z]+",))),
        ([BYTE_LEVEL], Pattern("custom", (r"(?s:.+)",))),
    ],
)
def test_huggingface_pre_tokenizers_are_patterns(
    tmp_path: Path, steps: list[dict[str, Any]], pattern: Pattern
) -> None:
    value = huggingface_value(tmp_path)
    value["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    definition = read_value(tmp_path, value)
    assert definition.pattern == pattern
    tokenizers = pytest.importorskip("tokenizers")
    oracle = tokenizers.Tokenizer.from_str(json.dumps(value))
    assert encode_reference(definition, TEXT) == oracle.encode(TEXT).ids


@pytest.mark.parametrize(
    "step",
    [
        split_step(r"\w+$"),
        split_step(r"^\w+"),
        split_step(r"\p{N}{1,3}+"),
        split_step(r"\w+", "Removed", True),
        split_step(r"\w+", "MergedWithNext"),
    ],
)
def test_patterns_that_mean_something_else_to_huggingface_are_refused(
    tmp_path: Path, step: dict[str, Any]
) -> None:
    value = huggingface_value(tmp_path)
    value["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [step, BYTE_LEVEL]}
    with pytest.raises(TokenizerError, match="cannot honour"):
        read_value(tmp_path, value)


@pytest.mark.parametrize("pattern", [GPT2, CL100K, LLAMA3, QWEN2, O200K, DEEPSEEK])
def test_the_huggingface_library_reads_what_we_write(tmp_path: Path, pattern: Pattern) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    definition = train(pattern, ("<|end|>", "<|end|><|end|>", "日 本"))
    write_definition(definition, tmp_path / "tokenizer.json", "huggingface")
    oracle = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in (TEXT, f"{TEXT}<|end|><|end|><|end|>12日 本 'S'll\r\n  x  ", " " * 9):
        assert oracle.encode(text).ids == encode_reference(definition, text)
        assert oracle.decode(oracle.encode(text).ids, skip_special_tokens=False) == text


def write_ranks(path: Path, tokens: Iterable[bytes]) -> None:
    lines = [base64.b64encode(token) + b" %d" % rank for rank, token in enumerate(tokens)]
    path.write_bytes(b"\n".join(lines))


def test_ranks_that_are_not_published_need_a_pattern(tmp_path: Path) -> None:
    write_ranks(tmp_path / "ranks", SMALL.ordinary_tokens().values())
    with pytest.raises(TokenizerError, match="pattern"):
        read_definition(tmp_path / "ranks")
    assert read_definition(tmp_path / "ranks", GPT2, ["<|end|>"]).content_id() == SMALL.content_id()
    read = read_definition(tmp_path / "ranks", r"\w+|\W", {"<|x|>": 400})
    assert read.pattern.name == "custom"
    assert read.special_tokens == {"<|x|>": 400}


def test_tokens_that_no_merge_reaches_make_whole_words(tmp_path: Path) -> None:
    write_ranks(tmp_path / "ranks", [*(bytes([byte]) for byte in range(256)), b"abc"])
    definition = read_definition(tmp_path / "ranks", "gpt2")
    assert definition.whole_words
    assert encode_reference(definition, "abc abc") == [256, 32, 97, 98, 99]
    with pytest.raises(TokenizerError, match="whole_words"):
        write_definition(definition, tmp_path / "out", "gpt2")


@pytest.mark.parametrize(
    ("changes", "format", "noun"),
    [
        ({"pattern": CL100K}, "gpt2", "cl100k"),
        ({"merges": [*SMALL.merges, (b"<|", b"end|>")]}, "groundup", "merge"),
        ({"pattern": find_pattern(r"\w+$")}, "huggingface", r"'\$'"),
        ({"pattern": CL100K}, "yaml", "'yaml'"),
    ],
)
def test_what_a_format_cannot_express_is_refused(
    tmp_path: Path, changes: dict[str, Any], format: Any, noun: str
) -> None:
    with pytest.raises(TokenizerError, match=noun):
        write_definition(dataclasses.replace(SMALL, **changes), tmp_path / "out", format)
    assert list(tmp_path.iterdir()) == []


def test_a_special_token_spelled_like_an_ordinary_one_is_refused(tmp_path: Path) -> None:
    text = spell_bytes(b" the")
    definition = dataclasses.replace(
        SMALL,
        vocab={**SMALL.vocab, 300: text.encode()},
        special_tokens={**SMALL.special_tokens, text: 300},
    )
    with pytest.raises(TokenizerError, match="Ġthe"):
        write_definition(definition, tmp_path / "out", "huggingface")
    write_definition(definition, tmp_path / "out", "groundup")
    assert read_definition(tmp_path / "out") == definition


def test_special_tokens_and_pattern_can_be_given_on_top(tmp_path: Path) -> None:
    write_definition(SMALL, tmp_path / "tokenizer.json")
    read = read_definition(
        tmp_path / "tokenizer.json", pattern="cl100k", special_tokens=["<|end|>", "<|more|>"]
    )
    assert read.special_tokens == {"<|end|>": 299, "<|more|>": 300}
    assert read.vocab[300] == b"<|more|>"
    assert read.pattern is CL100K
    assert read.content_id() != SMALL.content_id()


@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.7, 0.999])
@pytest.mark.parametrize("format", ["groundup", "huggingface"])
def test_a_file_cut_short_is_named(tmp_path: Path, format: Any, part: float) -> None:
    path = tmp_path / "tokenizer.json"
    write_definition(SMALL, path, format)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    with pytest.raises(TokenizerError, match=str(path)):
        read_definition(path)


def test_a_changed_file_does_not_match_its_content_id(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    write_definition(SMALL, path)
    value = json.loads(path.read_text("utf-8"))
    value["merges"] = value["merges"][::-1]
    path.write_text(json.dumps(value), "utf-8")
    with pytest.raises(TokenizerError, match="content id"):
        read_definition(path)


def test_a_file_with_another_layout_is_still_whole(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    write_definition(SMALL, path)
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")), indent=4), "utf-8")
    assert read_definition(path) == SMALL


@pytest.mark.parametrize(
    ("place", "entry", "noun"),
    [
        ("version", 2, "version 2"),
        ("version", "1", "'version'"),
        ("merges", {}, "'merges'"),
        ("pattern.stages", [], "'pattern'"),
        ("pattern.stages", ["("], "regular expression"),
        ("pattern.stages", [""], "pattern"),
        ("special_tokens", {"<|end|>": "299"}, "'special_tokens'"),
        ("chat_template", 7, "'chat_template'"),
        ("vocabulary", ["a", 7], "'vocabulary'"),
        ("vocabulary", ["a", "b c"], "'b c'"),
        ("merges", ["t h", "q zzz"], "merge"),
    ],
)
def test_a_broken_entry_of_our_file_is_named(
    tmp_path: Path, place: str, entry: Any, noun: str
) -> None:
    path = tmp_path / "tokenizer.json"
    write_definition(SMALL, path)
    value = json.loads(path.read_text("utf-8"))
    set_entry(value, place, entry)
    path.write_text(json.dumps(value), "utf-8")
    with pytest.raises(TokenizerError, match=noun):
        read_definition(path)


@pytest.mark.parametrize(
    ("content", "noun"),
    [
        (b" \n", "file"),
        (b"hello", "JSON"),
        (b"\x80\x04\x95", "JSON"),
        (b'{"a": "\xff"}', "JSON"),
        (b'{"a": "b"}', "no tokenizer file"),
        (b'{"a": 1}', "without merges"),
        (b"[]", "object"),
        (b'{"a":' * 100_000, "JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "JSON"),
        (b"QQ== 0\nQg== x\n", "line 2 .*Qg== x"),
        (b"QQ== 0\nQ*== 1\n", "line 2"),
        (b"QQ== 0\nQg*== 1\n", "line 2"),
        (b"QQ== 0\nQg== 0\n", "line 2"),
        (b"QQ== 0\nQQ== 0\n", "line 2"),
        (b"QQ== 0\nQg==", "line 2"),
        (b"QQ== 0\nQg== -1\n", "line 2"),
        (b"QQ== 0\nQg== 5\n", "byte 0x00"),
    ],
)
def test_other_content_is_named(tmp_path: Path, content: bytes, noun: str) -> None:
    (tmp_path / "file").write_bytes(content)
    for path in (tmp_path / "file", tmp_path / "nowhere", tmp_path):
        with pytest.raises(TokenizerError, match=noun if path.is_file() else str(path)):
            read_definition(path, "gpt2")


@pytest.mark.parametrize(
    ("vocab", "merges", "noun"),
    [
        ({"extra": 700}, "", "id 300"),
        ({"extra": 5}, "", "'extra' .* id 5"),
        ({}, "\nt zzz", r"merges\.txt .*zzz"),
        ({}, "\nt h e", r"merges\.txt"),
        ({}, "\n\nt h", r"merges\.txt"),
        ({"日": 300}, "", "'日'"),
    ],
)
def test_broken_gpt2_files_are_named(
    tmp_path: Path, vocab: dict[str, int], merges: str, noun: str
) -> None:
    vocab_path, merges_path = write_definition(SMALL, tmp_path / "out", "gpt2")
    value = {**json.loads(vocab_path.read_text("utf-8")), **vocab}
    vocab_path.write_text(json.dumps(value), "utf-8")
    merges_path.write_text(merges_path.read_text("utf-8").rstrip("\n") + merges, "utf-8")
    with pytest.raises(TokenizerError, match=noun):
        read_gpt2_files(vocab_path, merges_path, ["<|end|>"])


@pytest.mark.parametrize("name", ["p50k_base.tiktoken", "cl100k_base.tiktoken"])
def test_published_ranks_survive_all_formats(
    unpack: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    source = unpack(f"tokenizers/{name}")
    definition = read_definition(source)
    for format in ("groundup", "huggingface"):
        write_definition(definition, tmp_path / format, format)
    assert read_definition(tmp_path / "groundup") == definition
    assert read_definition(tmp_path / "huggingface").content_id() == definition.content_id()


def test_gpt2s_own_files_are_r50k(unpack: Callable[[str], Path]) -> None:
    definition = read_gpt2_files(
        unpack("tokenizers/gpt2_encoder.json"),
        unpack("tokenizers/gpt2_vocab.bpe"),
        ["<|endoftext|>"],
    )
    ranks = read_definition(unpack("tokenizers/r50k_base.tiktoken"))
    assert definition.content_id() == ranks.content_id()
    assert not ranks.whole_words


def test_anchors_inside_a_class_are_ordinary_characters(tmp_path: Path) -> None:
    vocab, merges = train_bpe_reference("a$b a$b", 258, [])
    pattern = find_pattern(r"[$^a]+|[^\s$]|\s")
    definition = TokenizerDefinition(vocab, merges, {}, pattern)
    (path,) = write_definition(definition, tmp_path / "tokenizer.json", "huggingface")
    assert read_definition(path).pattern == pattern
