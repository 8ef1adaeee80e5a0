"""The files of the pages: all that is referred to is served, and nothing else is."""

import dataclasses
import re
from typing import Any

import pytest

from groundup.generation.request import GenerationSettings
from groundup.serving.server import STATIC_FOLDER

SOURCES = sorted(
    path for path in STATIC_FOLDER.iterdir() if path.suffix in {".html", ".js", ".css"}
)


@pytest.mark.parametrize("path", ["/", "/chat", "/runs"])
def test_a_page_is_html_that_holds_no_script_or_style_of_its_own(running: Any, path: str) -> None:
    answer = running.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert re.findall(r"<script(?![^>]*\bsrc=)", answer.text) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=", answer.text) == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_whatever_a_file_refers_to_is_served_here(source: Any) -> None:
    text = source.read_text(encoding="utf-8")
    files = {path.name for path in STATIC_FOLDER.iterdir()} | {"plotly.min.js"}
    names = re.findall(r'["(]/static/([\w.-]+)', text) + re.findall(r'from "\./([\w.-]+)"', text)
    assert [name for name in names if name not in files] == []
    addresses = re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}/?\S*", text)
    assert [address for address in addresses if "www.w3.org" not in address] == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_no_file_makes_markup_of_text(source: Any) -> None:
    banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    assert re.findall(banned, source.read_text(encoding="utf-8")) == []


def test_the_playground_begins_with_the_settings_of_generate() -> None:
    text = (STATIC_FOLDER / "settings.js").read_text("utf-8")
    initial = dict(re.findall(r'name: "(\w+)",\s+label: "[^"]+",\s+initial: "([^"]*)"', text))
    # What a field says when it is off; a seed is taken anew each time.
    off = {"min_p": "0", "repetition_penalty": "1", "top_k": "", "stop": "", "seed": ""}
    settings = {field.name: field.default for field in dataclasses.fields(GenerationSettings)}
    numbers = {name: f"{settings[name]:g}" for name in ("temperature", "top_p", "max_tokens")}
    assert initial == {**off, **numbers}
    assert all(settings[name] in (None, (), 0) for name in off)


def test_an_unchanged_file_is_not_sent_again(running: Any) -> None:
    first = running.get("/static/pages.css")
    assert first.headers["cache-control"] == "no-cache"
    again = running.get(str(first.url), headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_plots_are_drawn_by_the_installed_plotly(running: Any) -> None:
    with running.stream("GET", "/static/plotly.min.js") as answer:
        assert answer.status_code == 200
        assert int(answer.headers["content-length"]) > 1_000_000
