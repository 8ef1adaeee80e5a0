"""The record of a checkpoint in `state.json`, and checking the folder against it.

The weights are in one file, or in several files with some rows each, which readers need not
distinguish. The record includes a hash of itself to detect corruption. Nested values, such as an
optimizer's state, are stored as a JSON skeleton and tensors by name.
"""

import json
import math
import re
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import torch
from torch import Tensor

from groundup import __version__
from groundup.checkpoint.weights import read_metadata, read_weights
from groundup.config import with_current_names
from groundup.errors import CheckpointError
from groundup.files import (
    check_plain_file,
    hash_bytes,
    hash_file,
    parse_json,
    read_plain_file,
    write_text_atomic,
)
from groundup.nn.adapters import merge_adapters

FORMAT = "groundup-checkpoint"
VERSION = 1
SHARDED_VERSION = 3

STATE_NAME = "state.json"
MODEL_NAME = "model.safetensors"
OPTIMIZER_NAME = "optimizer.safetensors"
# Files of a single process, and of several ranks through torch.distributed.checkpoint.
_MODEL_FILE = re.compile(r"(model|shard-\d{5,}-model-00001-of-00002)\.safetensors")
_OPTIMIZER_FILE = re.compile(r"(optimizer|shard-\d{5,}-model-00002-of-00002)\.safetensors")


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)


class FileEntry(_Strict):
    """The expected size and hash of a file."""

    num_bytes: int
    hash: str

    @classmethod
    def of(cls, path: Path) -> "FileEntry":
        return cls(num_bytes=path.stat().st_size, hash=hash_file(path))


class Record(_Strict):
    """The contents of `state.json`, without its hash."""

    format: str = FORMAT
    version: int = VERSION
    groundup: str = __version__
    step: int
    metric: float | None
    files: dict[str, FileEntry] = {}
    state: dict[str, Any]
    """The skeleton of the caller's state; see `pack`."""
    shared: dict[str, str] = {}
    """For sharded weights: names of tied tensors, mapped to the name that is stored."""
    optimizer: dict[str, str] = {}
    """For sharded weights: the optimizer's state without its tensors; see `pack_tree`."""

    @property
    def weights_id(self) -> str:
        """The content id of the weights."""
        hashes = [self.files[name].hash for name in filter(_MODEL_FILE.fullmatch, self.files)]
        return hashes[0] if len(hashes) == 1 else hash_bytes("".join(sorted(hashes)).encode())


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint."""

    path: Path
    step: int
    metric: float | None
    """Such as the validation loss; the best checkpoint has the lowest."""
    weights_id: str
    state: dict[str, Any]
    """The caller's JSON values."""
    record: Record

    def model_state(self) -> dict[str, Tensor]:
        """Load the weights to the CPU, with adapters merged into them."""
        return merge_adapters(self.adapted_state())

    def adapted_state(self) -> dict[str, Tensor]:
        """Load the weights as trained: adapters, if any, are separate from the frozen weights."""
        weights, _ = read_weights(*self._files(_MODEL_FILE))
        return weights | {alias: weights[name] for alias, name in self.record.shared.items()}

    def optimizer_state(self) -> dict[str, Any]:
        """Load the `optimizer.state_dict()`, with its tensors on the CPU."""
        return self.optimizer_tree(read_weights(*self._files(_OPTIMIZER_FILE))[0])

    def optimizer_tree(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the optimizer's state with the given tensors in place of the stored ones."""
        file = next(iter(self._files(_OPTIMIZER_FILE)), None)
        notes = self.record.optimizer or (read_metadata(file) if file is not None else {})
        tree: dict[str, Any] = unpack_tree(tensors, notes, str(self.path / OPTIMIZER_NAME))
        return tree

    def _files(self, kind: re.Pattern[str]) -> list[Path]:
        return [self.path / name for name in sorted(filter(kind.fullmatch, self.record.files))]


def open_checkpoint(path: Path, step: int, *, weights_only: bool = False) -> Checkpoint:
    """Open a checkpoint after verifying every byte; `weights_only` omits the optimizer's state,
    which then cannot be read."""
    record = read_record(path, step)
    if weights_only:
        weights = {name: one for name, one in record.files.items() if _MODEL_FILE.fullmatch(name)}
        record = record.model_copy(update={"files": weights})
    check_files(path, record, contents=True)
    state = with_current_names(unpack(record.state, {}, str(path / STATE_NAME)))
    return Checkpoint(path, step, record.metric, record.weights_id, state, record)


def new_record(step: int, state: Mapping[str, Any], metric: float | None, **more: Any) -> Record:
    """Create a record, still without its files."""
    metric = float(metric) if metric is not None and math.isfinite(metric) else None
    skeleton, tensors = pack(dict(state))
    if tensors:
        raise CheckpointError(f"state.json cannot contain tensors such as {', '.join(tensors)}")
    return Record(step=step, metric=metric, state=skeleton, **more)


def write_record(path: Path, record: Record, files: Mapping[str, FileEntry]) -> None:
    """Write `state.json` with the entries of the folder's files."""
    body = record.model_copy(update={"files": dict(files)}).model_dump()
    text = json.dumps({**body, "hash": _hash(body)}, indent=2, allow_nan=False)
    write_text_atomic(path / STATE_NAME, text + "\n")


def read_record(path: Path, step: int) -> Record:
    """Read `state.json` of the folder that is named after `step`."""
    file = path / STATE_NAME
    try:
        value = parse_json(read_plain_file(file))
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise ValueError(f"it is not a {FORMAT}")
        if (version := value.get("version")) not in (VERSION, SHARDED_VERSION):
            raise ValueError(f"it has format version {version!r:.60}")
        if value.pop("hash", None) != _hash(value):
            raise ValueError("its content does not match its hash")
        record = Record.model_validate(value)
        if record.step != step:
            raise ValueError(f"it has step {record.step}, but its folder has step {step}")
        kinds = [[*filter(one.fullmatch, record.files)] for one in (_MODEL_FILE, _OPTIMIZER_FILE)]
        if not all(kinds) or sum(map(len, kinds)) != len(record.files):
            raise ValueError(f"it lists the wrong files: {', '.join(record.files)}")
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(
            f"{file} is damaged or from another version of groundup: {error}"
        ) from None
    return record


def check_files(path: Path, record: Record, *, contents: bool) -> None:
    """Raise CheckpointError if a file's size, or with `contents` its hash, is not as recorded."""

    def check(name: str) -> None:
        expected = record.files[name]
        try:
            check_plain_file(path / name)
            num_bytes = (path / name).stat().st_size
            found = FileEntry.of(path / name) if contents else expected
        except OSError as error:
            raise CheckpointError(f"{path / name} cannot be read: {error.strerror}") from error
        if num_bytes != expected.num_bytes or found != expected:
            raise CheckpointError(
                f"{path / name} is damaged: it has {num_bytes} bytes ({found.hash}), but "
                f"{STATE_NAME} has {expected.num_bytes} ({expected.hash})"
            )

    # Hashing takes most of the time to load a checkpoint.
    with ThreadPoolExecutor() as pool:
        list(pool.map(check, record.files))


def _hash(body: dict[str, Any]) -> str:
    """Hash the values, independent of white space and key order."""
    return hash_bytes(json.dumps(body, sort_keys=True, separators=(",", ":")).encode("ascii"))


_TREE_KEY = "groundup.tree"


def pack(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """Split a nested value into a JSON skeleton and tensors named by their keys.

    `unpack` restores it with the same types and order, except that NumPy scalars become Python's.
    Allowed: tensors, None, bool, int, float, str, and lists, tuples and dicts (keys: str or int).
    """
    tensors: dict[str, Tensor] = {}
    return _pack(value, (), tensors), tensors


def unpack(skeleton: Any, tensors: Mapping[str, Tensor], name: str) -> Any:
    """Restore the value of `pack`. `name` is its origin, for error messages."""
    try:
        return _unpack(skeleton, tensors)
    except (LookupError, TypeError, ValueError, struct.error) as error:
        raise CheckpointError(f"{name} is damaged: it has an invalid value: {error!r}") from error


def pack_tree(value: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Split a value into tensors and, for the rest, metadata for the header of a file."""
    skeleton, tensors = pack(value)
    return tensors, {_TREE_KEY: json.dumps(skeleton, allow_nan=False, separators=(",", ":"))}


def unpack_tree(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], name: str) -> Any:
    """Restore the value of `pack_tree`."""
    if _TREE_KEY not in metadata:
        raise CheckpointError(f"{name} contains only tensors; read it with load_weights")
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
        f"the {type(value).__name__} at {'.'.join(path) or 'the root'} cannot be stored; use "
        f"numbers, strings, tensors, and lists, tuples or dicts (keys: str or int) of them"
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
