"""The fast decoder on CUDA: steps of all rows, model and sampling, are one recorded graph.

A graph has a fixed number of rows, so there is one for each power of two, each set of rules, and
one step or several; rows beyond those in use compute what nobody reads. A device that samples needs
nothing from the host between steps, so the next steps begin before the ids of the last are read.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from groundup.data.counter_random import stream_keys
from groundup.generation.decoder import Decoder, Row
from groundup.generation.request import NO_ID
from groundup.generation.sampling import STREAM
from groundup.model import TransformerLM
from groundup.nn import RMSNorm
from groundup.nn.kernels.cuda_decode import matmul
from groundup.nn.kernels.cuda_decode.block import DecodingBlock, weights_soon
from groundup.nn.kernels.cuda_decode.matmul import Buffers
from groundup.nn.kernels.cuda_decode.sampling import Rules, State, Workspace, sample

# Tokens of prompts that go through the model together: enough to fill a GPU, few enough to hold.
_MAX_PREFILL_IDS = 4096
# Up to so many are a recorded graph too, one for each power of two: launches cost the host more
# than such a prompt costs the device.
_MAX_RECORDED_IDS = 1024
# So many steps begin at once, if the weights are no more than so many bytes. A device stands still
# between two launches, as long as a third of a small model's step. Of a large one that is nothing,
# and who waits for the first id would wait for all.
_MAX_STEPS, _SMALL_BYTES = 8, 1 << 30
# Rows of which one so seldom ends by a stop id that several steps begin at once all the same; what
# has begun by then is dropped.
_FEW_ROWS = 4
# Rows of logits are multiples of so many long, where they can be: they are read several at a time.
_ALIGNMENT = 16


class CudaDecoder(Decoder):
    """A `Decoder` for pre-norm models in half precision.

    Its copies of the projections, made when it is built, do not follow the model's.
    """

    def __init__(
        self,
        model: TransformerLM,
        max_rows: int,
        num_allowed: int | None = None,
    ) -> None:
        super().__init__(model, max_rows, num_allowed)
        config, weight = model.config, model.output_weight
        assert isinstance(model.final_norm, RMSNorm)
        self._eps = model.final_norm.eps
        gain = model.final_norm.weight.detach()
        # The gain is in the stream before the norm's own factor is, and must not let it overflow.
        self._factor = 2.0 ** math.ceil(math.log2(max(1.0, float(gain.abs().max()))))
        gains: list[Tensor | None] = [None] * (config.num_layers - 1)
        gains.append(gain / self._factor)
        separator = model.document_separator
        self._separator = -1 if separator is None else separator
        self._layers = [
            DecodingBlock(block, keys, values, gain_after)
            for block, keys, values, gain_after in zip(
                model.blocks, self.cache.keys, self.cache.values, gains, strict=True
            )
        ]
        table = model.token_embedding.weight.detach()
        self._table = table if config.input_scale == 1 else table * config.input_scale
        # What blocks add to the values of each token does not depend on what else is there.
        with torch.no_grad():
            extra = model.extra(self._table)
        self._extra_table = None if extra is None else extra.to(self._table.dtype).contiguous()
        num_columns = min(config.vocab_size, -(-self.num_allowed // _ALIGNMENT) * _ALIGNMENT)
        self._output = weight.detach()[:num_columns]
        num_bytes = sum(part.nbytes for layer in self._layers for part in layer.weights)
        num_bytes += self._output.nbytes
        self._soon: list[list[Tensor | None]] = [[None] * 4] * config.num_layers
        if num_bytes > torch.cuda.get_device_properties(self.device).L2_cache_size:
            self._soon = weights_soon(self._layers, self._output)
        self.steps_at_once = _MAX_STEPS if num_bytes < _SMALL_BYTES else 1
        # Sampling sees all columns: a mask that ends between multiples would make it read one
        # number at a time.
        self._absent = None
        if num_columns > self.num_allowed:
            self._absent = torch.arange(num_columns, device=weight.device) >= self.num_allowed
        with torch.inference_mode():
            self._whole = torch.zeros(6, max_rows, dtype=torch.int64, device=weight.device)
            self._floats = torch.ones(4, max_rows, device=weight.device)
            self._seen = torch.zeros(max_rows, num_columns, dtype=torch.int8, device=weight.device)
            self._state = State._make([*self._whole, *self._floats, self._seen])
            shape = (self.steps_at_once, max_rows)
            self._chosen = torch.zeros(shape, dtype=torch.int64, device=weight.device)
            self._workspace = Workspace.make(max_rows, num_columns, weight.device)
            self._work = Buffers.make(max_rows, self._layers[0].weights, num_columns)
        # Two, so that one can be read while the next steps fill the other.
        self._read_back = [torch.zeros(shape, dtype=torch.int64).pin_memory() for _ in range(2)]
        self._graphs: dict[tuple[int, Rules, int], torch.cuda.CUDAGraph] = {}
        self._prompts: dict[int, tuple[Tensor, Buffers, torch.cuda.CUDAGraph]] = {}
        self._rules = Rules()
        self._num_rows = 0
        # Steps that have begun and how many, ids that were read and not given out yet.
        self._ahead: tuple[Callable[[], list[list[int]]], int] | None = None
        self._ids: deque[list[int]] = deque()
        self._can_look_ahead = self._can_launch_many = False

    @torch.inference_mode()
    def prefill(self, texts: Sequence[tuple[int, Sequence[int]]]) -> None:
        lengths = np.array([len(text) for _, text in texts])
        ids = np.fromiter(chain.from_iterable(text for _, text in texts), np.int64, lengths.sum())
        places, begins = np.arange(len(ids)), np.repeat(lengths.cumsum() - lengths, lengths)
        is_first = (ids == self._separator) | (places == begins)
        starts = np.maximum.accumulate(np.where(is_first, places, 0))
        rows = np.repeat([row for row, _ in texts], lengths)
        parts = ids, places - begins, starts - begins, rows
        tokens = torch.from_numpy(np.stack(parts)).to(self.device)
        # In order, so that the beginning of a text that is cut has been stored before its end.
        for part in torch.split(tokens, _MAX_PREFILL_IDS, dim=1):
            if part.shape[1] <= _MAX_RECORDED_IDS:
                self._replay_prompt(part)
            else:
                work = Buffers.make(part.shape[1], self._layers[0].weights)
                self._read(work, *part)

    @torch.inference_mode()
    def begin(self, rows: Sequence[Row]) -> None:
        # Steps that began before a row came or went are dropped: they only wrote keys and values
        # that the new ones write as well.
        self._ahead = None
        self._ids.clear()
        self._num_rows = len(rows)
        whole, floats = map(torch.from_numpy, row_state(rows, self._separator))
        self._whole[:, : len(rows)] = whole.pin_memory().to(self.device, non_blocking=True)
        self._floats[:, : len(rows)] = floats.pin_memory().to(self.device, non_blocking=True)
        # Each step leaves the embeddings of its ids for the next.
        matmul.embed(self._state.ids, self._table, self._work)
        samplers = [row.request.sampler for row in rows]
        self._rules = Rules(
            any(sampler.top_k is not None for sampler in samplers),
            any(sampler.top_p < 1 for sampler in samplers),
            any(sampler.needs_history for sampler in samplers),
        )
        for index, row in enumerate(rows):
            if row.request.sampler.needs_history:
                # A prompt may hold ids that are not allowed.
                ids = [id for id in row.ids if id < self._seen.shape[1]]
                self._seen[index] = 0
                self._seen[index, torch.tensor(ids, dtype=torch.int64, device=self.device)] = 1
        # The logits of a step that is being looked at must stay until then.
        self._can_look_ahead = all(row.request.num_alternatives < 0 for row in rows)
        is_steady = len(rows) <= _FEW_ROWS or not any(row.request.stop_ids for row in rows)
        self._can_launch_many = self._can_look_ahead and is_steady

    def step(self, num_quiet_steps: int) -> tuple[list[int], Float[Tensor, "n allowed"]]:
        if not self._ids:
            read, num_steps = self._ahead or self._launch(num_quiet_steps)
            num_left = num_quiet_steps - num_steps
            is_ahead = self._can_look_ahead and num_left > 0
            self._ahead = self._launch(num_left) if is_ahead else None
            self._ids.extend(read())
        return self._ids.popleft(), self._work.logits[: self._num_rows, : self.num_allowed]

    @torch.inference_mode()
    def _launch(self, max_steps: int) -> tuple[Callable[[], list[list[int]]], int]:
        """Begin some steps; what waits for the ids of each, and how many steps these are."""
        n, num_steps = self._num_rows, self.steps_at_once
        # The last ones begin singly: the ids of each are given out while the next is computed.
        if not self._can_launch_many or max_steps <= num_steps:
            num_steps = 1
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

        return read, num_steps

    def _replay_prompt(self, tokens: Tensor) -> None:
        """`tokens` are ids, positions, document starts and rows."""
        n = tokens.shape[1]
        size = max(16, 1 << (n - 1).bit_length())
        recorded = self._prompts.get(size)
        if recorded is None:
            work = Buffers.make(size, self._layers[0].weights)
            inputs = torch.empty(4, size, dtype=torch.int64, device=self.device)
        else:
            inputs, work, graph = recorded
        inputs[:, :n] = tokens
        # The others are nobody's.
        inputs[:3, n:] = 0
        inputs[3, n:] = -1
        if recorded is None:
            graph = self._record(lambda: self._read(work, *inputs))
            self._prompts[size] = inputs, work, graph
        graph.replay()

    def _replay(self, n: int, rules: Rules, num_steps: int = 1) -> None:
        size = min(self.max_rows, 1 << (n - 1).bit_length())
        graph = self._graphs.get((size, rules, num_steps))
        if graph is None:
            # What the first run does to the rows' state must not count.
            saved = self._whole.clone(), self._seen.clone()

            def run() -> None:
                for chosen in self._chosen[:num_steps]:
                    self._step(size, rules, chosen)

            def undo() -> None:
                self._whole.copy_(saved[0])
                self._seen.copy_(saved[1])
                matmul.embed(self._state.ids, self._table, self._work)

            graph = self._record(run, undo)
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
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            run()
        return graph

    def _step(self, n: int, rules: Rules, chosen: Tensor) -> None:
        state = self._state
        work = self._work.rows(n)
        self._through_blocks(work, state.ids[:n], state.positions[:n], state.starts[:n])
        penalty = (state.seen, state.penalty) if rules.penalty else None
        norm = (self._eps, self._factor)
        matmul.to_logits(work, norm, self._output, self._absent, penalty)
        numbers = self.context_length - 1, NO_ID, self._separator
        sample(work, state, self._workspace, self._table, chosen, *numbers, rules)

    def _read(self, work: Buffers, ids: Tensor, *places: Tensor) -> None:
        matmul.embed(ids, self._table, work)
        self._through_blocks(work, ids, *places)

    def _through_blocks(
        self,
        work: Buffers,
        ids: Tensor,
        positions: Tensor,
        starts: Tensor,
        sequences: Tensor | None = None,
    ) -> None:
        places = positions, starts if self._separator >= 0 else None, sequences
        for layer, soon in zip(self._layers, self._soon, strict=True):
            layer.advance(work, ids, *places, self._extra_table, soon)


def row_state(
    rows: Sequence[Row], separator: int = -1
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The integers and floats of `State`, what the next step of each row begins with."""

    def start(ids: list[int]) -> int:
        is_known = separator >= 0 and separator in ids
        return len(ids) - 1 - ids[::-1].index(separator) if is_known else 0

    samplers = [row.request.sampler for row in rows]
    whole = np.array(
        [
            [row.ids[-1] for row in rows],
            [len(row.ids) - 1 for row in rows],
            [start(row.ids) for row in rows],
            [row.num_new for row in rows],
            stream_keys([row.request.seed for row in rows], STREAM).view(np.int64),
            [sampler.top_k or 0 for sampler in samplers],
        ],
        np.int64,
    )
    floats = np.array(
        [
            [sampler.temperature for sampler in samplers],
            # What is 0 in float32 would need no id at all.
            [max(sampler.top_p, float(np.finfo(np.float32).tiny)) for sampler in samplers],
            [math.log(sampler.min_p) if sampler.min_p else -math.inf for sampler in samplers],
            [sampler.repetition_penalty for sampler in samplers],
        ],
        np.float32,
    )
    return whole, floats
