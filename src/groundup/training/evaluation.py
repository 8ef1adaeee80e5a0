"""How well a model predicts text it has not learned from: loss, perplexity and bits per byte.

The windows are fixed, so results compare over a run and between runs; no random state is touched.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from groundup.data.batches.order import fixed_windows, whole_walk
from groundup.data.batches.windows import IdArray, WindowReader
from groundup.data.shards import Shards
from groundup.distributed.process_group import ALONE, World
from groundup.model import TransformerLM
from groundup.nn.losses import perplexity
from groundup.tokenizer import Tokenizer

Windows = npt.NDArray[Any]


@dataclass(frozen=True)
class Evaluation:
    """The results of one evaluation."""

    loss: float
    """Mean of -ln p(token), in nats."""
    perplexity: float
    """exp(loss): how many equally likely tokens the model hesitates between."""
    bits_per_byte: float | None
    """Bits that the model needs for a byte of text: comparable between vocabularies."""
    num_tokens: int

    @classmethod
    def of(cls, nats: float, num_tokens: int, num_bytes: int) -> "Evaluation":
        loss = nats / num_tokens
        bits_per_byte = nats / math.log(2) / num_bytes if num_bytes else None
        return cls(loss, perplexity(loss), bits_per_byte, num_tokens)


class Evaluate(Protocol):
    """What measures a model on the same data each time it is asked."""

    def __call__(
        self, model: TransformerLM, autocast: Callable[[], AbstractContextManager[Any]] = ...
    ) -> Evaluation:
        """The forward passes run within `autocast()`."""
        ...


class Evaluator:
    """Predicts the same windows of a split each time it is asked.

    `num_windows` None takes the whole split, every token but the first exactly once; so is a
    split that is shorter than one window. Several ranks share the windows of a `world`, with the
    same result.
    """

    def __init__(
        self,
        shards: Shards | IdArray,
        tokenizer: Tokenizer,
        context_length: int,
        num_windows: int | None = 256,
        batch_size: int = 32,
        seed: int = 0,
        world: World = ALONE,
    ) -> None:
        self._world = world
        self._reader = WindowReader(shards, min(context_length, shards.num_ids - 1))
        self._token_bytes = token_bytes(tokenizer)
        self._batch_size = batch_size
        self._tail: Windows | None = None
        if num_windows is None or shards.num_ids <= context_length:
            walk = whole_walk(shards.num_ids, context_length)
            self._starts = walk.starts
            if walk.tail_length:
                end = walk.tail_start + walk.tail_length + 1
                self._tail = shards.read(walk.tail_start, end)[np.newaxis]
        else:
            self._starts = fixed_windows(shards.num_ids, context_length, num_windows, seed)

    def __call__(
        self,
        model: TransformerLM,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Evaluation:
        device = model.device
        losses: list[torch.Tensor] = []
        num_tokens = num_bytes = 0
        with torch.no_grad(), autocast():
            batches = self._batches()
            while together := list(itertools.islice(batches, self._world.size)):
                for windows in together:
                    targets = windows[:, 1:]
                    num_tokens += targets.size
                    num_bytes += int(self._token_bytes[targets].sum())
                # Ranks may share the weights and have to compute at once, also for nothing.
                windows = together[min(self._world.rank, len(together) - 1)]
                ids = torch.from_numpy(windows.astype(np.int64)).to(device)
                loss = model.loss(ids[:, :-1], ids[:, 1:], reduction="sum")
                if self._world.rank < len(together):
                    losses.append(loss)
        # One wait for the device, at the end.
        own = torch.stack(losses).cpu() if losses else torch.zeros(0)
        parts = self._world.gather(own)
        in_order = [
            part[index] for index in range(len(parts[0])) for part in parts if index < len(part)
        ]
        nats = torch.stack(in_order).double().sum().item()
        return Evaluation.of(nats, num_tokens, num_bytes)

    def _batches(self) -> Iterator[Windows]:
        for first in range(0, len(self._starts), self._batch_size):
            yield self._reader.read(self._starts[first : first + self._batch_size])
        if self._tail is not None:
            yield self._tail


def evaluate(
    model: TransformerLM,
    shards: Shards,
    tokenizer: Tokenizer,
    *,
    num_windows: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Evaluation:
    """loss = mean -ln p(token | those before it), on a split or on some windows of it.

    model: what predicts.
    shards: the split to predict.
    tokenizer: says how many bytes each id stands for.
    num_windows: how many windows to predict, chosen by `seed`; None takes the whole split.
    batch_size: windows at once.
    seed: of the choice of windows.
    autocast: what the forward passes run within.
    """
    context_length = model.config.context_length
    evaluator = Evaluator(shards, tokenizer, context_length, num_windows, batch_size, seed)
    return evaluator(model, autocast)


def token_bytes(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """Bytes of text that each id stands for. Special tokens stand for none."""
    sizes = np.zeros(tokenizer.vocab_size, np.int64)
    for id, token in tokenizer.vocab.items():
        sizes[id] = len(token)
    sizes[list(tokenizer.special_tokens.values())] = 0
    return sizes
