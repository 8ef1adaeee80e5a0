"""How likely a model finds texts of any length, and how often the right choice of a task.

The likelihood of a choice is that of its tokens after the context: their sum, the sum per byte and
the sum per character of the choice, which are `acc`, `acc_bytes` and `acc_norm` of
lm-evaluation-harness. No random state is touched.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from groundup.data.batches.order import sliding_windows
from groundup.data.tasks import Task
from groundup.errors import ConfigError, DataError
from groundup.model import TransformerLM
from groundup.runtime import Progress, count_of
from groundup.text_files import DocumentBatch
from groundup.tokenizer import Tokenizer
from groundup.training.evaluation import Autocast, Evaluation, token_bytes
from groundup.training.execution import not_compiled

Numbers = npt.NDArray[np.float64]

_NORMAL_95 = 1.959963984540054
# Logits that are held at once; their softmax takes as much again.
_MOST_LOGITS = 1 << 24


class Row(NamedTuple):
    """Ids of which the last few are predicted."""

    ids: npt.NDArray[Any]
    num_predicted: int


@dataclass(frozen=True)
class Accuracy:
    """The fraction of questions that are answered right; NaN where likelihoods are not finite."""

    value: float
    num_questions: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95% interval: where the accuracy on any number of such questions may be."""
        count, z = self.num_questions, _NORMAL_95
        middle = self.value + z**2 / (2 * count)
        half = z * math.sqrt(self.value * (1 - self.value) / count + (z / (2 * count)) ** 2)
        return (middle - half) / (1 + z**2 / count), (middle + half) / (1 + z**2 / count)


@dataclass(frozen=True)
class TaskScore:
    """The results on one task."""

    name: str
    num_questions: int
    num_cut: int
    """Questions of which the model's context holds only the end."""
    chance: float
    """The accuracy of a guess."""
    raw: Accuracy
    """By the sum of log-probabilities."""
    per_byte: Accuracy
    per_character: Accuracy


def score_task(
    model: TransformerLM,
    tokenizer: Tokenizer,
    task: Task,
    *,
    begin_id: int | None,
    batch_tokens: int,
    autocast: Autocast = nullcontext,
    progress: Progress | None = None,
) -> TaskScore:
    """How often the right choice is the likeliest; it counts 1/k in a k-way tie.

    begin_id: stands before a choice that has no context.
    batch_tokens: how many ids to compute at once.
    progress: is told how many rows are done.
    """
    right, num_cut = np.zeros(3), 0
    texts = list(_encode(task, tokenizer, begin_id))
    found = choice_likelihoods(model, texts, batch_tokens, autocast, progress)
    for question, rows, values in zip(task.questions, texts, found, strict=True):
        num_cut += any(len(row.ids) > model.config.context_length + 1 for row in rows)
        num_bytes = np.array([len(choice.encode()) for choice in question.choices])
        num_characters = np.array([len(choice) for choice in question.choices])
        for index, numbers in enumerate((values, values / num_bytes, values / num_characters)):
            is_best = numbers == numbers.max()
            is_finite = np.isfinite(numbers).all()
            right[index] += is_best[question.answer] / is_best.sum() if is_finite else math.nan
    count = len(task.questions)
    accuracies = [Accuracy(float(number) / count, count) for number in right]
    return TaskScore(task.name, count, num_cut, task.chance, *accuracies)


def choice_likelihoods(
    model: TransformerLM,
    questions: Sequence[Sequence[Row]],
    batch_tokens: int,
    autocast: Autocast = nullcontext,
    progress: Progress | None = None,
) -> list[Numbers]:
    """Of each question, the sum of log-probabilities of every choice. Equal texts are computed
    once, so that equal choices are equally likely to the last bit."""
    numbers: dict[tuple[bytes, int], int] = {}
    rows: list[Row] = []
    # Of each row, the number of the text that it is a part of.
    owners: list[int] = []
    for text in (text for texts in questions for text in texts):
        key = text.ids.tobytes(), text.num_predicted
        if key not in numbers:
            parts = list(_rows_of(*text, model.config.context_length))
            owners += [len(numbers)] * len(parts)
            rows += parts
            numbers[key] = len(numbers)
    found = np.bincount(owners, log_likelihoods(model, rows, batch_tokens, autocast, progress))
    return [
        np.array([found[numbers[ids.tobytes(), count]] for ids, count in texts])
        for texts in questions
    ]


@torch.no_grad()
def log_likelihoods(
    model: TransformerLM,
    rows: Sequence[Row],
    batch_tokens: int,
    autocast: Autocast = nullcontext,
    progress: Progress | None = None,
) -> Numbers:
    """The sum of ln p of what each row, at most context_length + 1 ids, predicts. Rows of about the
    same length are computed together."""
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index].ids))
    result = np.zeros(len(rows))
    done = 0
    with autocast(), not_compiled():
        while done < len(order):
            size = max(1, batch_tokens // (len(rows[order[done]].ids) - 1))
            batch = order[done : done + size]
            result[batch] = _batch_likelihoods(model, [rows[index] for index in batch])
            done += len(batch)
            if progress is not None:
                progress(done, len(rows))
    return result


def evaluate_documents(
    model: TransformerLM,
    tokenizer: Tokenizer,
    batches: Iterable[DocumentBatch],
    *,
    begin_id: int | None,
    batch_tokens: int,
    autocast: Autocast = nullcontext,
) -> tuple[Evaluation, int]:
    """loss = mean -ln p(token | those before it in its document), every token predicted once; and
    the number of documents.

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
            rows += _rows_of(document, len(document) - 1, model.config.context_length)
            num_tokens += len(document) - 1
            num_bytes += int(sizes[document[1:]].sum())
        num_documents += len(batch.bounds)
        nats -= log_likelihoods(model, rows, batch_tokens, autocast).sum()
    if not num_tokens:
        found = count_of(num_documents, "document")
        raise DataError(f"there is no token to predict in {found}: give more text")
    return Evaluation.of(float(nats), num_tokens, num_bytes), num_documents


def _rows_of(ids: npt.NDArray[Any], num_predicted: int, context_length: int) -> Iterator[Row]:
    """The rows that predict the last `num_predicted` of some ids, each in one forward pass."""
    for begin, end, count in sliding_windows(len(ids), num_predicted, context_length):
        yield Row(ids[begin:end], count)


def _batch_likelihoods(model: TransformerLM, rows: Sequence[Row]) -> Numbers:
    # What follows the end of a row is seen by nothing before it.
    padded = np.zeros((len(rows), len(rows[0].ids)), np.int64)
    is_predicted = np.zeros((len(rows), len(rows[0].ids) - 1), np.bool_)
    for number, (ids, count) in enumerate(rows):
        padded[number, : len(ids)] = ids
        is_predicted[number, len(ids) - 1 - count : len(ids) - 1] = True
    inputs, targets = padded[:, :-1], padded[:, 1:][is_predicted]
    hidden = model.hidden(torch.from_numpy(inputs).to(model.device))
    hidden = hidden[torch.from_numpy(is_predicted).to(model.device)]
    values = []
    num_at_once = max(1, _MOST_LOGITS // model.config.vocab_size)
    for first in range(0, len(targets), num_at_once):
        part = slice(first, first + num_at_once)
        logits = model.logits(hidden[part]).float()
        own = torch.from_numpy(targets[part]).to(model.device)[:, None]
        values.append((logits.gather(-1, own)[:, 0] - logits.logsumexp(-1)).cpu().double())
    starts = np.cumsum([0, *(row.num_predicted for row in rows[:-1])])
    return np.add.reduceat(torch.cat(values).numpy(), starts)


def _encode(task: Task, tokenizer: Tokenizer, begin_id: int | None) -> Iterator[list[Row]]:
    """Each question's choices, every one behind the context and together with it."""
    begin = np.array([] if begin_id is None else [begin_id], tokenizer.id_type)
    _, offsets = tokenizer.encode_batch([question.context.rstrip() for question in task.questions])
    for question, num_context in zip(task.questions, np.diff(offsets).tolist(), strict=True):
        continuations = map(question.continuation, range(len(question.choices)))
        ids, bounds = tokenizer.encode_batch([question.context + text for text in continuations])
        texts = []
        for own in np.split(ids, bounds[1:-1]):
            own = own if num_context else np.concatenate([begin, own])
            # A token may reach from the context into the choice: the last one is the choice's.
            num_predicted = min(max(1, len(own) - max(1, num_context)), len(own) - 1)
            if num_predicted < 1:
                raise ConfigError(
                    f"task {task.name} has a choice of one token without a context: give it one"
                )
            texts.append(Row(own, num_predicted))
        yield texts
