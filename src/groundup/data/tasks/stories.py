"""Built-in tasks, made from stories of our own grammar: the same ones each time, with no download.

agreement      is or are, was or were: the verb agrees with its subject, singular as often as plural
who_did_what   a sentence of a story about two people, or the same with the two exchanged
"""

import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice, pairwise

from groundup.data.samples import story_tellings
from groundup.data.tasks.question import Question, Task

_NUM_QUESTIONS = 200
# Of stories that are in no corpus, unless somebody asks for just this seed.
_SEED = 0x7A5C
_MOST_CONTEXT = 600  # Characters. More takes longer, and asks the same.

_GAP = re.compile(r'(?:(?<=[.!?])|(?<=[.!?]"))(?<!Mr\.)(?<!Mrs\.)\s+(?=["A-Z])')
_SINGULAR_OF = {"were": "was", "are": "is"}
_PLURAL_OF = {singular: plural for plural, singular in _SINGULAR_OF.items()}
_VERB = re.compile(r"(?<=[a-z] )(?:was|were|is|are)\b")
# Where both may be right: "as if it were", "three is plenty".
_EITHER = re.compile(r"\b(?:if|wish\w*|what|that|who|which|three|all|you|I)\b", re.IGNORECASE)
_PEOPLE = ("hero", "friend", "elder", "parent")

# A context, the sentence that follows in the story, and one that is wrong.
_Pair = tuple[str, str, str]


def agreement() -> Task:
    """Sentences with one verb that tells the number of its subject, after the sentence before."""
    pairs = zip(_disagreements(_PLURAL_OF), _disagreements(_SINGULAR_OF), strict=True)
    return _make_task("agreement", chain.from_iterable(pairs))


def who_did_what() -> Task:
    """Sentences about two people of a story, after all that was told before."""
    return _make_task("who_did_what", _exchanges())


def _make_task(name: str, pairs: Iterator[_Pair]) -> Task:
    questions: list[Question] = []
    for context, right, wrong in islice(pairs, _NUM_QUESTIONS):
        answer = len(questions) % 2
        choices = (wrong, right) if answer else (right, wrong)
        questions.append(Question(context, choices, answer))
    return Task(name, tuple(questions))


def _disagreements(wrong_of: Mapping[str, str]) -> Iterator[_Pair]:
    """Sentences, each another, in which a verb has its place taken by a wrong one."""
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


def _exchanges() -> Iterator[_Pair]:
    """Of each story one sentence with two names that are known by then, and are no mere pair."""
    for telling in story_tellings(_SEED):
        story = telling.expand("story")
        names = "|".join(re.escape(telling[person]) for person in _PEOPLE)
        anyone = re.compile(rf"\b(?:{names})\b")
        begin = 0
        for gap in _GAP.finditer(story, 0, _MOST_CONTEXT):
            context, sentence = story[:begin], story[begin : gap.start()]
            begin = gap.end()
            present = list(dict.fromkeys(anyone.findall(sentence)))
            if len(present) != 2 or not all(name in context for name in present):
                continue
            if re.search(" and ".join(present) + "|" + " and ".join(reversed(present)), sentence):
                continue
            yield context.rstrip(" "), sentence, _exchange(sentence, *present)
            break


def _exchange(sentence: str, one: str, other: str) -> str:
    either = re.compile(rf"\b(?:{re.escape(one)}|{re.escape(other)})\b")
    return either.sub(lambda match: other if match[0] == one else one, sentence)
