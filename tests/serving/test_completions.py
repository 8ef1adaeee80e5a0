"""What a completion request may ask for, and how it is told that it may not."""

import copy
import json
from typing import Any

import pytest

from groundup.generation import LanguageModel


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"temperature": -0.1}, "temperature", "must be 0 (greedy) or more"),
        ({"temperature": "hot"}, "temperature", "valid number"),
        ({"temperature": True}, "temperature", "valid number"),
        (b'{"temperature": NaN}', "temperature", "finite"),
        (b'{"temperature": Infinity}', "temperature", "finite"),
        ({"top_p": 0}, "top_p", "must be more than 0"),
        ({"top_p": 1.1}, "top_p", "at most 1"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 17}, "n", "16 texts that this server generates"),
        ({"n": 10**30}, "n", "16 texts that this server generates"),
        ({"prompt": ["a"] * 9, "n": 2}, "n", "9 prompts and n = 2"),
        ({"n": 1.5}, "n", "valid integer"),
        ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
        ({"max_tokens": 100}, "max_tokens", "at most 63, or set past_context to slide"),
        ({"max_tokens": 5000, "past_context": "slide"}, "max_tokens", "at most 4096"),
        ({"max_tokens": "7"}, "max_tokens", "valid integer"),
        ({"prompt": "a" * 64}, "prompt", "shorten the prompt"),
        ({"prompt": "ab" * 300, "max_tokens": 0}, "prompt", "context is 64"),
        ({"prompt": "a" * 100_001, "past_context": "slide"}, "prompt", "reads at most 100000"),
        (
            {"prompt": "a" * 70_000, "past_context": "slide", "n": 16, "echo": True},
            "echo",
            "repeat 1120000 characters",
        ),
        ({"prompt": [1, 304]}, "prompt", "id 304 is not in the vocabulary (ids 0 to 289)"),
        ({"prompt": [1, -1]}, "prompt", "id -1 is not in the vocabulary"),
        ({"prompt": [10**40]}, "prompt", "is not in the vocabulary"),
        ({"prompt": 5}, "prompt", "a text, a list of texts"),
        ({"prompt": []}, "prompt", "a text, a list of texts"),
        ({"prompt": [[]]}, "prompt", "a text, a list of texts"),
        ({"prompt": [1, "a"]}, "prompt", "a text, a list of texts"),
        ({"prompt": [True]}, "prompt", "a text, a list of texts"),
        (b'{"prompt": "\\ud800"}', "prompt", "surrogate pair"),
        (b'{"prompt": ["a", "b\\udfff"]}', "prompt", "surrogate pair"),
        (b'{"model\\ud800": 1}', None, ""),
        (b'{"\xc3\xa9": 1}', "\\xe9", "unknown field"),
        ({"logprobs": 21}, "logprobs", "less than or equal to 20"),
        ({"logprobs": True}, "logprobs", "valid integer"),
        ({"stop": ""}, "stop", "a list of at most 16 texts"),
        ({"stop": ["a", ""]}, "stop", "a list of at most 16 texts"),
        ({"stop": ["a"] * 17}, "stop", "a list of at most 16 texts"),
        ({"stop": "a" * 1001}, "stop", "1 to 1000 characters"),
        ({"seed": 2**63}, "seed", "less than"),
        ({"stream": "yes"}, "stream", "valid boolean"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "only for a stream"),
        ({"presence_penalty": 0.5}, "presence_penalty", "does not know it"),
        ({"frequency_penalty": -1}, "frequency_penalty", "does not know it"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "does not know it"),
        ({"suffix": "end"}, "suffix", "does not know it"),
        ({"best_of": 3, "n": 2}, "best_of", "leave best_of out"),
        ({"top_k": 0}, "top_k", "1 or more"),
        ({"min_p": 1.5}, "min_p", "from 0 to 1"),
        ({"repetition_penalty": 0}, "repetition_penalty", "from 0.01"),
        ({"repetition_penalty": 101}, "repetition_penalty", "to 100"),
        ({"past_context": "wrap"}, "past_context", "'stop' or 'slide'"),
        ({"tempreature": 1}, "tempreature", "unknown field"),
        (
            {"echo": True, "logprobs": 1, "prompt": "ab" * 300, "past_context": "slide"},
            "prompt",
            "cannot be scored",
        ),
        (b"", None, "JSON object"),
        (b"[]", None, "JSON object"),
        (b"{", None, "not valid JSON"),
        (b'{"prompt": "a"', None, "not valid JSON"),
        (b"\xff\xfe{}", None, ""),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", None, ""),
        (b"[" * 100_000, None, ""),
    ],
)
def test_what_cannot_be_granted_is_refused_with_its_reason(
    running: Any, body: Any, param: str | None, words: str
) -> None:
    answer = running.complete(body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert words in error["message"]
    assert len(error["message"]) < 300


def test_the_context_can_be_filled_to_the_last_token(running: Any) -> None:
    answer = running.complete({"prompt": [5], "max_tokens": 63, "seed": 1})
    assert answer.status_code == 200
    assert running.complete({"prompt": [5], "max_tokens": 64}).status_code == 400
    assert running.complete({"prompt": [5] * 64, "max_tokens": 0}).status_code == 200


def test_what_clients_send_without_meaning_anything_is_taken(running: Any) -> None:
    empty = {
        "user": "someone",
        "best_of": 1,
        "suffix": "",
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "stream_options": None,
        "temperature": None,
        "max_tokens": None,
    }
    answer = running.complete({"model": "tiny", "prompt": "a", **empty})
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] <= 16


def test_only_json_is_read(running: Any) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        headers = {"content-type": kind}
        answer = running.post("/v1/completions", content=b'{"prompt": "a"}', headers=headers)
        assert answer.status_code == 400 and "application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize("temperature", [0, 5e-324, 1e-30, 1e-6, 1e30, 1.7e308])
def test_any_temperature_from_zero_on_gives_text(running: Any, temperature: float) -> None:
    body = {"prompt": "the", "max_tokens": 5, "top_p": 0.5, "top_k": 10**9, "min_p": 0.01}
    answer = running.complete({**body, "temperature": temperature, "repetition_penalty": 1.1})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("penalty", [0.01, 100])
@pytest.mark.parametrize("rest", [{"top_p": 5e-324}, {"min_p": 5e-324}, {"min_p": 1}, {"top_k": 1}])
def test_any_penalty_that_is_taken_gives_text(running: Any, penalty: float, rest: Any) -> None:
    for temperature in (0, 1e-6, 1e300):
        body = {"prompt": "the", "max_tokens": 5, "temperature": temperature, **rest}
        assert running.complete({**body, "repetition_penalty": penalty}).status_code == 200


def test_our_own_options_reach_the_engine(running: Any, language_model: LanguageModel) -> None:
    options = {"top_k": 5, "min_p": 0.02, "repetition_penalty": 1.3, "temperature": 1.5}
    body = {"prompt": "the cat", "max_tokens": 30, "seed": 4}
    text = running.complete({**body, **options}).json()["choices"][0]["text"]
    assert text == language_model.generate("the cat", max_tokens=30, seed=4, **options)
    assert text != running.complete(body).json()["choices"][0]["text"]


def test_a_seed_is_drawn_and_told_where_none_is_given(running: Any) -> None:
    body = {"prompt": "the", "max_tokens": 20}
    first, second = (running.complete(body).json() for _ in range(2))
    assert first["seed"] != second["seed"]
    again = running.complete({**body, "seed": first["seed"]}).json()
    assert again["choices"] == first["choices"]
    assert running.complete({**body, "seed": -5}).json()["seed"] == -5


def test_ids_that_the_tokenizer_lacks_are_never_written(
    start: Any, shout: Any, language_model: LanguageModel
) -> None:
    model, vocab = copy.deepcopy(language_model.model), language_model.tokenizer.vocab
    shout(model, set(range(model.config.vocab_size)) - set(vocab))
    padded = LanguageModel(model, language_model.tokenizer)
    body = {"prompt": "the", "max_tokens": 12, "seed": 3, "n": 2, "logprobs": 20}
    with start(padded) as running:
        for options in ({"temperature": 0}, {"temperature": 2}, {"top_k": 4}, {"top_p": 0.9}):
            choices = running.complete({**body, **options}).json()["choices"]
            for choice in choices:
                assert set(choice["logprobs"]["token_ids"]) <= set(vocab)
                assert all(set(ids) <= set(vocab) for ids in choice["logprobs"]["top_ids"])
            assert choices[0]["text"] == padded.generate("the", max_tokens=12, seed=3, **options)
            events = running.complete({**body, **options, "n": 1, "stream": True}).text
            pieces = [json.loads(line[6:]) for line in events.splitlines() if line[6:7] == "{"]
            written = "".join(piece["choices"][0]["text"] for piece in pieces)
            assert written == choices[0]["text"]


def test_greedy_choices_are_all_the_same(running: Any) -> None:
    body = {"prompt": "the", "max_tokens": 10, "temperature": 0, "n": 3}
    texts = {choice["text"] for choice in running.complete(body).json()["choices"]}
    assert len(texts) == 1


def test_events_are_framed_as_the_standard_says(running: Any) -> None:
    body = {"prompt": "the", "max_tokens": 5, "stream": True}
    answer = running.complete(body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    *events, done, rest = answer.content.split(b"\n\n")
    assert done == b"data: [DONE]" and rest == b""
    for event in events:
        assert event.startswith(b"data: {") and b"\n" not in event and event.isascii()
        json.loads(event[6:])


def test_nothing_to_write_is_an_answer_too(running: Any) -> None:
    body = {"prompt": "the cat", "max_tokens": 0, "n": 2}
    choices = running.complete(body).json()["choices"]
    assert [(c["text"], c["finish_reason"]) for c in choices] == [("", "length")] * 2
    stream = running.complete({**body, "stream": True, "echo": True}).text
    assert stream.count('"text":"the cat"') == 2 and stream.count('"length"') == 2
