"""Reports as readers get them: true, escaped, offline, usable without script, colour or mouse."""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from groundup.config import load_settings, save_yaml
from groundup.experiments.report.contents import Report, make_report
from groundup.experiments.report.html_page import render_html
from groundup.experiments.report.markdown_page import render_markdown, slug
from groundup.runs.config import RunConfig

VOID = {"meta", "input", "br", "wbr", "path", "rect", "circle", "link"}
HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(2)> | `*_ \0\ud800 \u202e"


def write_run(
    folder: Path,
    losses: list[float | None],
    data: str = "sha256:aa",
    tokenizer: str = "sha256:tt",
    sample: str = " there was a fox.",
    **settings: Any,
) -> Path:
    folder.mkdir(parents=True)
    overrides = {"num_steps": len(losses), "device": "cuda", **settings}
    save_yaml(folder / "config.yaml", load_settings(RunConfig, None, overrides))
    environment = {
        "device": "NVIDIA H200",
        "torch": "2.13.0",
        "data": {"content": data, "tokenizer": tokenizer},
        "command": ["/x/groundup/__main__.py", "train", "--name", folder.name],
    }
    (folder / "environment.json").write_text(json.dumps(environment))
    lines = []
    for step, loss in enumerate(losses, start=1):
        record: dict[str, Any] = {"step": step, "wall_seconds": 2.0 * step, "tokens": 8192 * step}
        record |= {
            "loss": loss,
            "validation_loss": loss,
            "bits_per_byte": loss,
            "samples": [sample],
        }
        record |= {"tokens_per_second": 4096.0, "mfu": 0.25, "memory_bytes": 10**9}
        lines.append(json.dumps(record) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture
def seeds(tmp_path: Path) -> Path:
    """Two batch sizes with three seeds each, and one that diverges."""
    for size, level in ((8, 2.0), (16, 3.0)):
        for seed in range(3):
            losses = [9.0, level + 1, level + seed / 100]
            write_run(tmp_path / "runs" / f"b{size}s{seed}", losses, batch_size=size, seed=seed)
    write_run(tmp_path / "runs" / "wild", [9.0, 1.0, None], batch_size=1)
    return tmp_path / "runs"


class Page(HTMLParser):
    """The tags of a page, which must be balanced, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def page_of(report: Report) -> Page:
    return Page(render_html(report))


def test_a_run_that_was_stopped_does_not_make_the_others_cheaper(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "done", [4.0, 3.0, 2.0, 1.0], seed=0)
    write_run(tmp_path / "runs" / "begun", [9.0], seed=1, num_steps=4)
    report = make_report([tmp_path / "runs"])
    (text,) = (text for name, text in render_markdown(report).items() if name.endswith(".md"))
    assert "| 8 s (" in text.partition("## Cost")[2].partition("## ")[0]
    assert ">8 s<" in render_html(report).partition('id="cost"')[2]


def test_the_verdict_names_winner_lead_and_whether_it_is_certain(seeds: Path) -> None:
    report = make_report([seeds], title="Batch sizes")
    assert report.verdicts == (
        "batch size 8 has the lowest validation loss: 2.0100 ± 0.0248, 1.0000 below batch size 16. "
        "Their 95% intervals do not overlap.",
    )


def test_overlapping_intervals_are_no_certain_win(tmp_path: Path) -> None:
    for size in (8, 16):
        for seed in range(2):
            losses = [9.0, 2.0 + seed + size / 100]
            write_run(tmp_path / f"b{size}s{seed}", losses, batch_size=size, seed=seed)
    report = make_report([tmp_path])
    assert "intervals overlap, so the lead may be chance" in report.verdicts[0]
    assert "not told apart from the best" in page_of(report).text


def test_divergence_is_marked_by_words_and_signs(seeds: Path) -> None:
    report = make_report([seeds])
    assert report.warnings == ("Diverged, so left out of means and of the ranking: wild.",)
    text = page_of(report).text
    assert "✕ diverged" in text and "★ best" in text
    assert "best loss 1 at step 2, at the end no finite number" in text


def test_a_seed_that_was_run_twice_is_named(tmp_path: Path) -> None:
    for name in ("one", "copy"):
        write_run(tmp_path / name, [3.0], seed=4)
    assert make_report([tmp_path]).warnings == (
        "copy holds several runs of the same seed (4); each seed counts once.",
    )


def test_equal_losses_are_level(tmp_path: Path) -> None:
    for size in (4, 8):
        write_run(tmp_path / f"b{size}", [3.0], batch_size=size)
    assert "3.0000, level with b8." in make_report([tmp_path]).verdicts[0]


def test_one_that_finished_where_all_others_diverged_is_no_winner(tmp_path: Path) -> None:
    write_run(tmp_path / "calm", [3.0, 2.0])
    write_run(tmp_path / "wild", [3.0, None], batch_size=8)
    report = make_report([tmp_path])
    assert report.winners == []
    assert report.verdicts == ("calm alone has finished, with a validation loss of 2.0000.",)


def test_runs_of_different_data_are_named_as_such(tmp_path: Path) -> None:
    write_run(tmp_path / "web", [3.0], "sha256:web")
    write_run(tmp_path / "stories", [1.0], "sha256:stories", "sha256:other")
    report = make_report([tmp_path])
    assert "did not all learn from the same data" in report.warnings[0]
    assert "data A: stories; data B: web" in report.warnings[0]
    assert "tokenizers differ" in report.warnings[1]
    assert report.winners == []
    assert "No winner is named" in report.verdicts[0]
    assert "did not all learn from the same data" in page_of(report).text


def test_the_page_says_what_was_run_and_why(seeds: Path) -> None:
    report = make_report([seeds], title="Batch sizes", why="How small may a batch be?")
    text = page_of(report).text
    assert "How small may a batch be?" in text
    for told in (
        "2.0100 ± 0.0248",
        "3 seeds: 0, 1, 2",
        "NVIDIA H200",
        "planned",
        "there was a fox",
    ):
        assert told in text
    assert "groundup train --name b8s0" in text


def test_the_page_needs_no_network_and_no_script(seeds: Path) -> None:
    page = render_html(make_report([seeds]))
    parsed = Page(page)
    assert not [tag for tag, _ in parsed.tags if tag in ("script", "link", "img", "iframe")]
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert "url(" not in re.sub(r"url\(#plot-[\w-]+\)", "", page)
    assert "default-src 'none'" in page


def test_every_axis_is_in_the_page_and_can_be_chosen(seeds: Path) -> None:
    parsed = page_of(make_report([seeds]))
    axes = {attributes.get("data-axis") for _, attributes in parsed.tags} - {None}
    assert axes == {"step", "tokens", "wall_seconds"}
    radios = [attributes for tag, attributes in parsed.tags if tag == "input"]
    assert [radio["id"] for radio in radios] == [f"axis-{axis}" for axis in AXES_IN_ORDER]
    assert all(radio["type"] == "radio" and radio["name"] == "axis" for radio in radios)


AXES_IN_ORDER = ["step", "tokens", "wall_seconds"]


def test_drawings_have_words_and_identities_are_unique(seeds: Path) -> None:
    parsed = page_of(make_report([seeds]))
    drawings = [a for tag, a in parsed.tags if tag == "svg" and a.get("aria-hidden") != "true"]
    assert all(drawing["role"] == "img" and drawing["aria-label"] for drawing in drawings)
    identities = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    links = [a["href"] for tag, a in parsed.tags if tag == "a"]
    assert {str(link).removeprefix("#") for link in links} <= set(identities)


def test_nothing_hostile_becomes_markup(tmp_path: Path) -> None:
    name = "<b>odd & name</b> 'quoted' \"twice\""
    folder = write_run(tmp_path / name.replace("/", "_"), [3.0, 2.0], sample=HOSTILE)
    (folder / "config.yaml").write_text(
        json.dumps({"seed": 1, "<i>key</i>": HOSTILE, "samples": {"prompts": ["<u>once</u>"]}})
    )
    write_run(tmp_path / "plain", [3.0, 2.5])
    report = make_report([tmp_path], title=HOSTILE, why=HOSTILE)
    page = render_html(report)
    page.encode("utf-8")
    parsed = Page(page)
    assert not {tag for tag, _ in parsed.tags} & {"script", "img", "i", "u"}
    assert "<script>alert(1)</script>" in parsed.text
    for path, text in render_markdown(report).items():
        text.encode("utf-8")
        if path.endswith(".svg"):
            ElementTree.fromstring(text)


@pytest.mark.skipif(not Path("/proc").exists(), reason="file names are text here")
def test_names_that_are_no_text_can_be_written(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [3.0])
    odd = tmp_path / "odd\udcff"
    folder.rename(odd)
    report = make_report([odd])
    render_html(report).encode("utf-8")
    for text in render_markdown(report).values():
        text.encode("utf-8")


def test_a_report_of_nothing_but_beginnings_is_still_a_page(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.yaml").write_text("")
    report = make_report([tmp_path])
    assert report.verdicts == ("No run has a loss to compare yet.",)
    assert "There are no figures to draw yet." in page_of(report).text
    assert "no figures yet" in render_markdown(report)["new.md"]


def test_many_runs_and_many_lines_make_a_small_page(tmp_path: Path) -> None:
    for number in range(30):
        write_run(tmp_path / f"run{number}", [9.0, 3.0 + number], batch_size=number + 1)
    line = '{{"step": {0}, "tokens": {0}, "wall_seconds": {0}, "loss": {1}}}\n'
    with (tmp_path / "run0" / "metrics.jsonl").open("a") as file:
        file.writelines(line.format(step, 2 + 1 / step) for step in range(3, 60_000))
    page = render_html(make_report([tmp_path]))
    assert len(page) < 3_000_000
    assert "run29" in Page(page).text


def test_only_what_is_off_the_usual_value_is_marked(tmp_path: Path) -> None:
    for size in (4, 8):
        for rate in (0.1, 0.2):
            settings = {"batch_size": size, "optimizer": {"learning_rate": rate}}
            z_loss = 0.5 if (size, rate) == (8, 0.2) else 0.0
            write_run(tmp_path / f"b{size}r{rate}", [3.0], z_loss=z_loss, **settings)
    page = render_markdown(make_report([tmp_path], title="x"))["x.md"]
    section = page.partition("## Settings that differ")[2].partition("\n## ")[0]
    assert re.findall(r"\*\*(.*?)\*\*", section) == ["0.5"]


def test_markdown_has_its_drawings_beside_it(seeds: Path) -> None:
    files = render_markdown(make_report([seeds], title="Batch sizes!", why="To see."))
    page = files.pop("batch_sizes.md")
    named = re.findall(r"!\[.*?\]\((.*?)\)", page)
    assert sorted(named) == sorted(files)
    assert len(named) == 7
    for drawing in files.values():
        assert ElementTree.fromstring(drawing).tag.endswith("svg")
    assert "| batch size 8 | **2.0100 ± 0.0248** ★ best |" in page
    assert "✕ diverged" in page
    assert "```text\nOnce upon a time there was a fox.\n```" in page


def test_every_row_of_a_markdown_table_has_the_same_width(seeds: Path) -> None:
    write_run(seeds / "a|b", [3.0], batch_size=2)
    page = render_markdown(make_report([seeds], title="x"))["x.md"]
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        rows = table.splitlines()
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1


@pytest.mark.parametrize(("title", "name"), [("A/B: 2!", "a_b_2"), ("…", "report")])
def test_titles_become_file_names(title: str, name: str) -> None:
    assert slug(title) == name


def test_both_pages_set_the_plan_beside_what_was_measured(seeds: Path) -> None:
    report = make_report([seeds], title="Runs")
    page, files = render_html(report), render_markdown(report)
    assert "<small>planned " in page
    rows = [line for line in files["runs.md"].splitlines() if "| 1 GB (" in line]
    assert len(rows) == len(report.groups)


def test_both_pages_show_settings_and_environment(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / "runs" / f"small{seed}", [3.0], batch_size=8, seed=seed)
    old = write_run(tmp_path / "runs" / "large", [3.0], batch_size=16)
    environment = json.loads((old / "environment.json").read_text("utf-8"))
    (old / "environment.json").write_text(json.dumps({**environment, "torch": "2.6.0"}))
    report = make_report([tmp_path / "runs"], title="Runs", why="To see.")
    page, markdown = render_html(report), render_markdown(report)["runs.md"]
    for text in (page, markdown):
        assert "To see." in text
        assert "batch_size" in text.replace("\\_", "_")
        assert "2.13.0" in text and "2.6.0" in text
    assert "What differs" in page


def test_a_run_that_still_trains_is_named(tmp_path: Path) -> None:
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
    assert "training" in warning
    assert warning in " ".join(page_of(report).texts)


def test_data_that_is_not_known_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "known", [3.0])
    folder = write_run(tmp_path / "runs" / "bare", [2.0], batch_size=8)
    (folder / "environment.json").unlink()
    warnings = make_report([tmp_path / "runs"]).warnings
    assert any("bare" in warning and "data" in warning for warning in warnings)


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


def test_axes_switch_by_keyboard_and_nothing_overflows(
    driver: Any, seeds: Path, tmp_path: Path
) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    file = tmp_path / "report.html"
    file.write_text(render_html(make_report([seeds], why="To see.")), encoding="utf-8")
    driver.get(file.as_uri())

    def shown() -> set[str]:
        charts = driver.find_elements(By.CSS_SELECTOR, ".curves > figure .axis")
        return {chart.get_attribute("data-axis") for chart in charts if chart.is_displayed()}

    assert shown() == {"step"}
    driver.find_element(By.ID, "axis-step").send_keys(Keys.ARROW_RIGHT)
    assert shown() == {"tokens"}
    for width in (360, 800, 1600):
        driver.set_window_size(width, 900)
        size = driver.execute_script(
            "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert size[0] <= size[1]
    assert driver.get_log("browser") == []
