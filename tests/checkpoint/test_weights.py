"""Weights to the bit: every dtype, stride and sharing; files of others; damage; nothing runs."""

import contextlib
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from groundup.checkpoint import load_weights, save_weights
from groundup.checkpoint.weights import SHARED_KEY, WeightStream, read_weights
from groundup.errors import CheckpointError
from groundup.files import hash_file

NAMES = """float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 complex64
int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"""
DTYPES = [getattr(torch, name) for name in NAMES.split()]
SHAPES = [(), (1,), (7,), (3, 5), (2, 0, 4), (2, 3, 4, 5)]


def any_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random bits, so NaNs with payloads, negative zeros and subnormal numbers are among them."""
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


def test_every_dtype_and_shape_comes_back_to_the_bit_also_by_the_library(tmp_path: Path) -> None:
    pairs = [(dtype, shape) for dtype in DTYPES for shape in SHAPES]
    everything = {f"{d}.{s}": any_bits(s, d, seed) for seed, (d, s) in enumerate(pairs)}
    path = tmp_path / "deep" / "ours"
    save_weights(path, everything, {"key": "value"})
    assert os.listdir(path.parent) == ["ours"]
    assert_same(load_weights(path), everything)
    assert_same(load_weights(path.read_bytes()), everything)
    assert_same(safetensors.torch.load_file(path), everything)
    with safetensors.safe_open(path, framework="pt") as file:
        assert file.metadata() == {"key": "value"}
    safetensors.torch.save_file(everything, tmp_path / "theirs", {"key": "value"})
    tensors, metadata = read_weights(tmp_path / "theirs")
    assert_same(tensors, everything)
    assert metadata == {"key": "value"}


@given(
    named=st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=8).filter(lambda n: n != "__metadata__"),
        st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES), st.integers(0, 99)),
        max_size=6,
    ),
    metadata=st.dictionaries(
        st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")), max_size=3
    ),
)
def test_any_names_and_metadata_come_back(
    named: dict[str, tuple[torch.dtype, tuple[int, ...], int]], metadata: dict[str, str]
) -> None:
    tensors = {name: any_bits(shape, dtype, seed) for name, (dtype, shape, seed) in named.items()}
    stream = WeightStream(tensors, metadata)
    data = b"".join(stream)
    assert len(data) == stream.num_bytes
    found, found_metadata = read_weights(data)
    assert_same(found, tensors)
    assert found_metadata == metadata


def test_the_returned_id_is_the_hash_of_the_file_which_has_the_mode_of_any_other(
    tmp_path: Path,
) -> None:
    large = {"a": any_bits((1_100_000,), torch.float32), "b": any_bits((3,), torch.int8)}
    assert save_weights(tmp_path / "w", large) == hash_file(tmp_path / "w")
    assert_same(load_weights(tmp_path / "w"), large)
    (tmp_path / "other").write_bytes(b"")
    assert (tmp_path / "w").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_tied_weights_are_stored_once_and_are_tied_again(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.randn(64, 32))
    save_weights(tmp_path / "w", {"head": weight, "embedding": weight, "norm": torch.ones(32)})
    assert (tmp_path / "w").stat().st_size < 1.5 * weight.nbytes
    loaded = load_weights(tmp_path / "w")
    assert_same(loaded, {"head": weight, "embedding": weight, "norm": torch.ones(32)})
    assert loaded["head"] is loaded["embedding"]


def test_views_of_one_memory_come_back_as_what_they_show(tmp_path: Path) -> None:
    base = torch.randn(6, 8)
    tensors = {
        "all": base,
        "transposed": base.T,
        "rows": base[2:4],
        "overlapping rows": base[3:5],
        "every second": base[:, ::2],
        "same numbers, other shape": base.view(8, 6),
        "same bytes, other type": base.view(torch.int32),
        "expanded": base[:1].expand(5, 8),
        "flipped": base.flip(0),
        "conjugate": torch.view_as_complex(base.view(24, 2)).conj(),
        "negative": torch.view_as_complex(base.view(24, 2)).conj().imag,
    }
    assert tensors["conjugate"].is_conj()
    assert tensors["negative"].is_neg()
    save_weights(tmp_path / "w", tensors)
    assert_same(load_weights(tmp_path / "w"), tensors)


def test_a_file_of_the_wrong_size_is_noticed_before_it_replaces_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_weights(tmp_path / "w", {"a": torch.ones(3)})
    real_open = open

    def open_and_spoil(path: Any, mode: str) -> Any:
        file = real_open(path, mode)
        file.write(b"x")
        return file

    monkeypatch.setattr("builtins.open", open_and_spoil)
    with pytest.raises(OSError, match="has not the"):
        save_weights(tmp_path / "w", {"a": torch.zeros(3)})
    monkeypatch.undo()
    assert_same(load_weights(tmp_path / "w"), {"a": torch.ones(3)})


def test_loaded_tensors_do_not_depend_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "w"
    save_weights(path, {"a": torch.ones(5000)})
    loaded = load_weights(path)
    path.write_bytes(b"")
    assert loaded["a"].sum() == 5000
    loaded["a"].zero_()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("layer.odd", torch.zeros(2, dtype=torch.complex128), "'layer.odd'.*complex128"),
        ("layer.odd", torch.eye(3).to_sparse(), "'layer.odd'.*sparse"),
        ("layer.odd", torch.empty(3, device="meta"), "'layer.odd'.*no values"),
        ("layer.odd", [1.0, 2.0], "'layer.odd'.*a list"),
        ("__metadata__", torch.ones(1), "cannot be named"),
        ("half \ud800 pair", torch.ones(1), "cannot be named"),
    ],
)
def test_what_a_file_cannot_hold_is_named(
    tmp_path: Path, name: str, value: Any, reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        save_weights(tmp_path / "w", {name: value})
    assert not (tmp_path / "w").exists()


def test_a_file_cut_short_anywhere_is_named(tmp_path: Path) -> None:
    path = tmp_path / "w"
    save_weights(path, {"a": torch.ones(20), "b": torch.zeros(3)}, {"note": "x"})
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        for source in (path, data[:size]):
            with pytest.raises(CheckpointError) as caught:
                load_weights(source, "the stream")
            assert str(caught.value).startswith(str(path) if source is path else "the stream")
    path.write_bytes(data + b"x")
    with pytest.raises(CheckpointError):
        load_weights(path)


@given(position=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_changed_byte_gives_tensors_or_a_checkpoint_error(position: int, flip: int) -> None:
    weight = torch.ones(4)
    data = bytearray(b"".join(WeightStream({"a": weight, "b": weight}, {"note": "x"})))
    data[position % len(data)] ^= flip
    with contextlib.suppress(CheckpointError):
        load_weights(bytes(data))


@pytest.mark.parametrize("note", ["", "[]", "{", '{"b": "none"}', '{"b": []}', "[" * 100_000])
def test_a_wrong_note_on_sharing_is_damage(note: str) -> None:
    data = b"".join(WeightStream({"a": torch.ones(1)}, {SHARED_KEY: note}))
    with pytest.raises(CheckpointError, match="damaged"):
        load_weights(data)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere does not exist"):
        load_weights(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"cannot be read: Is a directory"):
        load_weights(tmp_path)


class Trap:
    """Unpickling one makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_pickles_are_refused_and_not_run(tmp_path: Path) -> None:
    trap = Trap(tmp_path / "sprung")
    torch.save(trap, tmp_path / "zip.pt")
    torch.save(trap, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(trap))
    for name, kind in [("zip.pt", "zip"), ("old.pt", "pickle"), ("plain.pkl", "pickle")]:
        with pytest.raises(CheckpointError, match=f"{name} is a {kind}.*can run code"):
            load_weights(tmp_path / name)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("length", [0x80, 0x280, 0x480, 0x10480])
def test_a_damaged_file_is_not_taken_for_a_pickle(length: int) -> None:
    data = length.to_bytes(8, "little") + b"{" * length
    with pytest.raises(CheckpointError, match="is not a safetensors file, or it is damaged"):
        load_weights(data)


def test_a_file_that_shrinks_while_it_is_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights.safetensors"
    save_weights(path, {"a": torch.ones(10_000), "b": torch.ones(5)})
    open_checked = safetensors.safe_open

    @contextlib.contextmanager
    def shrink_once_open(*arguments: Any, **options: Any) -> Iterator[Any]:
        with open_checked(*arguments, **options) as file:
            os.truncate(path, 1000)
            yield file

    monkeypatch.setattr(safetensors, "safe_open", shrink_once_open)
    with pytest.raises(CheckpointError, match=rf"{path} is .* became shorter while it was"):
        load_weights(path)
