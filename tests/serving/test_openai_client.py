"""The real `openai` client against a real port: it must not notice that we are somebody else."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import torch

from groundup.generation import LanguageModel


@pytest.fixture(scope="module")
def client(running: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def stream_text(client: openai.OpenAI, **arguments: Any) -> tuple[str, list[Any]]:
    chunks = list(client.completions.create(model="tiny", stream=True, **arguments))
    return "".join(c.choices[0].text for c in chunks if c.choices), chunks


def test_choices_differ_the_first_is_the_one_alone_and_streams_tell_them_apart(
    client: openai.OpenAI,
) -> None:
    assert client.models.retrieve(client.models.list().data[0].id).owned_by == "groundup"
    arguments: dict[str, Any] = {"prompt": "the", "max_tokens": 20, "seed": 11}
    alone = client.completions.create(model="tiny", **arguments).choices[0].text
    many = client.completions.create(model="tiny", n=4, **arguments)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in many.choices]
    assert texts[0] == alone and len(set(texts)) == 4
    assert texts[:2] == [
        c.text for c in client.completions.create(model="tiny", n=2, **arguments).choices
    ]
    assert many.usage is not None and many.usage.total_tokens > many.usage.completion_tokens > 0
    streamed, reasons = [""] * 4, [""] * 4
    arguments["stream_options"] = {"include_usage": True}
    *chunks, last = client.completions.create(model="tiny", n=4, stream=True, **arguments)
    assert last.choices == [] and last.usage == many.usage
    for chunk in chunks:
        (choice,) = chunk.choices
        streamed[choice.index] += choice.text
        reasons[choice.index] += choice.finish_reason or ""
    assert streamed == texts
    assert reasons == [choice.finish_reason for choice in many.choices]


def test_ids_are_a_prompt_too_and_none_begins_a_document(
    client: openai.OpenAI, language_model: LanguageModel
) -> None:
    ids = language_model.tokenizer.encode("the cat")
    arguments: dict[str, Any] = {"model": "tiny", "max_tokens": 10, "seed": 2}
    by_text = client.completions.create(prompt="the cat", **arguments)
    by_ids = client.completions.create(prompt=[ids, ids], **arguments)
    assert [c.text for c in by_ids.choices] == [by_text.choices[0].text] * 2
    answer = client.completions.create(prompt="", **arguments)
    assert answer.choices[0].text == language_model.generate("", max_tokens=10, seed=2)


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    arguments: dict[str, Any] = {"prompt": "the cat", "max_tokens": 50, "seed": 5}
    whole = client.completions.create(model="tiny", **arguments).choices[0].text
    for stop in (whole[9:12], [whole[20:22], whole[6:9]], "never to be seen"):
        strings = [stop] if isinstance(stop, str) else stop
        expected = whole[: min((whole.find(s) for s in strings if s in whole), default=None)]
        answer = client.completions.create(model="tiny", stop=stop, **arguments).choices[0]
        assert answer.text == expected
        assert answer.finish_reason == ("stop" if expected != whole else "length")
        text, _ = stream_text(client, stop=stop, **arguments)
        assert text == expected


def test_logprobs_tell_of_each_token(client: openai.OpenAI, language_model: LanguageModel) -> None:
    arguments: dict[str, Any] = {"prompt": "the cat", "max_tokens": 40, "seed": 1, "logprobs": 3}
    choice = client.completions.create(model="tiny", **arguments).choices[0]
    found: Any = choice.logprobs
    assert len(found.tokens) == 40
    ids = language_model.tokenizer.encode("the cat") + found.token_ids
    # Likelihoods are shares of what can be written.
    logits = language_model.model(torch.tensor([ids]))[0, :, : language_model.tokenizer.vocab_size]
    scores = logits.log_softmax(-1)
    for number, value in enumerate(found.token_logprobs):
        row = scores[len(ids) - 40 + number - 1]
        assert value == pytest.approx(row[found.token_ids[number]].item(), abs=1e-4)
        top = found.top_logprobs[number]
        assert sorted(top.values(), reverse=True)[:3] == pytest.approx(
            row.topk(3).values.tolist(), abs=1e-4
        )
        assert len(top) in (3, 4) and len(found.top_ids[number]) == len(top)
        assert value in top.values()
        # Offsets point at the token's own text, where it is a text.
        token, offset = found.tokens[number], found.text_offset[number]
        if not token.startswith(("bytes:", "<id ")) and "\ufffd" not in choice.text:
            assert choice.text[offset:].startswith(token)
    assert language_model.tokenizer.decode(found.token_ids).startswith(choice.text)
    # A stream has one chunk a token.
    text, chunks = stream_text(client, **arguments)
    parts = [chunk.choices[0].logprobs for chunk in chunks]
    assert text == choice.text and [len(part.tokens) for part in parts] == [1] * 40
    for name in ("tokens", "token_logprobs", "text_offset", "token_ids", "top_ids"):
        assert [value for part in parts for value in getattr(part, name)] == getattr(found, name)


def test_many_clients_at_once_get_what_each_would_alone(
    running: Any, language_model: LanguageModel
) -> None:
    asked = [
        (["a", "the cat", "on"][seed % 3],
         {"seed": seed, "max_tokens": 10 + seed, "temperature": 0.5 + seed % 2})
        for seed in range(24)
    ]  # fmt: skip

    async def ask_all() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as many:
            create: Any = many.completions.create
            return await asyncio.gather(*(create(model="tiny", prompt=p, **s) for p, s in asked))

    pairs: Any = zip(asyncio.run(ask_all()), asked, strict=True)
    for answer, (prompt, settings) in pairs:
        assert answer.choices[0].text == language_model.generate(prompt, **settings)
