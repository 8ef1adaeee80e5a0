"""A run folder as a model that continues text: loading it, its text, and what may be wrong."""

from pathlib import Path

import pytest
import torch
import yaml

from groundup.checkpoint import CheckpointFolder
from groundup.errors import CheckpointError, ConfigError, GroundupError
from groundup.generation import LanguageModel
from groundup.model import ModelConfig, TransformerLM
from groundup.tokenizer import Tokenizer

END = "<|endoftext|>"
BYTES = {id: bytes([id]) for id in range(256)}
CONFIG = ModelConfig(vocab_size=257, context_length=16, d_model=16, num_layers=1, num_heads=2)


def new_model(seed: int = 0, config: ModelConfig = CONFIG) -> TransformerLM:
    torch.manual_seed(seed)
    return TransformerLM.from_config(config)


def byte_tokenizer(*special_tokens: str) -> Tokenizer:
    return Tokenizer(BYTES, [], list(special_tokens))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with checkpoints of steps 10, 20 and 30, of which 20 is the best."""
    folder = tmp_path / "run"
    folder.mkdir()
    settings = {"num_steps": 30, "model": CONFIG.model_dump(mode="json")}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    byte_tokenizer(END).save(folder / "tokenizer.json")
    checkpoints = CheckpointFolder(folder / "checkpoints")
    optimizer_state = {"state": {}, "param_groups": []}
    for step, metric in ((10, 3.0), (20, 1.0), (30, 2.0)):
        checkpoints.save(step, new_model(step).state_dict(), optimizer_state, {}, metric)
    return folder


@pytest.mark.parametrize(("which", "step"), [("newest", 30), ("best", 20), (10, 10)])
def test_the_checkpoint_asked_for_is_loaded(run: Path, which: str, step: int) -> None:
    language_model = LanguageModel.load(run, which)  # type: ignore[arg-type]
    assert language_model.step == step and not language_model.model.training
    expected = new_model(step).state_dict()
    for name, value in language_model.model.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_a_seed_decides_the_text(run: Path) -> None:
    language_model = LanguageModel.load(run)
    first = language_model.generate("Once", max_tokens=40, seed=1)
    assert first == LanguageModel.load(run).generate("Once", max_tokens=40, seed=1)
    assert first != language_model.generate("Once", max_tokens=40, seed=2)
    assert language_model.generate("Once", 40, temperature=0, seed=1) == language_model.generate(
        "Once", 40, temperature=0, seed=2
    )


def test_the_global_random_state_is_left_alone(run: Path) -> None:
    language_model = LanguageModel.load(run)
    before = torch.get_rng_state()
    language_model.generate("Once", max_tokens=5, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_stream_joins_to_the_text(run: Path) -> None:
    language_model = LanguageModel.load(run)
    pieces = list(language_model.stream("Once", max_tokens=60, seed=4))
    assert "".join(pieces) == language_model.generate("Once", max_tokens=60, seed=4)
    assert all(pieces)


def likes(*ids: int) -> TransformerLM:
    """A model that goes on with these ids in turn, whatever came before the first of them."""
    model = new_model(config=CONFIG.model_copy(update={"num_layers": 0, "norm": "none"}))
    with torch.no_grad():
        model.token_embedding.weight.zero_()
        model.lm_head.weight.zero_()
        for place, (before, after) in enumerate(zip((ord("?"), *ids), ids, strict=False)):
            model.token_embedding.weight[before, place] = 1.0
            model.lm_head.weight[after, place] = 1.0
    return model


def test_text_ends_with_its_document() -> None:
    model = likes(ord("a"), ord("b"), 256)
    text = LanguageModel(model, byte_tokenizer(END)).generate("?", temperature=0)
    assert text == "ab"


def test_half_a_character_is_never_given_out() -> None:
    euro = "€".encode()
    language_model = LanguageModel(likes(*euro, 256), byte_tokenizer(END))
    assert list(language_model.stream("?", temperature=0)) == ["€"]
    assert list(language_model.stream("?", max_tokens=2, temperature=0)) == []


def test_without_a_prompt_a_document_is_begun() -> None:
    model = likes(ord("a"), ord("b"), 256)
    with torch.no_grad():
        model.token_embedding.weight[256] = model.token_embedding.weight[ord("?")]
    assert LanguageModel(model, byte_tokenizer(END)).generate(temperature=0) == "ab"
    with pytest.raises(ConfigError, match="prompt is empty"):
        LanguageModel(model, byte_tokenizer()).generate("")


def test_ids_beyond_the_vocabulary_stand_for_nothing() -> None:
    language_model = LanguageModel(likes(ord("a"), 256, ord("b"), ord("c")), byte_tokenizer())
    assert language_model.generate("?", max_tokens=4, temperature=0) == "abc"


def test_a_tokenizer_larger_than_the_model_is_refused() -> None:
    with pytest.raises(CheckpointError, match="258 tokens but the model knows 257"):
        LanguageModel(new_model(), byte_tokenizer(END, "<|pad|>"))


@pytest.mark.parametrize(
    ("missing", "complaint"),
    [
        (".", "there is no run folder"),
        ("config.yaml", "no config.yaml"),
        ("tokenizer.json", "tokenizer.json"),
        ("checkpoints", "has no checkpoint yet"),
    ],
)
def test_a_run_that_lacks_something_says_what(run: Path, missing: str, complaint: str) -> None:
    (run / missing).rename(run.parent / "elsewhere")
    with pytest.raises((GroundupError, FileNotFoundError), match=complaint):
        LanguageModel.load(run)


@pytest.mark.parametrize(("d_model", "complaint"), [(0, "d_model is 0"), (32, "another model")])
def test_settings_that_do_not_fit_are_told(run: Path, d_model: int, complaint: str) -> None:
    settings = {"model": {**CONFIG.model_dump(mode="json"), "d_model": d_model}}
    (run / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    with pytest.raises(CheckpointError, match=complaint):
        LanguageModel.load(run)


def test_an_unknown_step_names_those_there_are(run: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint of step 40: there is 10, 20, 30"):
        LanguageModel.load(run, 40)
