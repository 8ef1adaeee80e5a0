"""How likely a model finds a text: the log-probability of each id, given those before it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from groundup.data.batches.order import sliding_windows
from groundup.generation.sampling import not_finite

if TYPE_CHECKING:
    from groundup.model import TransformerLM

# The logits of so many positions are held at once: a whole context of a large vocabulary is more
# memory than the rest of the model.
_CHUNK = 128


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
