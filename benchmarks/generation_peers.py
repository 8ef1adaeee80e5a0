"""Rivals for generation, with our architecture and our weights.

Hugging Face's `generate`, and the fastest plain torch implementation, in the manner of gpt-fast: a
static cache and one compiled step. The models are those of `train_peers`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundup.model.config import ModelConfig
from train_peers import Attend, PlainLM

DYNAMIC = "huggingface, dynamic cache"
COMPILED = "torch, compiled static cache"

# (prompts (sequences, ids), number of new ids) -> new ids.
Write = Callable[[Tensor, int], Tensor]

# The options of mode "reduce-overhead", plus matrix-vector products as generated reductions, which
# fuse with adjacent operations.
_CUDA_OPTIONS = {"triton.cudagraphs": True, "coordinate_descent_tuning": True}
# Masks aligned to 16 bytes need no copy.
_MASK_STEP = 8


def open_writer(
    tool: str, model: nn.Module, config: ModelConfig, top_p: float | None, *, is_compiled: bool
) -> Write:
    """The tool's generate function; greedy without `top_p`."""
    if tool == COMPILED:
        assert isinstance(model, PlainLM)
        return _compiled_writer(model, config, top_p, is_compiled)
    return _huggingface_writer(model, top_p)


class StaticLM(nn.Module):
    """A model with cache, ids and position in buffers of fixed size: a step has no inputs or
    outputs, so that it is one CUDA graph, and the host does not wait."""

    ids: Tensor
    position: Tensor
    mask: Tensor

    def __init__(
        self, model: PlainLM, config: ModelConfig, shape: tuple[int, int], top_p: float | None
    ) -> None:
        super().__init__()
        self.model, self.top_p = model, top_p
        batch_size, length = shape
        # On the device and in the dtype of the weights.
        like = model.lm_head.weight.detach()
        cached = (batch_size, config.num_heads, length, config.d_head)
        self.caches = nn.ModuleList(_Cache(like.new_zeros(cached)) for _ in model.blocks)
        self.register_buffer("ids", like.new_zeros(shape, dtype=torch.long))
        # Position of the last known id.
        self.register_buffer("position", like.new_zeros(1, dtype=torch.long))
        # One row per position, added to the scores of all keys.
        self.register_buffer("mask", like.new_full((length, length), -torch.inf).triu(1))

    def prefill(self, prompts: Tensor) -> None:
        """Prefill all prompts and generate the first id of each."""
        num_tokens = prompts.shape[1]
        self.ids[:, :num_tokens] = prompts
        self(torch.arange(num_tokens, device=prompts.device))

    def step(self) -> None:
        """Generate the next id of every sequence."""
        self(self.position)

    def forward(self, positions: Tensor) -> None:
        """Process the ids at `positions` and generate the next one."""
        tables = self.model.cos[positions], self.model.sin[positions]
        mask = self.mask[positions]
        attends = [functools.partial(cache, positions, mask) for cache in self.caches]
        logits = _last_logits(self.model, self.ids[:, positions], tables, attends)
        after = positions[-1:] + 1
        self.ids.index_copy_(1, after, _next_ids(logits, self.top_p))
        self.position.copy_(after)


class _Cache(nn.Module):
    """Keys and values (batch, heads, length, d_head) of one block."""

    keys: Tensor
    values: Tensor

    def __init__(self, empty: Tensor) -> None:
        super().__init__()
        self.register_buffer("keys", empty)
        self.register_buffer("values", empty.clone())

    def forward(
        self, positions: Tensor, mask: Tensor, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        self.keys.index_copy_(2, positions, key)
        self.values.index_copy_(2, positions, value)
        return F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask)


def _compiled_writer(
    model: PlainLM, config: ModelConfig, top_p: float | None, is_compiled: bool
) -> Write:
    opened: dict[tuple[int, int], tuple[StaticLM, Callable[[], None]]] = {}
    is_cuda = model.lm_head.weight.is_cuda

    def open_shape(shape: tuple[int, int]) -> tuple[StaticLM, Callable[[], None]]:
        static = StaticLM(model, config, shape, top_p)
        options: Any = _CUDA_OPTIONS if is_cuda else None
        step = torch.compile(static.step, fullgraph=True, dynamic=False, options=options)
        return static, step if is_compiled else static.step

    @torch.no_grad()
    def write(prompts: Tensor, num_new_ids: int) -> Tensor:
        batch_size, num_tokens = prompts.shape
        length = -(-(num_tokens + num_new_ids) // _MASK_STEP) * _MASK_STEP
        shape = batch_size, length
        if shape not in opened:
            opened[shape] = open_shape(shape)
        static, step = opened[shape]
        static.prefill(prompts)
        for _ in range(num_new_ids - 1):
            step()
        if is_cuda:
            _check_graphs()
        return static.ids[:, num_tokens : num_tokens + num_new_ids].clone()

    return write


def _check_graphs() -> None:
    """Raise an error if torch silently skipped CUDA graphs, which would weaken the rival."""
    from torch._dynamo.utils import counters

    assert not counters["inductor"]["cudagraph_skips"], "torch skipped a CUDA graph"


def _last_logits(
    model: PlainLM, ids: Tensor, tables: tuple[Tensor, Tensor], attends: Sequence[Attend]
) -> Tensor:
    """The logits of the last ids, (batch, vocab_size); each block attends with its `attends`."""
    x = model.token_embedding(ids)
    for block, attend in zip(model.blocks, attends, strict=True):
        x = block(x, tables, attend)
    logits: Tensor = model.lm_head(model.final_norm(x[:, -1]))
    return logits


def _next_ids(logits: Tensor, top_p: float | None) -> Tensor:
    """One id per row, (batch, 1): the most likely, or sampled from the top-p set.

    Without synchronization: among exponential random variables with rates p, the smallest is that
    of an id with probability p.
    """
    if top_p is None:
        return logits.argmax(-1, keepdim=True)
    # Sorted in half precision, which takes half the time.
    ordered, order = logits.sort(dim=-1, descending=True)
    probabilities = ordered.float().softmax(dim=-1)
    reached_before = _running_sum(probabilities) - probabilities
    rates = probabilities.masked_fill(reached_before >= top_p, 0.0)
    shortest = (rates / -torch.rand_like(rates).log()).argmax(-1, keepdim=True)
    return order.gather(-1, shortest)


@torch.library.custom_op("groundup_benchmarks::running_sum", mutates_args=())
def _running_sum(x: Tensor) -> Tensor:
    """Cumulative sum along the last dimension, not compiled: torch 2.11 fails to compile one that
    is followed by an argmax."""
    return x.cumsum(dim=-1)


@_running_sum.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _huggingface_writer(model: Any, top_p: float | None) -> Write:
    model.config.use_cache = True
    # No end-of-text id, so that all tools generate the same number of tokens.
    model.generation_config.eos_token_id = None
    settings: dict[str, Any] = {"do_sample": False, "use_cache": True, "pad_token_id": 0}
    if top_p is not None:
        settings |= {"do_sample": True, "top_p": top_p, "top_k": 0, "temperature": 1.0}

    @torch.inference_mode()
    def write(prompts: Tensor, num_new_ids: int) -> Tensor:
        mask = torch.ones_like(prompts)
        whole: Tensor = model.generate(
            prompts, attention_mask=mask, max_new_tokens=num_new_ids, **settings
        )
        return whole[:, prompts.shape[1] :]

    return write
