"""A plan on the screen: the numbers of its JSON, as tables with units."""

from collections.abc import Mapping
from typing import Any

from groundup.cli.terminal import print_results, print_table
from groundup.config import flatten
from groundup.planner.quantities import show_bytes, show_count, show_dollars, show_flops
from groundup.runtime import format_duration

_SECTIONS = {
    "memory": "memory of groundup train",
    "textbook_memory": "memory by the textbook: every intermediate kept",
    "duration": "the run on one device",
    "compute_optimal": "compute-optimal",
    "probe": "measured on this machine",
    "distributed": "the run on many GPUs",
}
_BYTES = {"weights", "gradients", "optimizer_state", "weight_copies", "gathered", "activations"}


def print_plan(results: Mapping[str, Any]) -> None:
    """Every part of a plan, one table each.

    results: as `Plan.to_json` gives them, those of a probe and of many GPUs among them.
    """
    parts, flops = results["parameters"], flatten(results["forward_flops"])
    rows = [(_words(name), f"{n:,}", f"{n / parts['total']:.1%}") for name, n in parts.items()]
    print_table("parameters", ("part", "parameters", "fraction"), rows)
    print_results("FLOPs of a forward pass", [(_words(name), f"{n:,}") for name, n in flops])
    for name in ("by_size", "by_context"):
        _print_columns(f"fractions {_words(name)}", results["shares"][name])
    for name, title in _SECTIONS.items():
        section = dict(results.get(name, {}))
        if strategies := section.pop("strategies", None):
            names = next(iter(strategies.values()))
            by_name = {name: {key: one[name] for key, one in strategies.items()} for name in names}
            _print_columns("each GPU, by strategy", by_name)
        derivation = section.pop("derivation", [])
        shown = [
            (_words(key), _show("bytes" if key.startswith("activations") else key, value))
            for key, value in flatten(section)
            if value is not None
        ]
        if shown:
            print_results(title, shown)
        for line in derivation:
            print(f"  {line}")


def _print_columns(title: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    headers = next(iter(rows.values()))
    cells = [
        (_words(name), *(_show(name, value) for value in row.values()))
        for name, row in rows.items()
    ]
    print_table(title, ("", *map(_words, headers)), cells)


def _show(name: str, value: Any) -> str:
    """A number with the unit that its name tells."""
    if isinstance(value, str | bool):
        return str(value)
    if name == "dollars":
        return show_dollars(value)
    if name in _BYTES or "bytes" in name:
        return show_bytes(value) + ("/s" if name.endswith("per_second") else "")
    if name.endswith("milliseconds"):
        return f"{value:,.4g} ms"
    if "flops" in name:
        return show_flops(value) + ("/s" if name.endswith("per_second") else "")
    if "seconds" in name:
        return format_duration(value)
    if isinstance(value, float):
        return f"{value:.1%}" if value <= 1 else f"{value:,.4g}"
    return show_count(value) if value >= 10**6 else f"{value:,}"


def _words(name: str) -> str:
    return name.replace("_", " ").replace(".", ": ")
