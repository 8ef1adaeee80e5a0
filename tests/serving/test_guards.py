"""Who may ask: hosts, origins, tokens. Sent by hand where a client would not do it."""

import socket
from typing import Any

import pytest

TOKEN = "sesame-open-the-door-0123456789"


@pytest.mark.parametrize(
    "host", ["127.0.0.1:80", "localhost", "LOCALHOST:5", "[::1]:1", "127.9.9.9"]
)
def test_names_of_this_machine_are_answered(running: Any, host: str) -> None:
    assert running.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "192.168.0.7:8000", "localhost.evil", "", "["],
)
@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/api/runs"])
def test_a_foreign_host_is_refused(running: Any, host: str, path: str) -> None:
    answer = running.get(path, headers={"host": host})
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "foreign_host"


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:1", "file://"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_a_foreign_origin_is_refused(running: Any, origin: str, method: str) -> None:
    headers = {"origin": origin, "access-control-request-method": "POST"}
    answer = running.request(method, "/v1/completions", headers=headers)
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "foreign_origin"
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_its_own_origin_may_ask(running: Any) -> None:
    answer = running.post(
        "/v1/completions",
        json={"prompt": "a", "max_tokens": 1},
        headers={"origin": running.url},
    )
    assert answer.status_code == 200


@pytest.fixture(scope="module")
def locked(start: Any) -> Any:
    with start(tokens=[TOKEN]) as running:
        yield running


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "Bearer",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        TOKEN,
        b"Bearer \xff\xfe",
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/models", "/metrics", "/api/runs", "/openapi.json", "/nowhere"]
)
def test_without_the_token_nothing_is_told(locked: Any, value: Any, path: str) -> None:
    headers = {} if value is None else {"authorization": value}
    answer = locked.get(path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert TOKEN not in answer.text


def test_with_the_token_all_is_as_usual(locked: Any) -> None:
    headers = {"authorization": f"bearer {TOKEN}"}
    assert locked.get("/v1/models", headers=headers).status_code == 200
    assert locked.get("/nowhere", headers=headers).status_code == 404


@pytest.mark.parametrize("path", ["/", "/chat", "/runs", "/health", "/static/shell.js"])
def test_pages_open_without_a_token_since_a_browser_cannot_send_one(locked: Any, path: str) -> None:
    assert locked.get(path).status_code == 200


def test_the_token_shows_in_no_settings_and_no_error(locked: Any) -> None:
    from groundup.serving.settings import ServerSettings

    settings = ServerSettings(tokens=(TOKEN,))
    assert TOKEN not in repr(settings) and TOKEN not in str(settings.model_dump())


def test_two_authorizations_are_none(locked: Any) -> None:
    headers = [("authorization", f"Bearer {TOKEN}"), ("authorization", f"Bearer {TOKEN}")]
    assert locked.get("/v1/models", headers=headers).status_code == 401


@pytest.mark.parametrize("path", ["/", "/runs", "/health", "/nowhere", "/static/shell.js"])
def test_answers_carry_the_security_headers(running: Any, path: str) -> None:
    headers = running.get(path).headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "script-src" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "server" not in headers


def test_a_missing_host_is_refused(running: Any) -> None:
    with socket.create_connection(("127.0.0.1", running.port)) as client:
        client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 403")


def test_no_page_comes_from_elsewhere(running: Any) -> None:
    assert running.get("/docs").status_code == 404
    assert running.get("/redoc").status_code == 404
