"""How long a run takes on a device, and what that costs, with the way to the answer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from groundup.errors import ConfigError
from groundup.model.config import ModelConfig
from groundup.planner.flops import FORWARDS_A_STEP, forward_flops
from groundup.planner.hardware import Price, find_accelerator, find_price
from groundup.planner.memory import DeviceKind
from groundup.planner.quantities import show_dollars
from groundup.runtime import count_of, format_duration

ASSUMED_MFU = 0.5
"""The fraction of a device's peak that is planned with where nobody says another."""

# Of its data sheet's peak an H200 reached 34 to 52% over five models of 23 to 400 million
# parameters, and two cores of a CPU 35 to 57% of what matmuls alone reach there (2026-11): small
# models on a busy machine least. Nobody has measured mps.
EXPECTED_MFU: Mapping[DeviceKind, float] = {"cpu": 0.5, "cuda": 0.4, "mps": 0.4}
"""The fraction that `groundup train` is expected to reach where it runs."""

_SECONDS_A_DAY = 86_400
_SECONDS_AN_HOUR = 3_600

# Beyond it nothing that is asked for can be meant, and results no longer fit a float.
_MOST_FLOPS = 1e60
_LEAST_MFU = 1e-6


@dataclass(frozen=True)
class Duration:
    """The work of a run and the rate it is done at."""

    forward_flops: int
    """Of one sequence, which fills the context."""
    batch_size: int
    num_steps: int
    peak_flops_per_second: float
    mfu: float
    """The fraction of the peak that training reaches."""
    device: str
    precision: str
    price: Price | None = None
    source: str = ""
    """Where the peak was read."""
    limit_seconds: float | None = None
    """The time that the steps were to fit into, where that decided their number."""

    def __post_init__(self) -> None:
        if not _LEAST_MFU <= self.mfu <= 1:
            raise ConfigError(
                f"mfu is {self.mfu:g}, but it is a fraction of the device's peak: give one from "
                f"{_LEAST_MFU:g} to 1"
            )
        if self.total_flops > _MOST_FLOPS:
            raise ConfigError(
                f"the run would take more than {_MOST_FLOPS:g} operations, far beyond any device: "
                f"look for a setting with too many digits"
            )

    @property
    def flops_per_step(self) -> int:
        return FORWARDS_A_STEP * self.forward_flops * self.batch_size

    @property
    def total_flops(self) -> int:
        return self.flops_per_step * self.num_steps

    @property
    def flops_per_second(self) -> float:
        return self.peak_flops_per_second * self.mfu

    @property
    def seconds(self) -> float:
        return self.total_flops / self.flops_per_second

    @property
    def days(self) -> float:
        return self.seconds / _SECONDS_A_DAY

    @property
    def dollars(self) -> float | None:
        if self.price is None:
            return None
        return self.seconds / _SECONDS_AN_HOUR * self.price.dollars_per_hour

    def within(self, seconds: float) -> "Duration":
        """The same for as many whole steps as fit into a time."""
        num_steps = int(seconds * self.flops_per_second / self.flops_per_step)
        if num_steps == 0:
            one = replace(self, num_steps=1)
            raise ConfigError(
                f"one step takes {one.seconds:,.3g} s on {self.device}, and there are "
                f"{seconds:,.3g}: give more time, or a smaller batch or model"
            )
        return replace(self, num_steps=num_steps, limit_seconds=seconds)

    def derivation(self) -> list[str]:
        """The same, one line a step of the calculation."""
        rate = (
            f"the rate: {self.peak_flops_per_second / 1e12:,.6g} TFLOP/s in {self.precision} on "
            f"one {self.device} x {self.mfu:.1%} MFU = {self.flops_per_second / 1e12:,.6g} TFLOP/s"
        )
        lines = [
            f"forward, one sequence: {self.forward_flops:,} FLOPs",
            f"a step: 3 x forward (backward is twice forward) x {self.batch_size:,} sequences "
            f"= {self.flops_per_step:,} FLOPs",
            f"{rate} ({self.source})" if self.source else rate,
            f"the run: {self.num_steps:,} steps = {self.total_flops:,} FLOPs",
            f"the time: {self.total_flops:.6g} / {self.flops_per_second:.6g} "
            f"= {self.seconds:,.0f} s = {_show_amount(self.days)} days",
        ]
        if self.limit_seconds is not None:
            lines.insert(
                3,
                f"the budget: {self.limit_seconds:,.6g} s x {self.flops_per_second:.6g} FLOP/s / "
                f"{self.flops_per_step:.6g} FLOPs a step = {self.num_steps:,} whole steps",
            )
        if self.price is not None and self.dollars is not None:
            hours = self.seconds / _SECONDS_AN_HOUR
            lines.append(
                f"the price: {_show_amount(hours)} hours x "
                f"${_show_amount(self.price.dollars_per_hour, 2)} = {show_dollars(self.dollars)} "
                f"({self.price.source}, {self.price.date})"
            )
        return lines


def _show_amount(number: float, num_decimals: int = 1) -> str:
    return f"{number:,.{num_decimals}f}" if number >= 1 else f"{number:.3g}"


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
    return Duration(
        forward_flops=sum(forward_flops(config).values()),
        batch_size=batch_size,
        num_steps=num_steps,
        peak_flops_per_second=peak_flops_per_second,
        mfu=EXPECTED_MFU[kind],
        device=name,
        precision=precision,
        price=find_price(name),
        source="measured" if row is None else row.source,
    )


def time_line(duration: Duration, num_devices: int = 1) -> str:
    """One line for the log of a run: the time of its steps, what that assumes, and the price.

    duration: of one device's part; what devices wait for each other is not counted.
    """
    devices = "one" if num_devices == 1 else f"each of {num_devices:,}"
    line = (
        f"about {format_duration(duration.seconds)} for {count_of(duration.num_steps, 'step')} at "
        f"{duration.mfu:.0%} of the {duration.peak_flops_per_second / 1e12:,.4g} TFLOP/s in "
        f"{duration.precision} of {devices} {duration.device} ({duration.source})"
    )
    if duration.price is None or duration.dollars is None:
        return line
    per_hour = num_devices * duration.price.dollars_per_hour
    return f"{line}: {show_dollars(num_devices * duration.dollars)} at ${per_hour:,.2f} an hour"
