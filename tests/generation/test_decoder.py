"""Decoders against the model itself, for every setting a model can have."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from groundup.errors import ConfigError
from groundup.generation import ModelDecoder, choose_decoder
from groundup.generation.decoder import check_max_seq_len, cuda_kernels_know
from groundup.generation.packed_decoder import PackedDecoder
from groundup.model import ModelConfig, TransformerLM

NewModel = Callable[..., TransformerLM]

SETTINGS: list[dict[str, Any]] = [
    {},
    {"norm": "post"},
    {"norm": "none"},
    {"positions": "none"},
    {"qk_norm": True},
    {"num_kv_heads": 2},
    {"num_kv_heads": 1, "qk_norm": True, "norm": "post"},
    {"tie_embeddings": True},
    {"embedding_scale": 3.0},
    {"logit_soft_cap": 3.0},
    {"feed_forward": "silu"},
    {"feed_forward": "gelu", "positions": "none", "num_kv_heads": 2},
    {"feed_forward": "relu2"},
    {"num_layers": 0},
    {"norm_eps": 0.1},
    {"kernels": "reference"},
]


@pytest.mark.parametrize("decoder", [ModelDecoder, PackedDecoder])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_decoded_logits_are_the_models(
    decoder: type[ModelDecoder], settings: dict[str, Any], new_model: NewModel
) -> None:
    model = new_model(**settings)
    texts = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [5, 3], [2, 7, 1, 8]]
    rows = decoder(model, max_rows=5)

    def expected(text: list[int]) -> torch.Tensor:
        return model(torch.tensor([text]))[0, -1].detach()

    for row, text in enumerate(texts):
        assert torch.allclose(rows.prefill(row, text), expected(text), atol=1e-4, rtol=1e-4)
    for step in range(4):
        for row, text in enumerate(texts):
            text.append((17 * step + 5 * row) % 50)
        if step == 1:
            # The last text takes the place of the second.
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
            assert torch.allclose(logits[row], expected(text), atol=1e-4, rtol=1e-4), step


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_decoding_keeps_the_dtype_of_the_weights(dtype: torch.dtype, new_model: NewModel) -> None:
    model = new_model(qk_norm=True).to(dtype)
    plain, packed = ModelDecoder(model, 2), PackedDecoder(model, 2)
    assert plain.cache.keys.dtype == packed.cache.keys.dtype == dtype
    ids, positions = torch.tensor([4, 2]), torch.tensor([3, 0])
    for decoder in (plain, packed):
        assert decoder.prefill(0, [1, 2, 3]).dtype == torch.float32
    atol = 0.2 if dtype == torch.bfloat16 else 1e-6
    assert torch.allclose(
        plain.decode(ids, positions), packed.decode(ids, positions), atol=atol, rtol=0.05
    )


def test_reference_kernels_are_asked_for_by_their_setting(new_model: NewModel) -> None:
    assert type(choose_decoder(new_model(), 2)) is PackedDecoder
    assert type(choose_decoder(new_model(kernels="reference"), 2)) is ModelDecoder


def test_cuda_kernels_leave_unusual_models_to_others() -> None:
    assert cuda_kernels_know(ModelConfig())
    for settings in SETTINGS:
        is_usual = not {"norm", "qk_norm", "feed_forward", "num_layers"} & settings.keys()
        assert cuda_kernels_know(ModelConfig(**settings)) == is_usual, settings


def test_rows_are_as_long_as_the_context_or_shorter() -> None:
    config = ModelConfig(context_length=12)
    assert [check_max_seq_len(config, length) for length in (None, 4, 12)] == [12, 4, 12]
    with pytest.raises(ConfigError, match="max_seq_len 13 is more than the model's context of 12"):
        check_max_seq_len(config, 13)
