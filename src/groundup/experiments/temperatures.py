"""What the temperature does to the texts of a model: how sure, how varied, how long they are.

Each setting generates the same number of texts with the same seeds; text that people wrote may be
measured beside them. A study is a JSON value, as `groundup temperatures --out` writes it.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from groundup.errors import ConfigError
from groundup.experiments.reference_text import Measured, Reference, measure_words, words_of
from groundup.experiments.report.text import shorten
from groundup.experiments.results.statistics import confidence_interval
from groundup.generation import GenerationRequest, GenerationSettings, LanguageModel, Sampler
from groundup.generation.sampling import Temperature, not_finite
from groundup.tokenizer import Tokenizer

# As many rows at once as a step carries without slowing much.
_MOST_ROWS = 64


class Setting(NamedTuple):
    """How the next token is chosen. Greedy decoding (temperature 0) knows no top-p but 1."""

    temperature: float
    top_p: float = 1.0

    @property
    def is_greedy(self) -> bool:
        return Temperature(self.temperature).temperature == 0


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


def settings_of(temperatures: Sequence[float], top_ps: Sequence[float]) -> list[Setting]:
    """Every temperature with every top-p, each once, in the order given; greedy once."""
    if not temperatures or not top_ps:
        missing = "top-p" if temperatures else "temperature"
        raise ConfigError(f"there is no {missing} to generate at: give at least one")
    settings: dict[Setting, None] = {}
    for temperature, top_p in itertools.product(temperatures, top_ps):
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
    reference: Reference | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Generate and measure the texts of one model at each setting.

    name: of the run.
    reference: what people wrote, to measure beside the texts.
    progress: told how many texts are done, and of how many.
    """
    plans = [(setting, _requests(language_model, setting, conditions)) for setting in settings]
    num_texts = sum(len(requests) for _, requests in plans)
    done = itertools.count(1)
    report = progress or (lambda done, total: None)
    longest = max(len(language_model.encode_prompt(prompt)) for prompt in conditions.prompts)
    # The last token is generated where none can be read any more.
    room = language_model.model.config.context_length + 1 - longest
    most_tokens = min(conditions.max_tokens, room)
    words = None if reference is None else reference.words
    results = []
    for setting, requests in plans:
        drafts = generate_drafts(language_model, requests, lambda: report(next(done), num_texts))
        texts = _measure(language_model.tokenizer, conditions, drafts, words)
        means = mean_metrics([text["figures"] for text in texts])
        results.append({"setting": setting._asdict(), "figures": means, "texts": texts})
    measured = None if reference is None else _read(language_model, reference, most_tokens)
    return {
        "name": name,
        "step": language_model.step,
        "most_tokens": most_tokens,
        "results": results,
        "reference": measured,
        "reference_is_unseen": reference is not None and reference.is_unseen,
    }


def mean_metrics(measured: Sequence[Measured]) -> dict[str, dict[str, Any] | None]:
    """Each metric over the texts that have it, as mean and half width; None where none has it."""
    means: dict[str, dict[str, Any] | None] = {}
    for name in measured[0]:
        values = [own[name] for own in measured]
        interval = confidence_interval([value for value in values if value is not None])
        means[name] = None if interval is None else asdict(interval)
    return means


@dataclass
class Draft:
    """The ids of a text as far as it is generated."""

    request: GenerationRequest
    ids: list[int]
    nats: float = 0.0
    """-ln p of all ids chosen, by the model alone: before temperature and cuts."""
    num_chosen: int = 0
    """One more than there are ids if the text is finished: its end was chosen too."""
    is_finished: bool = False
    """Did a stop id end it, rather than the number of tokens or the context?"""


def generate_drafts(
    language_model: LanguageModel,
    requests: Sequence[GenerationRequest],
    tell: Callable[[], None] = lambda: None,
) -> list[Draft]:
    """Generate until every text is over; `tell` is called whenever one is.

    The requests must ask for log-probabilities.
    """
    engine = language_model.make_engine(min(_MOST_ROWS, len(requests)))
    drafts = [Draft(request, []) for request in requests]
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
    settings = GenerationSettings(max_tokens=conditions.max_tokens, **setting._asdict())
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
            for number in range(1 if setting.is_greedy else conditions.num_texts)
        ]
    return requests


def _measure(
    tokenizer: Tokenizer,
    conditions: Conditions,
    drafts: Sequence[Draft],
    known_words: frozenset[str] | None,
) -> list[dict[str, Any]]:
    num_texts = len(drafts) // len(conditions.prompts)
    generated = []
    for number, prompt in enumerate(conditions.prompts):
        own_drafts = drafts[number * num_texts : (number + 1) * num_texts]
        texts = [tokenizer.decode(draft.ids) for draft in own_drafts]
        words = [words_of(prompt + text, begin=len(prompt)) for text in texts]
        varied = measure_words(words)
        for draft, text, own, metrics in zip(own_drafts, texts, words, varied, strict=True):
            bits = draft.nats / math.log(2) / draft.num_chosen
            metrics = _with_length(metrics, bits, len(draft.ids), draft.is_finished)
            if known_words is not None:
                # Where a text was cut off, so may be its last word.
                whole = own if draft.is_finished else own[:-1]
                known = sum(word in known_words for word in whole)
                metrics["known_words"] = known / len(whole) if whole else None
            common = {"prompt": prompt, "seed": draft.request.seed, "text": text}
            generated.append({**common, "is_finished": draft.is_finished, "figures": metrics})
    return generated


def _read(
    language_model: LanguageModel, reference: Reference, most_tokens: int
) -> dict[str, dict[str, Any] | None]:
    """The same metrics of documents that people wrote, cut off where texts are."""
    tokenizer = language_model.tokenizer
    all_ids = [tokenizer.encode(document) for document in reference.documents]
    texts = [tokenizer.decode(ids[:most_tokens]) for ids in all_ids]
    measured = []
    varied = measure_words([words_of(text) for text in texts])
    for text, ids, metrics in zip(texts, all_ids, varied, strict=True):
        bits = language_model.score(text).loss / math.log(2)
        length = min(len(ids), most_tokens)
        # All their words are known, for it is they that make a word known.
        metrics = {**_with_length(metrics, bits, length, length == len(ids)), "known_words": None}
        measured.append(metrics)
    return mean_metrics(measured)


def _with_length(metrics: Measured, bits: float, num_tokens: int, is_finished: bool) -> Measured:
    own = {"bits_per_token": bits, "num_tokens": float(num_tokens)}
    return {**own, "finished": float(is_finished), **metrics}
