"""The fast CUDA decoder: a CUDA graph runs steps of all rows, model and sampling.

A graph has a fixed number of rows, so there is one per power of two, set of sampling rules and
number of steps; results of unused rows are ignored. As the device samples by itself, the next steps
are launched before the host reads the ids of the last ones.
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
from groundup.nn import KVCache, RMSNorm
from groundup.nn.kernels.cuda_decode import matmul
from groundup.nn.kernels.cuda_decode.block import DecodingBlock, weights_soon
from groundup.nn.kernels.cuda_decode.matmul import Buffers
from groundup.nn.kernels.cuda_decode.sampling import Rules, State, sample, to_logits

# Prompt tokens per prefill pass: enough to fill a GPU, within its memory.
_MAX_PREFILL_IDS = 4096
# Prefill passes of up to this many tokens are graphs too, one per power of two: for short prompts,
# launching the kernels takes longer than running them.
_MAX_RECORDED_IDS = 1024
# Steps per launch, if the weights are smaller than _SMALL_BYTES. Between two launches the device
# idles for up to a third of a small model's step. For a large model that is negligible, and several
# steps per launch would delay the first id.
_MAX_STEPS, _SMALL_BYTES = 8, 1 << 30
# With so few rows, stop ids are rare enough to launch several steps at once anyway; steps after a
# stop id are discarded.
_FEW_ROWS = 4
# Positions in the cache before longer texts need more. It grows by doubling.
_FIRST_POSITIONS = 256
# The number of logits per row is padded to a multiple of this, for vectorized loads.
_ALIGNMENT = 16


class CudaDecoder(Decoder):
    """A `Decoder` for pre-norm models in half precision.

    It copies the projections when it is created; later changes to the model's have no effect.
    """

    def __init__(
        self,
        model: TransformerLM,
        max_rows: int,
        num_allowed: int | None = None,
    ) -> None:
        first_positions = min(_FIRST_POSITIONS, model.config.context_length)
        super().__init__(model, max_rows, num_allowed, first_positions)
        config, weight = model.config, model.output_weight
        assert isinstance(model.final_norm, RMSNorm)
        self._eps = model.final_norm.eps
        gain = model.final_norm.weight.detach()
        # The gain is applied to the residual stream before the norm's scale; keep it from
        # overflowing.
        self._factor = 2.0 ** math.ceil(math.log2(max(1.0, float(gain.abs().max()))))
        gains: list[Tensor | None] = [None] * (config.num_layers - 1)
        gains.append(gain / self._factor)
        separator = model.document_separator
        self._separator = -1 if separator is None else separator
        self._layers = [
            DecodingBlock(block, gain_after)
            for block, gain_after in zip(model.blocks, gains, strict=True)
        ]
        self._use_cache(self.cache)
        table = model.token_embedding.weight.detach()
        self._table = table if config.input_scale == 1 else table * config.input_scale
        # Value embeddings only depend on the token, so they are precomputed for the vocabulary.
        with torch.no_grad():
            extra = model.embed_values(self._table)
        self._extra_table = None if extra is None else extra.to(self._table.dtype).contiguous()
        num_columns = min(config.vocab_size, -(-self.num_allowed // _ALIGNMENT) * _ALIGNMENT)
        self._output = weight.detach()[:num_columns]
        num_bytes = sum(part.nbytes for layer in self._layers for part in layer.weights)
        num_bytes += self._output.nbytes
        self._soon: list[list[Tensor | None]] = [[None] * 4] * config.num_layers
        if num_bytes > torch.cuda.get_device_properties(self.device).L2_cache_size:
            self._soon = weights_soon(self._layers, self._output)
        self.steps_at_once = _MAX_STEPS if num_bytes < _SMALL_BYTES else 1
        # Sampling reads all columns, padding included: stopping at an unaligned number would
        # prevent vectorized loads.
        self._padding_mask = None
        if num_columns > self.num_allowed:
            self._padding_mask = torch.arange(num_columns, device=weight.device) >= self.num_allowed
        with torch.inference_mode():
            self._integers = torch.zeros(6, max_rows, dtype=torch.int64, device=weight.device)
            # No limits, in unused rows too.
            floats = torch.tensor([[1.0], [1.0], [-math.inf], [1.0]], device=weight.device)
            self._floats = floats.repeat(1, max_rows)
            self._seen = torch.zeros(max_rows, num_columns, dtype=torch.int8, device=weight.device)
            self._state = State._make([*self._integers, *self._floats, self._seen])
            shape = (self.steps_at_once, max_rows)
            self._chosen = torch.zeros(shape, dtype=torch.int64, device=weight.device)
            self._work = Buffers.make(max_rows, self._layers[0].weights, num_columns)
        # Double buffer: the host reads one while the next steps fill the other.
        self._read_back = [torch.zeros(shape, dtype=torch.int64).pin_memory() for _ in range(2)]
        self._graphs: dict[tuple[int, Rules, int], torch.cuda.CUDAGraph] = {}
        self._prompts: dict[int, tuple[Tensor, Buffers, torch.cuda.CUDAGraph]] = {}
        self._rules = Rules()
        self._num_rows = 0
        # Launched steps: a function that reads their ids, and their number. Ids already read.
        self._ahead: tuple[Callable[[], list[list[int]]], int] | None = None
        self._ids: deque[list[int]] = deque()
        self._can_look_ahead = self._can_launch_many = False

    @torch.inference_mode()
    def prefill(self, texts: Sequence[tuple[int, Sequence[int]]]) -> None:
        lengths = np.array([len(text) for _, text in texts])
        self._reserve(lengths.max())
        ids = np.fromiter(chain.from_iterable(text for _, text in texts), np.int64, lengths.sum())
        places, begins = np.arange(len(ids)), np.repeat(lengths.cumsum() - lengths, lengths)
        is_first = (ids == self._separator) | (places == begins)
        starts = np.maximum.accumulate(np.where(is_first, places, 0))
        rows = np.repeat([row for row, _ in texts], lengths)
        parts = ids, places - begins, starts - begins, rows
        tokens = torch.from_numpy(np.stack(parts)).to(self.device)
        # In order, so that the cache has the beginning of a split text before its end is read.
        for part in torch.split(tokens, _MAX_PREFILL_IDS, dim=1):
            if part.shape[1] <= _MAX_RECORDED_IDS:
                self._replay_prompt(part)
            else:
                work = Buffers.make(part.shape[1], self._layers[0].weights)
                self._prefill(work, *part)

    @torch.inference_mode()
    def begin(self, rows: Sequence[Row]) -> None:
        # Discard steps launched before the rows changed: they only wrote keys and values that the
        # new steps overwrite.
        self._ahead = None
        self._ids.clear()
        self._num_rows = len(rows)
        self._reserve(max(len(row.ids) + row.request.max_tokens - row.num_new for row in rows))
        integers, floats = map(torch.from_numpy, row_state(rows, self._separator))
        self._integers[:, : len(rows)] = integers.pin_memory().to(self.device, non_blocking=True)
        self._floats[:, : len(rows)] = floats.pin_memory().to(self.device, non_blocking=True)
        # Each step leaves the embeddings of the next step's ids in the buffers.
        matmul.embed(self._state.ids, self._table, self._work)
        samplers = [row.request.sampler for row in rows]
        self._rules = Rules(
            any(sampler.top_k is not None for sampler in samplers),
            not any(sampler.top_k or sampler.top_p < 1 or sampler.min_p for sampler in samplers),
            any(sampler.needs_history for sampler in samplers),
        )
        for index, row in enumerate(rows):
            if row.request.sampler.needs_history:
                # A prompt may contain ids that are not allowed.
                ids = [id for id in row.ids if id < self._seen.shape[1]]
                self._seen[index] = 0
                self._seen[index, torch.tensor(ids, dtype=torch.int64, device=self.device)] = 1
        # If the caller needs a step's logits, the next step must not overwrite them yet.
        self._can_look_ahead = all(row.request.num_alternatives < 0 for row in rows)
        is_steady = len(rows) <= _FEW_ROWS or not any(row.request.stop_ids for row in rows)
        self._can_launch_many = self._can_look_ahead and is_steady

    def _reserve(self, num_positions: int) -> None:
        """Make room in the cache for texts of this length."""
        room, needed = self.cache.keys.shape[3], min(int(num_positions), self.context_length)
        if needed > room:
            needed = min(1 << (needed - 1).bit_length(), self.context_length)
            self._use_cache(self.cache.with_room(needed))
            # The graphs contain addresses of the old cache.
            self._graphs.clear()
            self._prompts.clear()

    def _use_cache(self, cache: KVCache) -> None:
        self.cache = cache
        for layer, keys, values in zip(self._layers, cache.keys, cache.values, strict=True):
            layer.use_cache(keys, values)

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
        """Launch steps; return a function that waits for their ids, and their number."""
        n, num_steps = self._num_rows, self.steps_at_once
        # Launch the last steps one by one: the ids of each are returned while the next one runs.
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
        """Prefill by a graph; `tokens` are ids, positions, document starts and rows."""
        n = tokens.shape[1]
        size = max(16, 1 << (n - 1).bit_length())
        recorded = self._prompts.get(size)
        if recorded is None:
            work = Buffers.make(size, self._layers[0].weights)
            inputs = torch.empty(4, size, dtype=torch.int64, device=self.device)
        else:
            inputs, work, graph = recorded
        inputs[:, :n] = tokens
        # The padding belongs to no row.
        inputs[:3, n:] = 0
        inputs[3, n:] = -1
        if recorded is None:
            graph = self._record(lambda: self._prefill(work, *inputs))
            self._prompts[size] = inputs, work, graph
        graph.replay()

    def _replay(self, n: int, rules: Rules, num_steps: int = 1) -> None:
        size = min(self.max_rows, 1 << (n - 1).bit_length())
        graph = self._graphs.get((size, rules, num_steps))
        if graph is None:
            # Undo what the warm-up run does to the rows' state.
            saved = self._integers.clone(), self._seen.clone()

            def run() -> None:
                for chosen in self._chosen[:num_steps]:
                    self._step(size, rules, chosen)

            def undo() -> None:
                self._integers.copy_(saved[0])
                self._seen.copy_(saved[1])
                matmul.embed(self._state.ids, self._table, self._work)

            graph = self._record(run, undo)
            self._graphs[size, rules, num_steps] = graph
        graph.replay()

    def _record(
        self, run: Callable[[], object], undo: Callable[[], object] = lambda: None
    ) -> torch.cuda.CUDAGraph:
        """Record a graph, after a warm-up run: kernels cannot be compiled during capture."""
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
        self._run_blocks(work, state.ids[:n], state.positions[:n], state.starts[:n])
        norm = (self._eps, self._factor)
        to_logits(work, norm, self._output, state, rules, self._padding_mask)
        numbers = self.context_length - 1, NO_ID, self._separator
        sample(work, state, self._table, chosen, *numbers, rules)

    def _prefill(self, work: Buffers, ids: Tensor, *places: Tensor) -> None:
        matmul.embed(ids, self._table, work)
        self._run_blocks(work, ids, *places)

    def _run_blocks(
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
    """Return the integers and floats of `State`: each row's state before its next step."""

    def start(ids: list[int]) -> int:
        is_known = separator >= 0 and separator in ids
        return len(ids) - 1 - ids[::-1].index(separator) if is_known else 0

    samplers = [row.request.sampler for row in rows]
    integers = np.array(
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
            # A value that rounds to 0 in float32 would select no id at all.
            [max(sampler.top_p, float(np.finfo(np.float32).tiny)) for sampler in samplers],
            [math.log(sampler.min_p) if sampler.min_p else -math.inf for sampler in samplers],
            [sampler.repetition_penalty for sampler in samplers],
        ],
        np.float32,
    )
    return integers, floats
