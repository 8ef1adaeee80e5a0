"""Weights in a folder as Hugging Face lays them out: one safetensors file, or shards and an index.

What the tensors are called is left to others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from groundup.checkpoint import save_weights
from groundup.checkpoint.weights import read_shapes
from groundup.errors import CheckpointError
from groundup.files import parse_json, write_json_atomic

SINGLE_NAME = "model.safetensors"
INDEX_NAME = f"{SINGLE_NAME}.index.json"
MAX_SHARD_BYTES = 5_000_000_000

# transformers refuses files that do not say so.
_METADATA = {"format": "pt"}


def write_weight_files(
    folder: Path, tensors: Mapping[str, Tensor], max_shard_bytes: int = MAX_SHARD_BYTES
) -> dict[str, str]:
    """Write the tensors, cut into files of at most so many bytes of them; gives content ids.

    A tensor is never cut, so one that is greater has a file of its own.
    """
    shards = _cut(tensors, max_shard_bytes)
    if len(shards) == 1:
        return {SINGLE_NAME: save_weights(folder / SINGLE_NAME, tensors, _METADATA)}
    content_ids, file_of = {}, {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        content_ids[name] = save_weights(folder / name, shard, _METADATA)
        file_of.update(dict.fromkeys(shard, name))
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(file_of.items()))}
    write_json_atomic(folder / INDEX_NAME, index)
    return content_ids


def read_weight_shapes(folder: Path) -> tuple[dict[str, tuple[int, ...]], list[Path]]:
    """The shapes of all tensors of a folder, from their headers alone, and the files they are in;
    pickled weights are refused."""
    if (folder / INDEX_NAME).is_file():
        return _read_shard_shapes(folder)
    single = folder / SINGLE_NAME
    if single.is_file():
        return read_shapes(single), [single]
    pickled = sorted(file.name for pattern in ("*.bin", "*.pt*") for file in folder.glob(pattern))
    if pickled:
        raise CheckpointError(
            f"{folder} has its weights as {pickled[0]}, a pickle, and loading one can run code: "
            f"take the safetensors form of the checkpoint, or save it so in transformers, which "
            f"save_pretrained does"
        )
    raise CheckpointError(
        f"{folder} has no weights: neither {SINGLE_NAME} nor {INDEX_NAME} is there; check the path"
    )


def _cut(tensors: Mapping[str, Tensor], max_shard_bytes: int) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    num_bytes = 0
    for name, tensor in tensors.items():
        if shards[-1] and num_bytes + tensor.nbytes > max_shard_bytes:
            shards.append({})
            num_bytes = 0
        shards[-1][name] = tensor
        num_bytes += tensor.nbytes
    return shards


def _read_shard_shapes(folder: Path) -> tuple[dict[str, tuple[int, ...]], list[Path]]:
    path = folder / INDEX_NAME
    file_of = read_json_object(path).get("weight_map")
    if not isinstance(file_of, dict) or not file_of:
        raise CheckpointError(f"{path} has no weight_map: fetch the checkpoint again as a whole")
    for name, file in file_of.items():
        # The index is a stranger's: it names files of its own folder and no others.
        if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
            raise CheckpointError(
                f"{path} says that {name} is in {file!r:.60}, which is not a file beside it"
            )
    shapes: dict[str, tuple[int, ...]] = {}
    files = [folder / name for name in sorted(set(file_of.values()))]
    for file in files:
        shard = read_shapes(file)
        promised = {name for name, home in file_of.items() if home == file.name}
        if shard.keys() != promised:
            name = sorted(shard.keys() ^ promised)[0]
            what = "lacks" if name in promised else "holds"
            raise CheckpointError(
                f"{file} {what} {name}, unlike {path.name} says: the files are of different "
                f"checkpoints; fetch it again as a whole"
            )
        shapes.update(shard)
    return shapes, files


def read_json_object(path: Path) -> dict[str, Any]:
    """A small JSON file of a checkpoint; a CheckpointError says what is wrong with it."""
    try:
        value = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing: name the folder of a Hugging Face checkpoint"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged or cut short: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object: fetch the checkpoint again")
    return value
