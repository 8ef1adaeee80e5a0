"""What generation is measured against, with our architecture and our weights.

Hugging Face's `generate`, and the strongest that plain torch gives, in the manner of gpt-fast: a
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

DYNAMIC, STATIC = "huggingface, dynamic cache", "huggingface, static cache"
COMPILED = "torch, compiled static cache"

# Takes prompts (sequences, ids) and how many ids to generate; gives the new ids.
Write = Callable[[Tensor, int], Tensor]

# What the mode "reduce-overhead" is, and matrix times vector as generated reductions, which fuse
# with what stands around them.
_CUDA_OPTIONS = {"triton.cudagraphs": True, "coordinate_descent_tuning": True}
# Masks that begin at multiples of 16 bytes are taken as they are.
_MASK_STEP = 8


def open_writer(
    tool: str, model: nn.Module, config: ModelConfig, top_p: float | None, *, is_compiled: bool
) -> Write:
    """How the tool generates with its model; without `top_p` the likeliest id each time."""
    if tool == COMPILED:
        assert isinstance(model, PlainLM)
        return _compiled_writer(model, config, top_p, is_compiled)
    return _huggingface_writer(tool, model, top_p)


class StaticLM(nn.Module):
    """A model with its cache, its ids and its position in buffers, all of fixed size: a step takes
    nothing and gives nothing, so that it is one CUDA graph, and the host waits for none."""

    ids: Tensor
    position: Tensor
    mask: Tensor

    def __init__(
        self, model: PlainLM, config: ModelConfig, shape: tuple[int, int], top_p: float | None
    ) -> None:
        super().__init__()
        self.model, self.top_p = model, top_p
        batch_size, length = shape
        # Of the device and in the precision of the weights.
        like = model.lm_head.weight.detach()
        cached = (batch_size, config.num_heads, length, config.d_head)
        self.caches = nn.ModuleList(_Cache(like.new_zeros(cached)) for _ in model.blocks)
        self.register_buffer("ids", like.new_zeros(shape, dtype=torch.long))
        # Where the last known id stands.
        self.register_buffer("position", like.new_zeros(1, dtype=torch.long))
        # A row for each position, which is added to the scores of all keys.
        self.register_buffer("mask", like.new_full((length, length), -torch.inf).triu(1))

    def prefill(self, prompts: Tensor) -> None:
        """Read all prompts and write the first new id of each."""
        num_tokens = prompts.shape[1]
        self.ids[:, :num_tokens] = prompts
        self(torch.arange(num_tokens, device=prompts.device))

    def step(self) -> None:
        """Write the next id of every sequence."""
        self(self.position)

    def forward(self, positions: Tensor) -> None:
        """Read the ids at `positions` and write the one after them."""
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
    """A rival whose CUDA graphs torch silently left out would be a weak one."""
    from torch._dynamo.utils import counters

    assert not counters["inductor"]["cudagraph_skips"], "torch skipped a CUDA graph"


def _last_logits(
    model: PlainLM, ids: Tensor, tables: tuple[Tensor, Tensor], attends: Sequence[Attend]
) -> Tensor:
    """Of the last ids (batch, vocab_size); each block mixes by its `attends`."""
    x = model.token_embedding(ids)
    for block, attend in zip(model.blocks, attends, strict=True):
        x = block(x, tables, attend)
    logits: Tensor = model.lm_head(model.final_norm(x[:, -1]))
    return logits


def _next_ids(logits: Tensor, top_p: float | None) -> Tensor:
    """One id a row (batch, 1): the likeliest, or one of the smallest set that reaches `top_p`.

    Nothing waits for the device: of exponential waiting times at rates p, the shortest is that of
    an id with probability p.
    """
    if top_p is None:
        return logits.argmax(-1, keepdim=True)
    # Sorted in their own precision: half the digits are half the work.
    ordered, order = logits.sort(dim=-1, descending=True)
    probabilities = ordered.float().softmax(dim=-1)
    reached_before = _running_sum(probabilities) - probabilities
    rates = probabilities.masked_fill(reached_before >= top_p, 0.0)
    shortest = (rates / -torch.rand_like(rates).log()).argmax(-1, keepdim=True)
    return order.gather(-1, shortest)


@torch.library.custom_op("groundup_benchmarks::running_sum", mutates_args=())
def _running_sum(x: Tensor) -> Tensor:
    """Along the last dimension. Torch 2.11 fails to compile one that an argmax follows, so that
    its own kernel is called as it is."""
    return x.cumsum(dim=-1)


@_running_sum.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _huggingface_writer(tool: str, model: Any, top_p: float | None) -> Write:
    model.config.use_cache = True
    # No id ends a text here, so that all tools write equally many.
    model.generation_config.eos_token_id = None
    settings: dict[str, Any] = {"do_sample": False, "use_cache": True, "pad_token_id": 0}
    if top_p is not None:
        settings |= {"do_sample": True, "top_p": top_p, "top_k": 0, "temperature": 1.0}
    if tool == STATIC:
        settings["cache_implementation"] = "static"

    @torch.inference_mode()
    def write(prompts: Tensor, num_new_ids: int) -> Tensor:
        mask = torch.ones_like(prompts)
        whole: Tensor = model.generate(
            prompts, attention_mask=mask, max_new_tokens=num_new_ids, **settings
        )
        return whole[:, prompts.shape[1] :]

    return write
