"""Nested values (the state of an optimizer, say) as a JSON skeleton and tensors by name.

Plain JSON values are their own skeleton; what JSON lacks becomes an object whose one key begins
with "$". A safetensors file holds both. Nothing here can run code.
"""

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groundup.errors import CheckpointError
from groundup.files import parse_json

_TREE_KEY = "groundup.tree"


def pack(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """Take a value apart; `unpack` gives it back, types and order included.

    It may hold dicts with text and integer keys, lists, tuples, None, bools, integers, floats, text
    and tensors, which are named by their keys. NumPy's scalars come back as Python's.
    """
    tensors: dict[str, Tensor] = {}
    return _pack(value, (), tensors), tensors


def unpack(skeleton: Any, tensors: Mapping[str, Tensor], name: str) -> Any:
    """The value that `pack` took apart; errors call where it comes from `name`."""
    try:
        return _unpack(skeleton, tensors)
    except (LookupError, TypeError, ValueError, struct.error) as error:
        raise CheckpointError(f"{name} is damaged: {error!r} among its values") from error


def pack_tree(value: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a value, and all else as metadata for the header of a file."""
    skeleton, tensors = pack(value)
    return tensors, {_TREE_KEY: json.dumps(skeleton, allow_nan=False, separators=(",", ":"))}


def unpack_tree(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], name: str) -> Any:
    """The value that `pack_tree` took apart."""
    if _TREE_KEY not in metadata:
        raise CheckpointError(f"{name} holds tensors only: read it with load_weights")
    try:
        skeleton = parse_json(metadata[_TREE_KEY])
    except ValueError as error:
        raise CheckpointError(f"{name} is damaged: {error}") from error
    return unpack(skeleton, tensors, name)


def _pack(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = ".".join(path)
        while name in tensors:
            name += "~"
        tensors[name] = value.detach()
        return {"$tensor": name}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if type(value) in (list, tuple, torch.Size):
        items = [_pack(item, (*path, str(i)), tensors) for i, item in enumerate(value)]
        return items if type(value) is list else {"$tuple": items}
    if isinstance(value, dict) and all(type(key) in (str, int) for key in value):
        pairs = [[key, _pack(item, (*path, str(key)), tensors)] for key, item in value.items()]
        is_plain = all(type(key) is str and not key.startswith("$") for key in value)
        return dict(pairs) if is_plain else {"$items": pairs}
    raise CheckpointError(
        f"the {type(value).__name__} at {'.'.join(path) or 'the root'} cannot be stored: use "
        f"numbers, text, tensors, and lists, tuples or dicts (keys: text or integers) of them"
    )


def _unpack(skeleton: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(skeleton, list):
        return [_unpack(item, tensors) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    tag = next(iter(skeleton), "")
    if not tag.startswith("$"):
        return {key: _unpack(item, tensors) for key, item in skeleton.items()}
    ((_, content),) = skeleton.items()
    if tag == "$tensor":
        return tensors[content]
    if tag == "$float":
        return struct.unpack(">d", bytes.fromhex(content))[0]
    if tag == "$tuple":
        return tuple(_unpack(item, tensors) for item in content)
    if tag == "$items":
        return {key: _unpack(item, tensors) for key, item in content}
    raise ValueError(f"{tag!r:.60} is unknown")
