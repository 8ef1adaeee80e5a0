"""Two runs compared to the last bit: records, weights, optimizer, counters; clocks left out."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from groundup.checkpoint import CheckpointFolder
from groundup.files import read_json_lines
from groundup.runs.folder import RunFolder
from groundup.training.metrics import MEASURED


@dataclass(frozen=True)
class Comparison:
    """What was compared, and everything that differs."""

    num_records: int
    num_values: int
    differences: list[str]


def compare_runs(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> Comparison:
    """Compare all records and the newest checkpoints of two runs."""
    first, second = RunFolder(one), RunFolder(other)
    records = comparable_records(first.metrics_file), comparable_records(second.metrics_file)
    values = _newest_values(first), _newest_values(second)
    differences = [*_compare_records(*records), *_compare_values(*values)]
    return Comparison(len(records[0]), len(values[0]), differences)


def comparable_records(metrics_file: Path) -> list[dict[str, Any]]:
    """The records of a run without the figures that the machine decides."""
    return [
        {name: value for name, value in record.items() if name not in MEASURED}
        for record in read_json_lines(metrics_file)
    ]


def _newest_values(folder: RunFolder) -> dict[str, Any]:
    """Every number and tensor of the newest checkpoint by name."""
    checkpoint = CheckpointFolder(folder.checkpoints).newest()
    # The settings hold the run's name, and what else they say shows in everything below.
    left_out = {*MEASURED, "settings"}
    state = {name: value for name, value in checkpoint.state.items() if name not in left_out}
    parts = {
        "step": checkpoint.step,
        "model": checkpoint.model_state(),
        "optimizer": checkpoint.optimizer_state(),
        "state": state,
    }
    return dict(_flat(parts, ""))


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    else:
        yield name, value
        return
    for key, item in items:
        yield from _flat(item, f"{name}.{key}" if name else str(key))


def _compare_records(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> Iterator[str]:
    if len(one) != len(other):
        yield f"{len(one)} records against {len(other)}"
    for first, second in zip(one, other, strict=False):
        for name in {**first, **second}:
            if first.get(name) != second.get(name):
                yield f"step {first['step']}: {name} {first.get(name)} against {second.get(name)}"


def _compare_values(one: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    for name in {**one, **other}:
        if name not in one or name not in other or not _is_equal(one[name], other[name]):
            yield f"{name} differs"


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        is_alike = one.dtype == other.dtype and one.shape == other.shape
        # As bytes, because NaN is not equal to itself.
        return is_alike and torch.equal(_bytes(one), _bytes(other))
    return bool(one == other)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
