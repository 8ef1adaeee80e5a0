"""A built-in task, made from stories of our own grammar: the same each time, with no download.

Is or are, was or were: the verb agrees with its subject, singular as often as plural.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice, pairwise

from groundup.data.samples import story_tellings
from groundup.data.tasks.question import Question, Task

_NUM_QUESTIONS = 200
# Of stories that are in no corpus, unless somebody asks for just this seed.
_SEED = 0x7A5C

_GAP = re.compile(r'(?:(?<=[.!?])|(?<=[.!?]"))(?<!Mr\.)(?<!Mrs\.)\s+(?=["A-Z])')
_SINGULAR_OF = {"were": "was", "are": "is"}
_PLURAL_OF = {singular: plural for plural, singular in _SINGULAR_OF.items()}
_VERB = re.compile(r"(?<=[a-z] )(?:was|were|is|are)\b")
# Where both may be right: "as if it were", "three is plenty".
_EITHER = re.compile(r"\b(?:if|wish\w*|what|that|who|which|three|all|you|I)\b", re.IGNORECASE)


def agreement() -> Task:
    """Sentences with one verb that tells the number of its subject, after the sentence before."""
    pairs = zip(_disagreements(_PLURAL_OF), _disagreements(_SINGULAR_OF), strict=True)
    questions = []
    for number, (context, right, wrong) in enumerate(
        islice(chain.from_iterable(pairs), _NUM_QUESTIONS)
    ):
        choices = (wrong, right) if number % 2 else (right, wrong)
        questions.append(Question(context, choices, number % 2))
    return Task("agreement", tuple(questions))


def _disagreements(wrong_of: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """A context, a sentence each another that follows it, and the same with a wrong verb."""
    seen: set[str] = set()
    for telling in story_tellings(_SEED):
        for before, sentence in pairwise(_GAP.split(telling.expand("story"))):
            verbs = list(_VERB.finditer(sentence))
            if len(verbs) != 1 or _EITHER.search(sentence) or sentence in seen:
                continue
            if wrong := wrong_of.get(verbs[0][0]):
                seen.add(sentence)
                begin, end = verbs[0].span()
                yield before, sentence, sentence[:begin] + wrong + sentence[end:]
