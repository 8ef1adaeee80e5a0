"""Prometheus metrics. Per-model metrics carry the model's name as a label."""

from types import SimpleNamespace
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_STEP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_OF_MODELS: dict[str, tuple[Any, ...]] = {
    "prompt_tokens": (Counter, "Prompt tokens processed."),
    "generated_tokens": (Counter, "Tokens generated."),
    "cancelled_texts": (Counter, "Sequences cancelled by clients."),
    "engine_failures": (Counter, "Engines replaced after an error."),
    "queue_depth": (Gauge, "Sequences waiting for a row."),
    "running_rows": (Gauge, "Sequences being generated."),
    "max_rows": (Gauge, "Maximum number of sequences generated concurrently."),
    "time_to_first_token_seconds": (Histogram, "From request to first token.", _SECONDS),
    "step_seconds": (Histogram, "Time between two tokens of a sequence.", _STEP_SECONDS),
}

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one server, in their own registry."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        name, labels = "groundup_http_requests", ["route", "status"]
        self.answers = Counter(name, "Requests answered.", labels, registry=registry)
        self._of_models: dict[str, Any] = {}
        for name, (kind, meaning, *buckets) in _OF_MODELS.items():
            options = {"buckets": buckets[0]} if buckets else {}
            metric = kind(f"groundup_{name}", meaning, ["model"], registry=registry, **options)
            self._of_models[name] = metric

    def of(self, model: str) -> Any:
        """The metrics of a model, as attributes."""
        found = {name: metric.labels(model) for name, metric in self._of_models.items()}
        return SimpleNamespace(**found)

    def page(self) -> bytes:
        return generate_latest(self._registry)
