"""The page of the runs in a real browser: curves that grow, comparison, and every way to ask."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from groundup.config import load_settings, save_yaml
from groundup.data.prepare import prepare
from groundup.files import append_json_line, write_json_atomic
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runs.metrics_file import cut_metrics
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.reference import train_bpe_reference

END = "<|endoftext|>"
STORIES = END.join(f"The cat number {i} sat on mat {i % 7} and slept." for i in range(400))

# Has its packages loaded and waits for the end of its input, so that nobody waits for them later.
TRAINER = """
import sys
import groundup.cli.train, groundup.training, torch
from groundup.cli.main import main
sys.stdin.read()
sys.exit(main(sys.argv[1:]))
"""

TABS = ["curves", "samples", "settings", "health"]

MakeRun = Callable[..., RunFolder]


@pytest.fixture(scope="module")
def page(start: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server whose runs folder the tests fill and empty again."""
    runs_folder = tmp_path_factory.mktemp("looked-at") / "runs"
    runs_folder.mkdir()
    with start(runs_folder=runs_folder) as running:
        running.runs_folder = runs_folder
        yield running


@pytest.fixture
def runs_folder(page: Any) -> Iterator[Path]:
    yield page.runs_folder
    for path in page.runs_folder.iterdir():
        shutil.rmtree(path)


@pytest.fixture
def make_run(runs_folder: Path) -> MakeRun:
    """`make_run("one", num_lines=20, seed=1)`: a run folder as training would have left it."""

    def make(name: str, num_lines: int = 20, year: int = 2026, **changes: Any) -> RunFolder:
        folder = RunFolder(runs_folder / name)
        folder.path.mkdir()
        started = f"{year}-01-02T03:04:05+00:00"
        write_json_atomic(folder.environment_file, {"device": "a CPU", "started": started})
        save_yaml(folder.config_file, load_settings(RunConfig, None, {"num_steps": 100, **changes}))
        for step in range(1, num_lines + 1):
            add_line(folder, step, num_lines)
        return folder

    return make


def add_line(folder: RunFolder, step: int, num_lines: int = 100) -> None:
    record: dict[str, Any] = {
        "step": step,
        "wall_seconds": step * 30.0,
        "tokens": step * 1000,
        "loss": 5 / step,
        "learning_rate": 0.01 / step,
        "gradient_norm": 1.0,
        "tokens_per_second": 2000.0 + step,
        "mfu": 0.25,
    }
    if step % 5 == 0:
        record |= {"validation_loss": 6 / step, "samples": [f" text of step {step}"]}
        record["task/agreement"] = step / 100
    append_json_line(folder.metrics_file, record)


def look(browser: Any, page: Any, query: str = "") -> None:
    browser.open(f"{page.url}/runs{query}")
    browser.wait(lambda: browser.find("h1").text == "Runs")


def return_to(browser: Any) -> None:
    """Come back from another tab: the page looks at once for what is new."""
    browser.script("document.dispatchEvent(new Event('visibilitychange'))")


def curve(browser: Any, name: str, plot: str = "loss") -> list[float]:
    """The horizontal places of a run's main curve as plotly has drawn it; none yet: empty."""
    found = browser.script(
        "const drawn = document.getElementById('plot-' + arguments[0]);"
        "const trace = drawn?.data?.find((one) => one.name === arguments[1]);"
        "return trace === undefined ? [] : [...trace.x]",
        plot,
        name,
    )
    return list(found)


def chosen(browser: Any) -> list[str]:
    rows = browser.all("#runs-rows tr.chosen .run-name")
    return [row.text for row in rows]


def test_a_run_is_seen_to_train_and_to_stop(
    browser: Any, page: Any, runs_folder: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", TRAINER, "train"]
    flags = f"""
        --name seen --runs-folder {runs_folder} --num-steps 100000 --batch-size 2 --device cpu
        --num-threads 1 --model.vocab-size 280 --model.context-length 16 --model.d-model 16
        --model.num-layers 1 --model.num-heads 2 --model.d-ff 32 --logging.every-steps 5
        --evaluation.every-steps 50 --evaluation.num-windows 2 --samples.every-steps 50
        --samples.max-tokens 8 --checkpoints.every-steps 0
        --data.shards {tmp_path / "shards"} --data.tokenizer {tmp_path / "tokenizer.json"}
    """
    trainer = subprocess.Popen(
        [*command, *flags.split()],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    (tmp_path / "stories.txt").write_text(STORIES, "utf-8")
    vocab, merges = train_bpe_reference(STORIES[:3000], 280, [END])
    tokenizer = Tokenizer(vocab, merges, [END])
    tokenizer.save(tmp_path / "tokenizer.json")
    prepare([tmp_path / "stories.txt"], tokenizer, tmp_path / "shards", validation_fraction=0.1)
    try:
        look(browser, page)
        assert "groundup quickstart" in browser.find("#no-runs").text
        assert trainer.stdin is not None
        trainer.stdin.close()
        metrics_file = runs_folder / "seen" / "metrics.jsonl"
        wait_long(browser, lambda: metrics_file.exists() or trainer.poll() is not None)
        # Nobody touches the page: the run appears by itself, is chosen, and its curve grows.
        wait_long(browser, lambda: len(curve(browser, "seen")) >= 2)
        first = curve(browser, "seen")
        wait_long(browser, lambda: len(curve(browser, "seen")) > len(first))
        assert curve(browser, "seen")[: len(first)] == first
        assert "running" in browser.find(".overview-head").text
        assert "1 training now" in browser.find("#page-note").text
        wait_long(browser, lambda: "validation" in browser.find("#plot-loss-summary").text)
        trainer.send_signal(signal.SIGTERM)
        assert trainer.wait(120) == 128 + signal.SIGTERM
        return_to(browser)
        wait_long(browser, lambda: "stopped" in browser.find(".overview-head").text)
        last_step = json.loads(metrics_file.read_text("utf-8").splitlines()[-1])["step"]
        wait_long(browser, lambda: curve(browser, "seen")[-1] == last_step)
    finally:
        trainer.kill()
        trainer.wait()
    browser.find("#tab-samples").click()
    assert browser.find(".sample-text").text
    browser.find("#tab-health").click()
    assert "No step was skipped" in browser.find(".health-card").text
    assert browser.find(".checkpoints tbody th").text.startswith(f"{last_step:,}"[0])


def wait_long(browser: Any, condition: Callable[[], bool]) -> None:
    """For what another process does meanwhile; the limit is there for a test that fails."""
    for attempt in range(6):
        try:
            browser.wait(condition)
            return
        except AssertionError:
            if attempt == 5:
                raise


def test_two_runs_share_the_plots_and_differ_in_their_settings(
    browser: Any, page: Any, make_run: MakeRun
) -> None:
    make_run("plain", year=2025)
    make_run("other", **{"optimizer.learning_rate": 0.5, "model.d_model": 128})
    look(browser, page, "?run=plain")
    browser.wait(lambda: curve(browser, "plain"))
    browser.find("#runs-rows tr:first-child label").click()
    browser.wait(lambda: curve(browser, "other") and curve(browser, "plain"))
    for plot in ("loss", "speed", "mfu", "gradient", "rate"):
        assert len(curve(browser, "other", plot)) == len(curve(browser, "plain", plot)) == 20
    assert curve(browser, "other", "task-5") == [5, 10, 15, 20]
    assert browser.find("#plot-task-5-title").text == "agreement"
    assert browser.find("#plot-task-5-summary .plot-value").text == "20.0%"
    legend = [item.text for item in browser.all("#plot-loss-summary .plot-run")]
    assert legend == ["plain", "other"]
    colours = browser.script(
        "return document.getElementById('plot-loss').data.map((one) => [one.name, one.line?.color])"
    )
    assert len({colour for _, colour in colours if colour}) == 2
    assert urlsplit(browser.driver.current_url).query == "run=plain&run=other"

    browser.find("#tab-settings").click()
    browser.wait(lambda: browser.all(".settings-table tbody tr"))
    rows = [row.text.split() for row in browser.all(".settings-table tbody tr")]
    assert rows == [["model.d_model", "512", "128"], ["optimizer.learning_rate", "0.001", "0.5"]]
    browser.find(".settings-bar .switch").click()
    browser.wait(lambda: len(browser.all(".settings-table tbody tr")) > 40)

    browser.find("#tab-curves").click()
    browser.find("#runs-rows tr:first-child label").click()
    browser.wait(lambda: not curve(browser, "other"))


def test_the_axis_the_scale_the_smoothing_and_the_theme_can_be_switched(
    browser: Any, page: Any, make_run: MakeRun
) -> None:
    os.utime(make_run("old", year=2020).metrics_file, (1, 1))
    make_run("one", year=2021)
    look(browser, page)
    browser.wait(lambda: len(curve(browser, "one")) == 20)
    # The newest run is chosen.
    assert chosen(browser) == ["one"]
    assert curve(browser, "one") == list(range(1, 21))
    assert "training 0.2500" in browser.find("#plot-loss-summary").text
    assert "validation 0.3000" in browser.find("#plot-loss-summary").text
    assert "0.3000" in browser.find(".tiles").text
    browser.all("[name=x]")[1].click()
    browser.wait(lambda: curve(browser, "one")[-1] == 20_000)
    browser.all("[name=x]")[2].click()
    browser.wait(lambda: curve(browser, "one")[-1] == 10)
    assert "minutes" in loss_layout(browser, "xaxis.title")["text"]
    browser.find("[name=log]").click()
    browser.wait(lambda: loss_layout(browser, "yaxis.type") == "log")
    browser.find("[name=smoothing]").send_keys("\ue010")
    browser.wait(lambda: "0.98" in browser.find(".smoothing output").text)
    browser.wait(
        lambda: (
            browser.script("return document.getElementById('plot-loss').data[0].opacity") == 0.25
        )
    )
    query = urlsplit(browser.driver.current_url).query
    assert query == "run=one&x=wall_seconds&log=1&smoothing=0.98"
    look(browser, page, f"?{query}")
    browser.wait(lambda: loss_layout(browser, "yaxis.type") == "log")
    assert browser.all("[name=x]")[2].is_selected()
    before = loss_layout(browser, "font.color")
    browser.find("#theme-button").click()
    browser.wait(lambda: loss_layout(browser, "font.color") != before)


def test_the_served_run_is_chosen_first(browser: Any, page: Any, make_run: MakeRun) -> None:
    os.utime(make_run("tiny", year=2020).metrics_file, (1, 1))
    make_run("newer")
    look(browser, page)
    browser.wait(lambda: curve(browser, "tiny"))
    assert chosen(browser) == ["tiny"]


def test_a_table_of_runs_fits_and_marks_a_best_of_one_corpus_only(
    browser: Any, page: Any, make_run: MakeRun
) -> None:
    for name, loss in (("a-run-of-stories", 2), ("another-run", 1), ("run-of-the-web", 0)):
        folder = make_run(name, **{"data.shards": "web" if "web" in name else "stories"})
        last = {
            "step": 100,
            "tokens": 10**8,
            "wall_seconds": 20_000,
            "validation_loss": 1e-9 + loss,
        }
        append_json_line(folder.metrics_file, last)
    look(browser, page, "?run=a-run-of-stories&run=another-run")
    assert browser.wait(lambda: browser.find("td.least")).text == "1.0000"
    look(browser, page, "?run=a-run-of-stories&run=another-run&run=run-of-the-web")
    browser.wait(lambda: curve(browser, "run-of-the-web"))
    assert browser.all("td.least") == []
    frame = "const frame = document.querySelector('.overview .table-scroll');"
    browser.find(".overview .table-scroll")
    assert browser.script(frame + "return frame.scrollWidth - frame.clientWidth") == 0


def test_a_finished_run_without_validation_is_not_about_to_be_measured(
    browser: Any, page: Any, make_run: MakeRun
) -> None:
    folder = make_run("done", num_lines=0)
    append_json_line(folder.metrics_file, {"step": 100, "loss": 1.5})
    look(browser, page)
    assert browser.wait(lambda: browser.find(".tile-note")).text == "not measured"


def loss_layout(browser: Any, path: str) -> Any:
    axis, name = path.split(".")
    return browser.script(
        "return document.getElementById('plot-loss').layout?.[arguments[0]][arguments[1]]",
        axis,
        name,
    )


def test_samples_are_read_step_by_step(browser: Any, page: Any, make_run: MakeRun) -> None:
    make_run("one")
    look(browser, page, "?tab=samples")
    browser.wait(lambda: "text of step 20" in browser.find(".sample-text").text)
    assert browser.find(".sample-prompt").text == "Once upon a time"
    browser.find("#sample-step").send_keys("\ue012")
    assert "text of step 15" in browser.find(".sample-text").text
    assert browser.find(".sample-step").text == "step 15"


def test_skipped_steps_and_spikes_are_named_in_the_health(
    browser: Any, page: Any, make_run: MakeRun
) -> None:
    folder = make_run("shaken", num_lines=0)
    for step in range(1, 61):
        append_json_line(folder.metrics_file, {"step": step, "loss": 2.0 + 0.01 * (step % 3)})
    skipped = {"step": 61, "skipped": True, "reason": "the gradient is infinite"}
    append_json_line(folder.metrics_file, skipped)
    append_json_line(folder.metrics_file, {"step": 62, "loss": 20.0})
    make_run("calm", year=2020)
    look(browser, page, "?run=shaken&run=calm&tab=health")
    browser.wait(lambda: len(browser.all(".health-card")) == 2)
    shaken, calm = browser.all(".health-card")
    lists = [one.text for one in shaken.find_elements("css selector", ".check.bad")]
    assert len(lists) == 2
    assert "1 step skipped" in lists[0] and "step 61: the gradient is infinite" in lists[0]
    assert "1 spike in the loss" in lists[1] and "step 62: 20.00 where 2.0" in lists[1]
    assert "No step was skipped" in calm.text and "No spike in the loss" in calm.text


def test_a_resumed_run_is_drawn_anew_and_a_deleted_one_is_said_to_be_gone(
    browser: Any, page: Any, make_run: MakeRun
) -> None:
    folder = make_run("doomed")
    make_run("other")
    look(browser, page, "?run=doomed&run=other")
    browser.wait(lambda: len(curve(browser, "doomed")) == 20)
    cut_metrics(folder.metrics_file, last_step=10)
    for step in (11, 13):
        add_line(folder, step)
    return_to(browser)
    browser.wait(lambda: curve(browser, "doomed") == [*range(1, 12), 13])
    shutil.rmtree(folder.path)
    return_to(browser)
    browser.wait(lambda: "doomed" in browser.find("#problem").text)
    browser.wait(lambda: not curve(browser, "doomed") and curve(browser, "other"))
    assert chosen(browser) == ["other"]


def test_odd_names_are_shown_as_they_are_and_no_other_server_is_asked(
    browser: Any, page: Any, make_run: MakeRun
) -> None:
    odd_names = ["<img src=x onerror=alert(1)>", "<b>é &amp; x", "a&b=c#d%41 +"]
    for name in odd_names:
        make_run(name)
    look(browser, page, "?" + urlencode([("run", name) for name in odd_names]))
    browser.wait(lambda: all(len(curve(browser, name)) == 20 for name in odd_names))
    assert [name.text for name in browser.all("#plot-loss-summary .plot-run")] == odd_names
    assert sorted(chosen(browser)) == sorted(odd_names)
    hover(browser)
    hovered = browser.find("#plot-loss .hoverlayer").text
    assert all(name in hovered for name in odd_names)
    assert browser.all("main img, main b") == []
    assert browser.take_requested_hosts() == {urlsplit(page.url).netloc}


def hover(browser: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    plot = browser.find("#plot-loss .nsewdrag")
    browser.script("arguments[0].scrollIntoView({block: 'center'})", plot)
    ActionChains(browser.driver, duration=0).move_to_element(plot).perform()
    ActionChains(browser.driver, duration=0).move_by_offset(30, 5).perform()
    browser.wait(lambda: browser.all("#plot-loss .hoverlayer text"))


def test_keys_alone_choose_runs_and_views(browser: Any, page: Any, make_run: MakeRun) -> None:
    make_run("first")
    make_run("second", year=2020)
    look(browser, page, "?run=first")
    browser.wait(lambda: curve(browser, "first"))
    browser.script("document.getElementById('runs-filter').focus()")
    browser.press("TAB", "TAB", "TAB", "TAB", "SPACE")
    browser.wait(lambda: chosen(browser) == ["first", "second"])
    browser.press("TAB", "ENTER")
    browser.wait(lambda: chosen(browser) == ["second"])
    browser.script("document.getElementById('tab-curves').focus()")
    browser.press("ARROW_RIGHT", "ARROW_RIGHT")
    assert browser.find("[role=tab][aria-selected=true]").text == "Settings"
    assert browser.find("#panel-settings").is_displayed()
    assert not browser.all("#panel-curves")[0].is_displayed()


def test_every_control_has_a_name_and_no_width_scrolls_sideways(
    browser: Any, page: Any, make_run: MakeRun
) -> None:
    make_run("one")
    long = "a-run-with-a-name-that-is-much-longer-than-anyone-would-like" * 4
    make_run(long)
    look(browser, page, f"?run=one&run={long}")
    browser.wait(lambda: curve(browser, long))
    operable = {"button", "checkbox", "radio", "slider", "tab", "searchbox", "combobox", "link"}
    for tab in TABS:
        browser.find(f"#tab-{tab}").click()
        tree = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        nodes = [node for node in tree if node.get("role", {}).get("value") in operable]
        assert len(nodes) > 12
        assert [node for node in nodes if not node["name"]["value"].strip()] == []
        for width in (360, 768, 1920):
            browser.resize(width, 800)
            assert browser.script("return document.documentElement.scrollWidth") <= width, tab


def test_a_server_that_is_gone_is_said_to_be(browser: Any, start: Any, tmp_path: Path) -> None:
    with start(runs_folder=tmp_path) as running:
        look(browser, running)
        browser.find("#no-runs")
    return_to(browser)
    browser.wait(lambda: "does not answer" in browser.find("#problem").text)
    complaints = browser.take_complaints()
    assert all("ERR_CONNECTION" in line or "ERR_EMPTY" in line for line in complaints)
