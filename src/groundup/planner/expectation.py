"""How long `groundup train` is expected to take where it runs, before its first step is taken.

The log of a run and the report after it both ask here, so that they name one figure.
"""

from collections.abc import Mapping

from groundup.model.config import ModelConfig
from groundup.planner.activations import DeviceKind
from groundup.planner.duration import Duration, estimate_duration
from groundup.planner.hardware import find_accelerator
from groundup.planner.prices import find_price
from groundup.planner.quantities import show_dollars, show_duration

# Of its data sheet's peak an H200 reached 34 to 52% over five models of 23 to 400 million weights,
# and two cores of a CPU 35 to 57% of what products alone reach there (2026-11): small models on a
# busy machine least. Nobody has measured mps.
EXPECTED_MFU: Mapping[DeviceKind, float] = {"cpu": 0.5, "cuda": 0.4, "mps": 0.4}


def expected_duration(
    config: ModelConfig,
    *,
    batch_size: int,
    num_steps: int,
    peak_flops_per_second: float,
    device: str,
    kind: DeviceKind,
    precision: str,
) -> Duration:
    """The time of a run's steps on a device, by its name as torch or `describe_cpu` has it."""
    row = find_accelerator(device)
    name = device if row is None else row.name
    return estimate_duration(
        config,
        batch_size=batch_size,
        num_steps=num_steps,
        peak_flops_per_second=peak_flops_per_second,
        mfu=EXPECTED_MFU[kind],
        device=name,
        precision=precision,
        price=find_price(name),
        source="measured" if row is None else row.source,
    )


def time_line(duration: Duration) -> str:
    """One line for the log of a run: the time of its steps, what that assumes, and the price."""
    line = (
        f"about {show_duration(duration.seconds)} for {duration.num_steps:,} steps at "
        f"{duration.mfu:.0%} of the {duration.peak_flops_per_second / 1e12:,.4g} TFLOP/s in "
        f"{duration.precision} of one {duration.device} ({duration.source})"
    )
    if duration.price is None or duration.dollars is None:
        return line
    per_hour = duration.price.dollars_per_hour
    return f"{line}: {show_dollars(duration.dollars)} at ${per_hour:,.2f} an hour"
