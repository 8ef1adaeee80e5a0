"""`LanguageModel`: loading and saving run folders, generating text, and errors."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from groundup.checkpoint import CheckpointFolder
from groundup.errors import CheckpointError, ConfigError, GroundupError
from groundup.generation import GenerationSettings, LanguageModel
from groundup.model import ModelConfig, TransformerLM
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer

END = "<|endoftext|>"
BYTES = {id: bytes([id]) for id in range(256)}
CONFIG = ModelConfig(vocab_size=257, context_length=16, d_model=16, num_layers=1, num_heads=2)


def new_model(seed: int = 0, config: ModelConfig = CONFIG) -> TransformerLM:
    torch.manual_seed(seed)
    return TransformerLM.from_config(config)


def byte_tokenizer(*special_tokens: str) -> Tokenizer:
    return Tokenizer(BYTES, [], list(special_tokens))


def write_settings(run: Path, config: ModelConfig = CONFIG, **sections: Any) -> dict[str, Any]:
    model = config.model_dump(mode="json") | sections.pop("model", {})
    settings = {"num_steps": 30, "model": model, **sections}
    (run / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return settings


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with checkpoints of steps 10, 20 (the best) and 30."""
    folder = tmp_path / "run"
    folder.mkdir()
    settings = write_settings(folder)
    byte_tokenizer(END).save(folder / "tokenizer.json")
    checkpoints = CheckpointFolder(folder / "checkpoints")
    optimizer_state: dict[str, Any] = {"state": {}, "param_groups": []}
    for step, metric in ((10, 3.0), (20, 1.0), (30, 2.0)):
        state = {"settings": settings}
        checkpoints.save(step, new_model(step).state_dict(), optimizer_state, state, metric)
    return folder


def test_a_saved_model_round_trips_through_a_run_folder(run: Path, tmp_path: Path) -> None:
    model = LanguageModel.load(run)
    with torch.no_grad():
        model.model.lm_head.weight.mul_(2)
    special = dataclasses.replace(model.special_ids, begin=3, ends=(256, 5))
    LanguageModel(model.model, model.tokenizer, 30, special).save(tmp_path / "runs" / "saved")
    again = LanguageModel.from_pretrained(tmp_path / "runs" / "saved")
    assert f"{again.num_parameters:,} parameters, context 16" in repr(again)
    assert (again.step, again.special_ids, again.model.config) == (30, special, CONFIG)
    assert RunFolder(tmp_path / "runs" / "saved").find_state(None, None) == ("finished", None)
    for name, weight in model.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], weight)
    settings: Any = {"max_tokens": 12, "seed": 4}
    expected = LanguageModel(model.model, model.tokenizer, 30, special).generate("a", **settings)
    assert again.generate("a", **settings) == expected
    with pytest.raises(ConfigError, match="saved exists"):
        model.save(tmp_path / "runs" / "saved")


@pytest.mark.parametrize(("which", "step"), [("newest", 30), ("best", 20), (10, 10)])
def test_the_requested_checkpoint_is_loaded(run: Path, which: str, step: int) -> None:
    language_model = LanguageModel.load(run, which)  # type: ignore[arg-type]
    assert language_model.step == step and not language_model.model.training
    expected = new_model(step).state_dict()
    for name, value in language_model.model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    with pytest.raises(CheckpointError, match="10, 20, 30"):
        LanguageModel.load(run, 40)
    half = LanguageModel.load(run, dtype=torch.bfloat16)
    assert half.model.output_weight.dtype == torch.bfloat16 and half.generate(max_tokens=5)


def test_generate_many_equals_generating_each_alone(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    language_model = LanguageModel.load(run)
    prompts = ["Once", "", "upon a", "Once", "time!"]
    settings: dict[str, Any] = {"max_tokens": 30, "top_p": 0.9}
    together = language_model.generate_many(prompts, seed=5, **settings)
    for seed, prompt in enumerate(prompts, start=5):
        assert language_model.generate(prompt, seed=seed, **settings) == together[seed - 5]
    assert len(set(together)) == len(prompts)
    both = [language_model.generate("Once", seed=seed, **settings) for seed in (2**64 - 1, 0)]
    assert language_model.generate_many(["Once"] * 2, seed=2**64 - 1, **settings) == both
    assert language_model.generate_many([]) == []
    with pytest.raises(ConfigError, match="a list of prompts"):
        language_model.generate_many("ab")
    # More prompts than rows; an iterator of any length is consumed lazily.
    monkeypatch.setattr("groundup.generation.language_model._MAX_ROWS", 2)
    other = LanguageModel.load(run)
    assert other.generate_many(prompts, seed=5, **settings) == together
    request = other.request("abc", GenerationSettings(max_tokens=2))
    taken = (dataclasses.replace(request, seed=seed) for seed in itertools.count())
    pieces = other.stream_requests(taken)
    assert max(piece.number for piece in itertools.islice(pieces, 30)) > 5
    assert next(taken).seed < 100


def test_concurrent_streams_of_one_model_are_independent(run: Path) -> None:
    language_model = LanguageModel.load(run)
    settings: dict[str, Any] = {"max_tokens": 40}
    expected = [language_model.generate("Once", seed=seed, **settings) for seed in (1, 2)]
    streams = [language_model.stream("Once", seed=seed, **settings) for seed in (1, 2)]
    texts = ["", ""]
    for pair in itertools.zip_longest(*streams, fillvalue=""):
        assert any(pair)
        texts = [text + piece for text, piece in zip(texts, pair, strict=True)]
    assert texts == expected
    # A stream closed before its end leaves no running request.
    next(iter(language_model.stream("Once", seed=1, **settings)))
    assert language_model.generate("Once", seed=2, **settings) == expected[1]


@pytest.mark.parametrize(
    ("settings", "noun"),
    [
        ({"temperature": -0.5}, "temperature"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stop": [1]}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"seed": -1}, "seed"),
        ({"prompt": "x" * 17}, "context of 16"),
        ({"prompt": ["x"]}, "a prompt must be one string"),
        ({"max_new_tokens": 3}, "did you mean max_tokens"),
    ],
)
def test_errors_are_raised_before_the_first_piece(
    run: Path, settings: dict[str, Any], noun: str
) -> None:
    with pytest.raises(ConfigError, match=noun):
        LanguageModel.load(run).stream(**settings)


def likes(*ids: int) -> TransformerLM:
    """A model that generates these ids in turn, whatever the prompt."""
    model = new_model(config=CONFIG.model_copy(update={"num_layers": 0, "norm": "none"}))
    with torch.no_grad():
        model.token_embedding.weight.zero_()
        model.lm_head.weight.zero_()
        for index, (before, after) in enumerate(zip((ord("?"), *ids), ids, strict=False)):
            model.token_embedding.weight[before, index] = 1.0
            model.lm_head.weight[after, index] = 1.0
    return model


def test_a_text_ends_at_its_document_a_stop_string_or_max_tokens() -> None:
    language_model = LanguageModel(likes(*b"one lamp", 256), byte_tokenizer(END))
    assert language_model.generate("?", temperature=0) == "one lamp"
    assert language_model.generate("?", temperature=0, stop=["la", "x"]) == "one "
    assert language_model.generate("?", temperature=0, stop="mp") == "one la"
    assert language_model.generate("?", temperature=0, stop=["lamp post"]) == "one lamp"
    assert language_model.generate("?", temperature=0, max_tokens=3) == "one"
    assert list(language_model.stream("?", max_tokens=0)) == []


@pytest.mark.parametrize(
    ("environment", "begin_id", "stop_ids"),
    [
        ({}, 256, {256}),
        ({"end_id": 257}, 257, {257}),
        ({"imported": {"special_ids": {"eos_token_id": [98, 257]}}}, 98, {98, 257}),
        ({"imported": {"special_ids": {"eos_token_id": 98, "bos_token_id": 257}}}, 257, {98}),
        ({"imported": {"special_ids": {"eos_token_id": None}}}, 256, {256}),
        ({"end_id": 1_000}, 256, {256}),
        ({"imported": "from afar", "end_id": "b"}, 256, {256}),
    ],
)
def test_special_ids_of_a_run_begin_and_end_its_texts(
    run: Path, environment: dict[str, Any], begin_id: int, stop_ids: Any
) -> None:
    config = CONFIG.model_copy(update={"vocab_size": 258})
    write_settings(run, config)
    byte_tokenizer(END, "<|end|>").save(run / "tokenizer.json")
    CheckpointFolder(run / "checkpoints").save(40, new_model(0, config).state_dict(), {}, {})
    (run / "environment.json").write_text(json.dumps(environment))
    language_model = LanguageModel.load(run)
    assert (language_model.begin_id, language_model.stop_ids) == (begin_id, stop_ids)
    assert language_model.encode_prompt("") == [begin_id]
    assert language_model.request("a", GenerationSettings()).stop_ids == stop_ids


def test_an_empty_prompt_begins_a_document() -> None:
    model = likes(ord("a"), ord("b"), 256)
    with torch.no_grad():
        model.token_embedding.weight[256] = model.token_embedding.weight[ord("?")]
    assert LanguageModel(model, byte_tokenizer(END)).generate(temperature=0) == "ab"
    with pytest.raises(ConfigError, match="prompt is empty"):
        LanguageModel(model, byte_tokenizer()).generate("")
    with pytest.raises(CheckpointError, match="258 tokens, but the model only 257"):
        LanguageModel(model, byte_tokenizer(END, "<|pad|>"))


@pytest.mark.parametrize("missing", [".", "config.yaml", "tokenizer.json", "checkpoints"])
def test_errors_name_missing_files_of_a_run(run: Path, missing: str) -> None:
    (run / missing).rename(run.parent / "elsewhere")
    noun = {".": "run", "checkpoints": "checkpoint"}.get(missing, missing)
    with pytest.raises((GroundupError, FileNotFoundError), match=noun):
        LanguageModel.load(run)


@pytest.mark.parametrize("chats", [[], ["chats.jsonl"]])
def test_documents_of_a_run_of_an_earlier_version_are_masked(run: Path, chats: list[str]) -> None:
    settings = {
        "model": CONFIG.model_dump(mode="json", exclude={"document_separator"}),
        "data": {"mask_documents": True},
        "tuning": {"chats": chats},
    }
    (run / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    (run / "environment.json").write_text(json.dumps({"end_id": 256}))
    found = RunFolder(run).read_config().model
    assert found.document_separator == (None if chats else 256)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("d_model", 0, "d_model is 0"),
        ("d_model", 32, "another model"),
        ("num_layers", 1_000, "another model"),
        # These fit the weights, but differ from the saved settings.
        ("rope_theta", 9e4, "model.rope_theta is .* was saved with"),
        ("num_heads", 1, "model.num_heads is .* was saved with"),
    ],
)
def test_mismatched_settings_are_reported(
    run: Path, name: str, value: float, complaint: str
) -> None:
    write_settings(run, model={name: value})
    with pytest.raises(GroundupError, match=complaint):
        LanguageModel.load(run)


def test_damaged_weights_are_reported_and_change_nothing() -> None:
    language_model = LanguageModel(new_model(), byte_tokenizer(END))
    with torch.no_grad():
        language_model.model.token_embedding.weight[ord("x")] = torch.nan
    before = language_model.generate_many(["abc", "d"], max_tokens=4, seed=5)
    with pytest.raises(CheckpointError, match="not finite"):
        language_model.generate_many(["d", "abcxdefgh"], max_tokens=4)
    assert language_model.generate_many(["abc", "d"], max_tokens=4, seed=5) == before
