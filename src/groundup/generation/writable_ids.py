"""Which ids may be written: those that the tokenizer has text for.

A model may have more: where its vocabulary was padded to a round size, where the text was too small
to learn as many tokens as were asked for, and in the gaps that some tokenizers leave between their
special tokens. Such ids count as impossible, before any rule looks at the scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer


@dataclass(frozen=True)
class WritableIds:
    """All ids below `end` but for the `gaps`."""

    end: int
    gaps: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> WritableIds:
        """The ids that the tokenizer can decode."""
        end, vocab = tokenizer.vocab_size, tokenizer.vocab
        if len(vocab) == end:
            return cls(end)
        return cls(end, tuple(id for id in range(end) if id not in vocab))

    @property
    def num(self) -> int:
        return self.end - len(self.gaps)

    def gaps_on(self, device: torch.device, num_columns: int | None = None) -> Tensor | None:
        """What cannot be written of the first `num_columns` ids (`end` if not given), as an index
        made once for all steps; None where all can be."""
        beyond = () if num_columns is None else range(self.end, num_columns)
        gaps = (*self.gaps, *beyond)
        return torch.tensor(gaps, device=device) if gaps else None
