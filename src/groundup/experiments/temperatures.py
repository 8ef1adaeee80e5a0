"""What the temperature does to the texts of a model: how sure, how varied, how long they are.

Each setting generates the same number of texts with the same seeds; text that people wrote may be
measured beside them.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from groundup.errors import ConfigError, DataError
from groundup.experiments.reference_text import (
    ReferenceText,
    distinct_fraction,
    known_fraction,
    own_fractions,
    repeated_fraction,
    words_of,
)
from groundup.experiments.report.text import shorten
from groundup.experiments.results.statistics import Interval, confidence_interval
from groundup.generation import (
    Engine,
    GenerationRequest,
    GenerationSettings,
    LanguageModel,
    Sampler,
)
from groundup.generation.sampling import Temperature, not_finite

# As many rows at once as a step carries without slowing much.
_MOST_ROWS = 64


@dataclass(frozen=True)
class Setting:
    """How the next token is chosen. Greedy decoding (temperature 0) knows no top-p but 1."""

    temperature: float
    top_p: float = 1.0

    @property
    def is_greedy(self) -> bool:
        return Temperature(self.temperature).temperature == 0

    @property
    def label(self) -> str:
        """The temperature, and what is cut."""
        return f"{self.temperature:g}" + ("" if self.top_p == 1 else f", top-p {self.top_p:g}")


@dataclass(frozen=True)
class GeneratedText:
    """One text and its metrics; one is None where the text is too short for it."""

    prompt: str
    seed: int
    text: str
    """What the model generated after the prompt."""
    is_finished: bool
    """Did the model end it, rather than the number of tokens?"""
    figures: dict[str, float | None]


@dataclass(frozen=True)
class SettingResult:
    """All texts of one setting, and the means of their metrics; None where no text has one."""

    setting: Setting
    figures: dict[str, Interval | None]
    texts: list[GeneratedText]

    @property
    def num_finished(self) -> int:
        return sum(text.is_finished for text in self.texts)


@dataclass(frozen=True)
class RunStudy:
    """One run at every setting."""

    name: str
    step: int | None
    most_tokens: int
    """As many as were asked for, or as the context has room for after the longest prompt."""
    results: Annotated[list[SettingResult], Field(min_length=1)]
    reference: dict[str, Interval | None] | None
    """The same metrics of documents that people wrote, as far as texts may reach."""
    reference_is_unseen: bool = False
    """Whether the model is known not to have learned from them."""


@dataclass(frozen=True)
class Conditions:
    """What is the same for every run and every setting."""

    prompts: tuple[str, ...] = ("Once upon a time",)
    num_texts: int = 32
    """For each prompt; greedy decoding generates one, for all would be alike."""
    max_tokens: int = 200
    seed: int = 0
    """The i-th text of a prompt is sampled with seed + i."""

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ConfigError("there is no prompt to go on from: give at least one")
        if self.num_texts < 1:
            raise ConfigError(f"the number of texts is {self.num_texts}; it must be 1 or more")
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}; it must be 1 or more")


@dataclass(frozen=True)
class TemperatureStudy:
    """Every run at every setting, under which conditions, on which device."""

    conditions: Conditions
    settings: list[Setting]
    device: str
    reference: str | None
    """The file of which words are known, and documents where no unseen ones were found."""
    runs: Annotated[list[RunStudy], Field(min_length=1)]

    @classmethod
    def read(cls, path: Path) -> "TemperatureStudy":
        """The study in a file that `groundup temperatures --out` wrote."""
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"])) or "its beginning"
            raise DataError(
                f"{path} is no study of temperatures (at {where}: {error.errors()[0]['msg']}): "
                f"give a file that groundup temperatures --out wrote, or runs"
            ) from error


def settings_of(temperatures: Sequence[float], top_ps: Sequence[float]) -> list[Setting]:
    """Every temperature with every top-p, each once, in the order given; greedy once."""
    if not temperatures or not top_ps:
        missing = "top-p" if temperatures else "temperature"
        raise ConfigError(f"there is no {missing} to generate at: give at least one")
    settings: dict[Setting, None] = {}
    for temperature in temperatures:
        for top_p in top_ps:
            # Numbers out of range are told here.
            Sampler.of(temperature, top_p=top_p)
            setting = Setting(float(temperature), float(top_p))
            settings[Setting(0.0) if setting.is_greedy else setting] = None
    return list(settings)


def study_run(
    name: str,
    language_model: LanguageModel,
    settings: Sequence[Setting],
    conditions: Conditions,
    *,
    reference: ReferenceText | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RunStudy:
    """Generate and measure the texts of one model at each setting.

    `progress` is told how many texts are done, and of how many.
    """
    plans = [(setting, _requests(language_model, setting, conditions)) for setting in settings]
    num_texts = sum(len(requests) for _, requests in plans)
    done = itertools.count(1)
    report = progress or (lambda done, total: None)
    most_rows = min(_MOST_ROWS, max(len(requests) for _, requests in plans))
    engine = language_model.make_engine(most_rows)
    results = []
    for setting, requests in plans:
        drafts = generate_drafts(engine, requests, lambda: report(next(done), num_texts))
        texts = _measure(language_model, conditions, drafts, reference)
        results.append(SettingResult(setting, _means([text.figures for text in texts]), texts))
    return RunStudy(
        name,
        language_model.step,
        _most_tokens(language_model, conditions),
        results,
        None if reference is None else _measure_reference(language_model, conditions, reference),
        reference is not None and reference.is_unseen,
    )


@dataclass
class Draft:
    """The ids of a text as far as it is generated."""

    request: GenerationRequest
    ids: list[int] = field(default_factory=list)
    nats: float = 0.0
    """-ln p of all ids chosen, by the model alone: before temperature and cuts."""
    num_chosen: int = 0
    """One more than there are ids if the text is finished: its end was chosen too."""
    is_finished: bool = False
    """Did a stop id end it, rather than the number of tokens or the context?"""


def generate_drafts(
    engine: Engine, requests: Sequence[GenerationRequest], tell: Callable[[], None]
) -> list[Draft]:
    """Generate until every text is over, as many at a time as the engine has rows.

    The requests must ask for log-probabilities. `tell` is called whenever a text is over.
    """
    drafts = [Draft(request) for request in requests]
    waiting = deque(drafts)
    running: dict[int, Draft] = {}
    while waiting or running:
        while waiting and engine.num_free:
            draft = waiting.popleft()
            running[engine.add(draft.request)] = draft
        for handle, token in engine.step():
            draft = running[handle]
            if token.finish_reason == "error" or token.log_probability is None:
                raise not_finite()
            draft.nats -= token.log_probability
            draft.num_chosen += 1
            draft.is_finished = token.finish_reason == "stop"
            if not draft.is_finished:
                draft.ids.append(token.id)
            if token.finish_reason is not None:
                del running[handle]
                tell()
    return drafts


def _requests(
    language_model: LanguageModel, setting: Setting, conditions: Conditions
) -> list[GenerationRequest]:
    settings = GenerationSettings(
        max_tokens=conditions.max_tokens, temperature=setting.temperature, top_p=setting.top_p
    )
    num_texts = 1 if setting.is_greedy else conditions.num_texts
    context_length = language_model.model.config.context_length
    requests = []
    for prompt in conditions.prompts:
        request = language_model.request(prompt, settings)
        if len(request.prompt_ids) > context_length:
            raise ConfigError(
                f"the prompt {shorten(prompt, 40)!r} has {len(request.prompt_ids)} tokens, more "
                f"than the context of {context_length}: shorten it"
            )
        requests += [
            replace(request, seed=conditions.seed + number, num_alternatives=0)
            for number in range(num_texts)
        ]
    return requests


def _most_tokens(language_model: LanguageModel, conditions: Conditions) -> int:
    longest = max(len(language_model.encode_prompt(prompt)) for prompt in conditions.prompts)
    # The last token is generated where none can be read any more.
    return min(conditions.max_tokens, language_model.model.config.context_length + 1 - longest)


def _measure(
    language_model: LanguageModel,
    conditions: Conditions,
    drafts: Sequence[Draft],
    reference: ReferenceText | None,
) -> list[GeneratedText]:
    num_texts = len(drafts) // len(conditions.prompts)
    generated = []
    for number, prompt in enumerate(conditions.prompts):
        own_drafts = drafts[number * num_texts : (number + 1) * num_texts]
        texts = [language_model.tokenizer.decode(draft.ids) for draft in own_drafts]
        words = [words_of(prompt + text, begin=len(prompt)) for text in texts]
        for draft, text, own_words, diversity in zip(
            own_drafts, texts, words, _diversity(words), strict=True
        ):
            figures = {
                "bits_per_token": draft.nats / math.log(2) / draft.num_chosen,
                "num_tokens": float(len(draft.ids)),
                "finished": float(draft.is_finished),
                **diversity,
            }
            if reference is not None and reference.words is not None:
                # Where a text was cut off, so may be its last word.
                whole_words = own_words if draft.is_finished else own_words[:-1]
                figures["known_words"] = known_fraction(whole_words, reference.words)
            seed = draft.request.seed
            generated.append(GeneratedText(prompt, seed, text, draft.is_finished, figures))
    return generated


def _measure_reference(
    language_model: LanguageModel, conditions: Conditions, reference: ReferenceText
) -> dict[str, Interval | None]:
    """Documents cut off where texts are, read from their beginning."""
    tokenizer, most_tokens = language_model.tokenizer, _most_tokens(language_model, conditions)
    all_ids = [tokenizer.encode(document) for document in reference.documents]
    texts = [tokenizer.decode(ids[:most_tokens]) for ids in all_ids]
    figures = []
    for text, ids, diversity in zip(
        texts, all_ids, _diversity([words_of(text) for text in texts]), strict=True
    ):
        figures.append(
            {
                "bits_per_token": language_model.score(text).loss / math.log(2),
                "num_tokens": float(min(len(ids), most_tokens)),
                "finished": float(len(ids) <= most_tokens),
                **diversity,
                # All of them are, for it is they that make a word known.
                "known_words": None,
            }
        )
    return _means(figures)


def _diversity(texts: Sequence[Sequence[str]]) -> list[dict[str, float | None]]:
    """What the words of each of some texts say, alone and beside those of the others."""
    return [
        {
            **{
                f"distinct_{length}_grams": distinct_fraction(words, length) for length in (1, 2, 3)
            },
            "own_3_grams": own_fraction,
            "repeated_4_grams": repeated_fraction(words, 4),
        }
        for words, own_fraction in zip(texts, own_fractions(texts, 3), strict=True)
    ]


def _means(figures: Sequence[dict[str, float | None]]) -> dict[str, Interval | None]:
    means = {}
    for name in figures[0]:
        values = [own[name] for own in figures]
        means[name] = confidence_interval([value for value in values if value is not None])
    return means
