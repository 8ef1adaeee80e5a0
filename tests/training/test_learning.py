"""Does it learn: losses fall, a batch is learned by heart, every setting of the model trains."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.checkpoint import CheckpointFolder, restore_model
from groundup.data.batches.loader import Batch
from groundup.optim.build import build_optimizer
from groundup.runs.config import RunConfig
from groundup.training.building import build_state, open_data
from groundup.training.evaluation import evaluate
from groundup.training.loop import train
from groundup.training.step import train_step

MakeConfig = Callable[..., RunConfig]


def losses_of(folder: Path) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_training_lowers_both_losses(make_config: MakeConfig) -> None:
    config = make_config("run", {"num_steps": 60, "evaluation.every_steps": 30})
    summary = train(config)
    losses = losses_of(summary.run_folder)
    assert summary.steps == 60 and len(losses) == 60
    assert sum(losses[-5:]) / 5 < losses[0] - 1.5
    assert summary.validation_loss is not None and summary.validation_loss < losses[0] - 1.5
    assert summary.loss == losses[-1]


def test_one_batch_is_learned_by_heart(make_config: MakeConfig) -> None:
    config = make_config("run", {"optimizer.weight_decay": 0.0, "model.d_model": 32})
    state = build_state(config)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(300, (4, 17), generator=generator)
    batch = Batch(0, ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
    for _ in range(150):
        figures = train_step(state.model, state.optimizer, batch, clip_norm=1.0).read()
    assert figures.loss < 0.02


def test_the_first_loss_is_near_that_of_guessing(make_config: MakeConfig) -> None:
    config = make_config("run", {"num_steps": 1, "schedule.warmup_steps": 0, "model.d_model": 64})
    summary = train(config)
    assert summary.loss == pytest.approx(math.log(300), abs=1.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"model.norm": "post"},
        {"model.norm": "none"},
        {"model.positions": "none"},
        {"model.feed_forward": "silu"},
        {"model.feed_forward": "gelu"},
        {"model.feed_forward": "relu2"},
        {"model.tie_embeddings": True},
        {"model.qk_norm": True},
        {"model.num_kv_heads": 1},
        {"model.logit_soft_cap": 15.0},
        {"model.kernels": "reference"},
        {"model.num_layers": 0},
        {"model.d_ff": None},
        {"z_loss": 1e-4},
        {"clip_norm": None},
        pytest.param({"precision": "bfloat16"}, marks=pytest.mark.needs_bfloat16),
        {"schedule.name": "wsd"},
        {"schedule.name": "linear"},
        {"schedule.name": "constant"},
        {"optimizer.name": "sgd"},
        {"optimizer.name": "muon"},
        {"data.order": "epochs"},
    ],
    ids=lambda changes: "_".join(f"{key}_{value}" for key, value in changes.items()),
)
def test_every_setting_trains(make_config: MakeConfig, changes: dict[str, Any]) -> None:
    summary = train(make_config("run", {"num_steps": 8, "data.verify": False, **changes}))
    losses = losses_of(summary.run_folder)
    assert len(losses) == 8 and all(map(math.isfinite, losses))
    assert summary.num_skipped == 0
    assert min(losses[4:]) < losses[0]


@pytest.mark.parametrize("micro_batch_size", [1, 2, 4])
@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_accumulation_equals_the_large_batch(
    make_config: MakeConfig, micro_batch_size: int, clip_norm: float | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(300, (4, 17), generator=generator)

    def step(size: int | None) -> tuple[Any, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        state = build_state(make_config("run", {"optimizer.name": "sgd"}))
        gradients: dict[str, torch.Tensor] = {}
        state.optimizer.register_step_pre_hook(
            lambda *_: gradients.update(
                (name, parameter.grad.clone())
                for name, parameter in state.model.named_parameters()
                if parameter.grad is not None
            )
        )
        batch = Batch(0, ids[:, :-1], ids[:, 1:], size)
        figures = train_step(state.model, state.optimizer, batch, clip_norm=clip_norm).read()
        return figures, gradients, state.model.state_dict()

    whole, whole_gradients, whole_weights = step(None)
    parted, parted_gradients, parted_weights = step(micro_batch_size)
    assert parted.loss == pytest.approx(whole.loss, rel=1e-5)
    assert parted.gradient_norm == pytest.approx(whole.gradient_norm, rel=1e-4)
    assert whole_gradients.keys() == parted_gradients.keys() and whole_gradients
    for name, gradient in whole_gradients.items():
        torch.testing.assert_close(parted_gradients[name], gradient, rtol=1e-4, atol=1e-6)
    for name, weight in whole_weights.items():
        torch.testing.assert_close(parted_weights[name], weight, rtol=1e-4, atol=1e-6)


def test_accumulated_runs_have_the_same_losses(make_config: MakeConfig) -> None:
    whole = train(make_config("whole")).run_folder
    parted = train(make_config("parted", {"micro_batch_size": 2})).run_folder
    assert losses_of(parted) == pytest.approx(losses_of(whole), rel=1e-3)


def test_clipping_bounds_the_update(make_config: MakeConfig) -> None:
    ids = torch.arange(34).reshape(2, 17)
    batch = Batch(0, ids[:, :-1], ids[:, 1:])
    changes = {"optimizer.name": "sgd", "optimizer.learning_rate": 1.0}
    state = build_state(make_config("run", changes))
    before = {name: weight.clone() for name, weight in state.model.state_dict().items()}
    figures = train_step(state.model, state.optimizer, batch, clip_norm=0.01).read()
    after = state.model.state_dict()
    moved = math.sqrt(sum(float((after[name] - before[name]).square().sum()) for name in before))
    assert figures.gradient_norm > 0.01
    assert moved == pytest.approx(0.01, rel=1e-2)


def test_bits_per_byte_counts_the_bytes_of_text(make_config: MakeConfig) -> None:
    from groundup.tokenizer import Tokenizer

    config = make_config()
    data = open_data(config, Tokenizer.load(config.data.tokenizer))
    assert data.validation is not None
    model = build_state(config).model
    found = evaluate(model, data.validation, data.tokenizer, batch_size=3)
    ids = torch.from_numpy(data.validation[:].astype("int64"))
    assert found.num_tokens == len(ids) - 1
    # The end of a document is a target, but no text.
    end = data.train.index.end.id
    text = data.tokenizer.decode_bytes([id for id in ids[1:].tolist() if id != end])
    nats = found.loss * found.num_tokens
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / len(text))
    assert found.perplexity == pytest.approx(math.exp(found.loss))


def test_evaluation_of_some_windows_is_fixed_and_disturbs_nothing(make_config: MakeConfig) -> None:
    from groundup.tokenizer import Tokenizer

    config = make_config()
    data = open_data(config, Tokenizer.load(config.data.tokenizer))
    assert data.validation is not None
    model = build_state(config).model
    before = torch.get_rng_state()
    first = evaluate(model, data.validation, data.tokenizer, num_windows=5, batch_size=2)
    second = evaluate(model, data.validation, data.tokenizer, num_windows=5, batch_size=5)
    assert first.num_tokens == second.num_tokens == 5 * 16
    assert first.loss == pytest.approx(second.loss, rel=1e-6)
    assert torch.equal(before, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_run_evaluates_the_whole_split_on_request(make_config: MakeConfig) -> None:
    from groundup.tokenizer import Tokenizer

    whole = {"model.context_length": 2, "evaluation.num_windows": None}
    config = make_config("run", {**whole, "num_steps": 1, "evaluation.batch_size": 512})
    summary = train(config)
    data = open_data(config, Tokenizer.load(config.data.tokenizer))
    # More windows than a run takes when nothing is said.
    assert data.validation is not None and data.validation.num_ids > 2 * 256 + 2
    model = build_state(config).model
    newest = CheckpointFolder(summary.run_folder / "checkpoints").newest()
    restore_model(model, newest.model_state())
    found = evaluate(model, data.validation, data.tokenizer, num_windows=None, batch_size=512)
    assert found.num_tokens == data.validation.num_ids - 1
    assert summary.validation_loss == pytest.approx(found.loss, rel=1e-7)
    assert summary.bits_per_byte == pytest.approx(found.bits_per_byte, rel=1e-7)


def test_a_split_shorter_than_a_window_is_evaluated_whole(make_config: MakeConfig) -> None:
    from groundup.tokenizer import Tokenizer

    config = make_config("run", {"model.context_length": 2048})
    data = open_data(config, Tokenizer.load(config.data.tokenizer))
    assert data.validation is not None and data.validation.num_ids < 2048
    found = evaluate(build_state(config).model, data.validation, data.tokenizer, num_windows=4)
    assert found.num_tokens == data.validation.num_ids - 1


def test_a_seed_decides_the_weights_and_another_gives_others(make_config: MakeConfig) -> None:
    one, same = build_state(make_config()), build_state(make_config())
    other = build_state(make_config("run", {"seed": 1}))
    assert torch.equal(one.model.output_weight, same.model.output_weight)
    assert not torch.equal(one.model.output_weight, other.model.output_weight)


def test_the_optimizer_covers_every_weight(make_config: MakeConfig) -> None:
    config = make_config()
    model = build_state(config).model
    groups = build_optimizer(model, config.optimizer).param_groups
    covered = {id(parameter) for group in groups for parameter in group["params"]}
    assert covered == {id(parameter) for parameter in model.parameters()}
