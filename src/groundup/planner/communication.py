"""What each GPU of many sends in a collective, and how long that takes.

A collective is a ring through all GPUs: of n each sends (n - 1)/n of the bytes, twice in an
all-reduce, and of what a machine's GPUs send only one's part leaves the machine.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from groundup.errors import ConfigError
from groundup.planner.interconnects import Interconnect

Group = tuple[int, int]
"""Who takes part in a collective: GPUs of each machine, and machines."""


class Traffic(NamedTuple):
    """What one GPU sends, and how long that takes if nothing else is done meanwhile."""

    inside_bytes: float
    """To GPUs of its machine."""
    across_bytes: float
    """To other machines."""
    seconds: float

    def plus(self, other: "Traffic") -> "Traffic":
        return Traffic(*(one + another for one, another in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Cluster:
    """GPUs in machines, and the links between them. Collectives are called `num_calls` times to
    send `num_bytes` in all."""

    num_gpus: int
    gpus_per_machine: int
    inside: Interconnect
    across: Interconnect

    def __post_init__(self) -> None:
        if self.num_gpus % self.num_local:
            raise ConfigError(
                f"{self.num_gpus} GPUs do not fill machines of {self.gpus_per_machine}: give "
                f"--gpus a multiple of --gpus-per-machine"
            )

    @property
    def num_local(self) -> int:
        """GPUs of the run in each machine."""
        return min(self.num_gpus, self.gpus_per_machine)

    @property
    def num_machines(self) -> int:
        return self.num_gpus // self.num_local

    @property
    def across_bytes_per_second(self) -> float:
        """What one GPU sends to other machines while the others do."""
        return self.across.bytes_per_second / (self.num_local if self.across.is_shared else 1)

    def gather(self, group: Group, num_bytes: float, num_calls: int) -> Traffic:
        """An all-gather or a reduce-scatter: once around the ring."""
        num_local, num_machines = group
        hops = (num_local - 1) * num_machines * self.inside.hop_seconds
        hops += (num_machines - 1) * self.across.hop_seconds
        return self._send_around(group, num_bytes, num_calls * hops)

    def all_reduce(self, group: Group, num_bytes: float, num_calls: int) -> Traffic:
        """Twice around the ring, in as many hops as a tree of machines has."""
        num_local, num_machines = group
        hops = (num_local - 1) * self.inside.hop_seconds
        hops += math.log2(num_machines) * self.across.hop_seconds
        return self._send_around(group, 2 * num_bytes, 2 * num_calls * hops)

    def halve_and_double(self, num_bytes: float, num_calls: int) -> Traffic:
        """Recursive halving and doubling among all GPUs: half of the bytes to one other of the
        machine, a quarter to the next and so on, and the same back."""
        num_inside = math.ceil(math.log2(self.num_local))
        num_across = math.ceil(math.log2(self.num_gpus)) - num_inside
        inside = 2 * num_bytes * (1 - 2.0**-num_inside)
        across = 2 * num_bytes * 2.0**-num_inside * (1 - 2.0**-num_across)
        seconds = inside / self.inside.bytes_per_second + across / self.across_bytes_per_second
        hops = num_inside * self.inside.hop_seconds + num_across * self.across.hop_seconds
        return Traffic(inside, across, seconds + 2 * num_calls * hops)

    def _send_around(self, group: Group, num_bytes: float, hop_seconds: float) -> Traffic:
        """All links work at once, so that the slowest decides."""
        num_local, num_machines = group
        sent = (1 - 1 / (num_local * num_machines)) * num_bytes
        across = sent / num_local if num_machines > 1 else 0.0
        inside_seconds = (sent - across) / self.inside.bytes_per_second
        across_seconds = across / self.across_bytes_per_second
        return Traffic(sent - across, across, max(inside_seconds, across_seconds) + hop_seconds)
