"""The fast decoder on CUDA: steps of all rows, model and sampling, are one recorded graph.

A graph has a fixed number of rows, so there is one for each power of two, each set of rules, and
one step or several; rows beyond those in use compute what nobody reads. Between launches nothing
travels but the chosen ids, and those a launch late if the engine wants it so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from groundup.data.counter_random import stream_keys
from groundup.generation.decoder import WritableIds, check_max_seq_len
from groundup.generation.sampling import (
    NO_ID,
    STREAM,
    Greedy,
    MinP,
    RepetitionPenalty,
    Sampler,
    Temperature,
    TopK,
    TopP,
)
from groundup.nn import KVCache, RMSNorm
from groundup.nn.kernels.cuda_decode import matmul
from groundup.nn.kernels.cuda_decode.block import Buffers, DecodingBlock, weights_soon
from groundup.nn.kernels.cuda_decode.edge_search import (
    COUNT,
    ID,
    KEY,
    LOG_MIN_P,
    NUM_FLOATS,
    NUM_WHOLE,
    POSITION,
    TEMPERATURE,
    TOP_K,
    TOP_P,
)
from groundup.nn.kernels.cuda_decode.output_layer import Scores, to_logits
from groundup.nn.kernels.cuda_decode.sampling import Board, Rules, sample

if TYPE_CHECKING:
    from groundup.model import TransformerLM

# Tokens of prompts that go through the model together: enough to fill a GPU, few enough to hold.
_MOST_TOGETHER = 4096
# Up to so many are a recorded graph too, one for each power of two: launches cost the host more
# than such a prompt costs the device.
_MOST_RECORDED = 1024
# So many steps begin at once, if the weights are no more than so many bytes.
_MOST_STEPS, _FEW_BYTES = 8, 1 << 30
# Rows of logits are multiples of so many long, where they can be: they are read several at a time.
_ALIGNMENT = 16


class SamplerSettings(NamedTuple):
    """A sampler as the numbers that the kernel takes: top_k 0 is none, top_p 1 is none."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    log_min_p: float = -math.inf

    @classmethod
    @functools.lru_cache(maxsize=256)
    def of(cls, sampler: Sampler) -> SamplerSettings | None:
        """None for rules, or an order of them, that the kernel does not know."""
        settings, last = cls(), -1
        for rule in sampler.rules:
            if isinstance(rule, RepetitionPenalty) and rule.penalty == 1:
                continue
            if isinstance(rule, Greedy) or rule == Temperature(0):
                return settings._replace(temperature=0.0)
            order = (Temperature, TopK, TopP, MinP)
            index = next((i for i, kind in enumerate(order) if isinstance(rule, kind)), -1)
            if index <= last:
                return None
            last = index
            match rule:
                case Temperature(temperature):
                    settings = settings._replace(temperature=temperature)
                case TopK(k):
                    settings = settings._replace(top_k=k)
                case TopP(p):
                    settings = settings._replace(top_p=p)
                case MinP(p) if p > 0:
                    settings = settings._replace(log_min_p=math.log(p))
        return settings


class RowState(NamedTuple):
    """What the next step of a row begins with: the last id and its position."""

    id: int
    position: int
    num_new: int
    seed: int
    settings: SamplerSettings


def as_numbers(
    rows: Sequence[RowState],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """As the kernel has them in its columns."""
    whole = np.empty((len(rows), NUM_WHOLE), np.int64)
    whole[:, [ID, POSITION, COUNT, TOP_K]] = [
        (row.id, row.position, row.num_new, row.settings.top_k) for row in rows
    ]
    whole[:, KEY] = stream_keys([row.seed for row in rows], STREAM).view(np.int64)
    floats = np.empty((len(rows), NUM_FLOATS), np.float32)
    floats[:, [TEMPERATURE, TOP_P, LOG_MIN_P]] = [
        (row.settings.temperature, row.settings.top_p, row.settings.log_min_p) for row in rows
    ]
    # What is 0 in float32 would need no id at all.
    floats[:, TOP_P] = np.maximum(floats[:, TOP_P], np.finfo(np.float32).tiny)
    return whole, floats


class CudaDecoder:
    """A `Decoder` for pre-norm models in half precision, which also samples.

    Its copies of the projections, made when it is built, do not follow the model's.
    """

    def __init__(
        self,
        model: TransformerLM,
        max_rows: int,
        max_seq_len: int | None = None,
        writable: WritableIds | None = None,
    ) -> None:
        """Without `writable` all ids of the model are."""
        config = model.config
        weight = model.output_weight
        self.max_rows = max_rows
        self.max_seq_len = check_max_seq_len(config, max_seq_len)
        self.vocab_size = config.vocab_size
        writable = writable or WritableIds(config.vocab_size)
        self.num_writable = writable.num
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
        mixes: list[Tensor | None] = [None] * (config.num_layers + 1)
        self._first_mix = mixes[0]
        assert isinstance(model.final_norm, RMSNorm)
        self._eps = model.final_norm.eps
        gain = model.final_norm.weight.detach()
        # The gain is in the stream before the norm's own factor is, and must not let it overflow.
        self._factor = 2.0 ** math.ceil(math.log2(max(1.0, float(gain.abs().max()))))
        gains: list[Tensor | None] = [None] * (config.num_layers - 1)
        gains.append(gain / self._factor)
        self._layers = [
            DecodingBlock(block, keys, values, mix_after, gain_after)
            for block, keys, values, mix_after, gain_after in zip(
                model.blocks, self.cache.keys, self.cache.values, mixes[1:], gains, strict=True
            )
        ]
        table = model.token_embedding.weight.detach()
        self._table = table if config.input_scale == 1 else table * config.input_scale
        self._extra_table = _extra_table(model, self._table)
        self._end = writable.end
        num_columns = min(config.vocab_size, -(-writable.end // _ALIGNMENT) * _ALIGNMENT)
        self._output = weight.detach()[:num_columns]
        num_bytes = sum(part.nbytes for layer in self._layers for part in layer.weights)
        num_bytes += self._output.nbytes
        self._soon: list[list[Tensor | None]] = [[None] * 4] * config.num_layers
        if num_bytes > torch.cuda.get_device_properties(self.device).L2_cache_size:
            self._soon = weights_soon(self._layers, self._output)
        # A device stands still between two launches, as long as a third of a small model's step.
        # Of a large one that is nothing, and who waits for the first id would wait for all.
        self.steps_at_once = _MOST_STEPS if num_bytes < _FEW_BYTES else 1
        # Sampling sees all columns: a mask that ends between multiples would make it read one
        # number at a time.
        gaps = writable.gaps_on(weight.device, num_columns)
        self._absent = None
        if gaps is not None:
            self._absent = torch.zeros(num_columns, dtype=torch.bool, device=weight.device)
            self._absent[gaps] = True
        with torch.inference_mode():
            self._whole = torch.zeros(max_rows, NUM_WHOLE, dtype=torch.int64, device=weight.device)
            self._floats = torch.ones(max_rows, NUM_FLOATS, device=weight.device)
            shape = (self.steps_at_once, max_rows)
            self._chosen = torch.zeros(shape, dtype=torch.int64, device=weight.device)
            self._scores = Scores.make(max_rows, num_columns, weight.device)
            self._board = Board.make(max_rows, num_columns, weight.device)
            self._work = Buffers.make(max_rows, self._layers, weight)
        # Two, so that one can be read while the next steps fill the other.
        self._read_back = [torch.zeros(shape, dtype=torch.int64).pin_memory() for _ in range(2)]
        self._graphs: dict[tuple[int, Rules | None, int], torch.cuda.CUDAGraph] = {}
        self._rules = Rules()
        self._prompts: dict[int, tuple[Tensor, Buffers, torch.cuda.CUDAGraph]] = {}

    @torch.inference_mode()
    def prefill(self, row: int, ids: Sequence[int]) -> Float[Tensor, " writable"]:
        scores = Scores.make(1, len(self._output), self.device)
        self._to_logits(self.prefill_many([(row, ids)]), scores)
        return scores.logits[0, : self._end]

    @torch.inference_mode()
    def prefill_many(self, texts: Sequence[tuple[int, Sequence[int]]]) -> matmul.Stream:
        """Let rows hold these ids, all computed together; what left the last block, of the last
        token."""
        lengths = np.array([len(text) for _, text in texts])
        ids = np.fromiter(chain.from_iterable(text for _, text in texts), np.int64, lengths.sum())
        positions = np.arange(len(ids)) - np.repeat(lengths.cumsum() - lengths, lengths)
        rows = np.repeat([row for row, _ in texts], lengths)
        tokens = torch.from_numpy(np.stack([ids, positions, rows])).to(self.device)
        # In order, so that the beginning of a text that is cut has been stored before its end.
        for part in torch.split(tokens, _MOST_TOGETHER, dim=1):
            n = part.shape[1]
            if n <= _MOST_RECORDED:
                stream = self._replay_prompt(part)
            else:
                work = Buffers.make(n, self._layers, self._output)
                stream = self._through_blocks(work, *part)
        return stream.rows(n - 1, n)

    def _replay_prompt(self, tokens: Tensor) -> matmul.Stream:
        """`tokens` are ids, positions and rows; what left the last block, by token."""
        n = tokens.shape[1]
        size = max(16, 1 << (n - 1).bit_length())
        recorded = self._prompts.get(size)
        if recorded is None:
            work = Buffers.make(size, self._layers, self._output)
            inputs = torch.empty(3, size, dtype=torch.int64, device=self.device)
        else:
            inputs, work, graph = recorded
        inputs[:, :n] = tokens
        # The others are nobody's.
        inputs[:2, n:] = 0
        inputs[2, n:] = -1
        if recorded is None:
            graph = self._record(lambda: self._through_blocks(work, *inputs))
            self._prompts[size] = inputs, work, graph
        graph.replay()
        return work.stream

    @torch.inference_mode()
    def decode(
        self, ids: Int[Tensor, " n"], positions: Int[Tensor, " n"]
    ) -> Float[Tensor, "n writable"]:
        n = len(ids)
        self._whole[:n, ID] = ids.to(self.device)
        self._whole[:n, POSITION] = positions.to(self.device)
        self._replay(n, None)
        return self._scores.logits[:n, : self._end]

    def copy(self, source: int, target: int) -> None:
        self.cache.copy(source, target)

    @torch.inference_mode()
    def set_rows(self, rows: Sequence[RowState]) -> None:
        """Begin the next step from these; without it, it begins where the last one ended."""
        whole, floats = map(torch.from_numpy, as_numbers(rows))
        self._whole[: len(rows)] = whole.pin_memory().to(self.device, non_blocking=True)
        self._floats[: len(rows)] = floats.pin_memory().to(self.device, non_blocking=True)
        settings = [row.settings for row in rows]
        self._rules = Rules(
            any(one.top_k for one in settings), any(one.top_p < 1 for one in settings)
        )

    @torch.inference_mode()
    def launch(self, n: int, num_steps: int = 1) -> Callable[[], list[list[int]]]:
        """Begin some steps of the rows 0 to n - 1; calling the answer waits for the ids of each."""
        self._replay(n, self._rules, num_steps)
        self._read_back.reverse()
        ids = self._read_back[0][:num_steps]
        ids.copy_(self._chosen[:num_steps], non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()

        def read() -> list[list[int]]:
            done.synchronize()
            read_ids: list[list[int]] = ids[:, :n].tolist()
            return read_ids

        return read

    @property
    def logits(self) -> Float[Tensor, "rows writable"]:
        """Those of the last step that was begun."""
        return self._scores.logits[:, : self._end]

    def _replay(self, n: int, rules: Rules | None, num_steps: int = 1) -> None:
        """Some steps of n rows, with sampling if there are rules for it."""
        size = min(self.max_rows, 1 << (n - 1).bit_length())
        graph = self._graphs.get((size, rules, num_steps))
        if graph is None:
            # What the first run does to the rows' state must not count.
            saved = self._whole.clone()

            def run() -> None:
                for chosen in self._chosen[:num_steps]:
                    self._step(size, rules, chosen)

            graph = self._record(run, lambda: self._whole.copy_(saved))
            self._graphs[size, rules, num_steps] = graph
        graph.replay()

    def _record(
        self, run: Callable[[], object], undo: Callable[[], object] = lambda: None
    ) -> torch.cuda.CUDAGraph:
        """Kernels are compiled when they first run, which a recording does not survive."""
        run()
        undo()
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph

    def _step(self, n: int, rules: Rules | None, chosen: Tensor) -> None:
        work = self._work.rows(n)
        ids, positions = self._whole[:n, ID], self._whole[:n, POSITION]
        scores = self._scores.rows(n)
        self._to_logits(self._through_blocks(work, ids, positions), scores)
        if rules is not None:
            sample(
                *scores,
                self._board,
                self._whole,
                self._floats,
                chosen,
                self.max_seq_len - 1,
                NO_ID,
                rules,
            )

    def _through_blocks(
        self, work: Buffers, ids: Tensor, positions: Tensor, sequences: Tensor | None = None
    ) -> matmul.Stream:
        matmul.embed(ids, self._table, work.stream, self._first_mix)
        extra = None if self._extra_table is None else (ids, self._extra_table)
        for layer, soon in zip(self._layers, self._soon, strict=True):
            layer.advance(work, positions, sequences, extra, soon)
        return work.stream

    def _to_logits(self, stream: matmul.Stream, scores: Scores) -> None:
        norm = (self._eps, self._factor)
        to_logits(stream, norm, self._output, scores, None, self._absent)


@torch.no_grad()
def _extra_table(model: TransformerLM, embeddings: Tensor) -> Tensor | None:
    """What blocks add to the values of each token; it does not depend on what else is there."""
    extra = model.extra(embeddings)
    return None if extra is None else extra.to(embeddings.dtype).contiguous()
