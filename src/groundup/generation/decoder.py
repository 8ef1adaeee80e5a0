"""What runs the model for the engine: rows of texts in a cache, and the ids that follow them.

Two classes do so: `TorchDecoder` anywhere, `CudaDecoder` with kernels of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from groundup.generation.request import GenerationRequest
from groundup.nn import KVCache

if TYPE_CHECKING:
    from groundup.model import TransformerLM
    from groundup.tokenizer import Tokenizer


@dataclass
class Row:
    """A request that is running."""

    handle: int
    request: GenerationRequest
    ids: list[int]
    """The whole text; the last of them is not in the cache yet."""
    num_new: int = 0
    is_waiting: bool = True
    """The cache does not have the text yet."""


@dataclass(frozen=True)
class AllowedIds:
    """Which ids may be sampled: those that the tokenizer has text for, all below `end` but `gaps`.

    A model may have more: where its vocabulary was padded to a round size, and in the gaps that
    some tokenizers leave between their special tokens.
    """

    end: int
    gaps: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> AllowedIds:
        end, vocab = tokenizer.vocab_size, tokenizer.vocab
        return cls(end, tuple(id for id in range(end) if id not in vocab))

    def missing(self, num_columns: int) -> list[int]:
        """Those of the first `num_columns` ids that are not allowed."""
        return [*self.gaps, *range(self.end, num_columns)]


class Decoder(ABC):
    """A model and its cache of `max_rows` texts, each of up to `context_length` ids.

    It reads all ids of its vocabulary and samples the allowed ones.
    """

    def __init__(
        self, model: TransformerLM, max_rows: int, allowed: AllowedIds | None = None
    ) -> None:
        config, weight = model.config, model.output_weight
        self.max_rows = max_rows
        self.context_length = config.context_length
        self.vocab_size = config.vocab_size
        self.allowed = allowed or AllowedIds(config.vocab_size)
        self.device = weight.device
        self.cache = KVCache(
            config.num_layers,
            max_rows,
            config.key_value_heads,
            config.context_length,
            config.d_head,
            device=weight.device,
            dtype=weight.dtype,
        )

    @torch.inference_mode()
    def copy(self, source: int, target: int) -> None:
        """Let row `target` hold the text of row `source` too."""
        self.cache.copy(source, target)

    @abstractmethod
    def prefill(self, texts: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Let several rows hold texts, each given as (row, ids), as far as can be together."""

    @abstractmethod
    def begin(self, rows: Sequence[Row]) -> None:
        """Continue with these rows, the i-th of them in row i of the cache.

        Between two steps the engine appends the sampled ids to them.
        """

    @abstractmethod
    def step(self, num_quiet_steps: int) -> tuple[list[int], Float[Tensor, "n allowed"]]:
        """The next id of each row, NO_ID where logits are not finite, and its logits.

        No row can end within `num_quiet_steps` but by a stop id. The logits are in float32; ids
        after the last allowed one have no column, a gap among them has -inf. The next call may
        overwrite them.
        """
