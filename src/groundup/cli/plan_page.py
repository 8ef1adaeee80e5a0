"""A plan on the screen: the numbers of its JSON, as tables with units."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from groundup.cli.terminal import print_results, print_table
from groundup.planner.hardware import ACCELERATORS, describe_cpu, find_price
from groundup.planner.quantities import show_bytes, show_count, show_dollars, show_flops
from groundup.runtime import format_duration, memory_bytes, num_cores

_BYTES = {"weights", "gradients", "optimizer_state", "weight_copies", "gathered", "activations"}


def print_plan(results: Mapping[str, Any]) -> None:
    """Every part of a plan, one table each.

    results: as `Plan.to_json` gives them, those of a probe and of many GPUs among them.
    """
    parts, flops = results["parameters"], results["forward_flops"]
    rows = [(_words(name), f"{n:,}", f"{n / parts['total']:.1%}") for name, n in parts.items()]
    print_table("parameters", ("part", "parameters", "fraction"), rows)
    layers = flops["per_layer"]
    lines = [
        (_words(name), f"{layers[name]:,}" if name in layers else "", f"{n:,}", show_flops(n))
        for name, n in flops.items()
        if name not in ("num_tokens", "per_layer")
    ]
    title = f"operations of a forward pass of {flops['num_tokens']:,} tokens"
    print_table(title, ("part", "a layer", "all", ""), lines)
    for name in ("by_size", "by_context"):
        _print_columns(f"fractions {_words(name)}", results["shares"][name])
    memory, duration = results["memory"], results["duration"]
    where = f"{memory['precision']} on {memory['device']}"
    print_results(f"memory of groundup train, {where}", _rows(memory))
    print_results(
        "memory by the textbook: every intermediate kept", _rows(results["textbook_memory"])
    )
    print_results(f"the run on one {duration['device']}", _rows(duration))
    for line in duration["derivation"]:
        print(f"  {line}")
    print_results("compute-optimal", _rows(results["compute_optimal"]))
    if "probe" in results:
        print_results("measured on this machine", _rows(results["probe"]))
    if "distributed" in results:
        many = dict(results["distributed"])
        strategies = many.pop("strategies")
        names = next(iter(strategies.values()))
        by_name = {name: {key: one[name] for key, one in strategies.items()} for name in names}
        _print_columns("each GPU, by strategy", by_name)
        print_results(f"the run on {many['num_gpus']:,} GPUs", _rows(many))


def print_devices(*, is_json: bool) -> None:
    """The table of devices, and where its rates and prices were read."""
    devices = [*ACCELERATORS, describe_cpu(num_cores(), memory_bytes())]
    prices = [find_price(device.name) for device in devices]
    if is_json:
        found = [
            {**device._asdict(), "price": None if price is None else price._asdict()}
            for device, price in zip(devices, prices, strict=True)
        ]
        print(json.dumps(found, ensure_ascii=False, indent=2))
        return
    rows, sources = [], []
    for device, price in zip(devices, prices, strict=True):
        rates = (
            device.bfloat16_flops_per_second,
            device.tf32_flops_per_second,
            device.float32_flops_per_second,
        )
        rows.append(
            (
                device.name,
                *("" if rate is None else f"{rate / 1e12:,.6g}" for rate in rates),
                f"{device.memory_bytes / 2**30:,.4g}",
                "" if price is None else f"{price.dollars_per_hour:,.2f}",
            )
        )
        cost = "" if price is None else f"; price: {price.source}, {price.date}"
        sources.append((device.name, f"{device.source}{cost}"))
    headers = ("device", "bfloat16", "tf32", "float32", "GiB", "$/hour")
    print_table("devices, with dense rates in TFLOP/s", headers, rows)
    print_results("sources", sources)


def _rows(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _rows(value, f"{_words(name)}: ")
        elif value is not None and not isinstance(value, list):
            is_bytes = prefix.startswith("activations")
            yield f"{prefix}{_words(name)}", _show("bytes" if is_bytes else name, value)


def _print_columns(title: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    headers = next(iter(rows.values()))
    cells = [
        (_words(name), *(_show(name, value) for value in row.values()))
        for name, row in rows.items()
    ]
    print_table(title, ("", *map(_words, headers)), cells)


def _show(name: str, value: Any) -> str:
    """A number with the unit that its name tells."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if name == "dollars":
        return show_dollars(value)
    if name.endswith("bytes_per_second"):
        return f"{show_bytes(value)}/s"
    if name in _BYTES or "bytes" in name:
        return show_bytes(value)
    if name.endswith("milliseconds"):
        return f"{value:,.4g} ms"
    if name.endswith("flops_per_second"):
        return f"{show_flops(value)}/s"
    if "seconds" in name:
        return format_duration(value)
    if "flops" in name:
        return show_flops(value)
    if isinstance(value, float):
        return f"{value:.1%}" if value <= 1 else f"{value:,.4g}"
    return show_count(value) if value >= 10**6 else f"{value:,}"


def _words(name: str) -> str:
    return name.replace("_", " ")
