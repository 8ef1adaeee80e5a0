"""How likely a model finds a text: the log-probability of each id, given those before it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from groundup.data.batches.order import sliding_windows
from groundup.generation.sampling import not_finite
from groundup.nn.losses import perplexity

if TYPE_CHECKING:
    from groundup.model import TransformerLM

# The logits of so many positions are held at once: a whole context of a large vocabulary is more
# memory than the rest of the model.
_CHUNK = 128


@dataclass(frozen=True)
class Score:
    """How likely one text is."""

    ids: tuple[int, ...]
    """The ids of the text."""
    log_probabilities: tuple[float | None, ...]
    """ln p of each id; None for a first one without context."""
    loss: float
    """Mean of -ln p, in nats."""
    perplexity: float
    """exp(loss): how many equally likely ids the model hesitates between."""
    bits_per_byte: float
    """Bits that the model needs for a byte of text."""
    num_bytes: int
    """Bytes of the ids that have a log-probability."""

    @classmethod
    def of(
        cls, ids: Sequence[int], log_probabilities: Sequence[float | None], num_bytes: int
    ) -> Score:
        known = [value for value in log_probabilities if value is not None]
        nats = -math.fsum(known)
        loss = nats / len(known)
        bits_per_byte = nats / math.log(2) / num_bytes if num_bytes else math.nan
        ids, values = tuple(ids), tuple(log_probabilities)
        return cls(ids, values, loss, perplexity(loss), bits_per_byte, num_bytes)


def log_probabilities(model: TransformerLM, ids: Sequence[int]) -> list[float]:
    """ln p of every id but the first, each seen with at least half a context before it, or all
    there is."""
    return [value for own, _ in log_softmax_tables(model, ids) for value in own]


@torch.inference_mode()
def log_softmax_tables(
    model: TransformerLM, ids: Sequence[int]
) -> Iterator[tuple[list[float], Float[Tensor, "positions vocab"]]]:
    """ln p of the ids but the first, some at a time, and of all ids at the same positions."""
    context_length = model.config.context_length
    for begin, end, num_scored in sliding_windows(len(ids), len(ids) - 1, context_length):
        window = torch.tensor(ids[begin:end], device=model.output_weight.device)
        hidden = model.hidden(window[None, :-1])[0, -num_scored:]
        targets = window[-num_scored:]
        for first in range(0, num_scored, _CHUNK):
            part = slice(first, first + _CHUNK)
            table = torch.log_softmax(model.logits(hidden[part]).float(), dim=-1)
            own = table.gather(-1, targets[part, None])[:, 0].tolist()
            if not all(map(math.isfinite, own)):
                raise not_finite()
            yield own, table
