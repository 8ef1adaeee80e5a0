"""How likely a model finds the ids of a text, against the model itself."""

import pytest
import torch

from groundup.errors import CheckpointError
from groundup.generation.scoring import log_softmax_tables
from groundup.model import TransformerLM

CONTEXT = 16


def new_model() -> TransformerLM:
    torch.manual_seed(0)
    return TransformerLM(
        vocab_size=260, context_length=CONTEXT, d_model=16, num_layers=2, num_heads=2
    )


@torch.no_grad()
def test_a_long_text_is_seen_with_half_a_context_at_least() -> None:
    model = new_model()
    ids = torch.randint(256, (45,), generator=torch.Generator().manual_seed(1)).tolist()
    found = [value for own, _ in log_softmax_tables(model, ids) for value in own]
    tables = torch.cat([table for _, table in log_softmax_tables(model, ids)])
    assert found == [float(row[id]) for row, id in zip(tables, ids[1:], strict=True)]
    # All windows of the text, as one batch for each number of ids before the one that is scored.
    possible: dict[int, list[float]] = {index: [] for index in range(1, len(ids))}
    for before in range(1, CONTEXT + 1):
        windows = torch.tensor([ids[end - before : end] for end in range(before, len(ids))])
        table = torch.log_softmax(model(windows)[:, -1], dim=-1)
        for index, row in zip(range(before, len(ids)), table, strict=True):
            if before >= min(index, CONTEXT // 2):
                possible[index].append(float(row[ids[index]]))
    for index, value in enumerate(found, start=1):
        assert any(value == pytest.approx(one, abs=1e-4) for one in possible[index])
        if index <= CONTEXT:
            assert value == pytest.approx(possible[index][-1], abs=1e-4)


def test_damaged_weights_are_told() -> None:
    model = new_model()
    with torch.no_grad():
        model.output_weight.fill_(torch.nan)
    with pytest.raises(CheckpointError, match="not finite"):
        list(log_softmax_tables(model, [1, 2, 3]))
