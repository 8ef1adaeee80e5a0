"""Training works: accumulation equals the large batch; EMA and evaluation; accuracy by likelihood
against plain softmaxes."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from groundup.checkpoint import CheckpointFolder
from groundup.data.batches.loader import Batch
from groundup.data.batches.order import IdArray
from groundup.data.tasks import Question, Task
from groundup.errors import ConfigError, DataError
from groundup.generation import LanguageModel
from groundup.model import TransformerLM
from groundup.runs.folder import RunFolder
from groundup.runtime import set_seed
from groundup.text_files import read_document_batches
from groundup.tokenizer import Tokenizer
from groundup.training.clock import Tick
from groundup.training.data import open_data
from groundup.training.evaluation import Evaluation, Evaluator
from groundup.training.loop import train
from groundup.training.resolve import resolve_device
from groundup.training.step import Step
from groundup.training.tasks import Scorer, wilson_interval

from .conftest import MakeConfig


def evaluate(model: Any, split: Any, tokenizer: Any, **options: Any) -> Evaluation:
    options = {"num_windows": None, **options}
    return Evaluator(split, tokenizer, model.config.context_length, **options)(model)


@pytest.mark.parametrize(("micro_batch_size", "max_grad_norm"), [(1, None), (2, 0.05)])
def test_accumulation_equals_the_large_batch(
    make_config: MakeConfig, build: Any, take_step: Any, micro_batch_size: int, max_grad_norm: Any
) -> None:
    ids = torch.randint(300, (4, 17), generator=torch.Generator().manual_seed(0))

    def step(size: int | None) -> tuple[Any, dict[str, torch.Tensor]]:
        # A large learning rate, so that the weights show the gradients.
        changes = {"optimizer.name": "sgd", "optimizer.learning_rate": 1.0}
        changes |= {"max_grad_norm": max_grad_norm}
        config = make_config("run", changes)
        state = build(config)
        before = {name: one.clone() for name, one in state.model.state_dict().items()}
        result = take_step(config, state, Batch(0, ids[:, :-1], ids[:, 1:], size))
        if max_grad_norm is not None:
            after = state.model.state_dict()
            moved = sum(float((after[name] - before[name]).square().sum()) for name in before)
            assert math.sqrt(moved) == pytest.approx(max_grad_norm, rel=1e-2)
        return result, state.model.state_dict()

    (whole, whole_weights), (parted, parted_weights) = step(None), step(micro_batch_size)
    assert parted.loss == pytest.approx(whole.loss, rel=1e-5)
    assert parted.gradient_norm == pytest.approx(whole.gradient_norm, rel=1e-4)
    assert whole.gradient_norm > 0.05
    for name, weight in whole_weights.items():
        torch.testing.assert_close(parted_weights[name], weight, rtol=1e-4, atol=1e-6)


def test_multi_token_prediction_ends_before_the_run(make_config: MakeConfig, build: Any) -> None:
    ids = torch.randint(300, (2, 17), generator=torch.Generator().manual_seed(0))
    batch = Batch(0, ids[:, :-1], ids[:, 1:])

    def gradient_norm(weight: float, position: int) -> float:
        config = resolve_device(make_config("run", {"multi_token_weight": weight}))
        tick = Tick(position + 1, position, 1, 10, False, position - 1)
        return Step(config, build(config))(batch, tick).read().gradient_norm

    *early, middle, late = [gradient_norm(0.3, position) for position in (0, 3, 6, 9)]
    plain = gradient_norm(0.0, 0)
    assert middle == late == pytest.approx(plain) and min(abs(one - plain) for one in early) > 0.01
    assert early[0] != early[1]


def test_averages_are_saved_and_evaluated_but_not_trained(
    make_config: MakeConfig, records_of: Any
) -> None:
    changes = {"checkpoints.every_steps": 1, "checkpoints.keep_last": 12}
    changes["schedule.warmup_steps"] = 0
    plain = make_config("plain", changes)
    averaged = make_config("averaged", {**changes, "optimizer.ema_fraction": 0.5})
    train(plain)
    train(averaged)
    losses = [[one["loss"] for one in records_of(config)] for config in (plain, averaged)]
    assert losses[0] == losses[1]
    folders = [CheckpointFolder(one.run_folder / "checkpoints") for one in (plain, averaged)]
    latest = [folders[0].load(step).model_state() for step in range(1, 13)]
    saved = folders[1].newest().model_state()
    # The average keeps 1 - 1 / (0.5 * 12) of its value in each step, from the first step's weights.
    set_seed(plain.seed)
    for name, first in TransformerLM.from_config(plain.model).state_dict().items():
        expected = first
        for weights in latest:
            expected = expected * 5 / 6 + weights[name] / 6
        torch.testing.assert_close(saved[name], expected)
    ends = [records_of(one)[-1]["validation_loss"] for one in (plain, averaged)]
    model = LanguageModel.load(averaged.run_folder).model
    data = open_data(averaged, RunFolder(averaged.run_folder), {})
    found = evaluate(model, data.validation, data.tokenizer, num_windows=4)
    assert found.loss == pytest.approx(ends[1], rel=1e-5) != ends[0]


@pytest.fixture
def open_parts(make_config: MakeConfig, build: Any) -> Callable[..., tuple[Any, Any, Any]]:
    """Model, validation split and tokenizer of a run with these settings."""

    def open_(changes: dict[str, Any] | None = None) -> tuple[Any, Any, Any]:
        config = make_config("run", changes)
        data = open_data(config, RunFolder("nowhere"), {})
        return build(config).model, data.validation, data.tokenizer

    return open_


def test_bits_per_byte_counts_the_bytes_of_text(open_parts: Any) -> None:
    model, validation, tokenizer = open_parts()
    ids = torch.from_numpy(validation[:].astype("int64"))
    # Id 0 is an ordinary token.
    ids[20:22] = 0
    found = evaluate(model, IdArray(ids), tokenizer, batch_size=3)
    assert found.num_tokens == len(ids) - 1
    # The end of a document is a target, but not text.
    end = validation.index.end.id
    text = tokenizer.decode_bytes([id for id in ids[1:].tolist() if id != end])
    nats = found.loss * found.num_tokens
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / len(text))
    assert found.perplexity == pytest.approx(math.exp(found.loss))


def test_evaluation_windows_are_fixed(open_parts: Any) -> None:
    model, validation, tokenizer = open_parts({"model.context_length": 2048})
    found = evaluate(model, validation, tokenizer, num_windows=4)
    assert found.num_tokens == validation.num_tokens - 1 < 2047
    model, validation, tokenizer = open_parts()
    first = evaluate(model, validation, tokenizer, num_windows=5, batch_size=2)
    second = evaluate(model, validation, tokenizer, num_windows=5, batch_size=5)
    assert first.num_tokens == second.num_tokens == 5 * 16
    assert first.loss == pytest.approx(second.loss, rel=1e-6)


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
    # The same text, with a shorter choice.
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
    """The log-likelihood of one choice from the model's logits; it begins where the context
    ends."""
    encode = language_model.tokenizer.encode
    ids, num_context = encode(context + continuation), len(encode(context.rstrip()))
    if not num_context:
        ids, num_context = [language_model.begin_id or 0, *ids], 1
    num_predicted = len(ids) - num_context
    assert num_predicted <= CONTEXT
    logits = language_model.model(torch.tensor([ids[-CONTEXT - 1 : -1]]))[0, -num_predicted:]
    targets = torch.tensor(ids[-num_predicted:])
    return float(torch.log_softmax(logits, -1).gather(-1, targets[:, None]).sum())


def test_likelihoods_equal_those_of_each_choice_alone(language_model: LanguageModel) -> None:
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
    plain = LanguageModel(language_model.model, BYTES_ALONE)
    for length, num_cut in ((CONTEXT - 9, 0), (CONTEXT - 8, 1)):
        assert ask(plain, Question("a" * 9, ("b" * length, "c"), 0))["cut"] == num_cut


def test_ties_count_half_and_non_finite_likelihoods_give_no_accuracy(
    language_model: LanguageModel,
) -> None:
    same = Question("Ada had a", ("hat.", "hat."), 1)
    three = Question("Ada had a", ("hat.", "hat.", "hat."), 0)
    assert ask(language_model, same)["accuracy"] == 0.5
    assert ask(language_model, same, three, same)["accuracy"] == pytest.approx(4 / 9)
    broken = TransformerLM.from_config(language_model.model.config)
    with torch.no_grad():
        broken.output_weight.fill_(math.nan)
    score = ask(LanguageModel(broken, language_model.tokenizer), *QUESTIONS)
    assert math.isnan(score["accuracy"]) and math.isnan(score["interval"][0])


def test_intervals_equal_wilsons() -> None:
    """Computed with scipy: binomtest(right, count).proportion_ci(method="wilson")."""
    for right, count, interval in ((7, 10, (0.396778, 0.892209)), (10, 10, (0.722467, 1.0))):
        assert wilson_interval(right / count, count) == pytest.approx(interval, abs=1e-5)


@pytest.mark.parametrize("has_begin", [True, False])
def test_document_scores_equal_those_of_the_model(
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


def test_text_without_a_token_to_predict_is_rejected(
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
