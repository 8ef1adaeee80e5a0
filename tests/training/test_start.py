"""What a run starts with: the weights of another run, several data folders, or custom parts."""

import json
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from groundup import TransformerLM, open_shards, train
from groundup.checkpoint import CheckpointFolder
from groundup.cli.evaluate import Arguments as EvaluateArguments
from groundup.cli.evaluate import run as evaluate
from groundup.data.prepare import prepare
from groundup.errors import ConfigError, DataError
from groundup.generation import LanguageModel
from groundup.optim.build import decay_groups
from groundup.runs.config import DataConfig, RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import set_seed
from groundup.tokenizer import Tokenizer
from groundup.training.clock import Clock
from groundup.training.data import open_data
from groundup.training.recipe import tuning_config
from groundup.training.start import Start, parts_of, settings_from

from .conftest import MakeConfig


def weights_of(config: RunConfig) -> dict[str, Any]:
    return CheckpointFolder(RunFolder(config.run_folder).checkpoints).newest().model_state()


def test_the_first_loss_is_that_of_the_other_run_and_the_lineage_is_recorded(
    make_config: MakeConfig, finished: RunConfig, records_of: Any
) -> None:
    config = make_config("next", {"start_from": str(finished.run_folder), "num_steps": 2})
    train(config)
    before = [one["validation_loss"] for one in records_of(finished) if "validation_loss" in one]
    first = records_of(config)[0]["loss"]
    assert abs(first - before[-1]) < 0.5 < 5.7 - first
    lineage = json.loads(RunFolder(config.run_folder).environment_file.read_text())["start_from"]
    assert lineage["step"] == 12 and lineage["run"] == str(finished.run_folder.absolute())
    # Once it has its own checkpoint, it no longer needs the other run.
    moved = finished.run_folder.with_name("moved")
    shutil.copytree(finished.run_folder, moved)
    changes = {"start_from": str(moved), "num_steps": 4}
    parted = make_config("parted", changes)
    train(parted, clock=Clock(stop_after=2))
    shutil.rmtree(moved)
    assert train(parted, resume=True).is_finished


def test_a_run_without_a_checkpoint_restarts_with_the_same_weights(
    make_config: MakeConfig,
) -> None:
    source = make_config("source", {"num_steps": 4, "model.dropout": 0.1})
    train(source, clock=Clock(stop_after=2))
    # Dropout does not affect the meaning of the weights.
    changes = {"start_from": str(source.run_folder), "checkpoints.every_steps": 0, "num_steps": 2}
    config = make_config("next", changes)
    train(config)
    shutil.rmtree(config.run_folder / "checkpoints")
    train(config, resume=True)
    shutil.rmtree(config.run_folder / "checkpoints")
    train(source, resume=True)
    with pytest.raises(ConfigError, match="start_from"):
        train(config, resume=True)
    train(config, resume=True, allow_changes=True)


def test_the_context_and_the_vocabulary_may_grow(
    make_config: MakeConfig, finished: RunConfig, corpus_folder: Path, tmp_path: Path
) -> None:
    old = Tokenizer.load(corpus_folder / "tokenizer.json")
    special = [*old.special_tokens, "<|user|>"]
    larger = Tokenizer(old.vocab, old.merges, special)
    larger.save(tmp_path / "tokenizer.json")
    prepare([corpus_folder / "stories.txt"], larger, tmp_path / "shards", validation_fraction=0.1)
    changes = {"start_from": str(finished.run_folder), "optimizer.learning_rate": 1e-12}
    changes |= {"model.vocab_size": 308, "model.context_length": 32, "num_steps": 1}
    files = {"data.tokenizer": "tokenizer.json", "data.shards": "shards"}
    changes |= {name: str(tmp_path / file) for name, file in files.items()}
    config = make_config("next", changes)
    train(config)
    for name, weight in weights_of(finished).items():
        grown = weights_of(config)[name]
        torch.testing.assert_close(grown[: len(weight)], weight, atol=1e-6, rtol=1e-6)
        if len(grown) > len(weight):
            # The new token starts as the mean of the others, the padding rows at random.
            torch.testing.assert_close(grown[300], weight.mean(0), atol=1e-6, rtol=1e-5)
            assert grown[301:].std() > 0


def test_document_masking_applies_to_shards_and_not_to_chats(
    make_config: MakeConfig, chats: Path
) -> None:
    source = make_config("source", {"num_steps": 1, "model.document_separator": "auto"})
    train(source)
    folder = RunFolder(source.run_folder)
    assert folder.read_config().model.document_separator == 299
    assert settings_from(folder)["model.document_separator"] == "auto"
    assert tuning_config(folder, {"tuning.chats": [chats]}).model.document_separator is None
    train(make_config("next", {"num_steps": 1, "start_from": str(folder.path)}))


def test_training_is_continued_from_the_checkpoint_that_validates_best(
    finished: RunConfig, make_config: MakeConfig, build: Any, tmp_path: Path
) -> None:
    folder = RunFolder(shutil.copytree(finished.run_folder, tmp_path / "run"))
    checkpoints = CheckpointFolder(folder.checkpoints)
    step, weights = checkpoints.newest().step, weights_of(finished)
    checkpoints.save(step + 1, weights, {"state": {}, "param_groups": []}, {}, metric=100.0)
    tokenizer = Tokenizer.load(folder.tokenizer_file)
    for with_optimizer, expected in ((True, step), (False, step + 1)):
        parts = folder.path, finished.model, tokenizer
        start = Start.open(*parts, with_optimizer=with_optimizer)
        assert start.checkpoint.step == expected
    # The EMA of its weights is not continued.
    averaged = make_config("averaged", {"optimizer.ema_fraction": 0.5, "num_steps": 1})
    train(averaged)
    start = Start.open(averaged.run_folder, averaged.model, tokenizer, with_optimizer=True)
    optimizer = build(finished).optimizer
    assert start.load_optimizer_into(optimizer, finished) and optimizer.state
    assert not any("average" in state for state in optimizer.state.values())


def test_smaller_vocabularies_and_other_tokenizers_are_rejected(
    finished: RunConfig, corpus_folder: Path
) -> None:
    old = Tokenizer.load(corpus_folder / "tokenizer.json")
    vocab = {**old.vocab, 40: old.vocab[41], 41: old.vocab[40]}
    other = Tokenizer(vocab, old.merges, [*old.special_tokens])
    smaller = finished.model.model_copy(update={"vocab_size": 299})
    with pytest.raises(ConfigError, match=r"vocab_size is 299, below 300; .* id 40"):
        Start.open(finished.run_folder, smaller, other)


END = "<|endoftext|>"


@pytest.fixture(scope="module")
def other(corpus_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of other text with the same tokenizer."""
    folder = tmp_path_factory.mktemp("other")
    text = END.join(f"{number} and {number + 1} make {2 * number + 1}." for number in range(300))
    (folder / "sums.txt").write_text(text)
    tokenizer = Tokenizer.load(corpus_folder / "tokenizer.json")
    prepare([folder / "sums.txt"], tokenizer, folder / "shards", validation_fraction=0.1)
    return folder / "shards"


def mixed(corpus: Path, other: Path, **more: Any) -> dict[str, Any]:
    return {"data.mix": [f"{corpus / 'shards'}=0.75", f"{other}=0.25"], **more}


def test_a_mix_resumes_bitwise_exact(check_resume: Any, corpus_folder: Path, other: Path) -> None:
    masked = {"model.document_separator": "auto"}
    whole, _ = check_resume(mixed(corpus_folder, other, **masked), 5)
    environment = RunFolder(whole.run_folder).read_environment()
    assert list(environment["data"]["mix"]) == [str(other)]


def test_batches_come_from_all_folders_by_weight(
    make_config: MakeConfig, corpus_folder: Path, other: Path
) -> None:
    config = make_config("run", mixed(corpus_folder, other))
    data = open_data(config, RunFolder("nowhere"), {})
    loader = data.loader(config)
    first = open_data(make_config("alone"), RunFolder("nowhere"), {}).train.num_tokens
    assert sum(loader.order.starts(0, 10_000) < first) == 7500


def test_validation_uses_the_first_folder_unless_another_is_named(tmp_path: Path) -> None:
    assert DataConfig(mix={"a": 0.5, "b": 1}).shards == Path("a")
    assert DataConfig(mix=("a=0.5", "b=1")).folders == {Path("a"): 0.5, Path("b"): 1.0}
    assert DataConfig(mix=("a=1", "b=1"), shards=Path("c")).shards == Path("c")
    assert DataConfig(mix=("a=1", "shards=1")).shards == Path("shards")
    assert DataConfig().folders == {Path("shards"): 1.0}
    with pytest.raises(ConfigError, match="takes NAME=WEIGHT"):
        DataConfig(mix=("a",))


def test_changed_data_in_the_mix_are_detected(
    make_config: MakeConfig, corpus_folder: Path, other: Path, tmp_path: Path
) -> None:
    config = make_config("run", mixed(corpus_folder, other))
    train(config, clock=Clock(stop_after=2))
    with pytest.raises(ConfigError, match=r"data\.mix"):
        train(make_config("run"), resume=True)
    stranger = Tokenizer({i: bytes([i]) for i in range(256)}, [], [END])
    text = tmp_path / "text.txt"
    text.write_text(END.join(f"A tale of {number} hats." for number in range(200)))
    prepare([text], stranger, tmp_path / "strange")
    strange = make_config("strange", mixed(corpus_folder, tmp_path / "strange"))
    with pytest.raises(DataError, match="was encoded with tokenizer"):
        train(strange)
    gone = make_config("gone", mixed(corpus_folder, tmp_path / "gone"))
    with pytest.raises(DataError, match="gone does not exist"):
        train(gone)


@pytest.fixture
def ids(corpus_folder: Path) -> dict[str, Any]:
    splits = {name: open_shards(corpus_folder / "shards", name) for name in ("train", "validation")}
    return {name: shards[:].astype(np.int32) for name, shards in splits.items()}


def test_custom_parts_equal_to_ours_give_the_same_run(
    make_config: MakeConfig, finished: RunConfig, ids: dict[str, Any], records_of: Any
) -> None:
    own = make_config("own")
    set_seed(own.seed)
    model = TransformerLM.from_config(own.model)
    data = ids["train"], ids["validation"]
    train(own, model=model, data=data, loss=lambda model, *batch: model.loss(*batch))
    for one, other in zip(records_of(finished), records_of(own), strict=True):
        for name in ("loss", "validation_loss"):
            assert (name in one) == (name in other)
            assert one.get(name, 0.0) == pytest.approx(other.get(name, 0.0), rel=1e-5)


class Half(nn.Module):
    """A layer that settings do not describe."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.scale * self.inner(x)
        return y


def test_swapped_layers_and_another_loss_resume_exactly(
    make_config: MakeConfig, check_resume: Any, finished: RunConfig, ids: dict[str, Any]
) -> None:
    def smoothed(model: TransformerLM, inputs: Tensor, targets: Tensor) -> Tensor:
        logits = model(inputs)
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), label_smoothing=0.1
        )

    def parts() -> dict[str, Any]:
        set_seed(3)
        model = TransformerLM.from_config(make_config("any").model)
        for block in model.blocks:
            block.feed_forward = Half(block.feed_forward)  # type: ignore[arg-type]
        return {"model": model, "data": ids["train"], "loss": smoothed}

    whole, parted = check_resume(stop=5, parts=parts)
    assert "blocks.0.feed_forward.scale" in dict(parts()["model"].named_parameters())
    # It cannot be opened without the same parts.
    recorded = RunFolder(parted.run_folder).read_config(parts_of(cast(Any, parts())))
    usual, loss = finished.run_folder, parts() | {"loss": print}
    lacking: list[tuple[Any, str]] = [
        (lambda: LanguageModel.load(whole.run_folder), "Half as model/blocks/0/feed_forward"),
        (lambda: evaluate(EvaluateArguments(run=str(whole.run_folder))), "pass it in Python"),
        (lambda: train(parted, resume=True, data=ids["train"]), "pass it in Python"),
        (lambda: train(recorded.with_(name=None)), "pass it in Python"),
        (lambda: train(parted, **loss, resume=True), "smoothed as loss, not"),
        (lambda: LanguageModel.load(usual, model=parts()["model"]), "the default as model"),
    ]
    for attempt, complaint in lacking:
        with pytest.raises(ConfigError, match=complaint):
            attempt()
    loaded = LanguageModel.load(whole.run_folder, model=parts()["model"])
    saved = CheckpointFolder(whole.run_folder / "checkpoints").newest().model_state()
    assert all(torch.equal(saved[name], one) for name, one in loaded.model.state_dict().items())
    other = parts() | {"data": ids["train"][::-1].copy()}
    with pytest.raises((ConfigError, DataError), match="data"):
        train(parted, **other, resume=True)


def test_any_optimizer_and_schedule_train_and_resume_exactly(
    make_config: MakeConfig, check_resume: Any, finished: RunConfig, records_of: Any
) -> None:
    ours = finished.optimizer

    def make(model: TransformerLM) -> torch.optim.Optimizer:
        groups = decay_groups(model, weight_decay=ours.weight_decay)
        return torch.optim.AdamW(groups, ours.learning_rate, ours.betas, ours.eps)

    same = make_config("same")
    train(same, optimizer=make)
    losses = [[one["loss"] for one in records_of(config)] for config in (same, finished)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    parts: dict[str, Any] = {"optimizer": make, "schedule": lambda progress: 1 - progress}
    whole, parted = check_resume(stop=5, parts=lambda: parts)
    records = records_of(whole)
    left = [1 - (index + 0.5) / len(records) for index in range(len(records))]
    expected = [ours.learning_rate * one for one in left]
    assert [one["learning_rate"] for one in records] == pytest.approx(expected)
    # A lambda equals one with the same code elsewhere, but not another one.
    config = whole.with_(num_steps=whole.num_steps)
    train(config, optimizer=make, schedule=lambda progress: 1 - progress, resume=True)
    with pytest.raises(ConfigError, match="its source has changed"):
        train(config, optimizer=make, schedule=lambda progress: 2 - progress, resume=True)
    # Loading the weights needs no optimizer, but a resume does.
    assert LanguageModel.load(whole.run_folder).step == len(records)
    with pytest.raises(ConfigError, match=r"make as optimizer"):
        train(parted, resume=True, schedule=parts["schedule"])
    with pytest.raises(ConfigError, match=r"cannot be used with optimizer\.ema_fraction"):
        train(make_config("averaged", {"optimizer.ema_fraction": 0.5}), optimizer=make)


def test_invalid_arguments_of_train_are_rejected_before_anything_is_written(
    make_config: MakeConfig,
) -> None:
    config = make_config("wrong")
    wrong: dict[str, Any] = {
        "optimiser": (torch.optim.RAdam, "did you mean optimizer"),
        "optimizer": (torch.optim.RAdam, "must be a function of the model"),
        "schedule": ("cosine", "must be a function from the progress"),
        "callbacks": ([print], "Callback"),
    }
    for name, (value, complaint) in wrong.items():
        with pytest.raises((ConfigError, TypeError), match=complaint):
            train(config, **{name: value})
    with pytest.raises(ConfigError, match="RunConfig"):
        train({"num_steps": 3})  # type: ignore[arg-type]
    assert not config.run_folder.exists()
