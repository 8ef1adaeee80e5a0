"""A plan on the screen: tables, and the way from operations to days and dollars."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from groundup.cli.terminal import print_results, print_table
from groundup.planner.flops import (
    OPTIMAL_SOURCE,
    fractions_by_context,
    fractions_by_size,
    optimal_parameters,
    optimal_tokens,
)
from groundup.planner.hardware import ACCELERATORS, Accelerator, describe_cpu, find_price
from groundup.planner.plan import Plan
from groundup.planner.quantities import (
    show_bytes,
    show_count,
    show_dollars,
    show_flops,
)
from groundup.runtime import format_duration, memory_bytes, num_cores

if TYPE_CHECKING:
    from groundup.planner.distributed import DistributedPlan
    from groundup.training.probe import Probe


def print_plan(plan: Plan, assumptions: Sequence[str] = ()) -> None:
    """Every part of a plan, one table each.

    assumptions: lines to begin with, about what was not asked for.
    """
    for line in assumptions:
        print(line)
    _print_parts(plan)
    _print_fractions("fractions by size", fractions_by_size())
    by_context = fractions_by_context(plan.config)
    _print_fractions(
        "fractions by context length", {f"{length:,}": one for length, one in by_context.items()}
    )
    _print_memory(plan)
    _print_textbook(plan)
    _print_run(plan)


def print_probe(plan: Plan, probe: "Probe") -> None:
    """What three steps on this machine took, beside what was predicted of them."""
    size = probe.micro_batch
    rows = [
        (
            f"a step of {size:,} sequence{'' if size == 1 else 's'}",
            format_duration(probe.seconds_per_step),
        ),
        ("speed", f"{probe.tokens_per_second:,.0f} tokens/s, {probe.mfu:.1%} MFU"),
        ("its peak memory, measured", show_bytes(probe.peak_bytes)),
        ("its peak memory, predicted", show_bytes(probe.predicted_bytes)),
    ]
    print_results(f"measured on {plan.duration.device}", rows)


def print_distributed(distributed: "DistributedPlan") -> None:
    """The strategies beside each other, and the run with the one that auto takes."""
    plan = distributed.plan
    gpus = f"{distributed.num_gpus:,} x {plan.duration.device}"
    columns = [one.to_json() for one in distributed.strategies.values()]
    rows = [
        (_words(name), *(show_bytes(one[name]) for one in columns))
        for name in (
            "weights", "gradients", "optimizer_state", "weight_copies", "gathered", "activations",
            "peak_bytes", "sent_inside_bytes", "sent_across_bytes",
        )
    ]  # fmt: skip
    rows += [
        ("sequences at once", *(f"{one['micro_batch'] or 1:,}" for one in columns)),
        ("fits", *("yes" if one["fits"] else "no" for one in columns)),
        *(
            (_words(name), *(f"{one[f'{name}_milliseconds']:,.4g} ms" for one in columns))
            for name in ("communication", "exposed", "step")
        ),
        ("efficiency", *(f"{one['efficiency']:.1%}" for one in columns)),
    ]
    inside, across = distributed.inside_bytes_per_second, distributed.across_bytes_per_second
    title = f"each GPU of {gpus}, {inside / 1e9:.3g} GB/s inside and {across / 1e9:.3g} across"
    print_table(f"{title} machines", ("", *distributed.strategies), rows)
    results = [
        ("speed", f"{show_count(distributed.tokens_per_second)} tokens/s"),
        ("time", format_duration(distributed.seconds)),
    ]
    if distributed.dollars is not None:
        results.append(("price", show_dollars(distributed.dollars)))
    print_results(f"the run on {gpus} with {distributed.chosen}, as auto chooses", results)


def show_devices(*, is_json: bool) -> None:
    """The table of devices, and where its rates and prices were read.

    is_json: print the devices as JSON instead.
    """
    devices = [*ACCELERATORS, describe_cpu(num_cores(), memory_bytes())]
    if is_json:
        prices = [find_price(device.name) for device in devices]
        found = [
            {**device._asdict(), "price": None if price is None else price._asdict()}
            for device, price in zip(devices, prices, strict=True)
        ]
        print(json.dumps(found, ensure_ascii=False, indent=2))
        return
    _print_devices(devices)


def _print_devices(devices: Sequence[Accelerator]) -> None:
    rows, names_by_source = [], dict[str, list[str]]()
    for device in devices:
        names_by_source.setdefault(device.source, []).append(device.name)
        price = find_price(device.name)
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
    headers = ("device", "bfloat16", "tf32", "float32", "GiB", "$/hour")
    print_table("devices, with dense rates in TFLOP/s", headers, rows)
    rates_from = [(", ".join(names), source) for source, names in names_by_source.items()]
    print_results("sources of the rates", rates_from)
    prices = [(one.name, find_price(one.name)) for one in devices]
    prices_from = [(name, f"{one.source}, {one.date}") for name, one in prices if one is not None]
    print_results("sources of the prices", prices_from)


def _print_parts(plan: Plan) -> None:
    total = plan.num_parameters
    rows = [(_words(name), f"{n:,}", f"{n / total:.1%}") for name, n in plan.parameters.items()]
    rows.append(("total", f"{total:,}", show_bytes(4 * total)))
    print_table("parameters", ("part", "parameters", "fraction"), rows)
    flops = plan.flops
    total = sum(flops.values())
    layers = {name: f"{n:,}" for name, n in plan.flops_per_layer.items()}
    lines = [
        (_words(name), layers.get(name, ""), f"{n:,}", f"{n / total:.1%}")
        for name, n in flops.items()
    ]
    per_layer = sum(plan.flops_per_layer.values())
    lines.append(("total", f"{per_layer:,}", f"{total:,}", show_flops(total)))
    title = f"operations of a forward pass of {plan.config.context_length:,} tokens"
    print_table(title, ("part", "a layer", "all", "fraction"), lines)


def _print_fractions(title: str, fractions: Mapping[str, Mapping[str, float]]) -> None:
    names = list(next(iter(fractions.values())))
    rows = [(label, *(f"{one[name]:.1%}" for name in names)) for label, one in fractions.items()]
    print_table(title, ("", *map(_words, names)), rows)


def _print_memory(plan: Plan) -> None:
    memory = plan.memory
    rows = [
        ("weights", show_bytes(memory.weights)),
        ("gradients", show_bytes(memory.gradients)),
        ("optimizer state", show_bytes(memory.optimizer_state)),
        ("copies of weights", show_bytes(memory.weight_copies)),
    ]
    for name, count in memory.activations_per_sequence.items():
        rows.append((f"a sequence: {_words(name)}", show_bytes(count)))
    largest = memory.largest_micro_batch(plan.memory_bytes)
    rows.append(("a sequence: total", show_bytes(memory.bytes_per_sequence)))
    rows.append((f"largest micro-batch in {_show_memory(plan)}", f"{largest:,}"))
    rows.append(("peak of a step", _show_peak(plan)))
    where = f"{memory.execution.precision} on {memory.execution.device}"
    print_results(f"memory of groundup train, {where}", rows)


def _show_peak(plan: Plan) -> str:
    if plan.peak_bytes is None:
        one = show_bytes(plan.memory.bytes_at(1))
        return f"does not fit: one sequence at a time takes {one}"
    shown = f"{show_bytes(plan.peak_bytes)} with micro-batches of {plan.micro_batch:,}"
    return shown if plan.fits else f"does not fit: {shown}"


def _print_textbook(plan: Plan) -> None:
    textbook = plan.textbook
    rows = [
        (_words(name), show_bytes(count))
        for name, count in textbook.activations_per_sequence.items()
    ]
    largest = textbook.largest_batch(plan.memory_bytes)
    rows += [
        ("weights, gradients, AdamW", show_bytes(textbook.fixed_bytes)),
        ("in all", textbook.formula()),
        (f"largest batch in {_show_memory(plan)}", f"{largest:,}"),
    ]
    print_results("memory by the textbook: float32, every intermediate kept", rows)


def _print_run(plan: Plan) -> None:
    duration = plan.duration
    tokens = f"{show_count(plan.num_tokens)} in {duration.num_steps:,} steps"
    if plan.num_epochs is not None and plan.tokens_in_corpus is not None:
        tokens += f", {plan.num_epochs:.3g} epochs of {show_count(plan.tokens_in_corpus)}"
    rows = [
        ("tokens", tokens),
        ("a step", f"{show_flops(duration.flops_per_step)}, update {plan.update_flops:,} FLOPs"),
        ("time", format_duration(duration.seconds)),
    ]
    price = "none in the table: give --price-per-hour"
    if duration.dollars is not None:
        price = show_dollars(duration.dollars)
    best = optimal_parameters(duration.total_flops)
    enough = show_count(optimal_tokens(plan.num_parameters))
    rows += [
        ("price", price),
        (
            "enough tokens for this model",
            f"{enough} in {plan.enough.num_steps:,} steps, {format_duration(plan.enough.seconds)}",
        ),
        (
            "best use of this compute",
            f"{show_count(best)} parameters on {show_count(optimal_tokens(best))} tokens",
        ),
        ("by", OPTIMAL_SOURCE),
    ]
    print_results(f"the run on one {duration.device}", rows)
    for line in duration.derivation():
        print(f"  {line}")


def _show_memory(plan: Plan) -> str:
    """A device's memory in the unit it is sold by."""
    return f"{plan.memory_bytes / 2**30:,.4g} GiB"


def _words(name: str) -> str:
    return name.replace("_", " ")
