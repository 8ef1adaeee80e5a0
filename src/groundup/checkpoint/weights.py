"""Weights in safetensors files: tensors by name. Loading them never runs code.

Files of several ranks, each with some rows of the tensors, are read as one.
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

from groundup.config import current_name
from groundup.errors import CheckpointError
from groundup.files import PathLike, atomic_path, parse_json

# JSON in the header: maps each further name of a tied tensor to the name that is stored.
_SHARED_KEY = "groundup.shared"
# JSON in the header, written by torch: where the rows of this file begin in the full tensors.
_OFFSETS_KEY = "DCP_SHARDING_INFO"


def save_weights(
    path: PathLike, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors to a file atomically, with `metadata` in its header.

    Tensors with the same memory, such as tied weights, are stored once.
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
        # safetensors replaces the file by one with private permissions.
        os.chmod(temporary, mode)


def load_weights(path: PathLike) -> dict[str, Tensor]:
    """Load the tensors of a file to the CPU; tied tensors are tied again."""
    return read_weights(path)[0]


def read_weights(*paths: PathLike) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and metadata of a file, or of several ranks' files with rows of the tensors."""
    parts: dict[str, dict[int, Tensor]] = {}
    metadata: dict[str, str] = {}
    for path in paths:
        with _open_file(path) as file:
            notes = file.metadata() or {}
            metadata |= notes
            offsets = parse_json(notes.get(_OFFSETS_KEY, "{}"))
            for name in file.keys():  # noqa: SIM118
                first, *_ = offsets.get(name, {}).get("saved_offsets") or [0]
                # Copy: safetensors maps the file, which may change before the tensor is used.
                parts.setdefault(current_name(name), {})[first] = file.get_tensor(name).clone()
            for alias, name in parse_json(notes.get(_SHARED_KEY, "{}")).items():
                parts[alias] = parts[name]
    whole = {}
    for name in list(parts):
        first, *others = [rows for _, rows in sorted(parts.pop(name).items())]
        whole[name] = torch.cat([first, *others]) if others else first
    return whole, metadata


def read_metadata(path: PathLike) -> dict[str, str]:
    """Read the metadata in a file's header."""
    with _open_file(path) as file:
        return dict(file.metadata() or {})


def _separate_shared(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors to store, each once, and the stored name of each tied one."""
    kept: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    views: dict[object, str] = {}
    storages = set()
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.is_meta or tensor.layout != torch.strided:
            raise CheckpointError(f"{name!r} is not a dense tensor with data; remove it")
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


@contextlib.contextmanager
def _open_file(path: PathLike) -> Iterator[Any]:
    """Open a file for reading; any error in the block becomes a CheckpointError with its path."""
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (
        *(safetensors.SafetensorError, OSError, LookupError),
        *(ValueError, TypeError, RuntimeError, AttributeError),
    ) as error:
        raise CheckpointError(
            f"{path} is missing, damaged, truncated or not a safetensors file ({error!s:.300}); "
            f"files of torch.save and pickle can run code and are never loaded"
        ) from error
