"""Weights on disk: tensors by name, in safetensors files. Loading them never runs code.

Several files may hold parts of the tensors, as ranks write them; they are read as one.
"""

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from groundup.errors import CheckpointError
from groundup.files import atomic_path, hash_file, parse_json

PathLike = str | os.PathLike[str]

# JSON in a header: for a name without a tensor of its own, the name whose tensor it shares.
_SHARED_KEY = "groundup.shared"
# JSON in a header, as torch writes it: where the parts of tensors begin.
_OFFSETS_KEY = "DCP_SHARDING_INFO"


def save_weights(
    path: PathLike, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> str:
    """Write a file at once and whole; return its content id.

    Names that stand for the very same memory, as tied weights do, share one copy. `metadata` goes
    into the file's header.
    """
    kept, shared = _separate_shared(tensors)
    notes = {_SHARED_KEY: json.dumps(shared)} if shared else {}
    with atomic_path(path) as temporary:
        if not temporary.is_file():
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        mode = stat.S_IMODE(temporary.stat().st_mode)
        try:
            safetensors.torch.save_file(kept, temporary, {**(metadata or {}), **notes} or None)
        except (safetensors.SafetensorError, ValueError, LookupError, TypeError) as error:
            if code := re.search(r"os error (\d+)", str(error)):
                number = int(code[1])
                raise OSError(number, os.strerror(number), os.fspath(path)) from error
            raise CheckpointError(f"{os.fspath(path)} cannot be written: {error}") from error
        # The library renames a private file of its own over the path.
        os.chmod(temporary, mode)
        return hash_file(temporary)


def load_weights(*paths: PathLike) -> dict[str, Tensor]:
    """The tensors of a file, or of files that hold parts of them, on the CPU.

    Names that shared one tensor when it was written share one again.
    """
    return read_weights(*paths)[0]


def read_weights(*paths: PathLike) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata."""
    shapes = read_shapes(*paths)
    whole: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    for path in paths:
        with _opened(path) as file:
            metadata |= file.metadata() or {}
            for name, offsets in _offsets(file).items():
                # Copied: the library maps the file, which may change before the tensor is used.
                part = file.get_tensor(name)
                if name not in whole:
                    whole[name] = torch.empty(shapes[name], dtype=part.dtype)
                places = zip(offsets, part.shape, strict=True)
                whole[name][tuple(slice(begin, begin + n) for begin, n in places)] = part
            for alias, name in _shared(file.metadata()).items():
                whole[alias] = whole[name]
    return whole, metadata


def read_shapes(*paths: PathLike) -> dict[str, tuple[int, ...]]:
    """The shapes of whole tensors, from the files' headers alone."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in paths:
        with _opened(path) as file:
            for name, offsets in _offsets(file).items():
                sizes = file.get_slice(name).get_shape()
                ends = [begin + n for begin, n in zip(offsets, sizes, strict=True)]
                known = shapes.get(name, (0,) * len(ends))
                shapes[name] = tuple(map(max, known, ends))
            for alias, name in _shared(file.metadata()).items():
                shapes[alias] = shapes[name]
    return shapes


def read_metadata(path: PathLike) -> dict[str, str]:
    """The texts in a file's header."""
    with _opened(path) as file:
        return dict(file.metadata() or {})


def _separate_shared(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors to write, each stored once, and for each tied name the one it shares."""
    kept: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    views: dict[object, str] = {}
    storages = set()
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.is_meta or tensor.layout != torch.strided:
            raise CheckpointError(f"{name!r} is no dense tensor with values: leave it out")
        view = tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
        first = views.setdefault(view if tensor.numel() else name, name)
        if first != name:
            shared[name] = first
            continue
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        storage = plain.untyped_storage()
        is_part = storage.nbytes() != plain.nbytes or storage.data_ptr() in storages
        kept[name] = plain.clone() if is_part else plain
        storages.add(storage.data_ptr())
    return kept, shared


def _shared(metadata: Mapping[str, str] | None) -> dict[str, str]:
    return {**parse_json((metadata or {}).get(_SHARED_KEY, "{}"))}


def _offsets(file: Any) -> dict[str, list[int]]:
    """Where in the whole tensors the tensors of a file begin."""
    known = parse_json((file.metadata() or {}).get(_OFFSETS_KEY, "{}"))
    sizes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    return {
        name: known.get(name, {}).get("saved_offsets", [0] * len(shape))
        for name, shape in sizes.items()
    }


@contextlib.contextmanager
def _opened(path: PathLike) -> Iterator[Any]:
    """A file to read; any error in the block is a CheckpointError that names it."""
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (
        *(safetensors.SafetensorError, OSError, LookupError),
        *(ValueError, TypeError, RuntimeError, AttributeError),
    ) as error:
        raise CheckpointError(
            f"{path} is missing, damaged, cut short or no safetensors file ({error}); files of "
            f"torch.save and pickle can run code and are never loaded"
        ) from error
