"""schemathesis asks whatever the OpenAPI description allows, and what it does not."""

import contextlib
from typing import Any

import hypothesis
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
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

EXAMPLES = {"/v1/completions": 30, "/v1/chat/completions": 8}


def test_every_answer_is_one_that_is_described(chatting: Any) -> None:
    schema = schemathesis.openapi.from_url(f"{chatting.url}/openapi.json")
    described = set()
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        described.add(f"{operation.method.upper()} {operation.path}")
        for mode in GenerationMode:
            # Some routes take nothing that could be wrong.
            with contextlib.suppress(hypothesis.errors.Unsatisfiable):
                ask(operation, mode, EXAMPLES.get(operation.path, 4))
    assert described >= {
        "GET /health",
        "GET /metrics",
        "GET /v1/models",
        "GET /v1/models/{name}",
        "POST /v1/completions",
        "POST /v1/chat/completions",
        "POST /api/tokenize",
        "GET /api/runs",
    }


def ask(operation: Any, mode: GenerationMode, num_examples: int) -> None:
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=num_examples,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def ask_one(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    ask_one()
