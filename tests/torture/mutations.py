"""Bytes as a bad disk, a broken transfer or an enemy leaves them."""

from __future__ import annotations

import json
import random
import re
from typing import Any

NUMBERS = [
    *(b"0", b"-1", b"1", b"255", b"256", b"65536", b"2147483648", b"4294967296", b"1000000000"),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"1e18", b"1e400"),
    *(b"-1e400", b"NaN", b"Infinity", b".nan", b"-.inf", b"0.5", b"1" + b"0" * 400, b"9" * 5000),
]
DEEP = "@deep@"
VALUES: list[Any] = [None, True, [], {}, "", "x" * 100_000, "\ud800", "\0", "../../x", -1]
VALUES += [10**9, 10**30, 0.5, [[]], {"": None}, [None] * 1000, DEEP]


def spoil(data: bytes, rng: random.Random) -> bytes:
    """A flipped bit, a lost end or a zeroed block."""
    match rng.randrange(4):
        case 0 | 1:
            return _flip(data, rng)
        case 2:
            return data[: rng.randrange(len(data))]
        case _:
            begin = rng.randrange(len(data)) // 512 * 512
            return data[:begin] + bytes(len(data[begin : begin + 512])) + data[begin + 512 :]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A few changes: of bits, of numbers, of stretches, of the structure where it is JSON."""
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        begin = rng.randrange(len(data) + 1)
        match rng.randrange(11):
            case 0:
                data = _flip(data, rng)
            case 1:
                data = data[:begin]
            case 2:
                data = data[:begin] + data[begin + rng.choice((1, 2, 8, 100)) :]
            case 3:
                stretch = data[begin : begin + rng.choice((1, 8, 64))]
                data = data[:begin] + stretch * rng.choice((2, 3, 1000)) + data[begin:]
            case 4:
                odd = [rng.randbytes(4), b"[" * 20_000, b'{"a":' * 20_000, b"\xff\xfe", b"\0" * 64]
                data = data[:begin] + rng.choice([*odd, b"\n", b'"']) + data[begin:]
            case 5 | 6:
                data = _renumber(data, rng)
            case _:
                data = _restructure(data, rng)
    return data


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return b"\0"
    index = rng.randrange(len(data))
    return data[:index] + bytes([data[index] ^ 1 << rng.randrange(8)]) + data[index + 1 :]


def _renumber(data: bytes, rng: random.Random) -> bytes:
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?(e[-+]?\d+)?", data))
    if not numbers:
        return _flip(data, rng)
    match = rng.choice(numbers)
    return data[: match.start()] + rng.choice(NUMBERS) + data[match.end() :]


def _restructure(data: bytes, rng: random.Random) -> bytes:
    """Another value for one, in JSON, in a line of JSON, or in a safetensors header."""
    if data[8:9] == b"{":
        length = int.from_bytes(data[:8], "little")
        header = _restructure(data[8 : 8 + length], rng)
        return len(header).to_bytes(8, "little") + header + data[8 + length :]
    lines = data.split(b"\n") if data.count(b"\n{") else [data]
    number = rng.randrange(len(lines))
    try:
        value = json.loads(lines[number])
    except (ValueError, RecursionError):
        return _renumber(data, rng)
    entries = _entries(value)
    if not entries:
        return _renumber(data, rng)
    holder, key = rng.choice(entries)
    match rng.randrange(4):
        case 0 if isinstance(holder, dict):
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[str(key) + "x"] = holder[key]
        case _:
            holder[key] = rng.choice(VALUES)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    text = text.replace(f'"{DEEP}"', "[" * 20_000 + "]" * 20_000)
    lines[number] = text.encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


def _entries(value: Any) -> list[tuple[Any, Any]]:
    """Everything inside, as what holds it and the key there."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else range(len(value))
    return [entry for key in keys for entry in [(value, key), *_entries(value[key])]]
