"""Weights on disk: tensors by name, in safetensors files that are whole or absent.

Nothing that is loaded here can run code. The library reads these files for us; it does not write
them, because its writer renames a file of its own over the path, which loses our lock and the
file's mode, and copies all tensors of a device to the host at once. Ours makes one at a time.
"""

import errno
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from groundup.errors import CheckpointError
from groundup.files import atomic_path

PathLike = str | os.PathLike[str]

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
"""By the names that safetensors files have for them."""
_METADATA_NAME = "__metadata__"
_ALIGNMENT_BYTES = 8
# Small enough to be in the processor's cache still when the next consumer reads it.
_PIECE_BYTES = 1 << 20

# The first eight bytes of a safetensors file are a length, which may begin as pickles do.
_KINDS_BY_FIRST_BYTES = {
    re.compile(rb"PK\x03\x04"): "a zip archive, as torch.save makes them; loading one can run code",
    re.compile(rb"\x80[\x02\x03][^\0]|\x80[\x04\x05]\x95"): "a pickle; loading one can run code",
    re.compile(rb"GGUF"): "a GGUF file",
}


def save_weights(
    path: PathLike, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> str:
    """Write tensors of any device, stride and sharing; return the file's content id.

    path: of the safetensors file, written at once and whole.   tensors: by name.
    metadata: texts that stand in the file's header beside the shapes.
    """
    return save_stream(path, WeightStream(tensors, metadata))


def load_weights(source: PathLike | bytes, name: str = "the data") -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU.

    Names that shared one tensor when it was written share one again.

    source: the path, or the bytes of such a file, which errors call `name`.
    """
    return read_weights(source, name)[0]


def read_weights(
    source: PathLike | bytes, name: str = "the data"
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata."""
    if isinstance(source, bytes):
        first_bytes = source[:8]
    else:
        name = os.fspath(source)
        first_bytes = _read_first_bytes(source)
    try:
        tensors, metadata = _parse(source)
    except (
        safetensors.SafetensorError,
        OSError,
        EOFError,
        LookupError,
        ValueError,
        RuntimeError,
    ) as error:
        raise CheckpointError(_explain(name, first_bytes, error)) from error
    shared = _shared(metadata, tensors, name)
    metadata.pop(SHARED_KEY, None)
    return tensors | {alias: tensors[kept] for alias, kept in shared.items()}, metadata


def read_shapes(path: PathLike) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of a file, from its header alone."""
    first_bytes = _read_first_bytes(path)
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            names = file.keys()
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
            metadata = dict(file.metadata() or {})
    except (safetensors.SafetensorError, OSError, LookupError, ValueError, RuntimeError) as error:
        raise CheckpointError(_explain(os.fspath(path), first_bytes, error)) from error
    return shapes | {alias: shapes[kept] for alias, kept in _shared(metadata, shapes, path).items()}


def save_stream(path: PathLike, stream: "WeightStream") -> str:
    """Write a stream to `path`, or leave `path` as it was; return the file's content id."""
    digest = hashlib.sha256()
    with atomic_path(path) as temporary:
        with open(temporary, "wb") as file:
            for piece in stream:
                digest.update(piece)
                file.write(piece)
        if temporary.is_file() and temporary.stat().st_size != stream.num_bytes:
            raise OSError(
                errno.EIO,
                f"the file has not the {stream.num_bytes} bytes that were written",
                str(path),
            )
    return f"sha256:{digest.hexdigest()}"


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


def _parse(source: PathLike | bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    if isinstance(source, bytes):
        tensors = safetensors.torch.load(source)
        header_end = 8 + int.from_bytes(source[:8], "little")
        return tensors, dict(json.loads(source[8:header_end]).get("__metadata__") or {})
    with safetensors.safe_open(source, framework="pt", device="cpu") as checked:
        names, metadata = checked.keys(), dict(checked.metadata() or {})
    # The library has checked the header. What it returns is a mapping of the file, and looking at
    # one that shrinks meanwhile is a bus error, so the tensors are read.
    with open(source, "rb", buffering=0) as file:
        begin = 8 + int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(begin - 8))
        return {name: _read_tensor(file, begin, header[name]) for name in names}, metadata


def _read_tensor(file: io.FileIO, begin: int, entry: dict[str, Any]) -> Tensor:
    tensor = torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]])
    data = tensor.reshape(-1).view(torch.uint8).numpy().data
    file.seek(begin + entry["data_offsets"][0])
    while data:
        count = file.readinto(data)
        if not count:
            raise EOFError("it became shorter while it was being read")
        data = data[count:]
    return tensor


def _shared(
    metadata: Mapping[str, str], kept: Mapping[str, object], path: PathLike
) -> dict[str, str]:
    """Which names share the tensor of another, that the file holds."""
    try:
        shared = json.loads(metadata.get(SHARED_KEY, "{}"))
        if isinstance(shared, dict) and all(name in kept for name in shared.values()):
            return shared
    except (ValueError, TypeError, RecursionError):
        pass
    raise CheckpointError(f"{os.fspath(path)} is damaged: {SHARED_KEY} in its header is wrong")


def _read_first_bytes(path: PathLike) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(8)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist: check the path") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _explain(name: str, first_bytes: bytes, error: Exception) -> str:
    if not first_bytes:
        return f"{name} is empty: it is not a safetensors file"
    for pattern, kind in _KINDS_BY_FIRST_BYTES.items():
        if pattern.match(first_bytes):
            return f"{name} is {kind}: only safetensors files are loaded here"
    return (
        f"{name} is not a safetensors file, or it is damaged or cut short ({error}): take another "
        f"copy"
    )


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


def _separate_shared(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors to write, and for each other name the one that it is the same tensor as."""
    kept: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    first_names: dict[object, str] = {}
    for name, tensor in tensors.items():
        memory = (tensor.device, tensor.data_ptr(), tensor.is_conj(), tensor.is_neg())
        view = (tensor.dtype, tensor.shape, tensor.stride())
        first_name = first_names.setdefault((memory, view) if tensor.numel() else name, name)
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
