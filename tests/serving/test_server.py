"""The routes that are no completions, and what the monitor is told."""

import re
from typing import Any

import pytest

from groundup.serving.metrics_page import Metrics


def read_metrics(running: Any) -> dict[str, float]:
    answer = running.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_health_says_how_it_is(running: Any) -> None:
    answer = running.get("/health")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", "model": "tiny", "running": 0, "waiting": 0}


def test_a_stopping_server_says_so_and_takes_nothing(start: Any) -> None:
    with start() as running:
        running.scheduler.refuse_new()
        health = running.get("/health")
        assert health.status_code == 503 and health.json()["status"] == "stopping"
        for body in ({"prompt": "a"}, {"prompt": "a", "stream": True}, {"prompt": ["a", "b"]}):
            answer = running.complete(body)
            assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
            assert answer.json()["error"]["type"] == "server_error"


def test_the_model_tells_its_limits(running: Any) -> None:
    (card,) = running.get("/v1/models").json()["data"]
    assert card["context_length"] == 64 and card["vocab_size"] == 290 and card["step"] == 7
    assert card["max_new_tokens"] == 4096


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", "/static/nothing.js", 404),
        ("GET", "/api/runs/nothing", 404),
    ],
)
def test_errors_have_the_one_shape(running: Any, method: str, path: str, status: int) -> None:
    answer = running.request(method, path)
    assert answer.status_code == status
    if not path.startswith("/static/"):
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_an_unknown_path_of_the_api_is_told_what_exists(running: Any) -> None:
    answer = running.post("/v1/embeddings", json={"input": []})
    assert answer.status_code == 404
    message = answer.json()["error"]["message"]
    assert message.startswith("/v1/embeddings does not exist here: this server has ")
    assert message.endswith("/v1/chat/completions, /v1/completions, /v1/models, /v1/models/{name}")
    # Of the pages a stranger is told nothing.
    assert "this server has" not in running.get("/nowhere").json()["error"]["message"]


def test_metrics_count_what_happened(start: Any) -> None:
    with start() as running:
        before = read_metrics(running)
        assert before["groundup_generated_tokens_total"] == 0
        body = {"prompt": "the cat", "max_tokens": 9, "n": 2, "temperature": 0}
        usage = running.complete(body).json()["usage"]
        running.complete({"n": 0})
        running.get(f"/v1/models/{'x' * 50}")
        running.get("/never/heard/of")
        after = read_metrics(running)
    assert after["groundup_generated_tokens_total"] == usage["completion_tokens"] == 18
    assert after["groundup_prompt_tokens_total"] == 2 * usage["prompt_tokens"]
    assert after["groundup_engine_steps_total"] == 9
    assert after["groundup_queue_depth"] == after["groundup_running_rows"] == 0
    assert after["groundup_max_rows"] == 8
    answered = "groundup_http_requests_total"
    assert after[f'{answered}{{route="/v1/completions",status="200"}}'] == 1
    assert after[f'{answered}{{route="/v1/completions",status="400"}}'] == 1
    # Whatever a client asks for, the monitor sees only names of routes.
    assert after[f'{answered}{{route="/v1/models/{{name}}",status="404"}}'] == 1
    assert after[f'{answered}{{route="other",status="404"}}'] == 1
    assert after["groundup_time_to_first_token_seconds_count"] == 2
    assert after["groundup_time_per_token_seconds_count"] == 16
    assert after['groundup_time_per_token_seconds_bucket{le="+Inf"}'] == 16


def test_the_page_of_metrics_is_prometheus_text() -> None:
    metrics = Metrics()
    metrics.count_answer("/a", 200)
    metrics.first_token_seconds.observe(0.3)
    metrics.first_token_seconds.observe(1e9)
    page = metrics.page(num_waiting=1, num_running=2, max_rows=3)
    assert page.endswith("\n")
    named: set[str] = set()
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            named.add(line.split()[2])
        elif not line.startswith("# HELP "):
            assert re.fullmatch(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+]+', line)
            name = re.split(r"[{ ]", line)[0]
            assert name in named or re.sub(r"_(bucket|sum|count)$", "", name) in named
    assert 'groundup_time_to_first_token_seconds_bucket{le="0.25"} 0' in page
    assert 'groundup_time_to_first_token_seconds_bucket{le="0.5"} 1' in page
    assert 'groundup_time_to_first_token_seconds_bucket{le="+Inf"} 2' in page
