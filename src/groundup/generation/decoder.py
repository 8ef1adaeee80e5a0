"""What runs the model for the engine: rows of texts in a cache, and the ids that follow them.

Two classes do so: `TorchDecoder` anywhere, `CudaDecoder` with kernels of its own.
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
    """A request that is running."""

    handle: int
    request: GenerationRequest
    ids: list[int]
    """The whole text; the last of them is not in the cache yet."""
    num_new: int = 0
    is_waiting: bool = True
    """The cache does not have the text yet."""


class Decoder(ABC):
    """A model and its cache of `max_rows` texts, each of up to `context_length` ids.

    It reads all ids of its vocabulary and samples the first `num_allowed`: a vocabulary that was
    padded to a round size has more ids than the tokenizer.
    """

    def __init__(self, model: TransformerLM, max_rows: int, num_allowed: int | None = None) -> None:
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

        No row can end within `num_quiet_steps` but by a stop id. The logits, in float32, are
        those of the allowed ids. The next call may overwrite them.
        """
