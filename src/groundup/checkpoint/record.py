"""What `state.json` says about a checkpoint, and whether the folder is what it says.

A checkpoint has one file with all weights, or several with some rows each (`shard_files`); who
reads it need not know.

The record carries a hash of itself, so that a flipped digit in it is seen as well.
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import pydantic
import torch
from torch import Tensor

from groundup import __version__
from groundup.checkpoint.shard_files import StoredTensors, find_tensors
from groundup.checkpoint.state_tree import unpack, unpack_tree
from groundup.errors import CheckpointError
from groundup.files import hash_bytes, hash_file, parse_json, write_text_atomic
from groundup.nn.adapters import merge_adapters, without_adapters

FORMAT = "groundup-checkpoint"
VERSION = 1
SHARDED_VERSION = 2
OPTIMIZER_FORMAT = "groundup optimizer state"

STATE_NAME = "state.json"
MODEL_NAME = "model.safetensors"
OPTIMIZER_NAME = "optimizer.safetensors"
_SHARD_NAME = re.compile(r"(?P<kind>model|optimizer)_\d{5,}\.safetensors", re.ASCII)
_TORCH_NAME = ".metadata"


class FileEntry(pydantic.BaseModel):
    """What a file of the folder must be."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    num_bytes: int
    hash: str


class Record(pydantic.BaseModel):
    """The whole of `state.json` but its own hash."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    format: str = FORMAT
    version: int = VERSION
    groundup: str = __version__
    step: int
    metric: float | None
    files: dict[str, FileEntry]
    state: dict[str, Any]
    """The skeleton of what the caller gave; see `state_tree`."""

    @property
    def weights_id(self) -> str:
        """The content id of the weights."""
        hashes = [self.files[name].hash for name in sorted(self.files) if name.startswith("model")]
        return hashes[0] if len(hashes) == 1 else hash_bytes("".join(hashes).encode())


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were found to be as they were written."""

    step: int
    path: Path
    metric: float | None
    """What the best checkpoint has the least of, say the validation loss."""
    state: dict[str, Any]
    files: tuple[str, ...]
    """The names of what it is made of."""
    weights_id: str
    """The content id of the weights."""

    @property
    def is_sharded(self) -> bool:
        return MODEL_NAME not in self.files

    def model_state(self) -> dict[str, Tensor]:
        """The weights, on the CPU, adapters merged into them."""
        return merge_adapters(self.adapted_state())

    def adapted_state(self) -> dict[str, Tensor]:
        """The weights as they were trained: adapters, if there are any, beside frozen ones."""
        return self.stored("model").read()

    def model_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the weights, of which none is read."""
        return without_adapters(self.stored("model").shapes())

    def optimizer_state(self) -> dict[str, Any]:
        """What `optimizer.state_dict()` gave, with its tensors on the CPU."""
        stored = self.stored("optimizer")
        return self._optimizer_tree(stored.read(), stored)

    def optimizer_outline(self) -> dict[str, Any]:
        """The same with tensors that have shapes and no values, of which none is read."""
        stored = self.stored("optimizer")
        empty = {
            name: torch.empty(one.shape, dtype=one.dtype, device="meta")
            for name, one in stored.tensors.items()
        }
        aliases = {alias: empty[name] for alias, name in stored.tied.items()}
        return self._optimizer_tree(empty | aliases, stored)

    def stored(self, kind: Literal["model", "optimizer"]) -> StoredTensors:
        """Where the tensors of the model, or of the optimizer, are, in either layout."""
        return find_tensors(
            self.path / name for name in sorted(self.files) if name.startswith(kind)
        )

    def _optimizer_tree(self, tensors: dict[str, Tensor], stored: StoredTensors) -> dict[str, Any]:
        name = f"{self.path / OPTIMIZER_NAME}"
        tree: dict[str, Any] = unpack_tree(tensors, stored.metadata, OPTIMIZER_FORMAT, name)
        return tree


def open_checkpoint(path: Path, step: int) -> Checkpoint:
    """Check everything in the folder, to the last byte."""
    record = read_record(path, step)
    check_sizes(path, record)
    for name, entry in record.files.items():
        try:
            found = hash_file(path / name)
        except OSError as error:
            raise CheckpointError(f"{path / name} cannot be read: {error.strerror}") from error
        if found != entry.hash:
            raise CheckpointError(
                f"{path / name} is damaged: its content is {found}, {STATE_NAME} says {entry.hash}"
            )
    try:
        state = unpack(record.state, {})
    except CheckpointError as error:
        raise CheckpointError(f"{path / STATE_NAME}: {error}") from error
    files = tuple(record.files)
    return Checkpoint(record.step, path, record.metric, state, files, record.weights_id)


def write_record(path: Path, record: Record) -> None:
    """Write `state.json`, synced."""
    body = record.model_dump()
    text = json.dumps({**body, "hash": _hash(body)}, indent=2, allow_nan=False)
    write_text_atomic(path / STATE_NAME, text + "\n")


def read_record(path: Path, step: int) -> Record:
    """Read `state.json` of the folder that is named after `step`."""
    file = path / STATE_NAME
    value = _read_object(file)
    if value.get("format") != FORMAT:
        raise CheckpointError(
            f"{file} is not a {FORMAT}: its format is {value.get('format')!r:.60}"
        )
    version = value.get("version")
    if isinstance(version, int) and version > SHARDED_VERSION:
        raise CheckpointError(
            f"{file} has format version {version}, this groundup knows {SHARDED_VERSION}: update "
            f"groundup"
        )
    expected_hash = value.pop("hash", None)
    if expected_hash != _hash(value):
        raise CheckpointError(f"{file} is damaged: its content does not have the hash it names")
    try:
        record = Record.model_validate(value)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"{file} is damaged at {key}: {first['msg']}") from None
    is_plain = record.files.keys() == {MODEL_NAME, OPTIMIZER_NAME}
    if not (is_plain or (record.version == SHARDED_VERSION and _are_shards(record.files))):
        raise CheckpointError(f"{file} is damaged: it describes {', '.join(record.files)}")
    if record.step != step:
        raise CheckpointError(f"{file} is of step {record.step}, but its folder is of step {step}")
    return record


def check_sizes(path: Path, record: Record) -> None:
    """Are the files there, and as long as they should be? This reads none of them."""
    for name, entry in record.files.items():
        try:
            num_bytes = os.stat(path / name).st_size
        except FileNotFoundError:
            raise CheckpointError(f"{path / name} is missing") from None
        except OSError as error:
            raise CheckpointError(f"{path / name} cannot be read: {error.strerror}") from error
        if num_bytes != entry.num_bytes:
            raise CheckpointError(
                f"{path / name} is damaged: it has {num_bytes} bytes, not {entry.num_bytes}"
            )


def _are_shards(names: Iterable[str]) -> bool:
    kinds = {match["kind"] for name in names if (match := _SHARD_NAME.fullmatch(name))}
    return kinds == {"model", "optimizer"} and all(map(_SHARD_NAME.fullmatch, names))


def _read_object(file: Path) -> dict[str, Any]:
    try:
        value = parse_json(file.read_bytes())
    except FileNotFoundError:
        if file.with_name(_TORCH_NAME).exists():
            raise CheckpointError(
                f"{file.parent} is a checkpoint of torch.distributed.checkpoint, whose "
                f"{_TORCH_NAME} is a pickle: reading one can run code. Convert its weights to "
                f"safetensors where you trust it"
            ) from None
        raise CheckpointError(f"{file} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged or cut short: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} is damaged: it does not hold a JSON object")
    return value


def _hash(body: dict[str, Any]) -> str:
    """Of the values, whatever the white space and the order of the names."""
    return hash_bytes(json.dumps(body, sort_keys=True, separators=(",", ":")).encode("ascii"))
