"""A run with a model, ids and a loss of the caller's own: the same run where they say the same."""

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
from groundup.errors import ConfigError, DataError
from groundup.generation import LanguageModel
from groundup.optim.build import decay_groups
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import set_seed
from groundup.training.start import parts_of

from .conftest import MakeConfig


@pytest.fixture
def ids(corpus_folder: Path) -> dict[str, Any]:
    splits = {name: open_shards(corpus_folder / "shards", name) for name in ("train", "validation")}
    return {name: shards[:].astype(np.int32) for name, shards in splits.items()}


def test_own_parts_that_say_the_same_make_the_same_run(
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
    """A layer that no setting knows."""

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
    # Nobody opens it without the same parts.
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


def test_any_optimizer_and_schedule_learn_and_resume_exactly(
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
    # The weights need no optimizer, but a resume does.
    assert LanguageModel.load(whole.run_folder).step == len(records)
    with pytest.raises(ConfigError, match=r"make as optimizer"):
        train(parted, resume=True, schedule=parts["schedule"])
    with pytest.raises(ConfigError, match=r"cannot be used with optimizer\.ema_fraction"):
        train(make_config("averaged", {"optimizer.ema_fraction": 0.5}), optimizer=make)
