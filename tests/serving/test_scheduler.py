"""The scheduler with an engine that only takes the steps that a test allows."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal

import pytest

from groundup.generation.request import GenerationRequest, NewToken, Sampler
from groundup.serving.api_errors import ApiError
from groundup.serving.jobs import Job, Outbox, Row
from groundup.serving.metrics import Metrics
from groundup.serving.scheduler import Scheduler
from groundup.serving.settings import ServerSettings

from .conftest import PATIENCE_SECONDS

UNAVAILABLE = "stopp|failed"


class Stepped:
    """Generates the ids 1, 2, 3 … for every request. `allow(n)` lets it take n steps."""

    def __init__(self) -> None:
        self.handles = itertools.count(100)
        self.rows: dict[int, tuple[GenerationRequest, int]] = {}
        self.allowed = threading.Semaphore(0)
        self.history: list[list[int]] = []
        self.error: Exception | None = None

    def allow(self, num_steps: int) -> None:
        self.allowed.release(num_steps)

    def add(self, request: GenerationRequest) -> int:
        if request.prompt_ids == (666,):
            raise RuntimeError("a bug")
        handle = next(self.handles)
        self.rows[handle] = (request, 0)
        return handle

    def remove(self, handle: int) -> None:
        del self.rows[handle]

    def step(self) -> list[tuple[int, NewToken]]:
        self.allowed.acquire()
        if self.error is not None:
            raise self.error
        self.history.append([request.seed for request, _ in self.rows.values()])
        new = []
        for handle, (request, count) in list(self.rows.items()):
            reason: Literal["length"] | None = "length" if count + 1 == request.max_tokens else None
            new.append((handle, NewToken(count + 1, None, (), reason)))
            self.rows[handle] = (request, count + 1)
            if reason:
                del self.rows[handle]
        return new


def ask(seed: int, max_tokens: int = 3, prompt: tuple[int, ...] = (1,)) -> GenerationRequest:
    return GenerationRequest(prompt, max_tokens, Sampler(), seed=seed)


async def read(job: Job) -> list[list[int]]:
    """Read all rows to their ends; return their ids."""
    ids: list[list[int]] = [[] for _ in job.rows]
    num_left = len(ids)
    while num_left:
        for index, came in await job.next_events():
            if isinstance(came, ApiError):
                raise came
            ids[index].append(came.id)
            num_left -= came.finish_reason is not None
    return ids


async def next_ids(job: Job) -> list[int]:
    return [came.id for _, came in await job.next_events() if isinstance(came, NewToken)]


async def until(condition: Callable[[], bool]) -> None:
    """`play` limits the time."""
    while not condition():
        await asyncio.sleep(0.005)


Scene = Callable[[Scheduler, Stepped], Coroutine[Any, Any, None]]


def play(
    max_rows: int = 2, max_queue: int = 4, make: Callable[[], Stepped] | None = None, **limits: int
) -> Callable[[Scene], Callable[[], None]]:
    """Turn a coroutine into a test with a running scheduler, which is always stopped."""

    def decorate(scene: Scene) -> Callable[[], None]:
        engines: list[Stepped] = []

        def make_engine() -> Any:
            engines.append(make() if make and engines else Stepped())
            return engines[-1]

        async def run() -> None:
            settings = ServerSettings(max_rows=max_rows, max_queue=max_queue, **limits)
            metrics = Metrics()
            scheduler = Scheduler(make_engine, settings, metrics)
            scheduler.start(asyncio.get_running_loop())
            try:
                await asyncio.wait_for(scene(scheduler, engines[0]), PATIENCE_SECONDS)
            finally:
                for engine in engines:
                    engine.allow(10_000)
                scheduler.stop()
            page = metrics.page().decode()
            assert 'queue_depth{model=""} 0.0' in page and 'running_rows{model=""} 0.0' in page

        # Not functools.wraps: pytest would take the coroutine's arguments for fixtures.
        def test() -> None:
            asyncio.run(run())

        return test

    return decorate


@play()
async def test_requests_join_and_leave_between_steps(scheduler: Scheduler, engine: Stepped) -> None:
    first = scheduler.submit([ask(1, 4)])
    engine.allow(1)
    await first.next_events()
    second = scheduler.submit([ask(2, 2)])
    third = scheduler.submit([ask(3, 2)])
    await until(lambda: scheduler.num_running == 1 and scheduler.num_waiting == 2)
    engine.allow(100)
    await asyncio.gather(read(first), read(second), read(third))
    # The step in progress has only the first row; then there is room for one more, and the third
    # gets the row that is freed first.
    assert engine.history in (
        [[1], [1], [1, 2], [1, 2], [3], [3]],
        [[1], [1, 2], [1, 2], [1, 3], [3]],
    )
    assert scheduler.num_running == scheduler.num_waiting == 0


@play(max_rows=2, max_queue=16)
async def test_clients_take_turns_however_much_one_asks_for(
    scheduler: Scheduler, engine: Stepped
) -> None:
    many = scheduler.submit([ask(1, 2) for _ in range(8)], "greedy")
    await until(lambda: scheduler.num_running == 2)
    few = scheduler.submit([ask(2, 2), ask(3, 2)], "modest")
    other = scheduler.submit([ask(4, 2)], "third")
    engine.allow(100)
    await asyncio.gather(*map(read, (many, few, other)))
    # Two steps per text: clients with fewer rows come first, then the least recently served.
    assert [sorted(seeds) for seeds in engine.history[::2]] == [
        [1, 1], [1, 2], [1, 4], [1, 3], [1, 1], [1],
    ]  # fmt: skip


@play(max_rows=4, max_queue=8, max_client_rows=3)
async def test_one_client_holds_no_more_than_its_rows_and_places(
    scheduler: Scheduler, engine: Stepped
) -> None:
    jobs = [scheduler.submit([ask(1, 2) for _ in range(4)], "greedy") for _ in range(2)]
    await until(lambda: scheduler.num_running == 3)
    jobs.append(scheduler.submit([ask(1, 2), ask(1, 2)], "greedy"))
    with pytest.raises(ApiError, match="too many"):
        scheduler.submit([ask(1, 2)], "greedy")
    job = scheduler.submit([ask(2, 1)], "modest")
    engine.allow(2)
    assert await read(job) == [[1]]
    assert [seeds.count(1) for seeds in engine.history] == [3, 3]
    engine.allow(100)
    assert [ids for job in jobs for ids in await read(job)] == [[1, 2]] * 10


@play()
async def test_a_request_that_cannot_begin_fails_alone(
    scheduler: Scheduler, engine: Stepped
) -> None:
    good = scheduler.submit([ask(1)])
    bad = scheduler.submit([ask(2, prompt=(666,))])
    engine.allow(100)
    with pytest.raises(ApiError) as caught:
        await read(bad)
    assert caught.value.status == 500
    assert await read(good) == [[1, 2, 3]]
    assert scheduler.status == "ok" and scheduler.num_running == 0


@pytest.mark.parametrize("can_be_replaced", [True, False])
def test_an_engine_failure_fails_the_running_rows(can_be_replaced: bool) -> None:
    made: list[Stepped] = []

    def make() -> Stepped:
        if not can_be_replaced:
            raise RuntimeError("the device is lost")
        made.append(Stepped())
        return made[-1]

    async def scene(scheduler: Scheduler, engine: Stepped) -> None:
        inside = scheduler.submit([ask(1), ask(2)])
        waiting = scheduler.submit([ask(3)])
        await until(lambda: scheduler.num_running == 2)
        engine.error = RuntimeError("out of memory")
        engine.allow(1)
        for job in (inside, waiting)[: 1 if can_be_replaced else 2]:
            with pytest.raises(ApiError, match="the server failed"):
                await read(job)
        assert scheduler._metrics.engine_failures._value.get() == 1
        if not can_be_replaced:
            assert scheduler.status == "failed"
            with pytest.raises(ApiError, match=UNAVAILABLE):
                scheduler.submit([ask(4)])
            return
        # Handles are reused: a late cancellation must not remove another row.
        await until(lambda: scheduler.num_running == 1)
        scheduler.cancel(inside.rows)
        made[0].allow(100)
        assert await read(waiting) == [[1, 2, 3]]
        assert scheduler.status == "ok" and len(made) == 1

    play(make=make)(scene)()


@play()
async def test_stopping_tells_whoever_still_waits(scheduler: Scheduler, engine: Stepped) -> None:
    jobs = [scheduler.submit([ask(seed)]) for seed in range(3)]
    await until(lambda: scheduler.num_running == 2)
    stopping = asyncio.get_running_loop().run_in_executor(None, scheduler.stop)
    # The thread may be slow to start, and the step in progress must be the last.
    await until(lambda: scheduler.status == "stopping")
    engine.allow(1)
    await stopping
    for waiting in map(read, jobs):
        with pytest.raises(ApiError, match=UNAVAILABLE):
            await waiting


@play(max_rows=8, max_client_rows=8, max_queue=8)
async def test_long_prompts_are_read_over_several_steps(
    scheduler: Scheduler, engine: Stepped
) -> None:
    short = scheduler.submit([ask(0, 10)])
    await until(lambda: scheduler.num_running == 1)
    prompts = [tuple(range(2500)) for _ in range(4)]
    jobs = [scheduler.submit([ask(n + 1, 10, prompt)]) for n, prompt in enumerate(prompts)]
    shared = scheduler.submit([ask(10 + n, 10, prompts[0]) for n in range(3)])
    engine.allow(100)
    await asyncio.gather(*map(read, (short, *jobs, shared)))
    joined = [len(seeds) for seeds in engine.history[:6]]
    # One long prompt per step, because two exceed the limit; a shared one is processed once.
    assert joined == [1, 2, 3, 4, 5, 8]


@pytest.mark.parametrize("patience_seconds", [0.0, 1e9])
def test_tokens_are_batched_only_briefly(
    patience_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("groundup.serving.jobs._FLUSH_SECONDS", patience_seconds)

    async def scene() -> None:
        outbox, job = Outbox(asyncio.get_running_loop()), Job()
        row = Row(job, 0, ask(1))
        outbox.put(row, NewToken(1, None, (), None))
        outbox.send_if_due()
        assert await next_ids(job) == [1]
        outbox.put(row, NewToken(2, None, (), None), is_urgent=False)
        outbox.send_if_due()
        if patience_seconds:
            outbox.put(row, NewToken(3, None, (), "length"))
            outbox.send_if_due()
        assert await next_ids(job) == ([2, 3] if patience_seconds else [2])

    asyncio.run(scene())
