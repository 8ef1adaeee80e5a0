"""AutoTokenizer on an export gives our ids, for difficult texts and conversations, and decodes
alike."""

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from groundup.errors import DataError, TokenizerError
from groundup.generation import LanguageModel
from groundup.generation.special_ids import chat_prompt
from groundup.interop import export_huggingface, import_huggingface
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.chat_template import CHATML, ChatTemplate, Message

from .conftest import END, TEXT, MakeRun

transformers = pytest.importorskip("transformers")

HARD_PIECES = st.sampled_from(
    [
        *(END, END * 3, "日 本", "<|", "|>", "<|pad|>", "<|im_end|>", "{{ x }}", "ĠĊ", "\x00"),
        *("'s", "'LL", "don't", "1234567", "١٢٣"),
        *(" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u200d", "…"),
        *("naïve", "e\u0301", "日本語", "\U0001f3f4\u200d\u2620\ufe0f"),
    ]
)
# tokenizers implements another version of Unicode: exclude unassigned characters.
KNOWN = st.characters(exclude_categories=("Cs", "Cn"))
HARD_TEXT = st.lists(HARD_PIECES | st.text(KNOWN, max_size=8), max_size=12).map("".join)

# Features of published templates: roles by name, exceptions, loop controls, generation marks.
FANCY = """\
{%- set bos_token = "<|endoftext|>" %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' and not loop.first %}
        {{- raise_exception("only the first message may be a system's") }}
    {%- endif %}
    {%- if not message.content %}{% continue %}{% endif %}
    {%- if message.role == 'assistant' %}
        {% generation %}{{ message['content'] | trim }}<|end|>{% endgeneration %}
    {%- else %}
[{{ message.role | upper }}] {{ message | tojson }}
    {%- endif %}
{%- endfor %}
{% if add_generation_prompt %}{{ '[ANSWER]' }}{% endif %}
"""

ROLES = st.sampled_from(["system", "user", "assistant"])
MESSAGE = st.builds(Message, role=ROLES, content=HARD_TEXT)
TALK = st.lists(MESSAGE, min_size=1, max_size=5)


@pytest.fixture(scope="module", params=[CHATML, FANCY], ids=["chatml", "fancy"])
def exported(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer: Tokenizer,
    write_run: MakeRun,
) -> tuple[Path, Tokenizer]:
    """An export folder, and our tokenizer."""
    folder = tmp_path_factory.mktemp("chat")
    ours = tokenizer.with_chat(request.param)
    run = write_run(folder / "runs", ours, vocab_size=304)
    export_huggingface(run, folder / "out")
    return folder / "out", ours


@pytest.fixture(scope="module")
def theirs(exported: tuple[Path, Tokenizer]) -> Any:
    return transformers.AutoTokenizer.from_pretrained(exported[0], local_files_only=True)


@given(messages=TALK, add_generation_prompt=st.booleans())
def test_the_chat_template_gives_our_ids(
    exported: tuple[Path, Tokenizer],
    theirs: Any,
    messages: list[Message],
    add_generation_prompt: bool,
) -> None:
    _, ours = exported
    assert ours.chat_template is not None
    options = {"return_dict": False, "add_generation_prompt": add_generation_prompt}
    try:
        ids = theirs.apply_chat_template(messages, tokenize=True, **options)
    except jinja2.TemplateError as error:
        with pytest.raises(TokenizerError, match=str(error)):
            ChatTemplate(ours.chat_template).render(messages, add_generation_prompt)
        return
    text = ChatTemplate(ours.chat_template).render(messages, add_generation_prompt)
    assert ids == ours.encode(text)
    if any(token in message["content"] for message in messages for token in ours.special_tokens):
        with pytest.raises(DataError, match="has the special token"):
            chat_prompt(ours, messages)
    elif add_generation_prompt:
        assert chat_prompt(ours, messages) == text


def test_end_of_turn_tokens_are_exported_and_imported(
    exported: tuple[Path, Tokenizer], theirs: Any, tmp_path: Path
) -> None:
    folder, ours = exported
    ends = [299, 301] if "<|im_end|>" in ours.special_tokens else 299
    for name in ("config.json", "generation_config.json"):
        assert json.loads((folder / name).read_text("utf-8"))["eos_token_id"] == ends
    assert theirs.eos_token == theirs.bos_token == theirs.pad_token == END
    assert theirs.eos_token_id == ours.special_tokens[END]
    assert theirs.special_tokens_map["eos_token"] == END
    assert len(theirs) == ours.vocab_size and theirs.model_max_length == 32
    run = import_huggingface(folder, "taken", runs_folder=tmp_path)
    model = LanguageModel.load(run)
    assert model.tokenizer.id == ours.id
    assert model.tokenizer.chat_template == ours.chat_template
    assert model.stop_ids == ({299, 301} if ours.vocab_size == 302 else {299})
    # Exported again, it is the same file.
    export_huggingface(run, tmp_path / "again")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


Pair = tuple[Any, Tokenizer]


@pytest.fixture(scope="module", params=["gpt2", "llama3", "cl100k", "o200k", "qwen2", "deepseek"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, write_run: MakeRun
) -> Pair:
    """Hugging Face's tokenizer of an export, and ours."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "text.txt").write_bytes(TEXT.encode())
    special = [END, END * 2, "日 本"]
    ours = Tokenizer.train(folder / "text.txt", 300, special, pattern=request.param)
    export_huggingface(write_run(folder / "runs", ours), folder / "out")
    return transformers.AutoTokenizer.from_pretrained(folder / "out", local_files_only=True), ours


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=HARD_TEXT, any_ids=st.lists(st.integers(0, 299), max_size=20))
def test_ids_and_decoded_texts_equal_ours(pair: Pair, text: str, any_ids: list[int]) -> None:
    theirs, ours = pair
    ids = ours.encode(text)
    assert theirs(text)["input_ids"] == ids
    assert theirs.decode(ids) == text
    assert theirs.decode(any_ids) == ours.decode(any_ids)
