"""Decoders run the model for the engine: they hold texts in the rows of a cache and sample ids.

`TorchDecoder` runs on any device, `CudaDecoder` has kernels of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groundup.generation.request import GenerationRequest
from groundup.model import TransformerLM
from groundup.nn import KVCache


@dataclass
class Row:
    """A running request."""

    handle: int
    request: GenerationRequest
    ids: list[int]
    """Prompt and new ids; the last one is not in the cache yet."""
    num_new: int = 0
    is_waiting: bool = True
    """Whether the prompt still has to be prefilled."""


class Decoder(ABC):
    """A model and a cache for `max_rows` texts of up to `context_length` ids.

    It accepts all ids of the model's vocabulary but samples only the first `num_allowed`: a padded
    vocabulary has more ids than the tokenizer.
    """

    def __init__(
        self,
        model: TransformerLM,
        max_rows: int,
        num_allowed: int | None = None,
        max_cached: int | None = None,
    ) -> None:
        """max_cached: positions in the cache, if not the whole context yet."""
        config, weight = model.config, model.output_weight
        self.max_rows = max_rows
        self.context_length = config.context_length
        self.vocab_size = config.vocab_size
        self.num_allowed = num_allowed or config.vocab_size
        self.device = weight.device
        self.cache = KVCache(
            config.num_layers,
            max_rows,
            config.key_value_heads,
            max_cached or config.context_length,
            config.d_head,
            device=weight.device,
            dtype=weight.dtype,
        )

    @torch.inference_mode()
    def copy(self, source: int, target: int) -> None:
        """Copy the text of row `source` to row `target`."""
        self.cache.copy(source, target)

    @abstractmethod
    def prefill(self, texts: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Store texts, each given as (row, ids), in the cache, batched if possible."""

    @abstractmethod
    def begin(self, rows: Sequence[Row]) -> None:
        """Set the rows that the next steps continue; rows[i] is in row i of the cache.

        After each step the engine appends the sampled ids to them.
        """

    @abstractmethod
    def step(self, num_quiet_steps: int) -> tuple[list[int], Float[Tensor, "n allowed"]]:
        """Return each row's next id, or NO_ID if its logits are not finite, and its logits.

        For `num_quiet_steps` steps, rows can only end by a stop id. The logits are float32, for the
        allowed ids only. The next call may overwrite them.
        """
