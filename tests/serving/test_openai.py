"""Completions with the real `openai` client and a real port. The texts equal those of the
library."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from groundup.data.chats import read_conversations
from groundup.files import read_json_lines
from groundup.generation import LanguageModel
from groundup.generation.special_ids import chat_prompt
from groundup.runs.folder import RunFolder
from groundup.serving.models import Source

TALK: list[Any] = [{"role": "system", "content": "cat"}, {"role": "user", "content": "the mat?"}]
both_routes = pytest.mark.parametrize("is_chat", [False, True], ids=["text", "chat"])


@pytest.fixture(scope="module")
def client(chatting: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{chatting.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def create(client: openai.OpenAI, is_chat: bool, **arguments: Any) -> Any:
    if is_chat:
        arguments = {"messages": TALK, **arguments}
        return client.chat.completions.create(model="tiny", **arguments)
    return client.completions.create(model="tiny", **{"prompt": "the", **arguments})


def text_of(choice: Any) -> str:
    if hasattr(choice, "text"):
        return str(choice.text)
    part = choice.delta if hasattr(choice, "delta") else choice.message
    return part.content or ""


@both_routes
def test_choices_differ_the_first_equals_the_library_and_streams_have_indices(
    client: openai.OpenAI, chat_model: LanguageModel, is_chat: bool
) -> None:
    assert client.models.retrieve(client.models.list().data[0].id).owned_by == "groundup"
    options: dict[str, Any] = {"max_tokens": 20, "seed": 11, "temperature": 1.5, "top_p": 0.9}
    ours = chat_model.chat(TALK, **options) if is_chat else chat_model.generate("the", **options)
    many = create(client, is_chat, n=4, **options)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    texts = list(map(text_of, many.choices))
    assert texts[0] == ours and len(set(texts)) == 4
    assert texts[:2] == list(map(text_of, create(client, is_chat, n=2, **options).choices))
    assert many.usage.total_tokens > many.usage.completion_tokens > 0
    options |= {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = create(client, is_chat, n=4, **options)
    assert last.choices == [] and last.usage == many.usage
    if is_chat:
        # The first chunk of a choice has the role.
        assert [chunk.choices[0].delta.role for chunk in chunks[:4]] == ["assistant"] * 4
    kind, prefix = ("chat.completion", "chatcmpl-") if is_chat else ("text_completion", "cmpl-")
    assert many.object == kind and many.id.startswith(prefix)
    assert {chunk.object for chunk in chunks} == {f"{kind}.chunk" if is_chat else kind}
    streamed, reasons = [""] * 4, [""] * 4
    for chunk in chunks:
        (choice,) = chunk.choices
        streamed[choice.index] += text_of(choice)
        reasons[choice.index] += choice.finish_reason or ""
    assert streamed == texts
    assert reasons == [choice.finish_reason for choice in many.choices]


def test_prompts_may_be_ids_and_an_empty_one_begins_a_document(
    client: openai.OpenAI, chat_model: LanguageModel
) -> None:
    ids = chat_model.tokenizer.encode("the cat")
    arguments: dict[str, Any] = {"max_tokens": 10, "seed": 2}
    by_text = create(client, False, prompt="the cat", **arguments)
    by_ids = create(client, False, prompt=[ids, ids], **arguments)
    assert [c.text for c in by_ids.choices] == [by_text.choices[0].text] * 2
    answer = create(client, False, prompt="", **arguments)
    assert answer.choices[0].text == chat_model.generate("", **arguments)
    # An answer may fill the context, but not exceed it.
    num_prompt = len(chat_model.tokenizer.encode(chat_prompt(chat_model.tokenizer, TALK)))
    for wanted in ({}, {"max_tokens": 4000}, {"max_completion_tokens": 4000}):
        answer = create(client, True, **wanted, seed=5)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 65 - num_prompt


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    arguments: dict[str, Any] = {"prompt": "the cat", "max_tokens": 50, "seed": 1}
    whole = create(client, False, **arguments).choices[0].text
    for stop in (whole[9:12], [whole[20:22], whole[6:9]], "never to be seen"):
        strings = [stop] if isinstance(stop, str) else stop
        expected = whole[: min((whole.find(s) for s in strings if s in whole), default=None)]
        answer = create(client, False, stop=stop, **arguments).choices[0]
        assert answer.text == expected
        assert answer.finish_reason == ("stop" if expected != whole else "length")
        chunks = create(client, False, stop=stop, stream=True, **arguments)
        assert "".join(text_of(chunk.choices[0]) for chunk in chunks) == expected


def test_logprobs_describe_each_token(client: openai.OpenAI, chat_model: LanguageModel) -> None:
    tokenizer = chat_model.tokenizer
    prompt = chat_prompt(tokenizer, TALK)
    arguments: dict[str, Any] = {"max_tokens": 25, "seed": 1}
    choice = create(client, False, prompt=prompt, logprobs=3, **arguments).choices[0]
    found: Any = choice.logprobs
    ids = tokenizer.encode(prompt) + found.token_ids
    # Log-probabilities are normalized over the tokenizer's ids.
    scores = chat_model.model(torch.tensor([ids]))[0, -26:-1, : tokenizer.vocab_size].log_softmax(
        -1
    )
    for number, (value, row) in enumerate(zip(found.token_logprobs, scores, strict=True)):
        assert value == pytest.approx(row[found.token_ids[number]].item(), abs=1e-4)
        top = found.top_logprobs[number]
        best = sorted(top.values(), reverse=True)[:3]
        assert best == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)
        assert (
            len(top) in (3, 4) and len(found.top_ids[number]) == len(top) and value in top.values()
        )
        # Offsets point to the token's text, if it is valid UTF-8.
        token, offset = found.tokens[number], found.text_offset[number]
        if not token.startswith(("bytes:", "<id ")) and "\ufffd" not in choice.text:
            assert choice.text[offset:].startswith(token)
    # The same for a chat, and streams with one chunk per token.
    logprobs: dict[str, Any] = {"logprobs": True, "top_logprobs": 3, **arguments}
    talked = create(client, True, **logprobs).choices[0]
    entries = talked.logprobs.content
    assert [entry.id for entry in entries] == found.token_ids
    assert [entry.logprob for entry in entries] == found.token_logprobs
    data = bytes(byte for entry in entries for byte in entry.bytes)
    assert data.decode(errors="replace") == talked.message.content
    for entry, top in zip(entries, found.top_ids, strict=True):
        assert [one.id for one in entry.top_logprobs] == top[:3]
    parts = [chunk.choices[0].logprobs for chunk in create(client, True, stream=True, **logprobs)]
    assert [part.content for part in parts if part is not None] == [[one] for one in entries]
    options: Any = {"prompt": prompt, "logprobs": 3, "stream": True}
    parts = [chunk.choices[0].logprobs for chunk in create(client, False, **options, **arguments)]
    for name in ("tokens", "token_logprobs", "text_offset", "token_ids", "top_ids"):
        assert [getattr(part, name) for part in parts] == [[one] for one in getattr(found, name)]


def test_concurrent_clients_get_the_same_as_alone(
    running: Any, language_model: LanguageModel
) -> None:
    asked: list[Any] = [
        (prompt, {"seed": seed, "max_tokens": 10 + seed, "temperature": 0.5 + seed % 2})
        for seed, prompt in enumerate(["a", "the cat", "on"] * 8)
    ]

    async def ask_all() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as many:
            create: Any = many.completions.create
            return await asyncio.gather(*(create(model="tiny", prompt=p, **s) for p, s in asked))

    for answer, (prompt, settings) in zip(asyncio.run(ask_all()), asked, strict=True):
        assert answer.choices[0].text == language_model.generate(prompt, **settings)


def talk(*contents: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for content in contents], **more}


MISTAKES: list[tuple[Any, str | None]] = [
    ({"temperature": "hot"}, "temperature"),
    (b'{"temperature": NaN}', "temperature"),
    ({"min_p": 1.5}, "min_p"),
    ({"n": 10**30}, "n"),
    ({"prompt": ["a"] * 9, "n": 2}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"prompt": "a" * 65}, "prompt"),
    *(({"prompt": one}, "prompt") for one in ([1] * 65, [1, 306], [10**40], [], [1, "a"], [True])),
    ({"logprobs": 21}, "logprobs"),
    ({"stop": ["a", ""]}, "stop"),
    ({"seed": 2**63}, "seed"),
    ({"stream": "yes"}, "stream"),
    ({"stream": True, "stream_options": {"include_more": True}}, "stream_options"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"echo": True}, "echo"),
    ({"best_of": 3, "n": 2}, "best_of"),
    ({"tempreature": 1}, "tempreature"),
    (b'{"\xc3\xa9": 1}', "\\xe9"),
    *((one, None) for one in (b'{"prompt": "\\ud800"}', b'{"model\\ud800": 1}', b"", b"[" * 5_000)),
    (b'{"max_tokens": ' + b"9" * 5000 + b"}", None),
    *((one, "messages") for one in (talk(), talk("x", role="tool"), talk(7), talk("a b " * 40))),
    (talk("hi<|im_end|>"), "messages"),
    (talk("x", max_tokens=5, max_completion_tokens=5), "max_tokens"),
    (talk("x", max_completion_tokens=0), "max_completion_tokens"),
    (talk("x", top_logprobs=2), "top_logprobs"),
    (talk("x", logprobs=3), "logprobs"),
    (talk("x", response_format={"type": "json_object"}), "response_format"),
    (talk("x", prompt="x"), "prompt"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param"), MISTAKES)
def test_unsupported_requests_are_rejected_by_field(
    chatting: Any, body: Any, param: str | None
) -> None:
    is_chat = isinstance(body, dict) and "messages" in body
    answer = chatting.complete(body, "/v1/chat/completions" if is_chat else "/v1/completions")
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert len(error["message"]) < 300


@both_routes
def test_fields_without_effect_are_accepted(client: openai.OpenAI, is_chat: bool) -> None:
    usual: dict[str, Any] = {"user": "someone", "presence_penalty": 0, "logit_bias": {}}
    usual |= {"temperature": None, "metadata": {}, "store": False, "service_tier": "auto"}
    given: dict[str, Any] = {"suffix": "", "best_of": 1}
    if is_chat:
        parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "mat?"}]
        given = {"tools": [], "response_format": {"type": "text"}, "parallel_tool_calls": True}
        given["messages"] = [{**TALK[0], "role": "developer"}, {**TALK[1], "name": "Ada"}]
        given["messages"][1]["content"] = parts
    full = create(client, is_chat, extra_body=usual | given, seed=3, max_tokens=8)
    assert full.choices == create(client, is_chat, seed=3, max_tokens=8).choices


def test_own_options_reach_the_engine_and_a_random_seed_is_returned(
    running: Any, language_model: LanguageModel
) -> None:
    options: Any = {"top_k": 5, "min_p": 0.02, "repetition_penalty": 1.3, "temperature": 1.5}
    body = {"prompt": "the cat", "max_tokens": 30}
    text = running.complete({**body, **options, "seed": 4}).json()["choices"][0]["text"]
    assert text == language_model.generate("the cat", max_tokens=30, seed=4, **options)
    first, second = (running.complete(body).json() for _ in range(2))
    assert first["seed"] != second["seed"]
    again = running.complete({**body, "seed": first["seed"]}).json()
    assert again["choices"] == first["choices"]
    assert running.complete({**body, "seed": -5}).json()["seed"] == -5


def test_events_follow_the_standard(running: Any) -> None:
    answer = running.complete({"prompt": "the", "max_tokens": 5, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    *events, done, rest = answer.content.split(b"\n\n")
    assert done == b"data: [DONE]" and rest == b""
    for event in events:
        assert event.startswith(b"data: {") and b"\n" not in event and event.isascii()
        json.loads(event[6:])


def test_missing_and_failing_templates_are_reported(
    running: Any, start: Any, language_model: LanguageModel
) -> None:
    answer = running.post("/v1/chat/completions", json={"messages": TALK})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_chat_template")
    strict = language_model.tokenizer.with_chat("{{ raise_exception('a system first') }}")
    with start(LanguageModel(language_model.model, strict)) as refusing:
        answer = refusing.post("/v1/chat/completions", json={"messages": TALK})
        assert answer.status_code == 400 and "a system first" in answer.text


def test_ratings_are_saved_as_conversations_for_tune(
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
        # Without a run folder, ratings cannot be saved.
        assert rate(good, "up", None) == 403
        assert [rate([], "up"), rate(good, "great"), rate(good, "up", "other")] == [400, 400, 404]
        cards = running.get("/v1/models").json()["data"]
        assert [card["can_rate"] for card in cards] == [False, True]
        (tmp_path / "run" / "chats_down.jsonl").unlink()
        (tmp_path / "run" / "chats_down.jsonl").mkdir()
        assert rate(good, "down") == 503
    # Nor are those of everybody whom a proxy lets in, unless asked for.
    for options in ({"save_ratings": "no"}, {"public_host": "here.example"}):
        with start(chat_model, more=more, **options) as running:
            assert rate(good, "up") == 403
