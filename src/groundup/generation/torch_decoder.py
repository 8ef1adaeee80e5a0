"""The portable decoder: the model's own forward with a cache, or a faster equivalent.

The latter computes the same formulas in a few large operations per layer, from packed copies of the
projections. Both prefill prompts with the model itself.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from groundup.generation.decoder import Decoder, Row
from groundup.generation.request import NO_ID, Sampler
from groundup.generation.sampling import sample, uniforms
from groundup.model import TransformerLM
from groundup.nn import RMSNorm, SwiGLU, TransformerBlock

# Prompt ids per prefill batch: enough to keep a device busy, in little memory.
_MAX_PREFILL_IDS = 4_096


class TorchDecoder(Decoder):
    """A `Decoder` on any device, in the dtype of the weights."""

    def __init__(
        self,
        model: TransformerLM,
        max_rows: int,
        num_allowed: int | None = None,
        is_packed: bool = True,
    ) -> None:
        """is_packed: use the faster equivalent, which must support all layers of the model."""
        super().__init__(model, max_rows, num_allowed)
        self.model = model
        self.packed: list[_PackedLayer] | None = None
        if is_packed:
            caches = zip(self.cache.keys, self.cache.values, strict=True)
            self.packed = [
                _PackedLayer(cast(TransformerBlock, block), *cache)
                for block, cache in zip(model.blocks, caches, strict=True)
            ]
            num_heads, length = self.cache.keys.shape[2:4]
            starts = torch.arange(max_rows * num_heads, device=self.device)
            self._starts = starts.view(-1, num_heads) * length
            self._positions = torch.arange(length, device=self.device)
            rope = self.packed[0].attention.rope if self.packed else None
            # RoPE as complex numbers, (positions, 1, d_head / 2).
            self._rotations = None if rope is None else torch.complex(rope.cos, rope.sin)[:, None]
            self._final_norm = _fast_norm(model.final_norm)
        self._rows: Sequence[Row] = ()
        # Rows with equal samplers are sampled together.
        self._groups: dict[Sampler, list[int]] = {}
        # The ids in each row's text, for samplers that need them.
        self._seen: Tensor | None = None

    @torch.inference_mode()
    def prefill(self, texts: Sequence[tuple[int, Sequence[int]]]) -> None:
        for first_row, group in _group_rows(texts):
            length = len(group[0])
            cache = self.cache.rows(first_row, first_row + len(group)).up_to(length)
            batch = torch.tensor([list(ids) for ids in group], device=self.device)
            positions = torch.arange(length, device=self.device).expand(len(group), -1)
            with _full_precision(self.device):
                self.model.hidden(batch, positions, cache)

    @torch.inference_mode()
    def begin(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._groups = {}
        for index, row in enumerate(rows):
            self._groups.setdefault(row.request.sampler, []).append(index)
        if not any(sampler.needs_history for sampler in self._groups):
            self._seen = None
            return
        self._seen = torch.zeros(len(rows), self.vocab_size, dtype=torch.bool, device=self.device)
        for seen, row in zip(self._seen, rows, strict=True):
            if row.request.sampler.needs_history:
                seen[torch.tensor(row.ids, device=self.device)] = True

    @torch.inference_mode()
    def step(self, num_quiet_steps: int = 1) -> tuple[list[int], Float[Tensor, "n allowed"]]:
        rows = self._rows
        logits = self.decode(
            torch.tensor([row.ids[-1] for row in rows]),
            torch.tensor([len(row.ids) - 1 for row in rows]),
        )
        seeds, counts = [row.request.seed for row in rows], [row.num_new for row in rows]
        numbers = torch.tensor(uniforms(seeds, counts), dtype=torch.float64)
        # A prompt may contain ids that are not allowed.
        seen = None if self._seen is None else self._seen[:, : logits.shape[-1]]
        if len(self._groups) == 1:
            ids = sample(next(iter(self._groups)), logits, numbers, seen)
        else:
            ids = torch.empty(len(rows), dtype=torch.long, device=logits.device)
            for sampler, group in self._groups.items():
                own = seen[group] if seen is not None and sampler.needs_history else None
                ids[group] = sample(sampler, logits[group], numbers[group], own).to(ids.device)
        if self._seen is not None:
            self._seen.scatter_(1, ids.clamp(min=0)[:, None].to(self._seen.device), True)
        chosen: list[int] = ids.tolist()
        for index, id in enumerate(chosen):
            if id == NO_ID:
                # Masked keys still enter a matmul: NaN would spread to the row's next text.
                self.cache.keys[:, index].zero_()
                self.cache.values[:, index].zero_()
        return chosen, logits

    @torch.inference_mode()
    def decode(
        self, ids: Int[Tensor, " n"], positions: Int[Tensor, " n"]
    ) -> Float[Tensor, "n allowed"]:
        """Append one id to each of rows 0 to n - 1, at its position; return the next logits.

        Both tensors are on the CPU.
        """
        with _full_precision(self.device):
            if self.packed is not None:
                hidden = self._packed_hidden(ids, positions)
            else:
                cache = self.cache.rows(0, len(ids)).up_to(int(positions.max()) + 1)
                columns = positions.to(self.device)[:, None]
                hidden = self.model.hidden(ids.to(self.device)[:, None], columns, cache)[:, -1]
            logits = self.model.logits(hidden)
        return logits[..., : self.num_allowed].float()

    def _packed_hidden(self, ids: Int[Tensor, " n"], positions: Int[Tensor, " n"]) -> Tensor:
        """The input of the output layer."""
        span = int(positions.max()) + 1
        needs_mask = int(positions.min()) + 1 < span
        ids, positions = ids.to(self.device), positions.to(self.device)
        where = (self._starts[: len(ids)] + positions[:, None]).flatten()
        rotation = None if self._rotations is None else self._rotations[positions]
        x = self.model.embed(ids)
        is_hidden = mask = None
        if needs_mask:
            is_hidden = self._positions[:span] > positions[:, None, None, None]
        if self.model.document_separator is not None:
            is_first = torch.eq(ids, self.model.document_separator)[:, None]
            starts = self.cache.rows(0, len(ids)).find_starts(is_first, positions[:, None])
            is_before = self._positions[:span] < starts[:, :, None, None]
            is_hidden = is_before if is_hidden is None else is_hidden | is_before
        if is_hidden is not None:
            mask = x.new_zeros(is_hidden.shape).masked_fill_(is_hidden, -torch.inf)
        step = _Step(where, rotation, span, mask, self.model.embed_values(x))
        for layer in self.packed or ():
            x = layer.advance(x, step)
        return self._final_norm(x)


class _Step(NamedTuple):
    """Inputs of a step that all layers share."""

    where: Tensor
    """Indices of the new keys in a layer's flattened cache."""
    rotation: Tensor | None
    span: int
    """Number of cache positions that attention reads, subject to the mask."""
    mask: Tensor | None
    value_embedding: Tensor | None


class _PackedLayer:
    """One block and its part of the cache."""

    def __init__(self, block: TransformerBlock, keys: Tensor, values: Tensor) -> None:
        attention, feed_forward = block.attention, block.feed_forward
        self.attention = attention
        self._is_post = block.norm == "post"
        # With norm=none, a block has no such modules.
        self._attention_norm = _fast_norm(getattr(block, "attention_norm", None))
        self._feed_forward_norm = _fast_norm(getattr(block, "feed_forward_norm", None))
        self._keys, self._values = keys, values
        self._rotation_dtype = torch.promote_types(keys.dtype, torch.float32)
        projections = (attention.query, attention.key, attention.value)
        self._in = torch.cat([projection.weight.detach() for projection in projections]).T
        self._out = attention.output.weight.detach().T
        self._down = feed_forward.down.weight.detach().T
        up = [feed_forward.up.weight.detach()]
        self._activation: Callable[[Tensor], Tensor]
        if isinstance(feed_forward, SwiGLU):
            self._up = torch.cat([feed_forward.gate.weight.detach(), *up]).T
            self._activation = _silu_gated
        else:
            self._up = up[0].T
            self._activation = feed_forward.activation

    def advance(self, x: Tensor, step: _Step) -> Tensor:
        """One block: x + attention + feed-forward, with pre- or post-norm."""
        if self._is_post:
            x = self._attention_norm(torch.addmm(x, self._attend(x, step), self._out))
            return self._feed_forward_norm(torch.addmm(x, self._feed(x), self._down))
        x = torch.addmm(x, self._attend(self._attention_norm(x), step), self._out)
        return torch.addmm(x, self._feed(self._feed_forward_norm(x)), self._down)

    def _attend(self, x: Tensor, step: _Step) -> Tensor:
        a = self.attention
        n, num_rotated = len(x), a.num_heads + a.num_kv_heads
        packed = torch.mm(x, self._in).view(n, -1, a.d_head)
        rotated = packed[:, :num_rotated]
        if a.query_norm is not None and a.key_norm is not None:
            queries, keys = rotated[:, : a.num_heads], rotated[:, a.num_heads :]
            rotated = torch.cat([a.query_norm(queries), a.key_norm(keys)], dim=1)
        if step.rotation is not None:
            pairs = rotated.to(self._rotation_dtype).view(n, num_rotated, -1, 2)
            rotated = torch.view_as_real(torch.view_as_complex(pairs) * step.rotation)
            rotated = rotated.view(n, num_rotated, a.d_head).to(x.dtype)
        keys, values = rotated[:, a.num_heads :], packed[:, num_rotated:].reshape(n, -1)
        if a.value_sum is not None and step.value_embedding is not None:
            values = a.value_sum(values, step.value_embedding)
        for cache, new in ((self._keys, keys), (self._values, values)):
            cache.view(-1, a.d_head).index_copy_(0, step.where, new.reshape(-1, a.d_head))
        # The query heads of one key head become several queries of one head.
        query = rotated[:, : a.num_heads].view(n, a.num_kv_heads, -1, a.d_head)
        keys, values = self._keys[:n, :, : step.span], self._values[:n, :, : step.span]
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=step.mask)
        return a.gated(mixed.reshape(n, -1), x)

    def _feed(self, x: Tensor) -> Tensor:
        return self._activation(torch.mm(x, self._up))


def _silu_gated(packed: Tensor) -> Tensor:
    gate, up = packed.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


class _FastNorm:
    """`RMSNorm` by vector norms: the fewest torch operations."""

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
    return _FastNorm(norm) if isinstance(norm, RMSNorm) else nn.Identity()


def _full_precision(device: torch.device) -> torch.autocast:
    """Disable a caller's autocast: the cache has the dtype of the weights."""
    return torch.autocast(device.type, enabled=False)


def _group_rows(
    texts: Sequence[tuple[int, Sequence[int]]],
) -> list[tuple[int, list[Sequence[int]]]]:
    """Group texts of equal length in adjacent rows; return (first row, texts) per group."""
    groups: list[tuple[int, list[Sequence[int]]]] = []
    for row, ids in texts:
        first_row, group = groups[-1] if groups else (row, [])
        is_next = group and row == first_row + len(group) and len(ids) == len(group[0])
        if is_next and (len(group) + 1) * len(ids) <= _MAX_PREFILL_IDS:
            group.append(ids)
        else:
            groups.append((row, [ids]))
    return groups
