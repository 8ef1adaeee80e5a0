"""Run a training script with autoresearch's interface on the data of a race.

Such a script imports data, time budget and metric from a module `prepare` next to it, and flash
attention from `kernels`. This module provides both, so that a published file runs unchanged;
`kernels`, if installed, is used as it is. The script's seed is replaced by the race's.
"""

from __future__ import annotations

import bisect
import functools
import importlib.util
import math
import runpy
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from groundup.data.shards import Shards
from groundup.runs.config import RunConfig
from groundup.training.data import RunData
from groundup.training.evaluation import Evaluation, token_bytes
from measure import Json

IdArray = npt.NDArray[np.int64]

_CONTEXT = 2_048
_NUM_BUFFERED = 1_000


def run_program(script: Path, data: RunData, config: RunConfig, seconds: float) -> Json:
    """Train with the script; returns what its call of `evaluate_bpb` measured."""
    prepare = _Prepare(data, config, seconds)
    sys.modules["prepare"] = prepare
    if importlib.util.find_spec("kernels") is None:
        sys.modules["kernels"] = kernels = types.ModuleType("kernels")
        kernels.get_kernel = _Kernel  # type: ignore[attr-defined]
    seed = functools.partial(torch.manual_seed, config.seed)
    with mock.patch.object(torch, "manual_seed", lambda _: seed()):
        runpy.run_path(str(script), run_name="__main__")
    if not prepare.result:
        raise SystemExit(f"{script} ended without a call of evaluate_bpb")
    return prepare.result


class _Prepare(types.ModuleType):
    """The module `prepare`: constants, tokenizer, loader and measure."""

    MAX_SEQ_LEN = _CONTEXT

    def __init__(self, data: RunData, config: RunConfig, seconds: float) -> None:
        super().__init__("prepare")
        self.TIME_BUDGET = seconds
        self._data, self._config = data, config
        self._num_tokens = 0
        self.result: Json = {}
        self.Tokenizer = types.SimpleNamespace(from_directory=lambda: self)

    def get_vocab_size(self) -> int:
        return self._config.model.vocab_size

    def get_bos_token_id(self) -> int:
        assert self._data.end_id is not None
        return self._data.end_id

    def make_dataloader(
        self, tokenizer: Any, B: int, T: int, split: str, buffer_size: int = _NUM_BUFFERED
    ) -> Iterator[tuple[Tensor, Tensor, int]]:
        assert split == "train" and isinstance(self._data.train, Shards)
        rows = _packed_rows(self._data.train, self.get_bos_token_id(), T + 1, self._config.seed)
        while True:
            ids = np.stack([next(rows) for _ in range(B)])
            self._num_tokens += B * T
            batch = torch.from_numpy(ids).to(self._config.device)
            epoch = 1 + self._num_tokens // self._data.train.num_tokens
            yield batch[:, :-1].contiguous(), batch[:, 1:].contiguous(), epoch

    @torch.no_grad()
    def evaluate_bpb(self, model: Any, tokenizer: Any, batch_size: int) -> float:
        """Every token of the validation split but the first is predicted once."""
        split = self._data.validation
        assert isinstance(split, Shards)
        ids = torch.from_numpy(split.read(0, split.num_tokens).astype(np.int64))
        size = batch_size * _CONTEXT
        num_targets, nats = len(ids) - 1, 0.0
        for first in range(0, num_targets, size):
            # The last batch is filled up with targets that do not count.
            x, y = (
                F.pad(part, (0, size - len(part)), value=filler)
                .view(batch_size, _CONTEXT)
                .to(self._config.device)
                for part, filler in (
                    (ids[first : min(first + size, num_targets)], 0),
                    (ids[first + 1 : first + 1 + size], -1),
                )
            )
            losses = model(x, y, reduction="none").view(-1)
            nats += losses[y.view(-1) >= 0].double().sum().item()
        num_bytes = int(token_bytes(self._data.tokenizer)[ids[1:].numpy()].sum())
        found = Evaluation.of(nats, num_targets, num_bytes)
        self.result = {
            "parameters": sum(one.numel() for one in model.parameters()),
            "tokens": self._num_tokens,
            "validation_loss": found.loss,
            "bits_per_byte": found.bits_per_byte,
        }
        return found.bits_per_byte or math.nan


def _packed_rows(split: Shards, end_id: int, length: int, seed: int) -> Iterator[IdArray]:
    """Rows that begin with a document and continue with the longest ones that still fit; if none
    does, with the beginning of the shortest, whose rest becomes a document."""
    ids = split.read(0, split.num_tokens)
    parts = _parts(np.flatnonzero(ids == end_id), length - 1, seed)
    buffer: list[tuple[int, int, int]] = []
    while True:
        row, used = np.empty(length, np.int64), 0
        while used < length:
            while len(buffer) < _NUM_BUFFERED:
                begin, end = next(parts)
                bisect.insort(buffer, (end - begin, begin, end))
            place = bisect.bisect(buffer, (length - used - 1, math.inf, math.inf)) - 1
            _, begin, end = buffer.pop(max(place, 0))
            row[used] = end_id
            last = min(end, begin + length - used - 1)
            row[used + 1 : used + 1 + last - begin] = ids[begin:last]
            used += 1 + last - begin
            if last < end:
                bisect.insort(buffer, (end - last, last, end))
        yield row


def _parts(ends: IdArray, longest: int, seed: int) -> Iterator[tuple[int, int]]:
    """Documents in a new order in each epoch; longer ones are cut."""
    random, begins = np.random.default_rng(seed), np.concatenate([[0], ends[:-1] + 1])
    while True:
        for number in random.permutation(len(ends)).tolist():
            for begin in range(int(begins[number]), int(ends[number]), longest):
                yield begin, min(begin + longest, int(ends[number]))


class _Kernel:
    """Flash attention by torch's own kernels."""

    def __init__(self, repository: str) -> None:
        self.flash_attn_interface = self
        # Block masks cannot be made while a model is compiled.
        self._masks = {
            size: create_block_mask(
                lambda b, h, q, k, size=size: (q >= k) & (q - k <= size),  # type: ignore[misc]
                *(None, None, _CONTEXT, _CONTEXT),
                device="cuda" if torch.cuda.is_available() else "cpu",
            )
            for size in (_CONTEXT // part for part in (2, 4, 8, 16))
        }

    def flash_attn_func(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, window_size: tuple[int, int]
    ) -> Tensor:
        """Causal attention over (batch, seq, heads, d_head), to at most the window's positions."""
        query, key, value = (x.transpose(1, 2) for x in (q, k, v))
        if 0 <= window_size[0] < _CONTEXT - 1:
            mask = self._masks[window_size[0]]
            out = flex_attention(query, key, value, block_mask=mask, enable_gqa=True)
        else:
            out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2)
