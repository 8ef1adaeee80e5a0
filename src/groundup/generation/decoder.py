"""What runs the model for the engine: rows of texts in a cache, and the ids that follow them.

Two classes do so: `TorchDecoder` anywhere, `CudaDecoder` with kernels of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from groundup.errors import ConfigError
from groundup.generation.request import GenerationRequest
from groundup.generation.sampling import Uniforms
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
    start: int
    """The model sees the ids from this one on."""
    uniforms: Uniforms
    num_new: int = 0
    is_waiting: bool = True
    """The cache does not have the text yet."""
    has_slid: bool = False
    """The beginning of the prompt is forgotten."""

    @property
    def num_visible(self) -> int:
        return len(self.ids) - self.start


@dataclass(frozen=True)
class AllowedIds:
    """Which ids may be sampled: those that the tokenizer has text for, all below `end` but `gaps`.

    A model may have more: where its vocabulary was padded to a round size, where the text was too
    small to learn as many tokens as were asked for, and in the gaps that some tokenizers leave
    between their special tokens. Such ids count as impossible, before any rule sees the logits.
    """

    end: int
    gaps: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> AllowedIds:
        """The ids that the tokenizer can decode."""
        end, vocab = tokenizer.vocab_size, tokenizer.vocab
        gaps = range(end) if len(vocab) < end else ()
        return cls(end, tuple(id for id in gaps if id not in vocab))

    @property
    def num(self) -> int:
        return self.end - len(self.gaps)

    def gaps_on(self, device: torch.device, num_columns: int | None = None) -> Tensor | None:
        """What is not allowed of the first `num_columns` ids (`end` if not given), as an index made
        once for all steps; None if all are."""
        beyond = () if num_columns is None else range(self.end, num_columns)
        gaps = (*self.gaps, *beyond)
        return torch.tensor(gaps, device=device) if gaps else None


class Decoder:
    """A model and its cache of `max_rows` texts, each of up to `max_seq_len` ids.

    It reads all ids of its vocabulary and samples the allowed ones.
    """

    def __init__(
        self,
        model: TransformerLM,
        max_rows: int,
        max_seq_len: int | None = None,
        allowed: AllowedIds | None = None,
    ) -> None:
        """Without `max_seq_len` rows are as long as the context, without `allowed` all ids are."""
        config, weight = model.config, model.output_weight
        context = config.context_length
        self.max_rows = max_rows
        self.max_seq_len = context if max_seq_len is None else max_seq_len
        if self.max_seq_len > context:
            raise ConfigError(f"max_seq_len {max_seq_len} is more than the context of {context}")
        self.vocab_size = config.vocab_size
        self.allowed = allowed or AllowedIds(config.vocab_size)
        self.device = weight.device
        self.cache = KVCache(
            config.num_layers,
            max_rows,
            config.key_value_heads,
            self.max_seq_len,
            config.d_head,
            device=weight.device,
            dtype=weight.dtype,
        )

    def prefill(self, texts: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Let several rows hold texts, each given as (row, ids), as far as can be together."""
        raise NotImplementedError

    @torch.inference_mode()
    def copy(self, source: int, target: int) -> None:
        """Let row `target` hold the text of row `source` too."""
        self.cache.copy(source, target)

    def begin(self, rows: Sequence[Row]) -> None:
        """Continue with these rows, the i-th of them in row i of the cache.

        Between two steps the engine appends the sampled ids to them.
        """
        raise NotImplementedError

    def step(self, num_quiet_steps: int) -> tuple[list[int], Float[Tensor, "n allowed"]]:
        """The next id of each row, NO_ID where logits are not finite, and its logits.

        No row can end within `num_quiet_steps` but by a stop id. The logits are in float32; ids
        after the last allowed one have no column, a gap among them has -inf. The next call may
        overwrite them.
        """
        raise NotImplementedError
