"""What `state.json` says about a checkpoint, and whether the folder is what it says.

The record carries a hash of itself, so that a flipped digit in it is seen as well.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pydantic
from torch import Tensor

from groundup import __version__
from groundup.checkpoint.state_tree import load_tree, unpack
from groundup.checkpoint.weights import load_weights, read_shapes
from groundup.errors import CheckpointError
from groundup.files import hash_bytes, hash_file, parse_json, write_text_atomic
from groundup.nn.adapters import merge_adapters, without_adapters

FORMAT = "groundup-checkpoint"
VERSION = 1
OPTIMIZER_FORMAT = "groundup optimizer state"

STATE_NAME = "state.json"
MODEL_NAME = "model.safetensors"
OPTIMIZER_NAME = "optimizer.safetensors"


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


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were found to be as they were written."""

    step: int
    path: Path
    metric: float | None
    """What the best checkpoint has the least of, say the validation loss."""
    state: dict[str, Any]

    def model_state(self) -> dict[str, Tensor]:
        """The weights, on the CPU, adapters merged into them."""
        return merge_adapters(self.adapted_state())

    def adapted_state(self) -> dict[str, Tensor]:
        """The weights as they were trained: adapters, if there are any, beside frozen ones."""
        return load_weights(self.path / MODEL_NAME)

    def model_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the weights, of which none is read."""
        return without_adapters(read_shapes(self.path / MODEL_NAME))

    def optimizer_state(self) -> dict[str, Any]:
        """What `optimizer.state_dict()` gave, with its tensors on the CPU."""
        state: dict[str, Any] = load_tree(self.path / OPTIMIZER_NAME, OPTIMIZER_FORMAT)
        return state


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
    return Checkpoint(record.step, path, record.metric, state)


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
    if isinstance(version, int) and version > VERSION:
        raise CheckpointError(
            f"{file} has format version {version}, this groundup knows {VERSION}: update groundup"
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
    if record.files.keys() != {MODEL_NAME, OPTIMIZER_NAME}:
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


def _read_object(file: Path) -> dict[str, Any]:
    try:
        value = parse_json(file.read_bytes())
    except FileNotFoundError:
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
