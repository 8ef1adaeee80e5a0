"""Direct preference optimization (DPO): make chosen answers more probable than rejected ones.

With log-probabilities summed over the tokens of an answer, and those of the weights that the run
starts from as the reference:

    margin = beta · (log p(chosen) - log p(rejected) - (log p_ref(chosen) - log p_ref(rejected)))
    loss = -log sigmoid(margin)
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.utils.checkpoint import checkpoint as recompute

from groundup.checkpoint import Checkpoint
from groundup.data.batches.loader import Batch
from groundup.data.chats import PackedRows
from groundup.errors import DataError
from groundup.model import TransformerLM
from groundup.nn.losses import at_least_float32, logsumexp
from groundup.runs.config import RunConfig
from groundup.training.machine import autocast

# Rows of logits held at once.
_CHUNK_ROWS = 1024


class Preference(NamedTuple):
    """What the loss depends on besides the weights."""

    reference: Tensor
    """log p_ref(chosen) - log p_ref(rejected) of each pair."""
    beta: float

    @classmethod
    def open(
        cls,
        config: RunConfig,
        model: TransformerLM,
        splits: Sequence[PackedRows],
        checkpoint: Checkpoint | None = None,
    ) -> "Preference":
        """With the reference of the checkpoint, or without one that of the model."""
        reference = torch.zeros(len(splits[0].conversations), device=model.device)
        if checkpoint is not None:
            stored = torch.tensor(checkpoint.state.get("reference", ()), device=model.device)
            if len(stored) != len(reference):
                raise DataError(f"{checkpoint.path} was trained on other pairs of answers")
            return cls(stored, config.tuning.beta)
        with torch.no_grad(), autocast(config):
            for split in splits:
                for parts in split.batches(config.sequences_in_memory):
                    inputs, targets, *rest = torch.from_numpy(parts).to(model.device)
                    pairs, found = log_ratios(model, Batch(0, inputs, targets, None, *rest))
                    reference[pairs] = found
        return cls(reference, config.tuning.beta)


def preference_sums(model: TransformerLM, batch: Batch, preference: Preference) -> Tensor:
    """The loss, the number of positive margins, the margin, and the number of pairs, each summed
    over the pairs of a batch."""
    pairs, found = log_ratios(model, batch)
    margins = preference.beta * (found - preference.reference[pairs])
    each = [-logsigmoid(margins), (margins > 0).to(margins), margins, torch.ones_like(margins)]
    return torch.stack(each).sum(1)


def log_ratios(model: TransformerLM, batch: Batch) -> tuple[Tensor, Tensor]:
    """The numbers of the pairs in a batch, and log p(chosen) - log p(rejected) of each."""
    pairs, places, signs = find_pairs(batch)
    is_learned = batch.targets >= 0
    hidden, targets = packed_hidden(model, batch)[is_learned], batch.targets[is_learned]
    # Sharded weights are whole only after `hidden`.
    weight = model.output_weight
    chunks = zip(*(torch.split(one, _CHUNK_ROWS) for one in (hidden, targets)), strict=True)
    # The backward pass computes the logits again.
    found = [recompute(_log_p, one, weight, ids, use_reentrant=False) for one, ids in chunks]
    return pairs, weight.new_zeros(len(pairs)).index_add(0, places, signs * torch.cat(found))


def find_pairs(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers of the pairs in a batch; for each target the index of its pair among them, and 1
    in a chosen answer, -1 in a rejected one. A pair in two rows, from two epochs, counts twice."""
    assert batch.pairs is not None
    rows, columns = (batch.targets >= 0).nonzero(as_tuple=True)
    each = torch.stack((rows, batch.pairs[rows, columns]), 1)
    found, places = torch.unique(each, dim=0, return_inverse=True)
    return found[:, 1], places, torch.where(columns < batch.inputs.shape[1] // 2, 1, -1)


def packed_hidden(model: TransformerLM, batch: Batch) -> Tensor:
    """The model's `hidden` for packed rows: tokens attend only to their own sequence."""
    assert batch.positions is not None
    length = batch.inputs.shape[-1] // (1 if batch.pairs is None else 2)
    inputs, positions = batch.inputs.reshape(-1, length), batch.positions.reshape(-1, length)
    places = torch.arange(length, device=positions.device)
    hidden = model.hidden(inputs, document_starts=places - positions)
    return hidden.view(*batch.inputs.shape, -1)


def _log_p(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    logits = at_least_float32(hidden @ weight.T)
    return logits.gather(-1, targets[:, None]).squeeze(-1) - logsumexp(logits)
