"""Routes other than completions, access control, and metrics."""

import re
from pathlib import Path
from typing import Any

import pytest

from groundup.serving.app import STATIC_FOLDER
from groundup.serving.guards import network_of
from groundup.serving.settings import ServerSettings

from .conftest import TOKEN

DOCS = Path(__file__).parents[2] / "docs"


def read_metrics(running: Any) -> dict[str, float]:
    answer = running.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_errors_have_one_format_and_the_security_headers(running: Any) -> None:
    missing = ("POST /v1/embeddings", "GET /v1/models/other", "GET /api/runs/nothing")
    for request in ("GET /v1/completions", *missing, "GET /static/nothing.js"):
        answer = running.request(*request.split())
        assert answer.status_code == (405 if request == "GET /v1/completions" else 404)
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"


def test_metrics_count_requests_and_tokens(start: Any) -> None:
    with start() as running:
        body = {"prompt": "the cat", "max_tokens": 9, "n": 2, "temperature": 0}
        usage = running.complete(body).json()["usage"]
        running.complete({"n": 0})
        running.get(f"/v1/models/{'x' * 50}")
        running.get("/never/heard/of")
        found = read_metrics(running)
    expected = {
        "generated_tokens_total": 18,
        "prompt_tokens_total": 2 * usage["prompt_tokens"],
        "step_seconds_count": 9,
        "time_to_first_token_seconds_count": 2,
        "queue_depth": 0,
        "running_rows": 0,
        "max_rows": 8,
    }
    for name, value in expected.items():
        assert found[f'groundup_{name}{{model="tiny"}}'] == value, name
    # Labels are routes, whatever paths clients request.
    answered = ("/v1/completions 200", "/v1/completions 400", "/v1/models/{name} 404", "other 404")
    for route, status in map(str.split, answered):
        assert found[f'groundup_http_requests_total{{route="{route}",status="{status}"}}'] == 1


PREFLIGHT = ("access-control-request-method", "POST")
HOSTS = {
    200: "127.0.0.1:80 LOCALHOST:5 [::1]:1",
    403: "127.0.0.1:evil.example localhost:80x evil.example 127.0.0.1.evil.example 192.168.0.7 [",
}


def test_only_local_hosts_and_own_origins_are_accepted(running: Any) -> None:
    for status, hosts in HOSTS.items():
        for host in hosts.split():
            for path in ("/", "/v1/models"):
                answer = running.get(path, headers={"host": host})
                assert answer.status_code == status, host
                assert status == 200 or answer.json()["error"]["code"] == "foreign_host"
    for origin in ("https://evil.example", "null", "http://localhost:1"):
        for method in ("POST", "OPTIONS"):
            sent = [("origin", running.url), ("origin", origin), PREFLIGHT]
            answer = running.request(method, "/v1/completions", headers=sent)
            assert answer.status_code == 403, origin
            assert answer.json()["error"]["code"] == "foreign_origin"
            assert not [name for name in answer.headers if name.startswith("access-control")]
    assert running.get("/health", headers={"origin": running.url}).status_code == 200


def test_the_pages_work_behind_the_guides_proxy(start: Any) -> None:
    proxy = (DOCS / "deployment" / "nginx.conf").read_text()
    name = re.search(r"server_name +(\S+);", proxy)[1]  # type: ignore[index]
    # The proxy passes on the host name, and the Origin unchanged.
    assert "proxy_set_header Host $host;" in proxy and "Origin " not in proxy
    service = (DOCS / "deployment" / "groundup.service").read_text()
    assert f"--public-host {name}" in service
    with start(public_host=name) as running:
        for origin, status in ((f"https://{name}", 200), ("https://evil.example", 403)):
            headers = {"host": name, "origin": origin}
            assert running.get("/v1/models", headers=headers).status_code == status


@pytest.fixture(scope="module")
def locked(start: Any) -> Any:
    with start(tokens=[TOKEN]) as running:
        yield running


WRONG: list[Any] = ["", "Bearer", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN[:-1]}"]
WRONG += [f"Bearer {TOKEN}x", b"Bearer \xff\xfe"]


@pytest.mark.parametrize("values", [[], *([one] for one in WRONG), [f"Bearer {TOKEN}"] * 2])
def test_without_the_token_nothing_is_revealed(locked: Any, values: Any) -> None:
    for path in ("/v1/models", "/metrics", "/api/runs", "/nowhere"):
        answer = locked.get(path, headers=[("authorization", value) for value in values])
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in answer.text


def test_with_the_token_everything_works_and_pages_need_none(locked: Any) -> None:
    headers = {"authorization": f"bearer {TOKEN}"}
    assert locked.get("/v1/models", headers=headers).status_code == 200
    assert locked.get("/nowhere", headers=headers).status_code == 404
    # A browser cannot send a token when it opens a page.
    for path in ("/", "/chat", "/inside", "/runs", "/health", "/static/pages.css"):
        assert locked.get(path).status_code == 200
    assert locked.get("/tokenizer").headers["location"] == "/#tokenizer"
    settings = ServerSettings(tokens=(TOKEN,))
    assert TOKEN not in repr(settings) and TOKEN not in str(settings.model_dump())


SOURCES = sorted(STATIC_FOLDER.glob("*.html")) + sorted(STATIC_FOLDER.glob("*.[jc]s*"))


def test_a_subscriber_with_many_addresses_is_one_client() -> None:
    for address in ("203.0.113.7", "::ffff:203.0.113.7"):
        assert network_of(address) == "203.0.113.7"
    assert network_of("2001:db8::1:2") == "2001:db8::/64"
    assert network_of("fe80::1%eth0") == "fe80::/64"
    assert network_of("not an address") == "not an address"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_files_only_refer_to_own_files_and_never_parse_text_as_markup(source: Path) -> None:
    text = source.read_text(encoding="utf-8")
    files = {path.name for path in STATIC_FOLDER.iterdir()} | {"plotly.min.js"}
    names = re.findall(r'["(]/static/([\w.-]+)', text) + re.findall(r'from "\./([\w.-]+)"', text)
    assert [name for name in names if name not in files] == []
    addresses = re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}/?\S*", text)
    assert [address for address in addresses if "www.w3.org" not in address] == []
    banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    assert re.findall(banned, text) == []
