"""The same questions asked by lm-evaluation-harness: of the export, and of the server.

Neither it nor what it brings (datasets, accelerate, pandas, scikit-learn) is part of the extras:
pip install "lm_eval[hf,api]" makes these tests run.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.data.tasks import read_tasks
from groundup.data.tasks.stories import agreement, who_did_what
from groundup.generation import LanguageModel
from groundup.interop.huggingface_export import export_huggingface
from groundup.model import TransformerLM
from groundup.tokenizer.training import train_tokenizer
from groundup.training.tasks import TaskEvaluator

for module in ("lm_eval", "datasets", "accelerate", "tenacity"):
    pytest.importorskip(module, reason="lm-evaluation-harness is not installed")

CONTEXT = 256
# Some of the questions are longer.
SHORT_CONTEXT = 100
NUM_QUESTIONS = 40
# Others' warnings are not ours to heed.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in each format. The harness takes the first of equal choices, so there are none."""
    folder = tmp_path_factory.mktemp("questions")
    pairs, stories = (make().questions[:NUM_QUESTIONS] for make in (agreement, who_did_what))
    endings = [one.choices[one.answer] for one in agreement().questions]
    source = random.Random(0)
    files: dict[str, list[dict[str, Any]]] = {
        "ours": [{**one._asdict(), "context": one.context.rstrip()} for one in stories],
        "blimp": [{"sentence_good": one, "sentence_bad": two} for _, (one, two), _ in pairs],
        "hellaswag": [
            {
                "ctx": "",
                "ctx_a": one.context[:90].strip(),
                "ctx_b": "then [step] naïvely",
                "activity_label": "Stories [title] told",
                "endings": [f"é {ending}" for ending in source.sample(endings, 4)],
                "label": str(source.randrange(4)),
            }
            for one in stories
        ],
    }
    for name, records in files.items():
        lines = [json.dumps(record) + "\n" for record in records]
        (folder / f"{name}.jsonl").write_text("".join(lines), "utf-8")
    return folder


@pytest.fixture(scope="module")
def asked(questions: Path) -> LanguageModel:
    """Random weights and likelihoods far from even."""
    text = (questions / "ours.jsonl").read_bytes()
    tokenizer, _ = train_tokenizer([text], 400, ["<|endoftext|>"])
    torch.manual_seed(0)
    sizes: Any = {"d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 64}
    model = TransformerLM(vocab_size=400, context_length=CONTEXT, **sizes)
    with torch.no_grad():
        model.output_weight.mul_(6)
    return LanguageModel(model.eval(), tokenizer, step=1)


def ask_ours(
    asked: LanguageModel, questions: Path, context_length: int
) -> dict[str, tuple[float, float, float]]:
    """Our accuracies: raw, per character and per byte."""
    evaluator = TaskEvaluator(
        read_tasks([str(questions)]),
        asked.tokenizer,
        context_length,
        begin_id=asked.begin_id,
        batch_tokens=4096,
    )
    return {
        score.name: (score.raw.value, score.per_character.value, score.per_byte.value)
        for score in evaluator(asked.model)
    }


@pytest.fixture(scope="module")
def export(asked: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("exported")
    asked.save(folder / "run")
    export_huggingface(folder / "run", folder / "export")
    return str(folder / "export")


def ask_harness(
    questions: Path, model: str, arguments: dict[str, Any]
) -> dict[str, tuple[float, float, float]]:
    import lm_eval
    from lm_eval.tasks.hellaswag.utils import process_docs

    fields: dict[str, dict[str, Any]] = {
        "ours": {
            "doc_to_text": "{{context}}",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
        },
        "blimp": {
            "doc_to_text": "",
            "doc_to_choice": "{{[sentence_good, sentence_bad]}}",
            "doc_to_target": 0,
        },
        "hellaswag": {
            "process_docs": process_docs,
            "doc_to_text": "{{query}}",
            "doc_to_choice": "choices",
            "doc_to_target": "{{label}}",
        },
    }
    metrics = ("acc", "acc_norm", "acc_bytes")
    tasks = [
        {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(questions / f"{name}.jsonl")}},
            "test_split": "test",
            "output_type": "multiple_choice",
            "metric_list": [{"metric": metric} for metric in metrics],
            **own,
        }
        for name, own in fields.items()
    ]
    options: Any = {"batch_size": 8, "device": "cpu", "bootstrap_iters": 0}
    found = lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=tasks, **options)
    return {
        name: tuple(values[f"{metric},none"] for metric in metrics)
        for name, values in found["results"].items()
    }


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))


def test_the_harness_finds_the_same_accuracies_on_the_export(
    questions: Path, export: str, asked: LanguageModel
) -> None:
    arguments = {"pretrained": export, "dtype": "float32", "max_length": SHORT_CONTEXT}
    found = ask_harness(questions, "hf", arguments)
    expected = ask_ours(asked, questions, SHORT_CONTEXT)
    assert set(found) == {"ours", "blimp", "hellaswag"}
    for name, values in found.items():
        assert values == pytest.approx(expected[name], abs=1e-3), name


def test_the_harness_finds_the_same_accuracies_on_the_server(
    questions: Path, export: str, asked: LanguageModel, start: Any
) -> None:
    expected = ask_ours(asked, questions, CONTEXT)
    with start(asked) as running:
        arguments = {
            "model": "tiny",
            "base_url": f"{running.url}/v1/completions",
            "tokenizer": export,
            "tokenizer_backend": "huggingface",
            "max_length": CONTEXT,
        }
        found = ask_harness(questions, "local-completions", arguments)
    for name, values in found.items():
        assert values == pytest.approx(expected[name], abs=1e-3), name
