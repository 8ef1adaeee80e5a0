"""How likely a model finds texts of any length, and how often the right choice of a task.

The likelihood of a choice is that of its tokens after the context: their sum, the sum per byte and
the sum per character of the choice, which are `acc`, `acc_bytes` and `acc_norm` of
lm-evaluation-harness. No random state is touched.
"""

import itertools
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
from groundup.data.tasks import Task, read_tasks
from groundup.distributed.process_group import ALONE, World
from groundup.errors import ConfigError, DataError
from groundup.model import TransformerLM
from groundup.runs.config import RunConfig
from groundup.runtime import Progress
from groundup.text_files import END_OF_TEXT, DocumentBatch
from groundup.tokenizer import Tokenizer
from groundup.training.evaluation import Autocast, Evaluation, token_bytes
from groundup.training.execution import not_compiled

Numbers = npt.NDArray[np.float64]

_NORMAL_95 = 1.959963984540054
# Logits that are held at once; their softmax takes as much again.
_MOST_LOGITS = 1 << 24
# Fewer ids at once keep no device busy, and without gradients so many always fit.
_LEAST_BATCH_TOKENS = 2048


class Row(NamedTuple):
    """Ids of which the last few are predicted, in one forward pass."""

    ids: npt.NDArray[Any]
    num_predicted: int


@dataclass(frozen=True)
class TextEvaluation:
    """The results on some documents, and how much of them was predicted."""

    evaluation: Evaluation
    num_documents: int
    num_bytes: int


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


def build_tasks(
    config: RunConfig, tokenizer: Tokenizer, begin_id: int | None, world: World = ALONE
) -> "TaskEvaluator | None":
    """The tasks that a run's settings name, if any. `begin_id` is what ends documents of the data;
    else it is <|endoftext|>."""
    if not config.evaluation.tasks:
        return None
    if begin_id is None:
        begin_id = tokenizer.special_tokens.get(END_OF_TEXT)
    length = config.model.context_length
    num_sequences = config.evaluation.batch_size or config.sequences_in_memory
    return TaskEvaluator(
        read_tasks(config.evaluation.tasks),
        tokenizer,
        length,
        begin_id=begin_id,
        batch_tokens=batch_tokens_of(num_sequences, length),
        world=world,
    )


class TaskEvaluator:
    """Asks the same questions each time. Texts are encoded once, and equal ones computed once, so
    that equal choices are equally likely to the last bit. Ranks share the work."""

    def __init__(
        self,
        tasks: Sequence[Task],
        tokenizer: Tokenizer,
        context_length: int,
        *,
        begin_id: int | None,
        batch_tokens: int,
        world: World = ALONE,
    ) -> None:
        """context_length: of the model; a longer context loses its beginning.
        begin_id: stands before a choice that has no context.
        batch_tokens: how many ids to compute at once.
        """
        self._tasks = tasks
        self._batch_tokens = batch_tokens
        self._world = world
        self._rows: list[Row] = []
        # Of each row, the number of the text that it is a part of.
        self._owners: list[int] = []
        self._num_cut: list[int] = []
        self._texts: list[list[list[int]]] = []
        numbers: dict[tuple[bytes, int], int] = {}
        for task in tasks:
            encoded = list(_encode(task, tokenizer, begin_id))
            self._num_cut.append(
                sum(any(len(ids) > context_length + 1 for ids, _ in texts) for texts in encoded)
            )
            for text in itertools.chain.from_iterable(encoded):
                key = (text.ids.tobytes(), text.num_predicted)
                if key not in numbers:
                    rows = list(rows_of(*text, context_length))
                    self._owners += [len(numbers)] * len(rows)
                    self._rows += rows
                    numbers[key] = len(numbers)
            self._texts.append(
                [[numbers[ids.tobytes(), count] for ids, count in texts] for texts in encoded]
            )
        self._num_texts = len(numbers)

    def __call__(
        self,
        model: TransformerLM,
        autocast: Autocast = nullcontext,
        progress: Progress | None = None,
    ) -> list[TaskScore]:
        """The results on each task; `progress` is told how many texts are done."""
        found = self.likelihoods(model, autocast, progress)
        return [_score(*parts) for parts in zip(self._tasks, found, self._num_cut, strict=True)]

    def likelihoods(
        self,
        model: TransformerLM,
        autocast: Autocast = nullcontext,
        progress: Progress | None = None,
    ) -> list[list[Numbers]]:
        """Of each task, of each question, the sum of log-probabilities of every choice."""
        found = log_likelihoods(
            model,
            self._rows,
            batch_tokens=self._batch_tokens,
            autocast=autocast,
            progress=progress,
            world=self._world,
        )
        likelihoods = np.zeros(self._num_texts)
        np.add.at(likelihoods, self._owners, found)
        return [[likelihoods[numbers] for numbers in texts] for texts in self._texts]


def batch_tokens_of(num_sequences: int, context_length: int) -> int:
    """How many ids to compute at once where evaluations have so many sequences at once."""
    return max(_LEAST_BATCH_TOKENS, num_sequences * context_length)


def rows_of(ids: npt.NDArray[Any], num_predicted: int, context_length: int) -> Iterator[Row]:
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
    world: World = ALONE,
) -> Numbers:
    """The sum of ln p of what each row, at most context_length + 1 ids, predicts. Rows of about the
    same length are computed together."""
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index].ids))
    batches = []
    while order:
        size = max(1, batch_tokens // (len(rows[order[0]].ids) - 1))
        batches.append(order[:size])
        order = order[size:]
    result = np.zeros(len(rows))
    num_done = 0
    with autocast(), not_compiled():
        for first in range(0, len(batches), world.size):
            # Ranks may share the weights and have to compute at once, also for nothing.
            together = batches[first : first + world.size]
            batch = together[min(world.rank, len(together) - 1)]
            values = _batch_likelihoods(model, [rows[index] for index in batch])
            if world.rank < len(together):
                result[batch] = values
            num_done += sum(map(len, together))
            if progress is not None:
                progress(num_done, len(rows))
    parts: list[Numbers] = world.gather(result)
    return parts[0] if len(parts) == 1 else np.sum(parts, axis=0)


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
        reason = "the files hold no document"
        if num_documents:
            reason = f"each document is one token, and the tokenizer has no {END_OF_TEXT}"
        raise DataError(f"there is no token to predict: {reason}; give more text")
    evaluation = Evaluation.of(float(nats), num_tokens, num_bytes)
    return TextEvaluation(evaluation, num_documents, num_bytes)


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
                    f"task {task.name} has a choice of one token without a context, and the "
                    f"tokenizer has no {END_OF_TEXT} to stand before it: give it a context"
                )
            texts.append(Row(own, num_predicted))
        yield texts


def _score(task: Task, likelihoods: list[Numbers], num_cut: int) -> TaskScore:
    right = np.zeros(3)
    for question, values in zip(task.questions, likelihoods, strict=True):
        num_bytes = np.array([len(choice.encode()) for choice in question.choices])
        num_characters = np.array([len(choice) for choice in question.choices])
        compared = (values, values / num_bytes, values / num_characters)
        right += [_fraction_right(numbers, question.answer) for numbers in compared]
    count = len(task.questions)
    accuracies = [Accuracy(float(number) / count, count) for number in right]
    return TaskScore(task.name, count, num_cut, task.chance, *accuracies)


def _fraction_right(values: Numbers, answer: int) -> float:
    """1 if the answer is the likeliest; it scores 1/k in a k-way tie."""
    if not np.isfinite(values).all():
        return math.nan
    is_best = values == values.max()
    return float(is_best[answer] / is_best.sum())
