"""`groundup generate` on a run that was trained here: its text, and what bad input gets."""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from groundup.cli.main import main
from groundup.generation import Engine, LanguageModel
from groundup.generation.request import NewToken


@pytest.fixture(autouse=True)
def in_the_folder(repository: Path, folder_of_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # For processes that are started from the new folder.
    monkeypatch.setenv("PYTHONPATH", str(repository / "src"))
    monkeypatch.chdir(folder_of_run)


def records(shell: Any, *words: str) -> list[dict[str, Any]]:
    lines = shell("generate", "small", *words, "--json").splitlines()
    return [json.loads(line) for line in lines]


TEMPLATE = "{{ messages[0].content }}: "


class Screen(io.StringIO):
    """A standard output that shows what was written when it is flushed, as a terminal does."""

    shown = ""

    def flush(self) -> None:
        self.shown = self.getvalue()


def test_a_text_is_shown_while_it_is_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    step = Engine.step
    shown_before_steps: list[str] = []

    def step_and_note(engine: Engine) -> list[tuple[int, NewToken]]:
        shown_before_steps.append(screen.shown)
        return step(engine)

    monkeypatch.setattr(Engine, "step", step_and_note)
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["generate", "small", "--prompt", "The cat", "--max-tokens", "12"]) == 0
    whole = screen.getvalue()
    assert whole.endswith("\n") and screen.shown == whole
    shown = [text for text in shown_before_steps if text]
    assert all(whole.startswith(text) and text != whole for text in shown)
    # A token may end within a character, which waits for its rest.
    assert len(set(shown)) >= 4


def test_samples_are_told_apart_and_each_has_its_seed(shell: Any) -> None:
    words = ("--prompt", "One", "--max-tokens", "6")
    page = shell("generate", "small", *words, "--num-samples", "3", "--seed", "1")
    parts = page.split("\n\n=== ")
    assert len(parts) == 3
    for seed, part in enumerate(parts, start=1):
        alone = shell("generate", "small", *words, "--seed", str(seed))
        assert part.strip("= \n") == f"{seed} of 3, seed {seed} ===\n{alone}".strip()


def test_prompts_come_from_a_file_or_standard_input(
    shell: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = "The cat\n\nA dog\x0c ☃\r\n"
    (tmp_path / "prompts.txt").write_text(lines, encoding="utf-8")
    words = ("--max-tokens", "5", "--num-samples", "2")
    by_file = records(shell, "--prompts", str(tmp_path / "prompts.txt"), *words)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert records(shell, "--prompts", "-", *words) == by_file
    assert [one["prompt"] for one in by_file[::2]] == ["The cat", "A dog\x0c ☃"]
    assert [(one["sample"], one["seed"]) for one in by_file] == [(0, 0), (1, 1)] * 2
    assert all(one["finish_reason"] in ("stop", "length") for one in by_file)
    assert by_file[2:] == records(shell, "--prompt", "A dog\x0c ☃", *words)


def test_every_setting_of_sampling_has_a_flag(shell: Any, tmp_path: Path) -> None:
    (found,) = records(
        shell, "--prompt", "One", "--top-k", "9", "--min-p", "0.01", "--repetition-penalty", "1.3",
        "--stop", "e", "--stop", "th", "--max-tokens", "60",
        "--device", "cpu", "--checkpoint", "8", "--precision", "float32",
    )  # fmt: skip
    text = LanguageModel.load("runs/small", 8).generate(
        "One", top_k=9, min_p=0.01, repetition_penalty=1.3, stop=["e", "th"], max_tokens=60
    )
    assert found["text"] == text and "e" not in text
    chatty = (small := LanguageModel.load("runs/small")).tokenizer.with_chat(TEMPLATE)
    LanguageModel(small.model, chatty, sampler=small.sampler).save(tmp_path / "chatty")
    answer = small.generate("The cat: ", max_tokens=6)
    words = ("generate", tmp_path / "chatty", "--chat", "--prompt", "The cat", "--max-tokens", "6")
    assert shell(*words) == f"The cat\n{answer}\n"


def test_any_prompt_is_continued(shell: Any) -> None:
    assert shell("generate", "small", "--max-tokens", "0") == "\n"
    assert len(shell("generate", "small", "--max-tokens", "9")) > 1
    prompt = os.fsdecode(b"caf\xe9")
    assert shell("generate", "small", "--prompt", prompt, "--max-tokens", "2").startswith("caf�")
