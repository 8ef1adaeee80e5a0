"""The run folder: what lies in it, who may use it, and which settings a resume accepts."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from groundup.checkpoint import CheckpointFolder
from groundup.config import load_settings
from groundup.data.prepare import prepare
from groundup.errors import ConfigError, DataError
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer
from groundup.training.changes import differences
from groundup.training.evaluation import Evaluation, Evaluator
from groundup.training.loop import train

MakeConfig = Callable[..., RunConfig]

FIGURES = {
    "loss",
    "learning_rate",
    "gradient_norm",
    "tokens_per_second",
    "mfu",
    "memory_bytes",
}


def test_a_run_leaves_everything_that_decided_it(make_config: MakeConfig) -> None:
    config = make_config()
    folder = RunFolder(train(config).run_folder)
    assert {path.name for path in folder.path.iterdir()} == {
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "outcome.json",
        "log.txt",
        "tokenizer.json",
        "checkpoints",
    }
    assert folder.read_config() == config.model_copy(
        update={"precision": "float32", "compile": "off", "micro_batch_size": None}
    )
    tokenizer = Tokenizer.load(config.data.tokenizer)
    assert Tokenizer.load(folder.tokenizer_file).id == tokenizer.id
    environment = folder.read_environment()
    assert environment["seed"] == 0 and environment["num_threads"] == 1
    assert environment["data"]["tokenizer"] == tokenizer.id
    assert environment["data"]["content"].startswith("sha256:")
    assert {"torch", "numpy", "python", "groundup", "device", "git_commit"} <= environment.keys()
    assert "fused" in environment["kernels"]


def test_metrics_have_the_promised_keys(make_config: MakeConfig) -> None:
    config = make_config("run", {"logging.every_steps": 4, "checkpoints.keep_best": False})
    folder = RunFolder(train(config).run_folder)
    records = [json.loads(line) for line in folder.metrics_file.read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 4, 5, 8, 10, 12]
    for record in records:
        assert {"step", "wall_seconds", "tokens"} <= record.keys()
        assert record.keys() >= FIGURES or record["step"] in (5, 10)
        has_validation = {"validation_loss", "perplexity", "bits_per_byte"} <= record.keys()
        assert has_validation == (record["step"] in (5, 10, 12))
    assert records[0]["tokens"] == 4 * 16 and records[-1]["tokens"] == 12 * 4 * 16
    assert 0 < records[-1]["mfu"] < 1 and records[-1]["memory_bytes"] > 1e6


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "kept"),
    [(1, True, [6, 12]), (1, False, [12]), (2, False, [9, 12]), (4, True, [3, 6, 9, 12])],
)
def test_the_last_checkpoints_and_the_best_are_kept_as_set(
    make_config: MakeConfig,
    monkeypatch: pytest.MonkeyPatch,
    keep_last: int,
    keep_best: bool,
    kept: list[int],
) -> None:
    # The second of four evaluations is the best.
    losses = iter([3.0, 1.0, 2.0, 4.0])
    monkeypatch.setattr(
        Evaluator, "__call__", lambda *given: Evaluation.of(next(losses), num_tokens=1, num_bytes=1)
    )
    changes = {"checkpoints.keep_last": keep_last, "checkpoints.keep_best": keep_best}
    summary = train(make_config("run", {"evaluation.every_steps": 3, **changes}))
    assert CheckpointFolder(summary.run_folder / "checkpoints").steps() == kept


def test_the_log_says_what_runs(make_config: MakeConfig) -> None:
    folder = RunFolder(train(make_config()).run_folder)
    log = folder.log_file.read_text()
    assert "kernels on" in log and "fused attention" in log and "precision float32" in log
    assert "ids for train" in log and "parameters" in log
    assert "step 12/12" in log and "validation loss" in log and "tokens/s" in log
    assert "done: 12 steps" in log


def test_logging_is_left_as_it_was(make_config: MakeConfig) -> None:
    logger = logging.getLogger("groundup")
    before = (logger.level, list(logger.handlers))
    train(make_config("run", {"num_steps": 3}))
    assert (logger.level, logger.handlers) == before


def test_an_existing_run_is_not_begun_again(make_config: MakeConfig) -> None:
    config = make_config("run", {"num_steps": 3})
    train(config)
    metrics = RunFolder(config.run_folder).metrics_file.read_text()
    with pytest.raises(ConfigError, match=r"already holds a run: .*--resume, or .*--name"):
        train(config)
    assert RunFolder(config.run_folder).metrics_file.read_text() == metrics


def test_there_must_be_a_run_to_resume(make_config: MakeConfig) -> None:
    config = make_config()
    with pytest.raises(ConfigError, match="holds no run to resume"):
        train(config, resume=True)
    assert not config.run_folder.exists()


def test_remains_without_settings_are_not_overwritten(make_config: MakeConfig) -> None:
    config = make_config("run", {"num_steps": 3})
    train(config)
    RunFolder(config.run_folder).config_file.unlink()
    with pytest.raises(ConfigError, match=r"has metrics\.jsonl but no config\.yaml"):
        train(config)


def test_a_second_trainer_is_refused(make_config: MakeConfig) -> None:
    config = make_config("run", {"num_steps": 3})
    train(config)
    with (
        RunFolder(config.run_folder).claim(resume=True),
        pytest.raises(ConfigError, match="another process is training in"),
    ):
        train(config, resume=True)
    train(config, resume=True)


def test_runs_without_a_name_get_one(make_config: MakeConfig) -> None:
    config = make_config("run", {"name": None, "num_steps": 3})
    summary = train(config)
    assert summary.run_folder.parent == config.runs_folder and summary.run_folder.is_dir()


def test_changed_settings_are_named_and_must_be_allowed(make_config: MakeConfig) -> None:
    train(make_config(), stop_after=4)
    changed = make_config("run", {"optimizer.learning_rate": 3e-3, "num_steps": 14})
    with pytest.raises(ConfigError) as caught:
        train(changed, resume=True)
    message = str(caught.value)
    assert "num_steps: 12 -> 14" in message
    assert "optimizer.learning_rate: 0.01 -> 0.003" in message
    assert "--allow-changes" in message
    # A refusal leaves the run as it was, its log with its last word included.
    log = RunFolder(changed.run_folder).log_file.read_text().splitlines()
    assert "stopped after step 4" in log[-1] and not any("ERROR" in line for line in log)
    folder, has_outcome = RunFolder(changed.run_folder), []
    outcome = folder.read_outcome()
    assert outcome is not None and (outcome.state, outcome.step) == ("stopped", 4)

    def look(step: int, num_steps: int | None) -> None:
        has_outcome.append(folder.outcome_file.exists())

    summary = train(changed, resume=True, allow_changes=True, progress=look)
    assert summary.steps == 14 and has_outcome == 10 * [False]
    outcome = folder.read_outcome()
    assert outcome is not None and (outcome.state, outcome.step) == ("finished", 14)
    assert outcome.cost["tokens"] == summary.tokens and outcome.cost["wall_seconds"] > 0
    assert folder.read_config().optimizer.learning_rate == 3e-3
    assert "num_steps: 12 -> 14" in folder.log_file.read_text()


def test_settings_that_changed_behind_the_checkpoints_back_must_be_allowed(
    make_config: MakeConfig,
) -> None:
    begun = make_config()
    train(begun, stop_after=4)
    # As if a digit of the file had flipped: the resume takes its settings from there.
    file = RunFolder(begun.run_folder).config_file
    file.write_text(file.read_text().replace("weight_decay: 0.1", "weight_decay: 0.3"))
    changed = load_settings(RunConfig, file)
    with pytest.raises(ConfigError, match=r"weight_decay: 0\.3, but .* was saved with 0\.1"):
        train(changed, resume=True)
    assert train(changed, resume=True, allow_changes=True).steps == 12


def test_allowed_changes_take_effect_in_the_optimizer(make_config: MakeConfig) -> None:
    train(make_config(), stop_after=4)
    changed = make_config("run", {"optimizer.weight_decay": 0.03})
    train(changed, resume=True, allow_changes=True)
    newest = CheckpointFolder(changed.run_folder / "checkpoints").newest()
    decays = {group["weight_decay"] for group in newest.optimizer_state()["param_groups"]}
    assert 0.03 in decays and 0.1 not in decays


def test_what_is_only_shown_may_change_freely(make_config: MakeConfig) -> None:
    train(make_config(), stop_after=4)
    assert train(make_config("run", {"logging.every_steps": 2}), resume=True).is_finished


def test_another_model_cannot_go_on(make_config: MakeConfig) -> None:
    train(make_config(), stop_after=4)
    changed = make_config("run", {"model.d_model": 32})
    with pytest.raises(ConfigError, match=r"model\.d_model: 16 -> 32.*begin a new run"):
        train(changed, resume=True, allow_changes=True)


def test_other_data_behind_the_same_path_is_noticed(
    make_config: MakeConfig, corpus_folder: Path, tmp_path: Path
) -> None:
    shards = tmp_path / "shards"
    shutil.copytree(corpus_folder / "shards", shards)
    config = make_config("run", {"data.shards": str(shards)})
    train(config, stop_after=4)
    shutil.rmtree(shards)
    tokenizer = Tokenizer.load(config.data.tokenizer)
    (tmp_path / "more.txt").write_text("Ada had a new cup. " * 500, "utf-8")
    sources = [corpus_folder / "stories.txt", tmp_path / "more.txt"]
    prepare(sources, tokenizer, shards, validation_fraction=0.1)
    with pytest.raises(ConfigError, match="trained on other data"):
        train(config, resume=True)
    assert train(config, resume=True, allow_changes=True).is_finished


def test_other_conditions_are_named_on_resume(
    make_config: MakeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config()
    train(config, stop_after=4)
    folder = RunFolder(config.run_folder)
    environment = folder.read_environment()
    folder.environment_file.write_text(json.dumps({**environment, "torch": "1.0"}))
    train(config, resume=True)
    assert "torch: 1.0 -> " in caplog.text
    assert folder.read_environment()["resumes"][0]["changes"][0].startswith("torch: 1.0")


def test_damaged_shards_are_named_before_anything_is_made(
    make_config: MakeConfig, corpus_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(corpus_folder / "shards", tmp_path / "shards")
    shard = tmp_path / "shards" / "train_000000.bin"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    config = make_config("run", {"data.shards": str(tmp_path / "shards")})
    with pytest.raises(DataError, match=r"train_000000\.bin"):
        train(config)
    assert not RunFolder(config.run_folder).has_run()


def test_a_vocabulary_too_small_for_the_shards_is_refused(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="vocab_size 299 is too small"):
        train(make_config("run", {"model.vocab_size": 299}))


def test_differences_are_listed_by_key(make_config: MakeConfig) -> None:
    old = make_config()
    assert differences(old, old) == []
    new = make_config("other", {"samples.prompts": ["a", "b"], "clip_norm": None})
    assert differences(old, new) == [
        "name: 'run' -> 'other'",
        "clip_norm: 1.0 -> None",
        "samples.prompts: ['Once upon a time'] -> ['a', 'b']",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 6, "micro_batch_size": 4}, "choose a divisor of batch_size"),
        ({"samples.every_steps": 5, "samples.prompts": []}, "give at least one beginning"),
        ({"name": "../elsewhere"}, "name is '../elsewhere'"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"num_step": 5}, "did you mean num_steps"),
        ({"clip_norm": 0}, "clip_norm is 0"),
        ({"precision": "float16"}, "precision is 'float16'"),
    ],
)
def test_settings_that_cannot_be_used_say_why(
    make_config: MakeConfig, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config("run", changes)


def test_settings_survive_their_file(make_config: MakeConfig, tmp_path: Path) -> None:
    from groundup.config import save_yaml

    config = make_config("run", {"samples.prompts": ["Once", "— “so”\n"], "micro_batch_size": 2})
    save_yaml(tmp_path / "config.yaml", config)
    assert load_settings(RunConfig, tmp_path / "config.yaml") == config
