"""Validation loss, perplexity and bits per byte.

The windows are fixed, so that results compare over a run and between runs; no random state changes.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from groundup.data.batches.loader import Batch
from groundup.data.batches.order import IdArray, WindowReader, consecutive_windows, fixed_windows
from groundup.data.chats import PackedRows
from groundup.data.shards import Shards
from groundup.data.shards.check import token_sizes
from groundup.distributed.process_group import ONE_PROCESS, ProcessGroup
from groundup.model import TransformerLM
from groundup.nn.losses import perplexity
from groundup.tokenizer import Tokenizer
from groundup.training.preference import Preference, preference_sums
from groundup.training.step import summed_loss

Autocast = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Evaluation:
    """loss = mean of -ln p(token), perplexity = exp(loss), and bits per byte of text, which compare
    between vocabularies."""

    loss: float
    perplexity: float
    bits_per_byte: float | None
    num_tokens: int
    num_bytes: int
    preference: dict[str, float] | None = None
    """For pairs of answers, whose loss is that of DPO."""

    @property
    def metrics(self) -> dict[str, Any]:
        """What metrics.jsonl has besides the loss."""
        likelihood = {"perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte}
        return self.preference or likelihood

    @classmethod
    def of(cls, nats: float, num_tokens: int, num_bytes: int) -> "Evaluation":
        loss = nats / num_tokens
        bits_per_byte = nats / math.log(2) / num_bytes if num_bytes else None
        return cls(loss, perplexity(loss), bits_per_byte, num_tokens, num_bytes)


class Evaluator:
    """Evaluates the same windows of a split on every call, or the answers of the same
    conversations. Ranks share the batches; the result does not depend on their number."""

    def __init__(
        self,
        split: Shards | IdArray | PackedRows,
        tokenizer: Tokenizer,
        context_length: int,
        num_windows: int | None = 256,
        batch_size: int = 32,
        ranks: ProcessGroup = ONE_PROCESS,
    ) -> None:
        """num_windows: number of windows, or of packed rows. With None, or if the split is shorter
        than a window, every token but the first is predicted exactly once."""
        self._split, self._token_bytes = split, token_bytes(tokenizer)
        self._context_length, self._num_windows = context_length, num_windows
        self._batch_size, self._ranks = batch_size, ranks

    def __call__(
        self,
        model: TransformerLM,
        autocast: Autocast = nullcontext,
        preference: Preference | None = None,
    ) -> Evaluation:
        losses: list[torch.Tensor] = []
        num_tokens = num_bytes = 0
        with torch.no_grad(), autocast():
            batches = self._batches()
            while together := list(itertools.islice(batches, self._ranks.size)):
                for parts in together:
                    targets = parts[1][parts[1] >= 0]
                    num_tokens += targets.size
                    num_bytes += int(self._token_bytes[targets].sum())
                # With sharded weights all ranks must run the forward pass, even if unused.
                parts = together[min(self._ranks.rank, len(together) - 1)]
                inputs, targets, *rest = torch.from_numpy(parts).to(model.device)
                batch = Batch(0, inputs, targets, None, *rest)
                if preference is None:
                    loss = summed_loss(model, batch)
                else:
                    loss = preference_sums(model, batch, preference)
                if self._ranks.rank < len(together):
                    losses.append(loss)
        # One synchronization at the end; summed in the order of the batches.
        none = torch.zeros(0 if preference is None else (0, 4))
        gathered = self._ranks.gather(torch.stack(losses).cpu() if losses else none)
        in_order = torch.nn.utils.rnn.pad_sequence(gathered).flatten(0, 1)
        sums = in_order[: sum(map(len, gathered))].double().sum(0)
        if preference is None:
            return Evaluation.of(sums.item(), num_tokens, num_bytes)
        loss, accuracy, margin = (sums[:3] / sums[3]).tolist()
        found = {"preference_accuracy": accuracy, "preference_margin": margin}
        return Evaluation(loss, perplexity(loss), None, num_tokens, num_bytes, found)

    def _batches(self) -> Iterator[npt.NDArray[np.int64]]:
        """Stacked inputs and targets; packed rows also have positions, and the pairs' numbers."""
        split, size = self._split, self._batch_size
        if isinstance(split, PackedRows):
            yield from split.batches(size, self._num_windows)
            return
        length, tail = min(self._context_length, split.num_tokens - 1), [0, 0]
        if self._num_windows is None or split.num_tokens <= self._context_length:
            starts, *tail = consecutive_windows(split.num_tokens, self._context_length)
        else:
            starts = fixed_windows(split.num_tokens, length, self._num_windows)
        reader = WindowReader(split, length)
        for first in range(0, len(starts), size):
            yield _pair(reader.read(starts[first : first + size]))
        if tail[1]:
            yield _pair(split.read(tail[0], tail[0] + tail[1] + 1)[np.newaxis])


def _pair(windows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.stack([windows[:, :-1], windows[:, 1:]]).astype(np.int64)


def token_bytes(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """The number of text bytes of each id; 0 for special tokens."""
    sizes = token_sizes(tokenizer)
    sizes[list(tokenizer.special_tokens.values())] = 0
    return sizes
