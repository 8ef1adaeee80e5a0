"""A plan for many GPUs on the screen: what each holds and sends, and how efficiency falls."""

from groundup.cli.terminal import print_results, print_table
from groundup.planner.quantities import show_bytes, show_count, show_dollars
from groundup.planner.scaling import Efficiencies, Scaling
from groundup.runtime import count_of, format_duration


def print_scaling(scaling: Scaling) -> None:
    """The strategies beside each other, the run with the one that auto takes, and efficiency by the
    number of GPUs."""
    cluster, plan = scaling.cluster, scaling.plan
    gpus = f"{cluster.num_gpus:,} x {plan.duration.device}"
    names, columns = list(scaling.strategies), list(scaling.strategies.values())
    rows = [
        ("weights", *(show_bytes(one.memory.weights) for one in columns)),
        ("gradients", *(show_bytes(one.memory.gradients) for one in columns)),
        ("optimizer state", *(show_bytes(one.memory.optimizer_state) for one in columns)),
        ("copies of weights", *(show_bytes(one.memory.weight_copies) for one in columns)),
        ("gathered weights", *(show_bytes(one.memory.gathered_bytes) for one in columns)),
        ("activations", *(show_bytes(one.activation_bytes) for one in columns)),
        ("sequences at once", *(f"{one.micro_batch or 1:,}" for one in columns)),
        ("peak of a step", *(show_bytes(one.peak_bytes) for one in columns)),
        ("fits", *("yes" if one.fits else "no" for one in columns)),
    ]
    print_table(f"memory of each GPU of {gpus}", ("", *names), rows)
    across = f"{cluster.across_bytes_per_second / 1e9:.3g} GB/s across by {cluster.across.name}"
    inside = f"{cluster.inside.bytes_per_second / 1e9:.3g} GB/s inside by {cluster.inside.name}"
    where = count_of(cluster.num_machines, "machine")
    rows = [
        ("sent inside a machine", *(show_bytes(one.traffic.inside_bytes) for one in columns)),
        ("sent to other machines", *(show_bytes(one.traffic.across_bytes) for one in columns)),
        ("communication", *(_show_time(one.traffic.seconds) for one in columns)),
        ("of that waited for", *(_show_time(one.exposed_seconds) for one in columns)),
        ("computation", *(_show_time(one.compute_seconds) for one in columns)),
        ("efficiency", *(f"{one.efficiency:.1%}" for one in columns)),
    ]
    print_table(f"a step of each GPU in {where}: {inside}, {across}", ("", *names), rows)
    results = [
        ("speed", f"{show_count(scaling.tokens_per_second)} tokens/s"),
        ("time", format_duration(scaling.seconds)),
    ]
    if scaling.dollars is not None:
        results.append(("price", show_dollars(scaling.dollars)))
    print_results(f"the run on {gpus} with {scaling.chosen}, as auto chooses", results)
    batch = f"{plan.batch_size:,} sequences"
    _print_efficiencies(f"efficiency where all GPUs share {batch}", names, scaling.same_batch)
    each = count_of(columns[0].num_sequences, "sequence")
    _print_efficiencies(f"efficiency where each GPU has {each}", names, scaling.same_batch_per_gpu)


def _print_efficiencies(title: str, names: list[str], table: Efficiencies) -> None:
    rows = [
        (f"{size:,}", *("too large" if one is None else f"{one:.1%}" for one in row.values()))
        for size, row in table.items()
    ]
    print_table(title, ("GPUs", *names), rows)


def _show_time(seconds: float) -> str:
    return f"{1e3 * seconds:,.3g} ms" if seconds < 0.1 else format_duration(seconds)
