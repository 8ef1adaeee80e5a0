"""A groundup model for transformers, in one file that is exported with the weights:
`AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`.

It depends only on torch and transformers. `groundup.model.config` documents the settings,
`groundup.nn` the layers; there is no dropout.
"""
# mypy: allow-untyped-calls

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": functional.silu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "relu2": lambda x: functional.relu(x).square(),
}


class GroundupConfig(PretrainedConfig):
    """`groundup`: the model's settings under groundup's names."""

    model_type = "groundup"

    def __init__(self, groundup: dict[str, Any] | None = None, **options: Any) -> None:
        self.groundup = groundup or {}
        super().__init__(**options)

    @property
    def num_hidden_layers(self) -> int:
        """Number of cache layers: with document masking, an extra one stores document starts."""
        masks = self.groundup.get("document_separator") is not None
        return int(self.groundup.get("num_layers", 0)) + masks


Linear = partial(nn.Linear, bias=False)


class Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide, gain = x.float(), self.weight.float()
        return functional.rms_norm(wide, wide.shape[-1:], gain, self.eps).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, s: SimpleNamespace, layer: int) -> None:
        super().__init__()
        self.layer, self.d_head = layer, s.d_model // s.num_heads
        d_key_value = s.num_kv_heads * self.d_head
        self.query, self.output = Linear(s.d_model, s.d_model), Linear(s.d_model, s.d_model)
        self.key, self.value = Linear(s.d_model, d_key_value), Linear(s.d_model, d_key_value)
        norms = [Norm(self.d_head, s.norm_eps) if s.qk_norm else nn.Identity() for _ in range(2)]
        self.query_norm, self.key_norm = norms
        self.head_gate = Linear(s.d_model, s.num_heads) if s.gated_attention else None
        if s.value_embeddings != "none":
            self.value_sum = nn.ParameterDict({"weight": torch.zeros(1)})

    def forward(self, x: Tensor, step: SimpleNamespace) -> Tensor:
        values = self.value(x)
        if step.value_embedding is not None:
            values = values + self.value_sum["weight"] * step.value_embedding
        query, key, value = (
            one.unflatten(-1, (-1, self.d_head)).transpose(1, 2)
            for one in (self.query(x), self.key(x), values)
        )
        query = rotate(self.query_norm(query), step.rotation)
        key = rotate(self.key_norm(key), step.rotation)
        if step.cache is not None:
            key, value = step.cache.update(key, value, self.layer)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=step.mask, enable_gqa=True
        ).transpose(1, 2)
        if self.head_gate is not None:
            mixed = mixed * (2 * torch.sigmoid(self.head_gate(x))).unsqueeze(-1)
        y: Tensor = self.output(mixed.flatten(-2))
        return y


class FeedForward(nn.Module):
    def __init__(self, s: SimpleNamespace) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[s.feed_forward]
        self.gate = Linear(s.d_model, s.d_ff) if s.feed_forward == "swiglu" else None
        self.up, self.down = Linear(s.d_model, s.d_ff), Linear(s.d_ff, s.d_model)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        inner = self.activation(up if self.gate is None else self.gate(x))
        y: Tensor = self.down(inner if self.gate is None else inner * up)
        return y


class Block(nn.Module):
    def __init__(self, s: SimpleNamespace, layer: int) -> None:
        super().__init__()
        self.norm = s.norm
        if s.norm != "none":
            self.attention_norm = Norm(s.d_model, s.norm_eps)
            self.feed_forward_norm = Norm(s.d_model, s.norm_eps)
        self.attention, self.feed_forward = Attention(s, layer), FeedForward(s)

    def forward(self, x: Tensor, step: SimpleNamespace) -> Tensor:
        if self.norm == "pre":
            x = x + self.attention(self.attention_norm(x), step)
            y: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
            return y
        x = x + self.attention(x, step)
        x = self.attention_norm(x) if self.norm == "post" else x
        x = x + self.feed_forward(x)
        return self.feed_forward_norm(x) if self.norm == "post" else x


class GroundupForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = GroundupConfig
    _tied_weights_keys = {"lm_head.weight": "token_embedding.weight"}  # noqa: RUF012

    def __init__(self, config: GroundupConfig) -> None:
        super().__init__(config)
        self.settings = s = SimpleNamespace(**config.groundup)
        self.token_embedding = nn.Embedding(s.vocab_size, s.d_model)
        self.blocks = nn.ModuleList(Block(s, layer) for layer in range(s.num_layers))
        if s.value_embeddings != "none":
            values = Linear(s.d_model, s.num_kv_heads * s.d_model // s.num_heads)
            norm = Norm(s.d_model, s.norm_eps)
            self.value_embeddings = nn.ModuleDict({"norm": norm, "projection": values})
        self.final_norm = Norm(s.d_model, s.norm_eps) if s.norm == "pre" else nn.Identity()
        self.lm_head = Linear(s.d_model, s.vocab_size)
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.token_embedding

    def get_output_embeddings(self) -> Any:
        return self.lm_head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """attention_mask: 1 for tokens, 0 for padding; includes the cached tokens."""
        s, cache = self.settings, past_key_values
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        first = 0 if cache is None else cache.get_seq_length()
        keys = torch.arange(first + input_ids.shape[1], device=input_ids.device)
        queries = keys[first:]
        mask = keys <= queries[:, None]
        if s.document_separator is not None:
            begins = (input_ids == s.document_separator)[:, None, :, None].to(self.dtype)
            if cache is not None:
                begins = cache.update(begins, begins, s.num_layers)[0]
            document = begins.flatten(1).cumsum(-1, dtype=torch.long)[:, None]
            mask = mask & (document[..., first:, None] == document[:, :, None])
        if attention_mask is not None:
            mask = mask & attention_mask[:, None, None, : len(keys)].bool()
        x = self.token_embedding(input_ids) * s.embedding_scale
        step = SimpleNamespace(
            cache=cache,
            # Padding attends to itself: a row without keys would be NaN.
            mask=mask | (keys == queries[:, None]),
            rotation=self._rotation(queries[None] if position_ids is None else position_ids),
            value_embedding=None,
        )
        if s.value_embeddings != "none":
            normed = self.value_embeddings["norm"](x)
            step.value_embedding = self.value_embeddings["projection"](normed)
        for block in self.blocks:
            x = block(x, step)
        logits = self.lm_head(self.final_norm(x[:, -logits_to_keep:]))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=s.vocab_size)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines, (batch, 1, seq, d_head / 2); angles are in float64 except on MPS."""
        s, d_head = self.settings, self.settings.d_model // self.settings.num_heads
        if s.positions == "none":
            return None
        wide = torch.float32 if positions.device.type == "mps" else torch.float64
        exponents = torch.arange(0, d_head, 2, device=positions.device, dtype=wide) / d_head
        angles = positions[:, None, :, None].to(wide) * s.rope_theta**-exponents
        return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
    """Rotate pairs (2k, 2k+1) by the angles of their positions."""
    if rotation is None:
        return x
    (cos, sin), (even, odd) = rotation, x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)
