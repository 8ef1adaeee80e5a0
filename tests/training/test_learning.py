"""Does it learn: losses fall, accumulation equals the large batch, every setting trains."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from groundup.checkpoint import CheckpointFolder
from groundup.data.batches.loader import Batch
from groundup.generation import LanguageModel
from groundup.model import TransformerLM
from groundup.runs.folder import RunFolder
from groundup.runtime import set_seed
from groundup.training.data import open_data
from groundup.training.evaluation import Evaluation, Evaluator
from groundup.training.loop import train

from .conftest import MakeConfig


def evaluate(model: Any, split: Any, tokenizer: Any, **options: Any) -> Evaluation:
    options = {"num_windows": None, **options}
    return Evaluator(split, tokenizer, model.config.context_length, **options)(model)


@pytest.mark.parametrize(("micro_batch_size", "max_grad_norm"), [(1, None), (2, 0.05)])
def test_accumulation_equals_the_large_batch(
    make_config: MakeConfig, build: Any, take_step: Any, micro_batch_size: int, max_grad_norm: Any
) -> None:
    ids = torch.randint(300, (4, 17), generator=torch.Generator().manual_seed(0))

    def step(size: int | None) -> tuple[Any, dict[str, torch.Tensor]]:
        # A large learning rate, so that gradients show in the weights.
        changes = {"optimizer.name": "sgd", "optimizer.learning_rate": 1.0}
        changes |= {"max_grad_norm": max_grad_norm}
        config = make_config("run", changes)
        state = build(config)
        before = {name: one.clone() for name, one in state.model.state_dict().items()}
        result = take_step(config, state, Batch(0, ids[:, :-1], ids[:, 1:], size))
        if max_grad_norm is not None:
            after = state.model.state_dict()
            moved = sum(float((after[name] - before[name]).square().sum()) for name in before)
            assert math.sqrt(moved) == pytest.approx(max_grad_norm, rel=1e-2)
        return result, state.model.state_dict()

    (whole, whole_weights), (parted, parted_weights) = step(None), step(micro_batch_size)
    assert parted.loss == pytest.approx(whole.loss, rel=1e-5)
    assert parted.gradient_norm == pytest.approx(whole.gradient_norm, rel=1e-4)
    assert whole.gradient_norm > 0.05
    for name, weight in whole_weights.items():
        torch.testing.assert_close(parted_weights[name], weight, rtol=1e-4, atol=1e-6)


def test_averages_are_what_is_saved_and_evaluated_and_nothing_that_learns(
    make_config: MakeConfig, records_of: Any
) -> None:
    changes = {"checkpoints.every_steps": 1, "checkpoints.keep_last": 12}
    changes["schedule.warmup_steps"] = 0
    plain = make_config("plain", changes)
    averaged = make_config("averaged", {**changes, "optimizer.ema_fraction": 0.5})
    train(plain)
    train(averaged)
    losses = [[one["loss"] for one in records_of(config)] for config in (plain, averaged)]
    assert losses[0] == losses[1]
    folders = [CheckpointFolder(one.run_folder / "checkpoints") for one in (plain, averaged)]
    latest = [folders[0].load(step).model_state() for step in range(1, 13)]
    saved = folders[1].newest().model_state()
    # Of the first step's weights and of what later ones had before: 1 - 1 / (0.5 * 12) of it stays.
    set_seed(plain.seed)
    for name, first in TransformerLM.from_config(plain.model).state_dict().items():
        expected = first
        for weights in latest:
            expected = expected * 5 / 6 + weights[name] / 6
        torch.testing.assert_close(saved[name], expected)
    ends = [records_of(one)[-1]["validation_loss"] for one in (plain, averaged)]
    model = LanguageModel.load(averaged.run_folder).model
    data = open_data(averaged, RunFolder(averaged.run_folder), {})
    found = evaluate(model, data.validation, data.tokenizer, num_windows=4)
    assert found.loss == pytest.approx(ends[1], rel=1e-5) != ends[0]


@pytest.fixture
def open_parts(make_config: MakeConfig, build: Any) -> Callable[..., tuple[Any, Any, Any]]:
    """Model, validation split and tokenizer of a run with the settings given."""

    def open_(changes: dict[str, Any] | None = None) -> tuple[Any, Any, Any]:
        config = make_config("run", changes)
        data = open_data(config, RunFolder("nowhere"), {})
        return build(config).model, data.validation, data.tokenizer

    return open_


def test_bits_per_byte_counts_the_bytes_of_text(open_parts: Any) -> None:
    model, validation, tokenizer = open_parts()
    found = evaluate(model, validation, tokenizer, batch_size=3)
    ids = torch.from_numpy(validation[:].astype("int64"))
    assert found.num_tokens == len(ids) - 1
    # The end of a document is a target, but no text.
    end = validation.index.end.id
    text = tokenizer.decode_bytes([id for id in ids[1:].tolist() if id != end])
    nats = found.loss * found.num_tokens
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / len(text))
    assert found.perplexity == pytest.approx(math.exp(found.loss))


def test_evaluation_of_some_windows_is_fixed_and_disturbs_nothing(open_parts: Any) -> None:
    model, validation, tokenizer = open_parts({"model.context_length": 2048})
    found = evaluate(model, validation, tokenizer, num_windows=4)
    assert found.num_tokens == validation.num_tokens - 1 < 2047
    model, validation, tokenizer = open_parts()
    before = torch.get_rng_state()
    first = evaluate(model, validation, tokenizer, num_windows=5, batch_size=2)
    second = evaluate(model, validation, tokenizer, num_windows=5, batch_size=5)
    assert first.num_tokens == second.num_tokens == 5 * 16
    assert first.loss == pytest.approx(second.loss, rel=1e-6)
    assert torch.equal(before, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())
