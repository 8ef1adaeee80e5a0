"""Reports as readers get them: true, escaped, offline, usable without color or mouse."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from groundup.experiments.ablation import ablation_spec
from groundup.experiments.isoflop import isoflop_spec
from groundup.experiments.report.comparison import compare
from groundup.experiments.report.page import render
from groundup.experiments.spec import base_config
from groundup.experiments.sweep import run_ablation, run_isoflop, run_sweep

VOID = {"meta", "input", "br", "wbr", "link"}
HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(2)> | `*_ \0\ud800 \u202e"
WriteRun = Callable[..., Path]


@pytest.fixture
def seeds(tmp_path: Path, write_run: WriteRun) -> Path:
    """Two batch sizes with three seeds each, and one that diverges."""
    for size, level in ((8, 2.0), (16, 3.0)):
        for seed in range(3):
            losses = [9.0, level + 1, level + seed / 100]
            write_run(tmp_path / "runs" / f"b{size}s{seed}", losses, batch_size=size, seed=seed)
    write_run(tmp_path / "runs" / "wild", [9.0, 1.0, None], batch_size=1)
    return tmp_path / "runs"


class Page(HTMLParser):
    """The tags of a page, which must be balanced, and its text without that of scripts."""

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


def test_runs_of_different_data_are_named_as_such(tmp_path: Path, write_run: WriteRun) -> None:
    write_run(tmp_path / "web", [3.0], "sha256:web")
    write_run(tmp_path / "stories", [1.0], "sha256:stories", "sha256:other")
    report = compare([tmp_path])
    assert "did not all learn from the same data" in report.warnings[0]
    assert "data 1: stories; data 2: web" in report.warnings[0]
    assert "tokenizers differ" in report.warnings[1]
    assert not any(group.is_winner for group in report.groups)
    assert "did not all learn from the same data" in Page(render(report)).text


def test_what_keeps_runs_from_being_compared_is_told(tmp_path: Path, write_run: WriteRun) -> None:
    for name in ("one", "copy"):
        write_run(tmp_path / name, [3.0] * 3, seed=4)
    write_run(tmp_path / "by_heart", [3.0, 2.0, 2.5], batch_size=2)
    write_run(tmp_path / "level", [3.0, 2.0, 2.001], batch_size=3)
    assert compare([tmp_path]).warnings == [
        "batch size 32 holds several runs of the same seed (4); each seed counts once.",
        "The validation loss rose again after its best: by_heart (2.0000, then 2.5000).",
    ]


def test_a_run_that_still_trains_is_named(tmp_path: Path, write_run: WriteRun) -> None:
    if not Path("/proc/locks").exists():
        pytest.skip("the kernel lists no locks here")
    write_run(tmp_path / "runs" / "done", [3.0, 2.0])
    folder = write_run(tmp_path / "runs" / "going", [3.0, 2.0], batch_size=8, num_steps=9)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        report = compare([tmp_path / "runs"])
    finally:
        os.close(lock)
    (warning,) = [warning for warning in report.warnings if "going" in warning]
    assert "Still training" in warning


def test_the_page_says_what_was_run_why_and_what_came_of_it(seeds: Path) -> None:
    report = compare([seeds], title="Batch sizes", why="How small may a batch be?")
    assert report.warnings == ["Diverged, so left out of means and of the ranking: wild."]
    text = Page(render(report)).text
    for told in (
        *("How small may a batch be?", "2.0100 ± 0.0248", "3 seeds: 0, 1, 2", "NVIDIA H200"),
        *("1.0 GB", "there was a fox", "groundup train --name b8s0", "✕ diverged", "★ best"),
        "its loss was no finite number at the end, after 1 at step 2",
    ):
        assert told in text


def test_the_page_needs_no_network(seeds: Path) -> None:
    page = Page(render(compare([seeds])))
    assert not [tag for tag, _ in page.tags if tag in ("link", "img", "iframe")]
    assert not [attributes for tag, attributes in page.tags if "src" in attributes]
    (policy,) = [a["content"] for _, a in page.tags if a.get("http-equiv")]
    assert policy is not None and policy.startswith("default-src 'none'") and "http" not in policy


def test_charts_have_words_and_anchors_are_unique(seeds: Path) -> None:
    page = Page(render(compare([seeds])))
    charts = [a for _, a in page.tags if a.get("class") == "plot-area"]
    assert len(charts) == 5
    assert all(chart["role"] == "img" and chart["aria-label"] for chart in charts)
    identities = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    links = [a["href"] for tag, a in page.tags if tag == "a"]
    assert {str(link).removeprefix("#") for link in links} <= set(identities)


def test_nothing_hostile_becomes_markup(tmp_path: Path, write_run: WriteRun) -> None:
    name = "<b>odd & name<_b> 'quoted' \"twice\""
    folder = write_run(tmp_path / name, [3.0, 2.0], sample=HOSTILE)
    (folder / "config.yaml").write_text(
        json.dumps({"seed": 1, "<i>key</i>": HOSTILE, "samples": {"prompts": ["<u>once</u>"]}})
    )
    write_run(tmp_path / "odd\udcff", [3.0, 2.5])
    report = compare([tmp_path], title=HOSTILE, why=HOSTILE)
    page = render(report)
    page.encode("utf-8")
    parsed = Page(page)
    assert not {tag for tag, _ in parsed.tags} & {"img", "i", "u"}
    assert "<script>alert(1)</script>" in parsed.text
    # Only plotly, the page's own script and the data of charts.
    kinds = [a.get("type") for tag, a in parsed.tags if tag == "script"]
    assert kinds.count(None) == 2 and set(kinds) == {None, "application/json"}


def test_a_report_of_nothing_but_beginnings_is_still_a_page(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.yaml").write_text("")
    report = compare([tmp_path])
    page = render(report)
    assert "There are no metrics yet." in Page(page).text and len(page) < 100_000


def test_many_lines_make_a_small_page(tmp_path: Path, write_run: WriteRun) -> None:
    for number in range(10):
        write_run(tmp_path / f"run{number}", [9.0, 3.0 + number], batch_size=number + 1)
    line = '{{"step": {0}, "tokens": {0}, "wall_seconds": {0}, "loss": {1}}}\n'
    with (tmp_path / "run0" / "metrics.jsonl").open("a") as file:
        file.writelines(line.format(step, 2 + 1 / step) for step in range(3, 20_000))
    page = render(compare([tmp_path])).partition("</main>")[0]
    assert len(page) < 400_000 and "run9" in page


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    """A real browser; without one the test that wants it is skipped."""
    webdriver = pytest.importorskip("selenium.webdriver")
    program, driver_program = shutil.which("chromium"), shutil.which("chromedriver")
    if not (program and driver_program):
        pytest.skip("no Chromium: install chromium and chromium-driver to test the page")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(driver_program)) as started:
        yield started


def test_plotly_draws_what_is_seen_along_any_axis(driver: Any, seeds: Path, tmp_path: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    file = tmp_path / "report.html"
    file.write_text(render(compare([seeds], why="To see.")), encoding="utf-8")
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
        # plotly follows the window after a moment.
        WebDriverWait(driver, 30).until(lambda driver: driver.execute_script(fits))
    assert driver.get_log("browser") == []


def test_values_are_shown_whole(tmp_path: Path, write_run: WriteRun) -> None:
    long = "x" * 200
    write_run(tmp_path / "one", [3.0], data={"shards": long})
    assert long in Page(render(compare([tmp_path / "one"]))).text


def test_a_sweep_brings_its_name_its_reason_and_a_finding(
    make_spec: Any, metrics_only: Any, tmp_path: Path
) -> None:
    spec = make_spec(grid={"optimizer.learning_rate": [0.01, 0.1]}, why="Which rate?")
    run_sweep(spec, tmp_path / "rates", command=metrics_only)
    (tmp_path / "rates" / "finding.txt").write_text("The <b>small</b> one.")
    report = compare([tmp_path / "rates"])
    assert (report.title, report.why) == ("Small", "Which rate?")
    text = Page(render(report)).text
    assert "The <b>small</b> one." in text and "Written by hand" in text
    assert report.figure is not None and report.figure["data"][0]["x"] == [0.01, 0.1]
    assert compare([tmp_path / "rates"], finding="").finding == ""


@pytest.mark.parametrize("kind", ["ablation", "isoflop"])
def test_a_study_is_recomputed_from_its_trials(
    make_spec: Any, metrics_only: Any, tmp_path: Path, kind: str
) -> None:
    base = base_config(make_spec())
    path = tmp_path / "study"
    if kind == "ablation":
        spec = ablation_spec(base, variants=["muon"], learning_rates=[0.01, 0.1])
        run_ablation(spec, path, extra_rates=0, command=metrics_only)
    else:
        spec = isoflop_spec(base, budgets=[1e8, 2e8], widths=[8, 16, 24], learning_rates=[0.01])
        run_isoflop(spec, path, command=metrics_only)
    report = compare([path])
    (study,) = report.studies
    text = Page(render(report)).text
    assert study.title in text and all(table.headers[0] in text for table in study.tables)
    names = [getattr(row[0], "text", row[0]) for row in study.tables[0].rows]
    assert len(names) == (2 if kind == "ablation" else 3)
    # A study that cannot be made of what is there is a note, and its runs are shown without.
    (path / "trials.jsonl").unlink()
    damaged = compare([path])
    assert len(damaged.runs) == len(report.runs)
