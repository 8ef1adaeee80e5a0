"""Weights on disk: tensors by name, in safetensors files that are whole or absent.

Nothing that is loaded here can run code. What the tensors belong to is left to others.
"""

import errno
import hashlib
import io
import json
import os
import re
from collections.abc import Mapping
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from groundup.checkpoint.weight_stream import DTYPES, SHARED_KEY, WeightStream
from groundup.errors import CheckpointError
from groundup.files import atomic_path

PathLike = str | os.PathLike[str]

# The first eight bytes of a safetensors file are a length, which may begin as pickles do.
_KINDS_BY_FIRST_BYTES = {
    re.compile(rb"PK\x03\x04"): "a zip archive, as torch.save makes them; loading one can run code",
    re.compile(rb"\x80[\x02\x03][^\0]|\x80[\x04\x05]\x95"): "a pickle; loading one can run code",
    re.compile(rb"GGUF"): "a GGUF file",
}


def save_weights(
    path: PathLike, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> str:
    """Write tensors of any device, stride and sharing; return the file's content id."""
    return save_stream(path, WeightStream(tensors, metadata))


def load_weights(source: PathLike | bytes, name: str = "the data") -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of the bytes of one (called `name` in errors), on
    the CPU. Names that shared one tensor when it was written share one again."""
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


def save_stream(path: PathLike, stream: WeightStream) -> str:
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
        return f"{name} is empty: it is no safetensors file"
    for pattern, kind in _KINDS_BY_FIRST_BYTES.items():
        if pattern.match(first_bytes):
            return f"{name} is {kind}: only safetensors files are loaded here"
    return (
        f"{name} is no safetensors file, or it is damaged or cut short ({error}): take another copy"
    )
