"""The kinds of layers, the shapes that fused kernels take, and the memory of the loss. No torch
here: layers run by these, settings name them and the planner counts them."""

from typing import Literal, TypeAlias

from groundup.config import named_classes

NormPlacement = Literal["pre", "post", "none"]
ATTENTIONS = named_classes("groundup.nn", __file__, "attention_name")
FEED_FORWARDS = named_classes("groundup.nn", __file__, "feed_forward_name")
AttentionKind: TypeAlias = Literal[tuple(ATTENTIONS)]  # type: ignore[valid-type]
FeedForwardKind: TypeAlias = Literal[tuple(FEED_FORWARDS)]  # type: ignore[valid-type]
# Feed-forward layers with the weights up and down alone; swiglu has gate, up and down.
UNGATED = ("silu", "gelu", "relu2")

# Logits are computed a chunk at a time. A chunk should stay in a CPU's cache; a GPU wants its
# matmuls large, within a small fraction of its memory. Below the fewest rows the matmul that
# gathers the weight's gradient becomes narrow and slow.
_CHUNK_BYTES = {"cpu": 4 << 20, "cuda": 2 << 30}
_OTHER_CHUNK_BYTES = 64 << 20
_CUDA_MEMORY_PER_CHUNK = 32
_MIN_CHUNK_ROWS = 512

# Of our own attention kernels on CUDA, by d_head. Forward launches one program per head, which
# underfills the GPU for long sequences: with 256 queries of 64 values cuDNN's is as fast. Backward
# ours takes 0.67 of its time then, 0.78 with 512 and, as it rotates by itself, 0.87 with 1,024
# (H200, 2026-11; narrower heads were measured with 256 alone).
_SHORT_SEQ = {16: range(2, 257), 32: range(2, 257), 64: range(2, 193)}


def logit_chunk_bytes(device: str, memory_bytes: int | None = None) -> int:
    """Bytes of logits that the loss holds at once; fewer on a CUDA device of little memory."""
    most = _CHUNK_BYTES.get(device, _OTHER_CHUNK_BYTES)
    if device != "cuda" or memory_bytes is None:
        return most
    return min(most, memory_bytes // _CUDA_MEMORY_PER_CHUNK)


def logit_chunk_rows(num_rows: int, row_bytes: int, chunk_bytes: int) -> int:
    """Rows of logits in a chunk, all chunks of one size: a short last one would waste a matmul.

    num_rows: tokens of the batch.   row_bytes: vocab_size times the bytes of a value.
    """
    most = max(_MIN_CHUNK_ROWS, chunk_bytes // row_bytes)
    return -(-num_rows // -(-num_rows // most))


def is_short_attention(seq: int, d_head: int) -> bool:
    """Whether our own CUDA kernel attends; longer sequences go through torch's attention."""
    return seq in _SHORT_SEQ.get(d_head, ())


def is_packed_attention(seq: int, d_head: int) -> bool:
    """Whether our CUDA kernels take packed projections; others go through torch's attention."""
    return d_head in _SHORT_SEQ and seq >= 2
