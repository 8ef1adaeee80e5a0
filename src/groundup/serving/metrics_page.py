"""What /metrics tells a monitor, in Prometheus's text format.

Names that end in _total only grow; a histogram has cumulative buckets, a sum and a count.
"""

from __future__ import annotations

import bisect
import collections
import threading
from collections.abc import Iterator, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKEN_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class Histogram:
    """How often a value fell below each of some bounds."""

    def __init__(self, bounds: Sequence[float], lock: threading.Lock) -> None:
        self._bounds = bounds
        self._lock = lock
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        with self._lock:
            self._counts[bisect.bisect_left(self._bounds, value)] += times
            self._sum += value * times

    def lines(self, name: str) -> Iterator[str]:
        with self._lock:
            counts, total = list(self._counts), self._sum
        below = 0
        for bound, count in zip((*self._bounds, "+Inf"), counts, strict=True):
            below += count
            yield f'{name}_bucket{{le="{bound}"}} {below}'
        yield f"{name}_sum {total:.9g}"
        yield f"{name}_count {below}"


class Metrics:
    """Counted from the event loop and from the engine's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: collections.Counter[tuple[str, int]] = collections.Counter()
        self._counts: collections.Counter[str] = collections.Counter()
        self.first_token_seconds = Histogram(_FIRST_TOKEN_SECONDS, self._lock)
        self.token_seconds = Histogram(_TOKEN_SECONDS, self._lock)

    def count_answer(self, route: str, status: int) -> None:
        with self._lock:
            self._answers[route, status] += 1

    def count(self, name: str, by: int = 1) -> None:
        """Add to one of the counters below."""
        with self._lock:
            self._counts[name] += by

    def page(self, *, num_waiting: int, num_running: int, max_rows: int) -> str:
        """The whole page."""
        with self._lock:
            answers, counts = dict(self._answers), collections.Counter(self._counts)
        by_status = [
            f'groundup_http_requests_total{{route="{route}",status="{status}"}} {count}'
            for (route, status), count in sorted(answers.items())
        ]
        lines = [
            *_head("http_requests_total", "counter", "Requests answered."),
            *by_status,
            *_plain("queue_depth", "gauge", "Sequences that wait for a row.", num_waiting),
            *_plain("running_rows", "gauge", "Sequences being generated.", num_running),
            *_plain("max_rows", "gauge", "Sequences that can be generated at once.", max_rows),
        ]
        for name, meaning in _COUNTERS.items():
            lines += _plain(name, "counter", meaning, counts[name])
        for name, histogram, meaning in (
            ("time_to_first_token_seconds", self.first_token_seconds, "From request to token."),
            (
                "time_per_token_seconds",
                self.token_seconds,
                "From one token of a sequence to the next.",
            ),
        ):
            lines += _head(name, "histogram", meaning)
            lines += histogram.lines(f"groundup_{name}")
        return "\n".join(lines) + "\n"


_COUNTERS = {
    "prompt_tokens_total": "Ids read from prompts.",
    "generated_tokens_total": "Ids generated.",
    "engine_steps_total": "Steps of the engine.",
    "cancelled_texts_total": "Sequences cancelled before their end.",
    "engine_failures_total": "Times the engine had to be made anew.",
}


def _head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP groundup_{name} {meaning}", f"# TYPE groundup_{name} {kind}"]


def _plain(name: str, kind: str, meaning: str, value: int) -> list[str]:
    return [*_head(name, kind, meaning), f"groundup_{name} {value}"]
