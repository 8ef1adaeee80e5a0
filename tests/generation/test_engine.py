"""The engine against the plain loop: every request gets the same ids, whatever else is running."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from groundup.errors import ConfigError
from groundup.generation import Engine, GenerationRequest, Sampler
from groundup.generation.request import NO_ID, NewToken
from groundup.generation.torch_decoder import TorchDecoder, _group_rows
from groundup.model import TransformerLM

from .conftest import finish, new_model, plain_ids

SAMPLERS = [
    Sampler(temperature=0.9, top_p=0.9),
    Sampler(),
    Sampler(temperature=0),
    Sampler(temperature=1.3, top_k=7, min_p=0.02),
    Sampler(temperature=0.8, top_p=0.95, repetition_penalty=1.7),
    Sampler(temperature=0.0, repetition_penalty=1.3),
]


def request(prompt: Sequence[int], max_tokens: int = 8, **settings: Any) -> GenerationRequest:
    settings.setdefault("sampler", SAMPLERS[0])
    return GenerationRequest(tuple(prompt), max_tokens, **settings)


def check(engine: Engine, asked: Sequence[GenerationRequest]) -> None:
    """Assert that requests that run together get the ids of the plain loop."""
    handles = [engine.add(one) for one in asked]
    found = finish(engine)
    for handle, one in zip(handles, asked, strict=True):
        assert found[handle] == plain_ids(engine.decoder.model, one)  # type: ignore


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_text_does_not_depend_on_requests_that_join_and_leave(is_packed: bool) -> None:
    model, chance = new_model(), random.Random(4)
    engine = Engine(TorchDecoder(model, 5, is_packed=is_packed))
    waiting = [
        request(
            [chance.randrange(50) for _ in range(chance.randint(1, 12))],
            chance.randint(1, 12),
            sampler=chance.choice(SAMPLERS),
            seed=chance.randrange(100),
            stop_ids=frozenset({chance.randrange(50)}),
            num_alternatives=chance.choice([-1, -1, -1, 0]),
        )
        for _ in range(36)
    ]
    asked: dict[int, GenerationRequest] = {}
    found: dict[int, list[int]] = {}
    gone: set[int] = set()
    while waiting or engine.num_running:
        while waiting and engine.num_free and chance.random() < 0.6:
            one = waiting.pop()
            asked[engine.add(one)] = one
        for handle, token in engine.step():
            found.setdefault(handle, []).append(token.id)
        if engine.num_running and chance.random() < 0.1:
            gone.add(handle := chance.choice(list(asked)))
            engine.remove(handle)
    for handle, one in asked.items():
        whole, ids = plain_ids(model, one), found.get(handle, [])
        assert ids == (whole[: len(ids)] if handle in gone else whole)


class Watched(TorchDecoder):
    """Records what is prefilled together and what is copied."""

    def __init__(self, model: TransformerLM, max_rows: int) -> None:
        super().__init__(model, max_rows)
        self.read: list[tuple[int, ...]] = []
        self.copied: list[tuple[int, int]] = []

    def prefill(self, texts: Sequence[tuple[int, Sequence[int]]]) -> None:
        self.read += [
            tuple(range(first, first + len(group))) for first, group in _group_rows(texts)
        ]
        super().prefill(texts)

    def copy(self, source: int, target: int) -> None:
        self.copied.append((source, target))
        super().copy(source, target)


def test_equal_prompts_are_prefilled_once() -> None:
    model = new_model()
    decoder = Watched(model, 6)
    engine = Engine(decoder)
    asked = [request([1, 2, 3], seed=seed) for seed in range(4)]
    asked.insert(2, request([4, 5]))
    handles = [engine.add(one) for one in asked[:3]]
    first = {handle: [token.id] for handle, token in engine.step()}
    # Later requests copy from a text that has grown since.
    handles += [engine.add(one) for one in asked[3:]]
    found = finish(engine)
    # The copies after that move rows to the places of finished ones.
    assert decoder.read == [(0,), (2,)] and decoder.copied[:3] == [(0, 1), (0, 3), (0, 4)]
    for handle, one in zip(handles, asked, strict=True):
        assert first.get(handle, []) + found[handle] == plain_ids(model, one)


def test_adjacent_prompts_of_equal_length_are_prefilled_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("groundup.generation.torch_decoder._MAX_PREFILL_IDS", 6)
    decoder = Watched(new_model(), 8)
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 1, 1], [2], [3], [4, 4], [5, 5]]
    check(Engine(decoder), [request(prompt, seed=seed) for seed, prompt in enumerate(prompts)])
    assert decoder.read == [(0, 1, 2), (3,), (6, 7)]


def test_removed_requests_free_their_rows() -> None:
    engine = Engine(new_model(), max_rows=4)
    assert (engine.num_running, engine.num_free, engine.step()) == (0, 4, [])
    handles = [engine.add(request([number], 100)) for number in range(4)]
    engine.remove(handles[1])
    engine.remove(handles[1])
    assert (engine.num_running, engine.num_free) == (3, 1)
    assert {handle for handle, _ in engine.step()} == {handles[0], handles[2], handles[3]}
    engine.clear()
    assert engine.num_running == 0


def run_out(engine: Engine, one: GenerationRequest) -> list[NewToken]:
    engine.add(one)
    tokens = []
    while engine.num_running:
        tokens += [token for _, token in engine.step()]
    return tokens


def test_each_request_has_its_own_finish_reason() -> None:
    engine = Engine(new_model(), max_rows=1)
    tokens = run_out(engine, request([3, 1], 6))
    assert [token.finish_reason for token in tokens] == [None] * 5 + ["length"]
    stop = tokens[3].id
    until = [token.id for token in tokens].index(stop)
    stopped = run_out(engine, request([3, 1], 6, stop_ids=frozenset({stop})))
    assert [token.id for token in stopped] == [token.id for token in tokens[: until + 1]]
    assert stopped[-1].finish_reason == "stop"
    # A context of 12 is full once its last id has been read; that id still predicts another one.
    assert len(run_out(engine, request([1] * 10, 100))) == 3
    assert len(run_out(engine, request([1] * 12, 100))) == 1
    short = Engine(new_model(context_length=1), max_rows=1)
    assert len(run_out(short, request([4], 5))) == 1


def test_log_probabilities_equal_the_models() -> None:
    model = new_model()
    engine = Engine(model, max_rows=3)
    without = engine.add(request([5, 6], 4, seed=1))
    alone = engine.add(request([5, 6], 4, seed=1, num_alternatives=0))
    sharp = Sampler(temperature=0.1)
    three = engine.add(request([9], 4, seed=2, num_alternatives=3, sampler=sharp))
    prompts = {alone: [5, 6], three: [9]}
    while engine.num_running:
        for handle, token in engine.step():
            if handle == without:
                assert token.log_probability is None and token.alternatives == ()
                continue
            logits = model(torch.tensor([prompts[handle]]))[0, -1].detach()
            expected = torch.log_softmax(logits, dim=-1)
            assert token.log_probability == pytest.approx(float(expected[token.id]), abs=1e-4)
            best = expected.topk(3 if handle == three else 0)
            likeliest = dict(zip(best.indices.tolist(), best.values.tolist(), strict=True))
            assert dict(token.alternatives) == pytest.approx(likeliest, abs=1e-4)
            prompts[handle].append(token.id)


def test_errors_are_raised_before_any_state_changes() -> None:
    engine = Engine(new_model(), max_rows=1)
    for asked in (request([]), request([1], 0), request([1, 50]), request([-1]), request([1] * 13)):
        with pytest.raises(ConfigError):
            engine.add(asked)
    assert engine.num_running == 0 and not engine.decoder.cache.keys.any()
    engine.add(request([1]))
    with pytest.raises(ConfigError, match="all 1 rows are taken"):
        engine.add(request([2]))


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("bad_row", [0, 1, 2])
def test_only_the_row_with_non_finite_logits_ends(is_packed: bool, bad_row: int) -> None:
    # NaN survives RoPE and norms: texts with this id have no finite logits.
    model = new_model()
    with torch.no_grad():
        model.token_embedding.weight[7] = torch.nan
    good = [request([1, 2], seed=1), request([3, 4, 5], seed=2, num_alternatives=2)]
    asked = [*good[:bad_row], request([5, 7, 6, 8], num_alternatives=3), *good[bad_row:]]
    engine = Engine(TorchDecoder(model, 3, is_packed=is_packed))
    handles = [engine.add(one) for one in asked]
    first = dict(engine.step())
    assert first[handles[bad_row]] == NewToken(NO_ID, None, (), "error")
    assert engine.num_running == 2
    found = finish(engine)
    for one, handle in zip(asked, handles, strict=True):
        if one in good:
            assert [first[handle].id, *found[handle]] == plain_ids(model, one)
    # Values that the bad text left in its row must not affect a later, shorter text.
    check(engine, [request([9, 1, 2, 3, 4, 5], 2), request([2], 2), request([9, 3], 2)])


def test_modes_of_the_caller_are_neither_used_nor_changed() -> None:
    with torch.inference_mode():
        check(Engine(new_model(), 3), [request([1, 2], num, seed=num) for num in (1, 3, 2)])
    model = new_model().train()
    state = torch.get_rng_state()
    engine = Engine(model, max_rows=1)
    handle = engine.add(request([1, 2]))
    expected = finish(engine)[handle]
    with torch.autocast("cpu", torch.bfloat16):
        handle = engine.add(request([1, 2]))
        assert finish(engine)[handle] == expected
    assert model.training and torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
