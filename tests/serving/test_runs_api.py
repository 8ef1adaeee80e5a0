"""The runs API shows what training writes, and handles any folder and name."""

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from groundup.files import append_json_line, write_json_atomic
from groundup.planner.parameters import count_parameters
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runs.outcome import Outcome
from groundup.serving.api_errors import ApiError
from groundup.serving.runs_api import runs_routes

from .conftest import make_run

LONG_AGO = 1_000_000_000
SECRET = "the-secret-of-another-folder"

# A TestClient, or a server on a port.
Client = Any


@pytest.fixture
def runs_folder(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def folder(runs_folder: Path) -> RunFolder:
    return make_run(runs_folder)


@pytest.fixture
def client(runs_folder: Path) -> TestClient:
    handlers: Any = {ApiError: lambda request, error: error.response()}
    return TestClient(Starlette(routes=runs_routes(runs_folder), exception_handlers=handlers))


def add_line(folder: RunFolder, step: int, **values: Any) -> None:
    record = {"step": step, "wall_seconds": step * 0.5, "tokens": step * 64, **values}
    append_json_line(folder.metrics_file, record)


def metrics(client: Client, name: str = "one", **query: Any) -> Any:
    return client.get(f"/api/runs/{name}/metrics", params=query).raise_for_status().json()


def details(client: Client, name: str = "one") -> Any:
    return client.get(f"/api/runs/{name}").raise_for_status().json()


def names(client: Client) -> list[str]:
    return [run["name"] for run in client.get("/api/runs").json()["runs"]]


def test_the_list_has_the_newest_metrics(client: Client, runs_folder: Path) -> None:
    changes: Any = {"samples.prompts": ["Once", "A cat"]}
    folder = make_run(runs_folder, **changes)
    add_line(folder, 1, loss=5.0)
    add_line(folder, 2, loss=4.0, validation_loss=4.5, samples=[" upon", " sat"])
    add_line(folder, 3, loss=3.0)
    (run,) = client.get("/api/runs").json()["runs"]
    expected = {"step": 3, "num_steps": 100, "tokens": 192, "loss": 3.0, "validation_loss": 4.5}
    assert expected.items() <= run.items()
    assert run["num_parameters"] == sum(count_parameters(RunConfig().model).values())
    assert run["status"] == "running"
    one = details(client)
    assert (one["settings"]["num_steps"], one["environment"]["device"]) == (100, "cpu")
    assert one["samples"] == [
        {"step": 2, "prompt": "Once", "text": " upon"},
        {"step": 2, "prompt": "A cat", "text": " sat"},
    ]


def test_only_new_complete_lines_are_returned(client: Client, folder: RunFolder) -> None:
    add_line(folder, 1, loss=5.0)
    first = metrics(client)
    assert [line["step"] for line in first["lines"]] == [1]
    with open(folder.metrics_file, "a") as file:
        file.write('{"step": 2, "lo')
        file.flush()
        torn = metrics(client, after=first["next"], version=first["version"])
        assert (torn["lines"], torn["next"]) == ([], 1)
        file.write('ss": 4.0}\n')
    whole = metrics(client, after=torn["next"], version=torn["version"])
    assert (whole["lines"], whole["next"]) == ([{"step": 2, "loss": 4.0}], 2)
    assert not whole["restarted"]


def test_a_file_truncated_by_a_resume_is_returned_from_its_start(
    client: Client, folder: RunFolder
) -> None:
    for step in range(1, 6):
        add_line(folder, step, loss=float(step))
    before = metrics(client)
    folder.cut_metrics(last_step=2)
    for step in range(3, 9):
        add_line(folder, step, loss=100.0)
    # There are as many lines again, so their number alone does not show the restart.
    after = metrics(client, after=before["next"], version=before["version"])
    assert after["restarted"]
    assert [line["loss"] for line in after["lines"]] == [1.0, 2.0] + [100.0] * 6
    assert len(metrics(client, after=9)["lines"]) == 8


def test_damaged_small_files_count_as_missing(client: Client, folder: RunFolder) -> None:
    for content in (b"", b"\0\xff\xfe", b"- a list", b"a: &a [*a]", b"[" * 500 + b"]" * 500):
        folder.config_file.write_bytes(content)
        folder.environment_file.write_bytes(content)
        assert names(client) == ["one"] and details(client)["environment"] == {}


def test_responses_are_strict_json_whatever_a_line_contains(
    client: Client, folder: RunFolder
) -> None:
    lines = [
        '{"step": 1, "loss": NaN, "gradient_norm": Infinity, "mfu": 1e999}',
        '{"step": 2, "loss": true, "tokens": null, "deep": {"a": [1]}}',
        f'{{"step": 3, "loss": 1{"0" * 400}, "samples": ["\\ud800", 7, null]}}',
        '{"step": "four", "loss": "low", "skipped": true, "reason": {"x": "\\udfff"}}',
        "[" * 100_000,
        "no json at all",
        "17",
        "",
        '{"step": 5, "loss": 2.5, "samples": "not a list"}',
    ]
    folder.metrics_file.write_text("\n".join(lines) + "\n", "utf-8")
    answer = metrics(client)
    assert answer["lines"][-1] == {"step": 5, "loss": 2.5}
    assert len(answer["lines"]) == 5
    health = details(client)["health"]
    assert (health["num_damaged_lines"], health["num_skipped"]) == (3, 1)
    assert client.get("/api/runs").json()["runs"][0]["loss"] == 2.5


PATH_TRICKS = ["..", "../secret", "%2e%2e%2fsecret", "..%5csecret", ".", "one%2f..%2f..%2fsecret"]
PATH_TRICKS += ["/etc/passwd", "one%00", "%c0%ae%c0%ae", "%ff", "link", "x" * 5000]


def test_no_path_leads_out_of_the_runs_folder(
    start: Any, tmp_path: Path, runs_folder: Path
) -> None:
    add_line(make_run(runs_folder), 1, loss=1.0)
    secret = make_run(tmp_path, "secret")
    add_line(secret, 1, samples=[SECRET])
    (runs_folder / "link").symlink_to(secret.path)
    with start(runs_folder=runs_folder) as running:
        for trick in PATH_TRICKS:
            for tail in ("", "/metrics"):
                # Raw: a client library would normalize the path.
                head = f"GET /api/runs/{trick}{tail} HTTP/1.1\r\nhost: localhost\r\n"
                answer = running.exchange(f"{head}connection: close\r\n\r\n".encode()).decode()
                assert answer.startswith("HTTP/1.1 404"), (trick, tail, answer)
                assert SECRET not in answer and str(tmp_path) not in answer
        assert names(running) == ["one"]


def test_links_and_pipes_in_a_run_folder_are_not_followed(
    client: Client, tmp_path: Path, runs_folder: Path
) -> None:
    secret = make_run(tmp_path, "secret", **{"data.shards": SECRET})  # type: ignore[arg-type]
    add_line(secret, 1, samples=[SECRET])
    Outcome("failed", reason=SECRET).write(secret.outcome_file)
    write_json_atomic(secret.environment_file, {"device": SECRET})
    for name in ("linked", "pipes"):
        (runs_folder / name).mkdir()
        for path in secret.path.iterdir():
            copy = runs_folder / name / path.name
            copy.symlink_to(path) if name == "linked" else os.mkfifo(copy)
        assert metrics(client, name)["lines"] == []
        answer = client.get(f"/api/runs/{name}")
        assert answer.status_code == 200 and SECRET not in answer.text
    assert SECRET not in client.get("/api/runs").text


@pytest.mark.parametrize(
    ("outcome", "is_claimed", "is_old", "state"),
    [
        ("diverged", False, False, "failed"),
        ("finished", False, True, "finished"),
        (None, True, False, "running"),
        (None, True, True, "stalled"),
        (None, False, False, "running"),
        (None, False, True, "failed"),
        ("stopped", False, False, "stopped"),
    ],
)
def test_the_state_follows_from_lock_outcome_and_silence(
    client: Client, folder: RunFolder, outcome: Any, is_claimed: bool, is_old: bool, state: str
) -> None:
    add_line(folder, 3, loss=2.0)
    if outcome is not None:
        Outcome(outcome, 3, "GroundupError: out of memory on cpu").write(folder.outcome_file)
    if is_old:
        for path in folder.path.iterdir():
            os.utime(path, (LONG_AGO, LONG_AGO))
    with folder.claim(resume=True) if is_claimed else contextlib.nullcontext():
        run = details(client)
        (listed,) = client.get("/api/runs").json()["runs"]
    assert run["status"] == listed["status"] == state
    assert outcome != "diverged" or "out of memory" in run["message"]
    # Reading never locks out a trainer.
    with folder.claim(resume=True):
        assert details(client)["status"] in ("running", "stalled")


def test_thinning_keeps_the_ends_evaluations_and_skipped_steps(
    client: Client, folder: RunFolder
) -> None:
    for step in range(1, 1_001):
        known = {"validation_loss": 2.0} if step == 501 else {}
        add_line(folder, step, loss=1 / step, **known)
    append_json_line(folder.metrics_file, {"step": 1_001, "skipped": True, "reason": "odd"})
    add_line(folder, 1_002, loss=1.0)
    found = metrics(client, limit=101)
    steps = [line["step"] for line in found["lines"]]
    assert steps == sorted(set(steps)) and len(steps) <= 104
    assert {501, 1_001, 1_002} <= set(steps) and found["next"] == 1_002
    rest = metrics(client, limit=100, after=990, version=found["version"])
    assert [line["step"] for line in rest["lines"]] == list(range(991, 1_003))
