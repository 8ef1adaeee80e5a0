"""CPU work before and after the model: clients take turns, tasks have deadlines, bursts are
spread."""

import asyncio
import collections
import functools
import itertools
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from groundup.generation import LanguageModel
from groundup.serving.api_errors import ApiError
from groundup.serving.connections import Connection
from groundup.serving.workers import Workers


def test_clients_take_turns_and_deadlines_end_waiting() -> None:
    order: list[str] = []
    hold = threading.Event()

    def hold_up() -> None:
        hold.wait(60)
        order.append("held up")

    async def main() -> None:
        workers = Workers(30)
        slow = asyncio.ensure_future(workers.run("text", "greedy", hold_up))
        more = [
            asyncio.ensure_future(workers.run("text", "greedy", lambda: order.append("more")))
            for _ in range(9)
        ]
        await workers.run("text", "other", lambda: order.append("other"))
        await workers.run("view", "greedy", lambda: order.append("view"))
        hold.set()
        await asyncio.gather(slow, *more)
        assert order == ["other", "view", "held up", *["more"] * 9]
        hold.clear()
        impatient = Workers(0.05)
        with pytest.raises(ApiError) as caught:
            await impatient.run("text", "greedy", hold_up)
        assert (caught.value.status, caught.value.code) == (503, "deadline_exceeded")
        hold.set()
        # A function's own TimeoutError is raised unchanged.
        with pytest.raises(TimeoutError):
            await workers.run("text", "other", lambda: (_ for _ in ()).throw(TimeoutError()))
        impatient.close()
        workers.close()

    asyncio.run(main())


def test_a_request_over_its_deadline_is_rejected_and_delays_nobody(
    start: Any, language_model: LanguageModel, monkeypatch: Any
) -> None:
    encode, hold = language_model.tokenizer.encode_to_numpy, threading.Event()

    def slow_for_some(text: str) -> Any:
        if "zz" in text:
            hold.wait(60)
        return encode(text)

    monkeypatch.setattr(language_model.tokenizer, "encode_to_numpy", slow_for_some)
    with start(work_seconds=0.2) as running:
        refused = running.complete({"prompt": "zz" * 2_000})
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == "deadline_exceeded"
        assert running.is_well()
        # Its thread is still busy; another one encodes the long prompt.
        assert running.complete({"prompt": "the cat " * 500}).status_code == 400
        hold.set()
    # Nor is a short text read in the event loop, if the pattern is a foreign one.
    monkeypatch.setattr("groundup.serving.completions.CUSTOM", "gpt2")
    hold.clear()
    with start(work_seconds=0.2) as running:
        assert running.complete({"prompt": "zz"}).status_code == 503
        hold.set()


def test_a_burst_is_spread_over_rounds_of_the_event_loop() -> None:
    async def main() -> None:
        reads, counts = list[int](), list[int]()
        waiting: Any = collections.deque()
        for number in range(50):
            waiting.append(SimpleNamespace(read=functools.partial(reads.append, number)))
        server: Any = SimpleNamespace(loop=asyncio.get_running_loop(), waiting=waiting)
        server.read_some = functools.partial(Connection.read_some, server)
        server.read_some()
        while len(reads) < 50:
            await asyncio.sleep(0)
            counts.append(len(reads))
        assert max(after - before for before, after in itertools.pairwise(counts)) <= 8
        assert reads == list(range(50))

    asyncio.run(main())
