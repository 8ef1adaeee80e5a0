"""What the temperature does to the texts of a model: how sure, how varied, how long they are.

Each setting writes the same number of texts with the same seeds; text that people wrote may be
measured beside them.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from groundup.errors import ConfigError
from groundup.experiments.report.figure_text import shorten
from groundup.experiments.results.statistics import Interval, confidence_interval
from groundup.experiments.temperatures.reference_text import ReferenceText
from groundup.experiments.temperatures.text_diversity import (
    distinct_share,
    known_share,
    own_shares,
    repeated_share,
    words_of,
)
from groundup.experiments.temperatures.writing import Draft, write_drafts
from groundup.generation import GenerationRequest, GenerationSettings, LanguageModel, Sampler
from groundup.generation.sampling import Temperature

# As many rows at once as a step carries without slowing much.
_MOST_ROWS = 64


@dataclass(frozen=True)
class Setting:
    """How the next token is chosen. Greedy choice (temperature 0) knows no top-p but 1."""

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
class WrittenText:
    """One text and its figures; a figure is None where the text is too short for it."""

    prompt: str
    seed: int
    text: str
    """What the model wrote after the prompt."""
    is_finished: bool
    """Did the model end it, rather than the number of tokens?"""
    figures: dict[str, float | None]


@dataclass(frozen=True)
class SettingResult:
    """All texts of one setting, and the means of their figures; None where no text has one."""

    setting: Setting
    figures: dict[str, Interval | None]
    texts: list[WrittenText]

    @property
    def specimen(self) -> WrittenText:
        return self.texts[0]

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
    results: list[SettingResult]
    reference: dict[str, Interval | None] | None
    """The same figures of documents that people wrote, as far as texts may reach."""
    reference_is_unseen: bool = False
    """Whether the model is known not to have learned from them."""


@dataclass(frozen=True)
class Conditions:
    """What is the same for every run and every setting."""

    prompts: tuple[str, ...] = ("Once upon a time",)
    num_texts: int = 32
    """For each prompt; a greedy choice writes one, for all would be alike."""
    max_tokens: int = 200
    seed: int = 0
    """The i-th text of a prompt is drawn with this seed + i."""

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
    runs: list[RunStudy]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def settings_of(temperatures: Sequence[float], top_ps: Sequence[float]) -> list[Setting]:
    """Every temperature with every top-p, each once, in the order given; greedy choice once."""
    if not temperatures or not top_ps:
        missing = "top-p" if temperatures else "temperature"
        raise ConfigError(f"there is no {missing} to write at: give at least one")
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
    """Write and measure the texts of one model at each setting.

    `progress` hears how many texts are written, and of how many.
    """
    plans = [(setting, _requests(language_model, setting, conditions)) for setting in settings]
    num_texts = sum(len(requests) for _, requests in plans)
    count = itertools.count(1)

    def tell() -> None:
        if progress is not None:
            progress(next(count), num_texts)

    most_rows = min(_MOST_ROWS, max(len(requests) for _, requests in plans))
    engine = language_model.make_engine(most_rows)
    results = []
    for setting, requests in plans:
        drafts = write_drafts(engine, requests, tell)
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
            replace(request, seed=conditions.seed + place, num_alternatives=0)
            for place in range(num_texts)
        ]
    return requests


def _most_tokens(language_model: LanguageModel, conditions: Conditions) -> int:
    longest = max(len(language_model.encode_prompt(prompt)) for prompt in conditions.prompts)
    # The last token is written where none can be read any more.
    return min(conditions.max_tokens, language_model.model.config.context_length + 1 - longest)


def _measure(
    language_model: LanguageModel,
    conditions: Conditions,
    drafts: Sequence[Draft],
    reference: ReferenceText | None,
) -> list[WrittenText]:
    num_texts = len(drafts) // len(conditions.prompts)
    written = []
    for place, prompt in enumerate(conditions.prompts):
        own_drafts = drafts[place * num_texts : (place + 1) * num_texts]
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
                figures["known_words"] = known_share(whole_words, reference.words)
            seed = draft.request.seed
            written.append(WrittenText(prompt, seed, text, draft.is_finished, figures))
    return written


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
            **{f"distinct_{length}_grams": distinct_share(words, length) for length in (1, 2, 3)},
            "own_3_grams": own_share,
            "repeated_4_grams": repeated_share(words, 4),
        }
        for words, own_share in zip(texts, own_shares(texts, 3), strict=True)
    ]


def _means(figures: Sequence[dict[str, float | None]]) -> dict[str, Interval | None]:
    means = {}
    for name in figures[0]:
        values = [own[name] for own in figures]
        means[name] = confidence_interval([value for value in values if value is not None])
    return means
