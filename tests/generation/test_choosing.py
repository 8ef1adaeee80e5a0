"""A device that samples by itself gives the ids that the host would have sampled."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from groundup.generation import Engine, GenerationRequest, Sampler
from groundup.generation.choosing import DeviceChooser, Row
from groundup.generation.packed_decoder import PackedDecoder
from groundup.generation.sampling import NO_ID, Uniforms
from groundup.model import TransformerLM

NewModel = Callable[..., TransformerLM]
PlainIds = Callable[[TransformerLM, GenerationRequest], list[int]]

KNOWN = [Sampler.of(0.9, top_p=0.9), Sampler.of(0.0), Sampler.of(1.2, top_k=5)]
UNKNOWN = Sampler.of(0.9, repetition_penalty=1.5)

# What the device is told of a row: id, position, number of new ids, seed, sampler.
State = tuple[int, int, int, int, Sampler]


class Device(PackedDecoder):
    """Samples at once what a device would sample in its own time, and goes on from there."""

    steps_at_once = 8

    def __init__(self, model: TransformerLM, max_rows: int) -> None:
        super().__init__(model, max_rows)
        self.num_told = self.num_launched = 0
        self._states: list[State] = []
        self._held = torch.zeros(max_rows, self.vocab_size)

    @property
    def logits(self) -> torch.Tensor:
        return self._held

    def set_rows(self, rows: Sequence[State]) -> None:
        self.num_told += 1
        self._states = list(rows)

    def launch(self, n: int, num_steps: int) -> Callable[[], list[list[int]]]:
        steps = [self._step(n) for _ in range(num_steps)]
        return lambda: steps

    def _step(self, n: int) -> list[int]:
        assert n == len(self._states)
        self.num_launched += 1
        ids = torch.tensor([state[0] for state in self._states])
        positions = torch.tensor([state[1] for state in self._states])
        self._held[:n] = self.decode(ids, positions)
        chosen: list[int] = []
        for logits, (_, _, count, seed, sampler) in zip(self._held, self._states, strict=False):
            number = torch.tensor(Uniforms(seed)[count], dtype=torch.float64)
            chosen.append(int(sampler.sample(logits, number)))
        self._states = [
            (max(id, 0), position + 1, count + 1, seed, sampler)
            for id, (_, position, count, seed, sampler) in zip(chosen, self._states, strict=True)
        ]
        return chosen


def describe(row: Row) -> State | None:
    if row.request.sampler not in KNOWN:
        return None
    return row.ids[-1], len(row.ids) - 1, row.num_new, row.request.seed, row.request.sampler


@pytest.fixture
def device(new_model: NewModel, monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setattr(
        "groundup.generation.engine.device_chooser",
        lambda decoder: DeviceChooser(decoder, describe),
    )
    return Device(new_model(), 5)


def run_out(engine: Engine) -> list[int]:
    ids = []
    while engine.num_running:
        ids += [token.id for _, token in engine.step()]
    return ids


def request(prompt: Sequence[int], max_tokens: int, **settings: Any) -> GenerationRequest:
    return GenerationRequest(tuple(prompt), max_tokens, KNOWN[0], **settings)


def test_a_device_is_told_once_and_asked_for_no_step_too_many(
    device: Device, plain_ids: PlainIds
) -> None:
    engine = Engine(device)
    one = request([1, 2], 7)
    engine.add(one)
    assert run_out(engine) == plain_ids(device.model, one)
    assert (device.num_told, device.num_launched) == (1, 7)
    # At a full context as well.
    engine.add(request([1, 2], 100))
    assert len(run_out(engine)) == 11
    assert (device.num_told, device.num_launched) == (2, 18)


def test_the_next_steps_begin_before_the_ids_are_read(device: Device) -> None:
    engine = Engine(device)
    engine.add(request([1, 2], 10, stop_ids=frozenset([63])))
    engine.step()
    # Eight of few rows at once, then no eight are left.
    assert device.num_launched == 8 + 1
    # Not where the logits of the step are wanted, which the next one would overwrite.
    engine.clear()
    engine.add(request([1, 2], 10, num_alternatives=2))
    engine.step()
    assert device.num_launched == 10
    # Nor of many rows of which one may end at any time.
    for stop_ids, num_launched in ((frozenset([63]), 12), (frozenset[int](), 21)):
        engine.clear()
        for _ in range(5):
            engine.add(request([1, 2], 10, stop_ids=stop_ids))
        engine.step()
        assert device.num_launched == num_launched


def test_rows_join_leave_and_slide_beside_rules_the_device_does_not_know(
    device: Device, check_traffic: Callable[..., None]
) -> None:
    samplers = [*KNOWN, *KNOWN, UNKNOWN]
    check_traffic(Engine(device), device.model, samplers, seed=7, density=0.3)
    assert device.num_launched > 20


def test_after_damaged_logits_the_others_go_on(device: Device, plain_ids: PlainIds) -> None:
    with torch.no_grad():
        device.model.token_embedding.weight[30] = torch.nan
    engine = Engine(device)
    asked = [request([1, 2], 7), request([30, 3], 7), request([4], 5)]
    handles = [engine.add(one) for one in asked]
    found: dict[int, list[int]] = {}
    while engine.num_running:
        for handle, token in engine.step():
            found.setdefault(handle, []).append(token.id)
            assert (token.finish_reason == "error") == (handle == handles[1])
    assert [found[handle] for handle in handles] == [
        plain_ids(device.model, asked[0]),
        [NO_ID],
        plain_ids(device.model, asked[2]),
    ]
