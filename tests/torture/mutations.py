"""Corruption of bytes, as by a bad disk, a broken transfer or an attacker."""

import json
import random
import re
from pathlib import Path
from typing import Any

FRAGMENTS = json.loads(Path(__file__).with_name("fragments.json").read_text("utf-8"))
"""Fragments of the inputs for each parser."""
NUMBERS = [one.encode() for one in FRAGMENTS["numbers"]] + [b"1" + b"0" * 400, b"9" * 5000]
DEEP = "@deep@"
VALUES: list[Any] = [None, True, [], {}, "", "x" * 100_000, "\ud800", "\0", "../../x", -1]
_ODD = (b"[" * 20_000, b'{"a":' * 20_000, b"\xff\xfe", b"\0" * 64, b"\n", b'"')
VALUES += [10**9, 10**30, 0.5, [[]], {"": None}, [None] * 1000, DEEP]


def tear(data: bytes, rng: random.Random) -> bytes:
    """Truncate the data, or zero a sector."""
    end = rng.randrange(len(data) + 1)
    begin = end - end % 512
    zeroed = data[:begin] + bytes(len(data[begin : begin + 512])) + data[begin + 512 :]
    return rng.choice((data[:end], zeroed))


def spoil(data: bytes, rng: random.Random) -> bytes:
    """Corrupt the data like a bad disk."""
    return rng.choice((_flip, tear))(data, rng)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Make a few changes: to bits, ranges of bytes, numbers, or the structure of JSON."""
    changes = (_flip, *[_splice] * 4, *[_renumber] * 2, *[_restructure] * 4)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        data = rng.choice(changes)(data, rng)
    return data


def _splice(data: bytes, rng: random.Random) -> bytes:
    """Truncate the data, delete or repeat a range, or insert odd bytes."""
    begin = rng.randrange(len(data) + 1)
    head, tail = data[:begin], data[begin:]
    again = tail[: rng.choice((1, 8, 64))] * rng.choice((2, 3, 1000))
    odd = rng.choice((rng.randbytes(4), *_ODD))
    return head + rng.choice((b"", tail[rng.choice((1, 2, 8, 100)) :], again + tail, odd + tail))


def _flip(data: bytes, rng: random.Random) -> bytes:
    flipped = bytearray(data or b"\0")
    flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def _renumber(data: bytes, rng: random.Random) -> bytes:
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?(e[-+]?\d+)?", data))
    if not numbers:
        return _flip(data, rng)
    match = rng.choice(numbers)
    return data[: match.start()] + rng.choice(NUMBERS) + data[match.end() :]


def _restructure(data: bytes, rng: random.Random) -> bytes:
    """Replace a value in JSON, in a line of JSON, or in a safetensors header."""
    if data[8:9] == b"{":
        length = int.from_bytes(data[:8], "little")
        header = _restructure_json(data[8 : 8 + length], rng)
        return len(header).to_bytes(8, "little") + header + data[8 + length :]
    return _restructure_json(data, rng)


def _restructure_json(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n") if data.count(b"\n{") else [data]
    number = rng.randrange(len(lines))
    try:
        value = json.loads(lines[number])
        holder, key = rng.choice(_entries(value))
    except (ValueError, RecursionError, IndexError):
        return _renumber(data, rng)
    if isinstance(holder, dict) and rng.random() < 0.5:
        inner = holder.pop(key)
        holder |= {f"{key}x": inner, key: inner} if rng.random() < 0.5 else {}
    else:
        holder[key] = rng.choice(VALUES)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    text = text.replace(f'"{DEEP}"', "[" * 20_000 + "]" * 20_000)
    lines[number] = text.encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


def _entries(value: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of everything inside a value."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else range(len(value))
    return [entry for key in keys for entry in [(value, key), *_entries(value[key])]]
