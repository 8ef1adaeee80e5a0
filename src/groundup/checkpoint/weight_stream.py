"""Tensors as the bytes of a safetensors file, made one tensor at a time.

The library reads these files for us; it does not write them, because its writer renames a file of
its own over the path, which loses our lock and the file's mode, and copies all tensors of a device
to the host at once. Where the bytes go is left to `weights` and `single_file`.
"""

import json
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from groundup.errors import CheckpointError

SHARED_KEY = "groundup.shared"
"""Metadata that says, as JSON, which name a tensor without bytes of its own stands for."""

_DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES = {name: dtype for dtype, name in _DTYPE_NAMES.items()}
_METADATA_NAME = "__metadata__"
_ALIGNMENT_BYTES = 8
# Small enough to be in the processor's cache still when the next consumer reads it.
_PIECE_BYTES = 1 << 20


class WeightStream:
    """Iterates over the bytes of a file that holds `tensors`; its size is known before.

        8 bytes    length of the header, little-endian
        header     JSON: name -> dtype, shape, [begin, end) within the data; spaces up to 8 bytes
        data       the tensors, widest dtype first so that each begins at a multiple of its width

    Names that stand for the very same memory, as tied weights do, share one copy.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        for name, tensor in tensors.items():
            _check(name, tensor)
        kept, shared = _separate_shared(tensors)
        notes = dict(metadata or {})
        if shared:
            notes[SHARED_KEY] = json.dumps(shared)
        self._ordered = sorted(kept.items(), key=lambda item: (-item[1].element_size(), item[0]))
        self._head = _encode_head(self._ordered, notes)
        self.num_bytes = len(self._head) + sum(tensor.nbytes for _, tensor in self._ordered)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self._head
        for _, tensor in self._ordered:
            data = _bytes_of(tensor)
            for begin in range(0, len(data), _PIECE_BYTES):
                yield data[begin : begin + _PIECE_BYTES]


def _check(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise CheckpointError(
            f"{name!r} is a {type(tensor).__name__}, but weights are tensors: leave it out"
        )
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = "has no values yet" if tensor.is_meta else "is sparse or quantized"
        raise CheckpointError(f"the tensor {name!r} {kind}: make it a dense one before saving")
    if tensor.dtype not in _DTYPE_NAMES:
        known = ", ".join(_short(dtype) for dtype in _DTYPE_NAMES)
        raise CheckpointError(
            f"the tensor {name!r} is {_short(tensor.dtype)}, which safetensors files cannot hold: "
            f"convert it to one of {known}"
        )
    if name == _METADATA_NAME or not _is_unicode(name):
        raise CheckpointError(f"a tensor cannot be named {name!r} in a safetensors file: rename it")


def _separate_shared(
    tensors: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors to write, and for each other name the one that it is the same tensor as."""
    kept: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    first_names: dict[object, str] = {}
    for name, tensor in tensors.items():
        place = (tensor.device, tensor.data_ptr(), tensor.is_conj(), tensor.is_neg())
        view = (tensor.dtype, tensor.shape, tensor.stride())
        first_name = first_names.setdefault((place, view) if tensor.numel() else name, name)
        if first_name == name:
            kept[name] = tensor
        else:
            shared[name] = first_name
    return kept, shared


def _encode_head(ordered: list[tuple[str, Tensor]], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, object] = {_METADATA_NAME: metadata} if metadata else {}
    begin = 0
    for name, tensor in ordered:
        end = begin + tensor.nbytes
        header[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: Tensor) -> memoryview:
    if tensor.numel() == 0:
        return memoryview(b"")
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
