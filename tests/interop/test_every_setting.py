"""Every model setting has the same effect in every use of the model, or is rejected by name.

A new field of `ModelConfig` needs an example here, and an entry in `DECODED` (decoders) and `RULES`
(exports). Every other use must agree with the forward pass.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from groundup.data.batches.loader import Batch
from groundup.errors import ConfigError
from groundup.generation import GenerationRequest, LanguageModel, Sampler
from groundup.generation.decoder import Row
from groundup.generation.engine import DECODED, choose_decoder
from groundup.generation.torch_decoder import TorchDecoder
from groundup.interop import export_gguf, export_huggingface, import_huggingface
from groundup.interop.architectures import RULES
from groundup.interop.weights import GGUF_NAMES, from_foreign_weights
from groundup.model import ModelConfig, TransformerLM
from groundup.nn import KVCache, MultiHeadSelfAttention, kernels
from groundup.planner import count_parameters
from groundup.tokenizer import Tokenizer
from groundup.training.step import summed_loss

from .conftest import load

RunWith = Callable[[str], Path]

SEPARATOR = 299
EXAMPLES: dict[str, Any] = {
    "vocab_size": 320,
    "context_length": 48,
    "d_model": 64,
    "num_layers": 3,
    "num_heads": 2,
    "num_kv_heads": 2,
    "d_ff": 40,
    "rope_theta": 50.0,
    "norm": "post",
    "attention": "full",
    "norm_eps": 0.1,
    "positions": "none",
    "feed_forward": "gelu",
    "tie_embeddings": True,
    "embedding_scale": 3.0,
    "qk_norm": True,
    "initialization": "gpt2",
    "zero_outputs": True,
    "gated_attention": True,
    "value_embeddings": "projection",
    "dropout": 0.3,
    "document_separator": SEPARATOR,
}
GGUF_KEYS = {
    "vocab_size": "vocab_size",
    "context_length": "context_length",
    "d_model": "embedding_length",
    "num_layers": "block_count",
    "num_heads": "attention.head_count",
    "num_kv_heads": "attention.head_count_kv",
    "d_ff": "feed_forward_length",
    "rope_theta": "rope.freq_base",
    "norm_eps": "attention.layer_norm_rms_epsilon",
}


@pytest.fixture(scope="module")
def run_with(
    write_run: Any, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> RunWith:
    """`run_with("qk_norm")`: a run in which this setting does not have its default."""

    @functools.cache
    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp("runs")
        return Path(write_run(folder, tokenizer, **{name: EXAMPLES[name]}))

    return make


@dataclass
class Case:
    """A run of a model with one changed setting, and the logits of its forward pass."""

    run: Path
    out: Path
    model: TransformerLM
    ids: Tensor
    logits: Tensor


def huggingface(case: Case) -> Tensor:
    export_huggingface(case.run, case.out)
    logits: Tensor = load(case.out)(case.ids).logits
    return logits


def gguf(case: Case) -> Tensor:
    """Computed from the settings and tensors in the file; llama.cpp rotates like us, except for
    Qwen3."""
    library = pytest.importorskip("gguf")
    file = case.out.with_suffix(".gguf")
    export_gguf(case.run, file)
    reader = library.GGUFReader(file)
    kind = reader.fields["general.architecture"].contents()
    weights = {one.name: torch.from_numpy(np.array(one.data)) for one in reader.tensors}
    config = ModelConfig(
        **{name: reader.fields[f"{kind}.{key}"].contents() for name, key in GGUF_KEYS.items()},
        qk_norm=kind == "qwen3",
        tie_embeddings="output.weight" not in weights,
        embedding_scale=1.0,
    )
    state = from_foreign_weights(weights, config, GGUF_NAMES)
    if kind == "llama":
        for layer in range(config.num_layers):
            for ours, theirs in (("query", "attn_q"), ("key", "attn_k")):
                name = f"blocks.{layer}.attention.{ours}.weight"
                state[name] = weights[f"blk.{layer}.{theirs}.weight"]
    model = TransformerLM.from_config(config)
    model.load_state_dict(state)
    logits: Tensor = model(case.ids)
    return logits


def imported(case: Case) -> Tensor:
    export_huggingface(case.run, case.out)
    run = import_huggingface(case.out, "back", runs_folder=case.out.parent)
    logits: Tensor = LanguageModel.load(run).model(case.ids)
    return logits


def reloaded(case: Case) -> Tensor:
    LanguageModel.load(case.run).save(case.out)
    found = LanguageModel.load(case.out).model
    assert found.config == case.model.config
    logits: Tensor = found(case.ids)
    return logits


def cached(case: Case) -> Tensor:
    config, (num_rows, length) = case.model.config, case.ids.shape
    shape = config.num_layers, num_rows, config.key_value_heads, length, config.d_head
    cache, positions = KVCache(*shape), torch.arange(length).expand(num_rows, -1)
    parts = [tensor.tensor_split([9, 10, 11], dim=1) for tensor in (case.ids, positions)]
    pairs = zip(*parts, strict=True)
    return torch.cat([case.model(ids, positions, cache) for ids, positions in pairs], dim=1)


def decoded(case: Case) -> Tensor:
    decoder = choose_decoder(case.model, len(case.ids))
    assert isinstance(decoder, TorchDecoder) and decoder.packed is not None
    decoder.prefill(list(enumerate(case.ids[:, :9].tolist())))
    steps = [
        decoder.decode(case.ids[:, position], torch.full((len(case.ids),), position))
        for position in range(9, case.ids.shape[1])
    ]
    return torch.cat([case.logits[:, :9], torch.stack(steps, dim=1)], dim=1)


def pictured(case: Case) -> Tensor:
    """The forward pass with values mixed by the attention weights for inspection."""
    shown = iter(case.model.attention_weights(case.ids))

    def mix(layer: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Tensor:
        return next(shown) @ value.repeat_interleave(layer.num_heads // layer.num_kv_heads, dim=1)

    with kernels.reference(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(MultiHeadSelfAttention, "_attend", mix)
        logits: Tensor = case.model(case.ids)
    return logits


WAYS = [cached, decoded, pictured, reloaded, huggingface, gguf, imported]


def is_refused(name: str, way: Callable[[Case], Tensor]) -> bool:
    # transformers gets our own modeling file.
    return way is gguf and bool(RULES[name].only) and EXAMPLES[name] not in RULES[name].only


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", ModelConfig.model_fields)
@torch.no_grad()
def test_a_setting_has_the_same_effect_everywhere_or_is_rejected(
    name: str, way: Callable[[Case], Tensor], run_with: RunWith, tmp_path: Path
) -> None:
    assert name in DECODED and name in RULES and name in EXAMPLES
    # tests/test_variants.py adds another attention.
    assert EXAMPLES[name] != ModelConfig.model_fields[name].default or name == "attention"
    run = run_with(name)
    model = LanguageModel.load(run, device="cpu").model
    ids = torch.randint(SEPARATOR, (2, 20), generator=torch.Generator().manual_seed(0))
    if way not in (huggingface, gguf, imported):
        # Others treat the prompt as one document.
        ids[0, [5, 9, 10]] = ids[1, 15] = SEPARATOR
    case = Case(run, tmp_path / "out", model, ids, model(ids))
    if is_refused(name, way):
        with pytest.raises(ConfigError, match=name):
            way(case)
    else:
        found = way(case)
        # A GGUF file has no rows for ids without a token.
        num_ids = SEPARATOR + 1 if way is gguf else model.config.vocab_size
        torch.testing.assert_close(found, case.logits[..., :num_ids], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ModelConfig.model_fields)
@torch.no_grad()
def test_scores_and_counts_are_those_of_the_forward_pass(name: str, run_with: RunWith) -> None:
    model = LanguageModel.load(run_with(name), device="cpu").model
    parameters = sum(weight.numel() for weight in model.parameters())
    assert sum(count_parameters(model.config).values()) == parameters
    ids = torch.randint(SEPARATOR, (2, 21))
    ids[0, 7] = SEPARATOR
    loss = summed_loss(model, Batch(0, ids[:, :-1], ids[:, 1:]))
    logits = model(ids[:, :-1]).flatten(0, 1)
    expected = functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ModelConfig.model_fields)
@torch.no_grad()
def test_in_half_precision_decoders_are_as_accurate_as_the_forward_pass(
    name: str, run_with: RunWith, device: torch.device
) -> None:
    model = LanguageModel.load(run_with(name), device=device).model
    ids = torch.randint(SEPARATOR, (2, 20))
    ids[0, [5, 9, 10]] = ids[1, 15] = SEPARATOR
    exact = model(ids.to(device))
    own = model.to(torch.bfloat16)(ids.to(device)).float()
    decoder = choose_decoder(model, 2)
    is_own = device.type == "cuda" and model.config.norm == "pre"
    assert (type(decoder).__name__ == "CudaDecoder") == is_own
    decoder.prefill([(row, text[:9]) for row, text in enumerate(ids.tolist())])
    for position in range(9, 20):
        texts = ids[:, : position + 1].tolist()
        requests = [GenerationRequest(tuple(text), 5, Sampler()) for text in texts]
        decoder.begin([Row(0, *pair) for pair in zip(requests, texts, strict=True)])
        errors = (decoder.step(1)[1] - exact[:, position]).abs()
        assert errors.max() <= 2 * (own - exact).abs().max() + 1e-3
