"""Nested values (the state of an optimizer, say) as a JSON skeleton and tensors by name.

Plain JSON values are their own skeleton; what JSON lacks becomes an object whose one key begins
with "$". Together they make one safetensors file. Nothing here can run code.
"""

import json
import math
import os
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groundup.checkpoint.weights import WeightStream, read_weights
from groundup.errors import CheckpointError
from groundup.files import parse_json

VERSION = 1
_FORMAT_KEY = "groundup.format"
_VERSION_KEY = "groundup.version"
_TREE_KEY = "groundup.tree"
_MAX_DEPTH = 100
_MAX_INTEGER_BITS = 4096

_KeyPath = tuple[str, ...]


def pack(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """Take a value apart; `unpack` gives it back, types and order included.

    It may hold dicts with text and integer keys, lists, tuples, None, bools, integers, floats of
    any kind, text and tensors. NumPy's scalars come back as Python's.
    """
    tensors: dict[str, Tensor] = {}
    return _pack(value, (), tensors), tensors


def unpack(skeleton: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that `pack` took apart; a CheckpointError says where the skeleton is not one."""
    return _unpack(skeleton, (), tensors)


def tree_stream(value: Any, format_name: str) -> WeightStream:
    """The bytes of a file of the given format that holds `value`."""
    tensors, metadata = pack_tree(value, format_name)
    return WeightStream(tensors, metadata)


def pack_tree(value: Any, format_name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a value, and all else about it as metadata for the header of a file."""
    skeleton, tensors = pack(value)
    metadata = {
        _FORMAT_KEY: format_name,
        _VERSION_KEY: str(VERSION),
        _TREE_KEY: json.dumps(skeleton, allow_nan=False, separators=(",", ":")),
    }
    return tensors, metadata


def load_tree(
    source: str | os.PathLike[str] | bytes, format_name: str, name: str = "the data"
) -> Any:
    """The value of a file, or of the bytes of one, which errors call `name`."""
    tensors, metadata = read_weights(source, name)
    if not isinstance(source, bytes):
        name = os.fspath(source)
    return unpack_tree(tensors, metadata, format_name, name)


def unpack_tree(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], format_name: str, name: str
) -> Any:
    """The value that `pack_tree` took apart; errors call where it comes from `name`."""
    found = metadata.get(_FORMAT_KEY)
    if found != format_name:
        what = (
            f"says it is a {found}" if found else "holds tensors only, as load_weights reads them"
        )
        raise CheckpointError(f"{name} is not a {format_name}: it {what}")
    version = metadata.get(_VERSION_KEY)
    if version != str(VERSION):
        raise CheckpointError(
            f"{name} has format version {version}, this groundup knows {VERSION}: update groundup"
        )
    try:
        skeleton = parse_json(metadata.get(_TREE_KEY, ""))
    except ValueError as error:
        raise CheckpointError(f"{name} is damaged: {error} in its {_TREE_KEY}") from error
    try:
        return unpack(skeleton, tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{name}: {error}") from error


def _pack(value: Any, path: _KeyPath, tensors: dict[str, Tensor]) -> Any:
    if len(path) > _MAX_DEPTH:
        raise CheckpointError(
            f"the value at {_spell(path[:4])} is nested deeper than {_MAX_DEPTH} levels (does it "
            f"contain itself?): flatten it"
        )
    if isinstance(value, Tensor):
        name = _unused_name(path, tensors)
        tensors[name] = value.detach()
        return {"$tensor": name}
    if isinstance(value, np.generic):
        value = value.item()
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int and value.bit_length() <= _MAX_INTEGER_BITS:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if isinstance(value, dict):
        return _pack_dict(value, path, tensors)
    if kind is list:
        return _pack_items(value, path, tensors)
    if kind in (tuple, torch.Size):
        return {"$tuple": _pack_items(value, path, tensors)}
    raise CheckpointError(
        f"the value at {_spell(path)} is a {kind.__module__}.{kind.__qualname__}, which a "
        f"checkpoint cannot hold: store numbers, text, lists, tuples, dicts or tensors instead"
    )


def _pack_items(values: Iterable[Any], path: _KeyPath, tensors: dict[str, Tensor]) -> list[Any]:
    return [_pack(item, (*path, str(i)), tensors) for i, item in enumerate(values)]


def _pack_dict(value: dict[Any, Any], path: _KeyPath, tensors: dict[str, Tensor]) -> Any:
    for key in value:
        if type(key) not in (str, int):
            raise CheckpointError(
                f"the dict at {_spell(path)} has the key {key!r}: use text or integers as keys"
            )
    items = [(key, _pack(item, (*path, str(key)), tensors)) for key, item in value.items()]
    if all(type(key) is str and not key.startswith("$") for key in value):
        return dict(items)
    return {"$items": [[key, item] for key, item in items]}


def _unpack(skeleton: Any, path: _KeyPath, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(skeleton, list):
        return [_unpack(item, (*path, str(i)), tensors) for i, item in enumerate(skeleton)]
    if not isinstance(skeleton, dict):
        return skeleton
    tag = next(iter(skeleton), "")
    if not tag.startswith("$"):
        return {key: _unpack(item, (*path, key), tensors) for key, item in skeleton.items()}
    content: Any = skeleton[tag] if len(skeleton) == 1 else None
    try:
        if tag == "$tensor":
            return tensors[content]
        if tag == "$float":
            return struct.unpack(">d", bytes.fromhex(content))[0]
        if tag == "$tuple":
            return tuple(_unpack(list(content), path, tensors))
        if tag == "$items":
            return {key: _unpack(item, (*path, str(key)), tensors) for key, item in content}
    except (LookupError, TypeError, ValueError, struct.error) as error:
        raise CheckpointError(
            f"the checkpoint is damaged at {_spell(path)}: it has no {tag[1:]} {content!r:.60}"
        ) from error
    raise CheckpointError(
        f"the checkpoint has {tag!r:.60} at {_spell(path)}, which this groundup does not know: "
        f"it is damaged, or of a later version"
    )


def _unused_name(path: _KeyPath, tensors: Mapping[str, Tensor]) -> str:
    """The keys with dots between; marked where other keys, with dots inside, spell the same."""
    name = ".".join(path).encode("utf-8", "backslashreplace").decode("utf-8") or "value"
    while name in tensors or name == "__metadata__":
        name += "~"
    return name


def _spell(path: _KeyPath) -> str:
    return ".".join(path) or "its root"
