"""The fast twin of `ModelDecoder` where no kernels of our own run: few, large operations a layer.

It reads copies of the projections that lie side by side, made when it is built. `choose_decoder`
says which decoder a model gets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from groundup.generation.decoder import Decoder, ModelDecoder, WritableIds, full_precision
from groundup.model import TransformerLM
from groundup.nn import RMSNorm, SwiGLU, TransformerBlock
from groundup.nn.feed_forward import ACTIVATIONS
from groundup.nn.kernels import HAS_TRITON, are_enabled

if TYPE_CHECKING:
    from groundup.model import ModelConfig


def choose_decoder(
    model: TransformerLM,
    max_rows: int,
    max_seq_len: int | None = None,
    writable: WritableIds | None = None,
) -> Decoder:
    """The fastest decoder for the model and its device.

    The plain one runs the model's own forward: for reference kernels, for devices without a fast
    one, and for a model with a layer or a hook that its settings do not describe.

    model: what is decoded with.
    max_rows: sequences at once.
    max_seq_len: ids that a row can hold; the model's context if None.
    writable: the ids that may be sampled; all of the model's if None.
    """
    weight = model.output_weight
    device = weight.device.type
    is_reference = not are_enabled() or device not in ("cpu", "cuda")
    if is_reference or not is_as_configured(model):
        return ModelDecoder(model, max_rows, max_seq_len, writable)
    is_half = weight.dtype in (torch.bfloat16, torch.float16)
    if device == "cuda" and HAS_TRITON and is_half and cuda_kernels_know(model.config):
        from groundup.generation.cuda_decoder import CudaDecoder
        from groundup.nn.kernels.cuda_decode.launch import HAS_TUPLES

        if HAS_TUPLES:
            return CudaDecoder(model, max_rows, max_seq_len, writable)
    return PackedDecoder(model, max_rows, max_seq_len, writable)


def is_as_configured(model: TransformerLM) -> bool:
    """Whether the model is exactly the one its settings build: no module was swapped, changed or
    given a hook or a forward of its own."""
    built = TransformerLM.from_config(model.config, device="meta")
    return describe_modules(model) == describe_modules(built)


def describe_modules(model: TransformerLM) -> list[tuple[type, dict[str, object], bool]]:
    """Of each module its type, its plain settings, and whether it has a hook or a forward of its
    own: what decides, besides the weights, what the model computes."""
    return [
        (
            type(module),
            {
                name: value
                for name, value in vars(module).items()
                if isinstance(value, int | float | str) and name != "training"
            },
            bool(module._forward_hooks or module._forward_pre_hooks) or "forward" in vars(module),
        )
        for module in model.modules()
    ]


def cuda_kernels_know(config: ModelConfig) -> bool:
    """Whether `CudaDecoder` can run such a model; it leaves unusual settings to `PackedDecoder`."""
    return config.norm == "pre" and config.num_layers > 0


class PackedDecoder(ModelDecoder):
    """Prefills by the model itself and decodes by its own passes over the same formulas."""

    def __init__(
        self,
        model: TransformerLM,
        max_rows: int,
        max_seq_len: int | None = None,
        writable: WritableIds | None = None,
    ) -> None:
        super().__init__(model, max_rows, max_seq_len, writable)
        config = model.config
        self._layers = [
            _PackedLayer(cast(TransformerBlock, block), keys, values)
            for block, keys, values in zip(
                model.blocks, self.cache.keys, self.cache.values, strict=True
            )
        ]
        heads = torch.arange(config.key_value_heads, device=self.device)
        # Where the first position of (row, head) lies when rows and heads are one dimension.
        self._starts = torch.arange(max_rows, device=self.device)[:, None] * len(heads) + heads
        self._starts *= self.max_seq_len
        self._positions = torch.arange(self.max_seq_len, device=self.device)
        self._rotations = _rotations(model)
        self._final_norm = _fast_norm(model.final_norm)

    @torch.inference_mode()
    def decode(
        self, ids: Int[Tensor, " n"], positions: Int[Tensor, " n"]
    ) -> Float[Tensor, "n writable"]:
        span = int(positions.max()) + 1
        needs_mask = int(positions.min()) + 1 < span
        positions = positions.to(self.device)
        where = (self._starts[: len(ids)] + positions[:, None]).flatten()
        rotation = None if self._rotations is None else self._rotations[positions]
        mask = None
        with full_precision(self.device):
            x = self.model.embed(ids.to(self.device))
            if needs_mask:
                hidden = self._positions[:span] > positions[:, None, None, None]
                mask = x.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
            extra = self.model.extra(x)
            for layer in self._layers:
                x = layer.advance(x, where, rotation, span, mask, extra)
            return self._logits(self._final_norm(x))


class _PackedLayer:
    """One block and its part of the cache."""

    def __init__(self, block: TransformerBlock, keys: Tensor, values: Tensor) -> None:
        attention, feed_forward = block.attention, block.feed_forward
        self._attention = attention
        self._norm_placement = block.norm
        # Without norms a block has no such modules.
        self._attention_norm = _fast_norm(getattr(block, "attention_norm", None))
        self._feed_forward_norm = _fast_norm(getattr(block, "feed_forward_norm", None))
        self._keys, self._values = keys, values
        self._rotation_dtype = torch.promote_types(keys.dtype, torch.float32)
        self._flat_keys, self._flat_values = keys.flatten(0, 2), values.flatten(0, 2)
        with torch.no_grad():
            projections = (attention.query, attention.key, attention.value)
            self._in = torch.cat([projection.weight for projection in projections]).T
            self._out = attention.output.weight.detach().T
            self._down = feed_forward.down.weight.detach().T
            self._is_gated = isinstance(feed_forward, SwiGLU)
            if isinstance(feed_forward, SwiGLU):
                self._up = torch.cat([feed_forward.gate.weight, feed_forward.up.weight]).T
            else:
                self._up = feed_forward.up.weight.detach().T
                self._activation = ACTIVATIONS[feed_forward.activation]

    def advance(
        self,
        x: Tensor,
        where: Tensor,
        rotation: Tensor | None,
        span: int,
        mask: Tensor | None,
        extra: Tensor | None,
    ) -> Tensor:
        if self._norm_placement == "post":
            mixed = self._attend(x, where, rotation, span, mask, extra)
            x = self._attention_norm(torch.addmm(x, mixed, self._out))
            return self._feed_forward_norm(torch.addmm(x, self._feed(x), self._down))
        mixed = self._attend(self._attention_norm(x), where, rotation, span, mask, extra)
        x = torch.addmm(x, mixed, self._out)
        return torch.addmm(x, self._feed(self._feed_forward_norm(x)), self._down)

    def _attend(
        self,
        x: Tensor,
        where: Tensor,
        rotation: Tensor | None,
        span: int,
        mask: Tensor | None,
        extra: Tensor | None,
    ) -> Tensor:
        a = self._attention
        n, num_rotated = len(x), a.num_heads + a.num_kv_heads
        packed = torch.mm(x, self._in).view(n, -1, a.d_head)
        rotated = packed[:, :num_rotated]
        if a.query_norm is not None and a.key_norm is not None:
            queries, keys = rotated[:, : a.num_heads], rotated[:, a.num_heads :]
            rotated = torch.cat([a.query_norm(queries), a.key_norm(keys)], dim=1)
        if rotation is not None:
            pairs = rotated.to(self._rotation_dtype).view(n, num_rotated, -1, 2)
            rotated = torch.view_as_real(torch.view_as_complex(pairs) * rotation)
            rotated = rotated.view(n, num_rotated, a.d_head).to(x.dtype)
        self._flat_keys.index_copy_(0, where, rotated[:, a.num_heads :].reshape(-1, a.d_head))
        values = packed[:, num_rotated:].reshape(n, -1)
        if a.value_sum is not None and extra is not None:
            values = a.value_sum(values, extra)
        self._flat_values.index_copy_(0, where, values.reshape(-1, a.d_head))
        # The queries of one key head take the positions of several queries of one head.
        query = rotated[:, : a.num_heads].view(n, a.num_kv_heads, -1, a.d_head)
        mixed = functional.scaled_dot_product_attention(
            query, self._keys[:n, :, :span], self._values[:n, :, :span], attn_mask=mask
        )
        return a.gated(mixed.reshape(n, -1), x)

    def _feed(self, x: Tensor) -> Tensor:
        up = torch.mm(x, self._up)
        if not self._is_gated:
            return self._activation(up)
        gate, up = up.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)


class _FewPassNorm:
    """`RMSNorm` by way of the vectors' lengths: the fewest operations that torch has for it."""

    def __init__(self, norm: RMSNorm) -> None:
        self._gain = norm.weight.detach()
        self._inverse_size = 1.0 / norm.d_model
        self._dtype = torch.promote_types(self._gain.dtype, torch.float32)
        self._eps = torch.tensor(norm.eps, dtype=self._dtype, device=self._gain.device)

    def __call__(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=self._dtype)
        scale = torch.addcmul(self._eps, length, length, value=self._inverse_size).rsqrt_()
        return (x * scale).mul_(self._gain).to(x.dtype)


def _fast_norm(norm: nn.Module | None) -> Callable[[Tensor], Tensor]:
    return _FewPassNorm(norm) if isinstance(norm, RMSNorm) else nn.Identity()


def _rotations(model: TransformerLM) -> Tensor | None:
    """For each position its rotation as complex numbers, (positions, 1, d_head / 2)."""
    rope = cast(TransformerBlock, model.blocks[0]).attention.rope if len(model.blocks) else None
    if rope is None:
        return None
    rotations = torch.complex(rope.cos, rope.sin)[:, None]
    is_wide = model.output_weight.dtype == torch.float64
    return rotations.to(torch.complex128) if is_wide else rotations
