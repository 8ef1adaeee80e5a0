"""Chat templates render as in transformers, report errors, and are saved in every format."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from groundup.errors import DataError, TokenizerError
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.chat_template import (
    CHAT_TOKENS,
    CHATML,
    ChatTemplate,
    Message,
    check_messages,
)
from groundup.tokenizer.reference import train_bpe_reference

VOCAB, MERGES = train_bpe_reference("who is there? it is the cat. " * 3, 290)
TOKENIZER = Tokenizer(VOCAB, MERGES, ["<|endoftext|>"])

TALK: list[Message] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Who is there?"},
    {"role": "assistant", "content": "The cat."},
]


def test_the_default_template_is_chatml() -> None:
    assert ChatTemplate(CHATML).render(TALK[1:2], add_generation_prompt=True) == (
        "<|im_start|>user\nWho is there?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("source", "noun"),
    [
        ("{% for message in messages %}", "compile"),
        ("\n{{ message.role | nonsense }}", "line 2 .*'nonsense'"),
        ("{% generation %}", "compile"),
        ("{{ messages[7].content }}", "3 messages"),
        ("{{ raise_exception('no') }}", "3 messages"),
        ("{{ messages.append(1) }}", "3 messages"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "3 messages"),
    ],
)
def test_template_errors_name_the_problem(source: str, noun: str) -> None:
    with pytest.raises(TokenizerError, match=noun):
        ChatTemplate(source).render(TALK)
    if noun != "3 messages":
        with pytest.raises(TokenizerError, match=noun):
            TOKENIZER.with_chat(source)


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "{{ 7 ** (10 ** 8) }}",
        "{{ 'a' * 3000000000 }}",
        "{{ 'a' | center(3000000000) }}",
        "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3,
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x=n.x~n.x %}{% endfor %}",
        "{{ 'x' * 2000000 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% break %}",
        "{% for a in 'b' %}" * 25 + "{% endfor %}" * 25,
        f"{{{{ {'9' * 5000} }}}}",
        f"{{{{ {'(' * 3000}1{')' * 3000} }}}}",
    ],
)
def test_an_endless_template_is_killed(source: str) -> None:
    began = time.monotonic()
    with pytest.raises(TokenizerError) as caught:
        ChatTemplate(source).render(TALK)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert time.monotonic() - began < 30
    # The next one works as before.
    assert ChatTemplate("{{ messages[1].content }}!").render(TALK) == "Who is there?!"


def test_messages_are_reduced_to_role_and_content() -> None:
    parts = [{"type": "text", "text": "Who "}, {"type": "text", "text": "is there?"}]
    given = [{"role": "user", "content": parts, "name": "Ada"}, dict(TALK[2])]
    assert check_messages(given, "line 1") == TALK[1:]


@pytest.mark.parametrize(
    ("messages", "noun"),
    [
        (None, "messages in line 1 is None"),
        ([], "messages"),
        (["hello"], "role is 'hello' in message 1 of line 1"),
        ([*TALK, {"content": "x"}], "role is None in message 4 of line 1"),
        ([{"role": "bot", "content": "x"}], "role is 'bot'"),
        ([{"role": ["user"], "content": "x"}], "role"),
        ([{"role": "user"}], "content is None in message 1 of line 1"),
        ([{"role": "user", "content": 7}], "content is 7"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "content"),
        ([{"role": "user", "content": [{"type": "text", "text": 7}]}], "content"),
    ],
)
def test_invalid_conversations_are_rejected(messages: Any, noun: str) -> None:
    with pytest.raises(DataError, match=noun):
        check_messages(messages, "line 1")


def test_with_chat_adds_the_special_tokens_of_the_template() -> None:
    chat = TOKENIZER.with_chat()
    assert (chat.chat_template, TOKENIZER.chat_template) == (CHATML, None)
    size = TOKENIZER.vocab_size
    assert [chat.special_tokens[text] for text in CHAT_TOKENS] == [size, size + 1]
    assert chat.vocab_size == size + 2
    assert chat.with_chat().vocab_size == chat.vocab_size
    plain = TOKENIZER.with_chat("{{ messages[0].content }}")
    assert plain.special_tokens == TOKENIZER.special_tokens
    assert plain.id == TOKENIZER.id


@pytest.mark.parametrize("format", ["groundup", "huggingface"])
def test_files_keep_the_chat_template(tmp_path: Path, format: Any) -> None:
    path = tmp_path / "tokenizer.json"
    TOKENIZER.save(path, format)
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]
    assert "chat_template" not in path.read_text("utf-8")
    assert Tokenizer.load(tmp_path).chat_template is None
    chat = TOKENIZER.with_chat()
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text('{"model_max_length": 512}')
    chat.save(path, format)
    kept = {"chat_template": CHATML} if format == "huggingface" else {}
    assert json.loads(settings.read_text()) == {"model_max_length": 512, **kept}
    read = Tokenizer.load(path)
    assert (read.chat_template, read.id) == (CHATML, chat.id)
    text = ChatTemplate(CHATML).render(TALK)
    assert [id for id in read.encode(text) if id >= TOKENIZER.vocab_size] == [271, 272] * 3


@pytest.mark.parametrize("as_file", [False, True])
def test_a_huggingface_template_gets_bos_and_eos_tokens(tmp_path: Path, as_file: bool) -> None:
    source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    settings: dict[str, Any] = {
        "bos_token": {"content": "<s>", "special": True},
        "eos_token": '</"s">',
        "chat_template": [
            {"name": "tool_use", "template": "no"},
            {"name": "default", "template": source},
        ],
    }
    TOKENIZER.save(tmp_path / "tokenizer.json", "huggingface")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    if as_file:
        (tmp_path / "chat_template.jinja").write_text(source)
    read = Tokenizer.load(tmp_path)
    assert read.chat_template is not None
    assert ChatTemplate(read.chat_template).render(TALK) == '<s>Be short.</"s">'
    # It round-trips through our files and theirs, without defining the tokens twice.
    read.save(tmp_path / "again.json", "huggingface")
    assert Tokenizer.load(tmp_path / "again.json").chat_template == (read.chat_template)
