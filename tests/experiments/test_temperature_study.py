"""Texts at several temperatures: the metrics by hand, the laws of settings, a model as oracle."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groundup.errors import DataError
from groundup.experiments.reference_text import measure_words, read_reference, words_of
from groundup.experiments.report.charts import Chart
from groundup.experiments.report.document import Figure
from groundup.experiments.report.markdown_page import render_markdown
from groundup.experiments.report.temperature_page import (
    METRICS,
    setting_label,
    temperature_document,
)
from groundup.experiments.temperatures import (
    Conditions,
    Setting,
    generate_drafts,
    settings_of,
    study_run,
)
from groundup.generation import GenerationSettings, LanguageModel
from groundup.generation.scoring import log_probabilities
from groundup.model import TransformerLM
from groundup.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("quick_pictures")
SETTINGS = settings_of([0, 0.7, 1], [1, 0.9])
CONDITIONS = Conditions(prompts=("The cat", ""), num_texts=4, max_tokens=30, seed=3)


@pytest.fixture(scope="module")
def language_model() -> LanguageModel:
    """A model of bytes that has learned nothing: about one token in 260 ends a text."""
    torch.manual_seed(0)
    model = TransformerLM(
        vocab_size=257,
        context_length=64,
        d_model=16,
        num_layers=1,
        num_heads=2,
        d_ff=32,
        rope_theta=100.0,
    )
    tokenizer = Tokenizer({id: bytes([id]) for id in range(256)}, [], ["<|endoftext|>"])
    return LanguageModel(model.eval(), tokenizer, step=7)


@pytest.fixture(scope="module")
def studied(language_model: LanguageModel) -> dict[str, Any]:
    return study_run("small", language_model, SETTINGS, CONDITIONS)


def as_study(
    *runs: dict[str, Any], reference: str | None = None, conditions: Conditions = CONDITIONS
) -> dict[str, Any]:
    common = {"conditions": asdict(conditions), "device": "a device", "reference": reference}
    return {**common, "runs": list(runs)}


def pages_of(study: dict[str, Any], title: str, **words: str) -> dict[str, str]:
    return render_markdown(temperature_document(study, title, **words))


def test_words_are_in_small_letters_and_keep_what_joins_them() -> None:
    assert words_of("Don't, said X-ray 9!") == ["don't", "said", "x-ray", "9"]


def test_a_word_that_the_prompt_began_is_of_the_text_that_ends_it() -> None:
    assert words_of("The cat sat", begin=len("The ca")) == ["cat", "sat"]
    assert words_of("The cat sat", begin=len("The cat")) == ["sat"]


def metrics_of(name: str, *texts: str) -> list[float | None]:
    return [measured[name] for measured in measure_words([text.split() for text in texts])]


def test_repeated_4_grams_are_those_that_stood_there_before() -> None:
    # Of nine the first four are new, five are there already.
    found = metrics_of("repeated_4_grams", "a b c d a b c d a b c d", "a b c d e f", "a b c")
    assert found == [pytest.approx(5 / 9), 0, None]


def test_own_3_grams_are_those_of_no_other_text() -> None:
    assert metrics_of("own_3_grams", "a b c d", "a b c e") == [0.5, 0.5]
    assert metrics_of("own_3_grams", "a b c d", "a b c d") == [0, 0]
    assert metrics_of("own_3_grams", "a b c d", "a") == [1, None]
    # A text's own repetition does not take a 3-gram from it.
    assert metrics_of("own_3_grams", "a a a a a", "a b c e") == [1, 1]
    assert metrics_of("own_3_grams", "a b c d") == [None]


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=9), max_size=4))
def test_fractions_lie_between_0_and_1(texts: list[list[str]]) -> None:
    for words, measured in zip(texts, measure_words(texts), strict=True):
        assert all(value is None or 0 <= value <= 1 for value in measured.values())
        distinct = len(set(words)) / len(words) if words else None
        assert measured["distinct_1_grams"] == distinct


def test_every_temperature_meets_every_top_p_and_greedy_none() -> None:
    assert [setting_label(setting._asdict()) for setting in SETTINGS] == [
        "0",
        "0.7",
        "0.7, top-p 0.9",
        "1",
        "1, top-p 0.9",
    ]
    assert settings_of([0, 0.0, 1e-9, 1, 1.0], [0.5, 0.5]) == [Setting(0.0), Setting(1.0, 0.5)]


def test_greedy_writes_one_text_a_prompt_and_others_one_a_seed(studied: dict[str, Any]) -> None:
    assert [len(result["texts"]) for result in studied["results"]] == [2, 8, 8, 8, 8]
    for result in studied["results"][1:]:
        found = [(text["prompt"], text["seed"]) for text in result["texts"]]
        assert found == [(prompt, seed) for prompt in CONDITIONS.prompts for seed in range(3, 7)]


def test_texts_are_those_that_the_model_writes_alone(
    language_model: LanguageModel, studied: dict[str, Any]
) -> None:
    for result in studied["results"]:
        for text in result["texts"][:2]:
            assert text["text"] == language_model.generate(
                text["prompt"],
                max_tokens=CONDITIONS.max_tokens,
                **result["setting"],
                seed=text["seed"],
            )


def test_bits_are_the_models_own_before_any_rule(language_model: LanguageModel) -> None:
    request = language_model.request(
        "cat", GenerationSettings(max_tokens=40, temperature=0.9, top_p=0.95)
    )
    requests = [replace(request, seed=seed, num_alternatives=0) for seed in range(30)]
    drafts = generate_drafts(language_model, requests)
    for draft in drafts:
        chosen = [*draft.ids, 256] if draft.is_finished else draft.ids
        assert len(chosen) == draft.num_chosen and 256 not in draft.ids
        known = log_probabilities(language_model.model, [*request.prompt_ids, *chosen])
        assert draft.nats == pytest.approx(-sum(known[2:]), rel=1e-4)
    conditions = Conditions(prompts=("cat",), num_texts=30, max_tokens=40)
    (result,) = study_run("small", language_model, [Setting(0.9, 0.95)], conditions)["results"]
    assert 0 < sum(text["is_finished"] for text in result["texts"]) < 30
    for draft, text in zip(drafts, result["texts"], strict=True):
        assert text["is_finished"] == draft.is_finished
        assert text["figures"]["num_tokens"] == len(draft.ids)
        bits = draft.nats / math.log(2) / draft.num_chosen
        assert text["figures"]["bits_per_token"] == pytest.approx(bits)


def test_the_same_study_gives_the_same_figures_and_no_setting_feels_another(
    language_model: LanguageModel, studied: dict[str, Any]
) -> None:
    again = study_run("small", language_model, SETTINGS, CONDITIONS)
    assert again == studied
    alone = study_run("small", language_model, SETTINGS[-1:], CONDITIONS)
    assert alone["results"] == studied["results"][-1:]


def test_a_hot_model_writes_nothing_that_its_tokenizer_lacks(
    language_model: LanguageModel, shout: Any
) -> None:
    torch.manual_seed(0)
    changes = {"vocab_size": 320}
    model = TransformerLM.from_config(language_model.model.config.model_copy(update=changes))
    shout(model, range(257, 320))
    padded = LanguageModel(model.eval(), language_model.tokenizer)
    settings = settings_of([0, 1, 2], [1, 0.9])
    for result in study_run("padded", padded, settings, CONDITIONS)["results"]:
        for text in result["texts"]:
            bits = text["figures"]["bits_per_token"]
            assert text["figures"]["num_tokens"] and bits is not None
            # Among 257 ids of a model that has learned nothing; the others do not count.
            assert bits < 20


def test_more_texts_than_rows_wait_for_their_turn(language_model: LanguageModel) -> None:
    told = []
    conditions = Conditions(prompts=("a",), num_texts=70, max_tokens=2)
    study = study_run(
        "small",
        language_model,
        SETTINGS[:2],
        conditions,
        progress=lambda done, total: told.append((done, total)),
    )
    assert [len(result["texts"]) for result in study["results"]] == [1, 70]
    assert told == [(done, 71) for done in range(1, 72)]


def test_a_full_context_is_told(language_model: LanguageModel) -> None:
    conditions = Conditions(prompts=("a" * 60,), num_texts=4, max_tokens=50)
    run = study_run("small", language_model, SETTINGS, conditions)
    assert run["most_tokens"] == 5
    assert all(text["figures"]["num_tokens"] == 5 for text in run["results"][0]["texts"])
    study = as_study(run, conditions=conditions)
    (warning,) = temperature_document(study, "Cut").warnings
    assert "after 5 tokens" in warning
    assert warning in pages_of(study, "Cut")["cut.md"]


def test_reference_text_gives_known_words_and_figures_of_its_own(
    language_model: LanguageModel, tmp_path: Path
) -> None:
    file = tmp_path / "tales.txt"
    file.write_text("A dog sat. A dog ran.<|endoftext|>\n \n<|endoftext|>One cat sat here.")
    reference = read_reference(file, 2)
    assert reference.words == frozenset({"a", "dog", "sat", "ran", "one", "cat", "here"})
    assert reference.documents == ("A dog sat. A dog ran.", "One cat sat here.")
    study = study_run("small", language_model, SETTINGS, CONDITIONS, reference=reference)
    figures = {name: mean and mean["mean"] for name, mean in study["reference"].items()}
    scores = [language_model.score(document).loss for document in reference.documents]
    assert figures["bits_per_token"] == pytest.approx(sum(scores) / 2 / math.log(2))
    assert figures["num_tokens"] == (21 + 17) / 2
    assert figures["distinct_1_grams"] == (4 / 6 + 1) / 2
    assert figures["own_3_grams"] == 1
    for result in study["results"]:
        known = result["figures"]["known_words"]
        assert known is not None and 0 <= known["mean"] < 1
    page = pages_of(as_study(study, reference="tales.txt"), "Known")["known.md"]
    assert "known words" in page and "| reference text |" in page and "tales.txt" in page


def test_a_reference_without_words_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(" ...\n")
    with pytest.raises(DataError, match=r"no words in .*empty\.txt"):
        read_reference(tmp_path / "empty.txt", 2)


def test_the_page_has_every_setting_with_its_figures_and_specimen(studied: dict[str, Any]) -> None:
    files = pages_of(
        as_study(studied),
        "How *warm*?",
        why="To see.",
        finding="It is | so.",
    )
    assert list(files) == ["how_warm.md", "how_warm/over_temperature.svg"]
    page = files["how_warm.md"]
    assert page.startswith("# How \\*warm\\*?\n\nTo see.\n\nsmall at step 7; ")
    assert "(written by hand): It is \\| so.\n\n" in page
    assert "](how_warm/over_temperature.svg)" in page
    for result in studied["results"]:
        label = setting_label(result["setting"])
        assert page.count(f"\n| {label} | ") == 1
        assert page.count(f"\nTemperature {label}, small:\n\n```text\nThe cat") == 1
        bits = result["figures"]["bits_per_token"]
        assert METRICS["bits_per_token"].show(bits) in page
    assert "known words" not in page


@pytest.mark.parametrize("settings", [SETTINGS[:1], settings_of([0, 1], [0.9])])
def test_there_are_charts_for_any_settings(
    language_model: LanguageModel, settings: list[Setting]
) -> None:
    conditions = Conditions(prompts=("a",), num_texts=2, max_tokens=30)
    runs = [study_run(name, language_model, settings, conditions) for name in ("one", "<&>")]
    document = temperature_document(as_study(*runs, conditions=conditions), "Any")
    (figure,) = document.sections[1].blocks
    assert isinstance(figure, Figure)
    chart = figure.charts[0]
    assert isinstance(chart, Chart) and chart.title == "Bits per token"
    assert [line.label for line in chart.lines] == ["one", "<&>"]
    for line in chart.lines:
        assert [x for x, _ in line.points] == sorted({one.temperature for one in settings})
