"""What runs the model for the engine: rows of texts in a cache, and the ids that follow them.

Two classes do so: `TorchDecoder` anywhere, `CudaDecoder` with kernels of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from groundup.errors import ConfigError
from groundup.generation.request import GenerationRequest
from groundup.generation.sampling import Uniforms

if TYPE_CHECKING:
    from groundup.model import ModelConfig
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


class Decoder(Protocol):
    """A model and its cache of `max_rows` texts, each of up to `max_seq_len` ids.

    It reads all ids of its vocabulary and samples the allowed ones.
    """

    max_rows: int
    max_seq_len: int
    vocab_size: int
    num_allowed: int

    def prefill(self, texts: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Let several rows hold texts, each given as (row, ids), as far as can be together."""
        ...

    def copy(self, source: int, target: int) -> None:
        """Let row `target` hold the text of row `source` too."""
        ...

    def begin(self, rows: Sequence[Row]) -> None:
        """Continue with these rows, the i-th of them in row i of the cache.

        Between two steps the engine appends the sampled ids to them.
        """
        ...

    def step(self, num_quiet_steps: int) -> tuple[list[int], Float[Tensor, "n allowed"]]:
        """The next id of each row, NO_ID where logits are not finite, and its logits.

        No row can end within `num_quiet_steps` but by a stop id. The logits are in float32; ids
        after the last allowed one have no column, a gap among them has -inf. The next call may
        overwrite them.
        """
        ...


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


def check_max_seq_len(config: ModelConfig, max_seq_len: int | None) -> int:
    """The length of a decoder's rows: the model's context, or less where that is asked for."""
    if max_seq_len is None:
        return config.context_length
    if max_seq_len > config.context_length:
        raise ConfigError(
            f"max_seq_len {max_seq_len} is more than the model's context of {config.context_length}"
        )
    return max_seq_len
