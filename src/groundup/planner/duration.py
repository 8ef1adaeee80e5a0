"""Time and price of a run on a device, with the derivation."""

from dataclasses import dataclass, replace

from groundup.errors import ConfigError
from groundup.planner.hardware import Price
from groundup.planner.parameters import FORWARDS_PER_STEP
from groundup.planner.quantities import show_dollars

ASSUMED_MFU = 0.5
"""Default model FLOPs utilization (MFU) of a plan."""

# Measured: 34 to 52% of the data sheet's peak on an H200, for five models of 23 to 400 million
# parameters; 35 to 57% of the speed of plain matmuls on two CPU cores (2026-11).
EXPECTED_MFU = {"cpu": 0.5, "cuda": 0.4}
"""Expected MFU of `groundup train`, by device."""


@dataclass(frozen=True)
class Duration:
    """The FLOPs of a run and the rate of the device."""

    forward_flops: int
    """FLOPs for one sequence."""
    batch_size: int
    num_steps: int
    peak_flops_per_second: float
    mfu: float
    device: str
    precision: str
    price: Price | None = None
    source: str = ""
    """The source of the peak."""

    @property
    def flops_per_step(self) -> int:
        return FORWARDS_PER_STEP * self.forward_flops * self.batch_size

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
    def dollars(self) -> float | None:
        return self.price and self.seconds / 3_600 * self.price.dollars_per_hour

    def within(self, seconds: float) -> "Duration":
        """Replace `num_steps` with as many whole steps as fit in a time."""
        num_steps = int(seconds * self.flops_per_second / self.flops_per_step)
        if num_steps == 0:
            one = replace(self, num_steps=1)
            raise ConfigError(
                f"one step takes {one.seconds:,.3g} s on {self.device}, but only {seconds:,.3g} s "
                f"are available; allow more time, or use a smaller batch or model"
            )
        return replace(self, num_steps=num_steps)

    def derivation(self) -> list[str]:
        """Return the calculation, one line per step."""
        rate = (
            f"the rate: {self.peak_flops_per_second / 1e12:,.6g} TFLOP/s in {self.precision} on "
            f"one {self.device} x {self.mfu:.1%} MFU = {self.flops_per_second / 1e12:,.6g} TFLOP/s"
        )
        lines = [
            f"forward, one sequence: {self.forward_flops:,} FLOPs",
            f"one step: 3 x forward (backward is twice forward) x {self.batch_size:,} sequences "
            f"= {self.flops_per_step:,} FLOPs",
            f"{rate} ({self.source})" if self.source else rate,
            f"the run: {self.num_steps:,} steps = {self.total_flops:,} FLOPs",
            f"the time: {self.total_flops:.6g} / {self.flops_per_second:.6g} "
            f"= {self.seconds:,.0f} s = {_show_amount(self.seconds / 86_400)} days",
        ]
        if self.price is not None and self.dollars is not None:
            hours = self.seconds / 3_600
            lines.append(
                f"the price: {_show_amount(hours)} hours x "
                f"${_show_amount(self.price.dollars_per_hour, 2)} = {show_dollars(self.dollars)} "
                f"({self.price.source}, {self.price.date})"
            )
        return lines


def _show_amount(number: float, num_decimals: int = 1) -> str:
    return f"{number:,.{num_decimals}f}" if number >= 1 else f"{number:.3g}"
