"""The pages in a real browser, one test per page."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from groundup.data.chats import read_conversations
from groundup.files import append_json_line
from groundup.generation import LanguageModel
from groundup.generation.request import Sampler
from groundup.runs.folder import RunFolder
from groundup.serving.models import Source

from .conftest import make_run, wait_for

TOKENS = ".output-tokens button"
ANSWER = "[data-role=assistant]"

FILL = """
let text = "";
for (let size = 1 << 22; size >= 1; ) {
  try { localStorage.filler = text + "x".repeat(size); text += "x".repeat(size); }
  catch { size >>= 1; }
}
"""


class Browser:
    """Headless Chromium, with helpers for the tests."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        # If only the fragment changed, the page would not be reloaded.
        self.driver.get("about:blank")
        self.driver.get(url)

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def find(self, selector: str) -> Any:
        """Wait for a visible element and return the first."""
        return self.wait(
            lambda: next((one for one in self.all(selector) if one.is_displayed()), None)
        )

    def script(self, source: str, *arguments: Any) -> Any:
        return self.driver.execute_script(source, *arguments)

    def wait(self, condition: Callable[[], Any]) -> Any:
        from selenium.common.exceptions import StaleElementReferenceException

        def look() -> Any:
            # The page may update between two calls.
            with contextlib.suppress(StaleElementReferenceException):
                return condition()

        # Polling takes time that the browser needs.
        return wait_for(look, 0.04)

    def press(self, *keys: str) -> None:
        """Send keys to the focused element."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        actions = ActionChains(self.driver, duration=0)
        for key in keys:
            actions.send_keys(getattr(Keys, key, key))
        actions.perform()

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def take_complaints(self) -> list[str]:
        """Console messages since the last call, except for refused requests."""
        lines = [entry["message"] for entry in self.driver.get_log("browser")]
        return [line for line in lines if "the server responded with a status of 4" not in line]


@pytest.fixture(scope="session")
def chromium(driver: Any) -> Browser:
    return Browser(driver)


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The browser with a desktop window; its console must stay empty in every test."""
    chromium.resize(1280, 900)
    chromium.take_complaints()
    yield chromium
    chromium.script("sessionStorage.clear(); localStorage.clear()")
    assert chromium.take_complaints() == []
    chromium.driver.get("about:blank")


def test_playground(browser: Any, running: Any, start: Any, long_model: LanguageModel) -> None:
    # Type, generate, stop, and inspect tokens.
    with start(long_model) as writing:
        open_playground(browser, writing, max_tokens=4000, temperature=0, view="tokens")
        fill(browser, "#prompt", "<img src=x onerror=alert(1)>")
        browser.find("#generate").click()
        browser.wait(lambda: len(browser.all(TOKENS)) > 5)
        browser.press("ESCAPE")
        wait_until_done(browser)
        writing.wait_until_idle()
        assert "stopped by you" in browser.find(".results").text

    # The probabilities of a token and of its alternatives.
    open_playground(browser, running, max_tokens=40, seed=5, view="tokens", prompt="the cat")
    browser.find("#generate").click()
    wait_until_done(browser)
    browser.all(TOKENS)[4].click()
    browser.press("ARROW_LEFT")
    assert "Token 4 of 40" in browser.find(".inspector").text
    assert len(browser.all(".alternative")) >= 8
    assert len(browser.all(".alternative[data-chosen=true]")) == 1
    browser.all("[name=view]")[0].click()
    assert browser.find(".output-text").text.startswith("the cat")

    # Two columns, settings in the URL, and a server error.
    browser.find("#compare").click()
    fill(browser, "#b-max_tokens", "9")
    browser.wait(lambda: "b-max_tokens=9" in browser.driver.current_url)
    browser.open(browser.driver.current_url)
    browser.find("#generate").click()
    wait_until_done(browser, num_columns=2)
    first, second = (one.text for one in browser.all(".results") if one.is_displayed())
    assert "Generated\n40 tokens" in first and "Generated\n9 tokens" in second
    fill(browser, "#a-temperature", "-1")
    browser.find("#generate").click()
    browser.wait(lambda: "temperature" in browser.find("#problem").text)
    check_page(browser)


def test_two_models_side_by_side(
    browser: Any, start: Any, chat_model: LanguageModel, speaker: Any, tmp_path: Path
) -> None:
    """Each column has its own model, with its run's settings; the selection applies to all
    pages."""
    other = speaker(chat_model.tokenizer, "yes!<|im_end|>no")
    other.sampler = Sampler(temperature=0.5, top_p=0.9)
    other.save(tmp_path / "other")
    more = {"other": Source(lambda: other, RunFolder(tmp_path / "other"))}
    with start(chat_model, more=more) as running:
        browser.open(f"{running.url}/#playground?a-temperature=1&a-max_tokens=9&b-max_tokens=9")
        browser.wait(lambda: browser.find("#model-note").text == "2 models")
        browser.find("#compare").click()
        values = [one.get_attribute("value") for one in browser.all("[id$=-temperature]")]
        assert values == ["1", "0.5"]
        browser.find("#as-message").click()
        fill(browser, "#prompt", "who?")
        browser.find("#generate").click()
        wait_until_done(browser, num_columns=2)
        answers = texts(browser, ".columns .output-text")
        assert answers[1] == "yes!" != answers[0]
        # Another model has its own settings, except for those the user changed.
        browser.all(".model-menu option")[1].click()
        fields = [browser.find(f"#a-{name}") for name in ("temperature", "top_p", "max_tokens")]
        assert [one.get_attribute("value") for one in fields] == ["0.5", "0.9", "9"]
        browser.wait(lambda: "a-model" in browser.driver.current_url)
        check_page(browser)
        browser.open(f"{running.url}/inside#prompt=a")
        assert browser.find(".model-menu").get_attribute("value") == "other"
        browser.all(".model-menu option")[0].click()
        browser.find("#heads button")
        browser.open(f"{running.url}/#tokenizer?text=a")
        browser.find(".chip")
        menus = [one for one in browser.all(".model-menu") if one.is_displayed()]
        assert [one.get_attribute("value") for one in menus] == ["tiny"]


def test_chat(
    browser: Any, start: Any, running: Any, chat_model: LanguageModel, speaker: Any
) -> None:
    """A model with a context of 64 that always answers "yes!", and one that generates until it is
    stopped."""
    endless = speaker(chat_model.tokenizer, "yes!", context_length=9_000)
    with start(endless, max_new_tokens=8_000) as writing:
        browser.open(f"{writing.url}/chat")
        browser.find(".settings summary").click()
        fill(browser, "#chat-temperature", "0")
        fill(browser, "#chat-max_tokens", "8000")
        browser.find("#message").send_keys("a")
        browser.press("ENTER")
        browser.wait(lambda: len(browser.find(f"{ANSWER} .output-text").text) > 5)
        assert browser.all(".message-actions .action") == []
        browser.find("#stop").click()
        browser.find("#send")
        assert "stopped by you" in browser.find(f"{ANSWER} .results").text
        writing.wait_until_idle()
        # A partial answer stays, also after a reload.
        [said] = texts(browser, f"{ANSWER} .output-text")
        browser.driver.refresh()
        browser.wait(lambda: texts(browser, f"{ANSWER} .output-text") == [said])
    with start(speaker(chat_model.tokenizer, "yes!<|im_end|>no")) as answering:
        browser.open(f"{answering.url}/chat")
        browser.find(".settings summary").click()
        fill(browser, "#chat-temperature", "0")
        ask(browser, "<b>who</b>?", num_answers=1)
        assert browser.find("[data-role=user] .output-text").text == "<b>who</b>?"
        assert browser.find(f"{ANSWER} .output-text").text == "yes!"
        fill(browser, "#system", "cat")
        ask(browser, "a", num_answers=2)
        assert "end of text" in browser.find(f"{ANSWER} .results").text
        # Turns that no longer fit are dropped; too long a message is rejected.
        fill(browser, "#system", "")
        for number, question in enumerate(("abc" * 4, "def" * 4), start=3):
            ask(browser, question, num_answers=number)
        forgotten = [one.get_attribute("data-forgotten") for one in browser.all(".message")]
        assert forgotten[0] is not None and forgotten[-1] is None
        browser.find("#message").send_keys("xyz" * 30)
        browser.press("ENTER")
        browser.wait(lambda: "the prompt has" in browser.find("#problem").text)
        assert browser.find("#message").get_attribute("value") == "xyz" * 30
        check_page(browser)
        browser.find("#again").click()
        assert browser.all(".message") == []
    browser.open(f"{running.url}/chat")
    assert "groundup tune tiny chats.jsonl" in browser.find("#no-template").text


def test_conversations_are_kept_edited_rated_and_exported(
    browser: Any, start: Any, chat_model: LanguageModel, speaker: Any, tmp_path: Path
) -> None:
    model = speaker(chat_model.tokenizer, "yes!<|im_end|>no")
    model.save(tmp_path / "run")
    source = Source(lambda: model, RunFolder(tmp_path / "run"))

    def press(name: str, number: int = 0) -> None:
        """Click a button under a message, by its name."""
        names = "return arguments[0].ariaLabel ?? arguments[0].textContent"
        buttons = browser.all(".message-actions .action")
        [one for one in buttons if browser.script(names, one) == name][number].click()

    def exported(button: str, name: str) -> list[list[str]]:
        """The conversations in a download, as read by `tune`."""
        options = {"behavior": "allow", "downloadPath": str(tmp_path)}
        browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", options)
        browser.find(button).click()
        wait_for(lambda: (tmp_path / name).exists())
        talks = [one.messages for one in read_conversations([tmp_path / name])]
        (tmp_path / name).unlink()
        return sorted([turn["content"] for turn in talk] for talk in talks)

    def wait_for_answers(*expected: str) -> None:
        browser.wait(lambda: texts(browser, ".message .output-text") == list(expected))
        browser.find("#send")

    with start(model, more={"tiny": source}) as running:
        browser.open(f"{running.url}/chat")
        ask(browser, "who?", num_answers=1)
        press("Regenerate")
        browser.wait(lambda: "2 of 2" in browser.find(ANSWER).text)
        browser.find("#send")
        press("Previous version")
        browser.wait(lambda: "1 of 2" in browser.find(ANSWER).text)
        press("Good answer")
        browser.wait(lambda: browser.all("[aria-pressed=true]"))
        rated = [one.messages for one in read_conversations([tmp_path / "run" / "chats_up.jsonl"])]
        assert [[one["content"] for one in talk] for talk in rated] == [["who?", "yes!"]]
        # Editing a question creates a branch; the first one stays.
        press("Edit")
        fill(browser, "[data-editing] textarea", "what?")
        browser.find("[data-editing] .primary").click()
        wait_for_answers("what?", "yes!")
        press("Previous version")
        wait_for_answers("who?", "yes!")
        press("Edit", 1)
        browser.driver.switch_to.active_element.send_keys(" indeed")
        browser.find("[data-editing] .primary").click()
        wait_for_answers("who?", "yes! indeed")
        # It is restored after a reload, and from the list.
        browser.driver.refresh()
        wait_for_answers("who?", "yes! indeed")
        assert "3 of 3" in browser.find(ANSWER).text
        browser.find("#again").click()
        ask(browser, "<b>", num_answers=1)
        assert texts(browser, ".history-title") == ["<b>", "who?"]
        browser.all(".history-title")[1].click()
        wait_for_answers("who?", "yes! indeed")
        assert exported("#export-all", "chats.jsonl") == [["<b>", "yes!"], ["who?", "yes! indeed"]]
        assert exported("#export", "chat.jsonl") == [["who?", "yes! indeed"]]
        press("Copy", 1)
        browser.wait(lambda: "Copied" in browser.find(ANSWER).text)
        press("Delete", 1)
        wait_for_answers("who?", "yes!")
        browser.find("[aria-label='Delete <b>']").click()
        browser.wait(lambda: texts(browser, ".history-title") == ["who?"])
        # If the storage is full, the page says so; an export has everything.
        browser.find("#again").click()
        ask(browser, "more?", num_answers=1)
        browser.script(FILL)
        ask(browser, "again?", num_answers=2)
        assert "storage is full" in browser.find("#problem").text
        said = ["more?", "yes!", "again?", "yes!"]
        assert exported("#export", "chat.jsonl") == [said]
        browser.script("localStorage.removeItem('filler')")
        press("Good answer", 1)
        browser.wait(lambda: texts(browser, "#problem") == [""])
        check_page(browser)


def test_tokenizer(browser: Any, running: Any, language_model: LanguageModel) -> None:
    text = "Once upon a time the cat"
    browser.open(f"{running.url}/#tokenizer")
    fill(browser, "#tokenizer-text", text)
    ids = language_model.tokenizer.encode(text)
    browser.wait(lambda: texts(browser, ".chip-id") == list(map(str, ids)))
    assert len(browser.all(".pre-token")) == 6
    browser.all('[name="chip-detail"]')[1].click()
    vocab = language_model.tokenizer.vocab
    browser.wait(lambda: browser.find(".chip-bytes"))
    assert texts(browser, ".chip-bytes") == [vocab[id].hex(" ") for id in ids]
    browser.all(".chip")[-1].click()
    merged = texts(browser, ".merge-step mark")
    assert merged and merged[-1] == "␣cat"
    assert len(browser.all(".merge-step")) == 1 + len(merged)
    browser.press("ARROW_LEFT")
    assert browser.script("return document.activeElement.dataset.group") == "4"
    browser.open(f"{running.url}/#tokenizer?text={'w' * 200}+%3Cimg+src%3Dx%3E" + "雨" * 100)
    browser.find(".chip")
    assert browser.all("#tokenizer-view img") == []
    check_page(browser)


def test_inside(browser: Any, running: Any, language_model: LanguageModel) -> None:
    prompt = "the cat sat on <b>"
    ids = language_model.encode_prompt(prompt)
    browser.open(f"{running.url}/inside#{urlencode({'prompt': prompt, 'top_k': 3})}")
    browser.wait(lambda: texts(browser, "#chips .chip-id") == list(map(str, ids)))
    config = language_model.model.config
    assert len(browser.all("#heads button")) == config.num_heads
    assert len(browser.all("#layer option")) == config.num_layers
    assert len(browser.all("#lens tr")) == 1 + 1 + config.num_layers
    assert len(browser.all("#lens td[data-chosen]")) == 1 + config.num_layers
    # Attention of the selected token to itself and earlier ones; another head, another token.
    browser.all("#heads button")[-1].click()
    assert f"head {config.num_heads}" in browser.find("#weights-title").text
    browser.all("#chips button")[1].click()
    assert len(browser.all("#weights li")) == 2
    browser.press("ARROW_LEFT")
    assert texts(browser, "#weights .alternative-probability") == ["100%"]
    # Three candidates are left; the sampled one is the first token of the generated text.
    left = [row.find_elements("css selector", "td") for row in browser.all("#sampling tr")[1:]]
    assert sum(row[-1].text != "–" for row in left) == 3
    marked = browser.all("#sampling tr[aria-current] td")[1].text
    written = language_model.generate(prompt, max_tokens=1, top_k=3)
    assert language_model.tokenizer.decode([int(marked)]) == written
    # Updates while typing; settings in the URL.
    fill(browser, "#prompt", "the mat")
    browser.wait(
        lambda: len(browser.all("#chips button")) == len(language_model.encode_prompt("the mat"))
    )
    assert "top_k=3" in browser.driver.current_url
    assert browser.all("main b") == []
    check_page(browser)


@pytest.fixture(scope="module")
def page(start: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    runs_folder = tmp_path_factory.mktemp("looked-at") / "runs"
    runs_folder.mkdir()
    with start(runs_folder=runs_folder) as running:
        running.runs_folder = runs_folder
        yield running


def add_lines(folder: RunFolder, steps: Iterable[int]) -> None:
    for step in steps:
        record: dict[str, Any] = {"step": step, "wall_seconds": step * 30.0, "tokens": step * 1000}
        record |= {"loss": 5 / step, "learning_rate": 0.01 / step, "tokens_per_second": 2000.0}
        if step % 5 == 0:
            record |= {"validation_loss": 6 / step, "samples": [f" text of step {step}"]}
            record |= {"task/agreement": step / 100, "bits_per_byte": 3 / step}
        append_json_line(folder.metrics_file, record)


def test_runs(browser: Any, page: Any) -> None:
    browser.open(f"{page.url}/runs")
    assert "groundup quickstart" in browser.find("#no-runs").text
    # A run appears and is selected; its curve grows, is truncated and redrawn.
    folder = make_run(page.runs_folder, "<b>é &amp; x", year=2025)
    add_lines(folder, range(1, 21))
    odd = folder.path.name
    browser.wait(lambda: curve(browser, odd) == list(range(1, 21)))
    add_lines(folder, [21])
    look_again(browser)
    browser.wait(lambda: curve(browser, odd)[-1] == 21)
    folder.cut_metrics(last_step=10)
    append_json_line(folder.metrics_file, {"step": 11, "skipped": True, "reason": "infinite"})
    add_lines(folder, [13])
    look_again(browser)
    browser.wait(lambda: curve(browser, odd) == [*range(1, 11), 13])

    # Two runs in the same plots; names are never parsed as markup.
    changes: Any = {"optimizer.learning_rate": 0.5}
    other = make_run(page.runs_folder, "other", **changes)
    add_lines(other, range(1, 21))
    query = urlencode([("run", odd), ("run", "other")])
    browser.open(f"{page.url}/runs?{query}")
    browser.wait(lambda: curve(browser, odd) and curve(browser, "other"))
    assert texts(browser, "#plot-loss-summary .plot-run") == [odd, "other"]
    assert len(curve(browser, "other", "rate")) == 20
    assert curve(browser, "other", "task-5") == [5, 10, 15, 20]
    browser.all("[name=x]")[2].click()
    browser.wait(lambda: curve(browser, "other")[-1] == 10)
    assert "x=wall_seconds" in browser.driver.current_url

    # A table of results, health and settings; samples by step.
    browser.all("[name=tab]")[1].click()
    rows = browser.wait(lambda: table(browser))
    assert rows["Validation loss"] == ["0.6000", "0.3000"]
    assert rows["Bits per byte"] == ["0.3000", "0.1500"]
    assert rows["Skipped steps"] == ["1 (step 11: infinite)", "none"]
    assert rows["optimizer.learning_rate"][1] == "0.5" and rows["model.d_model"]
    # Three runs side by side fit on a phone.
    add_lines(make_run(page.runs_folder, "third"), range(1, 11))
    look_again(browser)
    browser.resize(390, 800)
    added = browser.find(".run-check:not(:checked)")
    added.click()
    browser.wait(lambda: len(table(browser)["Tokens"]) == 3)
    widths = "const box = document.querySelector('.table-scroll');"
    assert browser.script(f"{widths} return box.scrollWidth <= box.clientWidth")
    added.click()
    browser.resize(1280, 900)
    browser.all("[name=tab]")[2].click()
    browser.wait(lambda: "text of step 20" in texts(browser, ".sample-text")[1])
    assert browser.all("main img, main b") == []
    check_page(browser)

    # A deleted run and a stopped server are reported.
    shutil.rmtree(other.path)
    look_again(browser)
    browser.wait(lambda: "other" in browser.find("#problem").text)
    assert texts(browser, "#runs-rows tr.chosen .run-name") == [odd]


def check_page(browser: Any) -> None:
    """The page fits the screen, every control has a name, and the theme changes."""
    for width in (360, 768, 1920):
        browser.resize(width, 800)
        assert browser.script("return document.documentElement.scrollWidth") <= width
    nodes = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    operable = {"button", "checkbox", "radio", "slider", "searchbox", "textbox", "link", "switch"}
    nodes = [node for node in nodes if node.get("role", {}).get("value") in operable]
    assert len(nodes) > 5
    assert [node for node in nodes if not node["name"]["value"].strip()] == []
    ids = browser.script("return [...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
    before = browser.script("return getComputedStyle(document.body).color")
    browser.find("#theme-button").click()
    assert browser.script("return getComputedStyle(document.body).color") != before


def open_playground(browser: Any, running: Any, **state: Any) -> None:
    shared = {"prompt", "view"}
    words = [f"{name if name in shared else 'a-' + name}={value}" for name, value in state.items()]
    browser.open(f"{running.url}/#playground?{'&'.join(words)}")
    browser.wait(lambda: "tiny" in browser.find("#model-note").text)


def wait_until_done(browser: Any, num_columns: int = 1) -> None:
    browser.wait(lambda: len(browser.all(".column[data-state=done]")) == num_columns)
    browser.find("#generate")


def fill(browser: Any, selector: str, text: str) -> None:
    box = browser.find(selector)
    box.clear()
    box.send_keys(text)


def ask(browser: Any, question: str, num_answers: int) -> None:
    browser.find("#message").send_keys(question)
    browser.press("ENTER")
    browser.wait(lambda: len(browser.all(f"{ANSWER}[data-state=done]")) == num_answers)
    browser.find("#send")


def look_again(browser: Any) -> None:
    """Simulate returning from another tab: the page updates immediately."""
    browser.script("document.dispatchEvent(new Event('visibilitychange'))")


def curve(browser: Any, name: str, plot: str = "loss") -> list[float]:
    """The x values of a run's main curve as drawn by plotly; empty if there is none."""
    found = browser.script(
        "const drawn = document.getElementById('plot-' + arguments[0]);"
        "const trace = drawn?.data?.find((one) => one.name === arguments[1]);"
        "return trace === undefined ? [] : [...trace.x]",
        plot,
        name,
    )
    return list(found)


def table(browser: Any) -> dict[str, list[str]]:
    rows = browser.script(
        "return JSON.stringify([...document.querySelectorAll('.run-table tbody tr')]"
        ".map((row) => [...row.children].map((cell) => cell.textContent)))"
    )
    return {name: values for name, *values in json.loads(rows)}


def texts(browser: Any, selector: str) -> list[str]:
    source = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
    return list(browser.script(source, selector))
