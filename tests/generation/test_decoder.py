"""Decoders against the model itself, for combined settings and changed layers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from groundup.generation import Engine, GenerationRequest, LanguageModel, Sampler
from groundup.generation.engine import choose_decoder
from groundup.generation.torch_decoder import TorchDecoder
from groundup.model import TransformerLM
from groundup.nn import Linear, TransformerBlock, kernels
from groundup.tokenizer import Tokenizer

from .conftest import finish, new_model, plain_ids

BYTES = {id: bytes([id]) for id in range(256)}
# tests/interop/test_every_setting.py tests each setting separately.
SETTINGS: list[dict[str, Any]] = [
    {},
    {"num_kv_heads": 1, "qk_norm": True, "norm": "post"},
    {"feed_forward": "gelu", "positions": "none", "num_kv_heads": 2},
    {"feed_forward": "relu2", "norm": "none"},
    {"value_embeddings": "projection", "norm": "post", "gated_attention": True, "qk_norm": True},
    {"num_layers": 0},
    {"document_separator": 9, "num_kv_heads": 2},
]
both_forms = pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "packed"])


@both_forms
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_decoded_logits_equal_the_models(is_packed: bool, settings: dict[str, Any]) -> None:
    model = new_model(**settings)
    texts = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [5, 3], [2, 7, 1, 8]]
    rows = TorchDecoder(model, max_rows=5, is_packed=is_packed)
    rows.prefill(list(enumerate(texts)))
    for step in range(4):
        for row, text in enumerate(texts):
            text.append((17 * step + 5 * row) % 50)
        if step == 1:
            # The last text moves to the second row.
            rows.copy(3, 1)
            texts[1] = texts.pop()
        if step == 2:
            rows.copy(0, 3)
            texts.append([*texts[0][:-1], 44])
        logits = rows.decode(
            torch.tensor([text[-1] for text in texts]),
            torch.tensor([len(text) - 1 for text in texts]),
        )
        assert logits.dtype == torch.float32 and logits.shape == (len(texts), 50)
        for row, text in enumerate(texts):
            expected = model(torch.tensor([text]))[0, -1].detach()
            assert torch.allclose(logits[row], expected, atol=1e-4, rtol=1e-4), step


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_decoding_keeps_the_dtype_of_the_weights(dtype: torch.dtype) -> None:
    model = new_model(qk_norm=True).to(dtype)
    results = []
    for is_packed in (False, True):
        decoder = TorchDecoder(model, 2, is_packed=is_packed)
        assert decoder.cache.keys.dtype == dtype
        decoder.prefill([(0, [1, 2, 3])])
        results.append(decoder.decode(torch.tensor([4, 2]), torch.tensor([3, 0])))
    atol = 0.2 if dtype == torch.bfloat16 else 1e-6
    assert torch.allclose(results[0], results[1], atol=atol, rtol=0.05)


def is_packed(model: TransformerLM) -> bool:
    decoder = choose_decoder(model, 2)
    assert isinstance(decoder, TorchDecoder)
    return decoder.packed is not None


def test_models_described_by_settings_get_the_fast_decoder() -> None:
    model = new_model(dropout=0.1)
    model.use_float8(False)
    assert is_packed(model)
    model.use_float8(True)
    assert is_packed(model.train())
    with kernels.reference():
        assert not is_packed(model)


class Halved(Linear):
    """A custom layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) / 2


def halve(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return output / 2


def change_data(model: Any) -> None:
    for parameter in model.blocks[0].parameters():
        parameter.data = parameter.data * 3


CHANGES: dict[str, Callable[[Any], object]] = {
    "block": lambda model: setattr(model.blocks, "1", TransformerBlock(32, 4, 128, 12, theta=50.0)),
    "linear": lambda model: setattr(
        model.blocks[0].feed_forward, "up", Halved(32, model.config.feed_forward_dim)
    ),
    "norm": lambda model: setattr(model.blocks[0].feed_forward_norm, "eps", 10.0),
    "hook": lambda model: model.blocks[0].register_forward_hook(halve),
    "forward": lambda model: setattr(model.blocks[0], "forward", lambda x, *rest: x),
    "weights": lambda model: model.requires_grad_(False).blocks[0].feed_forward.up.weight.mul_(9),
    "data": change_data,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_of_layers_and_weights_take_effect(
    change: Callable[[TransformerLM], None],
) -> None:
    model = new_model()
    asked = GenerationRequest((3, 1, 4), 8, Sampler(temperature=2.0))
    engine = Engine(model, 2)
    before = plain_ids(model, asked)
    assert finish(engine) == {} and finish_one(engine, asked) == before
    language_model = LanguageModel(new_model(vocab_size=257), Tokenizer(BYTES, []))
    texts = [language_model.generate("Once", max_tokens=8, temperature=2)]
    for changed in (model, language_model.model):
        torch.manual_seed(5)
        change(changed)
    expected = plain_ids(model, asked)
    assert finish_one(engine, asked) == expected != before
    texts.append(language_model.generate("Once", max_tokens=8, temperature=2))
    assert texts[0] != texts[1]


def finish_one(engine: Engine, asked: GenerationRequest) -> list[int]:
    handle = engine.add(asked)
    return finish(engine)[handle]
