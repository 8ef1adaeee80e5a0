"""Fine-tuning on conversations: only answers count, and conversations are masked from each
other."""

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from groundup.checkpoint import CheckpointFolder
from groundup.data.batches.loader import Batch
from groundup.data.chats import EncodedConversations, PackedRows
from groundup.errors import ConfigError
from groundup.generation import LanguageModel
from groundup.model import TransformerLM
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer
from groundup.training.loop import train
from groundup.training.preference import Preference, preference_sums
from groundup.training.step import count_targets, summed_loss

from .conftest import MakeConfig


def make_model(**changes: Any) -> TransformerLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "context_length": 24, "d_model": 16, "num_layers": 2, "num_heads": 2}
    return TransformerLM(**sizes, **changes)  # type: ignore[arg-type]


def make_conversations(lengths: list[int]) -> EncodedConversations:
    random = np.random.default_rng(0)
    total = sum(lengths)
    ids, is_answer = random.integers(0, 50, total), random.random(total) < 0.5
    offsets = np.cumsum([0, *lengths])
    is_answer[offsets[1:] - 1] = True
    return EncodedConversations(ids, is_answer, offsets, 0)


def packed_batch(conversations: EncodedConversations, *numbers: int) -> Batch:
    """All rows, or those of the given numbers."""
    rows = PackedRows(conversations, np.arange(len(conversations)), 24)
    parts = next(rows.batches(rows.num_rows))
    inputs, targets, *rest = torch.from_numpy(parts[:, list(numbers) or slice(None)])
    return Batch(0, inputs, targets, None, *rest)


MODELS: list[dict[str, Any]] = [
    {},
    {"num_kv_heads": 1, "qk_norm": True, "tie_embeddings": True},
    {"norm": "post"},
    {"gated_attention": True, "value_embeddings": "projection"},
]


@pytest.mark.parametrize("changes", MODELS)
def test_packed_conversations_have_the_loss_and_gradient_of_each_alone(
    changes: dict[str, Any],
) -> None:
    conversations = make_conversations([9, 4, 20, 7, 2, 25])
    model = make_model(**changes)
    alone = torch.zeros(())
    for number in range(len(conversations)):
        part = slice(conversations.offsets[number], conversations.offsets[number + 1])
        ids = torch.from_numpy(conversations.ids[part])
        log_p = model(ids[:-1]).log_softmax(-1).gather(-1, ids[1:, None]).squeeze(-1)
        alone = alone - log_p[torch.from_numpy(conversations.is_answer[part][1:])].sum()
    expected = torch.autograd.grad(alone, list(model.parameters()), allow_unused=True)
    batch = packed_batch(conversations)
    assert len(batch.inputs) == 3
    assert count_targets(batch) == (batch.targets >= 0).sum()
    assert count_targets(Batch(0, batch.inputs, batch.inputs)) == batch.inputs.numel()
    loss = summed_loss(model, batch)
    torch.testing.assert_close(loss, alone)
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_tuned_run_answers(make_tuning: MakeConfig) -> None:
    config = make_tuning("tuned", {"num_steps": 60, "batch_size": 2})
    summary = train(config)
    assert summary.validation_loss is not None and summary.validation_loss < 1.5
    model = LanguageModel.load(config.run_folder)
    question = "Ben had a red kite. What?"
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    answer = model.generate(prompt, max_tokens=16, temperature=0, stop=("<|im_end|>",))
    assert re.fullmatch(r"A \w+ \w+\.", answer)


def test_only_adapters_train_and_every_use_merges_them(make_tuning: MakeConfig, build: Any) -> None:
    config = make_tuning("lora", {"tuning.lora_rank": 2})
    train(config)
    checkpoint = CheckpointFolder(RunFolder(config.run_folder).checkpoints).newest()
    adapted, merged = checkpoint.adapted_state(), checkpoint.model_state()
    before = build(make_tuning("other", {"seed": 0})).model.state_dict().keys()
    assert merged.keys() == before
    query = "blocks.0.attention.query"
    up, down = (adapted[f"{query}.adapter.{name}"] for name in ("up", "down"))
    expected = adapted[f"{query}.weight"] + up @ down
    torch.testing.assert_close(merged[f"{query}.weight"], expected)
    assert down.shape == (2, 16) and up.any()
    source = CheckpointFolder(RunFolder(str(config.start_from)).checkpoints).newest().model_state()
    assert torch.equal(adapted[f"{query}.weight"], source[f"{query}.weight"])
    # In the tables, only rows of special tokens change; the optimizer has nothing else.
    is_same = (merged["lm_head.weight"][:300] == source["lm_head.weight"]).all(1)
    special = Tokenizer.load(RunFolder(config.run_folder).tokenizer_file).special_tokens
    assert (~is_same).nonzero().flatten().tolist() == [id for id in special.values() if id < 300]
    moments = checkpoint.optimizer_state()["state"].values()
    adapters = [name for name in adapted if "adapter" in name and not name.endswith("ids")]
    learned = sum(adapted[name].numel() for name in adapters)
    assert sum(one["exp_avg"].numel() for one in moments) == learned
    model = LanguageModel.load(config.run_folder).model
    assert torch.equal(model.state_dict()[f"{query}.weight"], merged[f"{query}.weight"])


def test_a_run_ends_early_with_the_best_if_validation_gets_worse(
    make_tuning: MakeConfig, records_of: Any
) -> None:
    changes = {"num_steps": 400, "optimizer.learning_rate": 0.3, "clip_norm": None}
    changes |= {"evaluation.every_steps": 3, "checkpoints.every_steps": 3, "evaluation.patience": 4}
    config = make_tuning("worse", changes)
    summary = train(config)
    losses = {one["step"]: one["validation_loss"] for one in records_of(config)[2::3]}
    bits = {one["step"]: one["bits_per_byte"] for one in records_of(config)[2::3]}
    best = min(losses, key=lambda step: losses[step])
    assert summary.is_finished and summary.steps == best + 4 * 3 < 400
    assert summary.validation_loss == losses[best]
    assert summary.bits_per_byte == pytest.approx(bits[best])
    assert CheckpointFolder(RunFolder(config.run_folder).checkpoints).steps() == [best]
    again = train(config, resume=True)
    assert (again.is_finished, again.steps) == (True, summary.steps)
    assert LanguageModel.load(config.run_folder).step == best
    # An equal loss is no improvement.
    same = make_tuning("same", {**changes, "optimizer.learning_rate": 1e-30})
    assert train(same).steps == 5 * 3


@pytest.mark.parametrize(("rank", "rate"), [(None, 3e-3), (2, 3e-2)])
def test_dpo_prefers_the_chosen_answers(
    make_tuning: MakeConfig, pairs: Any, records_of: Any, rank: int | None, rate: float
) -> None:
    changes = {**pairs, "tuning.lora_rank": rank, "num_steps": 40, "batch_size": 2}
    config = make_tuning("preferring", {**changes, "optimizer.learning_rate": rate})
    summary = train(config)
    first, *_, last = records_of(config)
    assert first["loss"] == pytest.approx(math.log(2))
    assert summary.validation_loss == last["validation_loss"] < 0.5
    assert last["preference_accuracy"] == 1 and last["preference_margin"] > 0.5
    state = CheckpointFolder(RunFolder(config.run_folder).checkpoints).newest().state
    assert len(state["reference"]) == 36 and summary.bits_per_byte is None
    with pytest.raises(ConfigError, match="z_loss"):
        train(make_tuning("other", {**changes, "z_loss": 0.1}))


@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": True, "qk_norm": True}])
def test_dpo_has_the_loss_and_gradient_of_plain_torch(changes: dict[str, Any]) -> None:
    pairs = replace(make_conversations([9, 4, 20, 7, 2, 25, 6, 11]), has_pairs=True)
    model, beta = make_model(**changes), 0.3
    reference = torch.linspace(-2, 1, 4)
    margins = []
    for number in range(4):
        sums = []
        for side in (2 * number, 2 * number + 1):
            part = slice(pairs.offsets[side], pairs.offsets[side + 1])
            ids, is_answer = torch.from_numpy(pairs.ids[part]), pairs.is_answer[part][1:]
            log_p = model(ids[:-1]).log_softmax(-1)[torch.arange(len(ids) - 1), ids[1:]]
            sums.append(log_p[torch.from_numpy(is_answer)].sum())
        margins.append(beta * (sums[0] - sums[1] - reference[number]))
    wanted = torch.stack(margins)
    expected = torch.autograd.grad(-wanted.sigmoid().log().sum(), list(model.parameters()))
    # A batch may have the end of one epoch and the same pairs from the next.
    batch = packed_batch(pairs, 0, 0, 1, 1, 2, 2)
    assert batch.inputs.shape == (6, 48) and count_targets(batch) == 8
    parts = replace(batch, micro_batch_size=3).micro_batches()
    found = [preference_sums(model, part, Preference(reference, beta)) for part in parts]
    loss, *rest = torch.stack(found).sum(0) / 2
    torch.testing.assert_close(loss, -wanted.sigmoid().log().sum())
    num_right = int((wanted > 0).sum())
    assert 0 < num_right < 4
    expected_sums = [num_right, wanted.sum().item(), 4]
    assert [one.item() for one in rest] == pytest.approx(expected_sums, rel=1e-4)
    gradient = torch.autograd.grad(loss, list(model.parameters()))
    for one, other in zip(gradient, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
