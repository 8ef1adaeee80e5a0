"""The chat page in a real browser: turns and their tokens, stopping, and what does not fit."""

from collections.abc import Iterator
from typing import Any

import pytest

from groundup.generation import LanguageModel

ANSWER = "[data-role=assistant]"


@pytest.fixture(scope="module")
def answering(start: Any, chat_model: LanguageModel, speaker: Any) -> Iterator[Any]:
    """A server of a model that answers "yes!" to everything, with a context of 64."""
    with start(speaker(chat_model.tokenizer, "yes!<|im_end|>no")) as server:
        yield server


def test_turns_are_answered_and_their_tokens_can_be_looked_at(browser: Any, answering: Any) -> None:
    _open(browser, answering)
    assert browser.find(".site-nav [aria-current=page]").text == "Chat"
    _set(browser, "temperature", "0")
    _ask(browser, "<b>who</b>?", num_answers=1)
    assert [one.text for one in browser.all(".message-text")] == ["<b>who</b>?"]
    assert browser.find(f"{ANSWER} .output-text").text == "yes!"
    # All that was said goes along: the second question is longer by the first turn.
    _ask(browser, "a", num_answers=2)
    browser.all("[name=view]")[1].click()
    first, second = browser.all(f"{ANSWER} .results")
    assert "Ended\nthe text ended" in first.text and "Generated\n4 tokens" in first.text
    assert _num_prompt_tokens(second) > _num_prompt_tokens(first)

    browser.all(f"{ANSWER} .token")[1].click()
    panel = browser.find(".inspector")
    assert "Token 2 of 4" in panel.text
    rows = panel.find_elements("css selector", ".alternative")
    assert len(rows) == 8
    assert [row.get_attribute("data-chosen") for row in rows] == ["true"] + ["false"] * 7
    browser.press("ARROW_RIGHT")
    assert "Token 3 of 4" in browser.find(".inspector").text

    # Of two answers the one is marked that the panel tells of.
    browser.all(f"{ANSWER}")[1].find_elements("css selector", ".token")[0].click()
    outlined = """
      return [...document.querySelectorAll(".token[aria-selected=true]")]
        .map((one) => getComputedStyle(one).outlineStyle)
    """
    assert browser.script(outlined) == ["none", "solid"]

    browser.find("#again").click()
    assert browser.all(".message") == []
    assert "Look at a token" in browser.find(".inspector").text


def test_each_token_stands_among_what_could_have_come(browser: Any, chatting: Any) -> None:
    _open(browser, chatting)
    for name, value in (("temperature", "2"), ("max_tokens", "16"), ("seed", "5")):
        _set(browser, name, value)
    _ask(browser, "the mat?", num_answers=1)
    browser.all("[name=view]")[1].click()
    marks = browser.script(
        """
        const marks = [];
        for (const token of document.querySelectorAll(arguments[0])) {
          token.focus();
          const rows = [...document.querySelectorAll(".inspector .alternative")];
          marks.push(rows.map((row) => row.dataset.chosen));
        }
        return marks
        """,
        f"{ANSWER} .token",
    )
    assert len(marks) == 16
    # Eight likeliest, and behind them the one that was sampled though it is none of them.
    assert {len(one) for one in marks} == {8, 9}
    assert all(one.count("true") == 1 for one in marks)
    assert all(one[8:] in ([], ["true"]) for one in marks)


def test_an_answer_is_stopped_and_what_came_stays(
    browser: Any, start: Any, chat_model: LanguageModel, speaker: Any
) -> None:
    with start(speaker(chat_model.tokenizer, "yes!", context_length=4096)) as endless:
        _open(browser, endless)
        _set(browser, "temperature", "0")
        _set(browser, "max_tokens", "4000")
        browser.find("#message").send_keys("the mat?")
        browser.find("#send").click()
        browser.all("[name=view]")[1].click()
        browser.wait(lambda: len(browser.all(f"{ANSWER} .token")) > 5)
        browser.find("#stop").click()
        browser.find("#send")
        assert "stopped by you" in browser.find(f"{ANSWER} .results").text
        assert 5 < len(browser.all(f"{ANSWER} .token")) < 4000
        assert browser.all("#problem")[0].text == ""
        endless.wait_until_idle()


def test_turns_that_no_longer_fit_are_left_out_and_said_to_be(browser: Any, answering: Any) -> None:
    _open(browser, answering)
    _set(browser, "temperature", "0")
    for number, question in enumerate(("abc" * 4, "def" * 4, "ghi" * 4), start=1):
        _ask(browser, question, num_answers=number)
    forgotten = [one.get_attribute("data-forgotten") for one in browser.all(".message")]
    assert forgotten[:2] == ["true", "true"] and forgotten[4:] == [None, None]
    assert browser.all(f"{ANSWER} .output-text")[2].text == "yes!"
    # A single message that is too long is refused in words and can be shortened.
    browser.find("#message").send_keys("xyz" * 30)
    browser.press("ENTER")
    browser.wait(lambda: "the conversation has" in browser.find("#problem").text)
    assert browser.find("#message").get_attribute("value") == "xyz" * 30
    assert len(browser.all(".message")) == 6


def test_a_system_message_comes_first(browser: Any, answering: Any) -> None:
    _open(browser, answering)
    browser.find("#system").send_keys("cat")
    _ask(browser, "a", num_answers=1)
    browser.find("#again").click()
    browser.find("#system").clear()
    browser.script(
        """
        window.bodies = [];
        const ask = window.fetch;
        window.fetch = (path, options) => {
          if (options?.body) window.bodies.push(JSON.parse(options.body));
          return ask(path, options);
        };
        """
    )
    _ask(browser, "b\nc", num_answers=1)
    browser.find("#system").send_keys("cat")
    _ask(browser, "d", num_answers=2)
    first, second = browser.script("return window.bodies.map((body) => body.messages)")
    assert first == [{"role": "user", "content": "b\nc"}]
    assert [one["role"] for one in second] == ["system", "user", "assistant", "user"]
    assert [one["content"] for one in second] == ["cat", "b\nc", "yes!", "d"]


def test_a_model_without_a_template_says_how_to_get_one(browser: Any, running: Any) -> None:
    browser.open(f"{running.url}/chat")
    hint = browser.find("#no-template")
    assert "groundup tune tiny chats.jsonl" in hint.text
    assert not browser.find("#main").find_element("css selector", "#chat").is_displayed()


def test_nothing_is_wider_than_a_phone_and_everything_has_a_name(
    browser: Any, answering: Any
) -> None:
    browser.resize(360, 800)
    _open(browser, answering)
    _set(browser, "temperature", "0")
    _ask(browser, "w" * 25, num_answers=1)
    browser.all("[name=view]")[1].click()
    browser.all(f"{ANSWER} .token")[1].click()
    width = "return document.documentElement.scrollWidth - innerWidth"
    assert browser.script(width) <= 0
    nameless = browser.script(
        """
        return [...document.querySelectorAll("input, textarea, button, a, [role=listbox]")]
          .filter((one) => !one.labels?.length && !one.ariaLabel && !one.textContent.trim())
          .map((one) => one.outerHTML)
        """
    )
    assert nameless == []
    ids = browser.script("return [...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
    theme, links = browser.find("#theme-button").rect, browser.all(".site-nav a")
    assert links[-1].rect["x"] + links[-1].rect["width"] <= theme["x"]


def _open(browser: Any, server: Any) -> None:
    browser.open(f"{server.url}/chat")
    browser.wait(lambda: "tiny" in browser.find("#model-note").text)
    browser.find(".settings summary").click()


def _set(browser: Any, name: str, value: str) -> None:
    if not browser.all(f"#chat-{name}")[0].is_displayed():
        browser.find(".settings summary").click()
    box = browser.find(f"#chat-{name}")
    box.clear()
    box.send_keys(value)


def _ask(browser: Any, question: str, num_answers: int) -> None:
    box = browser.find("#message")
    box.click()
    *lines, last = question.split("\n")
    for line in lines:
        box.send_keys(line)
        browser.script("arguments[0].value += '\\n'", box)
    box.send_keys(last)
    browser.press("ENTER")
    browser.wait(lambda: len(browser.all(f"{ANSWER}[data-state=done]")) == num_answers)
    browser.find("#send")


def _num_prompt_tokens(results: Any) -> int:
    return int(results.text.split("Prompt\n")[1].split()[0])
