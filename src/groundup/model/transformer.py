"""The Transformer language model: embedding, blocks, norm, output layer."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from groundup.config import load_settings
from groundup.errors import ConfigError
from groundup.model.config import ModelConfig
from groundup.model.initialization import initialize_
from groundup.nn import (
    Embedding,
    KVCache,
    Linear,
    MultiHeadSelfAttention,
    RMSNorm,
    TransformerBlock,
)
from groundup.nn.dropout import Dropout
from groundup.nn.functional import sequence_starts
from groundup.nn.linear_cross_entropy import linear_cross_entropy
from groundup.nn.value_embeddings import ValueProjection

# Not head_gate: one column per head is too narrow to gain anything.
_FLOAT8_LAYERS = ("query", "key", "value", "output", "gate", "up", "down")


class TransformerLM(nn.Module):
    """logits = W_lm_head norm(block_n(… block_1(E[ids]))): for each token, those of the next one.

    With tied embeddings, W_lm_head is E. The final norm exists only with pre-norm. With value
    embeddings, attention receives a projection of the token embeddings.

    The arguments are the settings of `ModelConfig`, which documents them; `device` and `dtype` are
    those of the weights.
    """

    def __init__(
        self,
        vocab_size: int,
        context_length: int,
        d_model: int,
        num_layers: int,
        num_heads: int,
        d_ff: int | None = None,
        rope_theta: float = 10_000.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        settings |= {
            "vocab_size": vocab_size,
            "context_length": context_length,
            "d_model": d_model,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "d_ff": d_ff,
            "rope_theta": rope_theta,
        }
        self.config = config = load_settings(ModelConfig, overrides=settings)
        if isinstance(config.document_separator, str):
            raise ConfigError(
                "document_separator is auto, which is resolved from a run's shards: give the id "
                "that begins a document, or None"
            )
        self.document_separator = config.document_separator
        kwargs: dict[str, Any] = {"device": device, "dtype": dtype}
        self._has_float8_output = False
        self.token_embedding = Embedding(vocab_size, d_model, **kwargs)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(
                d_model,
                num_heads,
                config.feed_forward_dim,
                max_seq_len=context_length,
                theta=rope_theta if config.positions == "rope" else None,
                num_kv_heads=config.num_kv_heads,
                norm=config.norm,
                attention=config.attention,
                feed_forward=config.feed_forward,
                qk_norm=config.qk_norm,
                norm_eps=config.norm_eps,
                gated_attention=config.gated_attention,
                value_embeddings=config.value_embeddings != "none",
                dropout=config.dropout,
                **kwargs,
            )
            for _ in range(num_layers)
        )
        self.value_embeddings: ValueProjection | None = None
        if config.value_embeddings == "projection":
            d_key_value = config.key_value_heads * config.d_head
            self.value_embeddings = ValueProjection(d_model, d_key_value, config.norm_eps, **kwargs)
        self.final_norm: nn.Module = nn.Identity()
        if config.norm == "pre":
            self.final_norm = RMSNorm(d_model, config.norm_eps, **kwargs)
        self.lm_head = Linear(d_model, vocab_size, **kwargs)
        if config.tie_embeddings:
            # The table is initialized with the small values of an output layer, so that the first
            # predictions are nearly uniform. `embed` scales them up, or the output of the first
            # block would drown them out.
            self.token_embedding.weight = self.lm_head.weight
        initialize_(self, config)

    @classmethod
    def from_config(
        cls,
        config: ModelConfig,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> "TransformerLM":
        """Build a model with these settings and new weights."""
        return cls(**config.model_dump(), device=device, dtype=dtype)

    def __getstate__(self) -> dict[str, Any]:
        # A copy would call the compiled `hidden`, which is bound to this model's weights.
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        state.pop("hidden", None)
        return state

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    @property
    def output_weight(self) -> Tensor:
        return self.lm_head.weight

    def use_float8(self, is_used: bool = True) -> None:
        """Enable or disable float8 matmuls in training (`nn.float8`); call it before compiling."""
        has_norms = self.config.norm == "pre"
        for name, layer in self.blocks.named_modules():
            own_name = name.rpartition(".")[2]
            is_linear = isinstance(layer, Linear) and type(layer).forward is Linear.forward
            if not is_linear or own_name not in _FLOAT8_LAYERS:
                continue
            is_normalized = has_norms and own_name not in ("output", "down")
            layer.float8_inputs = "no"
            if is_used:
                layer.float8_inputs = "normalized" if is_normalized else "any"
        self._has_float8_output = is_used and has_norms

    def forward(
        self,
        ids: Int[Tensor, "... seq"],
        token_positions: Int[Tensor, "... seq"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "... seq vocab_size"]:
        """Logits of each next token; see `MultiHeadSelfAttention` for the arguments."""
        return self.logits(self.hidden(ids, token_positions, cache))

    def embed(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "... d_model"]:
        """The scaled embeddings: the input of the first block."""
        x: Tensor = self.token_embedding(ids)
        scale = self.config.input_scale
        return x if scale == 1 else x * scale

    def hidden(
        self,
        ids: Int[Tensor, "... seq"],
        token_positions: Int[Tensor, "... seq"] | None = None,
        cache: KVCache | None = None,
        document_starts: Int[Tensor, "... seq"] | None = None,
    ) -> Float[Tensor, "... seq d_model"]:
        """The input of the output layer: the last block's output, normalized.

        document_starts: the first position each token attends to; that of its document by default.
        """
        if document_starts is None and self.document_separator is not None:
            is_first = torch.eq(ids, self.document_separator)
            if cache is None:
                document_starts = sequence_starts(is_first)
            else:
                assert token_positions is not None, "a cache needs token_positions"
                document_starts = cache.find_starts(is_first, token_positions)
        if ids.shape[-1] > self.config.context_length:
            raise ConfigError(
                f"{ids.shape[-1]} ids exceed the context of {self.config.context_length}: "
                f"give fewer, or train with a larger context_length"
            )
        x = self.dropout(_in_autocast_dtype(self.embed(ids)))
        value_embedding = self.embed_values(x)
        for index, block in enumerate(self.blocks):
            layer = None if cache is None else cache.layer(index)
            x = block(x, token_positions, layer, document_starts, value_embedding)
        normalized: Tensor = self.final_norm(x)
        return normalized

    @torch.no_grad()
    def attention_weights(
        self, ids: Int[Tensor, "... seq"]
    ) -> Float[Tensor, "num_layers ... num_heads seq seq"]:
        """The attention weights of every layer and head, for inspection; each row sums to 1.

        `forward` never materializes them.
        """
        layers = [one for one in self.modules() if isinstance(one, MultiHeadSelfAttention)]
        own = MultiHeadSelfAttention
        for kind in {type(one) for one in layers} - {own}:
            if kind.forward is not own.forward and kind.weights is own.weights:
                raise ConfigError(f"{kind.__name__} has no attention weights: give it a `weights`")
        return torch.stack(self.observe(ids, layers, lambda one, x: one.weights(x[0], x[3]))[1])

    def observe(
        self,
        ids: Int[Tensor, "... seq"],
        modules: Iterable[nn.Module],
        look: Callable[[Any, tuple[Any, ...]], Tensor],
    ) -> tuple[Tensor, list[Tensor]]:
        """Return `hidden`, and the results of `look(module, inputs)` as each module is called."""
        seen: list[Tensor] = []
        note = lambda module, inputs: seen.append(look(module, inputs))  # noqa: E731
        hooks = [module.register_forward_pre_hook(note) for module in modules]
        try:
            # Compiled code does not call hooks.
            with torch.compiler.set_stance("force_eager"):
                return self.hidden(ids), seen
        finally:
            for hook in hooks:
                hook.remove()

    def embed_values(
        self, first: Float[Tensor, "... d_model"]
    ) -> Float[Tensor, "... d_key_value"] | None:
        """The value embeddings for all blocks, from the scaled embeddings `first`; None if off."""
        return None if self.value_embeddings is None else self.value_embeddings(first)

    def logits(self, hidden: Float[Tensor, "... d_model"]) -> Float[Tensor, "... vocab_size"]:
        """W_lm_head hidden."""
        logits: Tensor = self.lm_head(hidden)
        return logits

    def loss(
        self,
        ids: Int[Tensor, "... seq"],
        targets: Int[Tensor, "... seq"],
        z_loss: float = 0.0,
        reduction: Literal["mean", "sum"] = "mean",
        multi_token_weight: Float[Tensor, ""] | None = None,
    ) -> Float[Tensor, ""]:
        """Cross-entropy of the targets, without materializing the logits of all tokens.

        multi_token_weight: weight of multi-token prediction (of the id after each target), which
            affects the gradients but not the returned loss.
        """
        mtp = None
        if multi_token_weight is not None:
            mtp = nn.functional.pad(targets[..., 1:], (0, 1), value=-1), multi_token_weight
        return linear_cross_entropy(
            self.hidden(ids),
            self.output_weight,
            targets,
            z_loss=z_loss,
            reduction=reduction,
            mtp=mtp,
            in_float8=self._has_float8_output,
        )


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor in a model's state dict, from one block on the meta device.

    Loading compares a weights file with it before building the model: settings may be malicious.
    """
    one_block = config.model_copy(update={"num_layers": min(1, config.num_layers)})
    shapes: dict[str, tuple[int, ...]] = {}
    for name, value in TransformerLM.from_config(one_block, device="meta").state_dict().items():
        layers = range(config.num_layers) if name.startswith("blocks.0.") else range(1)
        for layer in layers:
            shapes[name.replace("blocks.0.", f"blocks.{layer}.")] = tuple(value.shape)
    return shapes


def _in_autocast_dtype(x: Tensor) -> Tensor:
    """Keep the residual stream in the autocast dtype: half the memory traffic."""
    kind = x.device.type
    # The meta device has no autocast, and asking is an error. torch before 2.13 cannot trace
    # `is_autocast_available`.
    if kind != "meta" and torch.is_autocast_enabled(kind):
        return x.to(torch.get_autocast_dtype(kind))
    return x
