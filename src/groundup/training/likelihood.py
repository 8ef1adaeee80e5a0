"""How likely a model finds texts of any length: many sequences at once, each predicted once.

What `evaluation` does for shards is done here for documents, and for `tasks`.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from groundup.data.batches.order import sliding_windows
from groundup.errors import DataError
from groundup.model import TransformerLM
from groundup.runtime import Progress
from groundup.text_files import END_OF_TEXT, DocumentBatch
from groundup.tokenizer import Tokenizer
from groundup.training.evaluation import Evaluation, token_bytes

Ids = npt.NDArray[Any]
Autocast = Callable[[], AbstractContextManager[Any]]

# Logits that are held at once; their softmax takes as much again.
_MOST_LOGITS = 1 << 24
# Fewer ids at once keep no device busy, and without gradients so many always fit.
_LEAST_BATCH_TOKENS = 2048


class Row(NamedTuple):
    """Ids of which the last few are predicted, in one forward pass."""

    ids: Ids
    num_predicted: int


@dataclass(frozen=True)
class TextEvaluation:
    """The results on some documents, and how much of them was predicted."""

    evaluation: Evaluation
    num_documents: int
    num_bytes: int


def batch_tokens_of(num_sequences: int, context_length: int) -> int:
    """How many ids to compute at once where evaluations have so many sequences at once."""
    return max(_LEAST_BATCH_TOKENS, num_sequences * context_length)


def rows_of(ids: Ids, num_predicted: int, context_length: int) -> Iterator[Row]:
    """The rows that predict the last `num_predicted` of some ids, see `sliding_windows`."""
    for begin, end, count in sliding_windows(len(ids), num_predicted, context_length):
        yield Row(ids[begin:end], count)


@torch.no_grad()
def log_likelihoods(
    model: TransformerLM,
    rows: Sequence[Row],
    *,
    batch_tokens: int,
    autocast: Autocast = nullcontext,
    progress: Progress | None = None,
) -> npt.NDArray[np.float64]:
    """The sum of ln p of what each row predicts.

    model: whose softmax gives p.
    rows: at most context_length + 1 ids each.
    batch_tokens: how many ids to compute at once; rows of about the same length go together.
    autocast: what the forward passes run within.
    progress: told how many rows are done.
    """
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index].ids))
    result = np.zeros(len(rows))
    begin = 0
    with autocast(), not_compiled():
        while begin < len(order):
            length = len(rows[order[begin]].ids) - 1
            batch = order[begin : begin + max(1, batch_tokens // length)]
            result[batch] = _batch_likelihoods(model, [rows[index] for index in batch])
            begin += len(batch)
            if progress is not None:
                progress(begin, len(order))
    return result


def not_compiled() -> AbstractContextManager[Any]:
    """For batches of any shape: layers that are compiled would be compiled anew for each."""
    # While the compiler is not loaded, which takes seconds, nothing is compiled.
    is_loaded = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if is_loaded else nullcontext()


def _batch_likelihoods(model: TransformerLM, rows: Sequence[Row]) -> npt.NDArray[np.float64]:
    device = model.device
    # What follows the end of a row is seen by nothing before it.
    padded = np.zeros((len(rows), len(rows[0].ids)), np.int64)
    is_predicted = np.zeros((len(rows), len(rows[0].ids) - 1), np.bool_)
    for number, (ids, count) in enumerate(rows):
        padded[number, : len(ids)] = ids
        is_predicted[number, len(ids) - 1 - count : len(ids) - 1] = True
    inputs, targets = padded[:, :-1], padded[:, 1:][is_predicted]
    hidden = model.hidden(torch.from_numpy(inputs).to(device))
    hidden = hidden[torch.from_numpy(is_predicted).to(device)]
    values = []
    num_at_once = max(1, _MOST_LOGITS // model.config.vocab_size)
    for first in range(0, len(targets), num_at_once):
        part = slice(first, first + num_at_once)
        logits = model.logits(hidden[part]).float()
        own = torch.from_numpy(targets[part]).to(device)[:, None]
        values.append((logits.gather(-1, own)[:, 0] - logits.logsumexp(-1)).cpu().double())
    counts = [row.num_predicted for row in rows]
    starts = np.cumsum([0, *counts[:-1]])
    return np.add.reduceat(torch.cat(values).numpy(), starts)


def evaluate_documents(
    model: TransformerLM,
    tokenizer: Tokenizer,
    batches: Iterable[DocumentBatch],
    *,
    begin_id: int | None,
    batch_tokens: int,
    autocast: Autocast = nullcontext,
) -> TextEvaluation:
    """loss = mean -ln p(token | those before it in its document), every token predicted once.

    model, batch_tokens, autocast: see `log_likelihoods`.
    tokenizer: encodes the documents.
    batches: what `read_document_batches` gives.
    begin_id: stands before each document; without one its first token is not predicted.
    """
    sizes = token_bytes(tokenizer)
    first = np.array([] if begin_id is None else [begin_id], tokenizer.id_type)
    nats, num_tokens, num_bytes, num_documents = 0.0, 0, 0, 0
    for batch in batches:
        ids, offsets = tokenizer.encode_documents(batch.data, batch.bounds)
        rows: list[Row] = []
        for begin, end in pairwise(offsets):
            document = np.concatenate([first, ids[begin:end]])
            rows += rows_of(document, len(document) - 1, model.config.context_length)
            num_tokens += len(document) - 1
            num_bytes += int(sizes[document[1:]].sum())
        num_documents += len(batch.bounds)
        nats -= log_likelihoods(model, rows, batch_tokens=batch_tokens, autocast=autocast).sum()
    if not num_tokens:
        advice = "give more text" if num_documents else "name files with text"
        raise DataError(f"there is no token to predict: {_without_tokens(num_documents)}; {advice}")
    return TextEvaluation(
        Evaluation.of(float(nats), num_tokens, num_bytes), num_documents, num_bytes
    )


def _without_tokens(num_documents: int) -> str:
    if not num_documents:
        return "the files hold no document"
    return f"each document is one token, and the tokenizer has no {END_OF_TEXT} to stand before it"
