"""A run with a model, ids and a loss of the caller's own: the same run where they say the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from groundup import TransformerLM, open_shards, train
from groundup.errors import ConfigError, DataError
from groundup.runs.config import RunConfig
from groundup.runtime import set_seed
from groundup.training.clock import Clock
from groundup.training.verify import comparable_records, compare_runs

from .conftest import MakeConfig


@pytest.fixture
def ids(corpus_folder: Path) -> dict[str, Any]:
    splits = {name: open_shards(corpus_folder / "shards", name) for name in ("train", "validation")}
    return {name: shards[:].astype(np.int32) for name, shards in splits.items()}


def test_own_parts_that_say_the_same_make_the_same_run(
    make_config: MakeConfig, finished: RunConfig, ids: dict[str, Any]
) -> None:
    own = make_config("own")
    set_seed(own.seed)
    model = TransformerLM.from_config(own.model)
    data = ids["train"], ids["validation"]
    train(own, model=model, data=data, loss=lambda model, *batch: model.loss(*batch))
    records = [comparable_records(one.run_folder / "metrics.jsonl") for one in (finished, own)]
    assert len(records[0]) == len(records[1])
    for one, other in zip(*records, strict=True):
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
    make_config: MakeConfig, ids: dict[str, Any]
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

    whole, parted = make_config("whole"), make_config("parted")
    train(whole, **parts())
    train(parted, **parts(), clock=Clock(stop_after=5))
    train(parted, **parts(), resume=True)
    assert not compare_runs(whole.run_folder, parted.run_folder).differences
    assert "blocks.0.feed_forward.scale" in dict(parts()["model"].named_parameters())
    other = parts() | {"data": ids["train"][::-1].copy()}
    with pytest.raises((ConfigError, DataError), match="data"):
        train(parted, **other, resume=True)
