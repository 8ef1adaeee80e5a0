"""What runs the model for the engine: rows of texts in a cache, and the logits that follow them.

Who sits in which row, and what is chosen from the logits, is the engine's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from groundup.errors import ConfigError
from groundup.generation.writable_ids import WritableIds
from groundup.nn import KVCache
from groundup.nn.kernels import HAS_TRITON

if TYPE_CHECKING:
    from groundup.model import ModelConfig, TransformerLM


# Enough to keep a device busy; more at once would only take memory.
_MOST_IDS_AT_ONCE = 4_096


class Decoder(Protocol):
    """A model and its cache of `max_rows` texts, each of up to `max_seq_len` ids.

    It reads all ids of its vocabulary. Its logits are those of the writable ids, from 0 on: what
    lies beyond them has no column, and a gap among them has -inf.
    """

    @property
    def max_rows(self) -> int: ...

    @property
    def max_seq_len(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def num_writable(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def prefill(self, row: int, ids: Sequence[int]) -> Float[Tensor, " writable"]:
        """Let a row hold these ids; the logits, in float32, after the last of them."""
        ...

    def prefill_many(self, texts: Sequence[tuple[int, Sequence[int]]]) -> object:
        """Let several rows hold texts, each given as (row, ids), as far as can be together."""
        ...

    def decode(
        self, ids: Int[Tensor, " n"], positions: Int[Tensor, " n"]
    ) -> Float[Tensor, "n writable"]:
        """Append one id to each of the rows 0 to n - 1, at its position; the logits after it.

        Both tensors are on the CPU. The logits are in float32, on the model's device, and the next
        call may overwrite them.
        """
        ...

    def copy(self, source: int, target: int) -> None:
        """Let `target` hold the text of `source` too."""
        ...


class ModelDecoder:
    """The plain one: calls the model with a cache, on any device, in the dtype of its weights."""

    def __init__(
        self,
        model: TransformerLM,
        max_rows: int,
        max_seq_len: int | None = None,
        writable: WritableIds | None = None,
    ) -> None:
        """Without `writable` all ids of the model are."""
        config = model.config
        self.model = model
        self.max_rows = max_rows
        self.max_seq_len = check_max_seq_len(config, max_seq_len)
        self.vocab_size = config.vocab_size
        writable = writable or WritableIds(config.vocab_size)
        self.num_writable = writable.num
        weight = model.output_weight
        self.device = weight.device
        self._end = writable.end
        self._gaps = writable.gaps_on(weight.device)
        self.cache = KVCache(
            config.num_layers,
            max_rows,
            config.key_value_heads,
            self.max_seq_len,
            config.d_head,
            device=weight.device,
            dtype=weight.dtype,
        )

    @torch.inference_mode()
    def prefill(self, row: int, ids: Sequence[int]) -> Float[Tensor, " writable"]:
        hidden = self._take_in(row, [ids])
        with full_precision(self.device):
            return self._score(hidden[0, -1])

    @torch.inference_mode()
    def prefill_many(self, texts: Sequence[tuple[int, Sequence[int]]]) -> object:
        for first_row, group in _neighbours(texts):
            self._take_in(first_row, group)
        return None

    def _take_in(self, first_row: int, texts: Sequence[Sequence[int]]) -> Tensor:
        """The texts, all of one length, into the rows from `first_row` on."""
        length = len(texts[0])
        cache = self.cache.rows(first_row, first_row + len(texts)).up_to(length)
        batch = torch.tensor([list(ids) for ids in texts], device=self.device)
        positions = torch.arange(length, device=self.device).expand(len(texts), -1)
        with full_precision(self.device):
            return self.model.hidden(batch, positions, cache)

    @torch.inference_mode()
    def decode(
        self, ids: Int[Tensor, " n"], positions: Int[Tensor, " n"]
    ) -> Float[Tensor, "n writable"]:
        cache = self.cache.rows(0, len(ids)).up_to(int(positions.max()) + 1)
        batch = ids.to(self.device)[:, None]
        with full_precision(self.device):
            hidden = self.model.hidden(batch, positions.to(self.device)[:, None], cache)
            return self._score(hidden[:, -1])

    def _score(self, hidden: Tensor) -> Tensor:
        logits = self.model.logits(hidden)
        if self._end < self.vocab_size:
            logits = logits[..., : self._end]
        logits = logits.float()
        return logits if self._gaps is None else logits.index_fill(-1, self._gaps, -torch.inf)

    @torch.inference_mode()
    def copy(self, source: int, target: int) -> None:
        self.cache.copy(source, target)

    @torch.inference_mode()
    def forget(self, row: int) -> None:
        """Let nothing remain of a row's text."""
        for part in (self.cache.keys, self.cache.values):
            part[:, row].zero_()


def choose_decoder(
    model: TransformerLM,
    max_rows: int,
    max_seq_len: int | None = None,
    writable: WritableIds | None = None,
) -> Decoder:
    """The fastest there is for the model and its device; the plain one for reference kernels."""
    weight = model.output_weight
    device = weight.device.type
    if model.config.kernels == "reference" or device not in ("cpu", "cuda"):
        return ModelDecoder(model, max_rows, max_seq_len, writable)
    is_half = weight.dtype in (torch.bfloat16, torch.float16)
    if device == "cuda" and HAS_TRITON and is_half and cuda_kernels_know(model.config):
        from groundup.generation.cuda_decoder import CudaDecoder

        return CudaDecoder(model, max_rows, max_seq_len, writable)
    from groundup.generation.packed_decoder import PackedDecoder

    return PackedDecoder(model, max_rows, max_seq_len, writable)


def cuda_kernels_know(config: ModelConfig) -> bool:
    """Whether `CudaDecoder` can run such a model; it leaves unusual settings to `PackedDecoder`."""
    is_usual = config.norm == "pre" and config.feed_forward == "swiglu" and not config.qk_norm
    return is_usual and config.num_layers > 0


def check_max_seq_len(config: ModelConfig, max_seq_len: int | None) -> int:
    """The length of a decoder's rows: the model's context, or less where that is asked for."""
    if max_seq_len is None:
        return config.context_length
    if max_seq_len > config.context_length:
        raise ConfigError(
            f"max_seq_len {max_seq_len} is more than the model's context of {config.context_length}"
        )
    return max_seq_len


def _neighbours(
    texts: Sequence[tuple[int, Sequence[int]]],
) -> list[tuple[int, list[Sequence[int]]]]:
    """Texts of one length in rows side by side, each group with the first of its rows."""
    groups: list[tuple[int, list[Sequence[int]]]] = []
    for row, ids in texts:
        if groups:
            first_row, group = groups[-1]
            is_next = row == first_row + len(group) and len(ids) == len(group[0])
            if is_next and (len(group) + 1) * len(ids) <= _MOST_IDS_AT_ONCE:
                group.append(ids)
                continue
        groups.append((row, [ids]))
    return groups


def full_precision(device: torch.device) -> torch.autocast:
    """The cache has the dtype of the weights, so a caller's autocast must not reach in."""
    return torch.autocast(device.type, enabled=False)
