"""Types of the native core, native/python_*.cpp."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy.typing as npt
from typing_extensions import Buffer as SystemBuffer

# Arrays are buffers too, but before Python 3.12 their types do not say so.
BufferLike: TypeAlias = SystemBuffer | npt.NDArray[Any]

class Buffer(SystemBuffer):
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Encoder:
    def __new__(
        cls,
        tokens: Sequence[bytes | None],
        merges: Sequence[tuple[bytes, bytes]],
        special_tokens: Sequence[tuple[bytes, int]],
        splitter: Splitter,
        whole_words: bool,
        /,
    ) -> Encoder: ...
    @property
    def id_bytes(self) -> int: ...
    def encode(self, text: str | BufferLike, /) -> list[int]: ...
    def encode_array(self, text: str | BufferLike, /) -> Buffer: ...
    def encode_stream(self, data: BufferLike, /) -> tuple[list[int], int]: ...
    def encode_batch(
        self, texts: Sequence[str] | Sequence[bytes], num_threads: int, end_id: int, /
    ) -> tuple[Buffer, Buffer]: ...
    def encode_documents(
        self, data: BufferLike, bounds: BufferLike, num_threads: int, end_id: int, /
    ) -> tuple[Buffer, Buffer]: ...
    def decode(self, ids: Sequence[int] | BufferLike, /) -> str: ...
    def decode_bytes(self, ids: Sequence[int] | BufferLike, /) -> bytes: ...

class Splitter:
    def __new__(
        cls,
        stages: Sequence[str],
        behaviours: Sequence[str],
        scanner: str = "",
        vectors: str = "",
        /,
    ) -> Splitter: ...
    def split(self, text: str | BufferLike, /) -> Buffer: ...

class WordCounter:
    def __new__(
        cls,
        splitter: Splitter,
        special_tokens: Sequence[bytes],
        num_threads: int,
        longest_word: int = ...,
        /,
    ) -> WordCounter: ...
    def add_text(self, data: str | BufferLike, /) -> None: ...
    def add_words(self, words: Sequence[bytes], counts: Sequence[int], /) -> None: ...
    def find_cut(self, data: BufferLike, start: int, /) -> int: ...
    def find_last_cut(self, data: BufferLike, /) -> int: ...
    def items(self) -> dict[bytes, int]: ...
    def train(
        self, num_merges: int, words: Splitter | None = None, num_within: int = 0, /
    ) -> tuple[Buffer, int, int, int]: ...

def find_invalid_utf8(data: str | BufferLike, /) -> int: ...
def find_documents(data: str | BufferLike, separators: Sequence[bytes], /) -> Buffer: ...
def hash_documents(data: BufferLike, bounds: BufferLike, /) -> Buffer: ...
def vectors() -> tuple[str, list[str]]: ...
def recover_merges(tokens: Sequence[bytes], /) -> Buffer: ...
def class_of(code_point: int, /) -> int: ...
def measure_documents(
    data: BufferLike, bounds: BufferLike, num_words: int, num_threads: int, /
) -> Buffer: ...
def norm_rows(
    x: BufferLike,
    addend: BufferLike | None,
    gain: BufferLike,
    total: BufferLike | None,
    out: BufferLike,
    scale: BufferLike,
    num_rows: int,
    width: int,
    eps: float,
    num_threads: int,
    /,
) -> None: ...
def norm_gradient_rows(
    d_out: BufferLike,
    d_total: BufferLike | None,
    x: BufferLike,
    gain: BufferLike,
    scale: BufferLike,
    d_x: BufferLike,
    d_gain: BufferLike,
    num_rows: int,
    width: int,
    num_threads: int,
    /,
) -> None: ...
def gate_rows(
    packed: BufferLike, out: BufferLike, num_rows: int, width: int, num_threads: int, /
) -> None: ...
def gate_gradient_rows(
    packed: BufferLike,
    d_out: BufferLike,
    d_packed: BufferLike,
    num_rows: int,
    width: int,
    num_threads: int,
    /,
) -> None: ...
def attend(
    packed: BufferLike,
    cos: BufferLike | None,
    sin: BufferLike | None,
    gains: BufferLike | None,
    out: BufferLike,
    log_sums: BufferLike,
    starts: BufferLike | None,
    batch: int,
    seq: int,
    num_heads: int,
    d_head: int,
    eps: float,
    num_threads: int,
    /,
) -> None: ...
def attend_back(
    packed: BufferLike,
    cos: BufferLike | None,
    sin: BufferLike | None,
    gains: BufferLike | None,
    out: BufferLike,
    log_sums: BufferLike,
    starts: BufferLike | None,
    d_out: BufferLike,
    d_packed: BufferLike,
    d_gains: BufferLike | None,
    batch: int,
    seq: int,
    num_heads: int,
    d_head: int,
    eps: float,
    num_threads: int,
    /,
) -> None: ...
def orthogonalize(
    matrices: BufferLike,
    coefficients: BufferLike,
    out: BufferLike,
    count: int,
    rows: int,
    columns: int,
    num_steps: int,
    num_threads: int,
    /,
) -> None: ...
def loss_rows(
    logits: BufferLike,
    targets: BufferLike,
    losses: BufferLike,
    num_rows: int,
    width: int,
    z_loss: float,
    num_threads: int,
    /,
) -> None: ...
