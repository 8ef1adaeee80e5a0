"""How often a model finds the right choice likeliest: accuracy on multiple-choice tasks.

The likelihood of a choice is that of its tokens after the context: their sum, the sum per byte and
the sum per character of the choice, which are `acc`, `acc_bytes` and `acc_norm` of
lm-evaluation-harness. No random state is touched.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from groundup.data.tasks import Task, read_tasks
from groundup.errors import ConfigError
from groundup.model import TransformerLM
from groundup.runs.config import RunConfig
from groundup.runtime import Progress
from groundup.text_files import END_OF_TEXT
from groundup.tokenizer import Tokenizer
from groundup.training.likelihood import (
    Autocast,
    Row,
    batch_tokens_of,
    log_likelihoods,
    rows_of,
)

Numbers = npt.NDArray[np.float64]

_NORMAL_95 = 1.959963984540054


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
    config: RunConfig, tokenizer: Tokenizer, begin_id: int | None
) -> "TaskEvaluator | None":
    """The tasks that a run's settings name; None where they name none.

    config: of the run.
    tokenizer: see `TaskEvaluator`.
    begin_id: what ends documents of the data, if that is known; else <|endoftext|>.
    """
    if not config.evaluation.tasks:
        return None
    if begin_id is None:
        begin_id = tokenizer.special_tokens.get(END_OF_TEXT)
    context_length = config.model.context_length
    num_sequences = config.evaluation.batch_size or config.sequences_in_memory
    return TaskEvaluator(
        read_tasks(config.evaluation.tasks),
        tokenizer,
        context_length,
        begin_id=begin_id,
        batch_tokens=batch_tokens_of(num_sequences, context_length),
    )


class TaskEvaluator:
    """Asks the same questions each time. Texts are encoded once, and equal ones computed once, so
    that equal choices are equally likely to the last bit."""

    def __init__(
        self,
        tasks: Sequence[Task],
        tokenizer: Tokenizer,
        context_length: int,
        *,
        begin_id: int | None,
        batch_tokens: int,
    ) -> None:
        """tasks: what to ask.
        tokenizer: encodes a context together with each of its choices.
        context_length: of the model; a longer context loses its beginning.
        begin_id: stands before a choice that has no context.
        batch_tokens: how many ids to compute at once.
        """
        self._tasks = tasks
        self._context_length = context_length
        self._batch_tokens = batch_tokens
        self._numbers: dict[tuple[bytes, int], int] = {}
        self._rows: list[Row] = []
        # Of each row, the number of the text that it is a part of.
        self._owners: list[int] = []
        encoded = [list(_encode(task, tokenizer, begin_id)) for task in tasks]
        self._texts = [[list(map(self._number, texts)) for texts in task] for task in encoded]
        self._num_cut = [
            sum(any(len(ids) > context_length + 1 for ids, _ in texts) for texts in task)
            for task in encoded
        ]

    def __call__(
        self,
        model: TransformerLM,
        autocast: Autocast = nullcontext,
        progress: Progress | None = None,
    ) -> list[TaskScore]:
        """The results on each task.

        model: what predicts.
        autocast: what the forward passes run within.
        progress: told how many texts are done, and of how many.
        """
        found = self.likelihoods(model, autocast, progress)
        return [_score(*parts) for parts in zip(self._tasks, found, self._num_cut, strict=True)]

    def likelihoods(
        self,
        model: TransformerLM,
        autocast: Autocast = nullcontext,
        progress: Progress | None = None,
    ) -> list[list[Numbers]]:
        """Of each task, of each question, the sum of log-probabilities of every choice.

        model, autocast, progress: as for a call.
        """
        found = log_likelihoods(
            model,
            self._rows,
            batch_tokens=self._batch_tokens,
            autocast=autocast,
            progress=progress,
        )
        likelihoods = np.zeros(len(self._numbers))
        np.add.at(likelihoods, self._owners, found)
        return [[likelihoods[numbers] for numbers in texts] for texts in self._texts]

    def _number(self, text: Row) -> int:
        """The number of a text among those to be computed."""
        number = len(self._numbers)
        known = self._numbers.setdefault((text.ids.tobytes(), text.num_predicted), number)
        if known == number:
            rows = list(rows_of(*text, self._context_length))
            self._rows += rows
            self._owners += [number] * len(rows)
        return known


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
    """1 if the answer is the likeliest; where others are as likely, it is one of their number."""
    if not np.isfinite(values).all():
        return math.nan
    is_best = values == values.max()
    return float(is_best[answer] / is_best.sum())
