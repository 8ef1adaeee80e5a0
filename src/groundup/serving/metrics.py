"""Metrics for Prometheus. Those of a model carry its name as a label."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

_FIRST_TOKEN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_STEP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.answers = Counter(
            "groundup_http_requests",
            "Requests answered.",
            ["route", "status"],
            registry=self._registry,
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens read from prompts.")
        self.generated_tokens = self._counter("generated_tokens", "Tokens generated.")
        self.cancelled_texts = self._counter("cancelled_texts", "Sequences cancelled by clients.")
        self.engine_failures = self._counter("engine_failures", "Engines replaced after an error.")
        self.queue_depth = self._gauge("queue_depth", "Sequences waiting for a row.")
        self.running_rows = self._gauge("running_rows", "Sequences being generated.")
        self.max_rows = self._gauge("max_rows", "Sequences that can be generated at once.")
        self.first_token_seconds = self._histogram(
            "time_to_first_token_seconds", "From request to token.", _FIRST_TOKEN_SECONDS
        )
        self.step_seconds = self._histogram(
            "step_seconds", "From one token of a sequence to its next.", _STEP_SECONDS
        )

    def page(self) -> bytes:
        return generate_latest(self._registry)

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(f"groundup_{name}", meaning, ["model"], registry=self._registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"groundup_{name}", meaning, ["model"], registry=self._registry)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"groundup_{name}", meaning, ["model"], registry=self._registry, buckets=buckets
        )
