"""A nested value as one safetensors file: its tensors, and its skeleton in the metadata."""

import json
import os
from typing import Any

from groundup.checkpoint.state_tree import pack, unpack
from groundup.checkpoint.weight_stream import WeightStream
from groundup.checkpoint.weights import read_weights
from groundup.errors import CheckpointError
from groundup.files import parse_json

VERSION = 1

_FORMAT_KEY = "groundup.format"
_VERSION_KEY = "groundup.version"
_TREE_KEY = "groundup.tree"


def tree_stream(value: Any, format_name: str) -> WeightStream:
    """The bytes of a file of the given format that holds `value`."""
    skeleton, tensors = pack(value)
    metadata = {
        _FORMAT_KEY: format_name,
        _VERSION_KEY: str(VERSION),
        _TREE_KEY: json.dumps(skeleton, allow_nan=False, separators=(",", ":")),
    }
    return WeightStream(tensors, metadata)


def load_tree(
    source: str | os.PathLike[str] | bytes, format_name: str, name: str = "the data"
) -> Any:
    """The value of a file, or of the bytes of one, which errors call `name`."""
    tensors, metadata = read_weights(source, name)
    if not isinstance(source, bytes):
        name = os.fspath(source)
    found = metadata.get(_FORMAT_KEY)
    if found != format_name:
        what = (
            f"says it is a {found}" if found else "holds tensors only, as load_weights reads them"
        )
        raise CheckpointError(f"{name} is no {format_name}: it {what}")
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
