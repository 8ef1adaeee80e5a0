"""Weights in several safetensors files, one a rank, each with some rows of the tensors.

The header of a file says which part of which tensor it holds. Anybody can put them together
again, without a process group and without torch's own checkpoint files, which are pickles.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path

import safetensors
import torch
from torch import Tensor

from groundup.checkpoint.weights import DTYPES, SHARED_KEY, WeightStream, load_weights, read_shapes
from groundup.errors import CheckpointError

_CHUNKS_KEY = "groundup.chunks"
_TIED_KEY = "groundup.tied"

Shape = tuple[int, ...]
Part = tuple[Tensor, Sequence[int], Sequence[int]]
"""Some rows of a tensor, where they begin, and the shape of the whole."""


@dataclass(frozen=True)
class Chunk:
    """A part of a tensor, and the file that has it under the tensor's name."""

    path: Path
    offsets: Shape
    sizes: Shape


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in parts."""

    dtype: torch.dtype
    shape: Shape
    chunks: list[Chunk]


@dataclass(frozen=True)
class StoredTensors:
    """All tensors of some files that belong together."""

    tensors: dict[str, StoredTensor]
    tied: dict[str, str]
    """Names that stand for the tensor of another name."""
    metadata: dict[str, str]
    """What else the files' headers say, which is the same in each."""

    def shapes(self) -> dict[str, Shape]:
        """Of every tensor, under all its names."""
        shapes = {name: one.shape for name, one in self.tensors.items()}
        return shapes | {alias: shapes[name] for alias, name in self.tied.items()}

    def read(self) -> dict[str, Tensor]:
        """Every tensor as a whole, on the CPU."""
        whole: dict[str, Tensor] = {}
        for path in {chunk.path: None for one in self.tensors.values() for chunk in one.chunks}:
            for name, part in load_weights(path).items():
                if name not in self.tensors:
                    continue
                one = self.tensors[name]
                if len(one.chunks) == 1:
                    whole[name] = part
                    continue
                if name not in whole:
                    whole[name] = torch.empty(one.shape, dtype=one.dtype)
                chunk = next(chunk for chunk in one.chunks if chunk.path == path)
                whole[name][_slices(chunk.offsets, chunk.sizes)] = part
        return whole | {alias: whole[name] for alias, name in self.tied.items()}


def shard_stream(
    parts: Mapping[str, Part], tied: Mapping[str, str], metadata: Mapping[str, str]
) -> WeightStream:
    """The bytes of one file.

    parts: what it holds of the tensors.
    tied: names of tensors that have another name too, by that other name.
    metadata: texts that the header has besides.
    """
    chunks = {
        name: {"offsets": [*offsets], "shape": [*shape]}
        for name, (_, offsets, shape) in parts.items()
    }
    keys = {_CHUNKS_KEY: json.dumps(chunks), _TIED_KEY: json.dumps(dict(tied))}
    return WeightStream({name: one for name, (one, *_) in parts.items()}, {**metadata, **keys})


def find_tensors(paths: Iterable[Path]) -> StoredTensors:
    """What the files hold, from their headers. A file without parts is one with whole tensors."""
    found: dict[str, StoredTensor] = {}
    tied: dict[str, str] = {}
    metadata: dict[str, str] = {}
    for path in paths:
        shapes = read_shapes(path)
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            metadata = dict(file.metadata() or {})
            names = file.keys()
            dtype_names = {name: file.get_slice(name).get_dtype() for name in names}
        try:
            places = json.loads(metadata.pop(_CHUNKS_KEY, "{}"))
            for key in (SHARED_KEY, _TIED_KEY):
                tied |= dict(json.loads(metadata.pop(key, "{}")))
            for name, dtype_name in dtype_names.items():
                dtype, sizes = DTYPES[dtype_name], shapes[name]
                place = places.get(name, {"offsets": [0] * len(sizes), "shape": sizes})
                offsets, shape = (tuple(map(index, place[key])) for key in ("offsets", "shape"))
                one = found.setdefault(name, StoredTensor(dtype, shape, []))
                one.chunks.append(Chunk(path, offsets, sizes))
                if (one.dtype, one.shape) != (dtype, shape):
                    raise ValueError(f"{name} is another tensor than in other files")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{path} is damaged: its header is wrong ({error})") from None
    for name, one in found.items():
        if not _is_whole(one):
            raise CheckpointError(f"{one.chunks[0].path.parent} is damaged: {name} is not whole")
    if unknown := [name for name in tied.values() if name not in found]:
        raise CheckpointError(f"the checkpoint is damaged: it lacks {unknown[0]}")
    return StoredTensors(found, tied, metadata)


def shard_name(kind: str, rank: int) -> str:
    """The file of a rank.

    kind: model or optimizer.
    """
    return f"{kind}_{rank:05d}.safetensors"


def read_part(chunk: Chunk, name: str, offsets: Shape, sizes: Shape) -> Tensor:
    """A part of a chunk, of which no more is read; `offsets` are within the chunk."""
    try:
        with safetensors.safe_open(chunk.path, framework="pt", device="cpu") as file:
            whole = file.get_slice(name) if sizes else file.get_tensor(name)
            part: Tensor = whole[_slices(offsets, sizes)]
            return part
    except (safetensors.SafetensorError, OSError) as error:
        raise CheckpointError(f"{chunk.path} cannot be read: {error}") from error


def _is_whole(one: StoredTensor) -> bool:
    """Do the rows of one part begin where those of another end, from the first to the last?"""
    if not one.shape:
        return all(part.sizes == () for part in one.chunks)
    end = 0
    inner = (0,) * (len(one.shape) - 1)
    for part in sorted(one.chunks, key=lambda part: (part.offsets, part.sizes)):
        if 0 in part.sizes:
            continue
        if part.offsets != (end, *inner) or part.sizes[1:] != one.shape[1:]:
            return False
        end += part.sizes[0]
    return 0 in one.shape or end == one.shape[0]


def _slices(offsets: Shape, sizes: Shape) -> tuple[slice, ...]:
    return tuple(slice(begin, begin + n) for begin, n in zip(offsets, sizes, strict=True))
