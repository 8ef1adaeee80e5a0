"""Chat completions by the real `openai` client: the answers of the library, in OpenAI's form."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from groundup.data.chat_files import read_conversations
from groundup.files import read_json_lines
from groundup.generation import LanguageModel
from groundup.generation.special_ids import chat_prompt
from groundup.runs.folder import RunFolder
from groundup.serving.models import Source

TALK: list[Any] = [{"role": "system", "content": "cat"}, {"role": "user", "content": "the mat?"}]


@pytest.fixture(scope="module")
def client(chatting: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{chatting.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, **arguments: Any) -> Any:
    return client.chat.completions.create(**{"model": "tiny", "messages": TALK, **arguments})


def test_an_answer_is_the_one_the_library_gives(
    client: openai.OpenAI, chat_model: LanguageModel
) -> None:
    for seed in range(4):
        settings: dict[str, Any] = {"seed": seed, "temperature": 1.5, "top_p": 0.9}
        answer = ask(client, max_tokens=20, **settings)
        assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
        (choice,) = answer.choices
        assert choice.message.role == "assistant" and choice.message.refusal is None
        assert choice.message.content == chat_model.chat(TALK, max_tokens=20, **settings)
        assert choice.finish_reason in ("stop", "length")
        same = ask(client, max_completion_tokens=20, **settings)
        assert same.choices == answer.choices and same.usage == answer.usage


def test_a_stream_tells_the_role_first_and_joins_to_the_same_answer(client: openai.OpenAI) -> None:
    arguments: dict[str, Any] = {"max_tokens": 25, "seed": 5, "n": 2}
    whole = ask(client, **arguments)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}, **arguments))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    usage = chunks.pop()
    assert usage.choices == [] and usage.usage == whole.usage
    for number, choice in enumerate(whole.choices):
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == number]
        assert [one.delta.role for one in mine] == ["assistant"] + [None] * (len(mine) - 1)
        assert "".join(one.delta.content or "" for one in mine) == choice.message.content
        assert mine[-1].finish_reason == choice.finish_reason


def test_an_answer_may_fill_the_context_and_no_more(
    client: openai.OpenAI, chat_model: LanguageModel
) -> None:
    num_prompt = len(chat_model.tokenizer.encode(chat_prompt(chat_model.tokenizer, TALK)))
    for wanted in ({}, {"max_tokens": 4000}):
        answer = ask(client, **wanted, seed=5)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 65 - num_prompt


def test_logprobs_tell_of_each_token(client: openai.OpenAI, chat_model: LanguageModel) -> None:
    arguments: dict[str, Any] = {"max_tokens": 25, "seed": 1, "logprobs": True, "top_logprobs": 3}
    choice = ask(client, **arguments).choices[0]
    entries = choice.logprobs.content
    ids = [entry.id for entry in entries]
    expected = chat_model.tokenizer.decode_bytes(ids)
    assert bytes(byte for entry in entries for byte in entry.bytes) == expected
    assert expected.decode(errors="replace") == choice.message.content
    body: Any = {"prompt": chat_prompt(chat_model.tokenizer, TALK), "logprobs": 3}
    answer = client.completions.create(model="tiny", max_tokens=25, seed=1, **body)
    same: Any = answer.choices[0].logprobs
    assert same.token_ids == ids and same.token_logprobs == [one.logprob for one in entries]
    for entry, top in zip(entries, same.top_ids, strict=True):
        assert [one.id for one in entry.top_logprobs] == top[:3]
    chunks = [chunk.choices[0] for chunk in ask(client, stream=True, **arguments)]
    told = [chunk.logprobs.content for chunk in chunks if chunk.logprobs is not None]
    assert [entry for content in told for entry in content] == entries


def test_what_clients_send_without_meaning_anything_is_taken(client: openai.OpenAI) -> None:
    usual = {"tools": [], "response_format": {"type": "text"}, "store": False, "metadata": {}}
    usual |= {"service_tier": "auto", "parallel_tool_calls": True}
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "mat?"}]
    talk = [{**TALK[0], "role": "developer"}, {"role": "user", "content": parts, "name": "Ada"}]
    full = ask(client, messages=talk, extra_body=usual, seed=3, max_tokens=8)
    assert full.choices == ask(client, seed=3, max_tokens=8).choices


def test_a_model_without_a_template_and_a_template_that_refuses_are_told(
    running: Any, start: Any, language_model: LanguageModel, client: openai.OpenAI
) -> None:
    answer = running.post("/v1/chat/completions", json={"messages": TALK})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_chat_template")
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, messages=[])
    assert caught.value.param == "messages" and caught.value.type == "invalid_request_error"
    strict = language_model.tokenizer.with_chat("{{ raise_exception('a system first') }}")
    with start(LanguageModel(language_model.model, strict)) as refusing:
        answer = refusing.post("/v1/chat/completions", json={"messages": TALK})
        assert answer.status_code == 400 and "a system first" in answer.text


def test_ratings_are_conversations_that_tune_reads(
    start: Any, chat_model: LanguageModel, tmp_path: Path
) -> None:
    chat_model.save(tmp_path / "run")
    more = {"saved": Source(lambda: chat_model, RunFolder(tmp_path / "run"))}
    good, bad = ([*TALK, {"role": "assistant", "content": text}] for text in ("café", "no"))

    def kept(rating: str) -> list[Any]:
        path = tmp_path / "run" / f"chats_{rating}.jsonl"
        return list(read_json_lines(path)) if path.exists() else []

    with start(chat_model, more=more) as running:

        def rate(messages: Any, rating: str, model: str | None = "saved") -> int:
            body = {"messages": messages, "rating": rating, "model": model}
            return int(running.post("/api/rating", json=body).status_code)

        assert [rate(good, "up"), rate(bad, "down")] == [200] * 2
        assert (kept("up"), kept("down")) == ([{"messages": good}], [{"messages": bad}])
        found = read_conversations([tmp_path / "run" / "chats_up.jsonl"])
        assert [one.messages for one in found] == [good]
        # Of a model without a folder there is nowhere to keep them.
        assert rate(good, "up", None) == 403
        assert [rate([], "up"), rate(good, "great"), rate(good, "up", "other")] == [400, 400, 404]
        cards = running.get("/v1/models").json()["data"]
        assert [card["can_rate"] for card in cards] == [False, True]
        (tmp_path / "run" / "chats_down.jsonl").unlink()
        (tmp_path / "run" / "chats_down.jsonl").mkdir()
        assert rate(good, "down") == 503
    with start(chat_model, more=more, save_ratings="no") as running:
        assert rate(good, "up") == 403
