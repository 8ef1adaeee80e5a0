"""How likely a text is, against the model's own loss."""

import math

import pytest
import torch

from groundup.errors import CheckpointError, ConfigError
from groundup.generation import LanguageModel
from groundup.generation.scoring import log_probabilities
from groundup.model import TransformerLM
from groundup.tokenizer import Tokenizer

END = "<|endoftext|>"
BYTES = {id: bytes([id]) for id in range(256)}
CONTEXT = 16


def language_model(*special_tokens: str) -> LanguageModel:
    torch.manual_seed(0)
    model = TransformerLM(
        vocab_size=260, context_length=CONTEXT, d_model=16, num_layers=2, num_heads=2
    )
    merges = [(b"h", b"e")]
    return LanguageModel(model, Tokenizer({**BYTES, 256: b"he"}, merges, list(special_tokens)))


def test_a_text_is_scored_as_the_beginning_of_a_document() -> None:
    scored = language_model(END)
    score = scored.score("the hen ☃")
    ids = scored.tokenizer.encode("the hen ☃")
    assert scored.begin_id is not None
    whole = torch.tensor([[scored.begin_id, *ids]])
    loss = scored.model.loss(whole[:, :-1], whole[:, 1:]).item()
    assert list(score.ids) == ids and len(score.log_probabilities) == len(ids)
    assert score.loss == pytest.approx(loss, rel=1e-5)
    assert score.perplexity == pytest.approx(math.exp(loss), rel=1e-5)
    assert score.num_bytes == len("the hen ☃".encode())
    nats = -sum(value for value in score.log_probabilities if value is not None)
    assert score.bits_per_byte == pytest.approx(nats / math.log(2) / score.num_bytes)


def test_without_an_end_of_text_the_first_id_has_no_score() -> None:
    scored = language_model()
    score = scored.score("hen")
    assert score.log_probabilities[0] is None and len(score.log_probabilities) == len(score.ids)
    assert score.num_bytes == 1 and len(score.ids) == 2
    assert score.loss == pytest.approx(-log_probabilities(scored.model, score.ids)[0])


@torch.no_grad()
def test_a_long_text_is_seen_with_half_a_context_at_least() -> None:
    model = language_model(END).model
    ids = torch.randint(256, (45,), generator=torch.Generator().manual_seed(1)).tolist()
    found = log_probabilities(model, ids)
    # All windows of the text, as one batch for each number of ids before the one that is scored.
    possible: dict[int, list[float]] = {index: [] for index in range(1, len(ids))}
    for before in range(1, CONTEXT + 1):
        windows = torch.tensor([ids[end - before : end] for end in range(before, len(ids))])
        table = torch.log_softmax(model(windows)[:, -1], dim=-1)
        for index, row in zip(range(before, len(ids)), table, strict=True):
            if before >= min(index, CONTEXT // 2):
                possible[index].append(float(row[ids[index]]))
    assert len(found) == len(ids) - 1
    for index, value in enumerate(found, start=1):
        assert any(value == pytest.approx(one, abs=1e-4) for one in possible[index])
        if index <= CONTEXT:
            assert value == pytest.approx(possible[index][-1], abs=1e-4)


def test_nothing_to_score_is_an_error() -> None:
    with pytest.raises(ConfigError, match="0 ids has none to score"):
        language_model(END).score("")
    with pytest.raises(ConfigError, match="1 id has none to score"):
        language_model().score("x")
    assert language_model(END).score("x").num_bytes == 1


def test_damaged_weights_are_told() -> None:
    scored = language_model(END)
    with torch.no_grad():
        scored.model.output_weight.fill_(torch.nan)
    with pytest.raises(CheckpointError, match="not finite"):
        scored.score("hen")
