"""What runs the model for the engine: rows of texts in a cache, and the logits that follow them.

Who sits in which row, and what is sampled from the logits, is the engine's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from groundup.errors import ConfigError
from groundup.nn import KVCache

if TYPE_CHECKING:
    from groundup.model import ModelConfig, TransformerLM
    from groundup.tokenizer import Tokenizer

# Ids of prompts that are prefilled together: enough to keep a device busy, and little memory.
_MOST_IDS_AT_ONCE = 4_096


@dataclass(frozen=True)
class WritableIds:
    """Which ids may be sampled: those that the tokenizer has text for, all below `end` but `gaps`.

    A model may have more: where its vocabulary was padded to a round size, where the text was too
    small to learn as many tokens as were asked for, and in the gaps that some tokenizers leave
    between their special tokens. Such ids count as impossible, before any rule sees the logits.
    """

    end: int
    gaps: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> WritableIds:
        """The ids that the tokenizer can decode."""
        end, vocab = tokenizer.vocab_size, tokenizer.vocab
        gaps = range(end) if len(vocab) < end else ()
        return cls(end, tuple(id for id in gaps if id not in vocab))

    @property
    def num(self) -> int:
        return self.end - len(self.gaps)

    def gaps_on(self, device: torch.device, num_columns: int | None = None) -> Tensor | None:
        """What cannot be written of the first `num_columns` ids (`end` if not given), as an index
        made once for all steps; None where all can be."""
        beyond = () if num_columns is None else range(self.end, num_columns)
        gaps = (*self.gaps, *beyond)
        return torch.tensor(gaps, device=device) if gaps else None


class Decoder(Protocol):
    """A model and its cache of `max_rows` texts, each of up to `max_seq_len` ids.

    It reads all ids of its vocabulary. Its logits are those of the writable ids, from 0 on: what
    lies beyond them has no column, and a gap among them has -inf.
    """

    max_rows: int
    max_seq_len: int
    vocab_size: int
    num_writable: int
    device: torch.device

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
        """Without `max_seq_len` rows are as long as the model's context; without `writable` all of
        its ids are."""
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
    def prefill_many(self, texts: Sequence[tuple[int, Sequence[int]]]) -> None:
        for first_row, group in _neighbours(texts):
            self._prefill(first_row, group)

    def _prefill(self, first_row: int, texts: Sequence[Sequence[int]]) -> None:
        """The texts, all of one length, into the rows from `first_row` on."""
        length = len(texts[0])
        cache = self.cache.rows(first_row, first_row + len(texts)).up_to(length)
        batch = torch.tensor([list(ids) for ids in texts], device=self.device)
        positions = torch.arange(length, device=self.device).expand(len(texts), -1)
        with full_precision(self.device):
            self.model.hidden(batch, positions, cache)

    @torch.inference_mode()
    def decode(
        self, ids: Int[Tensor, " n"], positions: Int[Tensor, " n"]
    ) -> Float[Tensor, "n writable"]:
        cache = self.cache.rows(0, len(ids)).up_to(int(positions.max()) + 1)
        batch = ids.to(self.device)[:, None]
        with full_precision(self.device):
            hidden = self.model.hidden(batch, positions.to(self.device)[:, None], cache)
            return self._logits(hidden[:, -1])

    def _logits(self, hidden: Tensor) -> Tensor:
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


def check_max_seq_len(config: ModelConfig, max_seq_len: int | None) -> int:
    """The length of a decoder's rows: the model's context, or less where that is asked for."""
    if max_seq_len is None:
        return config.context_length
    if max_seq_len > config.context_length:
        raise ConfigError(
            f"max_seq_len {max_seq_len} is more than the model's context of {config.context_length}"
        )
    return max_seq_len


def full_precision(device: torch.device) -> torch.autocast:
    """The cache has the dtype of the weights, so a caller's autocast must not reach in."""
    return torch.autocast(device.type, enabled=False)


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
