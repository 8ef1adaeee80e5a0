"""`groundup evaluate` and `groundup generate` on a run trained in this process."""

import io
import json
import math
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from groundup.cli.main import main
from groundup.data.shards import open_shards
from groundup.files import read_json_lines
from groundup.generation import Engine, LanguageModel
from groundup.generation.request import NewToken


def test_results_equal_those_of_training(shell: Any) -> None:
    for record in read_json_lines("runs/small/metrics.jsonl"):
        if "validation_loss" in record:
            found = shell.json("evaluate", "small", "--checkpoint", str(record["step"]))
            assert found["loss"] == record["validation_loss"]
            assert found["perplexity"] == record["perplexity"]
            assert found["bits_per_byte"] == record["bits_per_byte"]


def test_output_names_run_checkpoint_and_split(
    shell: Any, small_config: Path, tmp_path: Path
) -> None:
    by_name, by_folder = shell.json("evaluate", "small"), shell.json("evaluate", "runs/small")
    assert by_name == by_folder and by_name["run"] == "runs/small" and by_name["step"] == 12
    best = shell.json("evaluate", "small", "--checkpoint", "best")
    assert best["loss"] <= by_name["loss"]
    shards = open_shards(small_config.parent / "shards", "validation")
    assert shell.json("evaluate", "small", "--whole")["tokens"] == shards.num_tokens - 1
    # One that learned in float8 is evaluated in float32 on request.
    config = shutil.copytree("runs/small", tmp_path / "half") / "config.yaml"
    config.write_text(config.read_text().replace("precision: float32", "precision: float8"))
    half = shell.json("evaluate", tmp_path / "half", "--precision", "float32")
    assert half["loss"] == by_name["loss"]
    page = shell("evaluate", "small")
    for text in ("12", f"{by_name['loss']:.4f}", f"{by_name['bits_per_byte']:.4f}"):
        assert text in page


def test_other_shards_than_the_runs_are_reported(
    shell: Any, small_config: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """Relative paths in settings must not depend on the working directory."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    shutil.copytree(small_config.parent, here)
    monkeypatch.chdir(here)
    flags = "--data.shards shards --data.tokenizer tokenizer.json --num-steps 2 --name one"
    shell("train", "--config", "small.yaml", *flags.split())
    expected = shell.json("evaluate", "one")["loss"]
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    prepare = ["data", "prepare", here / "stories.txt", "--tokenizer", here / "tokenizer.json"]
    shell(*prepare, "--validation-fraction", "0.2")
    assert shell.json("evaluate", "../here/runs/one")["loss"] == expected
    monkeypatch.chdir(here)
    shell(*prepare, "--overwrite", "--validation-fraction", "0.2")
    assert main(["evaluate", "one"]) == 0
    assert "does not contain the data that" in capsys.readouterr().err
    (tmp_path / "one.txt").write_text("one document")
    words = ["data", "prepare", tmp_path / "one.txt", "--validation-fraction", "0.001"]
    shell(*words, "--out", tmp_path / "few")
    error = shell.fails("evaluate", "one", "--shards", tmp_path / "few")
    assert "--validation-fraction 0.1 --overwrite" in error


def test_text_and_tasks_are_evaluated_together(
    shell: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = '{"sentence_good": "They were glad.", "sentence_bad": "They was glad."}\n'
    (tmp_path / "pairs.jsonl").write_text(pair * 3)
    long = [{"context": "Anna saw " * n, "choices": ["a fox.", "it."]} for n in range(100, 300)]
    lines = [json.dumps(one | {"answer": n % 2}) for n, one in enumerate(long)]
    (tmp_path / "long.jsonl").write_text("\n".join(lines))
    (tmp_path / "text").mkdir()
    (tmp_path / "text/one.txt").write_text("The fox sat. It was glad. " * 5)
    (tmp_path / "text/more.jsonl").write_text('{"body": "Anna ran."}\n{"body": "Ben ran."}\n')
    words = ["evaluate", "small", tmp_path / "text", "--field", "body", "--tasks"]
    words += [tmp_path / "long.jsonl", tmp_path / "pairs.jsonl"]
    found, page = shell.json(*words), shell(*words)
    assert (found["documents"], found["bytes"]) == (3, 147) and found["tokens"] > 100
    nats = found["bits_per_byte"] * math.log(2) * found["bytes"]
    assert found["loss"] == pytest.approx(nats / found["tokens"])
    assert "147 B" in page and page.count("bits per byte") == 1
    assert list(found["tasks"]) == ["long", "pairs"]
    who, pairs = found["tasks"].values()
    assert who["questions"] == who["cut"] == 200 and pairs["accuracy"] in (0, 1)
    low, high = who["interval"]
    assert low < who["accuracy"] < high and pairs["chance"] == 0.5
    assert f"{who['accuracy']:.4f}  {low:.4f}, {high:.4f}" in page and "mean" in page
    # The text is read once per run, but the warning is printed once.
    (tmp_path / "text/old.txt").write_text("Voilà, l'été. C'est déjà Noël. " * 9, "cp1252")
    capsys.readouterr()
    assert main(["evaluate", "small", "runs/small", str(tmp_path / "text")]) == 0
    assert capsys.readouterr().err.count("read as cp1252") == 1


@pytest.fixture(autouse=True)
def in_the_folder(folder_of_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder_of_run)


def records(shell: Any, *words: str) -> list[dict[str, Any]]:
    lines = shell("generate", "small", *words, "--json").splitlines()
    return [json.loads(line) for line in lines]


TEMPLATE = "{{ messages[0].content }}: "


class Screen(io.StringIO):
    """Standard output that records what is visible after each flush, like a terminal."""

    shown = ""

    def flush(self) -> None:
        self.shown = self.getvalue()


def test_text_is_printed_as_it_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
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
    # A token may end within a character, which is then held back.
    assert len(set(shown)) >= 4


def test_samples_are_numbered_and_have_their_own_seeds(shell: Any) -> None:
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


def test_every_sampling_setting_has_a_flag(shell: Any, tmp_path: Path) -> None:
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
