"""Accuracy by likelihood against plain softmaxes, and tasks measured while a run trains."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from groundup.data.tasks import Question, Task
from groundup.errors import ConfigError, DataError
from groundup.generation import LanguageModel
from groundup.model import TransformerLM
from groundup.text_files import read_document_batches
from groundup.tokenizer import Tokenizer
from groundup.training.tasks import Scorer, wilson_interval

END = "<|endoftext|>"
CONTEXT = 16
BYTES_ALONE = Tokenizer({id: bytes([id]) for id in range(256)}, [])
QUESTIONS = (
    Question("Ada had a red", ("kite.", "boat of Finn.", "é"), 0),
    Question("Ben lost it. Who found the", ("drum?", "drum and the old cup?"), 1),
    Question("", ("Who found the hat?", "Eve had it."), 0),
    Question("Dan had a new hat. Dan lost it. Who found the\n", ("hat?", " cup?"), 0),
    Question("Eve", (" had a big ball. Eve lost it. Who found", " it"), 1),
    Question("Ada had", ("a red kite.", "a boat."), 1),
    # The same text, of which less is the choice.
    Question("Ada had a", ("red kite.", "boat."), 0),
)


@pytest.fixture(scope="module")
def language_model(corpus_folder: Path) -> LanguageModel:
    torch.manual_seed(0)
    sizes: Any = {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 32}
    model = TransformerLM(vocab_size=300, context_length=CONTEXT, **sizes)
    with torch.no_grad():
        model.output_weight.mul_(8)
    return LanguageModel(model.eval(), Tokenizer.load(corpus_folder / "tokenizer.json"))


def scorer(of: LanguageModel, batch_tokens: int = 64) -> Scorer:
    return Scorer(of.model, of.tokenizer, of.begin_id, batch_tokens)


def ask(language_model: LanguageModel, *questions: Question) -> dict[str, Any]:
    return scorer(language_model).score_task(Task("asked", questions))


@torch.no_grad()
def likelihood(language_model: LanguageModel, context: str, continuation: str) -> float:
    """One choice alone, by the model's own logits; the choice begins where the context ends."""
    encode = language_model.tokenizer.encode
    ids, num_context = encode(context + continuation), len(encode(context.rstrip()))
    if not num_context:
        ids, num_context = [language_model.begin_id or 0, *ids], 1
    num_predicted = len(ids) - num_context
    assert num_predicted <= CONTEXT
    logits = language_model.model(torch.tensor([ids[-CONTEXT - 1 : -1]]))[0, -num_predicted:]
    targets = torch.tensor(ids[-num_predicted:])
    return float(torch.log_softmax(logits, -1).gather(-1, targets[:, None]).sum())


def test_likelihoods_are_those_of_each_choice_alone(language_model: LanguageModel) -> None:
    right = np.zeros(3)
    expected, task = [], Task("asked", QUESTIONS)
    for question in QUESTIONS:
        pairs = [(question.context, question.continuation(i)) for i in range(len(question.choices))]
        raw = np.array([likelihood(language_model, *pair) for pair in pairs])
        expected.append(raw)
        num_bytes = [len(choice.encode()) for choice in question.choices]
        num_characters = [len(choice) for choice in question.choices]
        for index, values in enumerate((raw, raw / num_bytes, raw / num_characters)):
            right[index] += float(values.argmax() == question.answer)
    for batch_tokens in (1, 40, 10_000):
        one = scorer(language_model, batch_tokens)
        found = one.choice_likelihoods(list(one._encode(task)))
        for own, values in zip(expected, found, strict=True):
            assert values == pytest.approx(own, abs=1e-4)
    score = ask(language_model, *QUESTIONS)
    accuracies = [score[f"accuracy{kind}"] for kind in ("", "_per_byte", "_per_character")]
    assert accuracies == pytest.approx(right / len(QUESTIONS))
    assert score["questions"] == 7 and score["cut"] == 2


def test_ties_count_half(language_model: LanguageModel) -> None:
    same = Question("Ada had a", ("hat.", "hat."), 1)
    three = Question("Ada had a", ("hat.", "hat.", "hat."), 0)
    assert ask(language_model, same)["accuracy"] == 0.5
    assert ask(language_model, same, three, same)["accuracy"] == pytest.approx(4 / 9)


def test_likelihoods_that_are_not_finite_give_no_accuracy(language_model: LanguageModel) -> None:
    broken = TransformerLM.from_config(language_model.model.config)
    with torch.no_grad():
        broken.output_weight.fill_(math.nan)
    score = ask(LanguageModel(broken, language_model.tokenizer), *QUESTIONS)
    assert math.isnan(score["accuracy"]) and math.isnan(score["interval"][0])


def test_intervals_are_wilsons() -> None:
    """By scipy: binomtest(right, count).proportion_ci(method="wilson")."""
    for right, count, interval in ((7, 10, (0.396778, 0.892209)), (10, 10, (0.722467, 1.0))):
        assert wilson_interval(right / count, count) == pytest.approx(interval, abs=1e-5)


@pytest.mark.parametrize("has_begin", [True, False])
def test_documents_are_scored_as_a_language_model_scores_them(
    language_model: LanguageModel, tmp_path: Path, has_begin: bool, log_likelihoods: Any
) -> None:
    if not has_begin:
        language_model = LanguageModel(language_model.model, BYTES_ALONE)
    texts = ["Ada had a red kite. " * 9, "Who?", "Ben lost the old drum, and Eve found it."]
    (tmp_path / "text.txt").write_text(END.join(texts), "utf-8")
    for batch_tokens, batch_bytes in ((16, 10), (1000, 1 << 20)):
        batches = read_document_batches([tmp_path / "text.txt"], batch_bytes=batch_bytes)
        one = scorer(language_model, batch_tokens)
        found, num_documents = one.evaluate_documents(batches)
        begin = [] if language_model.begin_id is None else [language_model.begin_id]
        ids = [begin + language_model.tokenizer.encode(text) for text in texts]
        known = [value for one in ids for value in log_likelihoods(language_model.model, one)]
        nats, num_tokens = -sum(known), len(known)
        assert num_documents == 3
        scored = [language_model.tokenizer.decode_bytes(one[1:]) for one in ids]
        assert found.num_bytes == sum(map(len, scored))
        assert found.num_tokens == num_tokens
        assert found.loss == pytest.approx(nats / num_tokens, rel=1e-5)
        bits = nats / math.log(2) / found.num_bytes
        assert found.bits_per_byte == pytest.approx(bits, rel=1e-5)


def test_text_without_a_token_to_predict_is_told(
    language_model: LanguageModel, tmp_path: Path
) -> None:
    def evaluate(text: str, tokenizer: Tokenizer) -> None:
        (tmp_path / "text.txt").write_text(text)
        batches = read_document_batches([tmp_path / "text.txt"])
        Scorer(language_model.model, tokenizer, None, 8).evaluate_documents(batches)

    with pytest.raises(DataError, match="1 document"):
        evaluate("a", BYTES_ALONE)
    with pytest.raises(DataError, match="0 documents"):
        evaluate(END, language_model.tokenizer)
    plain = LanguageModel(language_model.model, BYTES_ALONE)
    with pytest.raises(ConfigError, match="one-token choice without a context"):
        ask(plain, Question("", ("\n", "b"), 0))
