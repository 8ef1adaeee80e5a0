"""Log-likelihoods of texts of any length, and accuracy on multiple-choice tasks.

A choice is scored by the log-likelihood of its tokens after the context: the sum, the sum per byte
and the sum per character (`acc`, `acc_bytes` and `acc_norm` of lm-evaluation-harness).
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
from groundup.training.machine import not_compiled

Numbers = npt.NDArray[np.float64]

_NORMAL_95 = 1.959963984540054
# Logits in memory at once; their softmax takes as much again.
_MAX_LOGITS = 1 << 24


class Row(NamedTuple):
    """Ids, of which the last `num_predicted` are predicted."""

    ids: npt.NDArray[Any]
    num_predicted: int


def wilson_interval(accuracy: float, count: int) -> list[float]:
    """Wilson's 95% confidence interval of an accuracy."""
    z = _NORMAL_95
    middle = accuracy + z**2 / (2 * count)
    half = z * math.sqrt(accuracy * (1 - accuracy) / count + (z / (2 * count)) ** 2)
    return [(middle - half) / (1 + z**2 / count), (middle + half) / (1 + z**2 / count)]


@dataclass(frozen=True)
class Scorer:
    """Scores texts with a model."""

    model: TransformerLM
    tokenizer: Tokenizer
    begin_id: int | None
    """Prepended to documents, and to choices without a context."""
    batch_tokens: int
    """Ids per forward pass."""
    autocast: Autocast = nullcontext

    def score_task(self, task: Task, progress: Progress | None = None) -> dict[str, Any]:
        """The accuracy of choosing the most likely choice; a k-way tie scores 1/k. NaN if a
        likelihood is not finite. `cut` counts the questions that exceed the model's context."""
        right, num_cut = np.zeros(3), 0
        texts = list(self._encode(task))
        found = self.choice_likelihoods(texts, progress)
        for question, rows, values in zip(task.questions, texts, found, strict=True):
            num_cut += any(len(row.ids) > self.model.config.context_length + 1 for row in rows)
            num_bytes = np.array([len(choice.encode()) for choice in question.choices])
            num_characters = np.array([len(choice) for choice in question.choices])
            for index, numbers in enumerate((values, values / num_bytes, values / num_characters)):
                is_best = numbers == numbers.max()
                is_finite = np.isfinite(numbers).all()
                right[index] += is_best[question.answer] / is_best.sum() if is_finite else math.nan
        count = len(task.questions)
        result: dict[str, Any] = {"questions": count, "cut": num_cut, "chance": task.chance}
        for suffix, number in zip(("", "_per_byte", "_per_character"), right, strict=True):
            result[f"accuracy{suffix}"] = accuracy = float(number) / count
            result[f"interval{suffix}"] = wilson_interval(accuracy, count)
        return result

    def choice_likelihoods(
        self, questions: Sequence[Sequence[Row]], progress: Progress | None = None
    ) -> list[Numbers]:
        """The log-likelihood of every choice of each question. Equal texts are computed once, so
        that equal choices tie exactly."""
        numbers: dict[tuple[bytes, int], int] = {}
        rows: list[Row] = []
        # The text that each row belongs to.
        owners: list[int] = []
        for text in (text for texts in questions for text in texts):
            key = text.ids.tobytes(), text.num_predicted
            if key not in numbers:
                parts = list(self._rows_of(*text))
                owners += [len(numbers)] * len(parts)
                rows += parts
                numbers[key] = len(numbers)
        found = np.bincount(owners, self._log_likelihoods(rows, progress))
        return [
            np.array([found[numbers[ids.tobytes(), count]] for ids, count in texts])
            for texts in questions
        ]

    def evaluate_documents(self, batches: Iterable[DocumentBatch]) -> tuple[Evaluation, int]:
        """The mean loss over documents, every token predicted once (the first only with a
        `begin_id`), and the number of documents."""
        sizes = token_bytes(self.tokenizer)
        nats, num_tokens, num_bytes, num_documents = 0.0, 0, 0, 0
        for batch in batches:
            ids, offsets = self.tokenizer.encode_documents(batch.data, batch.bounds)
            rows: list[Row] = []
            for begin, end in pairwise(offsets):
                document = np.concatenate([self._begin, ids[begin:end]])
                rows += self._rows_of(document, len(document) - 1)
                num_tokens += len(document) - 1
                num_bytes += int(sizes[document[1:]].sum())
            num_documents += len(batch.bounds)
            nats -= self._log_likelihoods(rows).sum()
        if not num_tokens:
            found = count_of(num_documents, "document")
            raise DataError(f"there is no token to predict in {found}: give more text")
        return Evaluation.of(float(nats), num_tokens, num_bytes), num_documents

    @property
    def _begin(self) -> npt.NDArray[Any]:
        return np.array([] if self.begin_id is None else [self.begin_id], self.tokenizer.id_type)

    def _encode(self, task: Task) -> Iterator[list[Row]]:
        """The rows of each question's choices, encoded together with the context."""
        contexts = [question.context.rstrip() for question in task.questions]
        _, offsets = self.tokenizer.encode_batch(contexts)
        for question, num_context in zip(task.questions, np.diff(offsets).tolist(), strict=True):
            choices = map(question.continuation, range(len(question.choices)))
            ids, bounds = self.tokenizer.encode_batch([question.context + one for one in choices])
            texts = []
            for own in np.split(ids, bounds[1:-1]):
                own = own if num_context else np.concatenate([self._begin, own])
                # A token may span context and choice; at least the last belongs to the choice.
                num_predicted = min(max(1, len(own) - max(1, num_context)), len(own) - 1)
                if num_predicted < 1:
                    raise ConfigError(
                        f"task {task.name} has a one-token choice without a context: add a context"
                    )
                texts.append(Row(own, num_predicted))
            yield texts

    def _rows_of(self, ids: npt.NDArray[Any], num_predicted: int) -> Iterator[Row]:
        """The windows that together predict the last `num_predicted` ids."""
        length = self.model.config.context_length
        for begin, end, count in sliding_windows(len(ids), num_predicted, length):
            yield Row(ids[begin:end], count)

    @torch.no_grad()
    def _log_likelihoods(self, rows: Sequence[Row], progress: Progress | None = None) -> Numbers:
        """Each row's sum of ln p; rows have at most context_length + 1 ids. Batched by length."""
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index].ids))
        result = np.zeros(len(rows))
        done = 0
        with self.autocast(), not_compiled():
            while done < len(order):
                size = max(1, self.batch_tokens // (len(rows[order[done]].ids) - 1))
                batch = order[done : done + size]
                result[batch] = _batch_likelihoods(self.model, [rows[index] for index in batch])
                done += len(batch)
                if progress is not None:
                    progress(done, len(rows))
        return result


def _batch_likelihoods(model: TransformerLM, rows: Sequence[Row]) -> Numbers:
    # Attention is causal: padding at the end changes nothing.
    padded = np.zeros((len(rows), len(rows[0].ids)), np.int64)
    is_predicted = np.zeros((len(rows), len(rows[0].ids) - 1), np.bool_)
    for number, (ids, count) in enumerate(rows):
        padded[number, : len(ids)] = ids
        is_predicted[number, len(ids) - 1 - count : len(ids) - 1] = True
    inputs, targets = padded[:, :-1], padded[:, 1:][is_predicted]
    hidden = model.hidden(torch.from_numpy(inputs).to(model.device))
    hidden = hidden[torch.from_numpy(is_predicted).to(model.device)]
    values = []
    num_at_once = max(1, _MAX_LOGITS // model.config.vocab_size)
    for first in range(0, len(targets), num_at_once):
        part = slice(first, first + num_at_once)
        logits = model.logits(hidden[part]).float()
        own = torch.from_numpy(targets[part]).to(model.device)[:, None]
        values.append((logits.gather(-1, own)[:, 0] - logits.logsumexp(-1)).cpu().double())
    starts = np.cumsum([0, *(row.num_predicted for row in rows[:-1])])
    return np.add.reduceat(torch.cat(values).numpy(), starts)
