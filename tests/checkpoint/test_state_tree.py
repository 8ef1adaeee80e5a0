"""Taking nested values apart and together again, through JSON, with nothing lost."""

import json
import struct
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from groundup.checkpoint.state_tree import load_tree, pack, tree_stream, unpack
from groundup.errors import CheckpointError

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.sampled_from([2**64, -(2**200), -0.0, float("nan"), float("inf"), "$tensor", "\ud800"])
)
TENSORS = st.builds(
    lambda shape, dtype, fill: torch.full(shape, fill).to(dtype),
    st.sampled_from([(), (0,), (3,), (2, 2)]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
    st.integers(0, 9),
)
KEYS = st.integers() | st.text(st.characters()) | st.sampled_from(["0", "a.b", "$items", ""])
TREES = st.recursive(
    SCALARS | TENSORS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal in type, order and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(TREES)
def test_what_was_taken_apart_comes_together_also_from_one_stream_of_bytes(value: Any) -> None:
    skeleton, tensors = pack(value)
    text = json.dumps(skeleton, allow_nan=False)
    assert same(unpack(json.loads(text), tensors), value)
    data = b"".join(tree_stream(value, "test format"))
    assert same(load_tree(data, "test format"), value)


def test_plain_json_is_its_own_skeleton() -> None:
    value = {"a": [None, True, -3, 2**70, 0.1, "text", "$tensor"], "": {"b$": [], "c": {}}}
    assert pack(value) == (value, {})


def test_tensors_are_named_by_their_keys_and_kept_apart() -> None:
    value = {
        "state": {0: {"step": torch.tensor(3.0), "list": [torch.ones(2)]}},
        0: torch.tensor(0),
        "0": torch.tensor(1),
        "a": {"b": torch.tensor(2)},
        "a.b": torch.tensor(3),
        "__metadata__": torch.tensor(4),
    }
    skeleton, tensors = pack(value)
    assert {"state.0.step", "state.0.list.0", "0", "a.b"} <= tensors.keys()
    assert len(tensors) == 7 and "__metadata__" not in tensors
    found = unpack(json.loads(json.dumps(skeleton)), tensors)
    assert list(found) == list(value)
    assert [int(found[key]) for key in (0, "0", "a.b")] == [0, 1, 3]


def test_numpy_scalars_and_ordered_dicts_become_plain() -> None:
    value = OrderedDict(a=np.float64(0.1), b=np.int32(3), c=np.bool_(True), d=torch.Size([2, 3]))
    assert same(unpack(*pack(value)), {"a": 0.1, "b": 3, "c": True, "d": (2, 3)})


def test_a_parameter_is_stored_without_its_history() -> None:
    _, tensors = pack([torch.nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True) * 2])
    assert not any(tensor.requires_grad for tensor in tensors.values())


class Pair(NamedTuple):
    first: int
    second: int


@pytest.mark.parametrize(
    "odd", [{1}, b"bytes", object(), Pair(1, 2), len, 1j, np.ones(2), torch.float32, 1 << 5000]
)
def test_anything_else_is_refused_with_its_place(odd: Any) -> None:
    with pytest.raises(CheckpointError, match=r"at groups\.0\.odd is a "):
        pack({"groups": [{"odd": odd}]})


@pytest.mark.parametrize("key", [1.5, True, None, (1, 2), b"x"])
def test_keys_are_text_or_integers(key: Any) -> None:
    with pytest.raises(CheckpointError, match=r"the dict at inner has the key"):
        pack({"inner": {key: 1}})


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(CheckpointError, match="contain itself"):
        pack(value)


@pytest.mark.parametrize(
    "skeleton",
    [
        {"$tensor": "absent"},
        {"$tensor": ["list"]},
        {"$float": "zz"},
        {"$float": "00"},
        {"$float": 3},
        {"$tuple": 3},
        {"$items": [[1]]},
        {"$items": [[[], 1]]},
        {"$call": "os.system"},
        {"$tuple": [1], "more": 2},
    ],
)
def test_a_wrong_skeleton_is_damage_with_its_place(skeleton: Any) -> None:
    with pytest.raises(CheckpointError, match=r"at a\.0"):
        unpack({"a": [skeleton]}, {})


def test_files_of_another_format_or_version_are_refused() -> None:
    data = b"".join(tree_stream({"a": 1}, "one format"))
    with pytest.raises(CheckpointError, match="is not a other format: it says it is a one format"):
        load_tree(data, "other format")
    with pytest.raises(CheckpointError, match="version 2, this groundup knows 1: update"):
        load_tree(data.replace(b'"groundup.version":"1"', b'"groundup.version":"2"'), "one format")
    with pytest.raises(CheckpointError, match="damaged"):
        load_tree(data.replace(rb'"{\"a\":1}"', rb'"{\"a\":]}"'), "one format")
    deep = data.replace(rb'"{\"a\":1}"', b'"' + b"[" * 40_000 + b"]" * 40_000 + b'"')
    deep = (len(deep) - 8).to_bytes(8, "little") + deep[8:]
    with pytest.raises(CheckpointError, match="damaged"):
        load_tree(deep, "one format")
