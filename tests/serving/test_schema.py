"""schemathesis asks whatever the OpenAPI description allows, and what it does not."""

import contextlib
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


def operations(running: Any) -> Iterator[Any]:
    schema = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
    for result in schema.get_all_operations():
        yield result.ok()


def test_what_is_described_is_what_there_is(running: Any) -> None:
    described = {
        f"{operation.method.upper()} {operation.path}" for operation in operations(running)
    }
    assert described >= {
        "GET /health",
        "GET /metrics",
        "GET /v1/models",
        "GET /v1/models/{name}",
        "POST /v1/completions",
        "POST /api/tokenize",
        "GET /api/runs",
    }


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.name.lower())
def test_every_answer_is_one_that_is_described(running: Any, mode: GenerationMode) -> None:
    for operation in operations(running):
        num_examples = 100 if operation.path == "/v1/completions" else 12

        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        @hypothesis.settings(
            max_examples=num_examples,
            derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        def ask(case: Any) -> None:
            case.call_and_validate(checks=CHECKS)

        # Some routes take nothing that could be wrong.
        with contextlib.suppress(hypothesis.errors.Unsatisfiable):
            ask()
