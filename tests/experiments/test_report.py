"""Reports are correct, escaped, offline, and usable without color or mouse."""

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from groundup.experiments.report.charts import learning_curves
from groundup.experiments.report.comparison import compare
from groundup.experiments.report.page import render

VOID = {"meta", "input", "br", "wbr", "link"}
HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(2)> | `*_ \0\ud800 \u202e"
WriteRun = Callable[..., Path]


@pytest.fixture
def seeds(tmp_path: Path, write_run: WriteRun) -> Path:
    """Two batch sizes with three seeds each, and a run that diverges."""
    for size, level in ((8, 2.0), (16, 3.0)):
        for seed in range(3):
            losses = [9.0, level + 1, level + seed / 100]
            write_run(tmp_path / "runs" / f"b{size}s{seed}", losses, batch_size=size, seed=seed)
    write_run(tmp_path / "runs" / "wild", [9.0, 1.0, None], batch_size=1)
    return tmp_path / "runs"


class Page(HTMLParser):
    """The tags of a page, which must be balanced, and its text without scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if "script" not in self.open:
            self.texts.append(data)


def test_the_page_describes_runs_and_results(seeds: Path) -> None:
    report = compare([seeds], title="Batch sizes")
    assert report.warnings == []
    text = Page(render(report)).text
    for words in (
        *("Batch sizes", "2.0100 ± 0.0248", "0, 1, 2", "NVIDIA H200", "1.0 GB", "25.0%"),
        *("--name b8s0", "✕ diverged", "★ best", "6 of 7 finished"),
        *("diverged after step 3: the last loss is not finite", "Settings that differ Runs batch"),
    ):
        assert words in text, words


def test_curves_have_the_color_of_their_group_and_three_axes(
    seeds: Path, tmp_path: Path, write_run: WriteRun
) -> None:
    groups = compare([seeds]).groups
    figure = learning_curves(groups, "validation_loss", "Validation loss")
    assert figure is not None and len(figure["data"]) == 7
    assert len({one["line"]["color"] for one in figure["data"]}) == 3
    assert [one["line"]["dash"] for one in figure["data"]].count("dot") == 1
    assert sum(one["showlegend"] for one in figure["data"]) == 3
    buttons = figure["layout"]["updatemenus"][0]["buttons"]
    axes = {button["label"]: button["args"][0]["x"] for button in buttons}
    assert [xs[0][-1] for xs in axes.values()] == [3, 3 * 8192, 6.0]
    json.dumps(figure, allow_nan=False)
    assert learning_curves(groups, "unheard_of", "Nothing") is None
    # A steep start does not compress the axis, and a long curve is averaged.
    write_run(tmp_path / "long", [90.0, *[3.0 - step / 1000 for step in range(1_439)]])
    figure = learning_curves(compare([tmp_path / "long"]).groups, "validation_loss", "Loss")
    assert figure is not None and figure["layout"]["yaxis"]["range"][1] < 10
    (curve,) = figure["data"]
    assert len(curve["y"]) == 240 and curve["x"][0] == 3.5
    assert curve["y"][0] == pytest.approx((90 + 3 * 5 - 0.01) / 6, rel=1e-4)


def test_the_page_is_offline_and_charts_have_descriptions(seeds: Path) -> None:
    page = Page(render(compare([seeds])))
    assert not [tag for tag, _ in page.tags if tag in ("link", "img", "iframe")]
    assert not [attributes for tag, attributes in page.tags if "src" in attributes]
    (policy,) = [a["content"] for _, a in page.tags if a.get("http-equiv")]
    assert policy is not None and policy.startswith("default-src 'none'") and "http" not in policy
    charts = [a for _, a in page.tags if a.get("class") == "plot-area"]
    assert len(charts) == 4
    assert all(chart["role"] == "img" and chart["aria-label"] for chart in charts)
    identities = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    links = [a["href"] for tag, a in page.tags if tag == "a"]
    assert {str(link).removeprefix("#") for link in links} <= set(identities)


def test_untrusted_text_never_becomes_markup(tmp_path: Path, write_run: WriteRun) -> None:
    name = "<b>odd & name<_b> 'quoted' \"twice\""
    folder = write_run(tmp_path / name, [3.0, 2.0])
    (folder / "config.yaml").write_text(
        json.dumps({"seed": 1, "<i>key</i>": HOSTILE, "samples": {"prompts": ["<u>once</u>"]}})
    )
    write_run(tmp_path / "odd\udcff", [3.0, 2.5])
    report = compare([tmp_path], title=HOSTILE)
    report.why = HOSTILE
    page = render(report)
    page.encode("utf-8")
    parsed = Page(page)
    assert not {tag for tag, _ in parsed.tags} & {"img", "i", "u"}
    assert "<script>alert(1)</script>" in parsed.text
    # Only plotly, the page's own script and the data of charts.
    kinds = [a.get("type") for tag, a in parsed.tags if tag == "script"]
    assert kinds.count(None) == 2 and set(kinds) == {None, "application/json"}


def test_a_report_of_runs_that_just_started_is_a_page(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.yaml").write_text("")
    report = compare([tmp_path])
    page = render(report)
    assert "There are no metrics yet." in Page(page).text and len(page) < 100_000


def test_plotly_draws_the_curves_along_any_axis(driver: Any, seeds: Path, tmp_path: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    file = tmp_path / "report.html"
    file.write_text(render(compare([seeds])), encoding="utf-8")
    driver.get(file.as_uri())
    first = driver.find_element(By.CSS_SELECTOR, "#curves figure")
    assert first.find_elements(By.CSS_SELECTOR, ".scatterlayer path")
    title = first.find_element(By.CSS_SELECTOR, ".xtitle")
    assert title.text == "steps"
    button = first.find_elements(By.CSS_SELECTOR, ".updatemenu-button")[1]
    click = "arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    driver.execute_script(click, button)
    WebDriverWait(driver, 30).until(
        lambda _: first.find_element(By.CSS_SELECTOR, ".xtitle").text == "tokens"
    )
    root = "document.documentElement"
    fits = f"return {root}.scrollWidth <= {root}.clientWidth"
    for width in (360, 1600):
        driver.set_window_size(width, 900)
        # plotly resizes after a moment.
        WebDriverWait(driver, 30).until(lambda driver: driver.execute_script(fits))
    assert driver.get_log("browser") == []
