"""A plan on the screen: the numbers of its JSON, as tables with units."""

from collections.abc import Mapping
from typing import Any

from groundup.cli.terminal import print_records, print_table, print_values
from groundup.config import flatten

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
    parts, flops = results["parameters"], results["forward_flops"]
    print_values("parameters", parts)
    # With every digit: they can be counted by hand.
    exact = [(name.replace("_", " "), f"{n:,}") for name, n in flatten(flops)]
    print_table("FLOPs of a forward pass", (), exact)
    for name in ("by_size", "by_context"):
        shares = results["shares"][name].items()
        title = f"fractions {name.replace('_', ' ')}"
        print_records(title, [{"model": model} | parts for model, parts in shares])
    for name, title in _SECTIONS.items():
        section = dict(results.get(name, {}))
        strategies = section.pop("strategies", {})
        derivation = section.pop("derivation", [])
        if section:
            print_values(title, _with_units(section))
        for strategy, values in strategies.items():
            print_values(f"each GPU with {strategy}", _with_units(values))
        for line in derivation:
            print(f"  {line}")


def _with_units(section: Mapping[str, Any]) -> dict[str, Any]:
    """The values to show, under names that include the unit."""
    found = {}
    for name, value in flatten(section):
        is_bytes = name.partition(".")[0].removesuffix("_per_sequence") in _BYTES
        found[f"{name}_bytes" if is_bytes else name] = value
    return found
