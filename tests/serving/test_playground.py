"""The playground in a real browser: what a visitor does, by mouse and by keyboard alone."""

import re
from typing import Any
from urllib.parse import urlsplit

TOKENS = ".output-tokens .token"


def test_a_prompt_is_streamed_and_its_tokens_can_be_looked_at(browser: Any, running: Any) -> None:
    _open(browser, running, max_tokens=40)
    browser.find("#prompt").send_keys("the cat")
    browser.find("#generate").click()
    _wait_until_done(browser)
    text = browser.find(".output-text").text
    assert text.startswith("the cat") and len(text) > len("the cat")

    browser.all("[name=view]")[1].click()
    tokens = browser.script(
        """
        return [...document.querySelectorAll(arguments[0])].map((one) =>
          [one.ariaLabel, one.dataset.level, getComputedStyle(one).backgroundColor])
        """,
        TOKENS,
    )
    assert len(tokens) == 40
    for label, level, _ in tokens:
        # The probability is told to a tenth of a percent, the level is that of the exact one.
        possible = {_level(_percent(label) - 0.06), _level(_percent(label) + 0.06)}
        assert int(level) in possible, label
    colours = {(level, colour) for _, level, colour in tokens}
    assert len(colours) == len({level for level, _ in colours}) >= 3
    assert len({colour for _, colour in colours}) == len(colours)

    browser.all(TOKENS)[3].click()
    panel = browser.find(".inspector")
    assert "Token 4 of 40" in panel.text
    probability = _percent(panel.find_element("css selector", "strong").text)
    assert probability == _percent(tokens[3][0])
    rows = panel.find_elements("css selector", ".alternative")
    assert len(rows) >= 8
    chosen = [row for row in rows if row.get_attribute("data-chosen") == "true"]
    assert len(chosen) == 1 and "chosen" in chosen[0].text
    percents = [_percent(row.text.splitlines()[-1]) for row in rows]
    assert percents == sorted(percents, reverse=True)
    assert sum(percents) <= 100.5


def test_one_token_is_one_token(browser: Any, running: Any) -> None:
    _open(browser, running, max_tokens=1, prompt="a")
    browser.find("#generate").click()
    _wait_until_done(browser)
    results = browser.find(".results").text
    assert "Prompt\n1 token\n" in results and "Generated\n1 token\n" in results
    assert browser.all("#announcer p")[-1].get_attribute("textContent") == "Finished: 1 token."


def test_two_settings_answer_side_by_side(browser: Any, running: Any) -> None:
    _open(browser, running, max_tokens=12)
    browser.find("#compare").click()
    for name, value in [("max_tokens", "9"), ("seed", "5"), ("temperature", "1.9")]:
        box = browser.find(f"#b-{name}")
        box.clear()
        box.send_keys(value)
    browser.find("#prompt").send_keys("the cat")
    browser.find("#generate").click()
    _wait_until_done(browser, num_columns=2)
    first, second = (
        column.find_element("css selector", ".results") for column in _columns(browser)
    )
    assert "Generated\n12 tokens" in first.text and "Generated\n9 tokens" in second.text
    assert "Seed\n5" in first.text and "Seed\n5" in second.text
    left, right = (column.rect for column in _columns(browser))
    assert left["x"] + left["width"] <= right["x"] and left["y"] == right["y"]


def test_the_same_seed_writes_the_same_text_again(browser: Any, running: Any) -> None:
    texts = []
    _open(browser, running, max_tokens=12, prompt="the")
    for seed in ("5", "5", "6"):
        box = browser.find("#a-seed")
        box.clear()
        box.send_keys(seed)
        browser.find("#generate").click()
        browser.wait(lambda seed=seed: f"Seed\n{seed}" in browser.find(".results").text)
        texts.append(browser.find(".output-text").text)
    assert texts[0] == texts[1] != texts[2]


def test_a_stream_is_stopped_in_the_middle_and_its_row_given_free(
    browser: Any, running: Any
) -> None:
    _open(browser, running, max_tokens=4000, temperature=0, view="tokens")
    browser.find("#generate").click()
    browser.wait(lambda: len(browser.all(TOKENS)) > 5)
    browser.find("#stop").click()
    _wait_until_done(browser)
    assert "stopped by you" in browser.find(".results").text
    assert 5 < len(browser.all(TOKENS)) < 4000
    assert browser.find("#generate").is_displayed()
    running.wait_until_idle()


def test_everything_is_done_by_keyboard_alone(browser: Any, running: Any) -> None:
    _open(browser, running, max_tokens=4000, temperature=0, view="tokens")
    browser.press("TAB")
    assert _focused(browser, "className") == "skip-link"
    for _ in range(20):
        browser.press("TAB")
        if _focused(browser, "id") == "prompt":
            break
    browser.press("the cat")
    browser.press("ENTER", control=True)
    browser.wait(lambda: len(browser.all(TOKENS)) > 5)
    browser.press("ESCAPE")
    _wait_until_done(browser)

    for _ in range(40):
        browser.press("TAB")
        if _focused(browser, "role") == "option":
            break
    assert "Token 1 of" in browser.find(".inspector").text
    browser.press("ARROW_RIGHT", "ARROW_RIGHT")
    assert "Token 3 of" in browser.find(".inspector").text
    browser.press("ARROW_LEFT")
    assert "Token 2 of" in browser.find(".inspector").text
    browser.press("ARROW_DOWN", "ARROW_UP")
    browser.press("END")
    count = len(browser.all(TOKENS))
    assert f"Token {count} of {count}" in browser.find(".inspector").text
    assert browser.script("return document.activeElement.matches(':focus-visible')")
    browser.press("HOME")
    assert "Token 1 of" in browser.find(".inspector").text


def test_a_refusal_is_told_in_words_beside_the_button(browser: Any, running: Any) -> None:
    _open(browser, running, temperature=-1)
    browser.find("#generate").click()
    browser.wait(lambda: browser.find("#problem").text)
    alert = browser.find("#problem")
    assert alert.get_attribute("role") == "alert"
    assert "temperature" in alert.text
    assert browser.find("#generate").is_displayed()
    box = browser.find("#a-temperature")
    box.clear()
    box.send_keys("0")
    browser.find("#generate").click()
    _wait_until_done(browser)
    browser.wait(lambda: browser.all("#problem")[0].text == "")


def test_settings_live_in_the_address(browser: Any, running: Any) -> None:
    _open(browser, running, max_tokens=12)
    browser.find("#prompt").send_keys("a & b <i>")
    browser.find("#compare").click()
    box = browser.find("#b-top_k")
    box.send_keys("7")
    browser.wait(lambda: "b-top_k=7" in browser.driver.current_url)
    address = browser.driver.current_url
    browser.open(address)
    assert browser.find("#prompt").get_attribute("value") == "a & b <i>"
    assert browser.find("#b-top_k").get_attribute("value") == "7"
    assert browser.find("#a-max_tokens").get_attribute("value") == "12"
    assert browser.find("#compare").is_selected()


def test_a_server_with_a_token_asks_for_it_once(browser: Any, start: Any) -> None:
    token = "open-sesame-open-sesame"
    with start(tokens=[token]) as guarded:
        browser.open(guarded.url)
        box = browser.find("#server-token")
        box.send_keys("wrong")
        browser.press("ENTER")
        browser.wait(lambda: "refused" in browser.find("dialog").text)
        browser.find("#server-token").send_keys(token)
        browser.press("ENTER")
        browser.wait(lambda: "tiny" in browser.find("#model-note").text)
        browser.find("#a-max_tokens").clear()
        browser.find("#a-max_tokens").send_keys("5")
        browser.find("#generate").click()
        _wait_until_done(browser)
        assert browser.all("dialog") == []
        assert browser.script("return JSON.stringify(localStorage)").find(token) < 0
        browser.script("sessionStorage.clear()")


def test_markup_stays_text_and_no_other_host_is_asked(browser: Any, running: Any) -> None:
    _open(browser, running, max_tokens=3, prompt="<img src=x onerror=alert(1)>")
    browser.find("#generate").click()
    _wait_until_done(browser)
    assert browser.find(".output-text").text.startswith("<img src=x")
    assert browser.all("#columns img") == []
    browser.open(f"{running.url}/#tokenizer?text=%3Cimg+src%3Dx+onerror%3Dalert(1)%3E")
    browser.find(".chip")
    assert browser.all("#tokenizer-view img") == []
    assert browser.take_requested_hosts() - {""} == {urlsplit(running.url).netloc}


def test_nothing_is_wider_than_the_screen(browser: Any, running: Any) -> None:
    for width in (360, 1920):
        browser.resize(width, 800)
        _open(browser, running, max_tokens=16, view="tokens", compare=1, prompt="w" * 200)
        browser.find("#generate").click()
        _wait_until_done(browser, num_columns=2)
        browser.all(TOKENS)[2].click()
        assert _overflow(browser) <= 0
        browser.open(f"{running.url}/#tokenizer?text={'w' * 200}+" + "雨" * 100)
        browser.find(".chip")
        assert _overflow(browser) <= 0


def test_every_control_has_a_name_and_every_id_is_one_of_a_kind(browser: Any, running: Any) -> None:
    _open(browser, running, compare=1)
    browser.find("#b-stop")
    nameless = browser.script(
        """
        return [...document.querySelectorAll("input, textarea, select, button, a, [role=listbox]")]
          .filter((one) => !one.labels?.length && !one.ariaLabel && !one.textContent.trim())
          .map((one) => one.outerHTML)
        """
    )
    assert nameless == []
    ids = browser.script("return [...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
    assert browser.script("return document.documentElement.lang") == "en"
    assert [one.text for one in browser.all("h1") if one.is_displayed()] == ["Playground"]


def test_themes_follow_the_system_until_one_is_chosen_and_contrast_enough(
    browser: Any, running: Any
) -> None:
    theme = "return document.documentElement.dataset.theme"
    surfaces = ["paper", "surface", "sunken"]
    pairs = [(text, under) for text in ("text", "text-muted", "accent") for under in surfaces]
    pairs += [("text-on-accent", "accent"), ("text-on-accent", "accent-strong")]
    pairs += [("accent", "accent-tint"), ("danger", "danger-tint"), ("warning", "warning-tint")]
    pairs += [("text", f"level-{level}") for level in range(5)]
    pairs += [(text, f"hue-{hue}") for text in ("text", "text-muted") for hue in range(4)]
    outlines = [("line-strong", "surface"), ("line-strong", "paper")]
    for scheme in ("dark", "light"):
        _prefer(browser, scheme)
        browser.open(running.url)
        assert browser.script(theme) == scheme
        colours = {name: _colour(browser, name) for pair in pairs + outlines for name in pair}
        poor = [pair for pair in pairs if _contrast(*(colours[name] for name in pair)) < 4.5]
        poor += [pair for pair in outlines if _contrast(*(colours[name] for name in pair)) < 3]
        assert poor == [], scheme
    browser.find("#theme-button").click()
    assert browser.script(theme) == "dark"
    browser.open(running.url)
    assert browser.script(theme) == "dark"


def test_streamed_text_is_announced_by_sentences_not_by_tokens(browser: Any, running: Any) -> None:
    _open(browser, running, max_tokens=40)
    region = browser.all("#announcer")[0]
    assert region.get_attribute("aria-live") == "polite"
    browser.find("#generate").click()
    _wait_until_done(browser)
    messages = browser.wait(
        lambda: [one.get_attribute("textContent") for one in browser.all("#announcer p")][2:]
    )
    assert messages[-1] == "Finished: 40 tokens."
    assert len(browser.all("#announcer p")) <= 6


def test_the_prompts_that_a_run_was_sampled_with_are_offered(browser: Any, start: Any) -> None:
    with start(prompts=("The history of", "In 1969")) as running:
        _open(browser, running)
        browser.wait(lambda: len(browser.all(".column:first-child .examples button")) == 2)
        browser.all(".column:first-child .examples button")[1].click()
        assert browser.find("#prompt").get_attribute("value") == "In 1969"


def _open(browser: Any, running: Any, **state: Any) -> None:
    """The playground with what `state` says in its address; the seed is one that writes on."""
    shared = {"prompt", "view", "compare"}
    state = {"seed": 5, **state}
    words = [f"{name if name in shared else 'a-' + name}={value}" for name, value in state.items()]
    browser.open(f"{running.url}/#playground?{'&'.join(words)}")
    browser.wait(lambda: "tiny" in browser.find("#model-note").text)


def _wait_until_done(browser: Any, num_columns: int = 1) -> None:
    browser.wait(lambda: len(browser.all(".column[data-state=done]")) == num_columns)
    browser.find("#generate")


def _columns(browser: Any) -> list[Any]:
    return [column for column in browser.all(".column") if column.is_displayed()]


def _focused(browser: Any, name: str) -> Any:
    return browser.script("return document.activeElement[arguments[0]]", name)


def _overflow(browser: Any) -> int:
    return int(browser.script("return document.documentElement.scrollWidth - innerWidth"))


def _prefer(browser: Any, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def _percent(text: str) -> float:
    found = re.search(r"(<?)([\d.]+)%", text)
    assert found is not None, text
    return 0.0 if found[1] else float(found[2])


def _level(percent: float) -> int:
    return sum(percent >= least for least in (5, 20, 50, 90))


def _colour(browser: Any, name: str) -> str:
    read = "return getComputedStyle(document.documentElement).getPropertyValue(arguments[0])"
    return str(browser.script(read, f"--{name}"))


def _contrast(first: str, second: str) -> float:
    """The ratio of WCAG between two colours written as #rrggbb."""
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour.strip()[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
