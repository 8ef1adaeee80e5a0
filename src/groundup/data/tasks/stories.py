"""Built-in tasks, made from stories of our own grammar: the same ones each time, with no download.

agreement      is or are, was or were: the verb agrees with its subject, singular as often as plural
who_did_what   a sentence of a story, or the same with another of its people in the named one's part
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
# Who is named, and who takes the part: children and grown-ups do other things, two friends may not.
_PARTS = (
    *(("hero", "elder"), ("elder", "hero")),
    *(("hero", "parent"), ("parent", "hero")),
    *(("hero", "friend"), ("friend", "hero")),
)

# A context, the sentence that follows in the story, and one that is wrong.
_Pair = tuple[str, str, str]


def agreement() -> Task:
    """Sentences with one verb that tells the number of its subject, after the sentence before."""
    pairs = zip(_disagreements(_PLURAL_OF), _disagreements(_SINGULAR_OF), strict=True)
    return _make_task("agreement", chain.from_iterable(pairs))


def who_did_what() -> Task:
    """Sentences that name someone of a story, after all that was told before; in the wrong ones
    somebody else of the story takes that part."""
    kinds = enumerate(_PARTS)
    pairs = zip(*(_exchanges(_SEED + number, *part) for number, part in kinds), strict=True)
    return _make_task("who_did_what", chain.from_iterable(pairs))


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


def _exchanges(seed: int, named: str, other: str) -> Iterator[_Pair]:
    """Of each story the first sentence that names one of two people who are known by then."""
    for telling in story_tellings(seed):
        story = telling.expand("story")
        begin = 0
        for gap in _GAP.finditer(story, 0, _MOST_CONTEXT):
            context, sentence = story[:begin], story[begin : gap.start()]
            begin = gap.end()
            wrong = _exchange(sentence, telling[named], telling[other])
            is_known = telling[named] in context and telling[other] in context
            # "Anna and Ben" is as good as "Ben and Anna".
            is_pair = re.search(rf"{telling[named]} and|and {telling[named]}", sentence)
            if is_known and telling[other] in wrong and wrong != sentence and not is_pair:
                yield context.rstrip(" "), sentence, wrong
                break


def _exchange(sentence: str, one: str, other: str) -> str:
    either = re.compile(rf"\b(?:{re.escape(one)}|{re.escape(other)})\b")
    return either.sub(lambda match: other if match[0] == one else one, sentence)
