"""Rivals: our architecture in plain torch, GPT-2's, and Hugging Face's Llama (to generate).

The first two map ids and targets to the mean loss. `plain_weights` and `huggingface_weights`
convert our weights, so that losses and texts can be compared at equal weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundup.interop.architectures import to_config_json
from groundup.interop.weights import HUGGINGFACE_NAMES, to_foreign_weights
from groundup.model.config import ModelConfig

Weights = dict[str, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
# (queries, keys, values), each (batch, heads, seq, d_head) -> the output of attention.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def attend_causally(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class PlainLM(nn.Module):
    """Our model in plain torch: packed projections, fused attention, RoPE on halves."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        norm = functools.partial(nn.RMSNorm, config.d_model, config.norm_eps)
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleList(
            _Block(config, norm, _SwiGLU(config)) for _ in range(config.num_layers)
        )
        self.final_norm = norm()
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        exponents = torch.arange(0, config.d_head, 2, dtype=torch.float64) / config.d_head
        positions = torch.arange(config.context_length, dtype=torch.float64)
        angles = positions[:, None] * config.rope_theta**-exponents
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        tables = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        x = self.token_embedding(ids)
        for block in self.blocks:
            x = block(x, tables)
        logits = self.lm_head(self.final_norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class GptLM(nn.Module):
    """GPT-2's architecture as in small trainers: LayerNorm without bias, learned positions, GELU
    with d_ff = 4 d_model, tied embeddings."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        norm = functools.partial(nn.LayerNorm, config.d_model, bias=False)
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.position_embedding = nn.Embedding(config.context_length, config.d_model)
        self.blocks = nn.ModuleList(
            _Block(config, norm, _Gelu(config)) for _ in range(config.num_layers)
        )
        self.final_norm = norm()
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.token_embedding(ids) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.final_norm(x), self.token_embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class _Block(nn.Module):
    def __init__(
        self, config: ModelConfig, norm: Callable[[], nn.Module], feed_forward: nn.Module
    ) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.attention_norm = norm()
        self.query_key_value = nn.Linear(config.d_model, 3 * config.d_model, bias=False)
        self.output = nn.Linear(config.d_model, config.d_model, bias=False)
        self.feed_forward_norm = norm()
        self.feed_forward = feed_forward

    def forward(
        self,
        x: Tensor,
        tables: tuple[Tensor, Tensor] | None = None,
        attend: Attend = attend_causally,
    ) -> Tensor:
        query, key, value = _heads(self.query_key_value(self.attention_norm(x)), self.num_heads)
        if tables is not None:
            query, key = _rotated(query, *tables), _rotated(key, *tables)
        mixed = attend(query, key, value)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        added: Tensor = self.feed_forward(self.feed_forward_norm(x))
        return x + added


class _SwiGLU(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.d_model, 2 * config.feed_forward_dim, bias=False)
        self.down = nn.Linear(config.feed_forward_dim, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        y: Tensor = self.down(F.silu(gate) * up)
        return y


class _Gelu(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.d_model, config.feed_forward_dim, bias=False)
        self.down = nn.Linear(config.feed_forward_dim, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.gelu(self.up(x)))
        return y


def _heads(packed: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split (batch, seq, 3·d_model) into query, key and value, each (batch, heads, seq, d_head)."""
    batch, seq, width = packed.shape
    parts = packed.view(batch, seq, 3, num_heads, width // (3 * num_heads)).transpose(1, 3)
    query, key, value = parts.unbind(2)
    return query, key, value


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
    return turned.to(x.dtype)


def gpt_form(config: ModelConfig) -> ModelConfig:
    """Settings with the same matmuls as `GptLM`, for counting FLOPs."""
    form = {"feed_forward": "gelu", "d_ff": 4 * config.d_model, "tie_embeddings": True}
    return config.model_copy(update=form)


def huggingface_model(config: ModelConfig) -> nn.Module:
    """LlamaForCausalLM of the same size."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings: Any = to_config_json(config, "float32")
    settings |= {"attn_implementation": "sdpa", "use_cache": False}
    model: nn.Module = LlamaForCausalLM(LlamaConfig(**settings))
    return model


def huggingface_weights(weights: Weights, config: ModelConfig) -> Weights:
    """Our weights under the names of LlamaForCausalLM, permuted for RoPE on halves."""
    return to_foreign_weights(weights, config, HUGGINGFACE_NAMES, rotates_halves=True)


# The weights of a block of `PlainLM`, and the Llama weights that they are made of.
_PACKED = {
    "attention_norm": ["input_layernorm"],
    "query_key_value": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "output": ["self_attn.o_proj"],
    "feed_forward_norm": ["post_attention_layernorm"],
    "feed_forward.gate_up": ["mlp.gate_proj", "mlp.up_proj"],
    "feed_forward.down": ["mlp.down_proj"],
}


def plain_weights(weights: Weights, config: ModelConfig) -> Weights:
    """Our weights under the names of `PlainLM`."""
    theirs = huggingface_weights(weights, config)
    names = {"token_embedding": "model.embed_tokens", "final_norm": "model.norm"}
    names |= {"lm_head": "lm_head"}
    found = {f"{ours}.weight": theirs[f"{name}.weight"] for ours, name in names.items()}
    for number in range(config.num_layers):
        for ours, parts in _PACKED.items():
            block = [theirs[f"model.layers.{number}.{name}.weight"] for name in parts]
            found[f"blocks.{number}.{ours}.weight"] = torch.cat(block)
    return found


def open_peer(tool: str, config: ModelConfig, weights: Weights | None = None) -> nn.Module:
    """The tool's model, with our weights if it has our architecture."""
    name = tool.partition(", ")[0]
    if name == "gpt":
        return GptLM(gpt_form(config))
    if name == "torch":
        model: nn.Module = PlainLM(config)
        renamed = plain_weights
    else:
        model = huggingface_model(config)
        renamed = huggingface_weights
    if weights is not None:
        model.load_state_dict(renamed(weights, config))
    return model


def take_step(
    compute_loss: Loss,
    optimizer: torch.optim.Optimizer,
    max_norm: float,
    batch: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """A typical training step, in bfloat16 on CUDA; returns the loss and the gradient norm."""
    kind = batch[0].device.type
    with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
        loss = compute_loss(*batch)
    loss.backward()
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach(), norm


def fused_adamw(model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """torch's fused AdamW with our settings; no weight decay on norm gains."""
    parameters = list(model.parameters())
    decaying = [one for one in parameters if one.ndim > 1]
    staying = [one for one in parameters if one.ndim <= 1]
    groups: list[dict[str, Any]] = [
        {"params": decaying},
        {"params": staying, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=learning_rate, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True
    )
