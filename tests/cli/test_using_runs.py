"""Using a trained run: continue it, chat with it, list it, serve it."""

import io
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.cli.main import main
from groundup.data.chats import read_conversations
from groundup.files import read_json_lines
from groundup.generation import LanguageModel
from groundup.interop import export_huggingface, import_huggingface
from groundup.model import TransformerLM
from groundup.runs.folder import RunFolder
from groundup.serving.runs_api import summarize


@pytest.fixture(autouse=True)
def in_a_copy(folder_of_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder_of_run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def test_every_verb_uses_the_runs_sampling_defaults(shell: Any) -> None:
    file = Path("runs/small/generation.json")
    assert json.loads(file.read_text()) == {"temperature": 0.7, "top_p": 0.95}
    words = ("generate", "small", "--prompt", "The cat", "--max-tokens", "9")
    text = shell(*words)
    assert text == shell(*words, "--temperature", "0.7", "--top-p", "0.95")
    assert text != shell(*words, "--temperature", "1", "--top-p", "1")
    file.write_text('{"temperature": 0, "top_k": 7}')
    model = LanguageModel.load("runs/small")
    assert shell(*words) == "The cat" + model.generate("The cat", max_tokens=9) + "\n"
    assert shell(*words) == shell(*words, "--seed", "4") != shell(*words, "--temperature", "9")
    # An export and its import have the same defaults.
    file.write_text('{"temperature": 0.6, "top_k": 7, "repetition_penalty": 1.1}')
    export_huggingface("runs/small", "out")
    import_huggingface("out", "again")
    model = LanguageModel.load("runs/small")
    assert LanguageModel.load("runs/again").sampler == model.sampler and model.sampler.top_k == 7
    file.write_text('{"temperature": "hot"}')
    assert "generation.json" in shell.fails(*words) and "hot" in shell.fails(*words)


def losses(run: str) -> list[tuple[int, float]]:
    records = read_json_lines(Path("runs", run, "metrics.jsonl"))
    return [(one["step"], one["validation_loss"]) for one in records if "validation_loss" in one]


def test_more_needs_no_settings_and_trains_on_unread_text(shell: Any) -> None:
    said = shell("more", "small", "--num-steps", "12")
    before, after = losses("small")[-1][1], losses("small-more")
    assert after[0] == (0, before) and after[-1][1] < before
    assert f"validation {before:.3f} → {after[-1][1]:.3f}" in said
    source, config = (RunFolder(f"runs/{name}").read_config() for name in ("small", "small-more"))
    assert config.data.skip_sequences == 12 * 2 and config.schedule.name == "wsd"
    assert config.optimizer.learning_rate == source.optimizer.learning_rate / 4
    assert "weights and the optimizer of" in Path("runs/small-more/log.txt").read_text()
    # The result continues like any other run, and `train` does the same.
    shell("more", "small-more", "--num-steps", "2")
    again = RunFolder("runs/small-more-2").read_config()
    assert again.data.skip_sequences == 24 * 2
    assert again.optimizer.learning_rate == config.optimizer.learning_rate
    assert "→" in shell("train", "--from", "small-more", "--num-steps", "2")
    assert losses("small-more-3") == losses("small-more-2")


def test_checkpoints_worse_than_the_initial_one_are_dropped(shell: Any) -> None:
    words = ("--num-steps", "8", "--optimizer.learning-rate", "3")
    said = shell("more", "small", "--name", "worse", *words)
    assert losses("worse")[-1][1] > losses("worse")[0][1]
    assert "so the weights of runs/small are kept" in said
    kept, before = (LanguageModel.load(f"runs/{name}").model for name in ("worse", "small"))
    assert LanguageModel.load("runs/worse").step == 0
    for name, weight in before.state_dict().items():
        assert torch.equal(kept.state_dict()[name], weight), name
    # The page and the list agree on the loss: that of the weights.
    found = {one["run"]: one for one in shell.json("list")}
    for name in ("worse", "small"):
        assert summarize(RunFolder(f"runs/{name}"))["validation_loss"] == losses("worse")[0][1]
        assert found[name]["validation_loss"] == losses("worse")[0][1]
        assert found[name]["bits_per_byte"] == pytest.approx(found["small"]["bits_per_byte"])


def test_new_text_is_mixed_with_the_old(shell: Any) -> None:
    Path("diary").mkdir()
    Path("diary/a.md").write_text("Dear diary, today it rained again. " * 60)
    Path("diary/b.md").write_text("The fox came by, and so did the bear. " * 60)
    said = shell("more", "small", "diary", "--num-steps", "6", "--name", "diarist")
    assert "→" in said
    config = RunFolder("runs/diarist").read_config()
    assert config.data.shards == Path("prepared/diarist/shards") and len(config.data.mix) == 2
    assert losses("diarist")[-1][1] < losses("diarist")[0][1]
    shutil.rmtree("prepared")
    assert "as in groundup more runs/diarist FOLDER" in shell.fails("more", "diarist")
    export_huggingface("runs/small", "out")
    assert "train --from out" in shell.fails("chat", "out")
    import_huggingface("out", "taken")
    assert "runs/taken was imported, without text" in shell.fails("more", "taken")


def test_a_finished_timed_run_is_not_resumed_for_longer(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A command's time starts with its process, here that of all tests.
    monkeypatch.setattr("groundup.cli.more.STARTED", time.monotonic())
    shell("more", "small", "--num-steps", "2", "--minutes", "1")
    # Without time left, nothing is written.
    monkeypatch.setattr("groundup.cli.more.STARTED", time.monotonic() - 100)
    assert main(["more", "small", "--minutes", "1"]) == 2
    assert not Path("runs/small-more-2").exists()
    words = ("train", "--name", "small-more", "--resume", "--minutes", "2")
    assert "continue it with groundup more runs/small-more --minutes 2" in shell.fails(*words)


def talk(shell: Any, monkeypatch: pytest.MonkeyPatch, typed: str, *words: object) -> str:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    return str(shell("chat", *words, "--max-tokens", "4"))


def test_a_chat_can_be_saved_and_used_for_tuning(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = LanguageModel.load("runs/small")
    tokenizer = small.tokenizer.with_chat()
    torch.manual_seed(3)
    shape: Any = {"d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 16, "rope_theta": 100.0}
    model = TransformerLM(vocab_size=tokenizer.vocab_size, context_length=128, **shape)
    chatty = LanguageModel(model, tokenizer)
    chatty.save("runs/chatty")
    typed = 'Hello\\\nthere\n\n/sav a\n"""One\n\ntwo"""\n/save said.jsonl\n<|im_end|>\n/reset\nHi\n'
    said = talk(shell, monkeypatch, f"{typed}/save said.jsonl\n", "chatty", "--system", "Be.")
    assert "did you mean /save?" in said and "a new conversation" in said
    assert "error: message 6 has the special token" in said
    first, second = (one["messages"] for one in read_json_lines(Path("said.jsonl")))
    users = [one["content"] for one in first if one["role"] == "user"]
    assert users == ["Hello\nthere", "One\n\ntwo"] and first[0]["content"] == "Be."
    assert [one["role"] for one in second] == ["system", "user", "assistant"]
    expected = chatty.chat(first[:2], max_tokens=4)
    assert first[2]["content"] == expected and expected in said
    assert len(list(read_conversations(["said.jsonl"]))) == 2
    # A conversation longer than the context loses its oldest messages.
    assert "oldest messages no longer fit" in talk(shell, monkeypatch, "Hi\n" * 8, "chatty")


def test_a_model_without_a_chat_template_continues_text(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = talk(shell, monkeypatch, "A\n b\n/save text.jsonl\n/quit\nno\n", "small")
    assert "continues what you write" in said and "groundup tune runs/small" in said
    model = LanguageModel.load("runs/small")
    first = model.generate("A", max_tokens=4)
    second = model.generate(f"A{first} b", max_tokens=4, seed=1)
    (saved,) = read_json_lines(Path("text.jsonl"))
    assert saved["text"] == f"A{first} b{second}" and f"{first}\n" in said
    assert "--system is for" in shell.fails("chat", "small", "--system", "Be.")


def test_runs_are_listed_and_compared_on_a_text(shell: Any, small_config: Path) -> None:
    shell("more", "small", "--num-steps", "2")
    small = LanguageModel.load("runs/small")
    LanguageModel(small.model, small.tokenizer.with_chat("{{ messages[0].content }}: ")).save(
        "runs/chatty"
    )
    (Path("runs/small-more") / "outcome.json").unlink()
    found = {one["run"]: one for one in shell.json("list")}
    assert list(found) == ["chatty", "small-more", "small"]
    assert found["small"]["can"] == ["generate", "more"] and found["small"]["step"] == 12
    assert found["small"]["validation_loss"] == losses("small")[-1][1]
    assert found["chatty"]["can"] == ["generate", "chat"]
    assert found["small-more"]["can"][-1] == "resume"
    page = shell("list", "runs")
    assert "generate, chat" in page and found["small"]["run"] in page and "imported" in page
    assert "contains no runs" in shell.fails("list", "nowhere")
    text = Path("some.txt")
    text.write_text((small_config.parent / "stories.txt").read_text()[:4000])
    one = shell.json("evaluate", "small", text)
    both = shell.json("evaluate", "small", "runs/small-more", text)["runs"]
    assert both[0] == one and both[1]["bits_per_byte"] != one["bits_per_byte"]
    page = shell("evaluate", "small", "small-more", text)
    assert f"{one['bits_per_byte']:.4f}" in page and f"{both[1]['bits_per_byte']:.4f}" in page
    assert shell("evaluate", "small", "small-more").count("runs/small") == 2
    assert "standard input" in shell.fails("evaluate", "small", "small-more", "-")


def test_a_dry_run_plans_and_writes_nothing(
    shell: Any, small_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("groundup.training.recipe._WIDTHS", (16, 32))
    before = sorted(Path().rglob("*"))
    said = shell("new", small_config.parent / "stories.txt", "--dry-run", "--minutes", "500")
    assert "would write prepared/stories/train.yaml" in said and "layers of" in said
    assert "epochs: validation loss" in said
    assert sorted(Path().rglob("*")) == before
    monkeypatch.setattr("groundup.training.expectation._LEAST_TOKENS", 1)
    found = shell.json("plan", "--config", small_config)["expected_loss"]
    assert found["low"] < found["loss"] < found["high"]


def test_serve_opens_the_browser_and_typos_get_a_suggestion(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    model = LanguageModel.load("runs/small")
    monkeypatch.setattr("groundup.serving.launch.serve", lambda *given: given[-1](model))
    said = shell("serve", "small", "--port", "0", "--open")
    assert len(opened) == 1 and opened[0].startswith("http://127.0.0.1:") and opened[0] in said
    assert "did you mean more RUN?" in shell.fails("continue", "small")


@pytest.mark.slow
def test_a_shell_completes_verbs_flags_and_runs(shell: Any) -> None:
    script = shell("completion", "bash")
    for typed, expected in (
        ("evalu", {"evaluate"}),
        ("data prep", {"prepare"}),
        ("more --minu", {"--minutes"}),
        ("chat sma", {"small"}),
        ("evaluate runs/sm", {"runs/small"}),
    ):
        words = f"COMP_WORDS=(groundup {typed}); COMP_CWORD={len(typed.split())}; _groundup"
        command = f'{script}\n{words}; printf "%s\\n" "${{COMPREPLY[@]}}"'
        found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
        assert set(found.stdout.split()) == expected, found
    assert script in shell("completion", "zsh")
    fish = shell("completion", "fish")
    assert "\"^groundup tune \" -- (commandline -cp)' -a '--help" in fish
    assert "tcsh" in shell.fails("completion", "tcsh")
