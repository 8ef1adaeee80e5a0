"""What a task is made of: a context, continuations to choose from, and which of them is right."""

from dataclasses import dataclass
from typing import NamedTuple


class Question(NamedTuple):
    """A text and several ways to continue it."""

    context: str
    """May be empty: then the choices are whole texts."""
    choices: tuple[str, ...]
    answer: int
    """The index of the right choice, from 0."""

    def continuation(self, index: int) -> str:
        """A choice as it follows the context: after a space, unless there is white space already.

        A space also stands before a choice without context, as lm-evaluation-harness has it.
        """
        choice = self.choices[index]
        has_space = self.context[-1:].isspace() or choice[:1].isspace()
        return choice if has_space else f" {choice}"


@dataclass(frozen=True)
class Task:
    """Questions that are measured together."""

    name: str
    questions: tuple[Question, ...]

    @property
    def chance(self) -> float:
        """The accuracy of a guess."""
        return sum(1 / len(question.choices) for question in self.questions) / len(self.questions)
