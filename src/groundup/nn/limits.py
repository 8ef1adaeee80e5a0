"""Registered layer classes, shapes supported by fused kernels, and memory limits of the loss. No
torch here: settings and the planner import this."""

from typing import Literal, TypeAlias

from groundup.config import named_classes

NormPlacement = Literal["pre", "post", "none"]
ATTENTIONS = named_classes("groundup.nn", __file__, "attention_name")
FEED_FORWARDS = named_classes("groundup.nn", __file__, "feed_forward_name")
AttentionKind: TypeAlias = Literal[tuple(ATTENTIONS)]  # type: ignore[valid-type]
FeedForwardKind: TypeAlias = Literal[tuple(FEED_FORWARDS)]  # type: ignore[valid-type]
# Feed-forward layers with two matrices, up and down; swiglu has gate, up and down.
UNGATED = ("silu", "gelu", "relu2")

# Logits are computed in chunks. A chunk should fit in a CPU's cache; a GPU needs large matmuls, in
# a small fraction of its memory. With fewer rows than the minimum, the matmul of the weight
# gradient becomes narrow and slow.
_CHUNK_BYTES = {"cpu": 4 << 20, "cuda": 2 << 30}
_OTHER_CHUNK_BYTES = 64 << 20
_CUDA_MEMORY_PER_CHUNK = 32
_MIN_CHUNK_ROWS = 512

# Sequence lengths for our own CUDA forward kernel, by d_head. It launches one program per head,
# which underfills the GPU for long sequences: with 256 queries and d_head 64, cuDNN is as fast. Our
# backward kernel takes 0.67 of cuDNN's time then, 0.78 with 512 queries and, including RoPE, 0.87
# with 1,024 (H200, 2026-11; narrower heads were only measured with 256).
_SHORT_SEQ = {16: range(2, 257), 32: range(2, 257), 64: range(2, 193)}


def logit_chunk_bytes(device: str, memory_bytes: int | None = None) -> int:
    """Bytes of logits that the loss holds at once; less on CUDA devices with little memory."""
    chunk_bytes = _CHUNK_BYTES.get(device, _OTHER_CHUNK_BYTES)
    if device != "cuda" or memory_bytes is None:
        return chunk_bytes
    return min(chunk_bytes, memory_bytes // _CUDA_MEMORY_PER_CHUNK)


def logit_chunk_rows(num_rows: int, row_bytes: int, chunk_bytes: int) -> int:
    """Rows of logits per chunk. Chunks have equal sizes: a short last one would waste a matmul.

    num_rows: tokens in the batch.   row_bytes: vocab_size times the bytes of a value.
    """
    max_rows = max(_MIN_CHUNK_ROWS, chunk_bytes // row_bytes)
    return -(-num_rows // -(-num_rows // max_rows))


def is_short_attention(seq: int, d_head: int) -> bool:
    """Whether the forward pass uses our own CUDA kernel; longer sequences use torch's attention."""
    return seq in _SHORT_SEQ.get(d_head, ())


def is_packed_attention(seq: int, d_head: int) -> bool:
    """Whether our CUDA kernels support these packed projections; others use torch's attention."""
    return d_head in _SHORT_SEQ and seq >= 2
