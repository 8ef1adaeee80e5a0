"""How long a run takes on a device, and what that costs, with the way to the answer."""

from dataclasses import dataclass

from groundup.errors import ConfigError
from groundup.model.config import ModelConfig
from groundup.planner.flops import FORWARDS_A_STEP, forward_flops
from groundup.planner.prices import Price

_SECONDS_A_DAY = 86_400
_SECONDS_AN_HOUR = 3_600


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

    def derivation(self) -> list[str]:
        """The same, one line a step of the calculation."""
        lines = [
            f"forward, one sequence: {self.forward_flops:,} FLOPs",
            f"a step: 3 x forward (backward is twice forward) x {self.batch_size:,} sequences "
            f"= {self.flops_per_step:,} FLOPs",
            f"the run: {self.num_steps:,} steps = {self.total_flops:,} FLOPs",
            f"the rate: {self.peak_flops_per_second / 1e12:,.6g} TFLOP/s in {self.precision} on "
            f"one {self.device} x {self.mfu:.1%} MFU = {self.flops_per_second / 1e12:,.6g} TFLOP/s",
            f"the time: {self.total_flops:.6g} / {self.flops_per_second:.6g} "
            f"= {self.seconds:,.0f} s = {_show_days(self.days)} days",
        ]
        if self.price is not None and self.dollars is not None:
            lines.append(
                f"the price: {self.seconds / _SECONDS_AN_HOUR:,.1f} hours x "
                f"${self.price.dollars_per_hour:,.2f} = ${self.dollars:,.2f} "
                f"({self.price.source}, {self.price.date})"
            )
        return lines


def _show_days(days: float) -> str:
    return f"{days:,.1f}" if days >= 1 else f"{days:.3g}"


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
) -> Duration:
    """The time of a run whose sequences fill the context."""
    if not 0 < mfu <= 1:
        raise ConfigError(
            f"mfu is {mfu:g}, but it is a share of the device's peak: give one above 0 and up to 1"
        )
    return Duration(
        sum(forward_flops(config).values()),
        batch_size,
        num_steps,
        peak_flops_per_second,
        mfu,
        device,
        precision,
        price,
    )
