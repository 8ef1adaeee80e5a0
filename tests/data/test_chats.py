"""Conversations: reading, rendering, encoding with a loss mask, and packing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.data.chats import (
    IGNORED,
    Conversation,
    EncodedConversations,
    PackedRows,
    encode_conversations,
    find_answers,
    pack,
    read_conversations,
    split,
)
from groundup.errors import DataError
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.chat_template import CHATML, ChatTemplate, Message

USER: Message = {"role": "user", "content": "Wer hat den Käse?"}
ANSWER: Message = {"role": "assistant", "content": "Die Maus 🐭 hat ihn."}


def make_tokenizer() -> Tokenizer:
    vocab = {id: bytes([id]) for id in range(256)}
    merges = [(b"i", b"e"), (b"\n", b"\n"), (b"a", b"t")]
    vocab |= {256 + number: left + right for number, (left, right) in enumerate(merges)}
    return Tokenizer(vocab, merges, ["<|endoftext|>"]).with_chat()


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "list.json",
            '[\n{"prompt": "a;b", "completion": "c\\nd"}, {"question": "q", "answer": "r"}]',
        ),
        (
            "wrapped.json",
            '{"version": 1, "data": [{"q": 1, "user": "a;b", "gpt": "c\\nd"}, 3, ["q"]]}',
        ),
        (
            "one.json",
            '[{"role": "user", "content": "a;b"}, {"role": "assistant", "content": "c\\nd"}]',
        ),
        ("lines.json", '{"prompt": "a;b", "completion": "c\\nd"}\n{"prompt": "q"}\n{'),
        ("comma.csv", '\ufeffquestion,answer\r\na;b,"c\nd"\r\n\r\nq\r\n'),
        ("excel.csv", 'id;Output;Input\n1;"c\nd";"a;b"\n2;x\n3;"open'),
        ("tabs.tsv", 'prompt\tresponse\na;b\t"c\nd"\n'),
    ],
)
def test_lists_and_tables_are_read(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode())
    found = list(read_conversations([path]))
    assert [turn["content"] for turn in found[0].messages] == ["a;b", "c\nd"]
    assert len(found) == 1 + (name == "list.json")
    path.write_bytes(text.removeprefix("\ufeff").encode("utf-16"))
    assert list(read_conversations([path])) == found


def test_bad_records_are_skipped_unless_all_are_bad(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = {"prompt": "a", "completion": "b"}, {"title": "c", "body": "d"}
    path = write(tmp_path / "chats.jsonl", bad, good, *[bad] * 4)
    assert [one.where for one in read_conversations([path])] == [f"{path} line 2"]
    assert "skipped 5 of 6 records" in caplog.text and "and 2 more" in caplog.text
    assert "line 1 has the fields title, body; supported are messages" in caplog.text
    table = tmp_path / "table.csv"
    table.write_text("title,body\nc,d\n")
    for file in (write(path, bad), table):
        with pytest.raises(DataError, match=r"title, body; supported are messages .role and"):
            list(read_conversations([file]))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("not json", "line 2 is not JSON"),
        ("[1, 2]", "line 2 holds [1, 2]"),
        ('{"text": "Hello."}', "line 2 has the fields text"),
        ('{"messages": []}', "at least one"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', "role is 'robot' in message 1"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "turn without an answer"),
        (json.dumps({"messages": [USER, USER, ANSWER]}), "turn without an answer"),
        ('{"messages": [{"role": "system", "content": "x"}]}', "has no answer"),
        ('{"prompt": "x", "completion": ""}', "message 2 of"),
        ('{"prompt": "x", "chosen": "y"}', "the fields prompt, chosen"),
        ('{"prompt": "x", "chosen": "y", "rejected": "y"}', "equal answers"),
        ('{"prompt": "x", "chosen": "y", "rejected": "z"}', "mixes pairs"),
        ('{"chosen": "y", "rejected": "z"}', "has the fields chosen"),
        ('{"prompt": "x", "completion": 3}', "content is 3 in message 2"),
        ('{"prompt": "x", "completion": "\\ud800"}', "not UTF-8"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_invalid_conversations_are_reported(line: str, complaint: str, tmp_path: Path) -> None:
    path = write(tmp_path / "chats.jsonl", {"prompt": "a", "completion": "b"})
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError) as caught:
        list(read_conversations([path], strict=True))
    assert complaint in str(caught.value) and "line 2" in str(caught.value)
    assert len(str(caught.value)) < 400


TWO: list[Message] = [USER, {"role": "assistant", "content": "no"}]


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": USER["content"], "chosen": ANSWER["content"], "rejected": "no"},
        {"prompt": [USER], "Chosen": [ANSWER], "rejected": TWO[1:]},
        {"messages": [USER], "chosen": ANSWER["content"], "rejected": TWO[1:]},
        {"prompt": "?", "messages": [USER, ANSWER], "chosen": [USER, ANSWER], "rejected": TWO},
    ],
)
def test_pairs_are_read_and_encoded_whole(record: dict[str, Any], tmp_path: Path) -> None:
    long = {"prompt": "x" * 199, "chosen": "y", "rejected": "z"}
    file = write(tmp_path / "pairs.jsonl", long, record, {**record, "system": "Be brief."})
    found = list(read_conversations([file]))
    brief: Message = {"role": "system", "content": "Be brief."}
    expected = [[USER, ANSWER], TWO, [brief, USER, ANSWER], [brief, *TWO]]
    assert [one.messages for one in found[2:]] == expected
    assert [one.where for one in found[2:4]] == [f"{file} line 2"] * 2
    pairs = encode_conversations(found, make_tokenizer(), 100)
    assert (len(pairs), pairs.num_cut, pairs.numbers) == (2, 2, (2, 4))
    with pytest.raises(DataError, match=r"no pair of answers fits .* --model.context-length"):
        encode_conversations(found, make_tokenizer(), 50)


def test_invalid_utf8_and_other_formats_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_bytes(b'{"prompt": "\xff", "completion": "x"}\n')
    with pytest.raises(DataError, match=r"line 1 .*not UTF-8"):
        list(read_conversations([path]))
    with pytest.raises(DataError, match="neither JSON nor CSV"):
        list(read_conversations([path.rename(tmp_path / "chats.parquet")]))


def test_loss_mask_covers_answers_and_their_end_tokens() -> None:
    tokenizer = make_tokenizer()
    messages: list[Message] = [USER, ANSWER, {"role": "user", "content": "\n\n?"}, ANSWER]
    found = encode_conversations([Conversation(messages, "here")], tokenizer, 1000)
    text = ChatTemplate(CHATML).render(messages)
    assert found.ids.tolist() == tokenizer.encode(text)
    marked = tokenizer.decode(found.ids[found.is_answer].tolist())
    assert marked == 2 * (ANSWER["content"] + "<|im_end|>")


def test_a_token_starting_before_the_answer_is_masked() -> None:
    tokenizer = make_tokenizer()
    messages: list[Message] = [USER, {"role": "assistant", "content": "\n\nYes."}]
    found = encode_conversations([Conversation(messages, "here")], tokenizer, 1000)
    # The newlines at the end of the prompt and the start of the answer are one token.
    assert tokenizer.decode(found.ids[found.is_answer].tolist()) == "\nYes.<|im_end|>"


def test_answers_are_found_in_other_templates() -> None:
    plain = ChatTemplate(
        "{% for m in messages %}{{ m.role }}: {{ m.content|trim }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    # Such an answer ends without a special token, even after a prompt that ends with one.
    text, spans = find_answers(plain, [USER, ANSWER], ("assistant:",))
    (begin, end), data = spans[0], text.encode()
    assert data[begin:end].decode() == f" {ANSWER['content']}\n"
    last = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}{{ messages|length }}")
    with pytest.raises(DataError, match="renders turn by turn"):
        find_answers(last, [USER, ANSWER, USER, ANSWER], ())


def test_template_errors_name_the_line() -> None:
    strict = make_tokenizer().with_chat("{{ raise_exception('no chats today') }}")
    with pytest.raises(DataError, match=r"chats line 3: .*no chats today"):
        encode_conversations([Conversation([USER, ANSWER], "chats line 3")], strict, 100)


def test_conversations_truncated_before_the_answer_are_dropped() -> None:
    tokenizer = make_tokenizer()
    long: Message = {"role": "user", "content": "x" * 200}
    conversations = [Conversation([one, ANSWER], "here") for one in (USER, long)]
    whole = encode_conversations(conversations, tokenizer, 1000)
    assert (len(whole), whole.num_cut) == (2, 0)
    length = int(whole.offsets[1])
    assert encode_conversations(conversations, tokenizer, length).num_cut == 1
    cut = encode_conversations(conversations, tokenizer, length - 3)
    assert (len(cut), cut.num_cut) == (1, 2)
    assert cut.ids.tolist() == whole.ids[: length - 3].tolist()
    assert cut.content_id != whole.content_id
    with pytest.raises(DataError, match=r"no answer begins within .* --model.context-length"):
        encode_conversations(conversations, tokenizer, 5)
    with pytest.raises(DataError, match="no conversation"):
        encode_conversations([], tokenizer, 100)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60))
def test_packing_never_overfills_and_wastes_little(lengths: list[int]) -> None:
    rows = pack(np.array(lengths), 20)
    filled = np.bincount(rows, weights=lengths)
    assert filled.max() <= 20 and filled.min() > 0
    # No two rows could be merged.
    smallest = np.sort(filled)[:2]
    assert len(filled) == 1 or smallest.sum() > 20


def test_rows_contain_every_conversation_once() -> None:
    ids = np.arange(100, 130, dtype=np.uint16)
    is_answer = np.arange(30) % 2 == 0
    conversations = EncodedConversations(ids, is_answer, np.array([0, 7, 12, 30]), 0)
    rows = PackedRows(conversations, np.arange(3), 18)
    assert rows.num_rows == 2 and rows.num_tokens == 36
    parts = np.full((3, 2, 18), 7)
    rows.fill(parts, np.array([1, 0]))
    inputs, targets, positions = parts
    assert inputs[1].tolist() == [*range(112, 129), 0]
    assert inputs[0].tolist() == [*range(100, 106), *range(107, 111), *[0] * 8]
    assert positions[0].tolist() == [*range(6), *range(4), *[0] * 8]
    expected = [id if id % 2 == 0 else IGNORED for id in [*range(101, 107), *range(108, 112)]]
    assert targets[0].tolist() == [*expected, *[IGNORED] * 8]


def test_validation_split_exists_whenever_possible() -> None:
    for count, fraction, num_held in [
        (1, 0.1, 0),
        (2, 0.1, 1),
        (20, 0.05, 3),
        (200, 0.05, 10),
        (10, 0.05, 2),
        (3, 0.9, 2),
        (9, 0, 0),
    ]:
        train, held = split(count, fraction)
        assert len(held) == num_held
        assert sorted([*train, *held]) == list(range(count))
        assert list(train) == sorted(train) and list(held) == sorted(held)
