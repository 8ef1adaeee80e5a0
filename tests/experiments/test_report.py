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

from groundup.experiments.report.comparison import Report, make_report
from groundup.experiments.report.text import slug

VOID = {"meta", "input", "br", "wbr", "link"}
HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(2)> | `*_ \0\ud800 \u202e"
WriteRun = Callable[..., Path]
HtmlOf = Callable[[Report], str]


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


def test_the_verdict_names_winner_lead_and_whether_it_is_certain(seeds: Path) -> None:
    assert make_report([seeds], title="Batch sizes").verdicts == [
        "batch size 8 has the lowest validation loss: 2.0100 ± 0.0248, 1.0000 below batch size 16. "
        "Their 95% intervals do not overlap.",
    ]


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [
        # Batch size, seed and losses of each run.
        (
            [(8, 0, [9, 2.08]), (8, 1, [9, 3.08]), (16, 0, [9, 2.16]), (16, 1, [9, 3.16])],
            "Their 95% intervals overlap, so the lead may be chance.",
        ),
        (
            [(4, 0, [3]), (8, 0, [3])],
            ", level with r1. Without repeated seeds on both sides, a small lead may be chance.",
        ),
        (
            [(4, 0, [3, 2]), (8, 0, [3, None])],
            "r0 alone has finished, with a validation loss of 2.0000.",
        ),
        ([(4, 0, [3, 2])], "r0 reached a validation loss of 2.0000."),
        ([(4, 0, [3, 2]), (4, 1, [3, 2.2])], ", the mean of 2 seeds."),
    ],
)
def test_the_verdict_claims_no_more_than_is_certain(
    tmp_path: Path,
    write_run: WriteRun,
    runs: list[tuple[int, int, list[float | None]]],
    verdict: str,
) -> None:
    for number, (size, seed, losses) in enumerate(runs):
        write_run(tmp_path / f"r{number}", losses, batch_size=size, seed=seed)
    (told,) = make_report([tmp_path]).verdicts
    assert told.endswith(verdict)


def test_runs_of_different_data_are_named_as_such(
    tmp_path: Path, write_run: WriteRun, html_of: HtmlOf
) -> None:
    write_run(tmp_path / "web", [3.0], "sha256:web")
    write_run(tmp_path / "stories", [1.0], "sha256:stories", "sha256:other")
    report = make_report([tmp_path])
    assert "did not all learn from the same data" in report.warnings[0]
    assert "data 1: stories; data 2: web" in report.warnings[0]
    assert "tokenizers differ" in report.warnings[1]
    assert report.winners == [] and "No winner is named" in report.verdicts[0]
    assert "did not all learn from the same data" in Page(html_of(report)).text


def test_what_keeps_runs_from_being_compared_is_told(tmp_path: Path, write_run: WriteRun) -> None:
    for name in ("one", "copy"):
        write_run(tmp_path / name, [3.0] * 3, seed=4)
    write_run(tmp_path / "by_heart", [3.0, 2.0, 2.5], batch_size=2)
    write_run(tmp_path / "level", [3.0, 2.0, 2.001], batch_size=3)
    assert make_report([tmp_path]).warnings == [
        "batch size 32 holds several runs of the same seed (4); each seed counts once.",
        "The validation loss rose again after its best, by which groups are ranked, while the "
        "training loss fell: by_heart (2.0000, then 2.5000).",
    ]


def test_a_run_that_still_trains_is_named(tmp_path: Path, write_run: WriteRun) -> None:
    if not Path("/proc/locks").exists():
        pytest.skip("the kernel lists no locks here")
    write_run(tmp_path / "runs" / "done", [3.0, 2.0])
    folder = write_run(tmp_path / "runs" / "going", [3.0, 2.0], batch_size=8, num_steps=9)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        report = make_report([tmp_path / "runs"])
    finally:
        os.close(lock)
    (warning,) = [warning for warning in report.warnings if "going" in warning]
    assert "Still training" in warning


def test_the_page_says_what_was_run_why_and_what_came_of_it(seeds: Path, html_of: HtmlOf) -> None:
    report = make_report([seeds], title="Batch sizes", why="How small may a batch be?")
    assert report.warnings == ["Diverged, so left out of means and of the ranking: wild."]
    text = Page(html_of(report)).text
    for told in (
        *("How small may a batch be?", "2.0100 ± 0.0248", "3 seeds: 0, 1, 2", "NVIDIA H200"),
        *("planned", "there was a fox", "groundup train --name b8s0", "✕ diverged", "★ best"),
        "its loss was no finite number at the end, after 1 at step 2",
    ):
        assert told in text


def test_the_page_needs_no_network(seeds: Path, html_of: HtmlOf) -> None:
    page = Page(html_of(make_report([seeds])))
    assert not [tag for tag, _ in page.tags if tag in ("link", "img", "iframe")]
    assert not [attributes for tag, attributes in page.tags if "src" in attributes]
    (policy,) = [a["content"] for _, a in page.tags if a.get("http-equiv")]
    assert policy is not None and policy.startswith("default-src 'none'") and "http" not in policy


def test_charts_have_words_and_anchors_are_unique(seeds: Path, html_of: HtmlOf) -> None:
    page = Page(html_of(make_report([seeds])))
    charts = [a for _, a in page.tags if a.get("class") == "plot-area"]
    assert len(charts) > 6
    assert all(chart["role"] == "img" and chart["aria-label"] for chart in charts)
    axes = {attributes.get("data-axis") for _, attributes in page.tags} - {None}
    assert axes == {"step", "tokens", "wall_seconds"}
    identities = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    links = [a["href"] for tag, a in page.tags if tag == "a"]
    assert {str(link).removeprefix("#") for link in links} <= set(identities)


def test_nothing_hostile_becomes_markup(
    tmp_path: Path, write_run: WriteRun, html_of: HtmlOf
) -> None:
    name = "<b>odd & name<_b> 'quoted' \"twice\""
    folder = write_run(tmp_path / name, [3.0, 2.0], sample=HOSTILE)
    (folder / "config.yaml").write_text(
        json.dumps({"seed": 1, "<i>key</i>": HOSTILE, "samples": {"prompts": ["<u>once</u>"]}})
    )
    write_run(tmp_path / "odd\udcff", [3.0, 2.5])
    report = make_report([tmp_path], title=HOSTILE, why=HOSTILE)
    page = html_of(report)
    page.encode("utf-8")
    parsed = Page(page)
    assert not {tag for tag, _ in parsed.tags} & {"img", "i", "u"}
    assert "<script>alert(1)</script>" in parsed.text
    # Only plotly, the page's own script and the data of charts.
    kinds = [a.get("type") for tag, a in parsed.tags if tag == "script"]
    assert kinds.count(None) == 2 and set(kinds) == {None, "application/json"}


def test_a_report_of_nothing_but_beginnings_is_still_a_page(
    tmp_path: Path, html_of: HtmlOf
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.yaml").write_text("")
    report = make_report([tmp_path])
    assert report.verdicts == ["No run has a loss to compare yet."]
    page = html_of(report)
    assert "There are no metrics yet." in Page(page).text and len(page) < 100_000


def test_many_lines_make_a_small_page(tmp_path: Path, write_run: WriteRun, html_of: HtmlOf) -> None:
    for number in range(10):
        write_run(tmp_path / f"run{number}", [9.0, 3.0 + number], batch_size=number + 1)
    line = '{{"step": {0}, "tokens": {0}, "wall_seconds": {0}, "loss": {1}}}\n'
    with (tmp_path / "run0" / "metrics.jsonl").open("a") as file:
        file.writelines(line.format(step, 2 + 1 / step) for step in range(3, 20_000))
    page = html_of(make_report([tmp_path])).partition("</main>")[0]
    assert len(page) < 400_000 and "run9" in page


@pytest.mark.parametrize(("title", "name"), [("A/B: 2!", "a_b_2"), ("…", "report")])
def test_titles_become_file_names(title: str, name: str) -> None:
    assert slug(title) == name


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


def test_plotly_draws_what_is_seen_and_axes_switch_by_keyboard(
    driver: Any, seeds: Path, tmp_path: Path, html_of: HtmlOf
) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.wait import WebDriverWait

    file = tmp_path / "report.html"
    file.write_text(html_of(make_report([seeds], why="To see.")), encoding="utf-8")
    driver.get(file.as_uri())

    def shown() -> set[str]:
        charts = driver.find_elements(By.CSS_SELECTOR, "#curves > figure.axis")
        seen = [chart for chart in charts if chart.is_displayed()]
        assert all(chart.find_elements(By.CSS_SELECTOR, ".scatterlayer path") for chart in seen)
        return {chart.get_attribute("data-axis") for chart in seen}

    assert shown() == {"step"}
    driver.find_element(By.ID, "axis-step").send_keys(Keys.ARROW_RIGHT)
    assert shown() == {"tokens"}
    root = "document.documentElement"
    fits = f"return {root}.scrollWidth <= {root}.clientWidth"
    for width in (360, 1600):
        driver.set_window_size(width, 900)
        # plotly follows the window after a moment.
        WebDriverWait(driver, 30).until(lambda driver: driver.execute_script(fits))
    assert driver.get_log("browser") == []
