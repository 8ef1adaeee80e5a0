"""`groundup train`: settings from file and flags; starting, stopping and resuming a run."""

import re
import shutil
import time
from pathlib import Path

import pytest

from groundup.checkpoint import CheckpointFolder
from groundup.cli import train as verb
from groundup.cli.arguments import parse
from groundup.cli.main import main
from groundup.config import load_settings, load_yaml
from groundup.runs.config import RunConfig


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def settings_of(*words: str) -> RunConfig:
    arguments = parse(verb.Arguments, "groundup train", words)
    assert arguments is not None
    return verb.settings_of(arguments)


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a command that must fail, and return its one error line."""
    assert main(["train", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1 and lines[-1] == errors[0], lines
    return errors[0].removeprefix("error: ")


def test_the_vocabulary_size_comes_from_the_shards(small_config: Path) -> None:
    shards = str(small_config.parent / "shards")
    words = ("--data.shards", shards, "--model.vocab-size", "320")
    assert [settings_of(*words[:n]).model.vocab_size for n in (2, 4)] == [300, 320]
    for own, vocab_size in (("", 300), ("model: {vocab_size: 310}", 310)):
        Path("own.yaml").write_text(f"data: {{shards: {shards}}}\n{own}\n")
        assert settings_of("--config", "own.yaml").model.vocab_size == vocab_size
    # Without readable shards, the default stays: training reports the error.
    assert settings_of("--data.shards", "nowhere").model.vocab_size == RunConfig().model.vocab_size
    Path("damaged").mkdir()
    (Path("damaged") / "index.json").write_text("{")
    assert settings_of("--data.shards", "damaged").model == RunConfig().model


def test_errors_in_the_file_are_named(
    capsys: pytest.CaptureFixture[str], small_config: Path
) -> None:
    # The vocabulary size of the shards would be set in the section.
    words = ("--data.shards", load_yaml(small_config)["data"]["shards"])
    for text, complaint in (
        ("model:\n  num_layer: 3\n", "did you mean num_layers? (in wrong.yaml line 2)"),
        ("model: gpt2-small", "model is 'gpt2-small', but"),
        ("runs_folder: null", "runs_folder is None, but"),
        # YAML reads off as false.
        ("compile: off", "the tokenizer file none.json"),
    ):
        Path("wrong.yaml").write_text(text, encoding="utf-8")
        flags = ("--config", "wrong.yaml", "--data.tokenizer", "none.json")
        assert complaint in fails(capsys, *flags, *words)


def test_a_timed_run_has_fractions_and_counts_from_the_start_of_the_command(
    capsys: pytest.CaptureFixture[str], small_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--config", str(small_config), "--minutes", "1", "--evaluation.every-steps", "500"]
    settings = settings_of(*words)
    # Flags are kept; the file's settings in steps become fractions of the time.
    assert settings.num_steps is None and settings.evaluation.every_steps == 500
    assert 0 < settings.schedule.warmup_steps < 1
    monkeypatch.setattr(verb, "STARTED", time.monotonic() - 100)
    assert "minutes is 1, but" in fails(capsys, *words)
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_a_run_is_resumed_by_its_name_alone(
    capsys: pytest.CaptureFixture[str], small_config: Path
) -> None:
    config = str(small_config)
    assert main(["train", "--config", config, "--seed", "3"]) == 0
    assert "already has a run" in fails(capsys, "--config", config, "--seed", "3")
    assert "seed: 3 -> 0" in fails(capsys, "--config", config, "--resume")
    changed = fails(capsys, "--name", "small", "--resume", "--num-steps", "16")
    assert "num_steps: 12 -> 16" in changed and "--allow-changes" in changed
    words = ["--resume", "--num-steps", "16", "--allow-changes"]
    assert main(["train", "--name", "small", *words]) == 0
    assert re.search(r"\n  steps +16\n", capsys.readouterr().out)
    assert load_settings(RunConfig, "runs/small/config.yaml").seed == 3


def test_from_takes_over_the_model_and_the_tokenizer_of_a_run(
    folder_of_run: Path, small_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole_run = folder_of_run / "runs/small"
    source, shards = load_yaml(whole_run / "config.yaml"), load_yaml(small_config)["data"]["shards"]
    words = ["--from", str(whole_run), "--name", "next", "--data.shards", shards]
    settings = settings_of(*words, "--model.context-length", "64")
    assert settings.start_from == whole_run and settings.model.context_length == 64
    assert settings.data.tokenizer == whole_run / "tokenizer.json"
    assert settings.model.d_model == source["model"]["d_model"]
    # A file's settings override those of the run.
    (tmp_path / "own.yaml").write_text("num_steps: 3\nmodel:\n  rope_theta: 500000.0\n")
    settings = settings_of(*words, "--config", "own.yaml")
    assert (settings.num_steps, settings.model.rope_theta) == (3, 500_000.0)
    assert main(["train", *words, "--num-steps", "2", "--batch-size", "2"]) == 0
    assert "weights and the optimizer of" in Path("runs/next/log.txt").read_text()
    settings = settings_of("--from", "next", "--name", "third", "--data.shards", shards)
    assert settings.start_from == Path("runs/next")
    assert "neither a run folder" in fails(capsys, "--from", "nowhere")
    # A resume may repeat the original --from, but not change it.
    assert settings_of(*words, "--resume").start_from == whole_run
    error = fails(capsys, "--from", "next", "--name", "next", "--resume")
    assert f"started from {whole_run}, not from --from next" in error


def test_from_imports_an_export_once_and_again_if_it_changed(
    folder_of_run: Path, small_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", str(small_config), "--num-steps", "1", "--name"]
    assert main(["train", *words, "other"]) == 0
    for run, export in ((folder_of_run / "runs/small", "a/model"), ("runs/other", "b/model")):
        assert main(["export", str(run), "--to", "huggingface", export]) == 0

    def weights_from(export: str) -> tuple[Path, str]:
        run = verb.find_source(Path(export)).path
        return run, CheckpointFolder(run / "checkpoints").newest().weights_id

    first, theirs = weights_from("a/model")
    second, others = weights_from("b/model")
    assert (first, second) == (Path("runs/model-imported"), Path("runs/model-imported-2"))
    assert theirs != others
    assert weights_from("a/model") == (first, theirs)
    shutil.rmtree("a/model")
    shutil.copytree("b/model", "a/model")
    assert weights_from("a/model") == (second, others)
    assert capsys.readouterr().out.count("imported ") == 2
    # A resume that repeats the export does not import it again.
    words = ["--data.shards", load_yaml(small_config)["data"]["shards"], "--num-steps", "1"]
    assert main(["train", "--from", "b/model", "--name", "a", *words]) == 0
    resumed = settings_of("--from", "b/model", "--name", "a", "--resume")
    assert resumed.start_from == second


def test_settings_that_depend_on_the_length_follow_it(small_config: Path) -> None:
    words = ["--data.shards", load_yaml(small_config)["data"]["shards"], "--device", "cpu"]
    chosen = settings_of(*words)
    for length in ("1500", "1e6"):
        config = settings_of(*words, "--num-steps", length)
        assert config.num_steps == float(length) and config.model == chosen.model
        assert config.optimizer.betas == (0.6, 0.99) != chosen.optimizer.betas
        assert config.schedule == chosen.schedule and config.evaluation.every_steps == 1 / 8
        capped = settings_of(*words, "--num-steps", length, "--minutes", "10")
        assert capped.optimizer == chosen.optimizer
