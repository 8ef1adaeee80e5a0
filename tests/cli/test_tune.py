"""`groundup tune` fine-tunes a run on a file of conversations."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from groundup.data.samples import write_sample_corpus
from groundup.files import read_json_lines
from groundup.generation import LanguageModel
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer

PAIR = '{"prompt": "a", "completion": "b"}\n'
CONTEXT = ("--model.context-length", 200, "--device", "cpu")


@pytest.fixture(scope="module")
def folder(folder_of_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new folder with the run and dialogues."""
    folder = tmp_path_factory.mktemp("tuning")
    shutil.copytree(folder_of_run / "runs", folder / "runs")
    write_sample_corpus(folder / "dialogues.jsonl", 0.006, kind="dialogues")
    return folder


@pytest.fixture(autouse=True)
def in_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def test_the_tuned_run_can_be_opened_by_every_verb(shell: Any, folder: Path) -> None:
    said = shell("tune", "small", "dialogues.jsonl", *CONTEXT)
    assert "validation loss" in said and "groundup serve runs/small-chat" in said
    assert "held-out questions" in said and said.count("(in the file: ") == 3
    run = RunFolder(folder / "runs" / "small-chat")
    config, tokenizer = run.read_config(), Tokenizer.load(run.tokenizer_file)
    # Many epochs of small steps, and a vocabulary that includes the template's tokens.
    assert config.batch_size == 1 and (config.num_steps or 0) >= 200
    assert config.model.vocab_size == 304 and tokenizer.vocab_size == 302
    assert config.start_from == Path("runs/small") and tokenizer.chat_template is not None
    assert run.read_environment()["start_from"]["step"] == 12
    found = shell.json("evaluate", "small-chat")
    measured = [one for one in read_json_lines(run.metrics_file) if "validation_loss" in one]
    assert found["loss"] == min(one["validation_loss"] for one in measured)
    assert shell.json("evaluate", "small-chat", "--split", "train")["tokens"] > found["tokens"]
    words = ("export", "small-chat", "exported", "--to", "huggingface", "--dtype", "bfloat16")
    for _ in range(2):
        assert shell(*words, "--force").startswith("wrote exported: README.md, config.json")
    assert json.loads((folder / "exported/config.json").read_text())["dtype"] == "bfloat16"
    taken = shell("import", "huggingface", "exported", "--name", "back", "--runs-folder", "other")
    assert "groundup generate other/back" in taken
    assert LanguageModel.load(folder / "other/back").tokenizer.id == tokenizer.id


def test_pairs_of_answers_are_recognized(shell: Any, folder: Path) -> None:
    pair = {"chosen": "I have.", "rejected": "Nobody."}
    lines = [json.dumps({"prompt": f"Who has {number}?", **pair}) for number in range(30)]
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    said = shell("tune", "small", "pairs.jsonl", *CONTEXT, "--name", "dpo", "--num-steps", 30)
    run = RunFolder(folder / "runs" / "dpo")
    assert "30 pairs of answers (DPO)" in run.log_file.read_text()
    assert "(in the file: I have.)" in said
    assert run.read_config().optimizer.learning_rate == pytest.approx(6e-4)
    losses = [one.get("validation_loss", 9) for one in read_json_lines(run.metrics_file)]
    found = shell.json("evaluate", "dpo")
    assert found["loss"] == min(losses) and found["preference_accuracy"] == 1
    (folder / "pairs.jsonl").write_text("\n".join(lines[:2]))
    assert "other pairs" in shell.fails("evaluate", "dpo")


def test_a_stopped_run_continues_with_the_same_command(shell: Any, folder: Path) -> None:
    # Flags override the file, which overrides the defaults.
    (folder / "more.yaml").write_text("{num_steps: 9, max_grad_norm: 2.0, optimizer: {eps: 0.1}}")
    words = ("tune", "small", "dialogues.jsonl", *CONTEXT, "--name", "two", "--lora-rank", 2)
    said = shell(*words, "--num-steps", 4, "--config", "more.yaml", "--optimizer.eps", "1e-7")
    assert "warning: 3 of 3 answers did not end" in said
    config = RunFolder(folder / "runs" / "two").read_config()
    assert (config.num_steps, config.tuning.lora_rank) == (4, 2)
    assert (config.max_grad_norm, config.optimizer.eps) == (2.0, 1e-7)
    assert config.evaluation.every_steps == 0.1 and config.optimizer.learning_rate == 0.012
    assert "already has a run" in shell.fails(*words)
    shell(*words, "--resume")
    again = shell.fails(*words, "--num-steps", 5, "--resume")
    assert "num_steps: 4 -> 5" in again and "--allow-changes" in again


@pytest.mark.parametrize(
    ("text", "flags", "complaint"),
    [
        (PAIR.replace("a", "a long question"), (), "no answer begins within"),
        (PAIR, ("--tuning.template", "bad"), "template does not"),
        (PAIR, ("--lora-rank", "0"), "--lora-rank"),
        (PAIR, ("--tuning.template", "chats.jsonl"), "turn by turn"),
    ],
)
def test_invalid_input_is_one_line_and_writes_nothing(
    shell: Any, folder: Path, text: str, flags: tuple[str, ...], complaint: str
) -> None:
    (folder / "chats.jsonl").write_text(text)
    (folder / "bad").write_text("{% for %}")
    before = sorted(folder.glob("runs/*"))
    words = ("tune", "small", "chats.jsonl", "--device", "cpu", "--name", "bad", *flags)
    assert complaint in shell.fails(*words)
    assert sorted(folder.glob("runs/*")) == before
