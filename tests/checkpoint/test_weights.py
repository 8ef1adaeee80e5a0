"""Bitwise round trips of weights and nested values: dtypes, strides, sharing, damage."""

import contextlib
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from groundup.checkpoint import load_weights, save_weights
from groundup.checkpoint.record import pack, pack_tree, unpack, unpack_tree
from groundup.checkpoint.weights import read_weights
from groundup.errors import CheckpointError

NAMES = """float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 complex64
int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"""
DTYPES = [getattr(torch, name) for name in NAMES.split()]
SHAPES = [(), (1,), (7,), (3, 5), (2, 0, 4), (2, 3, 4, 5)]


def any_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random bits, including NaNs with payloads, negative zeros and subnormal numbers."""
    generator = torch.Generator().manual_seed(seed)
    plain = torch.empty(shape, dtype=dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    bits = torch.randint(0, 256, (plain.nbytes,), dtype=torch.uint8, generator=generator)
    return bits.view(dtype).reshape(shape) if plain.numel() else plain


def bits_of(tensor: Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    data = bytes(plain.view(torch.uint8).numpy()) if plain.numel() else b""
    return tensor.dtype, tuple(tensor.shape), data


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        assert bits_of(found[name]) == bits_of(expected[name]), name


def test_every_dtype_and_shape_round_trips_bitwise(tmp_path: Path) -> None:
    pairs = [(dtype, shape) for dtype in DTYPES for shape in SHAPES]
    everything = {f"{d}.{s}": any_bits(s, d, seed) for seed, (d, s) in enumerate(pairs)}
    path = tmp_path / "deep" / "ours"
    save_weights(path, everything, {"key": "value"})
    assert os.listdir(path.parent) == ["ours"]
    assert_same(load_weights(path), everything)
    assert_same(safetensors.torch.load_file(path), everything)
    assert read_weights(path)[1] == {"key": "value"}
    (tmp_path / "other").write_bytes(b"")
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode
    loaded = load_weights(path)
    path.write_bytes(b"")
    assert_same(loaded, everything)


def test_views_of_shared_memory_round_trip(tmp_path: Path) -> None:
    base = torch.randn(600, 8)
    conjugate = torch.view_as_complex(base.view(2400, 2)).conj()
    tensors = {"tied": base, "all": base, "transposed": base.T, "rows": base[2:4]}
    tensors |= {"overlapping rows": base[3:5], "every second": base[:, ::2]}
    tensors |= {"other shape": base.view(8, 600), "other type": base.view(torch.int32)}
    tensors |= {"expanded": base[:1].expand(5, 8), "conjugate": conjugate}
    tensors["negative"] = conjugate.imag
    save_weights(tmp_path / "w", tensors)
    loaded = load_weights(tmp_path / "w")
    assert_same(loaded, tensors)
    assert loaded["tied"] is loaded["all"]
    assert (tmp_path / "w").stat().st_size < (len(tensors) - 1.5) * base.nbytes


def test_files_with_parts_of_tensors_are_joined(tmp_path: Path) -> None:
    whole = torch.arange(35.0).reshape(5, 7)
    for name, begin, end in (("0", 0, 3), ("1", 3, 5), ("2", 5, 5)):
        places = {"a": {"saved_offsets": [begin, 0]}, "number": {"saved_offsets": []}}
        tensors = {"a": whole[begin:end]} | ({"number": torch.tensor(3.0)} if begin else {})
        save_weights(tmp_path / name, tensors, {"DCP_SHARDING_INFO": json.dumps(places)})
    found, _ = read_weights(*(tmp_path / name for name in "210"))
    assert_same(found, {"a": whole, "number": torch.tensor(3.0)})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("odd", torch.zeros(2, dtype=torch.complex128)),
        ("odd", torch.eye(3).to_sparse()),
        ("odd", torch.empty(3, device="meta")),
        ("odd", [1.0, 2.0]),
        ("half \ud800 pair", torch.ones(1)),
    ],
)
def test_unsupported_tensors_are_rejected(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(CheckpointError):
        save_weights(tmp_path / "w", {name: value})
    assert not os.listdir(tmp_path)
    with pytest.raises(OSError, match="regular"):
        save_weights("/dev/null", {"a": torch.zeros(3)})


def test_truncated_or_corrupted_files_raise_checkpoint_errors(tmp_path: Path) -> None:
    path = tmp_path / "w"
    weight = torch.ones(4)
    save_weights(path, {"a": weight, "b": weight}, {"note": "x"})
    data = path.read_bytes()
    for damaged in (*(data[:size] for size in range(len(data))), data + b"x"):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=str(path)):
            load_weights(path)
    for position in range(len(data)):
        flipped = data[position] ^ (1 << position % 8)
        path.write_bytes(data[:position] + bytes([flipped]) + data[position + 1 :])
        with contextlib.suppress(CheckpointError):
            load_weights(path)
    header = b'{"a": "' + b"x" * 100_000 + b'"}'
    (tmp_path / "long").write_bytes(len(header).to_bytes(8, "little") + header)
    for other in (tmp_path / "nowhere", tmp_path, tmp_path / "long"):
        with pytest.raises(CheckpointError, match=str(other)) as caught:
            load_weights(other)
        assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("note", ["", "[]", "{", '{"b": "none"}', '{"b": []}', "[" * 100_000])
def test_invalid_metadata_is_detected(tmp_path: Path, note: str) -> None:
    # The offsets may include tensors that are not in this file.
    for key in ("groundup.shared", "DCP_SHARDING_INFO")[: 1 if note.startswith('{"b') else 2]:
        safetensors.torch.save_file({"a": torch.ones(1)}, tmp_path / "w", {key: note})
        with pytest.raises(CheckpointError, match="damaged"):
            load_weights(tmp_path / "w")


def test_pickles_are_rejected_without_running(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "sprung"),)

    torch.save(Trap(), tmp_path / "zip.pt")
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(Trap()))
    for name in ("zip.pt", "plain.pkl"):
        with pytest.raises(CheckpointError, match=name):
            load_weights(tmp_path / name)
    assert not (tmp_path / "sprung").exists()


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
KEYS = st.integers() | st.text("ab.$", max_size=4) | st.sampled_from(["0", "a.b", "$items", ""])
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
    """Whether two values are equal in type, order and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return repr(one) == repr(other)  # Distinguishes -0.0 from 0.0, and treats NaNs as equal.


@given(TREES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nested_values_round_trip(tmp_path: Path, value: Any) -> None:
    save_weights(tmp_path / "w", *pack_tree(value))
    assert same(unpack_tree(*read_weights(tmp_path / "w"), "x"), value)


def test_json_values_and_numpy_scalars_are_packed_as_json() -> None:
    value = {"a": [None, True, -3, 2**70, 0.1, "text", "$tensor"], "": {"b$": [], "c": {}}}
    assert pack(value) == (value, {})
    assert pack([np.float64(0.1), np.int32(3), torch.Size([2])])[0] == [0.1, 3, {"$tuple": [2]}]
    assert not pack([torch.nn.Parameter(torch.ones(2))])[1]["0"].requires_grad


@pytest.mark.parametrize("odd", [{1}, b"x", object(), 1j, np.ones(2), {1.5: 1}, {None: 1}])
def test_unsupported_values_are_rejected_with_their_path(odd: Any) -> None:
    with pytest.raises(CheckpointError, match=r"groups\.0\.odd"):
        pack({"groups": [{"odd": odd}]})


@pytest.mark.parametrize(
    "skeleton",
    [
        *({"$tensor": "absent"}, {"$tensor": ["list"]}, {"$float": "zz"}, {"$float": "00"}),
        *({"$float": 3}, {"$tuple": 3}, {"$items": [[1]]}, {"$items": [[[], 1]]}),
        *({"$call": "os.system"}, {"$tuple": [1], "more": 2}),
    ],
)
def test_invalid_skeletons_are_detected(skeleton: Any) -> None:
    with pytest.raises(CheckpointError, match="damaged"):
        unpack({"a": [skeleton]}, {}, "the file")
    with pytest.raises(CheckpointError, match="only tensors"):
        unpack_tree({}, {}, "the file")
