"""How likely the model finds a prompt: what a client gets who asks for `echo` with `logprobs`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from groundup.generation.sampling import not_finite
from groundup.serving.choices import Entry

if TYPE_CHECKING:
    from groundup.model import TransformerLM
    from groundup.tokenizer import Tokenizer

# Positions whose scores for the whole vocabulary are in memory at once.
_POSITIONS_AT_ONCE = 256


@torch.inference_mode()
def score_prompt(
    model: TransformerLM, tokenizer: Tokenizer, ids: Sequence[int], num_alternatives: int
) -> list[Entry]:
    """An entry for each id; nothing stands before the first, so that it has no likelihood."""
    batch = torch.tensor([list(ids)], device=model.output_weight.device)
    hidden = model.hidden(batch)[0, :-1]
    scores: list[tuple[float | None, tuple[tuple[int, float], ...]]] = [(None, ())]
    for first in range(0, len(hidden), _POSITIONS_AT_ONCE):
        part = hidden[first : first + _POSITIONS_AT_ONCE]
        following = batch[0, first + 1 : first + 1 + len(part)]
        log_probabilities = torch.log_softmax(model.logits(part).float(), dim=-1)
        own = log_probabilities.gather(-1, following[:, None])[:, 0].tolist()
        if any(map(math.isnan, own)):
            raise not_finite()
        num_best = min(num_alternatives, log_probabilities.shape[-1])
        best = log_probabilities.topk(num_best, dim=-1)
        for value, best_ids, best_values in zip(
            own, best.indices.tolist(), best.values.tolist(), strict=True
        ):
            scores.append((value, tuple(zip(best_ids, best_values, strict=True))))
    return _with_places(tokenizer, ids, scores)


def _with_places(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    scores: Sequence[tuple[float | None, tuple[tuple[int, float], ...]]],
) -> list[Entry]:
    decoder = tokenizer.decode_stream()
    entries, end = [], 0
    for id, (value, alternatives) in zip(ids, scores, strict=True):
        begin, end = end, end + len(decoder.push(id))
        entries.append(Entry(id, value, alternatives, begin, end))
    return entries
