"""How long a run takes on a device, and what that costs, with the way to the answer."""

from dataclasses import dataclass, replace

from groundup.errors import ConfigError
from groundup.model.config import ModelConfig
from groundup.planner.flops import FORWARDS_A_STEP, forward_flops
from groundup.planner.prices import Price
from groundup.planner.quantities import show_dollars

# The share of a device's peak that is planned with where nobody says another.
ASSUMED_MFU = 0.5

_SECONDS_A_DAY = 86_400
_SECONDS_AN_HOUR = 3_600

# Beyond it nothing that is asked for can be meant, and figures no longer fit a float.
_MOST_FLOPS = 1e60
_LEAST_MFU = 1e-6


@dataclass(frozen=True)
class Duration:
    """The work of a run and the rate it is done at."""

    forward_flops: int
    """Of one sequence."""
    batch_size: int
    num_steps: int
    peak_flops_per_second: float
    mfu: float
    """The share of the peak that the products of training reach."""
    device: str
    precision: str
    price: Price | None = None
    source: str = ""
    """Where the peak was read."""
    limit_seconds: float | None = None
    """The time that the steps were to fit into, where that decided their number."""

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
            *self._limit_lines(),
            f"the run: {self.num_steps:,} steps = {self.total_flops:,} FLOPs",
            f"the time: {self.total_flops:.6g} / {self.flops_per_second:.6g} "
            f"= {self.seconds:,.0f} s = {_show_amount(self.days)} days",
        ]
        if self.price is not None and self.dollars is not None:
            hours = self.seconds / _SECONDS_AN_HOUR
            lines.append(
                f"the price: {_show_amount(hours)} hours x "
                f"${_show_amount(self.price.dollars_per_hour, 2)} = {show_dollars(self.dollars)} "
                f"({self.price.source}, {self.price.date})"
            )
        return lines

    def _limit_lines(self) -> list[str]:
        if self.limit_seconds is None:
            return []
        return [
            f"the budget: {self.limit_seconds:,.6g} s x {self.flops_per_second:.6g} FLOP/s / "
            f"{self.flops_per_step:.6g} FLOPs a step = {self.num_steps:,} whole steps"
        ]


def _show_amount(number: float, num_decimals: int = 1) -> str:
    return f"{number:,.{num_decimals}f}" if number >= 1 else f"{number:.3g}"


def estimate_duration(
    config: ModelConfig,
    *,
    batch_size: int,
    num_steps: int,
    peak_flops_per_second: float,
    mfu: float,
    device: str,
    precision: str,
    price: Price | None = None,
    source: str = "",
) -> Duration:
    """The time of a run whose sequences fill the context."""
    if not _LEAST_MFU <= mfu <= 1:
        raise ConfigError(
            f"mfu is {mfu:g}, but it is a share of the device's peak: give one from "
            f"{_LEAST_MFU:g} to 1"
        )
    duration = Duration(
        sum(forward_flops(config).values()),
        batch_size,
        num_steps,
        peak_flops_per_second,
        mfu,
        device,
        precision,
        price,
        source,
    )
    if duration.total_flops > _MOST_FLOPS:
        raise ConfigError(
            f"the run would take more than {_MOST_FLOPS:g} operations, far beyond any device: look "
            f"for a setting with too many digits"
        )
    return duration
