"""A plan on the screen: tables of figures, and the way from operations to days and dollars."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from groundup.cli.tables import print_figures, print_table, show_duration
from groundup.planner.optimal import SOURCE, optimal_parameters, optimal_tokens
from groundup.planner.plan import Plan
from groundup.planner.quantities import show_bytes, show_count, show_dollars, show_flops
from groundup.planner.shares import shares_by_context, shares_by_size

if TYPE_CHECKING:
    from groundup.cli.plan_probe import Probe


def print_plan(plan: Plan) -> None:
    """Every part of a plan, one table each."""
    _print_parts(plan)
    _print_shares("shares by size", shares_by_size())
    by_context = shares_by_context(plan.config)
    _print_shares(
        "shares by context length", {f"{length:,}": one for length, one in by_context.items()}
    )
    _print_memory(plan)
    _print_textbook(plan)
    _print_run(plan)


def print_probe(plan: Plan, probe: "Probe") -> None:
    """What three steps on this machine took, beside what was predicted of them."""
    figures = [
        ("sequences at once", f"{probe.micro_batch:,}"),
        ("a step", show_duration(probe.seconds_per_step)),
        ("speed", f"{probe.tokens_per_second:,.0f} tokens/s, {probe.mfu:.1%} MFU"),
        ("peak memory, measured", show_bytes(probe.peak_bytes)),
        ("peak memory, predicted", show_bytes(probe.predicted_bytes)),
    ]
    print_figures(f"measured on {plan.duration.device}", figures)


def _print_parts(plan: Plan) -> None:
    total = plan.num_parameters
    rows = [(_words(name), f"{n:,}", f"{n / total:.1%}") for name, n in plan.parameters.items()]
    rows.append(("total", f"{total:,}", show_bytes(4 * total)))
    print_table("parameters", ("part", "weights", "share"), rows)
    flops = plan.flops
    total = sum(flops.values())
    lines = [
        (_words(name), f"{plan.flops_per_layer.get(name, 0):,}", f"{n:,}", f"{n / total:.1%}")
        for name, n in flops.items()
    ]
    per_layer = sum(plan.flops_per_layer.values())
    lines.append(("total", f"{per_layer:,}", f"{total:,}", show_flops(total)))
    title = f"operations of a forward pass of {plan.config.context_length:,} tokens"
    print_table(title, ("part", "a layer", "all", "share"), lines)


def _print_shares(title: str, shares: Mapping[str, Mapping[str, float]]) -> None:
    names = list(next(iter(shares.values())))
    rows = [(label, *(f"{one[name]:.1%}" for name in names)) for label, one in shares.items()]
    print_table(title, ("", *map(_words, names)), rows)


def _print_memory(plan: Plan) -> None:
    memory = plan.memory
    figures = [
        ("weights", show_bytes(memory.weights)),
        ("gradients", show_bytes(memory.gradients)),
        ("optimizer state", show_bytes(memory.optimizer_state)),
        ("copies of weights", show_bytes(memory.weight_copies)),
    ]
    for name, count in memory.activations_per_sequence.items():
        figures.append((f"a sequence: {_words(name)}", show_bytes(count)))
    largest = memory.largest_micro_batch(plan.memory_bytes)
    figures.append(("a sequence: total", show_bytes(memory.bytes_per_sequence)))
    figures.append((f"largest micro-batch in {_show_memory(plan)}", f"{largest:,}"))
    if plan.peak_bytes is not None:
        shown = f"{show_bytes(plan.peak_bytes)} with micro-batches of {plan.micro_batch:,}"
        figures.append(("peak of a step", shown))
    where = f"{memory.execution.precision} on {memory.execution.device}"
    print_figures(f"memory of groundup train, {where}", figures)


def _print_textbook(plan: Plan) -> None:
    textbook = plan.textbook
    figures = [
        (_words(name), show_bytes(count))
        for name, count in textbook.activations_per_sequence.items()
    ]
    largest = textbook.largest_batch(plan.memory_bytes)
    figures += [
        ("weights, gradients, AdamW", show_bytes(textbook.fixed_bytes)),
        ("in all", textbook.formula()),
        (f"largest batch in {_show_memory(plan)}", f"{largest:,}"),
    ]
    print_figures("memory by the textbook: float32, every intermediate kept", figures)


def _print_run(plan: Plan) -> None:
    duration = plan.duration
    figures = [
        ("tokens", show_count(plan.num_tokens)),
        ("a step", f"{show_flops(duration.flops_per_step)}, update {plan.update_flops:,} FLOPs"),
        ("time", show_duration(duration.seconds)),
    ]
    if duration.dollars is not None:
        figures.append(("price", show_dollars(duration.dollars)))
    best = optimal_parameters(duration.total_flops)
    figures += [
        ("enough tokens for this model", show_count(optimal_tokens(plan.num_parameters))),
        (
            "best use of this compute",
            f"{show_count(best)} parameters on {show_count(optimal_tokens(best))} tokens",
        ),
        ("by", SOURCE),
    ]
    print_figures(f"the run on one {duration.device}", figures)
    for line in duration.derivation():
        print(f"  {line}")


def _show_memory(plan: Plan) -> str:
    """A device's memory in the unit it is sold by."""
    return f"{plan.memory_bytes / 2**30:,.4g} GiB"


def _words(name: str) -> str:
    return name.replace("_", " ")
